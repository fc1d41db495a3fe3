"""What an operator is shown before an irreversible verb: both clusters, the largest lag, whether the source answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kmirror.ops.base.context import Destination


def direction(destination: Destination, mirror: str) -> list[str]:
    """Return one line each for the source, the destination, and the largest lag.

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    from kmirror.errors import KmirrorError
    from kmirror.ops.base.context import cluster_id_of, require_mirror, source_client
    from kmirror.ops.show.listing import list_mirrors

    record = require_mirror(destination.state(), mirror)
    lag = next((row.max_lag for row in list_mirrors(destination) if row.mirror == mirror), None)
    try:
        with source_client(record.source) as client:
            answers = f"answers, as cluster {cluster_id_of(client, timeout=3)}"
    except KmirrorError as error:
        answers = f"does not answer: {error.message}"
    return [
        f"source:       {record.source_cluster_id} at {record.source.get('bootstrap.servers', '-')}; it {answers}",
        f"destination:  {destination.cluster_id} at {destination.bootstrap_server}",
        f"largest lag:  {'not known' if lag is None else f'{lag:,}'}",
    ]
