"""How a verb ended for topics, partitions and groups: rows of its document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, replace
from enum import StrEnum
from math import ceil
from typing import Any

from kmirror.columns import (
    COUNT,
    DURATION,
    END,
    REASON,
    TEXT,
    TIME,
    Column,
    Only,
    R,
    Table,
    Type,
    columns_of,
    document,
    one_of,
    shown,
    table_row,
)
from kmirror.errors import Reason
from kmirror.state.group_records import GroupReason
from kmirror.state.records import AtStop
from kmirror.status.observed import CLOCK_SKEW_MS
from kmirror.words import one_line

#: The greatest age of a source's end that counts as current where it is not recorded who reported it.
STALE_MS = 10_000


def is_current(known: AtStop) -> bool:
    """Return whether the source's end is from the stop: a source that did not answer may have received more since."""
    if known.source_as_of_ms is None:
        return False
    if known.source_answered is not None:
        return known.source_answered
    return known.time_ms - known.source_as_of_ms <= STALE_MS


class Outcome(StrEnum):
    """The result of a verb for one topic, partition or group."""

    DONE = "DONE"
    NOOP = "NOOP"
    REFUSED = "REFUSED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"


OUTCOME = one_of("result", Outcome)
_AT_STOP: Only[TopicResult] = Only("a partition that was stopped", lambda row: row.at_stop)
_OF_MIRROR: Only[TopicResult] = Only("`apply`", lambda row: row.mirror)
_OF_GROUP: Only[TopicResult] = Only("what a group lacks, in `wait --for drained`", lambda row: row.group)
_UNSEEN = "the source was never read"


@table_row(kw_only=False)
class TopicResult:
    """The result of a verb for one topic (`partition` None), one partition, or the mirror itself (`topic` None)."""

    topic: str | None = shown(
        TEXT.null_when("the row is about the mirror itself"), "the topic on the destination", "TOPIC"
    )
    partition: int | None = shown(COUNT.null_when("the row is about the whole topic"), "the partition", "PARTITION")
    result: Outcome = shown(OUTCOME, "how it ended", "RESULT")
    message: str | None = shown(
        TEXT.null_when("there is nothing to report"),
        "what was done, or what is wrong, as a sentence",
        "MESSAGE",
        default=None,
        of_row=lambda row: f"{row.reason}: {one_line(row.message)}" if row.reason else one_line(row.message),
    )
    reason: Reason | None = shown(
        REASON.null_when("there is no code for it"), "why, as a code", default=None, after="result"
    )
    _: KW_ONLY
    last_mirrored_offset: int | None = shown(
        END.null_when("unknown, or the verb does not stop partitions"),
        "the end of what came from the source",
        default=None,
    )
    #: For verbs that stop the known loss.
    lag: int | None = shown(
        COUNT.null_when("unknown, or the verb does not read it"),
        "offsets that the destination is behind; for a stopped partition those known to be lost",
        default=None,
    )
    #: Where the rows of one document are of several mirrors.
    mirror: str | None = shown(TEXT, "the mirror", default=None, only=_OF_MIRROR)
    group: str | None = shown(TEXT, "the group that has not read everything", default=None, only=_OF_GROUP)
    offsets_left: int | None = shown(
        COUNT.null_when("unknown"), "offsets of the source that the group has not read", default=None, only=_OF_GROUP
    )
    #: What to do next, for people; shown in the summary's error, not as a key.
    hint: str | None = None
    #: What was known when the partition was stopped, for verbs that stop.
    at_stop: AtStop | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the partition was promoted with all that its source had: nothing of it is lost."""
        known = self.at_stop
        if known is not None and (
            known.unchecked or known.source_recreated or known.source_went_back or known.copied_back
        ):
            return False
        return self.reason is Reason.PROMOTED and self.lag == 0

    @property
    def estimated_more(self) -> int | None:
        """Return an estimate, by the last known rate, of records since the source was read; None: it is current."""
        known = self.at_stop
        return None if known is None or self.is_complete else _rounded(_more_until(known.time_ms, known))

    @property
    def estimated_more_at_loss(self) -> int | None:
        """Return the estimate if the source died when a connection to it broke; None: none broke, or it is current."""
        known = self.at_stop
        lost_ms = None if known is None or self.is_complete else known.source_lost_ms
        return None if known is None or lost_ms is None else _rounded(_more_until(lost_ms, known))

    @property
    def rpo_ms(self) -> int | None:
        """Return the time between the last mirrored record and the source's last one; None: unknown."""
        known = self.at_stop
        if known is None or known.source_as_of_ms is None or self.lag is None:
            return None
        if self.lag == 0:
            return 0 if self.is_complete or (is_current(known) and not known.source_went_back) else None
        newest_ms = known.source_max_timestamp_ms
        return None if newest_ms is None or _is_ahead(newest_ms, known) else _behind(newest_ms, known)

    @property
    def rpo_at_loss_ms(self) -> int | None:
        """Return an upper bound of `rpo_ms` if the source died when a connection to it broke; None: unknown."""
        known = self.at_stop
        if known is None or known.source_as_of_ms is None or known.source_lost_ms is None or is_current(known):
            return self.rpo_ms
        if self.lag == 0:
            return max(0, known.source_lost_ms - known.source_as_of_ms)
        return None if self.lag is None else _behind(known.source_lost_ms, known)

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return document(_RESULT, self)


def _behind(time_ms: int, known: AtStop) -> int | None:
    """Return by how much a partition that lacks records up to `time_ms` is behind; None: a clock was wrong."""
    last_ms = known.last_timestamp_ms
    if last_ms is None or not 0 <= last_ms <= time_ms or _is_ahead(last_ms, known):
        return None
    return time_ms - last_ms


def _is_ahead(timestamp_ms: int, known: AtStop) -> bool:
    """Return whether a record of that timestamp cannot have been there yet when the source's end was read."""
    return known.source_as_of_ms is not None and timestamp_ms > known.source_as_of_ms + CLOCK_SKEW_MS


def _more_until(time_ms: int, known: AtStop) -> float | None:
    if known.source_as_of_ms is None or known.records_per_second is None or is_current(known):
        return None
    return max(0.0, known.records_per_second * (time_ms - known.source_as_of_ms) / 1000)


def _rounded(records: float | None) -> int | None:
    return None if records is None else round(records)


def estimated_in_all(stops: Iterable[TopicResult], *, at_loss: bool = False) -> int:
    """Return the sum of `estimated_more`, or with `at_loss` of what it would be had the source died when it was lost.

    What is too little to count in one partition counts in many. Where no connection broke, both are the same.
    """
    known = [row.at_stop for row in stops if row.at_stop is not None and not row.is_complete]
    until = [one.source_lost_ms if at_loss and one.source_lost_ms is not None else one.time_ms for one in known]
    return ceil(sum(_more_until(time_ms, one) or 0.0 for time_ms, one in zip(until, known, strict=True)))


def _stop_column(key: str, kind: Type, meaning: str, value: Callable[[AtStop], object]) -> Column[TopicResult]:
    """Return a column of what was known when a partition was stopped."""
    return Column(key, kind, meaning, lambda row: row.at_stop and value(row.at_stop), only=_AT_STOP)


_RESULT: tuple[Column[TopicResult], ...] = (
    *columns_of(TopicResult),
    _stop_column("stopTimeMs", TIME, "when it was stopped", lambda stop: stop.time_ms),
    _stop_column("logEnd", END, "the destination's log end then", lambda stop: stop.log_end),
    _stop_column(
        "sourceOffset",
        END.null_when(_UNSEEN),
        "the source's last stable offset, the newest one known",
        lambda stop: stop.source_offset,
    ),
    _stop_column(
        "sourceHighWatermark",
        END.null_when(_UNSEEN),
        "the source's high watermark, the newest one known",
        lambda stop: stop.source_high_watermark,
    ),
    _stop_column(
        "asOf", TIME.null_when(_UNSEEN), "when the source's offsets were read", lambda stop: stop.source_as_of_ms
    ),
    Column(
        "estimatedMoreRecords",
        COUNT.null_when("the source answered the stop, or the rate is unknown"),
        "estimate of the offsets by which the source has grown since asOf",
        lambda row: row.estimated_more,
        only=_AT_STOP,
    ),
    _stop_column(
        "sourceLostAt",
        TIME.null_when("none broke"),
        "when a connection to the source broke, the first time after asOf",
        lambda stop: stop.source_lost_ms,
    ),
    Column(
        "estimatedMoreAtLossRecords",
        COUNT.null_when("no connection broke, the source answered the stop, or the rate is unknown"),
        "the estimate if the source died at sourceLostAt",
        lambda row: row.estimated_more_at_loss,
        only=_AT_STOP,
    ),
    _stop_column(
        "recordsPerSecond",
        Type("number", "records per second").null_when("never measured"),
        "how fast the source's log grew when that was last measured",
        lambda stop: stop.records_per_second,
    ),
    Column(
        "rpoMs",
        DURATION.null_when("unknown, as when a producer's clock is ahead"),
        "time between the last mirrored record and the source's last one",
        lambda row: row.rpo_ms,
        only=_AT_STOP,
    ),
    Column(
        "rpoAtLossMs",
        DURATION.null_when("unknown"),
        "the most that rpoMs can be if the source died at sourceLostAt",
        lambda row: row.rpo_at_loss_ms,
        only=_AT_STOP,
    ),
    _stop_column(
        "failureReason",
        REASON.null_when("it had not FAILED"),
        "why it had FAILED before the stop",
        lambda stop: stop.failure,
    ),
    _stop_column(
        "failureMessage",
        TEXT.null_when("it had not FAILED, or there is no message"),
        "the same as a sentence",
        lambda stop: stop.failure_message,
    ),
    _stop_column(
        "foreignRecords",
        COUNT,
        "records after lastMirroredOffset that are not the source's",
        lambda stop: stop.foreign_records,
    ),
    _stop_column(
        "foreignProducerId",
        Type("integer", "producer id").null_when("there are none, or it is unknown"),
        "who wrote them; -1 is a producer without an id",
        lambda stop: stop.foreign_producer_id,
    ),
)
RESULTS = Table(_RESULT, "TOPIC RESULT MESSAGE")
PARTITION_RESULTS = Table(_RESULT, "TOPIC PARTITION RESULT MESSAGE")
#: What people are shown of a dry run, which has done nothing and waited for nothing.
_PLANNED: dict[str, str] = {Outcome.DONE: "OK", Outcome.TIMED_OUT: "WAITS"}


def planned(table: Table[R]) -> Table[R]:
    """Return a table of results for a dry run."""

    def cell(column: Column[R]) -> Callable[[R], object]:
        return lambda row: _PLANNED.get(str(column.value(row)), column.value(row))

    columns = tuple(replace(one, cell=cell(one)) if one.header == "RESULT" else one for one in table.columns)
    return replace(table, columns=columns)


@table_row(kw_only=False)
class GroupResult:
    """The result of a verb for one consumer group on one partition; both offsets are committed ones."""

    group: str = shown(TEXT, "the group on the destination")
    topic: str = shown(TEXT, "the topic on the destination")
    partition: int = shown(COUNT, "the partition")
    from_offset: int | None = shown(END.null_when("there was none"), "the offset committed before", key="from")
    to_offset: int | None = shown(END.null_when("there is none"), "the offset committed now", key="to")
    result: Outcome = shown(OUTCOME, "how it ended")
    reason: Reason | GroupReason | None = shown(
        one_of("reason or group reason", Reason, GroupReason).null_when("there is no code for it"),
        "why, as a code",
        default=None,
    )
    message: str | None = shown(
        TEXT.null_when("there is nothing to say"),
        "the same as a sentence, with the limit that brokers refused it for",
        default=None,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return document(GROUP_RESULTS, self)


GROUP_REASON = one_of("group reason", GroupReason)
GROUP_RESULTS: tuple[Column[GroupResult], ...] = columns_of(GroupResult)
