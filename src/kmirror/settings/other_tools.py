"""Keys of MirrorMaker 2, of Confluent's cluster links and of Kafka's own cluster mirroring that are not settings here.

Keys that mean the same as a setting are its aliases (`settings.table`). All others are here, each with the reason why
it has no meaning and what to do instead. A value that asks for what a mirror does anyway is accepted; a converter
leaves out `harmless` keys, and refuses the rest, without which the copy would be different.

The names are those of Kafka 4.3 (`MirrorSourceConfig`, `MirrorCheckpointConfig`, `MirrorHeartbeatConfig`,
`MirrorMakerConfig`, Connect's workers), Confluent Platform 8 and KIP-1279.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

_REMOVE = "remove it"


@dataclass(frozen=True, slots=True)
class OtherToolKey:
    """One key of another tool: why it is not a setting, what to do instead, and values that need no setting."""

    why: str
    instead: str = _REMOVE
    accepted: tuple[str, ...] = ()
    harmless: bool = False

    def accepts(self, value: str) -> bool:
        """Return whether a value asks for what a mirror does anyway."""
        return value.strip().lower() in (one.lower() for one in self.accepted)


def _harmless(why: str, keys: str) -> dict[str, OtherToolKey]:
    return dict.fromkeys(keys.split(), OtherToolKey(why, harmless=True))


def _mirror_class(name: str) -> tuple[str, ...]:
    return name, f"org.apache.kafka.connect.mirror.{name}"


IDENTITY_POLICY = _mirror_class("IdentityReplicationPolicy")
DEFAULT_POLICY = _mirror_class("DefaultReplicationPolicy")

_FETCHES = "the size and the waits of fetches are chosen for the copy"
_WORKERS = "there are no Connect workers: `kmirror run` copies on Spark"
_INTERNAL = "kmirror's own topics, and those it writes for MirrorMaker 2's clients, get the brokers' default"
_BYTES = "records are copied byte for byte"
_BYTE_ARRAYS = ("org.apache.kafka.connect.converters.ByteArrayConverter", "")
_CONVERTED = OtherToolKey(_BYTES, "remove it; convert records in a program that reads the mirror topic", _BYTE_ARRAYS)
_PATTERNS = "topics, groups and topic settings are chosen by lists of names and regular expressions"
_BROKERS = "brokers of the destination need no settings: `kmirror run` copies, not the brokers"
_LOCAL_LOGIN = "the login to the destination is an option of each command"

OTHER_TOOL_KEYS: dict[str, OtherToolKey] = {
    # MirrorMaker 2: which topics, groups and names
    "replication.policy.class": OtherToolKey(
        "a mirror topic's name is topic.prefix and the source topic's name",
        "remove it, and set topic.prefix for names other than the source's",
        IDENTITY_POLICY,
    ),
    "replication.policy.separator": OtherToolKey(
        "a mirror topic's name is topic.prefix and the source topic's name",
        "remove it, and set topic.prefix with the separator at its end",
    ),
    "topic.filter.class": OtherToolKey(
        _PATTERNS, "remove it, and set topics.include and topics.exclude", _mirror_class("DefaultTopicFilter")
    ),
    "group.filter.class": OtherToolKey(
        _PATTERNS, "remove it, and set groups.include and groups.exclude", _mirror_class("DefaultGroupFilter")
    ),
    "config.property.filter.class": OtherToolKey(
        _PATTERNS, "remove it, and set topic.properties.exclude", _mirror_class("DefaultConfigPropertyFilter")
    ),
    "forwarding.admin.class": OtherToolKey(
        "topics, settings and ACLs are changed with Kafka's own requests",
        "remove it; where another system creates topics, create them there and use `kmirror add --adopt`",
        ("org.apache.kafka.clients.admin.ForwardingAdmin",),
    ),
    "refresh.topics.enabled": OtherToolKey(
        "topics that match a regular expression are added when they appear",
        "remove it, and list plain names in topics.include to discover nothing",
        ("true",),
    ),
    "refresh.groups.enabled": OtherToolKey(
        "groups are looked up at each sync", "remove it, and list the groups in groups.include", ("true",)
    ),
    **_harmless("groups are looked up at each sync of offsets", "refresh.groups.interval.seconds"),
    "use.defaults.from": OtherToolKey(
        "settings that a source topic does not set itself are not copied, except those that decide which records stay",
        "remove it, and set them on the source topics",
        ("target",),
    ),
    # MirrorMaker 2: its own topics
    **_harmless("offsets are the same on both clusters: nothing has to be translated", "offset.lag.max"),
    "offset-syncs.topic.location": OtherToolKey(
        "kmirror writes nothing to the source", "remove it, or write target", ("target",), harmless=True
    ),
    **_harmless(
        _INTERNAL,
        "offset-syncs.topic.replication.factor checkpoints.topic.replication.factor"
        " heartbeats.topic.replication.factor",
    ),
    **_harmless("heartbeats of other flows are mirrored like any topic", "heartbeats.replication.enabled"),
    **_harmless(
        "MirrorMaker 2's own topics have a dot in their names", "replication.policy.internal.topic.separator.enabled"
    ),
    # MirrorMaker 2: Connect's connectors and workers
    "enabled": OtherToolKey("a mirror that exists is enabled", "remove it, and use `kmirror pause`", ("true",)),
    **_harmless("a mirror has the name that it is created with", "name"),
    **_harmless(
        _WORKERS,
        "connector.class connector.plugin.version tasks.max.enforce config.action.reload plugin.path plugin.discovery"
        " dedicated.mode.enable.internal.rest listeners admin.listeners response.http.headers.config"
        " access.control.allow.origin access.control.allow.methods header.converter.plugin.version"
        " key.converter.plugin.version value.converter.plugin.version scheduled.rebalance.max.delay.ms"
        " rebalance.timeout.ms worker.sync.timeout.ms worker.unsync.backoff.ms task.shutdown.graceful.timeout.ms"
        " connector.client.config.override.policy topic.tracking.enable topic.tracking.allow.reset"
        " connect.protocol header.converter offset.flush.interval.ms offset.flush.timeout.ms",
    ),
    **_harmless(
        "every record is copied exactly once",
        "exactly.once.source.support exactly.once.support transaction.boundary transaction.boundary.interval.ms"
        " offsets.storage.topic",
    ),
    **_harmless("time-outs are those of the client: default.api.timeout.ms", "admin.timeout.ms"),
    **_harmless(_FETCHES, "consumer.poll.timeout.ms"),
    **_harmless("metrics are served by `kmirror run --http`", "metric.names.formats"),
    "key.converter": _CONVERTED,
    "value.converter": _CONVERTED,
    "errors.tolerance": OtherToolKey("a mirror never skips a record", _REMOVE, ("none",)),
    # Confluent: direction
    "link.mode": OtherToolKey(
        "a mirror is created at the destination, and has one direction",
        "create the mirror at the destination, without link.mode; for both directions create one on each cluster",
        ("DESTINATION",),
    ),
    "connection.mode": OtherToolKey(
        "kmirror connects to the source",
        "remove it, and run kmirror on a machine that can reach both clusters",
        ("OUTBOUND",),
    ),
    **_harmless("kmirror connects to the source", "remote.link.connection.mode reverse.connection.setup.timeout.ms"),
    # Confluent: fetching, and whether the source answers
    **_harmless(
        _FETCHES,
        "fetch.response.max.bytes fetch.response.min.bytes fetch.wait.max.ms fetch.backoff.ms replica.fetch.max.bytes"
        " replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms replica.fetch.backoff.ms"
        " replica.socket.timeout.ms replica.socket.receive.buffer.bytes",
    ),
    **_harmless(
        "a source that does not answer is shown as SOURCE_UNAVAILABLE after ten seconds",
        "availability.check.ms availability.check.consecutive.failure.threshold",
    ),
    # Apache Kafka's cluster mirroring
    **dict.fromkeys(
        (
            "mirror.failed.retry.initial.backoff.ms",
            "mirror.failed.retry.max.backoff.ms",
            "mirror.failed.retry.max.attempts",
        ),
        OtherToolKey(
            "a FAILED partition is inspected again for as long as the engine runs",
            "remove it; retry.timeout.ms says how long transient errors are retried before that",
            harmless=True,
        ),
    ),
}

#: Keys by their prefix; the longest prefix counts.
FAMILIES: dict[str, OtherToolKey] = {
    "transforms": OtherToolKey(_BYTES, "remove it; change records in a program that writes to another topic", ("",)),
    "predicates": OtherToolKey(_BYTES, "remove it; choose records in a program that writes to another topic", ("",)),
    "key.converter.": OtherToolKey(_BYTES, harmless=True),
    "value.converter.": OtherToolKey(_BYTES, harmless=True),
    "header.converter.": OtherToolKey(_BYTES, harmless=True),
    "errors.": OtherToolKey("records are not converted, so conversion cannot fail", harmless=True),
    "topic.creation.": OtherToolKey("mirror topics are created like their sources", harmless=True),
    "offset.storage.": OtherToolKey(_WORKERS, harmless=True),
    "status.storage.": OtherToolKey(_WORKERS, harmless=True),
    "config.storage.": OtherToolKey(_WORKERS, harmless=True),
    "listeners.": OtherToolKey(_WORKERS, harmless=True),
    "admin.listeners.": OtherToolKey(_WORKERS, harmless=True),
    "rest.": OtherToolKey(_WORKERS, harmless=True),
    "inter.worker.": OtherToolKey(_WORKERS, harmless=True),
    "metrics.": OtherToolKey("metrics are served by `kmirror run --http`", harmless=True),
    "producer.": OtherToolKey("records are appended by kmirror's own requests", harmless=True),
    "consumer.": OtherToolKey("a mirror has one connection to its source", "write it without consumer."),
    "admin.": OtherToolKey("a mirror has one connection to its source", "write it without admin."),
    "offset-syncs.": OtherToolKey(_INTERNAL, harmless=True),
    "local.": OtherToolKey(_LOCAL_LOGIN, "give it with --command-config, under the key without local."),
    "password.encoder.": OtherToolKey(
        "secrets are references, resolved where they are used", "write ${env:NAME} or ${file:PATH:KEY}", harmless=True
    ),
    "confluent.": OtherToolKey("it is for brokers of Confluent Server", harmless=True),
    "mirror.": OtherToolKey(_BROKERS, harmless=True),
}

#: Keys of cluster links that `create` uses once; they are not settings.
SOURCE_CLUSTER_ID, DESTINATION_CLUSTER_ID, PAUSED = "source.cluster.id", "dest.cluster.id", "cluster.link.paused"
_AT_CREATION = {
    SOURCE_CLUSTER_ID: OtherToolKey("a mirror's source cluster never changes", "give it when the mirror is created"),
    DESTINATION_CLUSTER_ID: OtherToolKey("it is checked when a mirror is created", "give --expect-cluster-id"),
    PAUSED: OtherToolKey("a mirror is paused by a command", "use `kmirror pause` and `kmirror resume`"),
}
AT_CREATION = frozenset(_AT_CREATION)


def other_tool_key(key: str) -> OtherToolKey | None:
    """Return the row of another tool's key, None if it is unknown."""
    found = OTHER_TOOL_KEYS.get(key) or _AT_CREATION.get(key)
    if found is not None:
        return found
    families = sorted((begin for begin in FAMILIES if key.startswith(begin)), key=len)
    return FAMILIES[families[-1]] if families else None


def nearest_other_tool_key(key: str) -> str | None:
    """Return the key that was probably meant by a mistyped one, None if none is close."""
    return next(iter(get_close_matches(key.lower(), list(OTHER_TOOL_KEYS), n=1, cutoff=0.85)), None)
