"""What was proved about an archive, as it is stored until the archived records are deleted elsewhere. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Proof(NamedTuple):
    """Proof for one partition: the archive with this id and these offsets holds everything it must.

    No other client writes to an archive, so an archive with the same id and offsets is unchanged.
    """

    archive_id: str
    start: int
    end: int
    records: int
    only_archived: int
