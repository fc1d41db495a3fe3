"""A trial copy: how many bytes a second a copy brings, measured with a real engine, by the class of a topic's batches.

Some topics of each class are copied by a mirror of their own, into topics with a prefix of their own, one class after
another, each until enough bytes are copied. Where a quota of the source may slow it down, that takes half a minute:
what a client has not used lately it may borrow, so that a shorter copy shows too much. Afterwards what was made for it
is removed: the engine, the topics, the mirror. kmirror's own two topics stay, created as the mirror's file says. The
source is only read.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.client_quotas import describe_quotas
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.topics.topic_requests import delete_topics
from kmirror.commands import on_mirror
from kmirror.errors import KmirrorError, OutcomeUnknown, RefusedError, TimedOutError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.mirrors.create import checked_properties, create
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.mirrors.pause import pause
from kmirror.ops.stop.failover import failover
from kmirror.settings.patterns import TopicSelector
from kmirror.words import byte_count, byte_rate
from kmirror_plan.inventory import TopicFacts
from kmirror_plan.reading_source import Progress
from kmirror_plan.waves import CopyRates, batch_class

_PREFIX = "kmirror-trial-"
#: What may decide how fast a mirror copies, of the settings in its file; and how kmirror's own topics are created.
_KEPT_SETTINGS = ("copy.", "client.rack", "replication.factor", "state.replication.factor", "throttle.")
#: Everything that a mirror does besides copying.
_OFF = (
    "sync.group.offsets.enabled",
    "sync.topic.configs.enabled",
    "sync.topic.acls.enabled",
    "emit.checkpoints.enabled",
    "emit.heartbeats.enabled",
    "emit.offset-syncs.enabled",
)
#: Of each class; where a quota may apply, small topics have enough bytes to show it only together.
_MOST_TOPICS = 500
_LOOK_S = 0.15
#: A copy that is over sooner has not found its pace; the topics may have fewer bytes than that takes.
_LEAST_S = 5.0
#: How long nothing may be copied before the trial is given up, the engine's start included.
_PATIENCE_S = 120.0
#: A rate is of the time after so many of the bytes: before that an engine finds its pace.
_WARM_SHARE = 0.5
_FEWEST_LOOKS = 4
#: For how long brokers let a client borrow of its quota by default: quota.window.num × quota.window.size.seconds.
_BORROWED_S = 11.0
#: How long a trial must last to show a quota: its rate is that of the second half of its bytes.
_LEAST_UNDER_QUOTA_S = 3 * _BORROWED_S
_READING = "consumer_byte_rate"
_SLOWING = frozenset({_READING, "request_percentage"})
_ANONYMOUS = "ANONYMOUS"


@dataclass(frozen=True, slots=True)
class _Look:
    """How many bytes had been copied at a time of CLOCK_MONOTONIC."""

    at: float
    copied: float


def run_trial(
    destination: Destination,
    mirror_config: Mapping[str, str],
    topics: Sequence[TopicFacts],
    size: int,
    progress: Progress,
) -> CopyRates:
    """Copy about `size` bytes, and return the rates; what took too short to be measured has none.

    Raises:
        RefusedError: there is nothing to copy.
        TimedOutError: nothing was copied for two minutes.
        KmirrorError: the engine ended, or something could not be removed.
    """
    source, _ = checked_properties(mirror_config)
    with ClusterClient(client_config(source)) as client:
        to_show = _bytes_to_show_a_quota(client)
    least = _LEAST_S if to_show is None else _LEAST_UNDER_QUOTA_S
    classes = samples(topics, size, to_show or 0.0)
    if not classes:
        raise RefusedError("there is nothing to copy for a trial", "give --bandwidth instead of --trial")
    found: dict[str, float] = {}
    copied = seconds = 0.0
    with _mirror(destination, mirror_config) as name, OwnEngine(name, destination.properties) as engine:
        engine.start()
        for batches, some in classes.items():
            progress(f"trial: copying {byte_count(size / len(classes))} of topics with {batches} batches")
            looks = _copied(destination, engine, name, some, size / len(classes), least)
            if (rate := rate_of([(look.at, look.copied) for look in looks])) is None:
                progress(f"trial: {batches} batches were copied too soon to measure their rate: that of all is used")
                continue
            found[batches] = rate
            copied, seconds = copied + looks[-1].copied, seconds + looks[-1].copied / rate
            progress(f"trial: {batches} batches at {byte_rate(rate)}")
        engine.stop()
    if not found:
        raise RefusedError(
            f"the trial of {byte_count(size)} was over before its rate could be measured",
            "give --trial more bytes, or --bandwidth",
        )
    return CopyRates(copied / seconds, found)


def samples(topics: Sequence[TopicFacts], size: int, least: float) -> dict[str, list[TopicFacts]]:
    """Return the topics to copy by class, the largest of each, with `least` bytes of it if there are so many."""
    by_class: dict[str, list[TopicFacts]] = defaultdict(list)
    for topic in sorted(topics, key=lambda one: (-(one.size or 0), one.topic)):
        if topic.size and topic.offsets:
            by_class[batch_class(topic)].append(topic)
    enough = max(least, 2 * size / max(1, len(by_class)))
    chosen: dict[str, list[TopicFacts]] = {}
    for name, some in sorted(by_class.items()):
        chosen[name] = []
        for topic in some[:_MOST_TOPICS]:
            if sum(one.size or 0 for one in chosen[name]) < enough:
                chosen[name].append(topic)
    return chosen


def rate_of(looks: Sequence[tuple[float, float]]) -> float | None:
    """Return bytes a second from looks at (seconds, bytes copied); None if they are too few.

    The first half of the bytes does not count: an engine, connections and windows start then.
    """
    if not looks:
        return None
    warm = looks[-1][1] * _WARM_SHARE
    counted = [look for look in looks if look[1] >= warm]
    if len(counted) < _FEWEST_LOOKS or counted[-1][0] <= counted[0][0]:
        return None
    return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])


def _copied(
    destination: Destination,
    engine: OwnEngine,
    mirror: str,
    topics: Sequence[TopicFacts],
    wanted: float,
    least: float,
) -> list[_Look]:
    """Copy topics until `wanted` bytes are copied, for `least` seconds, or all of them; return what was seen.

    Nothing was seen of a copy that a quota may have slowed down and that was over too soon to show it.
    """
    selector = TopicSelector(tuple(topic.topic for topic in topics))
    done = add(destination, mirror, selector)
    if done.exit_code:
        problems = [row.message or row.result.value for row in done.results if row.result.value not in ("DONE", "NOOP")]
        raise KmirrorError(f"the trial's topics cannot be created: {'; '.join(problems)}")
    per_offset = {f"{mirror}.{topic.topic}": (topic.size or 0) / (topic.offsets or 1) for topic in topics}
    whole = sum(topic.size or 0 for topic in topics)
    partitions = [TopicPartition(f"{mirror}.{t.topic}", number) for t in topics for number in range(t.partitions)]
    looks: list[_Look] = []
    most, began = 0.98 * whole, time.monotonic()
    target = min(wanted, most)
    while True:
        starts, ends = destination.client.look_up_offsets(partitions, [Lookup(EARLIEST), Lookup(LATEST, log_end=True)])
        copied = 0.0
        for one in partitions:
            start, end = starts[one].offset, ends[one].offset
            if start is not None and end is not None:
                copied += (end - start) * per_offset[one.topic]
        now = time.monotonic()
        if copied > (looks[-1].copied if looks else 0):
            looks.append(_Look(now, copied))
        lasted = looks[-1].at - looks[0].at if looks else 0.0
        if copied >= most or (copied >= target and lasted >= least):
            break
        if not engine.is_running:
            raise KmirrorError(f"the trial's engine ended: {engine.error_text()}")
        if now - (looks[-1].at if looks else began) > _PATIENCE_S:
            raise TimedOutError(
                f"the trial has copied {byte_count(copied)} of {byte_count(target)}, and nothing for "
                f"{_PATIENCE_S:.0f} s",
                "see `kmirror check` for the same file, and try again",
            )
        time.sleep(_LOOK_S)
    pause(destination, mirror, TopicSelector(tuple(per_offset)))
    return looks if lasted >= least or least == _LEAST_S else []


def _bytes_to_show_a_quota(client: ClusterClient) -> float | None:
    """Return how many bytes a trial must have at least to show a quota on what this client reads.

    None if none may apply. 0 if it is not known: we may not see quotas, or one is on the time that brokers spend.
    """
    try:
        quotas = [one for one in describe_quotas(client) if may_apply(one, client.config)]
    except (KmirrorError, OutcomeUnknown):
        return 0.0
    if not quotas:
        return None
    on_each_broker = max((one.value for one in quotas if one.key == _READING), default=0.0)
    return on_each_broker * len(client.metadata([]).brokers) * (_LEAST_UNDER_QUOTA_S + _BORROWED_S)


def may_apply(quota: Quota, config: ClientConfig) -> bool:
    """Return whether a quota on reading may be that of a client; where several are, brokers take the closest one."""
    own = {"user": config.username or _ANONYMOUS, "client-id": config.client_id}
    return quota.key in _SLOWING and all(name in ("", own.get(kind)) for kind, name in quota.entity)


@contextmanager
def _mirror(destination: Destination, mirror_config: Mapping[str, str]) -> Iterator[str]:
    """Create a mirror for the block, and remove it and its topics afterwards."""
    name = f"{_PREFIX}{secrets.token_hex(4)}"
    source, settings = checked_properties(mirror_config)
    kept = {key: value for key, value in settings.items() if key.startswith(_KEPT_SETTINGS)}
    create(destination, name, {**source, **kept, "topic.prefix": f"{name}.", **dict.fromkeys(_OFF, "false")})
    try:
        yield name
    finally:
        try:
            _remove(destination, name)
        except (KmirrorError, OutcomeUnknown) as error:
            raise KmirrorError(
                f"what was made for the trial could not be removed: {error}",
                f"{on_mirror('failover', name, '--yes')}; delete the topics {name}.*; then "
                + on_mirror("delete", name, "--yes"),
            ) from error


def _remove(destination: Destination, name: str) -> None:
    if destination.state().topics(name):
        failover(destination, name)
    # one that was created in the moment of an interrupt is not in the state yet
    topics = destination.client.metadata().topics
    delete_topics(destination.client, [topic for topic in topics if topic.startswith(f"{name}.")])
    delete(destination, name)
