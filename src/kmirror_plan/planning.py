"""`plan`: read both clusters, and make a plan. Only a trial copy changes something."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.log_dirs import disk_use
from kmirror.errors import Reason, RefusedError, UsageError
from kmirror.ops.base.context import Destination, naming_cluster, now_ms
from kmirror.ops.check.check import check
from kmirror.ops.mirrors.create import checked_properties
from kmirror.ops.mirrors.replication import NEW_TOPICS, replication_of
from kmirror.settings.parsing import parse_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror_plan.inventory import choice_of
from kmirror_plan.migration_plan import MigrationPlan, Room, make_plan
from kmirror_plan.reading_source import Progress, read_inventory
from kmirror_plan.trial import run_trial
from kmirror_plan.waves import NO_RATES, CopyRates, WaveLimits


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What was asked for; with `trial_bytes` the rates are measured."""

    mirror_config: Mapping[str, str]
    topics: tuple[str, ...] = ()
    sample_ms: int = 30_000
    wave_bytes: int | None = None
    wave_ms: int | None = None
    rates: CopyRates = NO_RATES
    trial_bytes: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options as they are stored with the plan, to make it again."""
        return {
            "topics": list(self.topics),
            "sampleMs": self.sample_ms,
            "waveBytes": self.wave_bytes,
            "waveMs": self.wave_ms,
            "bandwidth": self.rates.usual,
            "bandwidthByClass": dict(self.rates.by_class),
        }

    @classmethod
    def stored(cls, mirror_config: Mapping[str, str], options: Mapping[str, Any]) -> PlanRequest:
        """Return what a stored plan was asked for."""
        return cls(
            mirror_config,
            tuple(options.get("topics") or ()),
            options.get("sampleMs") or 30_000,
            options.get("waveBytes"),
            options.get("waveMs"),
            CopyRates(options.get("bandwidth"), options.get("bandwidthByClass") or {}),
        )


def plan_document(
    destination: Destination,
    mirror_config: Mapping[str, str],
    topics: TopicSelector | None,
    sample: float,
    wave_bytes: int | None,
    wave_time: float | None,
    rate: float | None,
    trial_bytes: int | None,
) -> dict[str, Any]:
    """Return the document of a plan, for programs, which give times in seconds; raises as `plan`."""
    if rate is not None and trial_bytes is not None:
        raise UsageError("bandwidth and trial exclude each other", "give one of them")
    if wave_time is not None and rate is None and trial_bytes is None:
        raise UsageError("wave_time needs bandwidth or trial", "say how fast a copy is")
    patterns = topics.patterns if topics is not None else ()
    wave_ms = None if wave_time is None else round(1000 * wave_time)
    rates = CopyRates(rate)
    request = PlanRequest(mirror_config, patterns, round(1000 * sample), wave_bytes, wave_ms, rates, trial_bytes)
    return plan(destination, request, lambda _: None).to_json()


def plan(destination: Destination, request: PlanRequest, progress: Progress) -> MigrationPlan:
    """Read both clusters and return the plan; a trial copies records.

    Raises:
        UsageError: a property or pattern is invalid.
        RefusedError: the properties contain a plaintext secret, or there is no topic to plan.
        UnreachableError: a cluster does not answer or refuses us.
    """
    source, changed = checked_properties(request.mirror_config)
    settings = parse_settings(changed)
    selector = TopicSelector.parse(request.topics, "--topics") if request.topics else None
    is_chosen = choice_of(settings, selector)
    with ClusterClient(client_config(source)) as client, naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
        inventory = read_inventory(client, is_chosen, request.sample_ms, progress)
    if not inventory.topics:
        raise RefusedError("no topic of the source is to be planned", "check --topics, and DESCRIBE on the topics")
    progress("reading the destination")
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        room = _read_room(destination, settings, [topic.topic for topic in inventory.topics])
    if request.trial_bytes is not None:
        rates = run_trial(destination, request.mirror_config, inventory.topics, request.trial_bytes, progress)
        request = replace(request, rates=rates)
    progress("checking rights and settings")
    report = check(destination.properties, properties=request.mirror_config)
    return make_plan(
        inventory,
        room,
        report.lines,
        made_ms=now_ms(),
        mirror_config=request.mirror_config,
        options=request.options,
        limits=WaveLimits(request.wave_bytes, None if request.wave_ms is None else request.wave_ms / 1000),
        rates=request.rates,
    )


def _read_room(destination: Destination, settings: Settings, topics: Collection[str]) -> Room:
    """Return what the destination has; `topics` are the names at the source.

    Raises:
        UnreachableError: it does not answer.
    """
    client = destination.client
    found = client.metadata(None)
    names = {settings.topic_prefix + topic for topic in topics}
    state = destination.state()
    known = replication_of(client, settings, []).get(NEW_TOPICS)
    use = disk_use(client)
    is_whole = not any(topic.error_code for topic in found.topics.values())
    replicas = sum(len(one.replicas) for topic in found.topics.values() for one in topic.partitions.values())
    mirrored = {record.topic for mirror in state.mirrors for record in state.topics(mirror.name)}
    return Room(
        cluster_id=destination.cluster_id,
        brokers=len(found.brokers),
        replicas=replicas if is_whole else None,
        free=None if use is None else sum(use.free_bytes),
        replication_factor=None if known is None else known.replicas,
        taken=tuple(sorted((names & found.topics.keys()) - mirrored)),
    )
