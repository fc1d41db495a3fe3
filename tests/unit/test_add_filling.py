"""How many offsets hold no record, as one sample of a compacted log shows it."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.batch import BatchHeader
from kmirror.ops.add.filling import holes_by_sample


def header(base: int, last: int, records: int, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, base, 0, 2, 0, attributes, last - base, 0, 0, -1, -1, -1, records)


@pytest.mark.parametrize(
    ("found", "holes"),
    [
        ([header(90, 109, 20)], 0),
        ([header(90, 109, 5)], 75),
        ([header(140, 149, 10)], 40),
        ([header(140, 149, 5)], 40 + 30),
        ([header(5000, 5009, 10)], 100),
        # a marker, as if markers were all that follows
        ([header(150, 150, 1, 0x20)], 100),
        # the header of an empty batch, which stays of the last one of a producer
        ([header(100, 149, 0)], 100),
        ([], 0),
    ],
)
def test_a_sample_represents_what_follows_it(found: list[BatchHeader], holes: int) -> None:
    assert holes_by_sample(found, 100, 200) == holes


def test_records_of_an_aborted_transaction_are_not_shown() -> None:
    assert holes_by_sample([header(100, 109, 10, 0x10)], 100, 200) == 0
    assert holes_by_sample([header(100, 109, 10, 0x10)], 100, 200, is_shown=False) == 100
