"""The page of a server that watches several clusters, with made-up documents, and ways to view it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from kmirror.ops.show.events import EVENTS
from kmirror.state.event_records import Event
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.partition_row import PARTITIONS
from kmirror.status.topic_status import TOPICS
from tests.support.report_facts import MINUTE, NOW, report_facts

HOUR = 60 * MINUTE
#: Clusters with an error, and mirrors in all states: name, cluster, state, reason, and what else differs.
CLUSTERS = (
    ("frankfurt", "Fr4kZ0uPTwCX9d1", "kafka-1.fra.example:9092,kafka-2.fra.example:9092", None),
    ("oregon", "Or7gQm2sRk6yV3b", "b-1.oregon.example:9094", None),
    ("sydney", "Sy2dLw8eQn5tH1c", "kafka.syd.example:9092", "connection to kafka.syd.example:9092 refused"),
)
_MIRRORS: tuple[tuple[str, str, str, str | None, dict[str, Any]], ...] = (
    (
        "orders",
        "frankfurt",
        "FAILED",
        "SOURCE_DIVERGED",
        {"failed": 1, "missing": "orders.placed-3 FAILED", "lag": 160},
    ),
    (
        "payments",
        "oregon",
        "LINK_FAILED",
        "NO_ENGINE",
        {
            "engine": None,
            "lag": 84_310,
            "lagUnknown": 4,
            "maxTimeLagMs": 754_000,
            "bytesPerSecond": None,
            "missing": "payments.events-0 is not healthy: no engine copies mirror payments (last heard 12m34s ago)",
        },
    ),
    (
        "clickstream",
        "frankfurt",
        "ACTIVE",
        None,
        {
            "lag": 1_204_377,
            "maxTimeLagMs": 95_000,
            "bytesPerSecond": 85_400_000,
            "etaMs": 312_000,
            "objectivesBreached": 2,
            "objectivesWithin": 10,
        },
    ),
    ("audit", "sydney", "ACTIVE", None, {"lag": 12}),
    ("inventory", "oregon", "ACTIVE", None, {"lag": 31, "bytesPerSecond": 2_210_000, "objectivesWithin": 6}),
    ("metrics", "frankfurt", "ACTIVE", None, {"lag": 0, "maxTimeLagMs": 0, "bytesPerSecond": 640_000}),
    ("sessions", "frankfurt", "PAUSED", "PAUSED_BY_OPERATOR", {"lag": 5_120, "bytesPerSecond": 0.0}),
    (
        "warehouse-2025",
        "oregon",
        "STOPPED",
        "PROMOTED",
        {"engine": None, "lag": None, "maxTimeLagMs": None, "bytesPerSecond": None, "stoppedTopics": 9},
    ),
)


def _mirror(name: str, cluster: str, state: str, reason: str | None, more: Mapping[str, Any]) -> dict[str, Any]:
    known = MIRRORS.document(report_facts().status.row)
    breached, within = more.get("objectivesBreached", 0), more.get("objectivesWithin", 0)
    seen = NOW - 754_000 if reason == "NO_ENGINE" else NOW - 86_400_000 if state == "STOPPED" else NOW - 900
    return {
        "cluster": cluster,
        **known,
        "mirror": name,
        "state": state,
        "reason": reason,
        "engine": f"eve@node-{len(name)}",
        "sourceClusterId": f"S{name[:4]}Qk",
        "sourceBootstrapServer": f"{name}.dc1.example:9092",
        "bytesPerSecond": 1_400_000,
        "maxTimeLagMs": 1_000,
        "etaMs": None,
        "topics": 9,
        "partitions": 120,
        "stoppedTopics": 0,
        "objectivesWithin": within,
        "objectivesBreached": breached,
        "objectivesUnknown": 0,
        "notAdded": 0,
        "failingJobs": 0,
        "engineLastSeenMs": seen,
        "engineAgeMs": NOW - seen,
        "lagUnknown": 0,
        "failed": 0,
        "topicStates": {state: 9},
        "engineIsHere": None if "engine" in more else False,
        "missing": None,
        **more,
    }


def clusters(*silent: str) -> list[dict[str, Any]]:
    """Return the clusters; those that do not answer have an error."""
    return [
        {
            "name": name,
            "clusterId": cluster_id,
            "bootstrapServers": servers,
            "asOf": NOW - 732_000 if error else NOW - 800,
            "error": error or ("no answer" if name in silent else None),
            "errorSince": NOW - 730_000 if error else None,
            "offsetsAsOf": NOW - 4_000,
        }
        for name, cluster_id, servers, error in CLUSTERS
    ]


def mirrors(more: int = 0) -> list[dict[str, Any]]:
    """Return the rows of mirrors; `more` of them are well."""
    others = [(f"team-{index:02d}.events", "frankfurt", "ACTIVE", None, {"lag": index}) for index in range(more)]
    return [_mirror(*one) for one in (*_MIRRORS, *others)]


def fleet(**changes: Any) -> dict[str, Any]:
    """Return what /fleet.json says."""
    return {
        "version": "0.1.0",
        "phase": "watching",
        "asOf": NOW,
        "ready": False,
        "missing": "sydney: connection refused",
        "clusters": clusters(),
        "mirrors": mirrors(),
        **changes,
    }


def points(seed: int, from_ms: int, until_ms: int, *, scale: float = 40, ends: bool = False) -> list[dict[str, Any]]:
    """Return points of a time, with a burst, a gap, and some with unknown lag; with `ends` an engine that died."""
    step = max(MINUTE // 4, (until_ms - from_ms) // 720)
    found = []
    for index, time_ms in enumerate(range(from_ms + step, until_ms + 1, step)):
        at = index * step / (until_ms - from_ms)
        if 0.30 < at < 0.34 or (ends and at > 0.8):
            continue
        wave = 1 + 0.35 * math.sin(index / 17 + seed) + 0.2 * math.sin(index / 3.1 + 2 * seed)
        burst = 1 + 22 * math.exp(-(((at - 0.62 - seed % 3 * 0.07) / 0.035) ** 2))
        lag, unknown = int(scale * wave * burst), 3 if 0.45 < at < 0.52 else 0
        found.append(
            {
                "timeMs": time_ms,
                "lag": lag,
                "lagUnknown": unknown,
                "timeLagMs": int(600 * wave * burst),
                "bytesPerSecond": 1_400_000 * wave * (1 + burst / 12),
                "recordsPerSecond": 5_200 * wave * (1 + burst / 12),
                "failed": 1 if at > 0.93 and seed == 0 else 0,
                "notCopied": unknown,
                "phase": None,
            }
        )
    return found


def happened(mirror: str = "orders") -> list[Event]:
    """Return what happened to a mirror."""

    def event(ago_ms: int, what: str, result: str, actor: str = "svc@node-6", **details: Any) -> Event:
        return Event(NOW - ago_ms, mirror, what, actor, result, details)

    topic: dict[str, Any] = {"topic": "orders.placed", "partition": 3}
    return [
        event(54 * MINUTE, "run", "started", master="local[4]"),
        event(52 * MINUTE, "discovery", "ADDED", topics=["orders.returned", "orders.refunded"], count=2),
        event(
            41 * MINUTE, "source", "SOURCE_UNAVAILABLE", message="orders.dc1.example:9092 does not answer within 30s"
        ),
        event(38 * MINUTE, "source", "ANSWERS_AGAIN"),
        event(29 * MINUTE, "config", "OK", "ann@ops", changed=["throttle.bytes.per.second from 50 MB/s to none"]),
        event(
            22 * MINUTE,
            "objective",
            "BREACHED",
            topic="orders.placed",
            objectiveMs=30_000,
            timeLagMs=41_000,
            cause="PATH",
            message="the path to the source limits the copy to 12.4 MB/s",
        ),
        event(17 * MINUTE, "objective", "MET", topic="orders.placed", lastedMs=312_000),
        event(
            9 * MINUTE,
            "settings",
            "CHANGED",
            topic="orders.placed",
            set={"retention.ms": "604800000"},
            removed=[],
            heldBack={},
        ),
        event(
            4 * MINUTE,
            "partition",
            "FAILED",
            reason="SOURCE_DIVERGED",
            **topic,
            message="the logs differ from offset 900 on; to archive records that the source does not have and copy the"
            f" topic again: kmirror recover --mirror {mirror} --topics orders.placed --accept-divergence",
        ),
    ]


def history(row: Mapping[str, Any] | None = None, from_ms: int = NOW - HOUR, until_ms: int = NOW) -> dict[str, Any]:
    """Return what /history.json says, of all mirrors or of one."""
    rows = mirrors() if row is None else [row]
    order = [one[0] for one in _MIRRORS]
    named = row["mirror"] if row is not None else "orders"
    return {
        "asOf": NOW,
        "from": from_ms,
        "until": until_ms,
        "mirrors": [
            {
                "cluster": one["cluster"],
                "mirror": one["mirror"],
                "points": points(
                    order.index(one["mirror"]) if one["mirror"] in order else 9,
                    from_ms,
                    until_ms,
                    scale=max(1, (one["lag"] or 0) / 3),
                    ends=one["engine"] is None,
                )
                if one["state"] != "STOPPED"
                else [],
            }
            for one in rows
        ],
        "events": [{"cluster": "frankfurt", **EVENTS.document(event)} for event in happened(named)],
        "breaches": [],
        "eventsTrouble": None,
    }


def status(row: Mapping[str, Any], topics: int = 9, partitions: int = 3) -> dict[str, Any]:
    """Return what /status.json says of a mirror, whose first topic is FAILED if the mirror is."""
    facts = report_facts(topics, partitions)
    names = ("placed", "shipped", "returned", "refunded", "cancelled", "audit", "lines", "prices", "stock")
    renamed = {
        f"shop.orders-{index:04d}": f"{row['mirror']}.{names[index] if topics <= len(names) else f'{index:05d}'}"
        for index in range(topics)
    }
    of = {"cluster": row["cluster"], "mirror": row["mirror"]}
    found = []
    for documents in (
        [of | TOPICS.document(one) | of for one in facts.status.topics],
        [of | PARTITIONS.document(one) | of for one in facts.status.partitions],
    ):
        for one in documents:
            one["topic"] = renamed.get(one["topic"], one["topic"])
            one["errorMessage"] = one["errorMessage"] and one["errorMessage"].replace("shop.orders-0000", one["topic"])
            if one["state"] in ("ACTIVE", "MIRRORING"):
                one |= {"bytesPerSecond": 150_000 + len(one["topic"]) * 40_000, "etaMs": 0 if not one["lag"] else 2000}
                if "partition" in one:
                    one |= {"lane": one["partition"] % 2, "worker": f"node-{one['partition'] % 2 + 1}"}
        found.append(documents)
    return {**fleet(), "mirrors": [dict(row)], "topics": found[0], "partitions": found[1]}


def in_charge() -> list[dict[str, Any]]:
    """Return what /in-charge.json says: both ends of each mirror, the source first."""
    found = []
    for row in mirrors():
        name, cluster_id, servers, error = next(one for one in CLUSTERS if one[0] == row["cluster"])
        stopped = row["state"] == "STOPPED"
        source = row["sourceBootstrapServer"]
        why = "its topics were stopped here" if stopped else "its topics are copied from here"
        ends: tuple[tuple[str, str, str, bool | None, str], ...] = (
            ("dublin" if row["mirror"] == "orders" else source, row["sourceClusterId"], source, not stopped, why),
            (name, cluster_id, servers, None if error else stopped, f"{name} does not answer" if error else why),
        )
        for cluster, its_id, its_servers, is_in_charge, reason in ends:
            found.append(
                {
                    "mirror": row["mirror"],
                    "topic": None,
                    "cluster": cluster,
                    "clusterId": its_id,
                    "bootstrapServers": its_servers,
                    "inCharge": is_in_charge,
                    "reason": reason,
                    "asOf": NOW,
                }
            )
    return found


def answer(path: str, query: str) -> Any:
    """Return the document for a path and its query; None if there is none."""
    asked = {key: values[0] for key, values in parse_qs(query).items()}
    if path == "/fleet.json":
        return fleet()
    if path == "/in-charge.json":
        return in_charge()
    row = next((one for one in mirrors() if one["mirror"] == asked.get("mirror")), None)
    if path == "/history.json":
        return history(row, int(asked.get("from", NOW - HOUR)))
    if path == "/status.json" and row is not None:
        found = status(row)
        if asked.get("partitions") == "false":
            found["partitions"] = []
        return found
    return None


def body(path: str, query: str) -> bytes | None:
    found = answer(path, query)
    return None if found is None else json.dumps(found).encode()
