"""The evidence of a verb for `--report`: who did what, when, to which clusters, with what result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kmirror.ops.context import Destination, actor, now_ms
from kmirror.ops.results import VerbResult
from kmirror.state.records import MirrorRecord


def evidence_of(
    destination: Destination,
    mirror: MirrorRecord,
    result: VerbResult,
    began_ms: int,
    steps: Mapping[str, float],
) -> dict[str, Any]:
    """Return the document; times in epoch milliseconds, the durations of steps in seconds."""
    return {
        "verb": result.verb,
        "mirror": mirror.name,
        "dryRun": result.dry_run,
        "operator": actor(),
        "beganMs": began_ms,
        "endedMs": now_ms(),
        "steps": [{"step": name, "seconds": round(seconds, 3)} for name, seconds in steps.items()],
        "source": {
            "clusterId": mirror.source_cluster_id,
            "bootstrapServer": mirror.source.get("bootstrap.servers"),
        },
        "destination": {"clusterId": destination.cluster_id, "bootstrapServer": destination.bootstrap_server},
        "totals": result.totals.to_json() if result.totals else None,
        "partitions": [row.to_json() for row in result.results],
        "groups": [row.to_json() for row in result.groups],
        "warnings": list(result.warnings),
        "exitCode": int(result.exit_code),
        "error": result.error.to_json() if result.error else None,
    }
