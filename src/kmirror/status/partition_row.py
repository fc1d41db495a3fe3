"""The status of a partition: its row in `describe`, `/status.json` and reports, and the tables of such rows. Pure.

Each column is declared with its field: to add one, add a field here, and its value in `status.rules`; one that follows
from other fields is a property. Unknown numbers are None, times are epoch milliseconds, offsets are exclusive as in
Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kmirror.columns import (
    COUNT,
    DURATION,
    END,
    FLAG,
    OFFSET,
    REASON,
    TEXT,
    TIME,
    Gauge,
    Table,
    Type,
    columns_of,
    one_of,
    showing,
    shown,
    table_row,
)
from kmirror.commands import on_mirror
from kmirror.errors import HISTORY_REASONS, NOT_COPYING, Reason
from kmirror.settings.durations import format_duration
from kmirror.state.records import AtStop, PartitionState
from kmirror.status.objective_state import ObjectiveState, objective_state
from kmirror.status.topic_state import TopicState
from kmirror.words import at_time, byte_rate, counted, one_line, visible

_KEEPS_UP_MS = 10_000
#: The reasons of partitions that are not copied, while others of their topic may be.
_IDLE = NOT_COPYING | {Reason.PARTITION_MISSING}
_COPIED = (PartitionState.MIRRORING, PartitionState.LOG_ALIGNMENT)


def eta_ms(lag: int, closing_speed: float) -> int | None:
    """Return the milliseconds until a lag that shrinks by `closing_speed` offsets a second is 0; None if it grows."""
    return None if closing_speed <= 0 else round(lag / closing_speed * 1000)


def kept_offsets(
    source_log_start: int | None, destination_log_start: int | None, destination_offset: int | None
) -> int | None:
    """Return how many offsets of the mirror are below the source's log start; None if an argument is unknown."""
    if source_log_start is None or destination_log_start is None or destination_offset is None:
        return None
    return max(0, min(source_log_start, destination_offset) - destination_log_start)


def known_lost(last_mirrored_offset: int, known: AtStop) -> int | None:
    """Return how many records the source is known to have that the copy lacks; None if its end was never read."""
    if known.source_offset is None:
        return None
    shared = last_mirrored_offset if known.fork_offset is None else min(last_mirrored_offset, known.fork_offset)
    return max(0, known.source_offset - max(shared, known.source_log_start or 0))


def shown_rate(bytes_per_second: int | None) -> str | None:
    """Return a rate as a table shows it, without a space."""
    return None if bytes_per_second is None else byte_rate(bytes_per_second).replace(" ", "")


def shown_duration(duration_ms: int | None) -> str | None:
    """Return a duration as a table shows it, from one second on in whole seconds."""
    if duration_ms is None:
        return None
    if duration_ms == 0:
        return "0s"
    return format_duration(duration_ms if duration_ms < 1000 else duration_ms // 1000 * 1000)


def _shown_time(time_ms: int | None) -> str | None:
    return None if time_ms is None else at_time(time_ms)


_UNSEEN = "the source was never read"
NO_ENGINE = "no engine is in charge"
_NO_LANE = "no lane reports on the partition"
OBJECTIVE_STATE = one_of("objective state", ObjectiveState).null_when("no pattern of objective.rpo matches, or STOPPED")
OBJECTIVE = DURATION.null_when("no pattern of objective.rpo matches, or STOPPED")
RATE = Type("integer", "bytes per second", minimum=0)
LIMIT = Type("integer", "bytes per second").null_when("there is no limit")
#: When partitions have no metrics of their own.
PER_PARTITION = "unless the mirror has `metrics.per.partition=true`"


@table_row
class PartitionRow:
    """One mirror partition.

    `source_offset` is the source's last stable offset, `destination_offset` the destination's high watermark.
    `as_of_ms` is when the source's numbers were read.
    """

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    partition: int = shown(COUNT, "the partition", "PARTITION")
    source_offset: int | None = shown(
        END.null_when(_UNSEEN), "the source's last stable offset, the newest one known", "SOURCE-OFFSET"
    )
    destination_offset: int | None = shown(
        END.null_when("the partition's leader does not answer, or the destination lacks the partition or topic"),
        "where the destination's log ends for consumers: its high watermark",
        "DESTINATION-OFFSET",
        gauge=Gauge(
            "kmirror_partition_destination_offset",
            "offset, exclusive",
            "the destination's log end, as the lane that copies the partition last reported it",
            f"{PER_PARTITION}; before a lane has reported; if STOPPED",
        ),
    )
    lag: int | None = shown(
        COUNT.null_when(
            "the source does not answer now, the partition is STOPPED, or the histories differ and the destination is"
            " not shorter"
        ),
        "offsets that the destination is behind: sourceOffset - destinationOffset; of a partition that the"
        " destination lacks its whole log, sourceOffset - sourceLogStart",
        "LAG",
        gauge=Gauge(
            "kmirror_partition_lag_offsets",
            "offsets",
            "offsets that the destination lacks",
            f"{PER_PARTITION}; while it is unknown; if STOPPED",
            "`ConsumerLag` of `FetcherLagMetrics`",
            "`ConsumerLag` of `FetcherLagMetrics`",
        ),
    )
    state: PartitionState = shown(
        one_of("partition state", PartitionState),
        "state of the partition",
        "STATE",
        # if nothing is copied, the reason comes first: the state is only the last known
        of_row=lambda row: f"{row.reason} ({row.shown_state})" if row.is_idle else row.shown_state,
        code=lambda row: row.reason if row.is_idle else row.shown_state,
    )
    retry_attempt: int = shown(COUNT, "how often copying was retried", "RETRY")
    error_message: str | None = shown(
        TEXT.null_when("there is nothing to report"), "the reason as a sentence", "ERROR", cell=one_line
    )
    source_topic: str = shown(TEXT, "the topic on the source")
    topic_state: TopicState = shown(one_of("topic state", TopicState), "state of the whole topic")
    reason: Reason | None = shown(REASON.null_when("all is well"), "why the partition is not copied", "REASON")
    state_time_ms: int | None = shown(
        TIME.null_when("unknown"), "since when the partition is in this state", "STOPPED", cell=_shown_time
    )
    time_lag_ms: int | None = shown(
        DURATION.null_when("lag is null, or nothing was copied yet"),
        "upper bound of the time for which the destination has been behind; 0 if lag is 0",
        "TIME-LAG",
        cell=shown_duration,
        gauge=Gauge(
            "kmirror_partition_lag_seconds",
            "seconds",
            "`timeLagMs` of `describe`",
            f"{PER_PARTITION}; while it is unknown; if STOPPED",
        ),
    )
    last_known_lag: int | None = shown(
        COUNT.null_when("never known, or the histories differ"), "the lag, or its last known value"
    )
    source_log_start: int | None = shown(OFFSET.null_when(_UNSEEN), "the source's log start")
    destination_log_start: int | None = shown(
        OFFSET.null_when("the partition's leader does not answer, or the topic is gone"), "the destination's log start"
    )
    source_high_watermark: int | None = shown(END.null_when(_UNSEEN), "the source's high watermark")
    last_mirrored_offset: int | None = shown(
        END.null_when("the partition was never stopped"), "the end of what came from the source", "LAST-MIRRORED-OFFSET"
    )
    last_mirrored_epoch: int | None = shown(
        Type("integer", "leader epoch").null_when("the partition was never stopped, or the epoch is unknown"),
        "the source's leader epoch of the last mirrored batch",
        "LAST-MIRRORED-EPOCH",
    )
    initial_copy_complete: bool = shown(FLAG, "whether the copy has ever reached the source's end")
    initial_copy_ms: int | None = shown(
        TIME.null_when("it has not, or an older version copied it"),
        "when it first had everything that its source had when it was first seen",
        key="initialCopyAt",
        default=None,
    )
    rebuilt_at_ms: int | None = shown(
        TIME.null_when("the topic was never rebuilt"), "when the topic was last rebuilt", key="rebuiltAt"
    )
    archive: str | None = shown(
        TEXT.null_when("there is none"), "the topic with the records from before the last rebuild"
    )
    offsets_to_archive: int | None = shown(
        COUNT.null_when("the topic is not being rebuilt, or that is not known yet"),
        "while the topic is being rebuilt: how many offsets of the old log are archived first",
        default=None,
    )
    archive_log_end: int | None = shown(
        COUNT.null_when("the topic is not being rebuilt, or has no archive yet"),
        "while the topic is being rebuilt: log end of the partition's archive so far, markers of transactions included",
        default=None,
    )
    as_of_ms: int | None = shown(TIME.null_when(_UNSEEN), "when the source's offsets were read", key="asOf")
    engine: str | None = shown(TEXT.null_when(NO_ENGINE), "the engine in charge", default=None)
    engine_last_seen_ms: int | None = shown(
        TIME.null_when("no engine ever ran"), "the last heartbeat of an engine", default=None
    )
    engine_age_ms: int | None = shown(
        DURATION.null_when("no engine ever ran, or its clock is ahead"), "how long ago that was", default=None
    )
    objective_ms: int | None = shown(
        OBJECTIVE,
        "the longest time lag that objective.rpo allows for the topic",
        "OBJECTIVE",
        cell=shown_duration,
        default=None,
    )
    throttle_bytes_per_second: int | None = shown(LIMIT, "the mirror's throttle.bytes.per.second", default=None)
    bytes_per_second: int | None = shown(
        RATE.null_when(_NO_LANE), "how fast the partition is copied", "RATE", cell=shown_rate, default=None
    )
    records_per_second: float | None = shown(
        Type("number", "offsets per second", minimum=0).null_when(f"{_NO_LANE}, or not for five seconds yet"),
        "the same in records, averaged over some ten seconds; offsets at which a log holds none count, too",
        default=None,
    )
    offsets_to_fill: int | None = shown(
        COUNT.null_when(f"{_NO_LANE}, or there are few or none"),
        "offsets at which the source has no records, before the next one: they are filled first",
        default=None,
    )
    lane: int | None = shown(COUNT.null_when(_NO_LANE), "the lane that copies the partition", default=None)
    worker: str | None = shown(
        TEXT.null_when(_NO_LANE),
        "where that lane runs: the host, and on a Spark cluster the executor there",
        "WORKER",
        default=None,
    )
    #: When both ends that `lag` compares were last known; None without a lag.
    lag_as_of_ms: int | None = None
    #: Whether a live lane of the engine in charge reports on the partition.
    is_reported: bool = True
    #: False if time alone may change what is said of it, besides the age of the engine's heartbeat.
    is_settled: bool = False
    #: True if only the destination has the partition: nothing is copied to it.
    is_extra: bool = False
    #: The mirror's topics that its other topics wait for now.
    first_topics: tuple[str, ...] = ()
    #: How fast the source's end grows, in offsets a second, as the lane reports it.
    source_records_per_second: float | None = None
    #: While the path to the source limits that lane: over how many connections, and bytes per second in all.
    source_path: tuple[int, int] | None = None

    @property
    @showing(
        DURATION.null_when("lag is null, the partition is not being copied, or its source grows faster than the copy"),
        "time until lag is 0 at the present speed",
        "ETA",
        cell=shown_duration,
        after="records_per_second",
    )
    def eta_ms(self) -> int | None:
        """Return the milliseconds until the lag is 0 at the present speed; None if unknown."""
        if self.lag is None or self.lag == 0:
            return self.lag
        return None if self.closing_speed is None else eta_ms(self.lag, self.closing_speed)

    @property
    @showing(
        COUNT.null_when("unknown, or the partition is STOPPED"),
        "offsets that the mirror keeps and the source has deleted",
        after="engine_age_ms",
    )
    def kept_beyond_source_log_start(self) -> int | None:
        """How many offsets the mirror keeps that the source has deleted; None if unknown or STOPPED."""
        if self.state is PartitionState.STOPPED:
            return None
        return kept_offsets(self.source_log_start, self.destination_log_start, self.destination_offset)

    @property
    @showing(
        TEXT.null_when("nothing is known to limit the copy"),
        "what limits how fast the partition is copied: the path to the source, with its connections and their speed",
    )
    def limited_by(self) -> str | None:
        """What limits how fast the partition is copied; None if nothing is known to."""
        connections, rate = self.source_path or (0, 0)
        if connections < 1:
            return None
        each = byte_rate(rate / connections)
        return f"source path, {counted(connections, 'connection')} of {each}" + " each" * (connections > 1)

    @property
    @showing(OBJECTIVE_STATE, "whether timeLagMs is within objectiveMs; UNKNOWN while it is unknown", "RPO")
    def objective_state(self) -> ObjectiveState | None:
        """Whether the partition is within its topic's objective; None if it has none."""
        return objective_state(self.objective_ms, self.time_lag_ms)

    @property
    def failed(self) -> bool:
        """Return whether `--failed` selects the partition."""
        return self.state is PartitionState.FAILED

    @property
    def is_stopped(self) -> bool:
        """Return whether the partition was promoted, failed over or removed: it takes part in no total."""
        return self.state is PartitionState.STOPPED

    @property
    def ends_below_mirrored(self) -> bool:
        """Return whether records that were mirrored are no longer here, as after an unclean leader election."""
        end, mirrored = self.destination_offset, self.last_mirrored_offset
        return self.is_stopped and end is not None and mirrored is not None and end < mirrored

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is copied now, whatever the stored state."""
        return self.reason in _IDLE

    @property
    def is_copied(self) -> bool:
        """Return whether a lane copies the partition, without trouble."""
        return self.is_reported and self.state in _COPIED and self.reason in (None, Reason.OPEN_TRANSACTION)

    @property
    def lacks_destination(self) -> bool:
        """Return whether it cannot be copied, or its copy is unknown, because a leader at the destination is away."""
        is_unknown = self.reason is None and self.destination_offset is None
        return self.state in _COPIED and (is_unknown or self.reason is Reason.DESTINATION_UNREACHABLE)

    @property
    def keeps_up(self) -> bool:
        """Return whether the copy is so close to the end that new records of the source do not delay it."""
        return self.time_lag_ms is not None and self.time_lag_ms <= _KEEPS_UP_MS

    @property
    def closing_speed(self) -> float | None:
        """Return how many offsets a second the lag shrinks; None if unknown, or if nothing is copied."""
        speed, growth = self.records_per_second, self.source_records_per_second
        if speed is None or growth is None or not self.is_copied:
            return None
        return speed if self.keeps_up else speed - growth

    @property
    def shown_state(self) -> PartitionState | TopicState:
        """Return the state, or PENDING_STOPPED for a partition that is copied until its promote."""
        copied = self.state in _COPIED
        return self.topic_state if copied and self.topic_state is TopicState.PENDING_STOPPED else self.state

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return PARTITIONS.document(self)


def retried_notes(rows: Sequence[PartitionRow]) -> Iterator[str]:
    """Yield a sentence for each mirror and reason for which partitions are not copied, but not FAILED (yet)."""
    counts = Counter(
        (row.mirror, row.reason)
        for row in rows
        if row.state in _COPIED and row.reason not in (None, Reason.OPEN_TRANSACTION)
    )
    for (mirror, reason), count in counts.items():
        shows = f"`{on_mirror('describe', mirror)} --wide` shows them"
        yield f"{mirror}: {counted(count, 'more partition')} not copied, but not FAILED (yet): {reason}; {shows}"


def _notes(rows: Sequence[PartitionRow]) -> Iterator[str]:
    """Yield notes under the table of `describe`, one sentence for each mirror and matter."""
    for mirror in dict.fromkeys(row.mirror for row in rows):
        of_mirror = [row for row in rows if row.mirror == mirror]
        if failed := sum(row.failed for row in of_mirror):
            yield (
                f"{mirror}: {failed} of {counted(len(of_mirror), 'partition')} FAILED;"
                f" `{on_mirror('describe', mirror)} --failed` says why"
            )
        for cause in sorted(_IDLE):
            idle = [row for row in of_mirror if row.reason is cause]
            if idle:
                what = "not known to be copied" if cause is Reason.STATE_UNREADABLE else "not copied"
                yield f"{mirror}: {counted(len(idle), 'partition')} {what}: {one_line(idle[0].error_message)}"
        stopped = [row for row in of_mirror if row.state is PartitionState.STOPPED]
        if (limit := of_mirror[0].throttle_bytes_per_second) is not None and len(stopped) < len(of_mirror):
            yield f"{mirror}: copying is limited to {limit:,} bytes/s (throttle.bytes.per.second)"
        if note := _filling_note(of_mirror):
            yield f"{mirror}: {note}"
        for path in dict.fromkeys(row.limited_by for row in of_mirror if row.limited_by):
            yield f"{mirror}: limited by: {path}"
        if first := of_mirror[0].first_topics:
            named = ", ".join(map(visible, first[:3])) + (f" and {len(first) - 3} more" if len(first) > 3 else "")
            yield f"{mirror}: other topics wait until these have caught up: {named} (priority.topics)"
        for reason in dict.fromkeys(row.reason for row in stopped):
            topics = {row.topic for row in stopped if row.reason is reason}
            yield f"{mirror}: {counted(len(topics), 'topic')} stopped, {reason or 'for good'}"
        if short := [row for row in stopped if row.ends_below_mirrored]:
            first_short = f"{visible(short[0].topic)}-{short[0].partition} ends at {short[0].destination_offset}"
            how = f"`{on_mirror('verify', mirror)}` says what is missing"
            yield (
                f"{mirror}: {counted(len(short), 'stopped partition ends', 'stopped partitions end')} below the last"
                f" mirrored offset: {first_short}, not {short[0].last_mirrored_offset}; {how}"
            )
        refused = [row for row in of_mirror if row.topic_state is TopicState.LINK_FAILED and not row.is_idle]
        if refused:
            why = one_line(refused[0].error_message)
            yield f"{mirror}: the source refuses {counted(len(refused), 'partition')}: {why}"
        silent = [row for row in of_mirror if row.topic_state is TopicState.SOURCE_UNAVAILABLE]
        if silent:
            known = [row.last_known_lag for row in silent if row.last_known_lag is not None]
            last = f"; the last known lag of these partitions is {sum(known):,}" if known else ""
            yield f"{mirror}: the source does not answer for {counted(len(silent), 'partition')}{last}"
        if without := sum(row.lacks_destination for row in of_mirror):
            how = f"`{on_mirror('check', mirror)}` says why"
            yield f"{mirror}: the destination does not answer for {counted(without, 'partition')}; {how}"


def _filling_note(rows: Sequence[PartitionRow]) -> str | None:
    """Return how far partitions are that fill many offsets; None if there are none."""
    filling = [(row.offsets_to_fill, row.records_per_second) for row in rows if row.offsets_to_fill]
    if not filling:
        return None
    who = counted(len(filling), "partition fills", "partitions fill")
    note = f"{who} offsets at which the source has no records: {sum(left for left, _ in filling):,} left"
    times = [eta_ms(left, rate) if rate else None for left, rate in filling]
    if None in times:
        return note
    speed = sum(rate or 0 for _, rate in filling)
    return f"{note}, {speed:,.0f} a second, about {shown_duration(max(time or 0 for time in times))}"


_PARTITION = columns_of(PartitionRow)
PARTITIONS = Table(
    _PARTITION,
    "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG STATE",
    none="no topic is mirrored yet; `kmirror add` makes one a mirror topic",
    notes=_notes,
)
WIDE_PARTITIONS = Table(
    # REASON has a column of its own here
    tuple(replace(one, cell=lambda row: row.shown_state) if one.header == "STATE" else one for one in _PARTITION),
    "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG TIME-LAG OBJECTIVE RPO RATE ETA WORKER REASON STATE",
    optional="OBJECTIVE RPO",
    none=PARTITIONS.none,
    notes=_notes,
)
STOPPED_PARTITIONS = Table(
    _PARTITION,
    "MIRROR TOPIC PARTITION LAST-MIRRORED-OFFSET LAST-MIRRORED-EPOCH STOPPED REASON",
    none="no partition is STOPPED",
)
WIDE_STOPPED_PARTITIONS = Table(
    _PARTITION,
    "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG LAST-MIRRORED-OFFSET LAST-MIRRORED-EPOCH STOPPED"
    " REASON",
    none=STOPPED_PARTITIONS.none,
)
FAILED_PARTITIONS = Table(_PARTITION, "MIRROR TOPIC PARTITION RETRY REASON ERROR", none="no partition is FAILED")
WIDE_FAILED_PARTITIONS = Table(
    _PARTITION,
    "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG TIME-LAG RETRY REASON ERROR",
    none=FAILED_PARTITIONS.none,
)
#: The maximum of attempts where there is none: the default of `retries` in Kafka's clients.
_NO_MAXIMUM = 2**31 - 1


def _kafka_retry(row: PartitionRow) -> str:
    return "NonRetryable" if row.reason in HISTORY_REASONS else f"{row.retry_attempt}/{_NO_MAXIMUM}"


#: As Kafka's cluster mirroring shows it (KIP-1279).
KAFKA_FAILED_PARTITIONS = Table(
    tuple(replace(one, cell=_kafka_retry, is_number=False) if one.header == "RETRY" else one for one in _PARTITION),
    "MIRROR TOPIC PARTITION RETRY ERROR",
    none="No failed partitions found",
)
KAFKA_PARTITIONS = replace(PARTITIONS, none="No mirror partitions found")
