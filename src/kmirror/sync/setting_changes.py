"""Settings of a mirror topic: which follow the source, which are deferred, and what changes when mirroring stops. Pure:
two clusters' views in, changes out.

While a topic is mirrored, some settings would change or delete copied records: the broker would recompress them, set
its own timestamps, refuse old ones, or delete segments that the source still has (its segments are rolled at other
offsets). These get neutral values (`MIRROR_VALUES`), and the source's are `deferred` until mirroring stops.

`max.message.bytes` is one of them. A source may hold batches larger than its present limit, which was lowered later,
and a batch that lost records to compaction can grow when the rest is recompressed. Only a limit that no batch reaches
accepts them all; only kmirror writes to the topic meanwhile.

A source topic may itself be a mirror topic, with such values of its own. Then the values that count are those that its
cluster has stored for its source (`as_first_source`), and so on along a chain.

The values that kmirror set are stored (`TopicRecord.settings`): a key with another value was changed by someone here
and is left alone; a key that the source no longer sets is removed only while it still has the stored value. A key of
which the source says nothing, not even a default, stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kmirror.cluster.protocol.topic_configs import TopicSetting, TopicSettings
from kmirror.cluster.topics.settling import Settled, set_to, with_settled
from kmirror.settings.patterns import ExcludedNames, TopicSelector
from kmirror.state.records import TopicRecord
from kmirror.words import at_time, listed

_ENDLESS = str((1 << 63) - 1)
_LARGEST_BATCH = str((1 << 31) - 1)
#: Kafka 4 takes no smaller segments, and kmirror's own filler has to fit into one.
_SMALLEST_SEGMENT = 1 << 20

#: Always set, even if the source topic does not, because the clusters' defaults may differ and change. The stop removes
#: those that the source topic does not set and that equal the defaults here.
ALWAYS = ("cleanup.policy", "delete.retention.ms", "max.compaction.lag.ms", "min.compaction.lag.ms")

#: The values while a topic is mirrored, whatever the source has.
MIRROR_VALUES: Mapping[str, str] = {
    "compression.type": "producer",
    "max.message.bytes": _LARGEST_BATCH,
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": _ENDLESS,
    "message.timestamp.after.max.ms": _ENDLESS,
    # only in 3.9, where it applies if `after` has its default
    "message.timestamp.difference.max.ms": _ENDLESS,
    "retention.ms": "-1",
    "retention.bytes": "-1",
}

#: How the settings end that name the replicas to throttle, by number.
_THROTTLED = ".replication.throttled.replicas"
#: Settings of a cluster, not of the data: never synced.
_NEVER = frozenset(
    {
        "min.insync.replicas",
        "unclean.leader.election.enable",
        # brokers before Kafka 3 would refuse the batches of a copy if it were older than 0.11
        "message.format.version",
        f"leader{_THROTTLED}",
        f"follower{_THROTTLED}",
    }
)
_NEVER_PREFIXES = ("remote.", "local.retention.")
#: Those that name brokers of one topic, or that a mirror topic must not have.
_NOT_KEPT = _NEVER - {"min.insync.replicas", "unclean.leader.election.enable"}
_NOTHING = TopicSelector()
_LEFT_OUT = "left out by topic.properties.include or topic.properties.exclude"


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """What to set now, what to defer until the stop, and which keys the destination does not know."""

    now: Mapping[str, str]
    deferred: Mapping[str, str]
    left_out: tuple[str, ...] = ()
    #: Keys of `deferred` and `ALWAYS` that the source topic does not set itself: it takes them from its brokers.
    inherited: tuple[str, ...] = ()
    #: As in `TopicRecord`.
    first_source_seen_ms: int | None = None
    settled: Settled = field(default_factory=dict)

    def settling(self, settled: Settled) -> SettingsPlan:
        """Return the plan with what the destination takes instead of some of its settings."""
        return replace(self, now=set_to(with_settled(self.now, settled)), settled={**self.settled, **settled})


#: Settings to change on a topic; None: remove it, so that the brokers' default applies again.
SettingsChange = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class SettingsSync:
    """Changes that make a mirror topic follow its source's settings, and its record afterwards."""

    changes: SettingsChange
    record: TopicRecord


class SettingState(StrEnum):
    """How one setting of a mirror topic relates to its source's."""

    SYNCED = "SYNCED"
    HELD_BACK = "HELD_BACK"
    LOCAL = "LOCAL"
    EXCLUDED = "EXCLUDED"
    NEVER = "NEVER"
    UNKNOWN_HERE = "UNKNOWN_HERE"
    BROKER_DEFAULT = "BROKER_DEFAULT"
    PENDING = "PENDING"
    SOURCE_UNKNOWN = "SOURCE_UNKNOWN"


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    """One setting on both sides, None where unknown, and why they differ or may differ."""

    key: str
    source_value: str | None
    destination_value: str | None
    state: SettingState
    why: str


def settings_for(
    source: TopicSettings, known: Collection[str] | None, exclude: ExcludedNames | TopicSelector = _NOTHING
) -> SettingsPlan:
    """Return the settings of a new mirror topic.

    `known` are the keys that the destination has, None if unknown; `exclude` the keys that are not synced.
    """
    now = {
        key: found.value
        for key in ALWAYS
        if (found := source.get(key)) and found.value is not None and not exclude.matches(key)
    }
    left_out = []
    for key, found in sorted(source.items()):
        if (
            not found.is_override
            or found.value is None
            or key in MIRROR_VALUES
            or is_local(key)
            or exclude.matches(key)
        ):
            continue
        if known is not None and key not in known:
            left_out.append(key)
        else:
            now[key] = found.value
    if "segment.bytes" in now:
        now["segment.bytes"] = str(max(int(now["segment.bytes"]), _SMALLEST_SEGMENT))
    held = {key: value for key, value in MIRROR_VALUES.items() if _has(key, source, known)}
    deferred = {
        key: found.value
        for key in held
        if (found := source.get(key)) is not None and found.value is not None and not exclude.matches(key)
    }
    inherited = tuple(sorted(key for key in {*deferred, *(now.keys() & ALWAYS)} if not source[key].is_override))
    return SettingsPlan({**now, **held}, deferred, tuple(left_out), inherited)


def has_a_mirror_value(settings: TopicSettings) -> bool:
    """Return whether a topic sets one of `MIRROR_VALUES`, and so may be a mirror topic."""
    return any(
        (one := settings.get(key)) is not None and one == TopicSetting(v, True) for key, v in MIRROR_VALUES.items()
    )


def has_all_mirror_values(settings: TopicSettings) -> bool:
    """Return whether a topic sets all of `MIRROR_VALUES`, and so is a mirror topic, or was created by a mirror."""
    return all(settings[key] == TopicSetting(value, True) for key, value in MIRROR_VALUES.items() if key in settings)


def knows_no_first_source(topic: TopicRecord) -> bool:
    """Return whether the deferred values are those of another mirror topic: the first source's are unknown."""
    deferred = topic.deferred or {}
    return (
        bool(deferred)
        and all(deferred[key] == MIRROR_VALUES.get(key) for key in deferred)
        and not ({*deferred} & {*(topic.inherited or ())})
    )


def as_first_source(settings: TopicSettings, stored: TopicRecord) -> TopicSettings:
    """Return a mirror topic's settings with those of its first source instead of `MIRROR_VALUES`.

    `stored` is the record of a mirror topic with the same first source: the topic's own, or one further down the chain.
    """
    deferred, inherited = stored.deferred or {}, stored.inherited or ()
    view = {key: replace(one, is_override=one.is_override and key not in inherited) for key, one in settings.items()}
    for key in MIRROR_VALUES.keys() & settings.keys():
        view[key] = TopicSetting(deferred.get(key), key in deferred and key not in inherited)
    return view


def settings_to_change(plan: SettingsPlan, present: TopicSettings) -> dict[str, str]:
    """Return what to set on an existing topic before it can be mirrored to.

    Other values set there stay, unless mirroring needs another one.
    """
    return _to_set(plan, present, {})


def settings_made(plan: SettingsPlan, present: TopicSettings | None = None) -> dict[str, str]:
    """Return which settings count as set by kmirror on a topic; `present` are its settings, None for a new topic.

    A value that equals the source's counts: an earlier mirror of the topic set it.
    """
    if present is None:
        return dict(plan.now)
    changed = settings_to_change(plan, present)
    kept = {k: v for k, v in plan.now.items() if (found := present.get(k)) and found.is_override and found.value == v}
    return kept | changed


def settling(topic: TopicRecord, settled: Settled) -> TopicRecord:
    """Return the record of a mirror topic with what the destination takes instead of some of its settings."""
    return replace(topic, settled={**(topic.settled or {}), **settled})


def sync_settings(
    topic: TopicRecord, source: TopicSettings, present: TopicSettings, exclude: ExcludedNames | TopicSelector = _NOTHING
) -> SettingsSync:
    """Return the changes that make a mirror topic follow its source's settings; `present` are its own settings."""
    asked = settings_for(source, present, exclude)
    plan = asked.settling(topic.settled or {})
    ours = dict(topic.settings or {})
    to_set = _to_set(plan, present, ours)
    to_remove: dict[str, None] = {}
    for key, value in sorted(ours.items()):
        found = present.get(key)
        is_unchanged = found is not None and found.is_override and found.value == value
        if key in asked.now:  # what the destination refuses does not take away what it accepted before
            if key not in to_set and not is_unchanged:
                # someone set it here, perhaps to the source's value: it is no longer ours
                del ours[key]
            continue
        if key not in source and not exclude.matches(key):
            continue
        del ours[key]
        if is_unchanged and not exclude.matches(key):
            to_remove[key] = None
    untold = {key for key in {*(topic.deferred or {}), *ours} if key not in source and not exclude.matches(key)}
    deferred = {key: value for key, value in (topic.deferred or {}).items() if key in untold} | dict(plan.deferred)
    inherited = tuple(sorted({*plan.inherited, *(untold & {*(topic.inherited or ())})}))
    after = replace(topic, settings=ours | to_set, deferred=deferred, inherited=inherited)
    return SettingsSync({**to_set, **to_remove}, after)


def own_settings(
    topic: TopicRecord, present: TopicSettings, exclude: ExcludedNames | TopicSelector = _NOTHING
) -> dict[str, str]:
    """Return the settings of a mirror topic that someone else has set, and that kmirror leaves alone.

    `exclude` are the keys that are not synced.
    """
    ours, settled = topic.settings or {}, topic.settled or {}
    return {
        key: one.value
        for key, one in present.items()
        if one.is_override
        and one.value is not None
        and one.value != ours.get(key)
        and (key not in ALWAYS or exclude.matches(key))
        and (key not in MIRROR_VALUES or settled.get(key, "") is None)
        and not key.endswith(_THROTTLED)
    }


def settings_at_stop(
    topic: TopicRecord, present: TopicSettings, defaults: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Return the changes of a mirror topic's settings when mirroring stops: deferred keys get the source's values.

    `present` are the topic's settings now; values changed by others meanwhile, or by an earlier attempt, stay. A key
    that the source topic does not set is removed here (None), unless the brokers' default here differs from the
    source's value: `defaults` are the brokers' values, None if unknown. So nothing is deleted or refused that the
    source kept or accepted.
    """
    changes: dict[str, str | None] = {}
    deferred, inherited = topic.deferred or {}, topic.inherited or ()
    defaults = defaults or {}
    for key, neutral in _mirror_values(topic).items():
        found = present.get(key)
        if found is None or (found.is_override if neutral is None else found.value != neutral):
            continue
        wanted = deferred.get(key)
        if wanted is None or (key in inherited and defaults.get(key) == wanted):
            if found.is_override:
                changes[key] = None
        elif found.value != wanted or (not found.is_override and key not in inherited):
            changes[key] = wanted
    for key in ALWAYS:
        found = present.get(key)
        value = found.value if found is not None and found.is_override else None
        if value is not None and key in inherited and value == (topic.settings or {}).get(key) == defaults.get(key):
            changes[key] = None
    return changes


def settled_notes(plans: Mapping[str, SettingsPlan], now_ms: int) -> list[str]:
    """Return what is weaker about mirror topics, given by name, whose settings the destination did not take."""
    topics: dict[str, list[str]] = {}
    for topic, plan in plans.items():
        for key, value in sorted(plan.settled.items()):
            topics.setdefault(_settled_note(plan, key, value, now_ms), []).append(topic)
    return [f"{listed(names)}: {note}" for note, names in topics.items()]


def retention_notes(topics: Iterable[TopicRecord], now_ms: int) -> list[str]:
    """Return which mirror topics the destination deletes records of that their sources may still have."""
    found: dict[str, list[str]] = {}
    for topic in topics:
        value = (topic.settled or {}).get("retention.ms")
        is_compacted = "delete" not in (topic.settings or {}).get("cleanup.policy", "delete")
        if value is not None and not is_compacted:
            found.setdefault(value, []).append(topic.topic)
    return [
        f"{listed(names)}: the destination keeps records for retention.ms={value} only, so those before "
        f"{at_time(now_ms - int(value))} may have been deleted here while the source keeps them"
        for value, names in found.items()
    ]


def _settled_note(plan: SettingsPlan, key: str, value: str | None, now_ms: int) -> str:
    wanted = MIRROR_VALUES.get(key, "the source's value")
    note = f"the destination refuses {key}={wanted}, and {value} is the closest it accepts"
    if value is None:
        note = f"{key} is not set to {wanted}: what the topic has, or else the brokers' default, applies"
    if key == "max.message.bytes":
        return f"{note}; a partition whose source has a larger batch fails, and says how large it is"
    if key in ("retention.ms", "retention.bytes") and "delete" in plan.now.get("cleanup.policy", "delete"):
        before = (
            "" if value is None or key == "retention.bytes" else f", now those before {at_time(now_ms - int(value))},"
        )
        return f"{note}; older records{before} are deleted here even if the source keeps them"
    return note


def compare_settings(
    topic: TopicRecord,
    source: TopicSettings | None,
    present: TopicSettings,
    exclude: ExcludedNames | TopicSelector = _NOTHING,
    *,
    is_synced: bool = True,
) -> list[ComparedSetting]:
    """Return the settings that differ, are deferred, or were set by kmirror; `source` None: it does not answer.

    `is_synced`: later changes at the source are followed. Defaults that are equal on both sides are left out.
    """
    if source is None:
        return _without_source(topic, present)
    rows = []
    plan = settings_for(source, present, exclude).settling(topic.settled or {})
    sync = sync_settings(topic, source, present, exclude)
    for key in sorted({*source, *present}):
        there, here = source.get(key), present.get(key)
        state, why = _state_of(key, there, here, plan, sync, exclude, is_synced=is_synced)
        if here is None:
            is_shown = there is not None and there.is_override
        elif there is None:
            is_shown = here.is_override or state is SettingState.HELD_BACK
        else:
            is_ours = key in (topic.settings or {}) or key in sync.changes
            is_shown = is_ours or there.value != here.value or state is SettingState.HELD_BACK
        if is_shown:
            rows.append(ComparedSetting(key, there.value if there else None, here.value if here else None, state, why))
    return rows


def is_local(key: str) -> bool:
    """Return whether a setting belongs to a cluster and is never synced."""
    return key in _NEVER or key.startswith(_NEVER_PREFIXES)


def kept_settings(settings: TopicSettings | int) -> dict[str, str]:
    """Return the settings of a topic that are never synced, for the topic that takes its place; none if unreadable."""
    known = {} if isinstance(settings, int) else settings
    return {
        key: one.value
        for key, one in known.items()
        if is_local(key) and key not in _NOT_KEPT and one.is_override and one.value is not None
    }


def _mirror_values(topic: TopicRecord) -> dict[str, str | None]:
    """Return the values while a topic is mirrored, with what the destination takes instead; None: left alone."""
    settled = topic.settled or {}
    return {key: settled.get(key, value) for key, value in MIRROR_VALUES.items()}


def _to_set(plan: SettingsPlan, present: TopicSettings, ours: Mapping[str, str]) -> dict[str, str]:
    changes = {}
    for key, wanted in plan.now.items():
        found = present.get(key)
        value = found.value if found else None
        is_required = key in ALWAYS or key in MIRROR_VALUES
        is_set_by_others = found is not None and found.is_override and (key not in ours or ours[key] != value)
        if value == wanted or (is_set_by_others and not is_required):
            continue
        changes[key] = wanted
    return changes


def _state_of(
    key: str,
    there: TopicSetting | None,
    here: TopicSetting | None,
    plan: SettingsPlan,
    sync: SettingsSync,
    exclude: ExcludedNames | TopicSelector,
    *,
    is_synced: bool,
) -> tuple[SettingState, str]:
    """Return a setting's state, and why."""
    when = "the next sync changes it" if is_synced else "sync.topic.configs.enabled=false: it is left unchanged"
    if key in MIRROR_VALUES and here is not None:
        wanted = plan.settled.get(key, MIRROR_VALUES[key])
        if wanted is None:
            return SettingState.LOCAL, f"it is left alone: {MIRROR_VALUES[key]}, as kmirror would set it, is not wanted"
        if here.value != wanted:
            return SettingState.PENDING, f"must be {wanted} while the topic is mirrored; {when}"
        if exclude.matches(key):
            return SettingState.HELD_BACK, f"{_LEFT_OUT}: removed here when mirroring stops"
        why = "could change or delete copied records"
        if key in plan.settled:
            why = f"the destination refuses {MIRROR_VALUES[key]}, and this is the closest it accepts"
        return SettingState.HELD_BACK, f"{why}: the source's value is applied when mirroring stops"
    if is_local(key):
        return SettingState.NEVER, "belongs to the cluster, not to the data: it is never synced"
    if exclude.matches(key):
        return SettingState.EXCLUDED, _LEFT_OUT
    if here is None:
        return SettingState.UNKNOWN_HERE, "the destination has no such setting"
    if key in sync.changes:
        wanted = sync.changes[key]
        what = "is no longer set on the source and is to be removed" if wanted is None else f"is to be {wanted}"
        return SettingState.PENDING, f"{what}; {when}"
    if key in plan.now and plan.now[key] == here.value:
        if there is not None and there.value != here.value:
            return SettingState.SYNCED, f"brokers and kmirror's own batches need at least {_SMALLEST_SEGMENT}"
        return SettingState.SYNCED, "is the source's"
    if plan.settled.get(key, "") is None:
        return SettingState.LOCAL, "the destination refuses the source's value: its own is kept"
    if here.is_override:
        return SettingState.LOCAL, "it was set here by another client and is kept"
    return SettingState.BROKER_DEFAULT, "no topic sets it, and the brokers' defaults differ"


def _without_source(topic: TopicRecord, present: TopicSettings) -> list[ComparedSetting]:
    """Return what is known without the source."""
    rows = []
    for key in sorted({*(topic.settings or {}), *(key for key in MIRROR_VALUES if key in present)}):
        here = present.get(key)
        state = SettingState.HELD_BACK if key in MIRROR_VALUES else SettingState.SOURCE_UNKNOWN
        known = (topic.deferred or {}).get(key) if key in MIRROR_VALUES else None
        why = "the source does not answer"
        if key in MIRROR_VALUES:
            why = f"{why}: its last known value is applied when mirroring stops"
        rows.append(ComparedSetting(key, known, here.value if here else None, state, why))
    return rows


def _has(key: str, source: TopicSettings, known: Collection[str] | None) -> bool:
    if known is not None:
        return key in known
    return key != "message.timestamp.difference.max.ms" or key in source
