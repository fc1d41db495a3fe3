"""Whether records and batches are stored as sent: fields, timestamps, codecs, sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kmirror.cluster.append import as_run
from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    COMPRESSION_TYPES,
    PRODUCER_POSITION,
    batch_headers,
)
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.pieces import Run
from kmirror.errors import BrokerError
from kmirror.ops.base.context import now_ms
from kmirror.ops.probe.guarantees import Guarantee, broken, holds, weaker
from kmirror.ops.probe.partition import ProbedBatch, ProbePartition

RECORDS, BATCHES, TIMESTAMPS, BATCH_SIZE = "records", "batches", "timestamps", "batch size"
_FIELDS = ("offset", "timestamp", "key", "value", "headers")
_OLD_MS = 1_000_000_000_000
_AHEAD_MS = 365 * 86_400_000
#: The largest batch to send: more than brokers accept by default, and as much as services usually do.
_LARGEST = 8 << 20
_SMALLEST = 64 << 10
_REJECTED = "partitions whose source has such batches become FAILED (RECORD_REJECTED)"


def record_guarantees(trial: ProbePartition, limit: int | None) -> list[Guarantee]:
    """Append batches of every codec, old and new ones, and large ones, and compare what is stored.

    `limit` is the largest batch that the topic may have, None if nothing limits it.
    """
    at_ms = now_ms()
    sent: list[Run] = []
    refused: dict[str, BrokerError] = {}
    for codec in COMPRESSION_TYPES:
        _append(trial, _records(trial, at_ms), codec, sent, refused, codec)
    untimely: dict[str, BrokerError] = {}
    for age, timestamp in (("of 2001", _OLD_MS), ("of next year", at_ms + _AHEAD_MS)):
        _append(trial, _records(trial, timestamp), "none", sent, untimely, age)
    stored = list(trial.stored(0, trial.out.log_end_offset))
    return [
        _kept(sent, stored),
        _unchanged(sent, stored, refused),
        _timely(untimely),
        _largest(trial, limit),
    ]


def _records(trial: ProbePartition, timestamp: int) -> list[Record]:
    """Return records with everything that a record may have, at the log end."""
    at = trial.out.log_end_offset
    headers = (("h", b"1"), ("h", None), ("", b""))
    return [
        Record(at, timestamp, None, b"value"),
        Record(at + 1, timestamp - 1000, b"key", None, headers),
        Record(at + 2, timestamp + 1, b"", b"v" * 500),
    ]


def _append(
    trial: ProbePartition,
    records: Sequence[Record],
    codec: str,
    sent: list[Run],
    refused: dict[str, BrokerError],
    what: str,
) -> None:
    run = as_run(make_batch(records, compression_type=codec))
    try:
        trial.out.append_run(run)
        sent.append(run)
    except BrokerError as error:
        refused[what] = error
        trial.out.resume(trial.out.read_state())


def _kept(sent: Sequence[Run], stored: Sequence[ProbedBatch]) -> Guarantee:
    """Compare records, in whatever batches they are stored."""
    wanted = [record for run in sent for record in _records_of(run)]
    found = [record for one in stored for record in read_records(one.data, one.header._replace(position=0))]
    differing = {
        name for a, b in zip(wanted, found, strict=False) for name in _FIELDS if getattr(a, name) != getattr(b, name)
    }
    if len(wanted) != len(found):
        return broken(RECORDS, f"of {len(wanted)} appended records {len(found)} are returned")
    if differing:
        names = ", ".join(name for name in _FIELDS if name in differing)
        return broken(RECORDS, f"the broker changes them: {names} of stored records differ from what was sent")
    return holds(RECORDS, "offset, timestamp, key, value and headers are kept")


def _records_of(run: Run) -> Iterator[Record]:
    """Yield the records of a batch at the offsets it was sent for."""
    (header,) = batch_headers(run.data)
    return read_records(run.data, header._replace(base_offset=run.base_offset))


def _unchanged(sent: Sequence[Run], stored: Sequence[ProbedBatch], refused: dict[str, BrokerError]) -> Guarantee:
    """Compare batches: attributes and times in the header, and the section of records."""
    by_offset = {one.header.base_offset: one for one in stored}
    changed = []
    for run in sent:
        (header,) = batch_headers(run.data)
        one = by_offset.get(run.base_offset)
        if one is None:
            changed.append(f"{header.compression_type} to other batches")
        elif one.header.compression_type != header.compression_type:
            changed.append(f"{header.compression_type} to {one.header.compression_type}")
        elif _content(one.data) != _content(run.data):
            changed.append(f"{header.compression_type} with other bytes")
    notes = []
    if refused:
        named = ", ".join(f"{codec} ({code_name(error.code)} {error.code})" for codec, error in refused.items())
        notes.append(f"refused: {named}; {_REJECTED}")
    if changed:
        notes.append(
            f"rewritten: {', '.join(changed)}; kmirror compares records, not bytes, so only the space they take differs"
        )
    if notes:
        return weaker(
            BATCHES, "; ".join(notes), "ask who runs the cluster for compression.type=producer and all codecs"
        )
    return holds(BATCHES, f"stored byte for byte with every codec ({', '.join(COMPRESSION_TYPES)})")


def _content(batch: memoryview) -> tuple[bytes, bytes]:
    """Return what a batch says besides its place and its producer."""
    return bytes(batch[ATTRIBUTES_POSITION:PRODUCER_POSITION]), bytes(batch[BATCH_OVERHEAD:])


def _timely(untimely: dict[str, BrokerError]) -> Guarantee:
    if not untimely:
        return holds(TIMESTAMPS, "records of any time are accepted")
    named = ", ".join(f"{age} ({code_name(error.code)} {error.code})" for age, error in untimely.items())
    return weaker(
        TIMESTAMPS,
        f"records are refused that are {named}; {_REJECTED}",
        "ask who runs the cluster to allow any message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    )


def _largest(trial: ProbePartition, limit: int | None) -> Guarantee:
    """Send ever smaller batches until one is accepted."""
    size = _LARGEST if limit is None else min(limit, _LARGEST)
    why = ""
    while size >= _SMALLEST:
        run = _sized(trial.out.log_end_offset, size)
        trial.out.assign_sequence(run)
        answer = trial.out.send(run)
        if answer is not None and not answer.error_code:
            trial.out.appended(run)
            if not why and limit is None:
                return holds(BATCH_SIZE, f"batches of {size:,} bytes are accepted")
            return weaker(
                BATCH_SIZE,
                f"batches of {size:,} bytes are accepted, {why or 'larger ones forbidden by policy'}; {_REJECTED}",
                "ask who runs the cluster for a larger max.message.bytes, if the source has larger batches",
            )
        what = "no answer" if answer is None else f"{code_name(answer.error_code)} {answer.error_code}"
        why = f"of {size:,} bytes refused ({what})"
        if answer is not None and answer.error_code not in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE):
            break
        trial.out.resume(trial.out.read_state(in_doubt=answer is None))
        size //= 2
    return broken(BATCH_SIZE, f"batches are refused: {why}")


def _sized(offset: int, size: int) -> Run:
    """Make a batch of exactly this many bytes, with one record."""
    at_ms = now_ms()
    value = bytes(size)
    while (over := len(make_batch([Record(offset, at_ms, b"k", value)])) - size) > 0:
        value = value[: len(value) - over]
    return as_run([Record(offset, at_ms, b"k", value)])
