"""Logs are compared though a cleaner was at work on either of them, or on both."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.compare.difference import DifferenceKind, RecordSummary
from kmirror.engine.compare.keys_on_disk import KeysOnDisk, KeyWait, MissingRecord
from kmirror.engine.compare.superseded import Superseded
from kmirror.errors import RefusedError
from tests.support.comparing import compare, difference, record, records
from tests.support.made_logs import MadeLog, batches_of


def _offset(one: Record) -> int:
    return one.offset


class TestCompaction:
    """Both cleaners work on their own; the keys of `record` repeat every seven offsets."""

    def compacted(self, log: Iterable[Record]) -> MadeLog:
        return MadeLog(batches_of(log), compacted=True)

    def cleaned(self, log: list[Record], below: int) -> list[Record]:
        """Remove what has a later record of its key, among the records below an offset."""
        last = {one.key: one.offset for one in log if one.offset < below}
        return [one for one in log if one.offset >= below or last[one.key] == one.offset]

    @pytest.mark.parametrize("below", [7, 14, 50, 100])
    def test_a_missing_record_is_superseded_by_a_later_one_of_its_key(self, below: int) -> None:
        log = records(0, 100)
        missing = below - 7
        for found, side in (
            (compare(self.compacted(log), self.compacted(self.cleaned(log, below))), "destination"),
            (compare(self.compacted(self.cleaned(log, below)), self.compacted(log)), "source"),
        ):
            assert found.equal
            assert found.records == 100 - missing
            reported = [
                note for note in found.notes if f"{missing} records" in note and f"missing in the {side}" in note
            ]
            assert len(reported) == (missing > 0)

    def test_both_cleaners_may_have_come_to_different_places(self) -> None:
        log = records(0, 100)
        assert compare(self.compacted(self.cleaned(log, 40)), self.compacted(self.cleaned(log, 80))).equal

    def test_a_topic_that_is_not_compacted_has_no_such_excuse(self) -> None:
        log = records(0, 100)
        found = difference(self.compacted(log), MadeLog(batches_of(self.cleaned(log, 50))))
        assert (found.offset, found.kind) == (0, DifferenceKind.MISSING)

    def test_the_last_record_of_a_key_must_be_there(self) -> None:
        log = records(0, 100)
        lacking = [one for one in self.cleaned(log, 50) if one.offset != 97]
        found = difference(self.compacted(log), self.compacted(lacking))
        # 97 is the last of its key: 43 to 48 and 49 have later ones, what 97 itself superseded is there
        assert (found.offset, found.kind) == (97, DifferenceKind.MISSING)
        assert found.source
        assert found.source.timestamp == 1_700_000_000_097

    def test_the_first_unexplained_record_of_a_key_is_reported(self) -> None:
        log = records(0, 100)
        lacking = [one for one in log if one.key != b"k3" or one.offset < 50]
        found = difference(self.compacted(lacking), self.compacted(log))
        assert (found.offset, found.kind) == (52, DifferenceKind.EXTRA)

    def test_the_later_record_may_be_after_the_range(self) -> None:
        log = records(0, 100)
        cleaned = self.compacted(self.cleaned(log, 100))
        found = compare(self.compacted(log), cleaned, 0, 50)
        assert found.equal
        assert cleaned.scans == 1

    def test_the_later_record_may_lie_in_a_batch_that_is_the_same_on_both_sides(self) -> None:
        log = [record(i, key=b"same" if i in (3, 12) else b"%d" % i) for i in range(30)]
        stored = batches_of(log[:3] + log[4:10]) + batches_of(log[10:20]) + batches_of(log[20:], size=3)
        assert compare(self.compacted(log), MadeLog(stored, compacted=True), end=30).equal

    def test_an_earlier_record_of_its_key_is_no_later_one(self) -> None:
        log = records(0, 20)
        found = difference(self.compacted(log), self.compacted(log[:15] + log[16:]), end=20)
        assert (found.offset, found.kind) == (15, DifferenceKind.MISSING)

    def test_of_several_unexplained_records_the_first_is_reported(self) -> None:
        log = records(0, 100)
        for keys in ((b"k3", b"k5"), (b"k5", b"k3")):
            lacking = [one for one in log if one.key not in keys]
            assert difference(self.compacted(log), self.compacted(lacking)).offset == 3
        both = difference(
            self.compacted([one for one in log if one.key != b"k2"]),
            self.compacted([one for one in log if one.key != b"k3"]),
        )
        assert (both.offset, both.kind) == (2, DifferenceKind.EXTRA)

    def test_what_was_searched_for_is_not_searched_again(self) -> None:
        log = self.compacted(records(0, 10))
        missing = Superseded(log, log)
        assert missing.excuses(record(20, key=b"gone"))
        assert missing.unexplained(10, 10) is not None
        assert len(missing) == 0

    def test_a_differing_record_is_reported_unless_an_earlier_one_is_missing(self) -> None:
        log = records(0, 100)
        differing = [record(one.offset, value=b"x") if one.offset == 70 else one for one in self.cleaned(log, 50)]
        found = difference(self.compacted(log), self.compacted(differing))
        assert (found.offset, found.kind) == (70, DifferenceKind.CONTENT)
        lacking = [one for one in differing if one.key != b"k3"]
        found = difference(self.compacted(log), self.compacted(lacking))
        assert (found.offset, found.kind) == (3, DifferenceKind.MISSING)

    def test_what_supersedes_does_not_differ_itself(self) -> None:
        """Every record is one offset further on; the first ones of their keys are at their own by chance."""
        log = [record(i, key=b"k%d" % i) for i in range(20)]
        shifted = [*log[:8], *(replace(one, offset=one.offset + 1) for one in log[8:19])]
        found = difference(self.compacted(log), self.compacted(shifted), end=20)
        assert (found.offset, found.kind, found.destination) == (8, DifferenceKind.MISSING, None)
        found = difference(self.compacted(shifted), self.compacted(log), end=20)
        assert (found.offset, found.kind, found.source) == (8, DifferenceKind.EXTRA, None)

    def test_a_record_whose_key_still_follows_may_be_missing_before_a_difference(self) -> None:
        log = [record(i, key=b"same" if i in (3, 8) else b"k%d" % i) for i in range(20)]
        changed = [replace(one, timestamp=5) if one.offset == 8 else one for one in log if one.offset != 3]
        assert difference(self.compacted(log), self.compacted(changed), end=20).offset == 8

    def test_one_record_at_another_offset_is_reported_where_it_should_be(self) -> None:
        """A key's last record has moved into a hole: missing here, standing alone there."""
        log = [record(i, key=b"k%d" % i) for i in range(20) if i != 12]
        for start, to in ((11, 12), (13, 12)):
            moved = sorted((replace(one, offset=to) if one.offset == start else one for one in log), key=_offset)
            # a range that ends with offset 12 takes what is at 13 for a later record
            for end in (20, 13) if start == 11 else (20,):
                found = difference(self.compacted(log), self.compacted(moved), end=end)
                wanted = (11, DifferenceKind.MISSING) if start == 11 else (12, DifferenceKind.EXTRA)
                assert (found.offset, found.kind) == wanted, end
                found = difference(self.compacted(moved), self.compacted(log), end=end)
                wanted = (11, DifferenceKind.EXTRA) if start == 11 else (12, DifferenceKind.MISSING)
                assert (found.offset, found.kind) == wanted, end

    def test_another_record_of_the_key_supersedes_even_if_only_one_log_has_it(self) -> None:
        log = [record(i, key=b"k%d" % i) for i in range(20) if i != 12]
        other = sorted([*(one for one in log if one.offset != 11), record(12, key=b"k11", value=b"x")], key=_offset)
        found = difference(self.compacted(log), self.compacted(other), end=20)
        assert (found.offset, found.kind) == (12, DifferenceKind.EXTRA)

    def test_the_same_content_written_twice_is_superseded_all_the_same(self) -> None:
        """Both cleaners have been there, each up to another record of the key; the last one is on both sides."""
        twice = [record(i, key=b"same", value=b"", headers=(), timestamp=7) for i in range(3)]
        log = [*twice, *(record(i, key=b"k%d" % i) for i in range(3, 10))]
        later = [*log[:1], *log[2:]]
        assert compare(self.compacted(log[1:]), self.compacted(later), end=10).equal
        assert compare(self.compacted(later), self.compacted(log[1:]), end=10).equal
        gone = difference(self.compacted(log[1:]), self.compacted([*log[:1], *log[3:]]), end=10)
        assert (gone.offset, gone.kind) == (0, DifferenceKind.EXTRA)

    def test_records_without_a_key_are_removed_by_every_cleaner(self) -> None:
        log = [record(offset, key=b"k%d" % offset if offset % 3 == 0 else None) for offset in range(10)]
        cleaned = [one for one in log if one.key is not None]
        for side, other in ((log, cleaned), (cleaned, log)):
            found = compare(self.compacted(side), self.compacted(other), end=10)
            assert (found.equal, found.records) == (True, 4)
            assert any("6 records" in note and "removed by compaction" in note for note in found.notes)
        lost = difference(MadeLog(batches_of(log)), MadeLog(batches_of(cleaned)), end=10)
        assert (lost.offset, lost.kind) == (1, DifferenceKind.MISSING)

    def test_a_record_without_a_key_is_lost_if_an_earlier_one_is_left(self) -> None:
        """Cleaners begin at the log's start."""
        log = [record(offset, key=None) for offset in range(30)]
        lacking = [one for one in log if not 12 <= one.offset < 15]
        for source, destination, kind in (
            (log, lacking, DifferenceKind.MISSING),
            (lacking, log, DifferenceKind.EXTRA),
        ):
            for start in (0, 5, 12):
                found = difference(self.compacted(source), self.compacted(destination), start, end=30)
                assert (found.offset, found.kind) == (12, kind), start
            assert compare(self.compacted(source), self.compacted(destination), 15, end=30).equal

    def test_a_record_without_a_key_is_lost_if_one_is_left_after_cleaned_ones(self) -> None:
        log = [record(offset, key=None if offset % 2 else b"k%d" % offset) for offset in range(60)]
        lacking = [one for one in log if one.key is not None or (one.offset > 20 and one.offset != 51)]
        one, other = self.compacted(log), self.compacted(lacking)
        found = difference(one, other, end=60)
        assert (found.offset, found.kind) == (51, DifferenceKind.MISSING)
        assert other.scans == 2, "the log is not read again for each missing record"
        found = difference(other, one, end=60)
        assert (found.offset, found.kind) == (51, DifferenceKind.EXTRA)

    def test_a_record_without_a_key_at_another_offset_is_a_difference(self) -> None:
        log = [record(i, key=None if i in (4, 11) else b"k%d" % i) for i in range(20) if i != 12]
        for left in (log, [one for one in log if one.offset != 4]):
            moved = [replace(one, offset=12) if one.offset == 11 else one for one in left]
            for source, destination in ((left, moved), (moved, left)):
                found = difference(self.compacted(source), self.compacted(destination), end=20)
                assert found.offset == (11 if left is log else 12)
                assert found.kind in (DifferenceKind.MISSING, DifferenceKind.EXTRA)

    def test_a_foreign_record_without_a_key_in_a_hole_is_a_difference(self) -> None:
        log = [record(i, key=None) for i in range(20) if i != 12]
        foreign = sorted([*log, record(12, key=None)], key=_offset)
        assert difference(self.compacted(log), self.compacted(foreign), end=20).kind is DifferenceKind.EXTRA

    def test_a_cleaner_may_remove_records_without_a_key_while_logs_are_compared(self) -> None:
        """The earlier ones were there when they were compared; when the log is read again they are gone."""

        class Cleaned(MadeLog):
            def scan(self, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]:
                return (one for one in super().scan(start, end) if one.key is not None)

        log = [record(i, key=b"k%d" % i if i % 3 == 0 else None) for i in range(30)]
        lacking = batches_of(one for one in log if one.key is not None or not 10 <= one.offset < 20)
        assert compare(self.compacted(log), Cleaned(lacking, compacted=True), end=19).equal

    def test_a_tombstone_goes_when_its_key_is_gone(self) -> None:
        log = [*records(0, 50), record(50, key=b"k3", value=None), *records(51, 58)]
        del log[52]  # the record of k3 behind the tombstone
        gone = [one for one in log if one.key != b"k3"]
        assert compare(self.compacted(log), self.compacted(gone), end=58).equal
        assert compare(self.compacted(gone), self.compacted(log), end=58).equal

    def test_a_tombstone_must_not_go_before_what_it_deletes(self) -> None:
        log = [*records(0, 50), record(50, key=b"k3", value=None)]
        found = difference(self.compacted(log), self.compacted(log[:50]), end=51)
        assert (found.offset, found.kind) == (50, DifferenceKind.MISSING)
        found = difference(self.compacted(log[:50]), self.compacted(log), end=51)
        assert (found.offset, found.kind) == (50, DifferenceKind.EXTRA)

    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_few_keys_are_kept_at_a_time(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", most)
        log = [*records(0, 50), record(50, key=b"k3", value=None), *records(51, 58)]
        del log[52]
        cleaned = [one for one in self.cleaned(log, 50) if one.key != b"k3"]
        one, other = self.compacted(log), self.compacted(cleaned)
        assert compare(one, other, end=58).equal
        assert compare(other, one, end=58).equal
        assert other.scans == 2, "the log is read again once, however many keys wait"
        lacking = self.compacted([one for one in cleaned if one.key != b"k5"])
        found = difference(one, lacking, end=58)
        assert (found.offset, found.kind) == (5, DifferenceKind.MISSING)

    @pytest.mark.parametrize("seed", range(60))
    def test_what_waits_on_disk_is_judged_like_what_waits_in_memory(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chance = random.Random(seed)
        log = [
            record(i, key=b"k%d" % chance.randrange(25), value=b"v%d" % i if chance.random() < 0.8 else None)
            for i in range(150)
        ]
        sides: list[list[Record]] = []
        for _ in range(2):
            kept = self.cleaned(log, chance.randrange(150))
            gone = {one.key for one in log if chance.random() < 0.02}
            last = {one.key: one for one in log}
            kept = [one for one in kept if one.key not in gone or last[one.key].value is not None]
            sides.append([one for one in kept if chance.random() > 0.01])
        if seed % 2:
            # the comparison ends early, and what waits then may be explained by what follows
            changed = chance.choice(sides[1]).offset
            sides[1] = [replace(one, timestamp=5) if one.offset == changed else one for one in sides[1]]
        end = chance.choice((150, 150, 75))
        found = []
        for most in (100_000, 0, 1, 7):
            monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", most)
            found.append(compare(self.compacted(sides[0]), self.compacted(sides[1]), end=end))
        assert found[1:] == found[:1] * 3

    @pytest.mark.parametrize("most", [0, 100_000])
    def test_a_tombstone_after_a_difference_must_not_go_before_what_it_deletes(
        self, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", most)
        log = [record(i, key=b"same" if i in (0, 5, 15) else b"k%d" % i) for i in range(20)]
        log[15] = replace(log[15], value=None)
        changed = [replace(one, timestamp=5) if one.offset == 10 else one for one in log]
        lacking = [one for one in changed if one.offset not in (5, 15)]
        found = difference(self.compacted(log), self.compacted(lacking), end=20)
        assert (found.offset, found.kind) == (5, DifferenceKind.MISSING)
        found = difference(self.compacted(log), self.compacted([one for one in lacking if one.offset]), end=20)
        assert (found.offset, found.kind) == (10, DifferenceKind.CONTENT)

    def test_more_waits_than_one_chunk_of_a_file_holds(self) -> None:
        on_disk = KeysOnDisk()
        with closing(on_disk):
            keys = [b"%016d" % number for number in range(1000)]
            for number, key in enumerate(keys):
                on_disk.add(key, KeyWait(MissingRecord(RecordSummary(number, 5, "ab" * 16)), number, False))
            for again in range(2):
                for number, key in enumerate(keys):
                    if number != 700:
                        on_disk.seen(key, 1000 * (again + 1) + number)
            assert on_disk.unexplained() == MissingRecord(RecordSummary(700, 5, "ab" * 16))

    @pytest.mark.parametrize("buffered", [4096, 1 << 20], ids=["on the way", "at the end"])
    def test_a_full_disk_is_a_refusal(self, buffered: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", 0)
        full = partial(Path("/dev/full").open, "w+b", buffering=buffered)
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full())
        log = [record(i, key=b"same") for i in range(1000)]
        with pytest.raises(RefusedError, match=f"kept in {tempfile.gettempdir()}: No space left on device"):
            compare(self.compacted(log), self.compacted(log[999:]), end=1000)

    def test_a_missing_folder_for_temporary_files_is_a_refusal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", 0)
        monkeypatch.setattr(tempfile, "tempdir", missing := str(tmp_path / "none"))
        log = records(0, 50)
        with pytest.raises(RefusedError, match=f"kept in {missing}: No such file or directory"):
            compare(self.compacted(log), self.compacted(self.cleaned(log, 40)))
