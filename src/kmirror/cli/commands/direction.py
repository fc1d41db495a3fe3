"""What an operator is shown before an irreversible verb: both clusters, the largest lag, whether the source answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kmirror.words import at_time, counted

if TYPE_CHECKING:
    from kmirror.cli.terminal.screen import Screen
    from kmirror.ops.base.context import Destination
    from kmirror.status.partition_row import PartitionRow


def show_direction(screen: Screen, destination: Destination, mirror: str) -> None:
    """Write one line each for the source, the destination, and the largest lag.

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    from kmirror.errors import KmirrorError
    from kmirror.ops.base.context import cluster_id_of, require_mirror, source_client
    from kmirror.ops.show.describe import describe

    record = require_mirror(destination.state(), mirror)
    rows = [row for row in describe(destination, mirror) if not row.is_stopped]
    try:
        with source_client(record.source) as client:
            answers = f"answers, as cluster {cluster_id_of(client, timeout=3)}"
    except KmirrorError as error:
        answers = f"does not answer: {error.message}"
    address = record.source.get("bootstrap.servers", "-")
    screen.note(f"source:       {record.source_cluster_id} at {address}; it {answers}")
    screen.note(f"destination:  {destination.cluster_id} at {destination.bootstrap_server}")
    screen.note(f"largest lag:  {_largest_lag(rows)}")


def _largest_lag(rows: Sequence[PartitionRow]) -> str:
    """Return the largest lag, for how many partitions it is not known, and what it was there when last known."""
    lags, unknown = [row.lag for row in rows if row.lag is not None], [row for row in rows if row.lag is None]
    text = f"{max(lags):,}" if lags else "not known"
    if lags and unknown:
        text += f", not known for {counted(len(unknown), 'partition')}"
    last = [(row.last_known_lag, row.as_of_ms) for row in unknown]
    known = [(lag, as_of_ms) for lag, as_of_ms in last if lag is not None and as_of_ms is not None]
    if known:
        lag, as_of_ms = max(known)
        text += f"; last known {lag:,} at {at_time(as_of_ms)}"
    return text
