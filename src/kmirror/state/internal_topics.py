"""The settings of the internal topics, the rights on them, and the errors for a state topic that cannot be read.

What is left of it must not be taken for all there is.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.cluster.committed import memory_of
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.rights.acl_commands import Grant, alter_topic
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.commands import option
from kmirror.errors import RefusedError, TimedOutError
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.words import byte_count

#: LogAppendTime, because brokers refuse a client's timestamp that is far ahead of theirs (by an hour since 4.0).
_RECORDS: Mapping[str, str] = {
    "message.timestamp.type": "LogAppendTime",
    # a multiple of the largest batch that is written, whatever the brokers' message.max.bytes is
    "max.message.bytes": str(2 * 1024 * 1024),
    # whatever the brokers' default is: an election must not undo a stop, or a claim on a lease
    "unclean.leader.election.enable": "false",
}
STATE_TOPIC_SETTINGS: Mapping[str, str] = {
    **_RECORDS,
    "cleanup.policy": "compact",
    # small segments and an eager cleaner: a read from the beginning is short
    "segment.bytes": str(8 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    # a writer in doubt looks for its record at its offset, even if the next one replaces it soon
    "min.compaction.lag.ms": "60000",
}
EVENTS_TOPIC_SETTINGS: Mapping[str, str] = {
    **_RECORDS,
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
STATE_TOPIC, EVENTS_TOPIC = "__kmirror_state", "__kmirror_events"
_SETTINGS = {STATE_TOPIC: STATE_TOPIC_SETTINGS, EVENTS_TOPIC: EVENTS_TOPIC_SETTINGS}

_HINT = (
    "restore the topic if you can. To take over at once, see `kmirror help break-glass`. To begin again, delete the "
    "topics __kmirror_state and __kmirror_events, then `kmirror create` and `kmirror add --adopt`"
)


def losing_policy(config: ClientConfig, topic: str, settings: TopicSettings) -> RefusedError | None:
    """Return the error for an internal topic with a cleanup policy that loses what kmirror needs; None if it has not.

    `config` is how to connect to its cluster.
    """
    policy = _SETTINGS[topic]["cleanup.policy"]
    if (has := settings["cleanup.policy"].value) == policy:
        return None
    hint = alter_topic(config, topic, f"cleanup.policy={policy}")
    return RefusedError(f"topic {topic} has cleanup.policy={has}, which would lose kmirror's state", hint)


def needs_one_partition(topic: str, count: int) -> RefusedError:
    """Return the error for an internal topic that another client made with several partitions."""
    return RefusedError(
        f"topic {topic} exists with {count} partitions, but kmirror needs one",
        f"its first partition is empty: if nothing needs it, delete {topic} and start again",
    )


class StateLostError(RefusedError):
    """The state topic lacks records: which mirrors there are is unknown."""


def beginning_lost(start: int) -> StateLostError:
    """Return the error for a log that starts at this offset instead of 0."""
    return StateLostError(
        f"the records of topic __kmirror_state before offset {start} were deleted: which mirrors and topics they were "
        "about is unknown",
        _HINT,
    )


def all_lost(*, is_missing: bool) -> StateLostError:
    """Return the error for a state topic that is missing or empty, although there are events."""
    return StateLostError(
        f"topic __kmirror_state is {'missing' if is_missing else 'empty'}, but __kmirror_events has records: what was "
        "stored of the mirrors is lost",
        _HINT,
    )


#: The most memory that stored records may take: five kilobytes for each of 100,000 partitions. They need one or two.
_MOST_BYTES = 500_000_000


class StoredValues:
    """The stored values of a state topic by key, the last written last, in limited memory."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._size = 0

    def take(self, key: bytes, value: bytes | None) -> None:
        """Store a record or, with None, remove it. Raises RefusedError if that is too much."""
        before = self.values.pop(key, None)
        if before is not None:
            self._size -= memory_of(key, before)
        if value is not None:
            self.values[key] = value
            self._size += memory_of(key, value)
        if self._size > _MOST_BYTES:
            raise RefusedError(
                f"the records of topic {STATE_TOPIC} take more than {byte_count(_MOST_BYTES)} of memory, far more than "
                "kmirror's own",
                "find out which client writes to it, and remove its records with tombstones",
            )


_UNFINISHED_HINT = (
    "try again: brokers abort a killed process's transaction after some seconds; for one that stays open for minutes "
    "use kafka-transactions.sh (find-hanging, abort)"
)


def hidden_note(offset: int, topic: str = STATE_TOPIC) -> str:
    """Return the sentence for readers of what was stored before this offset only."""
    what = f"{topic} has an unfinished transaction at offset {offset}: what was stored since is not shown yet"
    return f"{what}; {_UNFINISHED_HINT}"


def unfinished(offset: int, seconds: float) -> TimedOutError:
    """Return the error for a transaction that hides what follows this offset, and did not end in this time."""
    return TimedOutError(
        f"__kmirror_state has an unfinished transaction at offset {offset}, and it did not end within {seconds:g} s",
        _UNFINISHED_HINT,
    )


#: Prefix of kmirror's own topics.
OWN_TOPICS = "__kmirror_"

OWN_TOPICS_GRANT = Grant(option("--topic", OWN_TOPICS), ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS"), prefixed=True)
OWN_IDS_GRANT = Grant(option("--transactional-id", OWN_TRANSACTIONAL_IDS), ("WRITE",), prefixed=True)


def lacking_grant(code: int) -> Grant:
    """Return the missing rights when a broker answers a request on kmirror's own resources with this code."""
    return OWN_IDS_GRANT if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else OWN_TOPICS_GRANT
