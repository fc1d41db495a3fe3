"""What one read of a log proves: batches, an empty rest, its end, or nothing at all. Pure.

A range of a log is known only through what proves it: a batch that covers it, or a later batch, because only compaction
leaves a hole before one. An answer without a batch proves nothing by itself. Stock brokers give it, without an error
and with the usual log ends, while remote storage is slow or its quota is used up (measured on 4.3.1), and throttled
ones do. It proves that no batch follows up to the end only if all of these hold (`why_unproven`):

* the partition was fetched alone, from its leader; otherwise other partitions may have taken the space of the answer,
  or another replica has the records;
* neither the answer nor the look-up of the local log start was throttled;
* both requests named the leader epoch, so one leader answered both;
* the broker reads that offset from its own disk: it is at or above the local log start, or the topic has no remote
  storage. Unknown means remote.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from kmirror.cluster.protocol.batch import BatchHeader, CorruptBatchError, batch_headers
from kmirror.cluster.protocol.fetch import AbortedTransaction, FetchedPartition
from kmirror.cluster.protocol.isolation import Isolation
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.topic_configs import TopicSettings

#: The first pause before a silent log is asked again, and the longest one, in seconds; they double.
FIRST_SILENT_PAUSE = 0.5
LONGEST_SILENT_PAUSE = 4.0
#: Kafka's setting for remote storage (KIP-405), and those of other vendors, whose brokers may keep all elsewhere.
REMOTE_STORAGE = "remote.storage.enable"
_OTHER_VENDORS = ("confluent.tier.enable", "redpanda.remote.read", "diskless.enable", "inkless.enable")
#: A setting that every broker returns: without it the answer says nothing about the others.
_ALWAYS_SET = "cleanup.policy"
_OFF = frozenset({"", "false", "none", "disabled"})


class Batches(NamedTuple):
    """Whole batches: all offsets from `offset` to `next_offset` are in them, or in holes before them.

    `data` may begin with a batch before `offset`, and end with a part of one; `headers` has the batches that matter.
    """

    offset: int
    next_offset: int
    data: memoryview
    headers: Sequence[BatchHeader]
    aborted_transactions: Sequence[AbortedTransaction]
    high_watermark: int | None
    last_stable_offset: int | None


class NoBatches(NamedTuple):
    """It is proven that the log has no batch from `offset` to `until`, where it ends for readers."""

    offset: int
    until: int


class AtEnd(NamedTuple):
    """Readers see nothing from `offset` on: the last stable offset or high watermark is `end`."""

    offset: int
    end: int


class Silence(NamedTuple):
    """The log goes on from `offset` to `until`, but the broker returned none of it: nothing there is known.

    `problem`: what it returned leads nowhere.
    """

    offset: int
    until: int
    why: str
    problem: str | None = None


ReadUpTo = Batches | NoBatches | AtEnd | Silence


class EmptyAnswer(NamedTuple):
    """How an answer without a batch for one partition came about. Without an error code."""

    part: FetchedPartition
    is_alone: bool
    is_throttled: bool
    #: The leader epoch that the request named; None if it named none.
    leader_epoch: int | None


class LocalStart(NamedTuple):
    """From which offset on the leader of an epoch reads a partition from its own disk; None: unknown, or nowhere.

    It was looked up after the answer that it judges, because it only grows.
    """

    offset: int | None
    leader_epoch: int | None
    why: str
    is_throttled: bool = False


def batches_of(part: FetchedPartition, offset: int) -> Batches | None:
    """Return the whole batches of an answer from the one that contains `offset`, or the next one; None without any.

    A corrupt batch ends them.

    Raises:
        CorruptBatchError: the first one is corrupt.
    """
    headers: list[BatchHeader] = []
    try:
        headers.extend(header for header in batch_headers(part.records) if header.next_offset > offset)
    except CorruptBatchError:
        if not headers:
            raise
    if not headers:
        return None
    return Batches(
        offset,
        headers[-1].next_offset,
        part.records,
        headers,
        part.aborted_transactions,
        part.high_watermark,
        part.last_stable_offset,
    )


def batches_after(part: FetchedPartition, offset: int) -> Batches | None:
    """Return the same of an answer that was asked for from an earlier offset: some of its batches may be before it.

    Raises:
        CorruptBatchError: the first one, or a marker before it, is corrupt.
    """
    found = batches_of(part, offset)
    if found is None or not part.aborted_transactions:
        return found
    # transactions that end before this offset are in the list too
    isolation = Isolation(part.aborted_transactions)
    for header in batch_headers(part.records[: found.headers[0].position]):
        isolation.kind(part.records[header.position : header.position + header.size_in_bytes])
    return found._replace(aborted_transactions=isolation.rest(offset))


def useless_part(part: FetchedPartition, offset: int) -> str | None:
    """Return what is wrong with records that have no whole batch with `offset` or a later one; None without records."""
    if not len(part.records):
        return None
    reached = None
    for header in batch_headers(part.records):
        reached = header.next_offset
    if reached is None:
        return f"the broker sends the first {len(part.records)} bytes of a batch, and never the rest"
    return f"the broker sends batches up to offset {reached}, and none after it"


def local_start_by_settings(settings: TopicSettings) -> int | None:
    """Return 0 if a topic's settings show that all of it is on the brokers' own disks; None if they do not."""
    is_known = _ALWAYS_SET in settings and not _is_on(settings, REMOTE_STORAGE)
    return 0 if is_known and not is_kept_elsewhere(settings) else None


def is_kept_elsewhere(settings: TopicSettings) -> bool:
    """Return True if brokers of another vendor may keep the topic elsewhere, whatever they say of local log starts."""
    return any(_is_on(settings, key) for key in _OTHER_VENDORS)


def _is_on(settings: TopicSettings, key: str) -> bool:
    return key in settings and (settings[key].value or "").lower() not in _OFF


def why_unproven(offset: int, answer: EmptyAnswer, local: LocalStart) -> str | None:
    """Return why an answer without a batch does not prove that there is none from `offset` on; None if it does."""
    if not answer.is_alone:
        return "it was fetched together with other partitions"
    if answer.part.preferred_read_replica is not None or answer.part.diverging_epoch is not None:
        return "the broker names another replica or epoch instead"
    if answer.is_throttled or local.is_throttled:
        return "the broker throttles this client"
    if answer.leader_epoch is None or answer.leader_epoch != local.leader_epoch:
        return "its leader may have changed meanwhile"
    if local.offset is None:
        return local.why
    if offset < local.offset:
        return f"offsets below {local.offset} are in remote storage"
    return None


def silent_text(partition: TopicPartition, offset: int, until: int, why: str, since_ms: int | None = None) -> str:
    """Return the sentence that says from where on a log is silent, and since when (epoch ms) if that is known."""
    since = f" since {datetime.fromtimestamp(since_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if since_ms is not None else ""
    goes_on = f", although its log ends at {until}" if until > offset else ""
    return f"{partition} returns no records from offset {offset} on{since}{goes_on}: {why}"
