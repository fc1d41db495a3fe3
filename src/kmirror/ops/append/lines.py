"""The file of `append`: one JSON object per line, each a record with its partition and offset. Pure.

    {"topic": "orders", "partition": 0, "offset": 100, "timestamp": 1700000000000, "key": "k", "value": "v"}

`key` and `value` are required, so that no tombstone (a null value) is written by mistake. `headers` is a list of
objects with `key` and `value`. With `"encoding": "base64"` keys, values and header values are base64, otherwise text.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import UsageError

_REQUIRED = {"topic": str, "partition": int, "offset": int, "timestamp": int}
_OPTIONAL = {"headers", "encoding"}
_KEYS = {*_REQUIRED, "key", "value", *_OPTIONAL}
_ENCODINGS = ("text", "base64")
_LARGEST = 2**63 - 1


class Line(NamedTuple):
    """One record of the file, and its partition."""

    topic_partition: TopicPartition
    record: Record


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The offsets that a file has for one partition: `start` to `end`, exclusive, without gaps."""

    start: int
    end: int


def read_lines(name: str, lines: Iterable[str], topic: str | None = None) -> Iterator[Line]:
    """Parse the lines of a file; `name` is for messages. Empty lines are skipped.

    All are for `topic`, if that is given: then they may leave it out.

    Raises:
        UsageError: a line is invalid; names it.
    """
    for number, text in enumerate(lines, 1):
        if text.strip():
            try:
                yield _line(text, topic)
            except (ValueError, TypeError) as error:
                raise UsageError(
                    f"{name}, line {number}: {error}", "`kmirror help append-at-offset` shows the format"
                ) from None


def spans_of(name: str, lines: Iterable[Line]) -> dict[TopicPartition, OffsetSpan]:
    """Return the offsets of each partition.

    Raises:
        UsageError: the file has no records, or those of a partition are not at consecutive offsets.
    """
    spans: dict[TopicPartition, OffsetSpan] = {}
    for partition, record in lines:
        before = spans.get(partition)
        if before is not None and record.offset != before.end:
            raise UsageError(
                f"{name}: {partition} has offset {record.offset} after offset {before.end - 1}",
                "sort the lines of a partition by offset, without gaps or duplicates",
            )
        spans[partition] = OffsetSpan(before.start if before else record.offset, record.offset + 1)
    if not spans:
        raise UsageError(f"{name} has no records", "write one JSON object per line")
    return spans


def _line(text: str, topic: str | None) -> Line:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    if topic is not None and found.setdefault("topic", topic) != topic:
        raise ValueError(f"its topic is {found['topic']}, not {topic}")
    if unknown := sorted(found.keys() - _KEYS):
        raise ValueError(f"unknown key {unknown[0]}")
    if missing := sorted(_KEYS - _OPTIONAL - found.keys()):
        raise ValueError(f"{missing[0]} is missing")
    for name, kind in _REQUIRED.items():
        # bool is a subclass of int
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise TypeError(f"{name} is not {'text' if kind is str else 'a whole number'}")
    for name, low, high in (("partition", 0, 2**31 - 1), ("offset", 0, _LARGEST - 1), ("timestamp", -1, _LARGEST)):
        if not low <= found[name] <= high:
            raise ValueError(f"{name} is {found[name]}")
    encoding = found.get("encoding", "text")
    if encoding not in _ENCODINGS:
        raise ValueError(f"encoding is {encoding!r}; it is one of {', '.join(_ENCODINGS)}")
    # half of a surrogate pair cannot be sent: UnicodeEncodeError is a ValueError
    found["topic"].encode()
    headers = tuple(_header(one, encoding) for one in _list(found.get("headers", [])))
    key, value = _bytes("key", found["key"], encoding), _bytes("value", found["value"], encoding)
    record = Record(found["offset"], found["timestamp"], key, value, headers)
    return Line(TopicPartition(found["topic"], found["partition"]), record)


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError("headers is not a list")
    return found


def _header(found: Any, encoding: str) -> tuple[str, bytes | None]:
    if not isinstance(found, dict) or found.keys() != {"key", "value"} or not isinstance(found["key"], str):
        raise ValueError("a header is an object with key, which is text, and value")
    found["key"].encode(errors="surrogateescape")
    return found["key"], _bytes("a header's value", found["value"], encoding)


def _bytes(name: str, found: Any, encoding: str) -> bytes | None:
    if found is None:
        return None
    if not isinstance(found, str):
        raise TypeError(f"{name} is neither text nor null")
    if encoding == "text":
        return found.encode()
    try:
        return base64.b64decode(found, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} is not base64: {error}") from None
