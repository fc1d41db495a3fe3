"""A broker's checkpoint files: parsed, and changed for logs that are cut. Pure.

A checkpoint file has a version line (0), a line with the number of entries, and one line per entry: `topic partition
offset` in the files of a log directory, `epoch start-offset` in a partition's `leader-epoch-checkpoint`. A new one is
empty. Any other form raises ValueError with what is wrong; the caller adds which file it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kmirror.cluster.protocol.metadata import TopicPartition

_VERSION = "0"


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the offsets of a log directory's checkpoint file. Raises ValueError."""
    found: dict[TopicPartition, int] = {}
    for line in _entries(text):
        topic, partition, offset = _fields(line, 3)
        found[TopicPartition(topic, int(partition))] = int(offset)
    return found


def lowered(text: str, highest: Mapping[TopicPartition, int]) -> str:
    """Return a checkpoint file in which no entry of these partitions is above its offset here. Raises ValueError.

    Partitions without an entry get none: brokers take that as 0.
    """
    lines = []
    for line in _entries(text):
        topic, partition, offset = _fields(line, 3)
        limit = highest.get(TopicPartition(topic, int(partition)))
        lines.append(line if limit is None or int(offset) <= limit else f"{topic} {partition} {limit}")
    return _written(lines) if text else text


def cut_epochs(text: str, log_end_offset: int) -> str:
    """Return a leader epoch file without the epochs that begin at or after an offset. Raises ValueError."""
    lines = [line for line in _entries(text) if int(_fields(line, 2)[1]) < log_end_offset]
    return _written(lines) if text else text


def parse_topic_id(text: str) -> str:
    """Return the topic id in `partition.metadata`, as Kafka prints it. Raises ValueError."""
    pairs = [line.partition(": ") for line in text.splitlines() if line]
    fields = {key: value.strip() for key, _, value in pairs}
    if fields.get("version") != _VERSION or not fields.get("topic_id"):
        raise ValueError("it is not `version: 0` and a topic id")
    return fields["topic_id"]


def _entries(text: str) -> Iterator[str]:
    lines = text.splitlines()
    if not lines:
        return
    if lines[0] != _VERSION:
        raise ValueError(f"its version is {lines[0]!r}")
    if len(lines) < 2 or lines[1] != str(len(lines) - 2):
        raise ValueError("its number of entries is wrong")
    yield from lines[2:]


def _fields(line: str, count: int) -> list[str]:
    fields = line.split(" ")
    if len(fields) != count or not all(field.lstrip("-").isdigit() for field in fields[-2:]):
        raise ValueError(f"it has the line {line!r}")
    return fields


def _written(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in [_VERSION, str(len(lines)), *lines])
