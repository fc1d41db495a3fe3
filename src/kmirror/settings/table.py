"""The table of mirror settings.

A row is a field of `Settings`: its type, and in `_row` its key, default, help, how to parse it, whether it can be
changed once the mirror exists, and the names other tools have for it. Flags, files, stored records, validation, help
and the docs all come from these rows; a new setting is a new row.

A mirror's file also contains the source's client properties; `split` separates the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

from kmirror.errors import RefusedError, UsageError
from kmirror.settings.acl_filters import AclFilters, parse_acl_filters
from kmirror.settings.client_keys import closest_client_key, is_client_key, refusal_of
from kmirror.settings.durations import parse_timestamp
from kmirror.settings.other_tools import nearest_other_tool_key, other_tool_key
from kmirror.settings.patterns import ExcludedNames, TopicSelector, split_patterns
from kmirror.settings.topic_filters import TopicFilters, group_patterns

_LONGEST_PREFIX = 100
_EPOCH = datetime(1970, 1, 1)
_LATEST_TIMESTAMP_MS = (datetime.max - _EPOCH) // timedelta(milliseconds=1)
_START_HINT = "use one of: earliest, latest, timestamp:T, with T as 2026-03-01T12:00:00Z or epoch milliseconds"


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Where the copy of a topic begins: `earliest`, `latest`, or the first record with `timestamp_ms` or later."""

    word: str = "earliest"
    #: Epoch milliseconds; None unless the word is `timestamp`.
    timestamp_ms: int | None = None

    @property
    def is_earliest(self) -> bool:
        """Return whether the copy begins where the source's log does."""
        return self.word == "earliest"

    def __str__(self) -> str:
        if self.timestamp_ms is None:
            return self.word
        moment = _EPOCH + timedelta(milliseconds=self.timestamp_ms)
        precision = "milliseconds" if self.timestamp_ms % 1000 else "seconds"
        return f"{self.word}:{moment.isoformat(timespec=precision)}Z"


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value: `read(key, text)` parses it or raises UsageError; `write` is the opposite."""

    name: str
    #: The allowed values, for the docs: `1 – 86400`, `earliest`.
    allowed: str
    read: Callable[[str, str], Any]
    write: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Alias:
    """Another tool's name for a setting; `translate(key, text)` converts its value to ours."""

    key: str
    translate: Callable[[str, str], str] = lambda _, text: text
    #: If several such names are given, the lowest value counts: other tools have two intervals where we have one.
    lowest: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    key: str
    attribute: str
    kind: ValueType
    default: Any
    help: str
    changeable: bool
    aliases: tuple[Alias, ...]

    def lowest_of(self, key: str, one: str, other: str) -> str | None:
        """Return which of two given values counts; None if they contradict each other."""
        counts = any(alias.lowest for alias in self.aliases if alias.key == key)
        return min((one, other), key=int) if counts else None


def _row(key: str, kind: ValueType, default: Any, help: str, *aliases: Alias, changeable: bool = True) -> Any:  # noqa: A002
    metadata = {"key": key, "kind": kind, "help": help, "aliases": aliases, "changeable": changeable}
    return field(default=default, metadata=metadata)


def _integer(lowest: int, highest: int, unit: str = "") -> ValueType:
    def read(key: str, text: str) -> int:
        if not re.fullmatch("-?[0-9]{1,18}", text) or not lowest <= int(text) <= highest:
            raise UsageError(
                f"{key}={text} is not a whole number from {lowest} to {highest}{unit and f' ({unit})'}",
                "give a number in that range" + (", without a unit" if unit else ""),
            )
        return int(text)

    return ValueType("int", f"{lowest} – {highest}", read)


def _auto_or(kind: ValueType) -> ValueType:
    def read(key: str, text: str) -> Any:
        if text.lower() == "auto":
            return None
        try:
            return kind.read(key, text)
        except UsageError as error:
            raise UsageError(error.message, f"{error.hint}, or auto") from None

    def write(value: Any) -> str:
        return "auto" if value is None else kind.write(value)

    return ValueType(kind.name, f"auto, {kind.allowed}", read, write)


def _byte_rate(lowest: int, highest: int) -> ValueType:
    def read(key: str, text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or (int(text) and not lowest <= int(text) <= highest):
            raise UsageError(
                f"{key}={text} is neither 0 nor a whole number of bytes a second from {lowest} to {highest}",
                "give a number in that range, without a unit; 0 takes the limit away",
            )
        return int(text)

    return ValueType("int", f"0, {lowest} – {highest}", read)


def parse_start_from(key: str, text: str) -> StartFrom:
    """Parse where a copy begins: `earliest`, `latest` or `timestamp:T`; `key` is the flag or setting.

    Raises:
        UsageError: it is none of these.
    """
    word, colon, moment = text.strip().partition(":")
    word = word.lower()
    if word in ("earliest", "latest") and not colon:
        return StartFrom(word)
    timestamp_ms = _timestamp_ms(moment) if word == "timestamp" else None
    if timestamp_ms is None:
        raise UsageError(f"invalid value {key}={text}", _START_HINT)
    return StartFrom(word, timestamp_ms)


def _timestamp_ms(text: str) -> int | None:
    """Parse an absolute point in time; None if it is not one, or not in 1970 – 9999."""
    if not re.fullmatch("[0-9]{12,15}", text) and not re.search("[-T]", text):
        return None
    try:
        timestamp_ms = parse_timestamp(text, 0)
    except UsageError:
        return None
    return timestamp_ms if 0 <= timestamp_ms <= _LATEST_TIMESTAMP_MS else None


def _start_offset_spec(key: str, text: str) -> str:
    """Translate Confluent's value, which is a bare time where ours is `timestamp:T`."""
    known = text if text.lower() in ("earliest", "latest") else f"timestamp:{text}"
    try:
        return str(parse_start_from(key, known))
    except UsageError:
        hint = "use one of: earliest, latest, a time such as 2026-03-01T12:00:00Z, epoch milliseconds"
        raise UsageError(f"invalid value {key}={text}", hint) from None


def _boolean() -> ValueType:
    def read(key: str, text: str) -> bool:
        if text.lower() not in {"true", "false"}:
            raise UsageError(f"invalid value {key}={text}", "use true or false")
        return text.lower() == "true"

    return ValueType("boolean", "true | false", read, lambda value: str(value).lower())


def _choice(*words: str) -> ValueType:
    def read(key: str, text: str) -> str:
        if text.lower() not in words:
            raise UsageError(f"invalid value {key}={text}", f"use one of: {', '.join(words)}")
        return text.lower()

    return ValueType("word", " | ".join(words), read)


def _patterns() -> ValueType:
    def read(key: str, text: str) -> TopicSelector:
        return TopicSelector(tuple(dict.fromkeys(split_patterns(text, key))) if text else ())

    return ValueType("list", "comma-separated names and regular expressions", read)


def _topic_prefix() -> ValueType:
    def read(key: str, text: str) -> str:
        if not re.fullmatch("[A-Za-z0-9._-]*", text) or len(text) > _LONGEST_PREFIX:
            raise UsageError(
                f"{key}={text} is not a valid topic name prefix",
                f"use at most {_LONGEST_PREFIX} letters, digits, dots, underscores and hyphens",
            )
        return text

    return ValueType("string", f"at most {_LONGEST_PREFIX} topic name characters", read)


def _alias() -> ValueType:
    def read(key: str, text: str) -> str:
        if not re.fullmatch(f"[A-Za-z0-9._-]{{1,{_LONGEST_PREFIX}}}", text):
            raise UsageError(
                f"{key}={text} is not a valid cluster alias",
                f"use 1 to {_LONGEST_PREFIX} letters, digits, dots, underscores and hyphens",
            )
        return text

    return ValueType("string", f"1 – {_LONGEST_PREFIX} topic name characters", read)


def _replication_factor(key: str, text: str) -> int:
    return -1 if text == "-1" else int(_integer(1, 32_767).read(key, text))


def _start_of_consumers(key: str, text: str) -> str:
    """Translate `auto.offset.reset` of MirrorMaker 2's consumers, which says where the copy of a new topic begins."""
    if text.lower() in ("earliest", "latest"):
        return text
    raise UsageError(f"invalid value {key}={text}", "use earliest or latest; start.from says where a topic begins")


def _divergence_policy(key: str, text: str) -> str:
    return "auto" if _boolean().read(key, text) else "fail"


def _seconds_of_milliseconds(key: str, text: str) -> str:
    """Round up to whole seconds."""
    return str(-(-int(_integer(0, 86_400_000, "milliseconds").read(key, text)) // 1000))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one mirror, typed; made by `parse_settings`. Pickles."""

    topics_include: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "topics.include",
        _patterns(),
        TopicSelector(),
        "Source topics to mirror. `add` extends this list.",
        Alias("topics"),
        Alias("mirror.topics.include"),
    )
    topics_exclude: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "topics.exclude",
        _patterns(),
        TopicSelector(),
        "Source topics that are never mirrored. Overrides all other filters.",
        Alias("topics.blacklist"),
        Alias("mirror.topics.exclude"),
    )
    auto_create_mirror_topics_enable: bool = _row(
        "auto.create.mirror.topics.enable",
        _boolean(),
        False,
        "Select topics with auto.create.mirror.topics.filters instead of topics.include.",
    )
    auto_create_mirror_topics_filters: TopicFilters = _row(  # noqa: RUF009 - the row is a field
        "auto.create.mirror.topics.filters",
        ValueType("JSON", '{"topicFilters":[…]}', TopicFilters.parse),
        TopicFilters(),
        "Source topics to mirror, in Confluent's topicFilters format. Cleared when auto creation is disabled.",
    )
    topic_prefix: str = _row(
        "topic.prefix",
        _topic_prefix(),
        "",
        "Prefix of mirror topic names, put before the source topic's name.",
        Alias("cluster.link.prefix"),
        changeable=False,
    )
    start_from: StartFrom = _row(  # noqa: RUF009 - the row is a field
        "start.from",
        ValueType("start", "earliest | latest | timestamp:T", parse_start_from),
        StartFrom(),
        "Where to start copying a topic. Resolved once, when the topic is added.",
        Alias("mirror.start.offset.spec", _start_offset_spec),
        Alias("consumer.auto.offset.reset", _start_of_consumers),
    )
    replication_factor: int = _row(
        "replication.factor",
        ValueType("int", "1 – 32767, or -1", _replication_factor),
        -1,
        "Replication factor of topics that kmirror creates. -1: the destination brokers' default.",
    )
    state_replication_factor: int = _row(
        "state.replication.factor",
        ValueType("int", "1 – 32767, or -1", _replication_factor),
        -1,
        "Replication factor of kmirror's own topics, if `create` has to create them. -1: the brokers' default.",
        changeable=False,
    )
    refresh_interval_seconds: int = _row(
        "refresh.interval.seconds",
        _integer(1, 86_400, "seconds"),
        10,
        "How often the engine checks the source for new topics, partitions, topic settings and ACLs. Of several names"
        " for it the shortest interval counts.",
        Alias("topic.config.sync.ms", _seconds_of_milliseconds, lowest=True),
        Alias("acl.sync.ms", _seconds_of_milliseconds, lowest=True),
        Alias("refresh.topics.interval.seconds", lowest=True),
        Alias("sync.topic.configs.interval.seconds", lowest=True),
        Alias("sync.topic.acls.interval.seconds", lowest=True),
        Alias("mirror.metadata.refresh.interval.ms", _seconds_of_milliseconds, lowest=True),
    )
    sync_topic_configs_enabled: bool = _row(
        "sync.topic.configs.enabled",
        _boolean(),
        True,
        "Apply later changes of source topic settings to mirror topics. `add` always copies the current settings.",
    )
    topic_properties_include: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "topic.properties.include",
        _patterns(),
        TopicSelector((".*",)),
        "Topic settings to copy from the source.",
        Alias("topic.config.sync.include"),
    )
    topic_properties_exclude: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "topic.properties.exclude",
        _patterns(),
        TopicSelector(),
        "Topic settings not to copy from the source. Overrides topic.properties.include.",
        Alias("config.properties.exclude"),
        Alias("config.properties.blacklist"),
        Alias("mirror.topic.properties.exclude"),
    )
    retry_timeout_ms: int = _row(
        "retry.timeout.ms",
        _integer(0, 86_400_000, "milliseconds"),
        300_000,
        "How long to retry transient errors before a partition is FAILED.",
        Alias("cluster.link.retry.timeout.ms"),
    )
    follow_log_start: bool = _row(
        "follow.log.start",
        _boolean(),
        True,
        "Delete records from the mirror topic after the source has deleted them.",
    )
    follow_log_start_delay_ms: int = _row(
        "follow.log.start.delay.ms",
        _integer(0, 31_536_000_000, "milliseconds"),
        3_600_000,
        "How long the mirror topic keeps records after the source has deleted them.",
    )
    source_truncation_policy: str = _row(
        "source.truncation.policy",
        _choice("fail", "follow"),
        "fail",
        "If the source deleted records before they were copied: the partition is FAILED until `recover`, or copying"
        " continues after the lost records and an event is recorded.",
    )
    source_reset_policy: str = _row(
        "source.reset.policy",
        _choice("auto", "fail"),
        "auto",
        "If a source topic was deleted and recreated: archive the old records, rebuild the mirror topic and record an"
        " event, or the topic is FAILED until `recover --accept-reset`.",
    )
    source_reset_auto_max_topics: int = _row(
        "source.reset.auto.max.topics",
        _integer(0, 100_000),
        3,
        "Maximum number of topics per mirror that are rebuilt automatically within an hour.",
    )
    source_divergence_policy: str = _row(
        "source.divergence.policy",
        _choice("fail", "auto"),
        "fail",
        "If the source's history was rewritten (such as by an unclean election): the topic is FAILED until"
        " `recover --accept-divergence`, or records that the source no longer has are archived, the topic is"
        " rebuilt and an event is recorded.",
        Alias("mirror.support.unclean.leader.election", _divergence_policy),
        Alias("mirror.unclean.leader.election.enable", _divergence_policy),
    )
    groups_include: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "groups.include",
        _patterns(),
        TopicSelector((".*",)),
        "Consumer and share groups whose offsets are synced (source names).",
        Alias("groups"),
        Alias("mirror.groups.include"),
    )
    groups_exclude: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "groups.exclude",
        _patterns(),
        TopicSelector(("console-consumer-.*", "connect-.*", "__.*")),
        "Groups whose offsets are never synced. Overrides groups.include.",
        Alias("groups.blacklist"),
        Alias("mirror.groups.exclude"),
    )
    sync_group_offsets_enabled: bool = _row(
        "sync.group.offsets.enabled",
        _boolean(),
        True,
        "Sync group offsets from source to destination while the group has no members at the destination.",
        Alias("consumer.offset.sync.enable"),
    )
    sync_group_offsets_interval_seconds: int = _row(
        "sync.group.offsets.interval.seconds",
        _integer(1, 86_400, "seconds"),
        10,
        "How often the engine syncs group offsets.",
        Alias("consumer.offset.sync.ms", _seconds_of_milliseconds),
    )
    group_prefix_enable: bool = _row(
        "group.prefix.enable",
        _boolean(),
        False,
        "Prefix group names at the destination with topic.prefix.",
        Alias("consumer.group.prefix.enable"),
        changeable=False,
    )
    sync_topic_acls_enabled: bool = _row(
        "sync.topic.acls.enabled",
        _boolean(),
        False,
        "Sync the source's ACLs on mirrored topics and groups, and those of their producers on transactional ids. ACLs"
        " that allow writing to a mirror topic are created when mirroring stops.",
        Alias("acl.sync.enable"),
    )
    sync_cluster_acls_enabled: bool = _row(
        "sync.cluster.acls.enabled",
        _boolean(),
        False,
        "Also sync the source's ACLs on the cluster; needs sync.topic.acls.enabled. They are power over all topics:"
        " CREATE, ALTER, ALTER_CONFIGS and ALL are created once the destination has no mirror topic left.",
    )
    sync_quotas_enabled: bool = _row(
        "sync.quotas.enabled",
        _boolean(),
        False,
        "Sync the source's client quotas of users and client ids by name; never those of defaults and addresses, nor"
        " over a quota that others have set at the destination.",
    )
    compare_scram_users_enabled: bool = _row(
        "compare.scram.users.enabled",
        _boolean(),
        False,
        "Report SCRAM users of the source that are missing at the destination. Brokers do not reveal passwords, so"
        " users are never copied.",
    )
    source_cluster_alias: str = _row(
        "source.cluster.alias", _alias(), "source", "What MirrorMaker 2's clients call the source. For emit.* only."
    )
    target_cluster_alias: str = _row(
        "target.cluster.alias",
        _alias(),
        "target",
        "What MirrorMaker 2's clients call the destination. For emit.* only.",
    )
    emit_offset_syncs_enabled: bool = _row(
        "emit.offset-syncs.enabled",
        _boolean(),
        False,
        "Write MirrorMaker 2's offset syncs to mm2-offset-syncs.<source alias>.internal on the destination.",
    )
    emit_checkpoints_enabled: bool = _row(
        "emit.checkpoints.enabled",
        _boolean(),
        False,
        "Write MirrorMaker 2's checkpoints to <source alias>.checkpoints.internal on the destination, for programs that"
        " use RemoteClusterUtils.",
    )
    emit_checkpoints_interval_seconds: int = _row(
        "emit.checkpoints.interval.seconds",
        _integer(1, 86_400, "seconds"),
        60,
        "How often the engine writes offset syncs and checkpoints, where they are enabled.",
    )
    emit_heartbeats_enabled: bool = _row(
        "emit.heartbeats.enabled",
        _boolean(),
        False,
        "Write MirrorMaker 2's heartbeats to topic heartbeats on the destination, while the source answers.",
    )
    emit_heartbeats_interval_seconds: int = _row(
        "emit.heartbeats.interval.seconds",
        _integer(1, 86_400, "seconds"),
        1,
        "How often the engine writes a heartbeat, where they are enabled.",
    )
    acls_include: AclFilters = _row(  # noqa: RUF009 - the row is a field
        "acls.include",
        ValueType("list", 'rules such as TOPIC;orders-.*;READ, or {"aclFilters":[…]}', parse_acl_filters),
        AclFilters(),
        "ACLs to sync: rules as in Kafka's cluster mirroring (type;name;operation;permission;principal), or Confluent's"
        " JSON. Empty: all.",
        Alias("mirror.acl.include"),
        Alias("acl.filters"),
    )
    read_only: str = _row(
        "read.only",
        _choice("enforce", "detect"),
        "enforce",
        "`enforce`: ACLs deny all other clients write access to mirror topics, where possible. `detect`, and wherever"
        " ACLs are not possible: foreign writes are detected afterwards.",
    )
    copy_lanes: int | None = _row(
        "copy.lanes",
        _auto_or(_integer(1, 256)),
        None,
        "Number of Spark tasks that copy in parallel. Partitions are distributed among them. `auto`: two, and on"
        " a machine with more than eight cores one for every four.",
        Alias("tasks.max"),
        Alias("num.cluster.link.fetchers"),
        Alias("mirror.num.replica.fetchers"),
    )
    copy_connections: int | None = _row(
        "copy.connections",
        _auto_or(_integer(1, 64, "connections")),
        None,
        "Most connections that the mirror opens to a broker to fetch or to append, shared among its lanes. More than"
        " one are opened only over a distance, and only while each brings its share. `auto`: 64.",
    )
    copy_buffer_bytes: int = _row(
        "copy.buffer.bytes",
        _integer(8 << 20, 1 << 40, "bytes"),
        64 << 20,
        "Most bytes that a lane holds of what it has fetched and not yet appended.",
    )
    copy_merge_batches: str = _row(
        "copy.merge.batches",
        _choice("auto", "never"),
        "auto",
        "`auto`: small batches that are read together are appended as one; offsets, timestamps and contents of records"
        " stay the same. `never`: batches stay as the source stores them.",
    )
    throttle_bytes_per_second: int = _row(
        "throttle.bytes.per.second",
        _byte_rate(65_536, 1 << 40),
        0,
        "Limit on the bytes per second that the mirror fetches from its source, shared among its lanes. 0: no limit.",
        Alias("mirror.replication.throttled.rate"),
    )
    priority_topics: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        "priority.topics",
        _patterns(),
        TopicSelector(),
        "Source topics to copy first. While one of them is more than 5 s behind, the other topics wait.",
    )
    metrics_per_partition: bool = _row(
        "metrics.per.partition",
        _boolean(),
        False,
        "`run --http` also serves the lag and the ends of each partition at /metrics.",
    )

    def selects(self, source_topic: str) -> bool:
        """Return whether the filters select a source topic."""
        filters = self.auto_create_mirror_topics_filters if self.auto_create_mirror_topics_enable else None
        chosen = filters.matches(source_topic) if filters is not None else self.topics_include.matches(source_topic)
        return chosen and not self.topics_exclude.matches(source_topic)

    def selects_group(self, group: str) -> bool:
        """Return whether to sync the offsets of a source group."""
        return self.groups_include.matches(group) and not self.groups_exclude.matches(group)

    @property
    def excluded_properties(self) -> ExcludedNames:
        """The selector of topic settings that are not copied."""
        return ExcludedNames(self.topic_properties_include, self.topic_properties_exclude)

    @property
    def group_prefix(self) -> str:
        """The prefix of group names at the destination."""
        return self.topic_prefix if self.group_prefix_enable else ""

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Return the source topics that the filters select by plain names."""
        if self.auto_create_mirror_topics_enable:
            return self.auto_create_mirror_topics_filters.names
        return self.topics_include.names

    @property
    def discovers(self) -> bool:
        """Return whether there are filters that later topics of the source may match."""
        return self.auto_create_mirror_topics_enable or bool(self.topics_include.patterns)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(attribute=row.name, default=row.default, **row.metadata) for row in fields(Settings)
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}
_ALIASES = {alias.key: (setting, alias) for setting in SETTINGS for alias in setting.aliases}
#: Confluent's group filters, which are two settings here.
GROUP_FILTERS = "consumer.offset.group.filters"


def split(properties: Mapping[str, str], *, complete: bool = True) -> tuple[dict[str, str], dict[str, str]]:
    """Return the source's client properties and the mirror's settings, the latter under kmirror's own keys.

    `complete` is as for `parse_settings`.

    Raises:
        UsageError: a key is neither (names it and the closest known one), or a client property has no effect.
    """
    connection = {key: value for key, value in properties.items() if is_client_key(key)}
    for key, value in connection.items():
        if refused := refusal_of(key, value):
            raise UsageError(f"{key}={value} has no effect on a mirror: {refused[0]}", refused[1])
    rest = {key: value for key, value in properties.items() if key not in connection and not _is_met(key, value)}
    return connection, canonical(rest, complete=complete)


def _is_met(key: str, value: str) -> bool:
    """Return whether another tool's key asks for what a mirror does anyway."""
    foreign = other_tool_key(key)
    return foreign is not None and foreign.accepts(value)


def _expanded(raw: Mapping[str, str]) -> Mapping[str, str]:
    """Return settings with Confluent's group filters replaced by two settings."""
    if GROUP_FILTERS not in raw:
        return raw
    both = dict(
        zip(
            ("groups.include", "groups.exclude"), group_patterns(GROUP_FILTERS, raw[GROUP_FILTERS].strip()), strict=True
        )
    )
    for key in both:
        if key in raw:
            raise UsageError(f"{key} and {GROUP_FILTERS} contradict each other: both select groups", f"keep only {key}")
    return {key: text for key, text in (*raw.items(), *both.items()) if key != GROUP_FILTERS}


def canonical(raw: Mapping[str, str], *, complete: bool = True) -> dict[str, str]:
    """Return checked settings as they are stored: under kmirror's own keys, aliases translated, values normalised.

    `complete` is as for `parse_settings`.

    Raises:
        UsageError: as `parse_settings`.
    """
    settings = parse_settings(raw, complete=complete)
    given = {setting_of(key).key for key in _expanded(raw)}
    return {
        setting.key: setting.kind.write(getattr(settings, setting.attribute))
        for setting in SETTINGS
        if setting.key in given
    }


def parse_settings(raw: Mapping[str, str], *, complete: bool = True) -> Settings:
    """Parse the settings of a flag, a file or a stored record; those that are not given have their defaults.

    If they are not `complete`, others will be added, and contradictions are not checked.

    Raises:
        UsageError: an unknown key, a value that is invalid or out of range, or two that contradict each other; names
            the keys.
    """
    values: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for key, text in _expanded(raw).items():
        setting = setting_of(key)
        alias = _ALIASES[key][1] if key in _ALIASES else None
        value = setting.kind.read(key, (alias.translate(key, text.strip()) if alias else text).strip())
        if alias and alias.lowest and _is_lowest(written_as.get(setting.key)):
            value = min(value, values[setting.attribute])
        elif setting.attribute in values and values[setting.attribute] != value:
            raise UsageError(
                f"{written_as[setting.key]} and {key} contradict each other: they are the same setting",
                f"keep only {setting.key}",
            )
        values[setting.attribute] = value
        written_as[setting.key] = key
    settings = Settings(**values)
    if complete:
        _check_contradictions(settings)
        _check_emitted(settings, written_as)
    return settings


def _is_lowest(key: str | None) -> bool:
    return key in _ALIASES and _ALIASES[key][1].lowest


def stored_settings(raw: Mapping[str, str], *, complete: bool = True) -> Settings:
    """Parse the settings of a mirror's record; those that only a newer kmirror knows (`unknown_settings`) are ignored.

    Raises:
        UsageError: as `parse_settings`, for known keys.
    """
    unknown = unknown_settings(raw)
    return parse_settings({key: text for key, text in raw.items() if key not in unknown}, complete=complete)


def unknown_settings(raw: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys that this version does not know."""
    return tuple(sorted(key for key in raw if key not in _BY_KEY and key not in _ALIASES))


def is_setting(key: str) -> bool:
    """Return whether a key is a setting, under our name or another tool's."""
    return key in _BY_KEY or key in _ALIASES or key == GROUP_FILTERS


def setting_of(key: str) -> Setting:
    """Return the row of a key or alias.

    Raises:
        UsageError: there is none; names the closest known key.
    """
    if key in _BY_KEY:
        return _BY_KEY[key]
    if key in _ALIASES:
        return _ALIASES[key][0]
    if foreign := other_tool_key(key):
        raise UsageError(f"{key} is not a setting of a mirror: {foreign.why}", foreign.instead)
    meant = nearest_key(key)
    raise UsageError(
        f"unknown setting {key}",
        f"did you mean {meant}?" if meant else f"use one of: {', '.join(_BY_KEY)}; or a Kafka client property",
    )


def nearest_key(key: str) -> str | None:
    """Return the key of a setting, a Kafka client or another tool that was probably meant, None if none is close."""
    near = get_close_matches(key.lower().replace("_", "."), [*_BY_KEY, *_ALIASES], n=1, cutoff=0.75)
    return near[0] if near else closest_client_key(key) or nearest_other_tool_key(key)


def differing_keys(one: Settings, other: Settings) -> list[str]:
    """Return the keys whose values differ, in the table's order."""
    return [row.key for row in SETTINGS if getattr(one, row.attribute) != getattr(other, row.attribute)]


def check_change(before: Settings, after: Settings) -> None:
    """Refuse a change of settings that are fixed once the mirror exists.

    Raises:
        RefusedError: names them.
    """
    fixed = [key for key in differing_keys(before, after) if not _BY_KEY[key].changeable]
    if fixed:
        raise RefusedError(
            f"{', '.join(fixed)} cannot be changed once the mirror exists", "create a new mirror with that setting"
        )


def describe() -> list[dict[str, str]]:
    """Return a row per setting for the docs: key, type, allowed, default, changeable, aliases, help."""
    return [
        {
            "key": setting.key,
            "type": setting.kind.name,
            "allowed": setting.kind.allowed,
            "default": setting.kind.write(setting.default),
            "changeable": "yes" if setting.changeable else "no",
            "aliases": ", ".join(alias.key for alias in setting.aliases),
            "help": setting.help,
        }
        for setting in SETTINGS
    ]


def _check_emitted(settings: Settings, written_as: Mapping[str, str]) -> None:
    """Refuse what MirrorMaker 2 refuses too (KIP-1031), if offset syncs are disabled explicitly."""
    disabled = "emit.offset-syncs.enabled"
    if settings.emit_offset_syncs_enabled or disabled not in written_as:
        return
    for key, is_enabled in (
        ("emit.checkpoints.enabled", settings.emit_checkpoints_enabled),
        ("sync.group.offsets.enabled", settings.sync_group_offsets_enabled),
    ):
        if is_enabled and key in written_as:
            raise UsageError(
                f"{disabled}=false and {key}=true contradict each other: MirrorMaker 2 needs offset syncs for that",
                f"remove {disabled}: kmirror does not need offset syncs, and writes none unless it is true",
            )


def _check_contradictions(settings: Settings) -> None:
    if settings.sync_topic_acls_enabled and settings.topic_prefix:
        raise UsageError(
            "topic.prefix and sync.topic.acls.enabled exclude each other: ACLs name the source topics, but the mirror"
            " topics have other names",
            "remove one of them",
        )
    if settings.sync_cluster_acls_enabled and not settings.sync_topic_acls_enabled:
        raise UsageError(
            "sync.cluster.acls.enabled=true requires sync.topic.acls.enabled=true",
            "set sync.topic.acls.enabled=true, or remove sync.cluster.acls.enabled",
        )
    for what, include, exclude in (
        ("topics", settings.topics_include, settings.topics_exclude),
        ("groups", settings.groups_include, settings.groups_exclude),
    ):
        both = [pattern for pattern in include.patterns if pattern in exclude.patterns]
        if both:
            raise UsageError(
                f"{what}.include and {what}.exclude contradict each other: both contain {', '.join(both)}",
                "remove it from one of them",
            )
    if settings.group_prefix_enable and not settings.topic_prefix:
        raise UsageError(
            "group.prefix.enable=true requires topic.prefix",
            "set topic.prefix, or remove group.prefix.enable",
        )
    enable, filters = "auto.create.mirror.topics.enable", "auto.create.mirror.topics.filters"
    enabled, chosen = settings.auto_create_mirror_topics_enable, settings.auto_create_mirror_topics_filters
    if chosen.filters and not enabled:
        raise UsageError(f"{filters} is set, but {enable} is not true", f"set {enable}=true, or remove {filters}")
    if enabled and not chosen.includes_something:
        raise UsageError(
            f"{enable}=true requires {filters} with at least one INCLUDE",
            f'for every topic: {filters}={{"topicFilters":[{{"name":"*","patternType":"LITERAL",'
            '"filterType":"INCLUDE"}]}',
        )
    if enabled and settings.topics_include.patterns:
        raise UsageError(
            f"topics.include and {enable}=true exclude each other: both select topics",
            f"remove topics.include, or set {enable}=false, which clears {filters}",
        )
