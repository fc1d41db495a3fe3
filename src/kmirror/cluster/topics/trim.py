"""Delete records below an offset, even if the topic's cleanup policy forbids it. Blocking.

DeleteRecords is refused (44) while a topic's cleanup.policy lacks `delete`. So `delete` is added temporarily, with
retention.ms and retention.bytes so large that nothing else is deleted; then the settings are restored exactly.

These large values also encode what to restore. Their upper bits are a mark that no one sets by chance, the lower ones
the previous value, and whether the topic had overridden it. So what a crash leaves behind is recognised by its mark, on
any machine, without any other record: `unfinished_trims` finds it, `restore_settings` repairs it, and so does the next
`trim_compacted` of that topic. Until then the topic keeps all its records, and is still compacted.

Needs DELETE on the topic, and for a compacted one ALTER_CONFIGS and DESCRIBE_CONFIGS.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient, require, seconds_left
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition, by_topic
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.topics.topic_settings import alteration, topic_settings
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, RefusedError

_POLICY, _TIME, _BYTES = "cleanup.policy", "retention.ms", "retention.bytes"
_COMPACT, _BOTH = "compact", "compact,delete"
_STEP_S = 0.1
_TIMEOUT_S = 30.0

# A marked value, from its highest bits: 16 bits "km", 1 bit whether the topic overrode cleanup.policy, 46 bits for the
# setting: 0 if not overridden, all ones for the largest possible number, else the setting plus two (it may be -1).
_VALUE_BITS = 46
_VALUE_MASK = (1 << _VALUE_BITS) - 1
_OWN_POLICY = 1 << _VALUE_BITS
_MARK_SHIFT = _VALUE_BITS + 1
_MARK = 0x6B6D
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result for one partition: its log start now, None with an error code."""

    error_code: int
    log_start_offset: int | None


class _Settings(NamedTuple):
    """The three settings as the topic overrides them; None for the brokers' default."""

    policy: str | None
    retention_ms: int | None
    retention_bytes: int | None

    def marked(self, topic: str) -> dict[str, str]:
        """Return the temporary settings, which encode these. Raises RefusedError."""
        if self.policy not in {None, _COMPACT}:
            raise RefusedError(
                f"topic {topic} cannot be trimmed: its {_POLICY} is {self.policy!r}",
                f"set {_POLICY} to {_COMPACT} or {_BOTH}",
            )
        own_policy = _OWN_POLICY if self.policy is not None else 0
        return {
            _POLICY: _BOTH,
            _TIME: str(_marked(topic, _TIME, self.retention_ms) | own_policy),
            _BYTES: str(_marked(topic, _BYTES, self.retention_bytes)),
        }

    def to_restore(self) -> dict[str, str | None]:
        """Return the values to set, None for those to remove."""
        time_and_bytes = (self.retention_ms, self.retention_bytes)
        texts = [None if value is None else str(value) for value in time_and_bytes]
        return dict(zip((_POLICY, _TIME, _BYTES), (self.policy, *texts), strict=True))


def delete_records(
    client: ClusterClient, offsets: Mapping[TopicPartition, int], *, timeout_s: float = _TIMEOUT_S
) -> dict[TopicPartition, Trimmed]:
    """Delete the records below these offsets; a log that already starts higher stays as it is.

    A request without an answer is repeated: deleting twice changes nothing. Without a leader in time: an error code.

    Raises:
        UnreachableError: no broker of the cluster answers at all.
    """
    topic_type = kafka.DeleteRecordsRequest.DeleteRecordsTopic
    partition_type = topic_type.DeleteRecordsPartition

    def build(led: list[TopicPartition], _: ClusterMetadata) -> Any:
        topics = [
            topic_type(
                name=topic,
                partitions=[partition_type(partition_index=p, offset=offsets[TopicPartition(topic, p)]) for p in some],
            )
            for topic, some in by_topic(led).items()
        ]
        return kafka.DeleteRecordsRequest(topics=topics, timeout_ms=int(timeout_s * 1000))

    def read(answer: Any, _: object) -> Iterable[tuple[TopicPartition, int, int]]:
        for topic in answer.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

    found = client.per_leader(offsets, build, read, timeout=timeout_s)
    return {p: Trimmed(code, None if code else low_watermark) for p, (code, low_watermark) in found.items()}


def trim_compacted(client: ClusterClient, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Trimmed]:
    """Delete the records below these offsets whatever the topics' cleanup policy, which is restored afterwards.

    Raises:
        BrokerError: the settings of a topic may not be read or changed.
        RefusedError: a setting could not be restored exactly, or the cluster's topic policy forbids the temporary ones;
            nothing was changed.
        UnreachableError: the cluster does not answer; `unfinished_trims` lists what is left to restore.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    found = delete_records(client, offsets)
    refused = {p: offsets[p] for p, trimmed in found.items() if trimmed.error_code == Code.POLICY_VIOLATION}
    # an unfinished trim has left its temporary settings, with which nothing is refused
    unfinished = unfinished_trims(client, {p.topic for p in offsets})
    before = _settings(client, {p.topic for p in refused}.union(unfinished))
    marked = {topic: settings.marked(topic) for topic, settings in before.items()}
    try:
        _protect(client, marked)
        while refused:
            found |= delete_records(client, refused, timeout_s=seconds_left(deadline))
            refused = {p: offset for p, offset in refused.items() if found[p].error_code == Code.POLICY_VIOLATION}
            if time.monotonic() > deadline:
                break
            time.sleep(_STEP_S)  # brokers see new settings one after the other
    except BaseException as error:
        try:
            _restore(client, before)
        except (KmirrorError, OutcomeUnknown) as second:
            error.add_note(f"the settings of {', '.join(sorted(before))} could not be restored: {second}")
        raise
    _restore(client, before)
    return found


def has_unfinished_trim(settings: TopicSettings) -> bool:
    """Return whether a topic still has the temporary settings of a trim, by its settings."""
    retention = settings.get(_TIME)
    return retention is not None and retention.is_override and _is_marked(retention.value)


def unfinished_trims(client: ClusterClient, topics: Collection[str]) -> list[str]:
    """Return the topics that still have the temporary settings of a trim.

    Raises:
        BrokerError: the settings of a topic may not be read.
        UnreachableError: the cluster does not answer.
    """
    return sorted(topic for topic, values in _own_values(client, topics).items() if _is_marked(values.get(_TIME)))


def restore_settings(client: ClusterClient, topics: Collection[str]) -> list[str]:
    """Restore the settings of the topics that a trim left unfinished; return them.

    Brokers see it one after the other: called again at once, it may return the same topics.

    Raises:
        BrokerError: the settings of a topic may not be read or changed.
        UnreachableError: the cluster does not answer.
    """
    unfinished = unfinished_trims(client, topics)
    _restore(client, _settings(client, unfinished))
    return unfinished


def _settings(client: ClusterClient, topics: Collection[str]) -> dict[str, _Settings]:
    """Read what the topics override; temporary settings of an unfinished trim are decoded."""
    return {topic: _decoded(values) for topic, values in _own_values(client, topics).items()}


def _decoded(values: Mapping[str, str]) -> _Settings:
    retention_ms, retention_bytes = values.get(_TIME), values.get(_BYTES)
    if not _is_marked(retention_ms):
        return _Settings(values.get(_POLICY), _number(retention_ms), _number(retention_bytes))
    policy = _COMPACT if int(retention_ms or 0) & _OWN_POLICY else None
    return _Settings(policy, _unmarked(retention_ms), _unmarked(retention_bytes))


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _is_marked(value: str | None) -> bool:
    return value is not None and int(value) >> _MARK_SHIFT == _MARK


def _marked(topic: str, name: str, value: int | None) -> int:
    if value is None:
        code = 0
    elif value == _LARGEST:
        code = _VALUE_MASK
    elif value + 2 < _VALUE_MASK:
        code = value + 2
    else:
        raise RefusedError(
            f"topic {topic} cannot be trimmed: its {name} is {value}, which could not be restored exactly",
            f"set {name} to -1, which also keeps everything, or below {_VALUE_MASK - 2}",
        )
    return _MARK << _MARK_SHIFT | code


def _unmarked(value: str | None) -> int | None:
    code = int(value or 0) & _VALUE_MASK
    return None if code == 0 else _LARGEST if code == _VALUE_MASK else code - 2


def _own_values(client: ClusterClient, topics: Collection[str]) -> dict[str, dict[str, str]]:
    found = {}
    for topic, settings in topic_settings(client, sorted(topics), [_POLICY, _TIME, _BYTES]).items():
        if isinstance(settings, int):
            raise BrokerError(settings, code_name(settings), f"reading the settings of {topic}")
        own = ((key, one.value) for key, one in settings.items() if one.is_override)
        found[topic] = {key: value for key, value in own if value is not None}
    return found


def _restore(client: ClusterClient, settings: Mapping[str, _Settings]) -> None:
    _alter(client, {topic: own.to_restore() for topic, own in settings.items()})


def _protect(client: ClusterClient, marked: Mapping[str, Mapping[str, str]]) -> None:
    """Set the temporary settings, without which retention could delete records while it applies."""
    try:
        _alter(client, marked)
    except BrokerError as error:
        if error.code != Code.POLICY_VIOLATION:
            raise
        raise RefusedError(
            f"{', '.join(sorted(marked))} cannot be trimmed, because it is compacted and the cluster's topic policy"
            f" forbids the retention that protects its records meanwhile ({error.detail})",
            "ask who runs the cluster to allow any retention.ms and retention.bytes for this topic",
        ) from error


def _alter(client: ClusterClient, changes: Mapping[str, Mapping[str, str | None]]) -> None:
    """Set these settings, all of one topic at once; None resets one to the brokers' default."""
    if not changes:
        return
    answer = client.ask_any(alteration(changes))
    for result in answer.responses:
        require(result.error_code, f"changing the settings of {result.resource_name}", result.error_message)
