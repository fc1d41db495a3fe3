"""The fork of two logs, searched by what applications are shown of them: the right offset, by few reads."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from kmirror.engine.histories.fork import Fork, find_fork
from kmirror.engine.histories.stretches import DamagedLogError, LogEnds, Section, Sections
from tests.support.forked_logs import HOLE, QUIET, DenseLog, PackedLog, forked_logs, search, what_is_right
from tests.support.histories import FOREIGN_ID, OWN_ID, WHOLE, Log, batch, build, marker, without
from tests.support.log_batches import encode


def log(says: list[str], longest: int = 1, start: int = 0) -> PackedLog:
    return PackedLog(says, start, random.Random(1), longest)


def found(source: PackedLog, destination: PackedLog, section_bytes: int = 1, hint: int | None = None) -> Fork:
    fork = search(source, destination, section_bytes, hint)[0]
    assert fork == what_is_right(source, destination)
    return fork


# -- what is found -----------------------------------------------------------------------------------------------------


def test_the_first_offset_that_differs() -> None:
    for fork in range(100):
        destination = log(["s"] * fork + ["d"] * (100 - fork), 7)
        assert found(log(["s"] * 130, 5), destination) == Fork(fork, True, fork - 1 if fork else None)


def test_logs_of_which_one_is_longer_part_where_the_other_ends() -> None:
    assert found(log(["s"] * 50, 5), log(["s"] * 30)) == Fork(30, False, 29)
    assert found(log(["s"] * 30), log(["s"] * 50, 5)) == Fork(30, False, 29)


def test_logs_with_nothing_in_common() -> None:
    assert found(log(["s"] * 5, start=20), log(["s"] * 20)) == Fork(20, False, None)
    assert found(log([], start=20), log([], start=20)) == Fork(20, False, None)
    assert found(log(["s"] * 50, 5), log(["d"] * 50, 9)) == Fork(0, True, None)


def test_what_a_cleaner_left_of_a_batch_agrees_up_to_its_last_record() -> None:
    """The same bytes in both logs; the batch still takes the offsets of the records behind that."""
    stored = [encode(without(batch(0, 10), 3, 8, 9)), encode(batch(10, 10)), encode(batch(10, 10, "d"))]
    searching = find_fork(LogEnds(0, 20, 0, 20))
    assert next(searching) == (12, 12)
    theirs, ours = (Section(12, memoryview(stored[0] + behind)) for behind in stored[1:])
    with pytest.raises(StopIteration) as done:
        searching.send(Sections(ours._replace(offset=0), theirs._replace(offset=0)))
    assert done.value.value == Fork(10, True, 7)


def test_ends_may_lie_in_batches() -> None:
    source, destination = DenseLog(1_000), DenseLog(1_000)
    for start, end in ((50, 250), (199, 201), (230, 240)):
        destination.start, destination.end = start, end
        assert search(source, destination)[0] == Fork(end, False, end - 1)


def test_offsets_below_a_start_are_not_compared_even_in_the_same_batch() -> None:
    stored = batch(0, 10)
    changed = replace(
        stored, records=(*stored.records[:2], stored.records[2]._replace(value=b"x"), *stored.records[3:])
    )
    searching = find_fork(LogEnds(5, 10, 0, 10))
    assert next(searching) == (5, 5)
    with pytest.raises(StopIteration) as done:
        searching.send(Sections(Section(5, memoryview(encode(stored))), Section(5, memoryview(encode(changed)))))
    assert done.value.value == Fork(10, False, 9)


def test_a_hole_is_stepped_over() -> None:
    source = log(["s"] * 50 + [HOLE] * 5_000 + ["s"] * 50)
    destination = log(["s"] * 5_060 + ["d"] * 40)
    for one, other in ((source, destination), (destination, source)):
        fork, reads = search(one, other)
        assert fork == Fork(5_060, True, 5_059)
        assert len(reads) < 40
    behind = log(["s"] * 2_000 + ["d"] * 3_100)
    fork, reads = search(source, behind)
    assert fork == Fork(5_050, True, 49)
    assert len(reads) < 40


def test_what_cannot_be_compared_is_between_agreement_and_fork() -> None:
    """All that is known is that the histories parted somewhere between."""
    source = log(["s"] * 40 + [HOLE] * 20 + ["s"] * 40, 5)
    assert found(source, log(["s"] * 50 + ["d"] * 50, 5)) == Fork(60, True, 39)
    assert found(log(["s"] * 40, start=60), log(["d"] * 100, 5)) == Fork(60, True, None)


def test_markers_match_whatever_shows_nothing() -> None:
    shared = ["s"] * 10 + [QUIET] * 20
    assert found(log([*shared, *"sss"], 5), log([*shared, *"sss"])) == Fork(33, False, 32)
    assert found(log([*shared, *"sss"], 5), log([*shared, "s", QUIET, "s"])) == Fork(31, True, 30)
    assert found(log([*shared, *"sss"], 50), log([*shared[:-5], *"ssssssss"])) == Fork(25, True, 9)


@pytest.mark.parametrize("hint", [None, 31, 150, 200])
def test_a_mirrors_markers_are_no_fork_below_records_that_agree(hint: int | None) -> None:
    """The source of the copy shows records there since another of its replicas leads it."""
    uneven = ["s"] * 30 + [QUIET] * 50 + ["s"] * 60 + [QUIET] * 3 + ["s"] * 57
    for longest in (1, 7, 300):
        one, other = log(["s"] * 200 + ["d"] * 100, longest), log([*uneven, *["b"] * 100])
        assert search(one, other, hint=hint)[0] == Fork(200, True, 199)
        assert search(other, one, hint=hint)[0] == Fork(200, True, 199)


def test_a_mirrors_markers_are_a_fork_below_records_that_differ() -> None:
    """Seven records may agree by coincidence."""
    for agreeing in (0, 7):
        rewritten = log([*["s"] * 30, *["x"] * 50, *["s"] * agreeing, *["x"] * 100])
        copied = log([*["s"] * 30, *[QUIET] * 50, *["s"] * agreeing, *["s"] * 100])
        for one, other in ((rewritten, copied), (copied, rewritten)):
            assert search(one, other)[0] == Fork(30, True, 29)


@pytest.mark.parametrize("producer_id", [FOREIGN_ID, OWN_ID])
def test_the_markers_of_others_are_a_fork(producer_id: int) -> None:
    marked = Log([batch(0, 30), *(marker(offset, producer_id) for offset in range(30, 40)), batch(40, 400)])
    whole = Log([batch(first, 40) for first in range(0, 440, 40)])
    whole.batches[-1] = batch(400, 40, "d")
    fork = search(marked, whole, hint=40)[0]
    assert fork == (Fork(400, True, 399) if producer_id == OWN_ID else Fork(30, True, 29))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        range(60),
        pytest.param(range(60, 300), marks=pytest.mark.slow),
        pytest.param(range(300, 1000), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_logs_of_all_kinds(seeds: range) -> None:
    """Holes on both sides, transactions, retention, any batches, forks anywhere and hints that are right or wrong."""
    forks = inexact = 0
    for seed in seeds:
        logs, rng = forked_logs(seed), random.Random(seed)
        shared = logs.shared
        hint = rng.choice([None, logs.fork.offset, rng.randint(0, shared.stop + 5)])
        for section_bytes in (1, 2000, WHOLE):
            fork, reads = search(logs.source, logs.destination, section_bytes, hint)
            # what agrees above a marker is another search
            assert len(reads) <= 2 * (64 + 5 * math.log2(len(shared) + 1)), (seed, section_bytes)
            if section_bytes == 1 and not fork.is_exact:
                # one marker at a time, some silences are too long
                assert (-1 if fork.agreed_at is None else fork.agreed_at) < logs.fork.offset <= fork.offset, seed
                inexact += 1
                continue
            assert fork == logs.fork, (seed, section_bytes, hint)
        forks += logs.fork.contradicts
    assert forks > 0.4 * len(seeds)
    assert inexact < 0.1 * len(seeds)


@pytest.mark.parametrize("seeds", [range(80), pytest.param(range(80, 600), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("section_bytes", [1, 300])
def test_histories_of_mirrors(section_bytes: int, seeds: range) -> None:
    for seed in seeds:
        history = build(seed)
        source, destination = history.source, history.destination
        low = max(source.start, destination.start)
        high = max(low, min(source.shown_end, destination.shown_end))
        said = {offset: agree for offset, agree in history.evidence().items() if offset < high}
        offset = min((offset for offset, agree in said.items() if not agree), default=high)
        agreed_at = max((one for one, agree in said.items() if agree and one < offset), default=None)
        searching = find_fork(LogEnds(source.start, source.shown_end, destination.start, destination.shown_end))
        fork = None
        try:
            here, there = next(searching)
            while True:
                ours = None if here is None else destination.read(here, section_bytes, high)
                theirs = None if there is None else source.read(there, section_bytes, high)
                here, there = searching.send(Sections(ours, theirs))
        except StopIteration as done:
            fork = done.value
        assert fork == Fork(offset, offset in said, agreed_at), seed


# -- coincidences ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_that_are_the_same_behind_the_fork_are_no_agreement() -> None:
    """Up to seven in a row: a probe that lands on them is not content."""
    for seed in range(150):
        rng = random.Random(seed)
        fork = rng.randint(0, 300)
        destination = ["s"] * fork + ["d"]
        while len(destination) < 400:
            destination += ["s"] * rng.randint(0, 7) + ["d"]
        assert found(log(["s"] * 400, rng.choice([1, 4, 50])), log(destination, rng.choice([1, 4, 50])))


def test_after_a_long_coincidence_it_is_a_contradiction_all_the_same() -> None:
    """Above the first one: nothing that was read shows it. With a hint, it is found."""
    source = log(["s"] * 400)
    destination = log(["s"] * 100 + ["d"] * 100 + ["s"] * 100 + ["d"] * 100)
    for hint in (None, 150, 400):
        fork = search(source, destination, 1, hint)[0]
        assert fork.contradicts
        assert fork.offset in (100, 300)
    for hint in (100, 101):
        assert search(source, destination, 1, hint)[0] == Fork(100, True, 99)


# -- hints -------------------------------------------------------------------------------------------------------------


def test_a_right_hint_takes_one_read_of_each_log() -> None:
    source, destination = DenseLog(10**6), DenseLog(10**6, 123_400)
    assert search(source, destination, WHOLE // 64, 123_400) == (Fork(123_400, True, 123_399), [(123_392, 123_392)])


@pytest.mark.parametrize("hint", [-5, 0, 1, 123_399, 123_401, 10**6, 10**6 + 1, 10**9])
def test_a_wrong_hint_costs_two_probes(hint: int) -> None:
    source, destination = DenseLog(10**6), DenseLog(10**6, 123_400)
    fork, reads = search(source, destination, 1, hint)
    assert fork == Fork(123_400, True, 123_399)
    assert len(reads) <= len(search(source, destination)[1]) + 2


# -- how many reads ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("length", [10**3, 10**4, 10**5, 10**6, 10**9])
def test_reads_grow_with_the_logarithm(length: int) -> None:
    rng = random.Random(length)
    for batch_records in (1, 100):
        for fork in [0, 1, length - 1, *(rng.randrange(length) for _ in range(20))]:
            source, destination = DenseLog(length), DenseLog(length, fork, batch_records)
            result, reads = search(source, destination, 1000)
            assert result == Fork(fork, True, fork - 1 if fork else None)
            assert len(reads) <= 6 + 1.3 * math.log2(length), (fork, batch_records)


def test_a_fork_near_the_end_takes_fewer() -> None:
    for distance in (1, 10, 100, 1000):
        fork = 10**9 - distance
        result, reads = search(DenseLog(10**9), DenseLog(10**9, fork), 1000)
        assert result.offset == fork
        assert len(reads) <= 4 + 2 * math.log2(distance)


def test_the_same_logs_take_one_read() -> None:
    assert search(DenseLog(10**6), DenseLog(10**6 - 5, batch_records=7), 1000) == (
        Fork(10**6 - 5, False, 10**6 - 6),
        [(10**6 - 13, 10**6 - 13)],
    )


@pytest.mark.slow
def test_a_long_range_that_shows_nothing_is_not_read_completely() -> None:
    """One record is hidden among six thousand markers, where the source shows none."""
    quiet = [QUIET] * 3_000
    source = log(["s"] * 50 + quiet + [QUIET] + quiet + ["s"] * 50, 100)
    for hidden in (QUIET, "d"):
        destination = log(["s"] * 50 + quiet + [hidden] + quiet + ["d"] * 50, 5)
        fork, reads = search(source, destination)
        assert fork == Fork(6_051, True, 49, is_exact=False)
        assert len(reads) < 64 + 100
        assert search(source, destination, WHOLE)[0] == what_is_right(source, destination)


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_damaged_batch_is_named(side: str) -> None:
    good = encode(batch(0, 5))
    bad = bytes([*good[:80], good[80] ^ 4, *good[81:]])
    searching = find_fork(LogEnds(0, 5, 0, 5))
    next(searching)
    here, there = (good, bad) if side == "source" else (bad, good)
    with pytest.raises(DamagedLogError, match=f"the {side}'s batch at offset 0 is corrupt: its checksum"):
        searching.send(Sections(Section(0, memoryview(here)), Section(0, memoryview(there))))


def test_records_that_cannot_be_read_are_named() -> None:
    good, other = encode(batch(0, 5)), encode(replace(batch(0, 5, "d"), codec="zstd"))
    broken = memoryview(_with_records(other, b"no zstd"))
    searching = find_fork(LogEnds(0, 5, 0, 5))
    next(searching)
    with pytest.raises(DamagedLogError, match="the source's batch at offset 0 is corrupt"):
        searching.send(Sections(Section(0, memoryview(good)), Section(0, broken)))


def _with_records(stored: bytes, records: bytes) -> bytes:
    from tests.support.made_logs import stamped

    return bytes(stamped(bytearray(stored[:61] + records)))
