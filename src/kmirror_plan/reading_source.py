"""Read the inventory of a source: it only reads, needs no right it could do without, and names what it may not see.

Ends of logs are read twice, `sample_ms` apart, for the rates; everything else is read in between. Of each topic some
batches are read, of its largest partition: near its end, and in the middle unless that is in remote storage.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.groups.group_members import DescribedGroup
from kmirror.cluster.producers import describe_producers, transactions_of
from kmirror.cluster.protocol.batch import BatchHeader, UnsupportedFormatError
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.rights.acls import NoAuthorizerError, describe_acls
from kmirror.cluster.rights.client_quotas import describe_quotas, scram_users
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import option
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import now_ms
from kmirror.words import counted, listed
from kmirror_plan.inventory import (
    GroupFacts,
    Inventory,
    ProducerFacts,
    TopicFacts,
    Unseen,
    shape_of,
)

_SETTINGS = ("retention.ms", "cleanup.policy", "remote.storage.enable")
_SAMPLE_BYTES = 128 << 10
#: How many topics are sampled at once, each over a connection of its own.
_SAMPLERS = 8
_PATIENCE_S = 10.0

Progress = Callable[[str], None]
Ends = Mapping[TopicPartition, tuple[int, int]]


@dataclass(slots=True)
class _Seen:
    """What could not be seen so far."""

    unseen: list[Unseen] = field(default_factory=list)

    def lack(self, what: str, why: str, hint: str | None = None) -> None:
        self.unseen.append(Unseen(what=what, why=why, hint=hint))

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note an error of the body as something that is not known."""
        try:
            yield
        except KmirrorError as error:
            self.lack(what, error.message, error.hint)
        except OutcomeUnknown as error:
            self.lack(what, str(error), "try again")


@dataclass(frozen=True, slots=True)
class _Sample:
    """The batches that were read of a topic; `bytes_per_offset` is None without any."""

    headers: tuple[BatchHeader, ...] = ()
    sizes: tuple[int, ...] = ()
    bytes_per_offset: float | None = None
    has_old_format: bool = False


def read_inventory(
    client: ClusterClient, is_chosen: Callable[[str], bool], sample_ms: int, progress: Progress
) -> Inventory:
    """Read the topics of a source that are chosen by their names; it takes `sample_ms` at least.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    seen = _Seen()
    found = client.metadata(None)
    chosen = _chosen(found, is_chosen, seen)
    partitions = [TopicPartition(name, one) for name, topic in chosen.items() for one in topic.partitions]
    progress(f"reading {counted(len(chosen), 'topic')}")
    began, began_ms = time.monotonic(), now_ms()
    first = _ends(client, partitions, seen)
    settings = topic_settings(client, chosen, _SETTINGS) if chosen else {}
    _note_settings(client, settings, seen)
    with_sizes = _sizes(client, partitions, settings, seen)
    progress("reading groups and producers")
    groups = _groups(client, seen)
    producers, ids = _producers(client, partitions, seen)
    principals, quotas, users = _clients(client, seen)
    progress("sampling batches")
    samples = _sampled(client.config, _largest(first, with_sizes, settings), seen)
    _note_unnamed(client.config, samples, ids, seen)
    progress("waiting for the second reading of the logs' ends")
    time.sleep(max(0.0, sample_ms / 1000 - (time.monotonic() - began)))
    second = _ends(client, list(first), _Seen())
    seconds = time.monotonic() - began
    names = [group.group for group in groups]
    facts = [
        _topic(topic, settings.get(name), first, second, seconds, with_sizes, samples.get(name, _Sample()), names)
        for name, topic in sorted(chosen.items())
    ]
    return Inventory(
        cluster_id=found.cluster_id or "",
        read_at_ms=began_ms,
        sample_ms=round(1000 * seconds),
        topics=tuple(facts),
        groups=groups,
        producers=producers,
        principals=principals,
        quotas=quotas,
        scram_users=users,
        unseen=tuple(seen.unseen),
    )


def _chosen(found: ClusterMetadata, is_chosen: Callable[[str], bool], seen: _Seen) -> dict[str, TopicMetadata]:
    chosen, refused = {}, []
    for name, topic in found.topics.items():
        if not is_chosen(name):
            continue
        if topic.error_code:
            refused.append(f"{name} ({code_name(topic.error_code)})")
        else:
            chosen[name] = topic
    if refused:
        seen.lack(f"topics {listed(refused)}", "the cluster does not describe them", "grant DESCRIBE on them")
    return chosen


def _ends(client: ClusterClient, partitions: Sequence[TopicPartition], seen: _Seen) -> Ends:
    """Return where logs begin and end, where both are known."""
    starts, ends = client.look_up_offsets(partitions, [Lookup(EARLIEST), Lookup(LATEST, log_end=True)])
    known = {
        one: (start, end)
        for one in partitions
        if (start := starts[one].offset) is not None and (end := ends[one].offset) is not None
    }
    if lacking := sorted({one.topic for one in partitions if one not in known}):
        what = f"the size of {listed(lacking)}"
        seen.lack(what, "the ends of some partitions could not be read", "check their leaders")
    return known


def _note_settings(client: ClusterClient, settings: Mapping[str, TopicSettings | int], seen: _Seen) -> None:
    if refused := sorted(name for name, one in settings.items() if isinstance(one, int)):
        seen.lack(
            f"the settings of {listed(refused)}",
            "we lack DESCRIBE_CONFIGS on them: their bytes are estimated, for some may be in remote storage",
            grant_line(client.config, ("DESCRIBE_CONFIGS",), *option("--topic", "*")),
        )


def _sizes(
    client: ClusterClient,
    partitions: Sequence[TopicPartition],
    settings: Mapping[str, TopicSettings | int],
    seen: _Seen,
) -> dict[TopicPartition, int]:
    """Return the bytes of partitions that are on their leaders' disks as a whole."""
    local = [one for one in partitions if not _is(settings.get(one.topic), "remote.storage.enable", "true")]
    sizes: dict[TopicPartition, int] = {}
    with seen.noting("the bytes of topics"):
        sizes = partition_sizes(client, local)
        if local and not sizes:
            seen.lack(
                "the bytes of topics",
                "we lack DESCRIBE on the cluster: they are estimated from offsets and samples",
                grant_line(client.config, ("DESCRIBE",), "--cluster"),
            )
    # of a topic whose settings we may not read, remote storage may have most
    return {one: size for one, size in sizes.items() if isinstance(settings.get(one.topic), Mapping)}


def _is(settings: TopicSettings | int | None, key: str, value: str) -> bool:
    found = settings.get(key) if settings is not None and not isinstance(settings, int) else None
    return found is not None and value in (found.value or "").split(",")


def _groups(client: ClusterClient, seen: _Seen) -> tuple[GroupFacts, ...]:
    """Return all groups that we may see."""
    found: list[GroupFacts] = []
    with seen.noting("groups"):
        groups = ClusterGroups(client)
        listed_groups = groups.listed(whole=False)
        committing = {name: one.kind for name, one in listed_groups.items() if one.kind is not GroupKind.OTHER}
        committed = groups.committed(committing)
        described = groups.described({name: listed_groups[name] for name in committing})
        refused = []
        for name, one in sorted(listed_groups.items()):
            offsets, members = committed.get(name, {}), described.get(name, 0)
            if isinstance(offsets, int):
                refused.append(f"{name} ({code_name(offsets)})")
                offsets = {}
            reads = {at.topic for at in offsets}
            if isinstance(members, DescribedGroup):
                reads |= members.topics
            count = len(members.members) if isinstance(members, DescribedGroup) else None
            found.append(GroupFacts(group=name, kind=one.kind, members=count, reads=tuple(sorted(reads))))
        if refused:
            seen.lack(f"what groups read: {listed(refused)}", "their coordinators refuse", "grant DESCRIBE on them")
    return tuple(found)


def _producers(
    client: ClusterClient, partitions: Sequence[TopicPartition], seen: _Seen
) -> tuple[tuple[ProducerFacts, ...], frozenset[int]]:
    """Return the producers that leaders remember, idempotent or transactional, and which have a transactional id."""
    writes: dict[int, set[str]] = defaultdict(set)
    ids: dict[int, str] = {}
    with seen.noting("producers"):
        refused = set()
        for partition, answer in describe_producers(client, partitions).items():
            if answer.error_code:
                refused.add(partition.topic)
            for one in answer.producers:
                writes[one.producer_id].add(partition.topic)
        if refused:
            seen.lack(
                f"who writes to {listed(sorted(refused))}",
                "we lack READ on them, or brokers before Kafka 2.8 lead them",
                grant_line(client.config, ("READ",), *option("--topic", "*")),
            )
        ids = {producer_id: name for producer_id, (name, _) in transactions_of(client, (), _PATIENCE_S).items()}
    by_name: dict[str, set[str]] = defaultdict(set)
    for producer_id, topics in writes.items():
        by_name[ids.get(producer_id, str(producer_id))] |= topics
    known = set(ids.values())
    facts = (
        ProducerFacts(name=name, transactional_id=name if name in known else None, writes=tuple(sorted(topics)))
        for name, topics in sorted(by_name.items())
    )
    return tuple(facts), frozenset(ids)


def _note_unnamed(config: ClientConfig, samples: Mapping[str, _Sample], ids: frozenset[int], seen: _Seen) -> None:
    """Note whose transactions were sampled although no broker says their transactional ids."""
    topics = {
        topic
        for topic, sample in samples.items()
        if any(one.is_transactional and one.producer_id not in ids for one in sample.headers)
    }
    if topics:
        seen.lack(
            f"the transactional ids of who writes to {listed(sorted(topics), 5)}",
            "no broker names them: we lack DESCRIBE on them, or they have not been used for a week",
            grant_line(config, ("DESCRIBE",), *option("--transactional-id", "*")),
        )


def _clients(client: ClusterClient, seen: _Seen) -> tuple[tuple[str, ...] | None, int | None, tuple[str, ...] | None]:
    """Return principals with ACLs, the number of quotas, and users with SCRAM credentials."""
    principals, quotas, users = None, None, None
    with seen.noting("principals"), suppress(NoAuthorizerError):
        principals = tuple(sorted({one.principal for one in describe_acls(client)}))
    with seen.noting("quotas"):
        quotas = len(describe_quotas(client))
    with seen.noting("SCRAM users"):
        users = tuple(sorted(scram_users(client)))
    return principals, quotas, users


def _largest(
    ends: Ends, sizes: Mapping[TopicPartition, int], settings: Mapping[str, TopicSettings | int]
) -> dict[str, tuple[TopicPartition, tuple[int, ...]]]:
    """Return of each topic with records the partition to sample, and the offsets to read from."""
    found: dict[str, tuple[int, TopicPartition]] = {}
    for partition, (start, end) in ends.items():
        if end > start:
            found[partition.topic] = max(
                found.get(partition.topic, (0, partition)), (sizes.get(partition, end - start), partition)
            )
    places: dict[str, tuple[TopicPartition, tuple[int, ...]]] = {}
    for topic, (_, partition) in found.items():
        start, end = ends[partition]
        near_end = max(start, end - max(1, (end - start) // 20))
        is_tiered = _is(settings.get(topic), "remote.storage.enable", "true")
        places[topic] = (partition, (near_end,) if is_tiered else ((start + end) // 2, near_end))
    return places


def _sampled(
    config: ClientConfig, places: Mapping[str, tuple[TopicPartition, tuple[int, ...]]], seen: _Seen
) -> dict[str, _Sample]:
    """Read some batches of each topic."""
    found: dict[str, _Sample] = {}
    lacking: list[str] = []

    def some(topics: Iterable[str]) -> None:
        with ClusterClient(config) as client:
            for topic in topics:
                try:
                    found[topic] = _sample(client, *places[topic])
                except (KmirrorError, OutcomeUnknown) as error:
                    lacking.append(f"{topic} ({error})")

    names = sorted(places)
    with ThreadPoolExecutor(_SAMPLERS, "kmirror-sample") as threads:
        list(threads.map(some, [names[one::_SAMPLERS] for one in range(min(_SAMPLERS, len(names)))]))
    if lacking:
        seen.lack(f"the records of {listed(sorted(lacking), 5)}", "no batch could be read", "grant READ on them")
    return found


def _sample(client: ClusterClient, partition: TopicPartition, offsets: Sequence[int]) -> _Sample:
    headers: dict[int, tuple[BatchHeader, int]] = {}
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        try:
            answer = PartitionReader(client, partition).read(offset, max_bytes=_SAMPLE_BYTES)
        except UnsupportedFormatError:
            return _Sample(has_old_format=True)
        if not isinstance(answer, Batches):
            continue
        batches = answer.headers
        size = sum(one.size_in_bytes for one in batches)
        if batches:
            spans.append((size, batches[-1].next_offset - batches[0].base_offset))
        headers |= {one.base_offset: (one, one.size_in_bytes) for one in batches if not one.is_control}
    covered = sum(span for _, span in spans)
    return _Sample(
        tuple(one for one, _ in headers.values()),
        tuple(size for _, size in headers.values()),
        sum(size for size, _ in spans) / covered if covered else None,
    )


def _topic(
    topic: TopicMetadata,
    settings: TopicSettings | int | None,
    first: Ends,
    second: Ends,
    seconds: float,
    sizes: Mapping[TopicPartition, int],
    sample: _Sample,
    groups: Sequence[str],
) -> TopicFacts:
    """Return what was read of one topic."""
    partitions = [TopicPartition(topic.name, one) for one in topic.partitions]
    offsets = written = None
    if all(one in first for one in partitions):
        offsets = sum(first[one][1] - first[one][0] for one in partitions)
        if all(one in second for one in partitions):
            written = sum(max(0, second[one][1] - first[one][1]) for one in partitions)
    size, is_estimate = None, False
    if all(one in sizes for one in partitions):
        size = sum(sizes[one] for one in partitions)
    elif offsets == 0:
        size = 0
    elif offsets is not None and sample.bytes_per_offset is not None:
        size, is_estimate = round(offsets * sample.bytes_per_offset), True
    per_offset = sample.bytes_per_offset
    if per_offset is None and size and offsets:
        per_offset = size / offsets
    rate = 0.0 if written == 0 else None
    if written and per_offset is not None:
        rate = round(written * per_offset / seconds, 1)
    retention = settings.get("retention.ms") if isinstance(settings, Mapping) else None
    is_compacted = _is(settings, "cleanup.policy", "compact")
    return TopicFacts(
        topic=topic.name,
        shape=shape_of(topic.name, is_compacted=is_compacted, groups=groups),
        partitions=len(partitions),
        offsets=offsets,
        size=size,
        rate=rate,
        is_estimate=is_estimate,
        is_compacted=is_compacted,
        is_tiered=_is(settings, "remote.storage.enable", "true"),
        is_transactional=any(one.is_transactional for one in sample.headers) if sample.headers else None,
        retention_ms=int(retention.value) if retention is not None and retention.value else None,
        codecs=tuple(sorted({one.compression_type for one in sample.headers})),
        has_old_format=sample.has_old_format,
        largest_batch=max(sample.sizes, default=None),
        mean_batch=round(sum(sample.sizes) / len(sample.sizes)) if sample.sizes else None,
    )
