"""What a move of a client came to: how long it was without writes and reads, what was lost, what came twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.redirect.clients import Event, Kept


@dataclass(frozen=True, slots=True)
class Outcome:
    """One client in one scenario. None: it neither wrote, or read, again before the scenario's end.

    `lost` were acknowledged and are not in the final log; `doubled` are in it more than once. `misplaced` were
    acknowledged at another place than that where they are. `unread` are in the log before the last record that was
    read, and were not read; `read_again` were read more than once. `refused` counts errors of single records, which the
    application sent again; `restarts` how often a client had failed for good and was replaced.
    """

    client: str
    acknowledged: int
    seconds_without_write: float | None
    seconds_without_read: float | None
    lost: int
    doubled: int
    misplaced: int
    unread: int
    read_again: int
    refused: int
    restarts: int
    errors: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Return whether the client came back, and each record is there once."""
        return self.seconds_without_write is not None and not (self.lost or self.doubled or self.misplaced)


def outcome(client: str, events: Sequence[Event], log: Iterable[Kept], began_ms: int, settled_ms: int) -> Outcome:
    """Return what a move that began at `began_ms` came to, as of `settled_ms`, before which no client was stopped.

    `log` is the final one, as a reader that shares no code with kmirror found it.
    """
    kept = list(log)
    places = {(one.number, one.partition, one.offset) for one in kept}
    numbers = Counter(one.number for one in kept)
    acknowledged = [one for one in events if one.what == "acknowledged"]
    missing = {one.number for one in acknowledged} - numbers.keys()
    misplaced = [
        one
        for one in acknowledged
        if one.number not in missing and (one.number, one.partition, one.offset) not in places
    ]
    reads = Counter(one.number for one in events if one.what == "read")
    read_up_to: dict[int, int] = {}
    for one in events:
        if one.what == "read":
            read_up_to[one.partition] = max(one.offset, read_up_to.get(one.partition, -1))
    passed = {one.number for one in kept if one.offset <= read_up_to.get(one.partition, -1)}
    errors = [one for one in events if one.what == "error" and one.at >= began_ms]
    return Outcome(
        client,
        len(acknowledged),
        _longest_gap([one.at for one in acknowledged], began_ms, settled_ms),
        _longest_gap([one.at for one in events if one.what == "read"], began_ms, settled_ms),
        len(missing),
        sum(count - 1 for count in numbers.values()),
        len(misplaced),
        len(passed - reads.keys()),
        sum(count > 1 for count in reads.values()),
        sum(one.side == "writer" for one in errors),
        sum(one.what == "started" and one.at >= began_ms for one in events),
        tuple(text for text, _ in Counter(_short(one.text) for one in errors).most_common(4)),
    )


def _longest_gap(moments: Sequence[int], began_ms: int, settled_ms: int) -> float | None:
    """Return the longest time in seconds between two of these moments, of which one is after the beginning of the move.

    None if the last gap was still open: nothing came in the last quarter of the time.
    """
    before = [at for at in moments if at < began_ms]
    after = [at for at in moments if began_ms <= at <= settled_ms]
    if not after or after[-1] < settled_ms - (settled_ms - began_ms) / 4:
        return None
    all_of_them = [*(before[-1:] or [began_ms]), *after]
    return round(max(b - a for a, b in pairwise(all_of_them)) / 1000, 1)


def _short(text: str) -> str:
    """Return an error without what differs from one record to the next."""
    return text.partition(":")[0] if text.partition(":")[0].isidentifier() else text[:120]
