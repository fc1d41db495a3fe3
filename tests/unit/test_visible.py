"""Views of a log are compared: equal ones pass, and every kind of difference is found and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log_batches import LogBatch, VisibleRecord, encode
from tests.support.visible import difference, files_difference, latest_values, unsuperseded


def log(*offsets: int) -> list[VisibleRecord]:
    """Return records of three keys in turn."""
    return [VisibleRecord(offset, 1, b"%d" % (offset % 3), b"%d" % offset) for offset in offsets]


WHOLE = log(*range(9))
TOMBSTONE = VisibleRecord(9, 1, b"0", None)


def test_equal_views() -> None:
    assert difference(WHOLE, list(WHOLE)) is None
    assert difference([], []) is None


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"offset": 4}, "found offset 4 "),
        ({"timestamp": 2}, "found offset 3 timestamp 2 "),
        ({"key": None}, "key None"),
        ({"value": b""}, "value b''"),
        ({"value": b"x" * 999}, "(999 bytes, CRC "),
        ({"headers": (("h", None),)}, "headers (('h', None),)"),
    ],
    ids=str,
)
def test_one_record_differs(changes: dict[str, object], reported: str) -> None:
    changed = [*WHOLE[:3], WHOLE[3]._replace(**changes), *WHOLE[4:]]  # type: ignore[arg-type]
    found = difference(WHOLE, changed, "t-0")
    assert found is not None
    assert found.startswith("t-0: wanted offset 3 timestamp 1 key b'0' value b'3' headers (), found ")
    assert reported in found


def test_one_view_is_longer() -> None:
    assert "found no more record (9 and 8 records)" in str(difference(WHOLE, WHOLE[:8]))
    assert "wanted no more record, found offset 8 " in str(difference(WHOLE[:8], WHOLE))


def test_what_cleaners_may_remove() -> None:
    assert unsuperseded(WHOLE, log(0, 4, 6, 7, 8)) is None
    assert unsuperseded(log(0, 4, 6, 7, 8), WHOLE) is None
    assert unsuperseded([*WHOLE, TOMBSTONE], WHOLE) is None


def test_what_cleaners_never_do() -> None:
    assert "the destination lacks offset 8 " in str(unsuperseded(WHOLE, log(*range(8))))
    assert "the source lacks offset 3 " in str(unsuperseded(log(0, 4, 7, 8), WHOLE))
    changed = [one._replace(timestamp=2) for one in log(3, 6, 7, 8)]
    assert "wanted offset 3 timestamp 1 " in str(unsuperseded(WHOLE, changed))


def test_latest_values() -> None:
    assert latest_values(WHOLE) == {b"0": b"6", b"1": b"7", b"2": b"8"}
    assert latest_values([*WHOLE, TOMBSTONE]) == {b"1": b"7", b"2": b"8"}


def replica(folder: Path, *segments: bytes) -> list[Path]:
    """Write the segment files of one broker."""
    folder.mkdir()
    files = [folder / f"{number}.log" for number in range(len(segments))]
    for file, data in zip(files, segments, strict=True):
        file.write_bytes(data)
    return files


def test_replicas_are_compared_to_the_byte(tmp_path: Path) -> None:
    first, second, third = (encode(LogBatch(at, at + 1, tuple(log(at, at + 1)), 1)) for at in (0, 2, 4))
    one = replica(tmp_path / "1", first + second, third)
    same = replica(tmp_path / "2", second, third + third[:20])  # an older segment deleted, a batch half written
    assert files_difference({1: one, 2: same}) is None
    assert files_difference({1: one, 2: replica(tmp_path / "3", first, second)}) == (
        "brokers 1 and 2 differ in the batch at offset 4"
    )
    other = replica(tmp_path / "4", first, second[:-1] + b"?", third)
    assert files_difference({1: one, 2: same, 3: other}) == "brokers 1 and 3 differ in the batch at offset 2"
