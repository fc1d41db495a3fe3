"""How many replicas kmirror's own topics and mirror topics have, or would get, whether that is enough,
and which settings of new mirror topics the destination does not take.

Of topics that do not exist yet the controller says it, in requests that are only validated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.topics.policies import settled_to_create
from kmirror.cluster.topics.topic_requests import CreatedTopic, NewTopic, create_topics
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import BrokerError
from kmirror.ops.base.context import now_ms
from kmirror.settings.table import Settings
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.sync.setting_changes import MIRROR_VALUES, SettingsPlan, settled_notes
from kmirror.words import counted, listed

_KEY = "min.insync.replicas"
_OWN = (STATE_TOPIC, EVENTS_TOPIC)
#: The key of mirror topics that do not exist yet.
NEW_TOPICS = "new mirror topics"


@dataclass(frozen=True, slots=True)
class Replication:
    """The replicas of a topic, and how many must be in sync; None: unknown. It `exists`, or would be created so."""

    replicas: int
    min_in_sync: int | None
    exists: bool


def replication_of(client: ClusterClient, settings: Settings, topics: Sequence[str]) -> dict[str, Replication]:
    """Return the replication of kmirror's own topics, of `topics`, and of new mirror topics, as far as it is known.

    Raises:
        UnreachableError, OutcomeUnknown: no answer.
    """
    found = client.metadata([*_OWN, *topics]).topics
    replicas = {
        name: topic.replication_factor for name, topic in found.items() if not topic.error_code and topic.partitions
    }
    kept = topic_settings(client, replicas, [_KEY])
    known = {name: Replication(count, _kept(kept[name]), True) for name, count in replicas.items()}
    new = settings.topic_prefix + NEVER_CREATED
    factors = {name: settings.state_replication_factor for name in _OWN if name not in replicas}
    factors[new] = settings.replication_factor
    asked = [NewTopic(name, 1, factor, {}) for name, factor in factors.items()]
    for name, answer in create_topics(client, asked, validate_only=True).items():
        if isinstance(answer, CreatedTopic) and answer.replication_factor is not None:
            count = answer.replication_factor
            known[NEW_TOPICS if name == new else name] = Replication(count, _number(answer.settings.get(_KEY)), False)
    return known


def weak_replication(found: Mapping[str, Replication], brokers: int) -> list[tuple[str, str]]:
    """Return what is weak about the replication of topics on a cluster of so many brokers, and what to do about it."""
    groups: dict[Replication, list[str]] = {}
    for name, one in found.items():
        groups.setdefault(one, []).append(name)
    notes = []
    for one, names in groups.items():
        has = ("has" if len(names) == 1 else "have") if one.exists else "get"
        what = f"{listed(names)} {has} {counted(one.replicas, 'replica')}"
        if one.replicas == 1 and brokers > 1:
            notes.append((f"{what} on a cluster of {brokers} brokers: losing one broker loses them", _more(names, one)))
        if one.min_in_sync is not None and one.min_in_sync > one.replicas:
            cannot = f"{_KEY}={one.min_in_sync} can never be met: brokers refuse all writes, or ignore the setting"
            notes.append((f"{what}, so {cannot}", f"lower {_KEY} to at most {one.replicas}, or add replicas"))
    return notes


def _more(names: Sequence[str], one: Replication) -> str:
    if one.exists:
        return "add replicas with kafka-reassign-partitions.sh"
    settings = {"replication.factor" if name == NEW_TOPICS else "state.replication.factor" for name in names}
    return f"set {' and '.join(sorted(settings))}, for instance to 3, before they are created"


def _kept(settings: TopicSettings | int) -> int | None:
    found = None if isinstance(settings, int) else settings.get(_KEY)
    return None if found is None else _number(found.value)


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


#: The name of a topic that is never created, after the mirror's prefix.
NEVER_CREATED = "kmirror-check"
#: Known to brokers of all versions.
_KNOWN = {key: value for key, value in MIRROR_VALUES.items() if not key.endswith(".max.ms")}
#: Said by other lines of a check, or nothing about new topics.
_NOT_ASKED = (
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.TOPIC_ALREADY_EXISTS,
)


def weaker_topics(client: ClusterClient, settings: Settings) -> list[str]:
    """Return which settings of mirror topics the destination does not take, and what that means.

    Raises:
        BrokerError: it would create none.
        UnreachableError, OutcomeUnknown: no answer.
    """
    topic = settings.topic_prefix + NEVER_CREATED
    try:
        settled = settled_to_create(client, topic, 1, settings.replication_factor, _KNOWN)
    except BrokerError as error:
        if error.code in _NOT_ASKED:
            return []
        raise
    plan = SettingsPlan(_KNOWN, {}).settling(settled)
    return settled_notes({"new mirror topics": plan}, now_ms())
