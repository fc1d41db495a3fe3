"""The plan of `add`: what to do with each topic, decided from facts. Pure: no I/O.

The plan is made once; a dry run prints it, a real run carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import admin_options, grant_line
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.commands import command_line, option
from kmirror.errors import Reason, RefusedError, UsageError
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.upstream import Upstream
from kmirror.settings.parsing import canonical
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.settings.value_types import StartFrom
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import PENDING_ADD, DesiredState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.in_charge import FIRST_TERM, HeldTopic, next_term
from kmirror.status.observed import is_gone
from kmirror.sync.discovery import is_internal
from kmirror.sync.setting_changes import SettingsPlan
from kmirror.words import counted

_LONGEST_TOPIC_NAME = 249


class Action(Enum):
    """What to do with one topic."""

    #: Create the destination topic.
    CREATE = auto()
    #: Finish an `add` that was interrupted after it created the topic; it is still empty.
    FINISH = auto()
    #: Take over an existing topic, after checking that its content is a prefix of the source's.
    ADOPT = auto()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic that can become a mirror topic; `former` is its stored record, if any."""

    topic: str
    source_topic: str
    action: Action
    partitions: int
    source_topic_id: str | None
    settings: SettingsPlan
    former: TopicRecord | None
    #: By partition, where copying begins; partitions not in it begin at the source's log start.
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    #: True if `first_offsets` must still be looked up at the source.
    is_start_open: bool = False
    #: True if an interrupted `add` has decided where copying begins.
    is_start_fixed: bool = False
    #: Partitions of an existing topic whose log end is above 0.
    begun: frozenset[int] = frozenset()
    #: By partition, the end of an existing log that was compared with its source's as a whole.
    compared_ends: Mapping[int, int] = field(default_factory=dict)
    #: Why it is not known whether the topic comes from this destination.
    upstream_unknown: str | None = None
    #: The term of its stop; see `status.in_charge`.
    term: int = FIRST_TERM


@dataclass(frozen=True, slots=True)
class FilterChange:
    """Which patterns the mirror's filters gain and lose."""

    include_gains: tuple[str, ...] = ()
    exclude_gains: tuple[str, ...] = ()
    exclude_losses: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.include_gains or self.exclude_gains or self.exclude_losses)

    def __str__(self) -> str:
        """Return the change as text."""
        changes = [f"topics.include gains {p}" for p in self.include_gains]
        changes += [f"topics.exclude gains {p}" for p in self.exclude_gains]
        changes += [f"topics.exclude loses {p}" for p in self.exclude_losses]
        return "; ".join(changes)

    def apply(self, settings: Settings) -> dict[str, str]:
        """Return both filters with the change, as they are stored.

        Raises:
            UsageError: they contradict each other, or the mirror uses the other kind of filters.
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
    """The chosen source topics, the results that are known already, and the change of the filters."""

    chosen: tuple[str, ...]
    results: tuple[TopicResult, ...]
    filters: FilterChange
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddFacts:
    """Facts about the chosen topics, by source topic unless said otherwise."""

    state: State
    mirror: str
    settings: Settings
    source: Mapping[str, TopicMetadata]
    #: By destination name.
    destination: Mapping[str, TopicMetadata]
    #: Log ends of the destination topics' partitions.
    destination_ends: Mapping[TopicPartition, int]
    source_settings: Mapping[str, SettingsPlan | int]
    #: The logins, for `kafka-acls` hints.
    source_login: ClientConfig
    destination_login: ClientConfig
    source_rights_missing: Mapping[str, list[str]] = field(default_factory=dict)
    #: Where the source's topics are mirrored from, if they are.
    upstream: Upstream = field(default_factory=Upstream)
    start_from: StartFrom = field(default_factory=StartFrom)
    #: True if it was given to this `add`, not stored with the mirror.
    start_is_named: bool = False
    #: What is stored here of all topics.
    held: Mapping[str, HeldTopic] = field(default_factory=dict)

    def next_term(self, topic: str, source_topic: str) -> int:
        """Return the term of the topic's stop, if it becomes a mirror topic now."""
        theirs = self.upstream.held
        source = None if theirs is None else theirs.get(source_topic)
        return next_term(self.held.get(topic), source, is_source_known=theirs is not None)


def select(
    topics: TopicSelector,
    exclude: TopicSelector,
    settings: Settings,
    found: Mapping[str, TopicMetadata],
    login: ClientConfig,
    *,
    allow_missing: bool,
) -> Selection:
    """Choose among the source topics found, and decide how the mirror's filters change.

    Regular expressions are added to the filters, and `exclude` if the mirror discovers topics then. Missing names and
    expressions without a match are refused, or with `allow_missing` also added. A pattern in `topics` is removed from
    the mirror's exclude list. `login` is of the source.

    Raises:
        UsageError: a name in `topics` is excluded too.
    """
    if contradicted := exclude.select(topics.names):
        names = ", ".join(contradicted)
        raise UsageError(f"--topics and --exclude contradict each other: {names}", "leave it out of one of them")
    results: list[TopicResult] = []
    missing: list[str] = []
    chosen: set[str] = set()
    stored_exclude = TopicSelector(tuple(p for p in settings.topics_exclude.patterns if p not in topics.patterns))
    for name in topics.names:
        topic = found.get(name)
        here = settings.topic_prefix + name
        if topic is not None and topic.error_code not in (0, Code.UNKNOWN_TOPIC_OR_PARTITION):
            results.append(_not_described(here, name, topic.error_code, login))
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
    # a pattern that is also excluded is an error, which `FilterChange.apply` raises
    included = [p for p in expressions.patterns if p not in exclude.patterns]
    unmatched = [p for p in included if not any(TopicSelector((p,)).matches(name) for name in chosen)]
    warnings = []
    if allow_missing:
        warnings += [f"the source has no topic {name} yet; it is added when it appears" for name in missing]
        warnings += [f"{pattern} matches no topic of the source yet" for pattern in unmatched]
        kept = TopicSelector((*expressions.patterns, *missing))
    else:
        results += [_matches_nothing(pattern, found) for pattern in unmatched]
        kept = TopicSelector(tuple(p for p in expressions.patterns if p not in unmatched))
    is_kept = bool(kept.patterns or (chosen and settings.discovers))
    if exclude.patterns and chosen and not is_kept:
        warnings.append(f"--exclude {exclude} is not kept: this mirror discovers no topics")
    filters = _filter_change(settings, kept, exclude if is_kept else TopicSelector(), topics)
    return Selection(tuple(sorted(chosen)), tuple(results), filters, tuple(warnings))


def _matches_nothing(pattern: str, found: Mapping[str, TopicMetadata]) -> TopicResult:
    """Return the result for an expression that chooses no topic."""
    one = TopicSelector((pattern,))
    if any(one.matches(name) for name, topic in found.items() if not (topic.error_code or is_internal(topic))):
        message = f"all topics that {pattern} matches are excluded by --exclude or by topics.exclude of this mirror"
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
        tuple(p for p in exclude.patterns if p not in excluded),
        tuple(p for p in excluded if p in meant.patterns),
    )


def _without_topic_ids(source: TopicMetadata, state_topic: TopicMetadata | None) -> str | None:
    """Return which cluster's inter-broker protocol is older than topic ids (KIP-516), if any."""
    if source.printed_topic_id is None:
        return "source"
    if state_topic is not None and not state_topic.error_code and state_topic.printed_topic_id is None:
        return "destination"
    return None


def decide(
    facts: AddFacts, source_topic: str, *, adopt: bool, named: bool, keep_stopped: bool = False
) -> TopicPlan | TopicResult:
    """Return what to do with one source topic, or why nothing is done; `named` unless an expression matched it.

    With `keep_stopped` a topic that was stopped is not adopted.
    """
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
            f"the {without_id} has no topic ids, without which a recreated topic cannot be detected",
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
    if former is not None and not gone and is_added(former):
        fixed = f"; --start-from {facts.start_from} does not change where it started" if facts.start_is_named else ""
        return TopicResult(topic, None, Outcome.NOOP, f"{topic} is already a mirror topic{fixed}")
    interrupted = former is not None and not gone and former.pending_operation == PENDING_ADD
    is_fixed = interrupted and former is not None and former.source_topic_id == there.printed_topic_id
    begun = frozenset(p for p in there.partitions if facts.destination_ends.get(TopicPartition(topic, p), 0) > 0)

    def plan(action: Action) -> TopicPlan:
        # an interrupted add has fixed the start; a topic with records continues at its end
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
            upstream_unknown=facts.upstream.unknown.get(source_topic),
            term=facts.next_term(topic, source_topic),
        )

    if here is None or here.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return plan(Action.CREATE)
    if here.error_code == Code.BROKER_NOT_AVAILABLE:
        return _refused(
            topic,
            f"whether {topic} exists on the destination is unknown: not all its brokers answer",
            "try again when they do",
        )
    if here.error_code:
        is_forbidden = here.error_code == Code.TOPIC_AUTHORIZATION_FAILED
        return _refused(
            topic,
            f"cannot describe topic {topic} on the destination: {code_name(here.error_code)}",
            grant_line(facts.destination_login, ("DESCRIBE",), *option("--topic", topic))
            if is_forbidden
            else "try again",
            Reason.NOT_AUTHORIZED if is_forbidden else None,
        )
    if len(here.partitions) != len(there.partitions):
        return _refused(
            topic,
            f"topic {topic} already exists with {counted(len(here.partitions), 'partition')}; {source_topic} has "
            f"{len(there.partitions)}",
            _same_count_hint(facts, here, len(there.partitions), adopt=adopt),
        )
    if interrupted and not begun:
        return plan(Action.FINISH)
    stopped = former is not None and not gone and former.desired is DesiredState.STOPPED
    if stopped and (keep_stopped or not (adopt or named)):
        return TopicResult(topic, None, Outcome.NOOP, f"{topic} was stopped and stays stopped unless added by name")
    if not adopt:
        return _refused(
            topic,
            f"{topic} was stopped and is now an ordinary topic"
            if stopped
            else f"topic {topic} already exists on the destination",
            "--adopt makes it a mirror topic if its records are a prefix of the source's",
        )
    if begun and facts.start_is_named and not facts.start_from.is_earliest:
        return _refused(
            topic,
            f"topic {topic} already holds records: copying continues at their end",
            f"omit --start-from {facts.start_from}, or delete the topic and add it again",
        )
    return plan(Action.ADOPT)


def _same_count_hint(facts: AddFacts, here: TopicMetadata, wanted: int, *, adopt: bool) -> str:
    """Return what to do about an existing topic with another number of partitions than its source."""
    if not adopt or len(here.partitions) > wanted:
        return "delete or rename it, or create the mirror with another topic.prefix"
    # a regular expression there: a dot would match others, which then grow as well
    topic, count = option("--topic", here.name.replace(".", "[.]")), option("--partitions", str(wanted))
    grow = command_line("kafka-topics", *admin_options(facts.destination_login), "--alter", *topic, *count)
    return f"add the missing partitions, and run the same command again:\n{grow}"


def owner_of(state: State, topic: str, mirror: str) -> str | None:
    """Return the other mirror that owns a destination topic, if any."""
    for other in state.mirrors:
        found = state.topic(other.name, topic) if other.name != mirror else None
        if found is not None and found.desired is not DesiredState.STOPPED:
            return other.name
    return None


def require_unchanged(state: State, plan: TopicPlan, mirror: str) -> None:
    """Raise RefusedError (FENCED) if another operation changed a topic's stored state since it was planned."""
    if state.topic(mirror, plan.topic) != plan.former or owner_of(state, plan.topic, mirror) is not None:
        raise RefusedError(
            f"another operation changed the stored state of {plan.topic} meanwhile",
            "check with `kmirror describe` and try again",
            Reason.FENCED,
        )


def is_added(record: TopicRecord) -> bool:
    """Return whether a record is of a mirror topic: neither stopped nor still being added."""
    return record.desired is not DesiredState.STOPPED and record.pending_operation != PENDING_ADD


def _refused(topic: str, message: str, hint: str, reason: Reason | None = None) -> TopicResult:
    return TopicResult(topic, None, Outcome.REFUSED, message, reason, hint=hint)


def _not_described(topic: str, name: str, code: int, login: ClientConfig) -> TopicResult:
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return _not_authorized(topic, name, ["DESCRIBE", "READ", "DESCRIBE_CONFIGS"], login)
    return _refused(topic, f"the source returned {code_name(code)} for topic {name}", "check the name")


def _not_authorized(topic: str, source_topic: str, missing: list[str], login: ClientConfig) -> TopicResult:
    return _refused(
        topic,
        f"the source does not grant us {' and '.join(missing)} on topic {source_topic}, if there is one",
        grant_line(login, missing, *option("--topic", source_topic)),
        Reason.NOT_AUTHORIZED,
    )
