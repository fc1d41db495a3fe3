"""The rows of `describe` and `list`, and their columns. Pure.

Unknown numbers are None, times are epoch milliseconds, offsets are exclusive as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kmirror.columns import COUNT, DURATION, END, FLAG, OFFSET, TEXT, TIME, Column, Table, Type, one_of
from kmirror.commands import on_mirror
from kmirror.engine.status.topic_state import TopicState
from kmirror.errors import HISTORY_REASONS, NOT_COPYING, Reason
from kmirror.ops.base.results import REASON
from kmirror.ops.show.kept import kept_offsets
from kmirror.settings.durations import format_duration
from kmirror.state.records import PartitionState
from kmirror.words import at_time, byte_rate, counted, one_line, visible

_KEEPS_UP_MS = 10_000
#: The reasons of partitions that are not copied, while others of their topic may be.
_IDLE = NOT_COPYING | {Reason.PARTITION_MISSING}
_COPIED = (PartitionState.MIRRORING, PartitionState.LOG_ALIGNMENT)


def eta_ms(lag: int, closing_speed: float) -> int | None:
    """Return the milliseconds until a lag that shrinks by `closing_speed` offsets a second is 0; None if it grows."""
    return None if closing_speed <= 0 else round(lag / closing_speed * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One mirror partition, as `describe` shows it.

    `source_offset` is the source's last stable offset, `destination_offset` the destination's log end. `as_of_ms` is
    when the source's numbers were read.
    """

    mirror: str
    topic: str
    partition: int
    source_offset: int | None
    destination_offset: int | None
    lag: int | None
    state: PartitionState
    retry_attempt: int
    error_message: str | None
    source_topic: str
    topic_state: TopicState
    reason: Reason | None
    state_time_ms: int | None
    time_lag_ms: int | None
    last_known_lag: int | None
    source_log_start: int | None
    destination_log_start: int | None
    source_high_watermark: int | None
    last_mirrored_offset: int | None
    last_mirrored_epoch: int | None
    initial_copy_complete: bool
    rebuilt_at_ms: int | None
    archive: str | None
    as_of_ms: int | None
    #: The mirror's last engine, its last heartbeat, and how long ago that was.
    engine: str | None = None
    engine_last_seen_ms: int | None = None
    engine_age_ms: int | None = None
    #: Whether a live lane of the engine in charge reports on the partition.
    is_reported: bool = True
    #: True if only the destination has the partition: nothing is copied to it.
    is_extra: bool = False
    #: The mirror's limit; None: no limit.
    throttle_bytes_per_second: int | None = None
    #: The mirror's topics that its other topics wait for now.
    first_topics: tuple[str, ...] = ()
    #: The speed of the copy, and of the source's end in offsets a second, as the lane reports them.
    bytes_per_second: int | None = None
    records_per_second: float | None = None
    source_records_per_second: float | None = None
    #: How many offsets at which the source has no records are still to be filled before the next record.
    offsets_to_fill: int | None = None
    #: The lane that reports on the partition, and where it runs.
    lane: int | None = None
    worker: str | None = None
    #: While the path to the source limits that lane: over how many connections, and bytes per second in all.
    source_path: tuple[int, int] | None = None
    #: While the topic is rebuilt: the offsets of the old log to archive, and the archive's log end.
    offsets_to_archive: int | None = None
    archive_log_end: int | None = None

    @property
    def limited_by(self) -> str | None:
        """What limits how fast the partition is copied; None if nothing is known to."""
        connections, rate = self.source_path or (0, 0)
        if connections < 1:
            return None
        each = byte_rate(rate / connections)
        return f"source path, {counted(connections, 'connection')} of {each}" + " each" * (connections > 1)

    @property
    def failed(self) -> bool:
        """Return whether `--failed` selects the partition."""
        return self.state is PartitionState.FAILED

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is copied now, whatever the stored state."""
        return self.reason in _IDLE

    @property
    def is_copied(self) -> bool:
        """Return whether a lane copies the partition, without trouble."""
        return self.is_reported and self.state in _COPIED and self.reason in (None, Reason.OPEN_TRANSACTION)

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
    def eta_ms(self) -> int | None:
        """Return the milliseconds until the lag is 0 at the present speed; None if unknown."""
        if self.lag is None or self.lag == 0:
            return self.lag
        return None if self.closing_speed is None else eta_ms(self.lag, self.closing_speed)

    @property
    def shown_state(self) -> PartitionState | TopicState:
        """Return the state, or PENDING_STOPPED for a partition that is copied until its promote."""
        copied = self.state in _COPIED
        return self.topic_state if copied and self.topic_state is TopicState.PENDING_STOPPED else self.state

    @property
    def kept_beyond_source_log_start(self) -> int | None:
        """How many offsets the mirror keeps that the source has deleted; None if unknown or STOPPED."""
        if self.state is PartitionState.STOPPED:
            return None
        return kept_offsets(self.source_log_start, self.destination_log_start, self.destination_offset)

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
        refused = [row for row in of_mirror if row.topic_state is TopicState.LINK_FAILED and not row.is_idle]
        if refused:
            why = one_line(refused[0].error_message)
            yield f"{mirror}: the source refuses {counted(len(refused), 'partition')}: {why}"
        silent = [row for row in of_mirror if row.topic_state is TopicState.SOURCE_UNAVAILABLE]
        if silent:
            known = [row.last_known_lag for row in silent if row.last_known_lag is not None]
            last = f"; the last known lag of these partitions is {sum(known):,}" if known else ""
            yield f"{mirror}: the source does not answer for {counted(len(silent), 'partition')}{last}"


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


_UNSEEN = "the source was never read"
_NO_ENGINE = "no engine is in charge"
_NO_LANE = "no lane reports on the partition"
_RATE = Type("integer", "bytes per second", minimum=0)
_LIMIT = Type("integer", "bytes per second").null_when("there is no limit")

_PARTITION: tuple[Column[PartitionRow], ...] = (
    Column("mirror", TEXT, "the mirror", lambda row: row.mirror, "MIRROR"),
    Column("topic", TEXT, "the topic on the destination", lambda row: row.topic, "TOPIC"),
    Column("partition", COUNT, "the partition", lambda row: row.partition, "PARTITION", is_number=True),
    Column(
        "sourceOffset",
        END.null_when(_UNSEEN),
        "the source's last stable offset, the newest one known",
        lambda row: row.source_offset,
        "SOURCE-OFFSET",
        is_number=True,
    ),
    Column(
        "destinationOffset",
        END.null_when("the partition's leader does not answer, or the destination lacks the partition or topic"),
        "the destination's log end",
        lambda row: row.destination_offset,
        "DESTINATION-OFFSET",
        is_number=True,
    ),
    Column(
        "lag",
        COUNT.null_when("the source does not answer now, or the partition is STOPPED"),
        "offsets that the destination is behind: sourceOffset - destinationOffset; of a partition that the destination "
        "lacks its whole log, sourceOffset - sourceLogStart",
        lambda row: row.lag,
        "LAG",
        is_number=True,
    ),
    Column(
        "state",
        one_of("partition state", PartitionState),
        "state of the partition",
        lambda row: row.state,
        "STATE",
        # if nothing is copied, the reason comes first: the state is only the last known
        cell=lambda row: f"{row.reason} ({row.shown_state})" if row.is_idle else row.shown_state,
        code=lambda row: row.reason if row.is_idle else row.shown_state,
    ),
    Column(
        "retryAttempt",
        COUNT,
        "how often copying was retried",
        lambda row: row.retry_attempt,
        "RETRY",
        is_number=True,
    ),
    Column(
        "errorMessage",
        TEXT.null_when("there is nothing to report"),
        "the reason as a sentence",
        lambda row: row.error_message,
        "ERROR",
        cell=lambda row: one_line(row.error_message),
    ),
    Column("sourceTopic", TEXT, "the topic on the source", lambda row: row.source_topic),
    Column("topicState", one_of("topic state", TopicState), "state of the whole topic", lambda row: row.topic_state),
    Column(
        "reason", REASON.null_when("all is well"), "why the partition is not copied", lambda row: row.reason, "REASON"
    ),
    Column(
        "stateTimeMs",
        TIME.null_when("unknown"),
        "since when the partition is in this state",
        lambda row: row.state_time_ms,
        "STOPPED",
        cell=lambda row: None if row.state_time_ms is None else at_time(row.state_time_ms),
    ),
    Column(
        "timeLagMs",
        DURATION.null_when("lag is null, or nothing was copied yet"),
        "upper bound of the time for which the destination has been behind; 0 if lag is 0",
        lambda row: row.time_lag_ms,
        "TIME-LAG",
        cell=lambda row: shown_duration(row.time_lag_ms),
        is_number=True,
    ),
    Column(
        "lastKnownLag",
        COUNT.null_when("never known"),
        "the lag, or its last known value",
        lambda row: row.last_known_lag,
    ),
    Column("sourceLogStart", OFFSET.null_when(_UNSEEN), "the source's log start", lambda row: row.source_log_start),
    Column(
        "destinationLogStart",
        OFFSET.null_when("the partition's leader does not answer, or the topic is gone"),
        "the destination's log start",
        lambda row: row.destination_log_start,
    ),
    Column(
        "sourceHighWatermark",
        END.null_when(_UNSEEN),
        "the source's high watermark",
        lambda row: row.source_high_watermark,
    ),
    Column(
        "lastMirroredOffset",
        END.null_when("the partition was never stopped"),
        "the end of what came from the source",
        lambda row: row.last_mirrored_offset,
        "LAST-MIRRORED-OFFSET",
        is_number=True,
    ),
    Column(
        "lastMirroredEpoch",
        Type("integer", "leader epoch").null_when("the partition was never stopped, or the epoch is unknown"),
        "the source's leader epoch of the last mirrored batch",
        lambda row: row.last_mirrored_epoch,
        "LAST-MIRRORED-EPOCH",
        is_number=True,
    ),
    Column(
        "initialCopyComplete",
        FLAG,
        "whether the copy has ever reached the source's end",
        lambda row: row.initial_copy_complete,
    ),
    Column(
        "rebuiltAt",
        TIME.null_when("the topic was never rebuilt"),
        "when the topic was last rebuilt",
        lambda row: row.rebuilt_at_ms,
    ),
    Column(
        "archive",
        TEXT.null_when("there is none"),
        "the topic with the records from before the last rebuild",
        lambda row: row.archive,
    ),
    Column(
        "offsetsToArchive",
        COUNT.null_when("the topic is not being rebuilt, or that is not known yet"),
        "while the topic is being rebuilt: how many offsets of the old log are archived first",
        lambda row: row.offsets_to_archive,
    ),
    Column(
        "archiveLogEnd",
        COUNT.null_when("the topic is not being rebuilt, or has no archive yet"),
        "while the topic is being rebuilt: log end of the partition's archive so far, markers of transactions included",
        lambda row: row.archive_log_end,
    ),
    Column("asOf", TIME.null_when(_UNSEEN), "when the source's offsets were read", lambda row: row.as_of_ms),
    Column("engine", TEXT.null_when(_NO_ENGINE), "the engine in charge", lambda row: row.engine),
    Column(
        "engineLastSeenMs",
        TIME.null_when("no engine ever ran"),
        "the last heartbeat of an engine",
        lambda row: row.engine_last_seen_ms,
    ),
    Column(
        "engineAgeMs",
        DURATION.null_when("no engine ever ran, or its clock is ahead"),
        "how long ago that was",
        lambda row: row.engine_age_ms,
    ),
    Column(
        "keptBeyondSourceLogStart",
        COUNT.null_when("unknown, or the partition is STOPPED"),
        "offsets that the mirror keeps and the source has deleted",
        lambda row: row.kept_beyond_source_log_start,
    ),
    Column(
        "throttleBytesPerSecond",
        _LIMIT,
        "the mirror's throttle.bytes.per.second",
        lambda row: row.throttle_bytes_per_second,
    ),
    Column(
        "bytesPerSecond",
        _RATE.null_when(_NO_LANE),
        "how fast the partition is copied",
        lambda row: row.bytes_per_second,
        "RATE",
        cell=lambda row: shown_rate(row.bytes_per_second),
        is_number=True,
    ),
    Column(
        "recordsPerSecond",
        Type("number", "offsets per second", minimum=0).null_when(f"{_NO_LANE}, or not for five seconds yet"),
        "the same in records, averaged over some ten seconds; offsets at which a log holds none count, too",
        lambda row: row.records_per_second,
    ),
    Column(
        "etaMs",
        DURATION.null_when("lag is null, the partition is not being copied, or its source grows faster than the copy"),
        "time until lag is 0 at the present speed",
        lambda row: row.eta_ms,
        "ETA",
        cell=lambda row: shown_duration(row.eta_ms),
        is_number=True,
    ),
    Column(
        "offsetsToFill",
        COUNT.null_when(f"{_NO_LANE}, or there are few or none"),
        "offsets at which the source has no records, before the next one: they are filled first",
        lambda row: row.offsets_to_fill,
    ),
    Column("lane", COUNT.null_when(_NO_LANE), "the lane that copies the partition", lambda row: row.lane),
    Column(
        "worker",
        TEXT.null_when(_NO_LANE),
        "where that lane runs: the host, and on a Spark cluster the executor there",
        lambda row: row.worker,
        "WORKER",
    ),
    Column(
        "limitedBy",
        TEXT.null_when("nothing is known to limit the copy"),
        "what limits how fast the partition is copied: the path to the source, with its connections and their speed",
        lambda row: row.limited_by,
    ),
)
PARTITIONS = Table(
    _PARTITION,
    "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG STATE",
    none="no topic is mirrored yet; `kmirror add` makes one a mirror topic",
    notes=_notes,
)
WIDE_PARTITIONS = Table(
    # REASON has a column of its own here
    tuple(replace(one, cell=lambda row: row.shown_state) if one.header == "STATE" else one for one in _PARTITION),
    "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG TIME-LAG RATE ETA WORKER REASON STATE",
    none=PARTITIONS.none,
    notes=_notes,
)
STOPPED_PARTITIONS = Table(
    _PARTITION,
    "MIRROR TOPIC PARTITION LAST-MIRRORED-OFFSET LAST-MIRRORED-EPOCH STOPPED REASON",
    none="no partition is STOPPED",
)
FAILED_PARTITIONS = Table(_PARTITION, "MIRROR TOPIC PARTITION RETRY REASON ERROR", none="no partition is FAILED")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRow:
    """One mirror, as `list` shows it.

    `topics`, `stopped_topics` of them and `partitions` are counts, `state` sums up the topics' states (None without
    topics), `engine` is in charge or has been silent for less than a minute (None without one), `max_lag` is the
    largest known lag. `reason` is why nothing is copied.
    """

    mirror: str
    topics: int
    stopped_topics: int
    partitions: int
    source_cluster_id: str | None
    source_bootstrap_server: str | None
    state: TopicState | None
    engine: str | None
    max_lag: int | None
    reason: Reason | None = None
    engine_last_seen_ms: int | None = None
    engine_age_ms: int | None = None
    #: None: no limit.
    throttle_bytes_per_second: int | None = None
    bytes_per_second: int | None = None
    max_time_lag_ms: int | None = None
    eta_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return MIRRORS.document(self)


MIRRORS: Table[MirrorRow] = Table(
    (
        Column("mirror", TEXT, "the mirror", lambda row: row.mirror, "MIRROR"),
        Column("topics", COUNT, "how many topics it has", lambda row: row.topics, "TOPICS", is_number=True),
        Column(
            "partitions",
            COUNT,
            "how many partitions the topics have",
            lambda row: row.partitions,
            "PARTITIONS",
            is_number=True,
        ),
        Column(
            "sourceClusterId",
            TEXT.null_when("not recorded"),
            "id of the source cluster",
            lambda row: row.source_cluster_id,
            "SOURCE-CLUSTER-ID",
        ),
        Column(
            "sourceBootstrapServer",
            TEXT.null_when("not recorded"),
            "addresses of the source, comma-separated",
            lambda row: row.source_bootstrap_server,
            "SOURCE",
        ),
        Column(
            "state",
            one_of("topic state", TopicState).null_when("it has no topics, and its source answers"),
            "the worst state among its topics; STOPPED if all of them are",
            lambda row: row.state,
            "STATE",
        ),
        Column("engine", TEXT.null_when(_NO_ENGINE), "the engine in charge", lambda row: row.engine, "ENGINE"),
        Column(
            "maxLag",
            COUNT.null_when("no lag is known"),
            "the largest lag among its partitions",
            lambda row: row.max_lag,
            "MAX-LAG",
            is_number=True,
        ),
        Column(
            "reason",
            REASON.null_when("all is well"),
            "the reason of the first partition that is not copied",
            lambda row: row.reason,
            "REASON",
        ),
        Column(
            "engineLastSeenMs",
            TIME.null_when("no engine ever ran"),
            "the last heartbeat of an engine",
            lambda row: row.engine_last_seen_ms,
        ),
        Column(
            "engineAgeMs",
            DURATION.null_when("no engine ever ran, or its clock is ahead"),
            "how long ago that was",
            lambda row: row.engine_age_ms,
            "HEARTBEAT-AGE",
            cell=lambda row: shown_duration(row.engine_age_ms),
            is_number=True,
        ),
        Column(
            "throttleBytesPerSecond",
            _LIMIT,
            "the mirror's throttle.bytes.per.second",
            lambda row: row.throttle_bytes_per_second,
        ),
        Column(
            "bytesPerSecond",
            _RATE.null_when("no lane reports on any of its partitions"),
            "how fast it is copied",
            lambda row: row.bytes_per_second,
        ),
        Column(
            "maxTimeLagMs",
            DURATION.null_when("unknown for a partition that is not STOPPED, or there is no such partition"),
            "the largest timeLagMs among its partitions",
            lambda row: row.max_time_lag_ms,
        ),
        Column(
            "etaMs",
            DURATION.null_when(
                "it has no partitions but STOPPED ones, one that lags is not being copied, its lag or speed is unknown,"
                " or the source grows faster than the copy"
            ),
            "time until the lag of all its partitions is 0 at the present speed",
            lambda row: row.eta_ms,
        ),
        Column(
            "stoppedTopics",
            COUNT,
            "how many of its topics are STOPPED: promoted, failed over or removed",
            lambda row: row.stopped_topics,
            "STOPPED",
            is_number=True,
        ),
    ),
    "MIRROR TOPICS STOPPED PARTITIONS STATE MAX-LAG SOURCE-CLUSTER-ID SOURCE ENGINE HEARTBEAT-AGE REASON",
    none="no mirrors on this destination; `kmirror create` makes one",
)
#: As Kafka's cluster mirroring shows it (KIP-1279).
KAFKA_MIRRORS: Table[MirrorRow] = Table(
    tuple(replace(one, header="SOURCE-BOOTSTRAP-SERVER") if one.header == "SOURCE" else one for one in MIRRORS.columns),
    "MIRROR TOPICS SOURCE-CLUSTER-ID SOURCE-BOOTSTRAP-SERVER",
    none="No mirrors found",
)
