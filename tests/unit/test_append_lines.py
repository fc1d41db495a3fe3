"""The file of `kmirror append`: what a line may hold, and which offsets a file may have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import UsageError
from kmirror.ops.append.lines import Line, OffsetSpan, read_lines, spans_of

PLAIN = {"topic": "t", "partition": 1, "offset": 7, "timestamp": 5, "key": "ä", "value": None}


def read(*lines: str) -> list[Line]:
    return list(read_lines("file", lines))


def line(**changes: Any) -> str:
    return json.dumps({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("changes", "record"),
    [
        ({}, Record(7, 5, "ä".encode(), None)),
        ({"key": None, "value": ""}, Record(7, 5, None, b"")),
        ({"encoding": "base64", "key": "AAE=", "value": "/w=="}, Record(7, 5, b"\0\1", b"\xff")),
        (
            {"headers": [{"key": "h", "value": "x"}, {"key": "h", "value": None}]},
            Record(7, 5, "ä".encode(), None, (("h", b"x"), ("h", None))),
        ),
        ({"encoding": "base64", "key": None, "headers": [{"key": "h", "value": "AA=="}]},
         Record(7, 5, None, None, (("h", b"\0"),))),
        ({"timestamp": -1}, Record(7, -1, "ä".encode(), None)),
    ],
)  # fmt: skip
def test_a_line_is_a_record_with_its_place(changes: dict[str, Any], record: Record) -> None:
    assert read(line(**changes), "\n") == [Line(TopicPartition("t", 1), record)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("nothing", "not JSON"),
        ("[]", "not a JSON object"),
        (line(offsett=1), "unknown key offsett"),
        (json.dumps({key: value for key, value in PLAIN.items() if key != "value"}), "value is missing"),
        (line(offset="7"), "offset is not a whole number"),
        (line(partition=True), "partition is not a whole number"),
        (line(topic=5), "topic is not text"),
        (line(offset=-1), "offset is -1"),
        (line(timestamp=2**63), "timestamp is"),
        (line(key=5), "key is neither text nor null"),
        (line(encoding="hex"), "encoding is 'hex'"),
        (line(encoding="base64", key="ä"), "ASCII"),
        (line(encoding="base64", key="A"), "key is not base64"),
        (line(headers={}), "headers is not a list"),
        (line(headers=[{"key": "h"}]), "a header is an object"),
        *((line(**{where: "\ud800"}), "surrogates not allowed") for where in ("topic", "key", "value")),
        (line(headers=[{"key": "\ud800", "value": ""}]), "surrogates not allowed"),
    ],
)
def test_what_a_line_may_not_hold_is_named_with_its_number(text: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=f"file, line 2: .*{wrong}"):
        read(line(), text)


def test_partitions_may_be_mixed_and_each_continues_without_a_gap() -> None:
    found = spans_of("file", read(line(), line(partition=2, offset=0), line(offset=8), line(offset=9)))
    assert found == {TopicPartition("t", 1): OffsetSpan(7, 10), TopicPartition("t", 2): OffsetSpan(0, 1)}


@pytest.mark.parametrize("offsets", [(7, 9), (7, 7), (7, 6)])
def test_a_gap_or_a_repeat_is_refused(offsets: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=rf"file: t-1 has offset {offsets[1]} after offset 7"):
        spans_of("file", read(*(line(offset=offset) for offset in offsets)))


def test_a_file_without_records_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="has no records"):
        spans_of("file", read("\n"))


def test_a_topic_that_is_given_is_that_of_all_lines() -> None:
    without = json.dumps({name: value for name, value in PLAIN.items() if name != "topic"})
    (one,) = read_lines("file", [without], "t")
    assert one == Line(TopicPartition("t", 1), Record(7, 5, "ä".encode(), None))
    with pytest.raises(UsageError, match="its topic is t, not other"):
        list(read_lines("file", [line()], "other"))
