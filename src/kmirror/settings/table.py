"""The table of mirror settings.

A row is a field of `Settings`, named as its key with `_` for each dot: its type, and in `_row` how to parse it, its
default, help, the names other tools have for it, and whether it can be changed once the mirror exists. Flags, files,
stored records, validation, help and the docs all come from these rows; a new setting is a new row.

`value_types` has the types of values, `parsing` reads what is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from kmirror.settings import value_types
from kmirror.settings.acl_filters import AclFilters, parse_acl_filters
from kmirror.settings.objectives import Objectives
from kmirror.settings.patterns import ExcludedNames, TopicSelector
from kmirror.settings.topic_filters import TopicFilters
from kmirror.settings.value_types import Alias, Setting, StartFrom, ValueType, parse_start_from


def _row(kind: ValueType, default: Any, help: str, *aliases: Alias, changeable: bool = True, key: str = "") -> Any:  # noqa: A002
    metadata = {"kind": kind, "help": help, "aliases": aliases, "changeable": changeable}
    return field(default=default, metadata=metadata | {"key": key} if key else metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one mirror, typed; made by `parse_settings`. Pickles."""

    topics_include: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector(),
        "Source topics to mirror. `add` extends this list.",
        Alias("topics"),
        Alias("mirror.topics.include"),
    )
    topics_exclude: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector(),
        "Source topics that are never mirrored. Overrides all other filters.",
        Alias("topics.blacklist"),
        Alias("mirror.topics.exclude"),
    )
    auto_create_mirror_topics_enable: bool = _row(
        value_types.boolean(),
        False,
        "Select topics with auto.create.mirror.topics.filters instead of topics.include.",
    )
    auto_create_mirror_topics_filters: TopicFilters = _row(  # noqa: RUF009 - the row is a field
        ValueType("JSON", '{"topicFilters":[…]}', TopicFilters.parse),
        TopicFilters(),
        "Source topics to mirror, in Confluent's topicFilters format. Cleared when auto creation is disabled.",
    )
    topic_prefix: str = _row(
        value_types.topic_characters(0, "topic name prefix"),
        "",
        "Prefix of mirror topic names, put before the source topic's name.",
        Alias("cluster.link.prefix"),
        changeable=False,
    )
    start_from: StartFrom = _row(  # noqa: RUF009 - the row is a field
        ValueType("start", "earliest | latest | timestamp:T", parse_start_from),
        StartFrom(),
        "Where to start copying a topic. Resolved once, when the topic is added.",
        Alias("mirror.start.offset.spec", value_types.start_offset_spec),
        Alias("consumer.auto.offset.reset", value_types.start_of_consumers),
    )
    replication_factor: int = _row(
        ValueType("int", "1 – 32767, or -1", value_types.read_replication_factor),
        -1,
        "Replication factor of topics that kmirror creates. -1: the destination brokers' default.",
    )
    state_replication_factor: int = _row(
        ValueType("int", "1 – 32767, or -1", value_types.read_replication_factor),
        -1,
        "Replication factor of kmirror's own topics, if `create` has to create them. -1: the brokers' default.",
        changeable=False,
    )
    refresh_interval_seconds: int = _row(
        value_types.integer(1, 86_400, "seconds"),
        10,
        "How often the engine checks the source for new topics, partitions, topic settings and ACLs. Of several names"
        " for it the shortest interval counts.",
        Alias("topic.config.sync.ms", value_types.seconds_of_milliseconds, lowest=True),
        Alias("acl.sync.ms", value_types.seconds_of_milliseconds, lowest=True),
        Alias("refresh.topics.interval.seconds", lowest=True),
        Alias("sync.topic.configs.interval.seconds", lowest=True),
        Alias("sync.topic.acls.interval.seconds", lowest=True),
        Alias("mirror.metadata.refresh.interval.ms", value_types.seconds_of_milliseconds, lowest=True),
    )
    sync_topic_configs_enabled: bool = _row(
        value_types.boolean(),
        True,
        "Apply later changes of source topic settings to mirror topics. `add` always copies the current settings.",
    )
    topic_properties_include: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector((".*",)),
        "Topic settings to copy from the source.",
        Alias("topic.config.sync.include"),
    )
    topic_properties_exclude: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector(),
        "Topic settings not to copy from the source. Overrides topic.properties.include.",
        Alias("config.properties.exclude"),
        Alias("config.properties.blacklist"),
        Alias("mirror.topic.properties.exclude"),
    )
    retry_timeout_ms: int = _row(
        value_types.integer(0, 86_400_000, "milliseconds"),
        300_000,
        "How long to retry transient errors before a partition is FAILED.",
        Alias("cluster.link.retry.timeout.ms"),
    )
    follow_log_start: bool = _row(
        value_types.boolean(),
        True,
        "Delete records from the mirror topic after the source has deleted them.",
    )
    follow_log_start_delay_ms: int = _row(
        value_types.integer(0, 31_536_000_000, "milliseconds"),
        3_600_000,
        "How long the mirror topic keeps records after the source has deleted them.",
    )
    source_truncation_policy: str = _row(
        value_types.choice("fail", "follow"),
        "fail",
        "If the source deleted records before they were copied: the partition is FAILED until `recover`, or copying"
        " continues after the lost records and an event is recorded.",
    )
    source_reset_policy: str = _row(
        value_types.choice("auto", "fail"),
        "auto",
        "If a source topic was deleted and recreated: archive the old records, rebuild the mirror topic and record an"
        " event, or the topic is FAILED until `recover --accept-reset`.",
    )
    source_reset_auto_max_topics: int = _row(
        value_types.integer(0, 100_000),
        3,
        "Maximum number of topics per mirror that are rebuilt automatically within an hour.",
    )
    source_divergence_policy: str = _row(
        value_types.choice("fail", "auto"),
        "fail",
        "If the source's history was rewritten (such as by an unclean election): the topic is FAILED until"
        " `recover --accept-divergence`, or records that the source no longer has are archived, the topic is"
        " rebuilt and an event is recorded.",
        Alias("mirror.support.unclean.leader.election", value_types.divergence_policy),
        Alias("mirror.unclean.leader.election.enable", value_types.divergence_policy),
    )
    groups_include: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector((".*",)),
        "Consumer and share groups whose offsets are synced (source names).",
        Alias("groups"),
        Alias("mirror.groups.include"),
    )
    groups_exclude: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector(("console-consumer-.*", "connect-.*", "__.*")),
        "Groups whose offsets are never synced. Overrides groups.include.",
        Alias("groups.blacklist"),
        Alias("mirror.groups.exclude"),
    )
    sync_group_offsets_enabled: bool = _row(
        value_types.boolean(),
        True,
        "Sync group offsets from source to destination while the group has no members at the destination.",
        Alias("consumer.offset.sync.enable"),
    )
    sync_group_offsets_interval_seconds: int = _row(
        value_types.integer(1, 86_400, "seconds"),
        10,
        "How often the engine syncs group offsets.",
        Alias("consumer.offset.sync.ms", value_types.seconds_of_milliseconds),
    )
    group_prefix_enable: bool = _row(
        value_types.boolean(),
        False,
        "Prefix group names at the destination with topic.prefix.",
        Alias("consumer.group.prefix.enable"),
        changeable=False,
    )
    sync_topic_acls_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Sync the source's ACLs on mirrored topics and groups, and those of their producers on transactional ids. ACLs"
        " that allow writing to a mirror topic are created when mirroring stops.",
        Alias("acl.sync.enable"),
    )
    sync_cluster_acls_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Also sync the source's ACLs on the cluster; needs sync.topic.acls.enabled. They are power over all topics:"
        " CREATE, ALTER, ALTER_CONFIGS and ALL are created once the destination has no mirror topic left.",
    )
    sync_quotas_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Sync the source's client quotas of users and client ids by name; never those of defaults and addresses, nor"
        " over a quota that others have set at the destination.",
    )
    compare_scram_users_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Report SCRAM users of the source that are missing at the destination. Brokers do not reveal passwords, so"
        " users are never copied.",
    )
    source_cluster_alias: str = _row(
        value_types.topic_characters(1, "cluster alias"),
        "source",
        "What MirrorMaker 2's clients call the source. For emit.* only.",
    )
    target_cluster_alias: str = _row(
        value_types.topic_characters(1, "cluster alias"),
        "target",
        "What MirrorMaker 2's clients call the destination. For emit.* only.",
    )
    emit_offset_syncs_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Write MirrorMaker 2's offset syncs to mm2-offset-syncs.<source alias>.internal on the destination.",
        key="emit.offset-syncs.enabled",
    )
    emit_checkpoints_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Write MirrorMaker 2's checkpoints to <source alias>.checkpoints.internal on the destination, for programs that"
        " use RemoteClusterUtils.",
    )
    emit_checkpoints_interval_seconds: int = _row(
        value_types.integer(1, 86_400, "seconds"),
        60,
        "How often the engine writes offset syncs and checkpoints, where they are enabled.",
    )
    emit_heartbeats_enabled: bool = _row(
        value_types.boolean(),
        False,
        "Write MirrorMaker 2's heartbeats to topic heartbeats on the destination, while the source answers.",
    )
    emit_heartbeats_interval_seconds: int = _row(
        value_types.integer(1, 86_400, "seconds"),
        1,
        "How often the engine writes a heartbeat, where they are enabled.",
    )
    acls_include: AclFilters = _row(  # noqa: RUF009 - the row is a field
        ValueType("list", 'rules such as TOPIC;orders-.*;READ, or {"aclFilters":[…]}', parse_acl_filters),
        AclFilters(),
        "ACLs to sync: rules as in Kafka's cluster mirroring (type;name;operation;permission;principal), or Confluent's"
        " JSON. Empty: all.",
        Alias("mirror.acl.include"),
        Alias("acl.filters"),
    )
    read_only: str = _row(
        value_types.choice("enforce", "detect"),
        "enforce",
        "`enforce`: ACLs deny all other clients write access to mirror topics, where possible. `detect`, and wherever"
        " ACLs are not possible: foreign writes are detected afterwards.",
    )
    copy_lanes: int | None = _row(
        value_types.auto_or(value_types.integer(1, 256)),
        None,
        "Number of lanes, which copy in parallel. Partitions are distributed among them. `auto`: two, and on"
        " a machine with more than eight cores one for every four; with more mirrors than cores on one machine, one.",
        Alias("tasks.max"),
        Alias("num.cluster.link.fetchers"),
        Alias("mirror.num.replica.fetchers"),
    )
    copy_connections: int | None = _row(
        value_types.auto_or(value_types.integer(1, 64, "connections")),
        None,
        "Most connections that the mirror opens to a broker to fetch or to append, shared among its lanes. More than"
        " one are opened only over a distance, and only while each brings its share. `auto`: 64.",
    )
    copy_buffer_bytes: int = _row(
        value_types.integer(8 << 20, 1 << 40, "bytes"),
        64 << 20,
        "Most bytes that a lane holds of what it has read ahead over a distance and not yet appended. Everything else"
        " that it has fetched takes about 16 MB more.",
    )
    copy_merge_batches: str = _row(
        value_types.choice("auto", "never"),
        "auto",
        "`auto`: small batches that are read together are appended as one; offsets, timestamps and contents of records"
        " stay the same. `never`: batches stay as the source stores them.",
    )
    throttle_bytes_per_second: int = _row(
        value_types.byte_rate(65_536, 1 << 40),
        0,
        "Limit on the bytes per second that the mirror fetches from its source, shared among its lanes. 0: no limit.",
        Alias("mirror.replication.throttled.rate"),
    )
    priority_topics: TopicSelector = _row(  # noqa: RUF009 - the row is a field
        value_types.patterns(),
        TopicSelector(),
        "Source topics to copy first. While one of them is more than 5 s behind, the other topics wait.",
    )
    objective_rpo: Objectives = _row(  # noqa: RUF009 - the row is a field
        ValueType("objectives", "PATTERN=DURATION, comma-separated", Objectives.parse),
        Objectives(),
        "How far behind in time source topics may be, such as payments-.*=30s, .*=10m; the first pattern that matches"
        " counts.",
    )
    metrics_per_partition: bool = _row(
        value_types.boolean(),
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
    Setting(attribute=row.name, default=row.default, **{"key": row.name.replace("_", "."), **row.metadata})
    for row in fields(Settings)
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
