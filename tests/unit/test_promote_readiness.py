"""What a topic lacks before it may be promoted, and what is reported if its source receives more. No sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from kmirror.cluster.client import EARLIEST, ClusterClient, OffsetAnswer
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.reader import SilentLogError
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.compare.difference import Difference, DifferenceKind
from kmirror.engine.compare.verification import PartitionVerdict
from kmirror.errors import BrokerError, ExitCode, KmirrorError, Reason, UnreachableError
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.base.results import exit_code_of
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop.promote_checks import FinalCheck
from kmirror.ops.stop.promote_readiness import ReadinessChecker
from kmirror.ops.stop.promote_request import PromoteRequest, dry_run_rows
from kmirror.ops.stop.report import stopped_row
from kmirror.ops.stop.source_after_stop import check_source_after_stop
from kmirror.ops.stop.work import StopResults
from kmirror.ops.verify.verify_results import Subject, VerifyOutcome, row_of
from kmirror.state.records import (
    AtStop,
    DesiredState,
    EngineRecord,
    EngineState,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import State

NOT_SYNCED = {"sync.topic.configs.enabled": "false", "sync.group.offsets.enabled": "false"}
MIRROR = MirrorRecord("m", {"bootstrap.servers": "a:1"}, NOT_SYNCED, "A", "x", 0)
#: Asking this source for more than its ends fails at once: it is unreachable.
UNKNOWN_SOURCE = replace(MIRROR, source={"security.protocol": "NONE"})
TOPIC = TopicRecord("m", "t", "t", None, None, DesiredState.ACTIVE, 2, TopicOrigin.CREATED)
PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
RECORDS = [PartitionRecord("m", "t", p, PartitionState.MIRRORING, 0, initial_copy_complete=True) for p in range(2)]
NOTHING_LACKS = ProgressRow("t", 0, 10, 10, 0, 10, 0, PartitionState.MIRRORING)


class Ends:
    """A cluster that says where its partitions end; None where no leader does."""

    def __init__(self, *ends: int | None, stable: int | None = None) -> None:
        self.ends = list(ends)
        self.stable = stable
        self.client = self
        self.config = client_config(MIRROR.source)
        self.remembered = State.of([MIRROR, TOPIC])
        #: Brokers that do not answer; partition 1 has a replica on broker 2.
        self.silent: frozenset[int] = frozenset()
        #: The partitions of the topic, and an error instead of them.
        self.partitions = len(ends)
        self.error = 0

    def metadata(self, topics: Iterable[str], **_: Any) -> ClusterMetadata:
        return self.newest_metadata(topics)[0]

    def newest_metadata(self, topics: Iterable[str], **_: Any) -> tuple[ClusterMetadata, frozenset[int]]:
        count = 0 if self.error else self.partitions
        partitions = {p: PartitionMetadata(p, 0, 1, 0, (1, 2)[: p + 1], (1,)) for p in range(count)}
        topic = TopicMetadata("t", self.error, bytes(16), False, partitions)
        return ClusterMetadata("A", 1, {1: Broker(1, "a", 1)}, dict.fromkeys(topics, topic)), self.silent

    def list_offsets(
        self, partitions: Mapping[TopicPartition, int], *, read_committed: bool = False, **_: Any
    ) -> dict[TopicPartition, OffsetAnswer]:
        if EARLIEST in partitions.values():
            return {p: OffsetAnswer(0, 3, 0) for p in partitions}
        ends = [self.stable if read_committed and self.stable is not None else end for end in self.ends]
        return {p: OffsetAnswer(5 if ends[p.partition] is None else 0, ends[p.partition], 0) for p in partitions}

    def state(self) -> State:
        return self.remembered


def lacks(
    source: Ends, destination: Ends, *rows: ProgressRow, mirror: MirrorRecord = UNKNOWN_SOURCE, idle_ms: int | None = 0
) -> tuple[int | None, str | None]:
    """Return the lag and what is missing of the topic."""
    found = rows or (NOTHING_LACKS, NOTHING_LACKS._replace(partition=1))
    progress = ProgressRecord("m", 0, "L", 1, 0, "h", 1, 1_000, tuple(found))
    state = State.of([mirror, TOPIC, *RECORDS, progress])
    checker = ReadinessChecker(cast(Destination, destination), mirror, idle_ms)
    (missing,) = checker.check(cast(ClusterClient, source), state, {"t": TOPIC}).missing.values()
    return missing.lag, missing.what


def test_a_topic_that_lacks_nothing_is_ready() -> None:
    assert lacks(Ends(10, 10), Ends(10, 10)) == (0, None)


def test_offsets_are_counted_and_an_open_transaction_is_named() -> None:
    assert lacks(Ends(10, 12), Ends(10, 10)) == (2, "2 offsets")
    lag, what = lacks(Ends(12, 12, stable=10), Ends(10, 10))
    assert (lag, what) == (0, "a transaction is open")


def test_a_dry_run_names_all_that_is_missing_not_only_the_first() -> None:
    source, destination = Ends(12, 12, stable=11), Ends(10, 10)
    checker = ReadinessChecker(cast(Destination, destination), UNKNOWN_SOURCE, 10_000)
    readiness = checker.check(cast(ClusterClient, source), State.of([UNKNOWN_SOURCE, TOPIC]), {"t": TOPIC})
    assert not readiness.missing["t"].only_time
    (row,) = dry_run_rows(readiness, {"t": "settings: retention.ms differ from the source's"}, together=False)
    assert row.message == (
        "t would wait: 2 offsets; a transaction is open; the first copy is not complete (2 partitions); producers: the"
        " source's end moved 0 s ago, required: 10 s; settings: retention.ms differ from the source's"
    )


@pytest.mark.parametrize(("source", "destination"), [(Ends(10, None), Ends(10, 10)), (Ends(10, 10), Ends(10, None))])
def test_a_partition_without_a_known_end_is_not_complete(source: Ends, destination: Ends) -> None:
    lag, what = lacks(source, destination)
    assert lag is None
    assert "no leader or no known end offset" in str(what)


def test_a_partition_that_the_source_has_added_is_waited_for_with_its_whole_log() -> None:
    missing = "t-2 is new at the source and not mirrored yet"
    assert lacks(Ends(10, 10, 13), Ends(10, 10)) == (10, missing)
    # it exists here, and is not counted: no lane copies it
    assert lacks(Ends(10, 10, 13), Ends(10, 10, 0)) == (13, missing)
    # even one without a record, and one whose end is unknown
    assert lacks(Ends(10, 10, 3), Ends(10, 10)) == (0, missing)
    assert lacks(Ends(10, 10, None), Ends(10, 10)) == (None, missing)


def test_a_source_that_does_not_tell_its_partitions_is_waited_for() -> None:
    source = Ends(10, 10)
    source.error = 3
    _, what = lacks(source, Ends(10, 10))
    assert what == "how many partitions t has at the source is unknown: UNKNOWN_TOPIC_OR_PARTITION"


def test_a_partition_that_only_the_destination_has_does_not_keep_a_topic() -> None:
    assert lacks(Ends(10, 10), Ends(10, 10, 7)) == (0, None)


def test_equal_ends_count_only_if_a_lane_has_copied_up_to_there() -> None:
    behind = NOTHING_LACKS._replace(partition=1, destination_offset=9)
    assert "the engine has not yet confirmed" in str(lacks(Ends(10, 10), Ends(10, 10), NOTHING_LACKS, behind)[1])
    assert "the engine has not yet confirmed" in str(lacks(Ends(10, 10), Ends(10, 10), NOTHING_LACKS)[1])
    # where producers may still write, a report is always a moment old
    assert lacks(Ends(10, 10), Ends(10, 10), NOTHING_LACKS, behind, idle_ms=None)[1] is None


def test_a_source_that_ends_before_its_copy_counts_only_once_a_lane_has_seen_that() -> None:
    """After an unclean election, while no engine ran, a promote left behind what the source had received instead."""
    checker = ReadinessChecker(cast(Destination, Ends(10, 10)), UNKNOWN_SOURCE, None)

    def what(time_ms: int, **seen: Any) -> str | None:
        rows = NOTHING_LACKS, NOTHING_LACKS._replace(partition=1, **seen)
        state = State.of([UNKNOWN_SOURCE, TOPIC, *RECORDS, ProgressRecord("m", 0, "L", 1, 0, "h", 1, time_ms, rows)])
        (missing,) = checker.check(cast(ClusterClient, Ends(10, 8)), state, {"t": TOPIC}).missing.values()
        return missing.what

    unconfirmed = "the engine has not yet confirmed that everything is copied (1 partition)"
    assert what(1000) == what(1000, source_offset=8) == what(2000) == unconfirmed
    assert what(2000, source_offset=8, reason=Reason.SOURCE_UNREACHABLE) == unconfirmed
    assert what(2000, source_offset=8) is None


@pytest.mark.parametrize(
    ("off_ms", "difference"), [(-26 * 3600_000, "1d1h behind"), (9_030_000, "2h30m ahead of"), (9_000, None)]
)
def test_an_engine_whose_clock_hides_its_confirmation_is_reported(off_ms: int, difference: str | None) -> None:
    source, destination = Ends(10, 10), Ends(10, 10)
    checker = ReadinessChecker(cast(Destination, destination), UNKNOWN_SOURCE, 0)
    texts, first_ms = [], now_ms() + off_ms
    for heartbeat_ms in (first_ms, first_ms + 1_000, first_ms + 1_000):
        engine = EngineRecord("m", "L", EngineState.RUNNING, "h9", "b", 1, 2, None, "local", 3, heartbeat_ms, 5_000)
        state = State.of([UNKNOWN_SOURCE, TOPIC, *RECORDS, engine])
        (missing,) = checker.check(cast(ClusterClient, source), state, {"t": TOPIC}).missing.values()
        texts.append(str(missing.what).partition(": ")[2])
    clock = f"the clock of its host, h9, is {difference} this one's" if difference else ""
    assert texts == ["", clock, clock]


def final_check(source: Ends, destination: Ends, arriving: int) -> FinalCheck:
    """Run the final check of a ready topic whose source receives this many records meanwhile."""
    checker = ReadinessChecker(cast(Destination, destination), MIRROR, 0)
    checker.read_source_ends(cast(ClusterClient, source), [TOPIC])
    source.ends[1] = (source.ends[1] or 0) + arriving
    last = FinalCheck(
        cast(Destination, destination),
        PromoteRequest("m", idle_ms=0),
        cast(ClusterClient, source),
        checker,
        {"t": TOPIC},
        ["t"],
        lambda *_: None,
        lambda _: None,
    )
    last.run()
    return last


def test_a_record_that_arrives_before_the_stop_keeps_its_topic() -> None:
    assert final_check(Ends(10, 10), Ends(10, 10), 0).going == ["t"]
    late = final_check(Ends(10, 10), Ends(10, 10), 1)
    assert late.going == []
    assert late.blockers == {"t": "producers: the source's end moved a moment ago"}


def content_check(monkeypatch: pytest.MonkeyPatch, *verdicts: PartitionVerdict) -> tuple[FinalCheck, list[TopicResult]]:
    """Run a final check whose comparison finds this of each partition; return it, and the rows of what it drops."""
    verified = [row_of(Subject("t", p, 0, 10, 0), verdict) for p, verdict in enumerate(verdicts)]
    outcome = VerifyOutcome(mirror="m", exit_code=ExitCode.OK, rows=tuple(verified), error=None, warnings=())
    monkeypatch.setattr("kmirror.ops.verify.verify.verify", lambda *_: outcome)
    source, destination = cast(ClusterClient, Ends(10, 10)), cast(Destination, Ends(10, 10))
    checker, waiting, dropped = ReadinessChecker(destination, MIRROR, 0), {"t": TOPIC}, list[TopicResult]()

    def drop(name: str, rows: list[TopicResult]) -> None:
        del waiting[name]
        dropped.extend(rows)

    request = PromoteRequest("m", idle_ms=0, verify=True)
    checker.read_source_ends(source, [TOPIC])
    last = FinalCheck(destination, request, source, checker, waiting, ["t"], drop, lambda _: None)
    last.run()
    return last, dropped


@pytest.mark.parametrize("kind", DifferenceKind)
def test_contents_that_differ_are_histories_that_differ(kind: DifferenceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    found = PartitionVerdict(first_difference=Difference(3, kind, "value differs", None, None))
    last, dropped = content_check(monkeypatch, PartitionVerdict(10), found)
    assert last.going == []
    assert [row.partition for row in dropped] == [1]
    assert exit_code_of(dropped) is ExitCode.HISTORIES_DIFFER


@pytest.mark.parametrize(
    "trouble",
    [
        SilentLogError(PLACES[1], 3, 10, "it answers nothing"),
        UnreachableError("the source no longer responds", None, Reason.SOURCE_UNREACHABLE),
        BrokerError(5, "LEADER_NOT_AVAILABLE", "reading t-1"),
    ],
)
def test_contents_that_cannot_be_compared_now_are_waited_for(
    trouble: KmirrorError, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, dropped = content_check(monkeypatch, PartitionVerdict(10), PartitionVerdict(trouble=trouble))
    assert dropped == []
    assert last.going == []
    assert last.blockers == {"t": f"contents: t-1 could not be compared: {trouble}"}


@pytest.mark.parametrize(
    "trouble",
    [
        UnreachableError("no right to read", "grant it", Reason.NOT_AUTHORIZED),
        BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", "reading t-0"),
        CorruptBatchError(7, "its checksum is wrong"),
    ],
)
def test_contents_that_can_never_be_compared_are_not_waited_for(
    trouble: KmirrorError, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, dropped = content_check(monkeypatch, PartitionVerdict(trouble=trouble), PartitionVerdict(10))
    assert [(row.partition, row.reason) for row in dropped] == [(0, trouble.reason)]
    assert exit_code_of(dropped) is ExitCode.PARTLY_DONE


def test_a_partition_that_is_added_before_the_stop_keeps_its_topic() -> None:
    class Growing(Ends):
        def list_offsets(self, *arguments: Any, **more: Any) -> dict[TopicPartition, OffsetAnswer]:
            self.partitions = 3
            return super().list_offsets(*arguments, **more)

    growing = Growing(10, 10, 10)
    growing.partitions = 2
    late = final_check(growing, Ends(10, 10), 0)
    assert late.going == []
    assert late.blockers == {"t": "t-2 is new at the source and not mirrored yet"}


def test_an_end_does_not_count_while_a_broker_that_may_be_the_leader_now_is_silent() -> None:
    source = Ends(10, 10)
    source.silent = frozenset({2})
    lag, what = lacks(source, Ends(10, 10))
    assert lag is None
    assert what == (
        "1 partition has no leader or no known end offset: broker 2 of the source does not answer, and may lead by now"
    )
    # one that became silent after the topic was ready
    source.silent = frozenset()
    checker = ReadinessChecker(cast(Destination, Ends(10, 10)), MIRROR, None)
    checker.read_source_ends(cast(ClusterClient, source), [TOPIC])
    source.silent = frozenset({2})
    rows, warnings = stopped(source)
    assert [row.lag for row in rows] == [0, None]
    assert warnings == [
        "the ends of 1 partition could not be read again after the stop: broker 2 of the source does not answer, and "
        "may lead by now"
    ]
    assert final_check(source, Ends(10, 10), 0).blockers == {"t": "not all ends of the source are known now"}


def stopped(source: Ends) -> tuple[list[TopicResult], list[str]]:
    results = [TopicResult("t", p, Outcome.DONE, last_mirrored_offset=10) for p in range(2)]
    done = StopResults(results, ends=dict.fromkeys(PLACES, 10))
    after = check_source_after_stop(cast(ClusterClient, source), {"t": TOPIC}, done)
    return after.rows, after.warnings


def test_a_record_that_arrives_after_the_stop_is_reported() -> None:
    rows, warnings = stopped(Ends(10, 11))
    assert warnings == []
    assert [(row.result, row.lag, row.reason) for row in rows] == [
        (Outcome.DONE, 0, None),
        (Outcome.FAILED, 1, Reason.SOURCE_WRITTEN_AFTER_STOP),
    ]


def test_what_the_source_had_at_the_stop_counts_if_it_is_silent_after_it() -> None:
    """Once, the row said that 5 offsets were known lost, and was DONE."""
    ends = dict.fromkeys(PLACES, 10)
    stops = [replace(AtStop(1, 10), source_offset=end, source_answered=True) for end in (10, 15)]
    rows = [
        stopped_row(p, replace(RECORDS[0], last_mirrored_offset=10, at_stop=stop), Outcome.DONE, Reason.PROMOTED)
        for p, stop in zip(PLACES, stops, strict=True)
    ]
    after = check_source_after_stop(cast(ClusterClient, Ends(None, None)), {"t": TOPIC}, StopResults(rows, ends=ends))
    assert [(row.result, row.lag, row.reason) for row in after.rows] == [
        (Outcome.TIMED_OUT, 0, Reason.PROMOTED),
        (Outcome.FAILED, 5, Reason.SOURCE_WRITTEN_AFTER_STOP),
    ]


def test_a_partition_that_is_added_during_the_stop_is_reported() -> None:
    rows, warnings = stopped(Ends(10, 10, 4))
    assert warnings == []
    assert [(row.partition, row.result, row.reason) for row in rows] == [
        (0, Outcome.DONE, None),
        (1, Outcome.DONE, None),
        (2, Outcome.FAILED, Reason.SOURCE_WRITTEN_AFTER_STOP),
    ]


def test_a_source_that_is_silent_after_the_stop_is_not_called_complete() -> None:
    rows, warnings = stopped(Ends(10, None))
    assert [row.lag for row in rows] == [0, None]
    assert len(warnings) == 1

    class Silent(Ends):
        def list_offsets(self, *_: Any, **__: Any) -> dict[TopicPartition, OffsetAnswer]:
            raise UnreachableError("no answer")

    rows, warnings = stopped(Silent())
    assert [row.lag for row in rows] == [None, None]
    assert "could not be read again after the stop" in warnings[0]
