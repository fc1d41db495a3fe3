"""Which settings a mirror topic gets: from the source topic's to what is set now and what is held back. Pure.

While a topic is mirrored, some settings would change or delete what was copied: the broker would compress again, put
its own times into records, refuse old ones, or delete segments that the source still has (its segments are cut
elsewhere). They stand at values that do nothing, and the source's are `deferred` until mirroring stops.

Sizes are among them. A source may hold batches larger than its `max.message.bytes` of today, which was lowered after
they were written, and a batch that has lost records to compaction can grow when the rest is compressed again. Only a
limit that no batch reaches is sure to take them all; nobody but kmirror writes to the topic meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

_ENDLESS = str((1 << 63) - 1)
_LARGEST_BATCH = str((1 << 31) - 1)
#: Kafka 4 takes no smaller segments, and kmirror's own filler has to fit into one.
_SMALLEST_SEGMENT = 1 << 20

#: Set whether or not the source topic sets them: the two clusters' defaults may differ.
ALWAYS = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "min.compaction.lag.ms",
)

#: What these are while mirroring, whatever the source says.
HELD_BACK: Mapping[str, str] = {
    "compression.type": "producer",
    "max.message.bytes": _LARGEST_BATCH,
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": _ENDLESS,
    "message.timestamp.after.max.ms": _ENDLESS,
    # only 3.9 has it; there it rules where `after` is at its default
    "message.timestamp.difference.max.ms": _ENDLESS,
    "retention.ms": "-1",
    "retention.bytes": "-1",
}

#: These belong to a cluster, not to the data.
_NEVER = frozenset(
    {
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
_NEVER_PREFIXES = ("remote.", "local.retention.")


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One setting of a topic as its cluster reports it; `value` is None where it is not told."""

    value: str | None
    #: True when it is set on the topic itself, not taken from the brokers.
    is_override: bool


TopicSettings = Mapping[str, TopicSetting]


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """What to set now, what to remember for the stop, and which keys the destination does not know."""

    now: Mapping[str, str]
    deferred: Mapping[str, str]
    left_out: tuple[str, ...] = ()


def settings_for(source: TopicSettings, known: Collection[str] | None) -> SettingsPlan:
    """Return the settings of a new mirror topic; `known`: the keys the destination has, None if it does not tell."""
    now = {key: found.value for key in ALWAYS if (found := source.get(key)) and found.value is not None}
    left_out = []
    for key, found in sorted(source.items()):
        if not found.is_override or found.value is None or key in HELD_BACK or is_local(key):
            continue
        if known is not None and key not in known:
            left_out.append(key)
        else:
            now[key] = found.value
    if "segment.bytes" in now:
        now["segment.bytes"] = str(max(int(now["segment.bytes"]), _SMALLEST_SEGMENT))
    held = {key: value for key, value in HELD_BACK.items() if _has(key, source, known)}
    deferred = {key: found.value for key in held if (found := source.get(key)) is not None and found.value is not None}
    return SettingsPlan({**now, **held}, deferred, tuple(left_out))


def settings_to_change(plan: SettingsPlan, present: TopicSettings) -> dict[str, str]:
    """Return what has to be set on a topic that exists, so that it can be mirrored to.

    What somebody has set there himself stays, unless mirroring needs it otherwise.
    """
    changes = {}
    for key, wanted in plan.now.items():
        found = present.get(key)
        value = found.value if found else None
        ruled = key in ALWAYS or key in HELD_BACK
        if value == wanted or (found and found.is_override and not ruled):
            continue
        changes[key] = wanted
    return changes


def is_local(key: str) -> bool:
    """Tell whether a setting belongs to a cluster and is never taken over."""
    return key in _NEVER or key.startswith(_NEVER_PREFIXES)


def _has(key: str, source: TopicSettings, known: Collection[str] | None) -> bool:
    if known is not None:
        return key in known
    return key != "message.timestamp.difference.max.ms" or key in source
