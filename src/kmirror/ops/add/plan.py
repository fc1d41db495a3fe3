"""What `add` will do with each topic, decided from facts that were gathered before. Pure: no I/O.

The plan is made once; a dry run prints it, a real run carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import Reason, RefusedError, UsageError
from kmirror.ops.context import PENDING_ADD
from kmirror.ops.gone import is_gone
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.upstream import Upstream
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings, StartFrom, canonical
from kmirror.state.records import DesiredState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.store import STATE_TOPIC
from kmirror.sync.discovery import is_internal
from kmirror.sync.topic_settings import SettingsPlan
from kmirror.words import counted

_LONGEST_TOPIC_NAME = 249


class Action(Enum):
    """Name what is to be done with one topic."""

    #: Create the destination topic.
    CREATE = auto()
    #: The destination topic is ours already: created by an `add` that was interrupted, still empty.
    FINISH = auto()
    #: Take over an existing topic, once its content is proved to be a prefix of the source's.
    ADOPT = auto()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic that can become a mirror topic; `former` is its record as it stands, None where there is none."""

    topic: str
    source_topic: str
    action: Action
    partitions: int
    source_topic_id: str | None
    settings: SettingsPlan
    former: TopicRecord | None
    #: By partition, where the copy begins; partitions left out begin where the source's log does.
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    #: True when `first_offsets` is still to be looked up at the source.
    is_start_open: bool = False
    #: True when an `add` that was interrupted has decided where the copy begins.
    is_start_fixed: bool = False
    #: Partitions of an adopted topic that hold something, or have held it.
    begun: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class FilterChange:
    """Which patterns the mirror's filters gain and lose."""

    include_gains: tuple[str, ...] = ()
    exclude_gains: tuple[str, ...] = ()
    exclude_losses: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.include_gains or self.exclude_gains or self.exclude_losses)

    def __str__(self) -> str:
        """Return the change in words."""
        words = [f"topics.include gains {p}" for p in self.include_gains]
        words += [f"topics.exclude gains {p}" for p in self.exclude_gains]
        words += [f"topics.exclude loses {p}" for p in self.exclude_losses]
        return "; ".join(words)

    def apply(self, settings: Settings) -> dict[str, str]:
        """Return both filters as they are then stored.

        Raises:
            UsageError: they would contradict each other, or the mirror's other kind of filters.
        """
        if self.include_gains and settings.auto_create_mirror_topics_enable:
            raise UsageError(
                f"{', '.join(self.include_gains)}: patterns are stored in topics.include, but this mirror selects"
                " topics with auto.create.mirror.topics.filters",
                "give topic names, or change the filters: kmirror config --set auto.create.mirror.topics.filters=…",
            )
        include = settings.topics_include.plus(TopicSelector(self.include_gains))
        left = tuple(p for p in settings.topics_exclude.patterns if p not in self.exclude_losses)
        exclude = TopicSelector(left).plus(TopicSelector(self.exclude_gains))
        return canonical({"topics.include": str(include), "topics.exclude": str(exclude)})


@dataclass(frozen=True, slots=True)
class Selection:
    """Which source topics were chosen, which results are known already, and what becomes of the filters."""

    chosen: tuple[str, ...]
    results: tuple[TopicResult, ...]
    filters: FilterChange
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about the chosen topics; names of source topics are keys unless said otherwise."""

    state: State
    mirror: str
    settings: Settings
    source: Mapping[str, TopicMetadata]
    #: By destination name.
    destination: Mapping[str, TopicMetadata]
    #: Log ends of the destination topics' partitions.
    destination_ends: Mapping[TopicPartition, int]
    source_settings: Mapping[str, SettingsPlan | int]
    #: How the clusters are reached, and as whom.
    source_login: ClientConfig
    destination_login: ClientConfig
    source_rights_missing: Mapping[str, list[str]] = field(default_factory=dict)
    #: Where the source's topics come from themselves.
    upstream: Upstream = field(default_factory=Upstream)
    start_from: StartFrom = field(default_factory=StartFrom)
    #: True when it was said for this `add`, not stored with the mirror.
    start_is_named: bool = False


def select(
    topics: TopicSelector,
    exclude: TopicSelector,
    settings: Settings,
    found: Mapping[str, TopicMetadata],
    login: ClientConfig,
    *,
    allow_missing: bool,
) -> Selection:
    """Choose among the source topics found, and say how the mirror's filters change.

    Regular expressions are kept in the filters, and `exclude` with them. Names that do not exist and expressions that
    match nothing are refused, or with `allow_missing` kept in the filters too. What is named or matched explicitly is
    taken off the exclude list again. `login` is how the source is reached.
    """
    results: list[TopicResult] = []
    missing: list[str] = []
    chosen: set[str] = set()
    stored_exclude = TopicSelector(tuple(p for p in settings.topics_exclude.patterns if p not in topics.patterns))
    for name in topics.names:
        topic = found.get(name)
        if exclude.matches(name):
            continue
        here = settings.topic_prefix + name
        if topic is not None and topic.error_code not in (0, Code.UNKNOWN_TOPIC_OR_PARTITION):
            results.append(_unseen(here, name, topic.error_code, login))
        elif topic is None or topic.error_code:
            missing.append(name)
            if not allow_missing:
                results.append(
                    _refused(
                        here,
                        f"the source has no topic {name}",
                        "check the name, or add it for later with --allow-missing",
                    )
                )
        elif stored_exclude.matches(name):
            results.append(
                _refused(
                    here,
                    f"topics.exclude of this mirror excludes {name}: {stored_exclude}",
                    "change it first: kmirror config --set topics.exclude=…",
                )
            )
        elif topic.is_internal or name.startswith("__kmirror_"):
            results.append(
                _refused(here, f"{name} is an internal topic of the cluster", "mirror only topics with your own data")
            )
        else:
            chosen.add(name)
    expressions = TopicSelector(topics.expressions)
    for name, topic in found.items():
        left_out = exclude.matches(name) or stored_exclude.matches(name) or is_internal(topic)
        if not topic.error_code and not left_out and expressions.matches(name):
            chosen.add(name)
    # one that is to be excluded too contradicts itself, which the filters tell
    sound = [p for p in expressions.patterns if p not in exclude.patterns]
    unmatched = [p for p in sound if not any(TopicSelector((p,)).matches(name) for name in chosen)]
    warnings = []
    if allow_missing:
        warnings += [f"the source has no topic {name} yet; it is added when it appears" for name in missing]
        warnings += [f"{pattern} matches no topic of the source yet" for pattern in unmatched]
        kept = TopicSelector((*expressions.patterns, *missing))
    else:
        results += [_matches_nothing(pattern, found) for pattern in unmatched]
        kept = TopicSelector(tuple(p for p in expressions.patterns if p not in unmatched))
    return Selection(
        tuple(sorted(chosen)), tuple(results), _filter_change(settings, kept, exclude, topics), tuple(warnings)
    )


def _matches_nothing(pattern: str, found: Mapping[str, TopicMetadata]) -> TopicResult:
    """Return the row of an expression that chooses no topic."""
    one = TopicSelector((pattern,))
    if any(one.matches(name) for name, topic in found.items() if not (topic.error_code or is_internal(topic))):
        message = f"every topic that {pattern} matches is excluded by --exclude or by topics.exclude of this mirror"
        hint = "change the exclusion, or keep the pattern for later topics with --allow-missing"
    else:
        message = f"{pattern} matches no source topic that kmirror can see"
        hint = (
            "check the pattern and the right to DESCRIBE on the source, or keep the pattern for later topics with "
            "--allow-missing"
        )
    return TopicResult(None, None, Outcome.REFUSED, message, hint=hint)


def _filter_change(
    settings: Settings, kept: TopicSelector, exclude: TopicSelector, meant: TopicSelector
) -> FilterChange:
    included, excluded = settings.topics_include.patterns, settings.topics_exclude.patterns
    return FilterChange(
        tuple(p for p in kept.patterns if p not in included),
        tuple(p for p in exclude.patterns if p not in excluded) if kept.patterns else (),
        tuple(p for p in excluded if p in meant.patterns),
    )


def _without_topic_ids(there: TopicMetadata, memory: TopicMetadata | None) -> str | None:
    """Return which cluster's brokers follow a protocol from before topic ids (KIP-516), if one's do."""
    if there.printed_topic_id is None:
        return "source"
    is_lacking_here = memory is not None and not memory.error_code and memory.printed_topic_id is None
    return "destination" if is_lacking_here else None


def decide(facts: Facts, source_topic: str, *, adopt: bool, named: bool) -> TopicPlan | TopicResult:
    """Return what is to be done with one source topic, or why nothing is; `named` unless an expression matched it."""
    topic = facts.settings.topic_prefix + source_topic
    there, here = facts.source[source_topic], facts.destination.get(topic)
    former = facts.state.topic(facts.mirror, topic)
    owner = owner_of(facts.state, topic, facts.mirror)
    settings = facts.source_settings.get(source_topic, 0)
    missing = facts.source_rights_missing.get(source_topic, [])
    if missing or settings == Code.TOPIC_AUTHORIZATION_FAILED:
        return _not_authorized(topic, source_topic, missing or ["DESCRIBE_CONFIGS"], facts.source_login)
    if isinstance(settings, int):
        return _refused(topic, f"the settings of {source_topic} cannot be read: {code_name(settings)}", "try again")
    if len(topic) > _LONGEST_TOPIC_NAME:
        return _refused(topic, f"{topic} is too long for a topic name", "create a mirror with a shorter topic.prefix")
    if owner is not None:
        return _refused(
            topic,
            f"{topic} is a mirror topic of mirror {owner}",
            "a topic can belong to one mirror only; stop it there first",
        )
    if source_topic in facts.upstream.loops:
        return _refused(
            topic,
            f"{source_topic} is itself copied from this cluster: {facts.upstream.loops[source_topic]}",
            "stop one direction first, or exclude the topic with --exclude",
            Reason.LOOP,
        )
    if former is not None and former.source_topic != source_topic:
        return _refused(
            topic, f"{topic} already mirrors {former.source_topic}", "a mirror topic can have one source topic only"
        )
    if without_id := _without_topic_ids(there, facts.destination.get(STATE_TOPIC)):
        return _refused(
            topic,
            f"the {without_id} has no topic ids, without which a topic that was created again cannot be told",
            f"set inter.broker.protocol.version on the {without_id}'s brokers to 2.8 or later first",
        )
    gone = former is not None and is_gone(former, here)
    if former is None and not named and facts.settings.topic_prefix and source_topic in facts.upstream.copies:
        return TopicResult(
            topic,
            None,
            Outcome.NOOP,
            f"{source_topic} is itself a mirror topic, which is mirrored only when added by name",
        )
    if former is not None and not gone and _is_mirrored(former):
        fixed = f"; --start-from {facts.start_from} does not change where it started" if facts.start_is_named else ""
        return TopicResult(topic, None, Outcome.NOOP, f"{topic} is already a mirror topic{fixed}")
    interrupted = former is not None and not gone and former.pending_operation == PENDING_ADD
    is_fixed = interrupted and former is not None and former.source_topic_id == there.printed_topic_id
    begun = frozenset(p for p in there.partitions if facts.destination_ends.get(TopicPartition(topic, p), 0) > 0)

    def plan(action: Action) -> TopicPlan:
        # what an add that was interrupted has fixed stays fixed; records that are there already decide by themselves
        kept = former.first_offsets if former is not None and is_fixed else None
        return TopicPlan(
            topic,
            source_topic,
            action,
            len(there.partitions),
            there.printed_topic_id,
            settings,
            former,
            kept or {},
            is_start_open=not (facts.start_from.is_earliest or is_fixed or begun),
            is_start_fixed=is_fixed,
            begun=begun,
        )

    if here is None or here.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return plan(Action.CREATE)
    if here.error_code:
        is_forbidden = here.error_code == Code.TOPIC_AUTHORIZATION_FAILED
        return _refused(
            topic,
            f"the destination does not describe topic {topic}: {code_name(here.error_code)}",
            grant_line(facts.destination_login, ("DESCRIBE",), f"--topic {topic}") if is_forbidden else "try again",
            Reason.NOT_AUTHORIZED if is_forbidden else None,
        )
    if len(here.partitions) != len(there.partitions):
        return _refused(
            topic,
            f"topic {topic} already exists with {counted(len(here.partitions), 'partition')}; {source_topic} has "
            f"{len(there.partitions)}",
            "delete or rename it, or create the mirror with another topic.prefix",
        )
    if interrupted and not begun:
        return plan(Action.FINISH)
    stopped = former is not None and not gone and former.desired is DesiredState.STOPPED
    if not adopt and stopped and not named:
        return TopicResult(topic, None, Outcome.NOOP, f"{topic} was stopped and stays stopped unless added by name")
    if not adopt:
        return _refused(
            topic,
            f"{topic} was stopped and is now an ordinary topic"
            if stopped
            else f"topic {topic} already exists on the destination",
            "--adopt makes it a mirror topic if its content is the beginning of the source's",
        )
    if begun and facts.start_is_named and not facts.start_from.is_earliest:
        return _refused(
            topic,
            f"topic {topic} already holds records: copying continues at their end",
            f"omit --start-from {facts.start_from}, or delete the topic and add it again",
        )
    return plan(Action.ADOPT)


def owner_of(state: State, topic: str, mirror: str) -> str | None:
    """Return the other mirror that owns a destination topic, None where nobody else does."""
    for other in state.mirrors:
        found = state.topic(other.name, topic) if other.name != mirror else None
        if found is not None and found.desired is not DesiredState.STOPPED:
            return other.name
    return None


def require_unchanged(state: State, plan: TopicPlan, mirror: str) -> None:
    """Refuse to go on with a topic that somebody else changed since it was planned. Raises RefusedError (FENCED)."""
    if state.topic(mirror, plan.topic) != plan.former or owner_of(state, plan.topic, mirror) is not None:
        raise RefusedError(
            f"another operation changed the stored state of {plan.topic} meanwhile",
            "check with `kmirror describe` and try again",
            Reason.FENCED,
        )


def _is_mirrored(record: TopicRecord) -> bool:
    return record.desired is not DesiredState.STOPPED and record.pending_operation != PENDING_ADD


def _refused(topic: str, message: str, hint: str, reason: Reason | None = None) -> TopicResult:
    return TopicResult(topic, None, Outcome.REFUSED, message, reason, hint=hint)


def _unseen(topic: str, name: str, code: int, login: ClientConfig) -> TopicResult:
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return _not_authorized(topic, name, ["DESCRIBE", "READ", "DESCRIBE_CONFIGS"], login)
    return _refused(topic, f"the source returned {code_name(code)} for topic {name}", "check the name")


def _not_authorized(topic: str, source_topic: str, missing: list[str], login: ClientConfig) -> TopicResult:
    return _refused(
        topic,
        f"the source does not grant us {' and '.join(missing)} on topic {source_topic}, if there is one",
        grant_line(login, missing, f"--topic {source_topic}"),
        Reason.NOT_AUTHORIZED,
    )
