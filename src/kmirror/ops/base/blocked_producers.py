"""Report on topics whose producers were denied WRITE at the source while they moved. Pure.

A move costs the time from the first write that may have been refused to the first one that is accepted again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from kmirror.columns import DURATION, TEXT, TIME, Table, columns_of, one_of, showing, shown, table_row
from kmirror.words import at_time, listed

_MOST_NAMES = 10


class Denial(StrEnum):
    """What became of the denial at the source."""

    KEPT = "KEPT"
    LIFTED = "LIFTED"
    LEFT = "LEFT"


@table_row
class BlockedTopic:
    """How long neither source nor destination accepted writes to a topic; times in epoch milliseconds.

    `since_ms` is just before the denial was requested: no write was refused earlier; None if another client had already
    denied it. `until_ms`: when writes were accepted again, None if not yet, or unknown.
    """

    topic: str = shown(TEXT, "the topic on the destination")
    denial: Denial = shown(
        one_of("denial", Denial),
        "what became of it at the source: KEPT where the topic was stopped, LIFTED where it stays mirrored, LEFT"
        " where it should have been lifted and is not",
    )
    since_ms: int | None = shown(
        TIME.null_when("another client had denied it before"),
        "just before it was requested; no write was refused earlier",
    )
    until_ms: int | None = shown(
        TIME.null_when("not yet, or unknown"),
        "when writes were accepted again: by the destination (KEPT), or by the source (LIFTED)",
    )

    @property
    @showing(
        DURATION.null_when("sinceMs or untilMs is null"),
        "the time between them: the longest that producers may have been refused by both clusters",
    )
    def duration_ms(self) -> int | None:
        """The longest time for which writes may have been refused; None if unknown or not over."""
        if self.since_ms is None or self.until_ms is None:
            return None
        return max(0, self.until_ms - self.since_ms)


BLOCKED: Table[BlockedTopic] = Table(
    columns_of(BlockedTopic),
    "",
)


def blocked_topics(
    since_ms: Mapping[str, int | None],
    lifted_ms: Mapping[str, int],
    writable_ms: Mapping[str, int],
    cut_off: Collection[str],
) -> tuple[BlockedTopic, ...]:
    """Return a row for each topic in `since_ms`; `cut_off` are those that are stopped, or being stopped."""
    rows = []
    for topic, since in sorted(since_ms.items()):
        if topic in lifted_ms:
            denial, times = Denial.LIFTED, lifted_ms
        else:
            denial, times = Denial.KEPT if topic in cut_off else Denial.LEFT, writable_ms
        rows.append(BlockedTopic(topic=topic, denial=denial, since_ms=since, until_ms=times.get(topic)))
    return tuple(rows)


def blocked_sentences(rows: Iterable[BlockedTopic], lines: str) -> list[str]:
    """Return sentences for people; `lines` are the commands that let producers write to the source again."""
    by_denial: dict[Denial, list[BlockedTopic]] = {}
    for row in rows:
        by_denial.setdefault(row.denial, []).append(row)
    sentences = []
    if kept := by_denial.get(Denial.KEPT):
        durations = [row.duration_ms for row in kept]
        known = [one for one in durations if one is not None]
        longest = f"at most {max(known) / 1000:.1f} s" if known else "unknown"
        if known and len(known) < len(kept):
            longest += f" where it is known, unknown for {_named([r.topic for r in kept if r.duration_ms is None])}"
        sentences.append(
            f"producers were blocked on {_named([row.topic for row in kept])}; from the first refused write until the "
            f"destination took writes: {longest}. The source keeps refusing writes until `kmirror failback` or "
            f"`kmirror switchover` makes it the mirror of this cluster, or an administrator runs:\n{lines}"
        )
    if lifted := by_denial.get(Denial.LIFTED):
        sentences.append(f"producers may write to {_named([row.topic for row in lifted])} at the source again")
    if left := by_denial.get(Denial.LEFT):
        since = min((row.since_ms for row in left if row.since_ms is not None), default=None)
        sentences.append(
            f"the source still refuses writes to {_named([row.topic for row in left])}"
            f"{'' if since is None else f', since {at_time(since)}'}: run the same command again, or have an "
            f"administrator run:\n{lines}"
        )
    return sentences


def _named(topics: Collection[str]) -> str:
    return listed(sorted(topics), _MOST_NAMES)
