"""The table of settings: reading, refusing, storing, comparing."""

from __future__ import annotations

import pickle

import pytest

from kmirror.errors import RefusedError, UsageError
from kmirror.settings.objectives import Objectives
from kmirror.settings.parsing import canonical, check_change, differing_keys, parse_settings, setting_of, split
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import SETTINGS, Settings, describe
from kmirror.settings.topic_filters import TopicFilters
from kmirror.settings.value_types import StartFrom, parse_start_from

ALL_TOPICS = '{"topicFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"}]}'
NO_TOPICS = '{"topicFilters":[{"name":"*","patternType":"LITERAL","filterType":"EXCLUDE"}]}'


def test_defaults() -> None:
    assert parse_settings({}) == Settings(
        topics_include=TopicSelector(),
        topics_exclude=TopicSelector(),
        auto_create_mirror_topics_enable=False,
        auto_create_mirror_topics_filters=TopicFilters(),
        topic_prefix="",
        start_from=StartFrom("earliest"),
        replication_factor=-1,
        state_replication_factor=-1,
        refresh_interval_seconds=10,
        sync_topic_configs_enabled=True,
        topic_properties_include=TopicSelector((".*",)),
        topic_properties_exclude=TopicSelector(),
        retry_timeout_ms=300_000,
        follow_log_start=True,
        follow_log_start_delay_ms=3_600_000,
        source_truncation_policy="fail",
        source_reset_policy="auto",
        source_reset_auto_max_topics=3,
        source_divergence_policy="fail",
        groups_include=TopicSelector((".*",)),
        groups_exclude=TopicSelector(("console-consumer-.*", "connect-.*", "__.*")),
        sync_group_offsets_enabled=True,
        sync_group_offsets_interval_seconds=10,
        group_prefix_enable=False,
        sync_quotas_enabled=False,
        compare_scram_users_enabled=False,
        source_cluster_alias="source",
        target_cluster_alias="target",
        emit_offset_syncs_enabled=False,
        emit_checkpoints_enabled=False,
        emit_checkpoints_interval_seconds=60,
        emit_heartbeats_enabled=False,
        emit_heartbeats_interval_seconds=1,
        copy_lanes=None,
        copy_connections=None,
        copy_buffer_bytes=67_108_864,
        throttle_bytes_per_second=0,
        metrics_per_partition=False,
    )


def test_every_setting_is_read() -> None:
    settings = parse_settings(
        {
            "topics.include": "orders-[a,b]+, payments",
            "topics.exclude": "orders-b",
            "topic.prefix": "eu.",
            "start.from": "Latest",
            "replication.factor": "3",
            "refresh.interval.seconds": " 60 ",
            "sync.topic.configs.enabled": "FALSE",
            "topic.properties.include": "m.*",
            "topic.properties.exclude": r"min.insync.replicas, leader\..*",
            "retry.timeout.ms": "0",
            "follow.log.start": "False",
            "follow.log.start.delay.ms": "5000",
            "source.truncation.policy": "Follow",
            "source.reset.policy": "fail",
            "source.reset.auto.max.topics": "7",
            "source.divergence.policy": "auto",
            "groups.include": "orders-.*",
            "groups.exclude": "",
            "sync.group.offsets.enabled": "false",
            "sync.group.offsets.interval.seconds": "3",
            "group.prefix.enable": "true",
            "sync.quotas.enabled": "true",
            "compare.scram.users.enabled": "true",
            "source.cluster.alias": "A",
            "target.cluster.alias": "B",
            "emit.offset-syncs.enabled": "true",
            "emit.checkpoints.enabled": "true",
            "emit.checkpoints.interval.seconds": "5",
            "emit.heartbeats.enabled": "true",
            "emit.heartbeats.interval.seconds": "9",
            "copy.lanes": "8",
            "copy.connections": "16",
            "copy.buffer.bytes": "8388608",
            "throttle.bytes.per.second": "70000",
            "objective.rpo": r"payments-.*=30s, orders=1h",
            "metrics.per.partition": "true",
        }
    )
    assert settings == Settings(
        topics_include=TopicSelector(("orders-[a,b]+", "payments")),
        topics_exclude=TopicSelector(("orders-b",)),
        topic_prefix="eu.",
        start_from=StartFrom("latest"),
        replication_factor=3,
        refresh_interval_seconds=60,
        sync_topic_configs_enabled=False,
        topic_properties_include=TopicSelector(("m.*",)),
        topic_properties_exclude=TopicSelector(("min.insync.replicas", r"leader\..*")),
        retry_timeout_ms=0,
        follow_log_start=False,
        follow_log_start_delay_ms=5000,
        source_truncation_policy="follow",
        source_reset_policy="fail",
        source_reset_auto_max_topics=7,
        source_divergence_policy="auto",
        groups_include=TopicSelector(("orders-.*",)),
        groups_exclude=TopicSelector(),
        sync_group_offsets_enabled=False,
        sync_group_offsets_interval_seconds=3,
        group_prefix_enable=True,
        sync_quotas_enabled=True,
        compare_scram_users_enabled=True,
        source_cluster_alias="A",
        target_cluster_alias="B",
        emit_offset_syncs_enabled=True,
        emit_checkpoints_enabled=True,
        emit_checkpoints_interval_seconds=5,
        emit_heartbeats_enabled=True,
        emit_heartbeats_interval_seconds=9,
        copy_lanes=8,
        copy_connections=16,
        copy_buffer_bytes=8_388_608,
        throttle_bytes_per_second=70_000,
        objective_rpo=Objectives(((r"payments-.*", 30_000), ("orders", 3_600_000))),
        metrics_per_partition=True,
    )
    assert [topic for topic in ("orders-a", "orders-b", "payments", "x") if settings.selects(topic)] == [
        "orders-a",
        "payments",
    ]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_names_from_other_tools() -> None:
    aliases = {
        "cluster.link.prefix": "eu.",
        "mirror.start.offset.spec": "earliest",
        "topic.config.sync.ms": "5001",
        "cluster.link.retry.timeout.ms": "1000",
    }
    assert canonical(aliases) == {
        "topic.prefix": "eu.",
        "start.from": "earliest",
        "refresh.interval.seconds": "6",
        "retry.timeout.ms": "1000",
    }


@pytest.mark.parametrize(
    ("ours", "confluents", "stored"),
    [
        ("earliest", "Earliest", "earliest"),
        ("LATEST", "latest", "latest"),
        ("timestamp:2025-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "timestamp:2025-01-01T00:00:00Z"),
        ("Timestamp:2025-01-01", "2025-01-01T01:00:00+01:00", "timestamp:2025-01-01T00:00:00Z"),
        ("timestamp:1735689600123", "1735689600123", "timestamp:2025-01-01T00:00:00.123Z"),
        ("timestamp:1970-01-01", "1970-01-01", "timestamp:1970-01-01T00:00:00Z"),
        ("timestamp:253402300799999", "9999-12-31T23:59:59.999Z", "timestamp:9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_start_is_a_word_or_a_time(ours: str, confluents: str, stored: str) -> None:
    assert canonical({"start.from": ours}) == {"start.from": stored}
    assert canonical({"mirror.start.offset.spec": confluents}) == {"start.from": stored}
    assert str(parse_start_from("start.from", stored)) == stored


@pytest.mark.parametrize(
    "text",
    [
        "", "first", "earliest:", "latest:0", "timestamp", "timestamp:", "timestamp:soon", "timestamp:2025-13-01",
        # these would be other times each time they are read, seconds taken for milliseconds, or Kafka's own codes
        "timestamp:2h", "timestamp:1735689600", "timestamp:-1", "timestamp:1969-12-31T23:59:59.999Z",
        "timestamp:253402300800000",
    ],
)  # fmt: skip
def test_an_invalid_start_is_refused_with_the_allowed_values(text: str) -> None:
    with pytest.raises(UsageError, match=r"invalid value --start-from=") as refusal:
        parse_start_from("--start-from", text)
    assert refusal.value.hint is not None
    assert "earliest, latest, timestamp:T" in refusal.value.hint


@pytest.mark.parametrize(
    ("raw", "message", "hint"),
    [
        ({"topic.include": "x"}, "unknown setting topic.include", "did you mean topics.include?"),
        ({"topics_include": "x"}, "unknown setting topics_include", "did you mean topics.include?"),
        ({"cluster.link.prefx": "x"}, "unknown setting cluster.link.prefx", "did you mean cluster.link.prefix?"),
        ({"bootstrap.server": "x"}, "unknown setting bootstrap.server", "did you mean bootstrap.servers?"),
        ({"ssl.ca.location": "x"}, "unknown setting ssl.ca.location", "did you mean ssl.truststore.location?"),
        ({"frobnicate": "x"}, "unknown setting frobnicate", "use one of: topics.include, "),
        (
            {"copy.lanes": "0"},
            "copy.lanes=0 is not a whole number from 1 to 256",
            "give a number in that range",
        ),
        ({"copy.lanes": "two"}, "copy.lanes=two is not a whole number from 1 to 256", "in that range"),
        ({"copy.lanes": "1.5"}, "copy.lanes=1.5 is not a whole number from 1 to 256", "in that range"),
        ({"copy.lanes": ""}, "copy.lanes= is not a whole number from 1 to 256", "in that range"),
        ({"copy.lanes": "9" * 5000}, f"copy.lanes={'9' * 5000} is not a whole number", "in that range"),
        *(
            (
                {"throttle.bytes.per.second": text},
                f"throttle.bytes.per.second={text} is neither 0 nor a whole number of bytes a second from 65536 to",
                "0 takes the limit away",
            )
            for text in ("1", "65535", "-1", "10MB", "", "9" * 5000)
        ),
        (
            {"refresh.interval.seconds": "10s"},
            "refresh.interval.seconds=10s is not a whole number from 1 to 86400 (seconds)",
            "give a number in that range, without a unit",
        ),
        (
            {"topic.config.sync.ms": "-1"},
            "topic.config.sync.ms=-1 is not a whole number from 0 to 86400000 (milliseconds)",
            "without a unit",
        ),
        ({"retry.timeout.ms": "-1"}, "retry.timeout.ms=-1 is not a whole number from 0 to", "without a unit"),
        ({"replication.factor": "0"}, "replication.factor=0 is not a whole number from 1 to 32767", "in that range"),
        ({"replication.factor": "-2"}, "replication.factor=-2 is not a whole number from 1 to 32767", "in that range"),
        (
            {"start.from": "yesterday"},
            "invalid value start.from=yesterday",
            "use one of: earliest, latest, timestamp:T",
        ),
        (
            {"mirror.start.offset.spec": "yesterday"},
            "invalid value mirror.start.offset.spec=yesterday",
            "use one of: earliest, latest, a time such as",
        ),
        ({"topic.prefix": "a b"}, "topic.prefix=a b is not a valid topic name prefix", "letters, digits"),
        ({"topic.prefix": "x" * 101}, f"topic.prefix={'x' * 101} is not a valid topic name prefix", "at most 100"),
        (
            {"topics.include": "orders,a(b"},
            "topics.include: the pattern a(b is not understood at character 2: a bracket is not closed",
            "re2",
        ),
        ({"topics.include": "@/etc/passwd"}, "topics.include: @/etc/passwd cannot be part of a list", "@FILE"),
        ({"topics.include": ","}, "topics.include is empty", "give names"),
        (
            {"topics.include": "a,b.*,c", "topics.exclude": "b.*,c"},
            "topics.include and topics.exclude contradict each other: both contain b.*, c",
            "remove it from one of them",
        ),
        (
            {"topic.prefix": "a", "cluster.link.prefix": "b"},
            "topic.prefix and cluster.link.prefix contradict each other: they are the same setting",
            "keep only topic.prefix",
        ),
        (
            {"topic.propertis.exclude": "x"},
            "unknown setting topic.propertis.exclude",
            "did you mean topic.properties.exclude?",
        ),
        (
            {"sync.topic.configs.enabled": "yes"},
            "invalid value sync.topic.configs.enabled=yes",
            "use true or false",
        ),
        ({"config.properties.exclude": "a("}, "config.properties.exclude: the pattern a( is not understood", "re2"),
        (
            {"auto.create.mirror.topics.enable": "true"},
            "auto.create.mirror.topics.enable=true requires auto.create.mirror.topics.filters with at least one",
            "for every topic: auto.create.mirror.topics.filters={",
        ),
        (
            {"auto.create.mirror.topics.enable": "true", "auto.create.mirror.topics.filters": NO_TOPICS},
            "auto.create.mirror.topics.enable=true requires auto.create.mirror.topics.filters",
            "for every topic",
        ),
        (
            {"auto.create.mirror.topics.filters": ALL_TOPICS},
            "auto.create.mirror.topics.filters is set, but auto.create.mirror.topics.enable is not true",
            "set auto.create.mirror.topics.enable=true",
        ),
        (
            {
                "auto.create.mirror.topics.enable": "true",
                "auto.create.mirror.topics.filters": ALL_TOPICS,
                "topics.include": "a.*",
            },
            "topics.include and auto.create.mirror.topics.enable=true exclude each other",
            "remove topics.include",
        ),
        (
            {"auto.create.mirror.topics.enable": "true", "auto.create.mirror.topics.filters": "a.*"},
            "auto.create.mirror.topics.filters: this is not JSON",
            "topicFilters",
        ),
    ],
)
def test_settings_that_are_refused(raw: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_settings(raw)
    assert refusal.value.message.startswith(message)
    assert hint in str(refusal.value.hint)


def test_either_kind_of_filters_chooses_topics_and_the_exclude_list_wins() -> None:
    chosen = {"auto.create.mirror.topics.enable": "true", "auto.create.mirror.topics.filters": ALL_TOPICS}
    settings = parse_settings({**chosen, "topics.exclude": "removed"})
    assert [topic for topic in ("a", "removed") if settings.selects(topic)] == ["a"]
    assert settings.discovers
    assert parse_settings({"topics.include": "a.*"}).discovers
    assert not parse_settings({"topics.exclude": "a.*"}).discovers


@pytest.mark.parametrize("key", ["emit.checkpoints.enabled", "sync.group.offsets.enabled"])
def test_offset_syncs_cannot_be_disabled_for_what_needs_them_in_mirrormaker_2(key: str) -> None:
    with pytest.raises(UsageError, match=rf"^emit\.offset-syncs\.enabled=false and {key}=true contradict"):
        parse_settings({key: "true", "emit.offset-syncs.enabled": "false"})
    assert parse_settings({key: "true"}).emit_offset_syncs_enabled is False
    assert parse_settings({key: "true", "emit.offset-syncs.enabled": "true"})
    assert parse_settings({"emit.offset-syncs.enabled": "false"}).sync_group_offsets_enabled


def test_settings_that_others_will_join_may_be_incomplete() -> None:
    assert parse_settings({"auto.create.mirror.topics.enable": "true"}, complete=False)
    with pytest.raises(UsageError, match="invalid value"):
        parse_settings({"auto.create.mirror.topics.enable": "perhaps"}, complete=False)


def test_acls_on_the_cluster_come_along_with_the_others_only() -> None:
    with pytest.raises(UsageError, match=r"requires sync\.topic\.acls\.enabled=true"):
        parse_settings({"sync.cluster.acls.enabled": "true"})
    both = parse_settings({"sync.cluster.acls.enabled": "true", "sync.topic.acls.enabled": "true"})
    assert both.sync_cluster_acls_enabled


def test_a_setting_given_twice_alike_is_no_contradiction() -> None:
    assert parse_settings({"topic.prefix": "a", "cluster.link.prefix": "a"}).topic_prefix == "a"


def test_an_empty_list_of_topics_is_what_it_says() -> None:
    assert parse_settings({"topics.include": ""}).topics_include == TopicSelector()


def test_a_mirror_file_is_split_into_connection_and_settings() -> None:
    connection, settings = split(
        {
            "bootstrap.servers": "a:1",
            "sasl.jaas.config": "x",
            "config.providers.env.class": "y",
            "isolation.level": "read_committed",
            "topic.config.sync.ms": "20000",
            "topics.include": " orders , payments ",
        }
    )
    assert connection == {
        "bootstrap.servers": "a:1",
        "sasl.jaas.config": "x",
        "config.providers.env.class": "y",
        "isolation.level": "read_committed",
    }
    assert settings == {"topics.include": "orders,payments", "refresh.interval.seconds": "20"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("fetch.max.bytes", "1", "the size of a fetch is chosen"),
        ("isolation.level", "read_uncommitted", "committed records only"),
        ("auto.offset.reset", "latest", "never resets"),
    ],
)
def test_client_properties_that_a_mirror_cannot_go_by_are_refused_with_why(key: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        split({"bootstrap.servers": "a:1", key: value})
    assert key in refusal.value.message
    assert "remove it" in (refusal.value.hint or "")


def test_unknown_keys_of_a_mirror_file_are_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown setting sasl\.jaas\.conf") as refusal:
        split({"bootstrap.servers": "a:1", "sasl.jaas.conf": "hunter2"})
    assert refusal.value.hint == "did you mean sasl.jaas.config?"


def test_what_is_stored_reads_the_same_again() -> None:
    raw = {"topics.include": "b.*,a", "copy.lanes": "2", "cluster.link.prefix": "eu.", "replication.factor": "-1"}
    stored = canonical(raw)
    assert stored == {"topics.include": "b.*,a", "topic.prefix": "eu.", "replication.factor": "-1", "copy.lanes": "2"}
    assert parse_settings(stored) == parse_settings(raw)
    assert canonical(stored) == stored


def test_differences_are_named() -> None:
    one = parse_settings({"topics.include": "a", "copy.lanes": "3"})
    other = parse_settings({"topics.include": "a,b", "copy.lanes": "3", "replication.factor": "-1"})
    assert differing_keys(one, other) == ["topics.include"]
    assert differing_keys(one, one) == []


def test_some_settings_are_fixed_once_the_mirror_exists() -> None:
    before = parse_settings({"topic.prefix": "a"})
    check_change(before, parse_settings({"topic.prefix": "a", "copy.lanes": "7"}))
    with pytest.raises(RefusedError, match=r"^topic\.prefix cannot be changed once the mirror exists$"):
        check_change(before, parse_settings({"copy.lanes": "7"}))


def test_rows_of_the_docs() -> None:
    rows = {row["key"]: row for row in describe()}
    assert list(rows) == [setting.key for setting in SETTINGS]
    assert rows["refresh.interval.seconds"] == {
        "key": "refresh.interval.seconds",
        "type": "int",
        "allowed": "1 – 86400",
        "default": "10",
        "changeable": "yes",
        "aliases": "topic.config.sync.ms, acl.sync.ms, refresh.topics.interval.seconds,"
        " sync.topic.configs.interval.seconds, sync.topic.acls.interval.seconds, mirror.metadata.refresh.interval.ms",
        "help": "How often the engine checks the source for new topics, partitions, topic settings and ACLs. Of several"
        " names for it the shortest interval counts.",
    }
    assert rows["topic.prefix"]["changeable"] == "no"
    assert all(row["help"].endswith(".") for row in rows.values())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_default_is_a_value_one_can_write(setting: object) -> None:
    row = next(row for row in SETTINGS if row is setting)
    assert getattr(parse_settings({row.key: row.kind.write(row.default)}), row.attribute) == row.default
    assert all(setting_of(alias.key) is row for alias in row.aliases)


def test_groups_are_chosen_by_their_filters() -> None:
    settings = parse_settings({"groups.include": "orders,pay.*", "groups.exclude": "payroll"})
    chosen = [group for group in ("orders", "orders2", "pay", "payroll") if settings.selects_group(group)]
    assert chosen == ["orders", "pay"]
    assert parse_settings({}).selects_group("orders")
    assert not parse_settings({}).selects_group("console-consumer-123")
    with pytest.raises(UsageError, match=r"groups\.include and groups\.exclude contradict each other"):
        parse_settings({"groups.include": "orders", "groups.exclude": "orders"})


def test_the_prefix_of_groups() -> None:
    assert parse_settings({"topic.prefix": "eu."}).group_prefix == ""
    prefixed = parse_settings({"topic.prefix": "eu.", "consumer.group.prefix.enable": "true"})
    assert prefixed.group_prefix == "eu."
    with pytest.raises(UsageError, match=r"group\.prefix\.enable=true requires topic\.prefix"):
        parse_settings({"group.prefix.enable": "true"})
    with pytest.raises(RefusedError, match=r"group\.prefix\.enable"):
        check_change(parse_settings({"topic.prefix": "eu."}), prefixed)


def test_the_interval_of_links_is_in_milliseconds() -> None:
    assert parse_settings({"consumer.offset.sync.ms": "30000"}).sync_group_offsets_interval_seconds == 30
    assert canonical({"consumer.offset.sync.enable": "false"}) == {"sync.group.offsets.enabled": "false"}
