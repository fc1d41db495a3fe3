"""What an operator is shown before an irreversible verb: both clusters, the largest lag, whether the source answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.words import counted

if TYPE_CHECKING:
    from kmirror.cli.terminal.screen import Screen
    from kmirror.ops.base.context import Destination
    from kmirror.status.mirror_status import MirrorRow


def show_direction(screen: Screen, destination: Destination, mirror: str) -> None:
    """Write one line each for the source, the destination, and the largest lag.

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    from kmirror.errors import KmirrorError
    from kmirror.ops.base.context import cluster_id_of, require_mirror, source_client
    from kmirror.ops.show.listing import list_mirrors

    record = require_mirror(destination.state(), mirror)
    row = next((row for row in list_mirrors(destination) if row.mirror == mirror), None)
    try:
        with source_client(record.source) as client:
            answers = f"answers, as cluster {cluster_id_of(client, timeout=3)}"
    except KmirrorError as error:
        answers = f"does not answer: {error.message}"
    address = record.source.get("bootstrap.servers", "-")
    screen.note(f"source:       {record.source_cluster_id} at {address}; it {answers}")
    screen.note(f"destination:  {destination.cluster_id} at {destination.bootstrap_server}")
    screen.note(f"largest lag:  {_largest_lag(row)}")


def _largest_lag(row: MirrorRow | None) -> str:
    """Return the largest lag, and for how many partitions it is not known."""
    if row is None or row.max_lag is None:
        return "not known"
    unknown = f", not known for {counted(row.lag_unknown, 'partition')}" if row.lag_unknown else ""
    return f"{row.max_lag:,}{unknown}"
