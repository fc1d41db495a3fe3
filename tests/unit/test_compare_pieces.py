"""How partitions are cut into pieces for Spark, what is omitted, and what the findings amount to."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Generator, Iterable
from itertools import pairwise
from typing import Any

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.engine.bulk.runner import Task
from kmirror.engine.compare.difference import Difference, DifferenceKind, PartitionComparison, RecordSummary
from kmirror.engine.compare.verification import (
    CompareWorkUnit,
    Extent,
    PartitionVerdict,
    Piece,
    PieceFinding,
    compare_work_unit,
    compare_work_units,
    cut,
    sample,
    sampled_work_units,
    work_units,
)
from kmirror.errors import BrokerError, ExitCode, KmirrorError, Reason, UnreachableError
from kmirror.ops.base.bulk import slots_of
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.verify.verify_results import VERIFIED, Subject, VerifyRow, error_of, exit_code_of, row_of
from kmirror.work import Meter, WorkView

MB = 1 << 20
NOWHERE = ClusterAccess({}, None)


def extent(start: int = 0, end: int = 1000, size: int | None = None, partition: int = 0, **more: Any) -> Extent:
    return Extent("t", partition, "s", start, end, size, **more)


def ranges(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]


def difference(offset: int, kind: DifferenceKind = DifferenceKind.CONTENT) -> Difference:
    return Difference(offset, kind, "values differ", RecordSummary(offset, 1, "a"), None)


class TestPieces:
    def test_a_piece_names_both_partitions(self) -> None:
        (piece,) = cut(extent(partition=3), 10 * MB)
        assert (piece.source, piece.destination) == (TopicPartition("s", 3), TopicPartition("t", 3))

    def test_a_partition_is_cut_into_pieces_of_the_size_wanted(self) -> None:
        pieces = cut(extent(100, 1100, 40 * MB), 10 * MB)
        assert ranges(pieces) == [(100, 350), (350, 600), (600, 850), (850, 1100)]

    @pytest.mark.parametrize("end", [1, 2, 7, 999, 100_003])
    @pytest.mark.parametrize("size", [1, 5 * MB, 77 * MB, 10_000 * MB])
    def test_pieces_cover_every_offset_once(self, end: int, size: int) -> None:
        found = ranges(cut(extent(0, end, size), 10 * MB))
        assert found[0][0] == 0
        assert found[-1][1] == end
        assert all(one[1] == other[0] for one, other in pairwise(found))
        assert all(start < stop for start, stop in found)

    def test_compacted_topics_stay_whole(self) -> None:
        assert ranges(cut(extent(0, 1000, 1000 * MB, divisible=False), 10 * MB)) == [(0, 1000)]

    @pytest.mark.parametrize("count", [0, 1, 20, 5000])
    @pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 900), (0, 1000), (10_000, 1_000_000)])
    def test_a_sample_has_head_and_tail_and_is_in_the_partition(self, count: int, start: int, end: int) -> None:
        found = ranges(sample(extent(start, end), count, random.Random(1)))
        assert found[0][0] == start
        assert found[-1][1] == end
        assert all(one[1] < other[0] for one, other in pairwise(found))
        assert sum(stop - begin for begin, stop in found) <= min(end - start, 1000 * (count + 2))

    def test_a_sample_of_large_records_takes_few(self) -> None:
        assert ranges(sample(extent(0, 1000, 900_000 * 1000), 0, random.Random(1))) == [(0, 1), (999, 1000)]

    def test_ranges_that_meet_are_one(self) -> None:
        assert ranges(sample(extent(0, 2000), 0, random.Random(1))) == [(0, 2000)]
        assert ranges(sample(extent(0, 2001), 0, random.Random(1))) == [(0, 1000), (1001, 2001)]

    @pytest.mark.parametrize("end", [20, 1020])
    def test_the_first_piece_knows_where_the_destination_starts(self, end: int) -> None:
        """Filler is searched even where there are no offsets to compare."""
        late = extent(20, end, 40 * MB, destination_start=3)
        for pieces in (cut(late, 10 * MB), sample(late, 5, random.Random(1))):
            assert [piece.destination_start for piece in pieces] == [3] + [None] * (len(pieces) - 1)
            assert (pieces[0].start, pieces[-1].end) == (20, end)
        for found in (
            work_units([late], 4, NOWHERE, NOWHERE),
            sampled_work_units([late], 5, random.Random(1), NOWHERE, NOWHERE),
        ):
            assert found[0].pieces[0].destination_start == 3
        assert work_units([extent(20, 20)], 4, NOWHERE, NOWHERE) == []

    def test_samples_differ(self) -> None:
        one, other = (ranges(sample(extent(0, 10**9), 3, random.Random(seed))) for seed in (1, 2))
        assert one != other


class TestShares:
    def test_there_are_enough_for_all_slots(self) -> None:
        found = work_units([extent(0, 100_000, 1600 * MB)], 4, NOWHERE, NOWHERE)
        assert len(found) == 16
        assert all(len(share.pieces) == 1 for share in found)

    def test_none_is_too_large(self) -> None:
        assert len(work_units([extent(0, 10**7, 100_000 * MB)], 4, NOWHERE, NOWHERE)) == round(100_000 / 256)

    def test_small_partitions_go_together(self) -> None:
        small = [extent(0, 10, 1000, partition) for partition in range(1000)]
        source, destination = ClusterAccess({"a": "b"}, "s"), ClusterAccess({"c": "d"}, "d")
        found = work_units([*small, extent(5, 5)], 4, source, destination)
        assert [len(share.pieces) for share in found] == [100] * 10
        assert [piece.partition for share in found for piece in share.pieces] == list(range(1000))
        assert all((share.source, share.destination) == (source, destination) for share in found)

    def test_a_size_that_is_not_known_is_guessed(self) -> None:
        assert len(work_units([extent(0, 1_000_000)], 1, NOWHERE, NOWHERE)) == 4

    def test_samples_are_shared_out_too(self) -> None:
        partitions = [extent(0, 10**12, partition=partition) for partition in range(100)]
        found = sampled_work_units([*partitions, extent(5, 5)], 8, random.Random(1), NOWHERE, NOWHERE)
        assert sum(len(share.pieces) for share in found) == 1000
        assert len(found) == 10

    @pytest.mark.parametrize(
        ("master", "lanes", "slots"),
        [
            ("local[3]", 9, 3),
            ("local", 9, 1),
            ("local[3,4]", 9, 3),
            ("spark://h:7077", 9, 9),
            ("local-cluster[2,1,512]", 2, 2),
        ],
    )
    def test_how_many_run_at_once(self, master: str, lanes: int, slots: int) -> None:
        assert slots_of(master, lanes) == slots


class Inline:
    """Runs each task when its result is asked for, as a runner with one slot would."""

    slots = 1

    def __init__(self, answer: Callable[[Piece], PieceFinding]) -> None:
        self.answer = answer
        self.compared: list[Piece] = []
        self.views: list[WorkView] = []

    def run(self, name: str, function: Any, tasks: Iterable[Task[Any]], meter: Meter) -> Generator[Any, None, None]:
        assert function is compare_work_unit
        for task in tasks:
            self.compared += task.argument.pieces
            yield tuple(self.answer(piece) for piece in pickle.loads(pickle.dumps(task.argument)).pieces)
            meter.add(task.units)

    def compare(self, work: list[CompareWorkUnit]) -> list[PieceFinding]:
        """Compare shares, and see that neither more nor less was to be done than is said."""
        with Meter(self.views.append, "comparing", "offset", sum(share.offsets for share in work)) as meter:
            found = list(compare_work_units(self, work, meter))
        last = self.views[-1]
        assert last.done == last.total == sum(piece.end - piece.start for piece in self.compared)
        return found


def equal(piece: Piece) -> PieceFinding:
    return PieceFinding(piece, PartitionComparison(piece.start, piece.end, piece.end - piece.start, 1000))


def test_what_follows_a_difference_is_skipped() -> None:
    def answer(piece: Piece) -> PieceFinding:
        if piece.partition == 1 and piece.start in (30, 50):
            return PieceFinding(
                piece, PartitionComparison(piece.start, piece.end, 5, 1000, difference(piece.start + 5))
            )
        return equal(piece)

    work = [
        CompareWorkUnit(
            NOWHERE,
            NOWHERE,
            tuple(Piece("t", partition, "s", start, start + 10) for start in starts for partition in (0, 1)),
        )
        for starts in ((20,), (30, 50), (40,), (30, 90))
    ]
    runtime = Inline(answer)
    found = runtime.compare(work)
    assert [piece.start for piece in runtime.compared if piece.partition == 0] == [20, 30, 50, 40, 30, 90]
    assert [piece.start for piece in runtime.compared if piece.partition == 1] == [20, 30, 50, 30]
    assert len(found) == 10


def test_a_piece_without_offsets_is_checked() -> None:
    runtime = Inline(equal)
    work = [CompareWorkUnit(NOWHERE, NOWHERE, (Piece("t", 0, "s", 20, 20, 3),))]
    assert len(runtime.compare(work)) == len(runtime.compared) == 1


def test_a_cluster_that_is_gone_is_asked_for_nothing_more() -> None:
    gone = UnreachableError("the source no longer responds", None, Reason.SOURCE_UNREACHABLE)

    def answer(piece: Piece) -> PieceFinding:
        return PieceFinding(piece, None, gone) if piece.start == 10 else equal(piece)

    work = [CompareWorkUnit(NOWHERE, NOWHERE, (Piece("t", 0, "s", start, start + 10),)) for start in range(0, 50, 10)]
    runtime = Inline(answer)
    found = runtime.compare(work)
    assert [piece.start for piece in runtime.compared] == [0, 10]
    assert [finding.piece.start for finding in found if finding.trouble is gone] == [10, 20, 30, 40]


def test_other_trouble_concerns_one_piece() -> None:
    refused = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", "reading t-0")

    def answer(piece: Piece) -> PieceFinding:
        return PieceFinding(piece, None, refused) if piece.start == 10 else equal(piece)

    work = [CompareWorkUnit(NOWHERE, NOWHERE, (Piece("t", 0, "s", start, start + 10),)) for start in range(0, 50, 10)]
    runtime = Inline(answer)
    assert sum(finding.trouble is not None for finding in runtime.compare(work)) == 1
    assert len(runtime.compared) == 5


class TestRows:
    def row(self, *findings: PieceFinding, recreated: str | None = None, lag: int | None = 0, **more: Any) -> VerifyRow:
        verdict = PartitionVerdict()
        for finding in findings:
            verdict.take(finding)
        return row_of(Subject("t", 0, 0, 100, lag, recreated=recreated, **more), verdict)

    def finding(self, start: int, end: int, **comparison: Any) -> PieceFinding:
        found = PartitionComparison(start, end, end - start, 10 * (end - start), **comparison)
        return PieceFinding(Piece("t", 0, "s", start, end), found)

    def test_equal_pieces_are_an_equal_partition(self) -> None:
        row = self.row(self.finding(50, 100), self.finding(0, 50, notes=("n",)), lag=7, notes=("first",))
        assert (row.result, row.verdict, row.message) == (Outcome.DONE, "equal", "equal up to offset 100, lag 7")
        assert (row.offsets, row.records, row.size_in_bytes, row.notes) == (100, 100, 1000, ("first", "n"))

    def test_a_sample_reports_how_much_it_has_read(self) -> None:
        assert self.row(self.finding(0, 10), self.finding(90, 100)).message == "equal in 20 of 100 offsets up to 100"

    @pytest.mark.parametrize("order", [1, -1])
    def test_the_lowest_offset_is_the_first_difference(self, order: int) -> None:
        findings = [
            self.finding(0, 30),
            self.finding(30, 60, first_difference=difference(42)),
            self.finding(60, 100, first_difference=difference(61)),
            PieceFinding(Piece("t", 0, "s", 0, 1), None, KmirrorError("no leader")),
        ]
        row = self.row(*findings[::order])
        assert (row.result, row.verdict, row.message) == (
            Outcome.FAILED,
            "DIFFERENT",
            "differs at offset 42: values differ",
        )
        assert VERIFIED.document(row)["firstDifference"] == {
            "offset": 42,
            "kind": "CONTENT",
            "message": "values differ",
            "source": {"offset": 42, "timestamp": 1, "checksum": "a"},
            "destination": None,
        }

    def test_what_could_not_be_compared_is_neither_equal_nor_different(self) -> None:
        trouble = UnreachableError("no leader", "wait", Reason.SOURCE_UNREACHABLE)
        row = self.row(self.finding(0, 50), PieceFinding(Piece("t", 0, "s", 50, 100), None, trouble))
        assert (row.verdict, row.different, row.hint) == ("not-compared", False, "wait")
        assert row.message == "could not be compared: no leader"
        row = self.row(self.finding(0, 100, obstacle="a transaction is open"))
        assert (row.verdict, row.message) == ("not-compared", "could not be compared: a transaction is open")
        assert exit_code_of([row]) == ExitCode.TIMED_OUT, "transactions end"
        assert "kafka-transactions.sh" in str(row.hint)

    def test_a_recreated_source_explains_a_difference(self) -> None:
        row = self.row(self.finding(0, 100, first_difference=difference(0)), recreated="created again")
        assert row.reason is Reason.SOURCE_TOPIC_RECREATED
        assert row.message == "differs at offset 0: values differ; created again"
        row = self.row(self.finding(0, 100), recreated="created again")
        assert (row.result, row.reason, row.notes) == (Outcome.DONE, None, ("created again",))

    def test_both_sides_are_reported(self) -> None:
        row = self.row(self.finding(30, 60, first_difference=difference(42), notes=("n",)), notes=("first",))
        assert row.notes == (
            "source: offset 42, timestamp 1, checksum a",
            "destination: no record at offset 42",
            "first",
            "n",
        )

    def test_filler_is_in_order_until_the_log_has_been_brought_to_its_start(self) -> None:
        found = self.finding(0, 100, first_difference=difference(0, DifferenceKind.FILLER))
        row = self.row(found, unaligned=True)
        assert (row.verdict, row.first_difference) == ("not-compared", None)
        assert row.message == "could not be compared: its log is still being aligned"
        assert row.hint
        assert self.row(found).verdict == "DIFFERENT"
        found = self.finding(0, 100, first_difference=difference(0))
        assert self.row(found, unaligned=True).verdict == "DIFFERENT"

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            (DifferenceKind.MISSING_TAIL, Reason.DESTINATION_TRUNCATED),
            (DifferenceKind.CORRUPT, Reason.CORRUPT_BATCH),
            (DifferenceKind.CONTENT, None),
            (DifferenceKind.EXTRA_TAIL, None),
        ],
    )
    def test_some_differences_have_a_reason(self, kind: DifferenceKind, reason: Reason | None) -> None:
        assert self.row(self.finding(0, 100, first_difference=difference(3, kind))).reason is reason


def verified(partition: int, result: Outcome, message: str, **more: Any) -> VerifyRow:
    return VerifyRow(topic="t", partition=partition, result=result, message=message, **more)


class TestExitCode:
    done = verified(0, Outcome.DONE, "equal up to offset 1")
    different = verified(1, Outcome.FAILED, "differs at offset 0: value differs", different=True)
    refused = verified(2, Outcome.FAILED, "could not be compared: no", reason=Reason.NOT_AUTHORIZED, hint="grant it")
    silent = verified(3, Outcome.FAILED, "could not be compared: gone", reason=Reason.SOURCE_UNREACHABLE)

    @pytest.mark.parametrize(
        ("names", "code"),
        [
            ([], ExitCode.OK),
            (["done"], ExitCode.OK),
            (["done", "different", "refused", "silent"], ExitCode.HISTORIES_DIFFER),
            (["different"], ExitCode.HISTORIES_DIFFER),
            (["done", "refused"], ExitCode.PARTLY_DONE),
            (["refused"], ExitCode.REFUSED),
            (["done", "silent"], ExitCode.PARTLY_DONE),
            (["silent", "silent"], ExitCode.UNREACHABLE),
            (["silent", "refused"], ExitCode.PARTLY_DONE),
        ],
    )
    def test_exit_codes(self, names: list[str], code: ExitCode) -> None:
        rows = [getattr(self, name) for name in names]
        assert exit_code_of(rows) is code
        assert (error_of(rows, code) is None) == (code is ExitCode.OK)

    def test_the_sentence_names_the_first_difference(self) -> None:
        one = error_of([self.done, self.different], ExitCode.HISTORIES_DIFFER)
        assert one
        assert one.message == "t-1 differs at offset 0: value differs"
        several = error_of([self.refused, self.different, self.silent], ExitCode.HISTORIES_DIFFER)
        assert several
        assert several.message == (
            "1 of 3 partitions differ, 2 of 3 partitions could not be compared; "
            "the first, t-1, differs at offset 0: value differs"
        )
        none = error_of([self.done, self.refused], ExitCode.PARTLY_DONE)
        assert none
        assert (none.hint, none.reason) == ("grant it", Reason.NOT_AUTHORIZED)
