"""No damage that a faulty mirror could do is overlooked, in any kind of log: the first offset that differs is named."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest

from kmirror.engine.compare.difference import DifferenceKind, PartitionComparison
from kmirror.engine.compare.logs import compare_logs
from tests.support.damage import DAMAGES, Damaged, Original, by_kind, longer
from tests.support.log_batches import encode
from tests.support.logs import build_log
from tests.support.made_logs import MadeLog, batches_of

SEEDS = range(45)
AT_LEAST = 1
OLD = {"format 0", "format 1", "a wrapper"}
ANY = {"a batch with holes", "a delete horizon", "a committed transaction", "LogAppendTime", "a late start"}
#: In what kinds of batches all of this may go wrong.
KINDS = dict.fromkeys(DAMAGES, OLD | ANY) | {
    "a header is lost": ANY,
    "a record of an aborted transaction is shown": {"an aborted transaction", "LogAppendTime"},
}


@cache
def original(seed: int) -> Original:
    return Original(build_log(seed))


@cache
def stored(seed: int) -> list[bytearray]:
    one = original(seed)
    return [bytearray(encode(batch)) for batch in one.log.batches if batch.base_offset < one.end]


def source_of(one: Original) -> MadeLog:
    """Return the log as a read_committed fetch at the source gives it."""
    return MadeLog(
        stored(one.log.seed),
        floor=one.log.log_start_offset,
        ended_at=one.end,
        log_end_offset=one.log.log_end_offset,
        compacted=one.is_compacted,
        aborted=one.aborted,
        has_open_transaction=one.end < one.log.log_end_offset,
    )


def copy_of(one: Original, records: Damaged, chance: random.Random) -> MadeLog:
    """Return a log that shows these records: dense batches of any size and codec."""
    end = one.end + records.tail
    stored = batches_of(records.records, chance.choice([1, 3, 10, 50]), chance.choice(["none", "lz4", "zstd"]))
    return MadeLog(stored, one.log.log_start_offset, end, end, one.is_compacted)


def compare(one: Original, copied: Damaged, chance: random.Random) -> PartitionComparison:
    end = one.end + copied.tail
    return compare_logs(source_of(one), copy_of(one, copied, chance), one.log.log_start_offset, end)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_copy_is_equal(seed: int) -> None:
    one = original(seed)
    found = compare(one, Damaged(one.records, 0, DifferenceKind.CONTENT), random.Random(seed))
    assert found.equal, found.first_difference
    assert found.records == len(one.records)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_copy_differs_where_it_is_wrong(damage: str) -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        one, chance = original(seed), random.Random(f"{damage} {seed}")
        for kind, candidates in by_kind(one, DAMAGES[damage].candidates(one)).items():
            copied = DAMAGES[damage].do(one, chance.choice(candidates))
            found = compare(one, copied, chance).first_difference
            assert found is not None, f"seed {seed}: nothing is found at {copied.offset}"
            assert (found.offset, found.kind) == (copied.offset, copied.kind), f"seed {seed}: {found}"
            met[kind] += 1
    assert {kind: met[kind] for kind in KINDS[damage] if met[kind] < AT_LEAST} == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_that_continues_differs_even_if_it_shows_nothing_more(seed: int) -> None:
    one = original(seed)
    copied = longer(one)
    found = compare(one, copied, random.Random(seed)).first_difference
    assert found is not None
    assert (found.offset, found.kind) == (copied.offset, copied.kind)
