"""How files of MirrorMaker 2 and of Confluent's links are converted: each key has a result, and none is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmirror.cluster.rights.acl_commands import Grant
from kmirror.cluster.security.properties import parse_properties, read_properties
from kmirror.errors import UsageError
from kmirror.ops.base.converted_keys import KeyOutcome
from kmirror.ops.check.rights import destination_grants, source_grants
from kmirror.settings.other_tools import FAMILIES, OTHER_TOOL_KEYS
from kmirror.settings.parsing import canonical, is_setting, parse_settings, split
from kmirror_compat.conversion import Conversion, Given, convert, link_conversion, own_keys
from kmirror_compat.creating import _checked
from kmirror_compat.mirrormaker_file import Flow, MirrorMakerFile
from kmirror_compat.mirrormaker_jobs import HeartbeatsJob

SAMPLE = Path(__file__).parent.parent / "support" / "other_tools" / "connect-mirror-maker.properties"
FLOW = Flow("A", "B")
#: The keys that Kafka 4.3 declares for MirrorMaker 2, without those of its clients.
MIRROR_MAKER_KEYS = """
    name connector.class tasks.max tasks.max.enforce key.converter value.converter header.converter transforms
    predicates config.action.reload errors.retry.timeout errors.retry.delay.max.ms errors.tolerance errors.log.enable
    errors.log.include.messages enabled admin.timeout.ms replication.policy.class
    replication.policy.separator forwarding.admin.class
    topics topics.exclude config.properties.exclude topic.filter.class config.property.filter.class
    consumer.poll.timeout.ms refresh.topics.enabled refresh.topics.interval.seconds sync.topic.configs.enabled
    sync.topic.configs.interval.seconds sync.topic.acls.enabled sync.topic.acls.interval.seconds replication.factor
    offset-syncs.topic.replication.factor offset.lag.max offset-syncs.topic.location emit.offset-syncs.enabled
    heartbeats.replication.enabled metric.names.formats groups groups.exclude group.filter.class refresh.groups.enabled
    refresh.groups.interval.seconds emit.checkpoints.enabled emit.checkpoints.interval.seconds
    sync.group.offsets.enabled sync.group.offsets.interval.seconds checkpoints.topic.replication.factor
    emit.heartbeats.enabled emit.heartbeats.interval.seconds heartbeats.topic.replication.factor use.defaults.from
    exactly.once.source.support offset.storage.topic status.storage.topic config.storage.topic listeners
    dedicated.mode.enable.internal.rest
""".split()  # noqa: SIM905 - as they are listed
LINK_KEYS = """
    acl.filters acl.sync.enable acl.sync.ms auto.create.mirror.topics.enable auto.create.mirror.topics.filters
    availability.check.ms availability.check.consecutive.failure.threshold cluster.link.paused cluster.link.prefix
    cluster.link.retry.timeout.ms connection.mode consumer.group.prefix.enable consumer.offset.group.filters
    consumer.offset.sync.enable consumer.offset.sync.ms dest.cluster.id link.mode local.security.protocol
    mirror.start.offset.spec num.cluster.link.fetchers remote.link.connection.mode replica.fetch.max.bytes
    fetch.response.max.bytes fetch.wait.max.ms source.cluster.id topic.config.sync.include topic.config.sync.ms
    reverse.connection.setup.timeout.ms confluent.tenant.prefix
    mirror.topics.include mirror.topics.exclude mirror.groups.include mirror.groups.exclude mirror.acl.include
    mirror.topic.properties.exclude mirror.metadata.refresh.interval.ms mirror.num.replica.fetchers
    mirror.failed.retry.max.attempts mirror.replication.throttled.rate mirror.support.unclean.leader.election
""".split()  # noqa: SIM905 - as they are listed


#: What Kafka 4.3 takes for keys that are not in a file of MirrorMaker 2, those of clients and workers aside.
MIRROR_MAKER_DEFAULTS = {
    "admin.timeout.ms": "60000",
    "checkpoints.topic.replication.factor": "3",
    "config.properties.exclude": "follower.replication.throttled.replicas, leader.replication.throttled.replicas,"
    " message.timestamp.difference.max.ms, log.message.timestamp.before.max.ms, log.message.timestamp.after.max.ms,"
    " message.timestamp.type, unclean.leader.election.enable, min.insync.replicas",
    "consumer.auto.offset.reset": "earliest",
    "consumer.poll.timeout.ms": "1000",
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "60",
    "emit.heartbeats.enabled": "true",
    "emit.heartbeats.interval.seconds": "1",
    "emit.offset-syncs.enabled": "true",
    "groups": ".*",
    "groups.exclude": "console-consumer-.*, connect-.*, __.*",
    "heartbeats.replication.enabled": "true",
    "heartbeats.topic.replication.factor": "3",
    "isolation.level": "read_uncommitted",
    "offset-syncs.topic.location": "source",
    "offset-syncs.topic.replication.factor": "3",
    "offset.lag.max": "100",
    "refresh.groups.enabled": "true",
    "refresh.groups.interval.seconds": "600",
    "refresh.topics.enabled": "true",
    "refresh.topics.interval.seconds": "600",
    "replication.factor": "2",
    "replication.policy.class": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    "sync.group.offsets.enabled": "false",
    "sync.group.offsets.interval.seconds": "60",
    "sync.topic.acls.enabled": "true",
    "sync.topic.acls.interval.seconds": "600",
    "sync.topic.configs.enabled": "true",
    "sync.topic.configs.interval.seconds": "600",
    "tasks.max": "1",
    "topics": ".*",
    "topics.exclude": r"mm2.*\.internal, .*\.replica, __.*",
    "use.defaults.from": "target",
}
#: What Confluent Platform takes for keys that are not in a link's file, where that is one value.
LINK_DEFAULTS = {
    "acl.sync.enable": "false",
    "acl.sync.ms": "5000",
    "auto.create.mirror.topics.enable": "false",
    "cluster.link.prefix": "",
    "cluster.link.retry.timeout.ms": "300000",
    "connection.mode": "OUTBOUND",
    "consumer.group.prefix.enable": "false",
    "consumer.offset.sync.enable": "false",
    "consumer.offset.sync.ms": "30000",
    "link.mode": "DESTINATION",
    "mirror.start.offset.spec": "earliest",
    "num.cluster.link.fetchers": "1",
    "topic.config.sync.ms": "5000",
}


def key_results(found: Conversion) -> dict[str, tuple[KeyOutcome, str]]:
    """Return the outcome of each key, and its message."""
    return {key_result.key: (key_result.became, key_result.message) for key_result in found.key_results}


def mm2(text: str, flow: Flow = FLOW) -> Conversion:
    """Return what becomes of a flow of a file with these lines more."""
    known = "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
    return MirrorMakerFile(parse_properties(known + text)).conversion(flow)


def one(key: str, value: str) -> tuple[KeyOutcome, str]:
    """Return what becomes of one key."""
    return key_results(convert([Given(key, key, value)]))[key]


def test_kafkas_own_sample_becomes_two_mirrors() -> None:
    file = MirrorMakerFile(read_properties(SAMPLE))
    assert file.flows == (Flow("A", "B"), Flow("B", "A"))
    assert file.login("B") == {"bootstrap.servers": "B_host1:9092, B_host2:9092, B_host3:9092"}
    found = file.conversion(FLOW)
    assert found.refused == ()
    assert dict(found.properties) == {
        "bootstrap.servers": "A_host1:9092, A_host2:9092, A_host3:9092",
        "topics.include": ".*",
        "topics.exclude": r"mm2.*\.internal,.*\.replica,__.*",
        "replication.factor": "1",
        "sync.group.offsets.enabled": "false",
        "topic.prefix": "A.",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
    }
    split(found.properties)
    results = key_results(found)
    assert results["A->B.topics"] == (KeyOutcome.TAKEN, "topics.include=.*")
    assert results["replication.policy.class"][1].startswith("topic.prefix=A.: MirrorMaker 2's default")
    assert results["offset.storage.replication.factor"][0] is KeyOutcome.NO_MEANING
    # every key that has no result here has one in the other flow
    other = {key_result.key for key_result in file.without(Flow("B", "A"), "why")}
    assert {*results, *other} >= {*file.properties}
    assert results["emit.checkpoints.enabled"][0] is KeyOutcome.NO_MEANING


def test_a_flow_has_the_keys_that_concern_it_and_the_most_particular_goes_first() -> None:
    found = mm2(
        "topics=all\nA->B.topics=orders.*,users\nB->A.topics=x\nC.ssl.truststore.location=/c\n"
        "ssl.truststore.type=PEM\nA.ssl.truststore.type=JKS\nA.consumer.ssl.truststore.location=/a\n"
        "B.ssl.truststore.location=/b\nA.producer.acks=1\nA.admin.ssl.truststore.location=/admin\n"
        "A->B.consumer.auto.offset.reset=latest\nA.consumer.max.poll.records=5\n"
        "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    )
    assert dict(found.properties) == {
        "bootstrap.servers": "a:1",
        "topics.include": "orders.*,users",
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": "/a",
        "start.from": "latest",
        "topics.exclude": r"mm2.*\.internal,.*\.replica,__.*",
        "sync.group.offsets.enabled": "false",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
    }
    results = key_results(found)
    assert results["topics"] == (KeyOutcome.NO_MEANING, "A->B.topics overrides it")
    assert results["A.admin.ssl.truststore.location"][1] == "A.consumer.ssl.truststore.location overrides it"
    assert results["A.producer.acks"] == (KeyOutcome.NO_MEANING, "nothing is written to the source")
    assert results["B.ssl.truststore.location"][1] == "--bootstrap-server and --command-config name the destination"
    assert results["A.consumer.max.poll.records"][0] is KeyOutcome.NO_MEANING
    assert results["replication.policy.class"][0] is KeyOutcome.DEFAULT
    assert results["C.ssl.truststore.location"] == (KeyOutcome.REFUSED, "unknown key")
    assert "B->A.topics" not in results


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("replication.policy.separator=_", "A_"),
        ("replication.policy.class=DefaultReplicationPolicy\nA->B.replication.policy.separator=-", "A-"),
        ("replication.policy.class=IdentityReplicationPolicy\nreplication.policy.separator=_", None),
    ],
)
def test_names_of_mirror_topics_are_those_of_its_policy(text: str, prefix: str | None) -> None:
    assert mm2(text).properties.get("topic.prefix") == prefix


def test_what_would_make_another_copy_is_refused_with_what_to_do() -> None:
    found = mm2(
        "replication.policy.class=com.example.Mine\ntransforms=drop\nkey.converter=org.example.Json\nwibble=1\n"
        "topics.exclud=x\nA.consumer.isolation.level=read_uncommitted\nrefresh.topics.interval.seconds=-1\n"
        "topic.filter.class=com.example.Filter\nconfig.providers=vault\nrefresh.topics.enabled=false"
    )
    refused = {key_result.key: f"{key_result.message}: {key_result.hint}" for key_result in found.refused}
    assert list(refused) == [
        *("transforms", "key.converter", "wibble", "topics.exclud", "A.consumer.isolation.level"),
        *("refresh.topics.interval.seconds", "topic.filter.class", "config.providers", "refresh.topics.enabled"),
        "replication.policy.class",
    ]
    assert "set topics.include and topics.exclude" in refused["topic.filter.class"]
    assert "did you mean topics.exclude?" in refused["topics.exclud"]
    assert "committed records only" in refused["A.consumer.isolation.level"]
    assert "topic.prefix" in refused["replication.policy.class"]
    assert all(key_result.hint for key_result in found.refused)


def test_flows_that_are_not_enabled_are_listed_and_a_file_of_another_kind_is_refused() -> None:
    file = MirrorMakerFile({"clusters": "A, B", "B->A.topics": "x", "A->B.enabled": " TRUE "})
    assert [(flow.name, flow.why_not) for flow in file.flows] == [
        ("A->B", None),
        ("B->A", "B->A.enabled is not true"),
    ]
    with pytest.raises(UsageError, match="not a MirrorMaker 2 file"):
        _ = MirrorMakerFile({"bootstrap.servers": "a:1"}).flows


def test_the_rights_for_mirrormaker_2s_topics_are_those_of_what_is_enabled() -> None:
    settings = parse_settings({"emit.checkpoints.enabled": "true", "source.cluster.alias": "A"})
    assert Grant(("--topic", "A.checkpoints.internal"), ("CREATE", "WRITE")) in destination_grants(settings, [])
    assert not [grant for grant in destination_grants(parse_settings({}), []) if "internal" in str(grant)]
    only = {"sync.group.offsets.enabled": "false"}
    reads = [
        Grant(("--group", "*"), ("DESCRIBE",)) in source_grants(parse_settings({**only, **more}), [])
        for more in ({}, {"emit.checkpoints.enabled": "true"})
    ]
    assert reads == [False, True]
    # a job with nothing to do looks no more often than others
    job = HeartbeatsJob("m", {})
    assert [job.interval_s(parse_settings({"emit.heartbeats.enabled": on})) for on in ("false", "true")] == [10.0, 1.0]


def test_a_links_file_becomes_a_mirror() -> None:
    found = link_conversion(
        parse_properties(
            "bootstrap.servers=a:1\nlink.mode=DESTINATION\nconnection.mode=outbound\ncluster.link.prefix=left.\n"
            "consumer.offset.sync.enable=true\nacl.sync.ms=3000\ntopic.config.sync.ms=20000\ncluster.link.paused=true\n"
            'consumer.offset.group.filters={"groupFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"},'
            '{"name":"app.x+","patternType":"PREFIXED","filterType":"EXCLUDE"},'
            '{"name":"tmp","patternType":"LITERAL","filterType":"EXCLUDE"}]}\n'
            "dest.cluster.id=D\ntopic.config.sync.include=retention.ms,cleanup.policy\nreplica.fetch.max.bytes=1\n"
        )
    )
    assert found.refused == ()
    assert dict(found.properties) == {
        "bootstrap.servers": "a:1",
        "topic.prefix": "left.",
        "sync.group.offsets.enabled": "true",
        "refresh.interval.seconds": "3",
        "groups.include": ".*",
        "groups.exclude": r"app\.x\+.*,tmp",
        "topic.properties.include": "retention.ms,cleanup.policy",
    }
    assert dict(found.at_creation) == {"cluster.link.paused": "true", "dest.cluster.id": "D"}
    results = key_results(found)
    assert results["topic.config.sync.ms"] == (
        KeyOutcome.TAKEN,
        "refresh.interval.seconds=3: the shortest of these intervals counts",
    )
    assert results["link.mode"][0] is KeyOutcome.DEFAULT
    settings = parse_settings({key: value for key, value in found.properties.items() if is_setting(key)})
    assert [g for g in ("a", "app.x+1", "app.xx", "tmp") if settings.selects_group(g)] == ["a", "app.xx"]
    assert [k for k in ("retention.ms", "segment.ms") if settings.excluded_properties.matches(k)] == ["segment.ms"]


def test_a_links_group_filters_beside_groups_are_a_row_and_give_way_to_config() -> None:
    filters = '{"groupFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"}]}'
    file = {"consumer.offset.sync.enable": "true", "groups.include": "a", "consumer.offset.group.filters": filters}
    (refused,) = link_conversion(file).refused
    assert refused.key == "consumer.offset.group.filters"
    del file["consumer.offset.group.filters"]
    left = _checked(link_conversion(file), {"consumer.offset.group.filters": filters})
    assert "groups.include" not in left.properties
    assert key_results(left)["groups.include"][1] == "--config consumer.offset.group.filters overrides it"


def test_what_config_overrides_in_part_stays_for_the_rest() -> None:
    filters = '{"groupFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"},'
    filters += '{"name":"tmp","patternType":"LITERAL","filterType":"EXCLUDE"}]}'
    file = {"consumer.offset.sync.enable": "true", "consumer.offset.group.filters": filters}
    left = _checked(link_conversion(file), {"groups.include": "a"})
    assert key_results(left)["consumer.offset.group.filters"] == (
        KeyOutcome.TAKEN,
        "groups.exclude=tmp; --config groups.include overrides it",
    )
    assert (left.properties.get("groups.include"), left.properties["groups.exclude"]) == (None, "tmp")
    none = _checked(link_conversion(file), {"groups.include": "a", "groups.exclude": "b"})
    assert key_results(none)["consumer.offset.group.filters"] == (
        KeyOutcome.NO_MEANING,
        "--config groups.exclude overrides it",
    )


def test_a_row_of_a_default_gives_way_to_config() -> None:
    left = _checked(mm2(""), {"acl.sync.enable": "true", "replication.factor": "3"})
    for key, written in (("sync.topic.acls.enabled", "acl.sync.enable"), ("replication.factor", "replication.factor")):
        assert key_results(left)[key] == (KeyOutcome.NO_MEANING, f"--config {written} overrides it")
    assert not _checked(link_conversion({"acl.sync.enable": "true"}), {"sync.topic.acls.enabled": "false"}).refused


def test_a_links_defaults_are_reported() -> None:
    assert key_results(link_conversion({}))["consumer.offset.sync.enable"][1].startswith(
        "sync.group.offsets.enabled=false"
    )
    found = link_conversion({"consumer.offset.sync.enable": "true"})
    assert found.properties["groups.include"] == ""
    assert "no group is synced" in key_results(found)["consumer.offset.group.filters"][1]


@pytest.mark.parametrize(
    ("key", "default", "found"),
    [
        *((key, default, mm2("")) for key, default in MIRROR_MAKER_DEFAULTS.items()),
        *((key, default, link_conversion({})) for key, default in LINK_DEFAULTS.items()),
    ],
)
def test_each_default_of_the_other_tool_that_differs_has_a_row(key: str, default: str, found: Conversion) -> None:
    became = one(key, default)[0]
    if became in (KeyOutcome.TAKEN, KeyOutcome.REFUSED):
        assert own_keys(key)[0] in {own_keys(row)[0] for row in key_results(found)}
    else:
        assert became in (KeyOutcome.DEFAULT, KeyOutcome.NO_MEANING)


def test_a_default_that_is_not_taken_over_says_what_to_do() -> None:
    became, message = key_results(mm2(""))["sync.topic.acls.enabled"]
    assert (became, message[:47]) == (KeyOutcome.NO_MEANING, "not set in the file: false here, true in Mirror")
    assert "--config sync.topic.acls.enabled=true syncs" in message
    written = key_results(mm2("sync.topic.acls.enabled=false\nA->B.config.properties.blacklist=x\nacl.sync.ms=7000"))
    assert written["sync.topic.acls.enabled"] == (KeyOutcome.DEFAULT, "sync.topic.acls.enabled=false")
    assert not {"config.properties.exclude", "refresh.topics.interval.seconds"} & written.keys()
    assert "topic.config.sync.ms" not in key_results(link_conversion({"acl.sync.ms": "7000"}))


def test_a_link_that_syncs_acls_without_saying_which_is_refused() -> None:
    for more in ({}, {"acl.filters": " "}):
        (refused,) = link_conversion({"acl.sync.enable": "true", **more}).refused
        assert (refused.key, "a mirror without it would sync all" in refused.message) == ("acl.sync.enable", True)
        assert "--acl-filters-json-file" in str(refused.hint)
    assert not link_conversion({"acl.sync.enable": "true", "mirror.acl.include": "*"}).refused
    # a link with an empty list syncs none
    empty = link_conversion({"acl.sync.enable": "true", "acl.filters": '{"aclFilters":[]}'})
    assert [(row.key, "would select no ACL" in row.message) for row in empty.refused] == [("acl.filters", True)]


def test_config_may_select_the_acls_of_a_link() -> None:
    file, filters = {"acl.sync.enable": "true"}, '{"aclFilters":[{"accessFilter":{"principal":"User:app"}}]}'
    for key in ("acl.filters", "acls.include"):
        for written in ({}, {"acl.filters": '{"aclFilters":[]}'}, {"acl.filters": "{"}):
            assert not _checked(link_conversion({**file, **written}, {key: filters}), {key: filters}).refused
        assert not link_conversion(file, {key: filters}).refused
        (refused,) = link_conversion({**file, "acl.filters": filters}, {key: ""}).refused
        assert refused.key == "acl.sync.enable", "without filters all would be synced"


@pytest.mark.parametrize("key", [*MIRROR_MAKER_KEYS, *LINK_KEYS])
def test_no_key_of_the_other_tools_is_unknown(key: str) -> None:
    assert one(key, "something")[1] != "unknown key"
    if not is_setting(key):
        with pytest.raises(UsageError, match="is not a setting of a mirror: ") as refusal:
            split({key: "something"})
        assert refusal.value.hint


@pytest.mark.parametrize(
    ("key", "value", "became"),
    [
        ("link.mode", "SOURCE", KeyOutcome.REFUSED),
        ("connection.mode", "INBOUND", KeyOutcome.REFUSED),
        ("local.sasl.mechanism", "PLAIN", KeyOutcome.REFUSED),
        ("key.converter", "org.apache.kafka.connect.converters.ByteArrayConverter", KeyOutcome.DEFAULT),
        ("transforms.drop.type", "x", KeyOutcome.REFUSED),
        ("groups", ".*", KeyOutcome.DEFAULT),
        ("tasks.max", "8", KeyOutcome.TAKEN),
        ("mirror.acl.include", "TOPIC;orders-.*;READ", KeyOutcome.TAKEN),
        ("mirror.coordinator.threads", "2", KeyOutcome.NO_MEANING),
        ("mirror.support.unclean.leader.election", "true", KeyOutcome.TAKEN),
        ("mirror.unclean.leader.election.enable", "true", KeyOutcome.TAKEN),
        ("consumer.auto.offset.reset", "none", KeyOutcome.REFUSED),
    ],
)
def test_the_outcome_of_a_key(key: str, value: str, became: KeyOutcome) -> None:
    assert one(key, value)[0] is became


def test_a_mirrors_own_file_may_contain_accepted_values_and_the_rest_is_refused() -> None:
    assert split({"bootstrap.servers": "a:1", "link.mode": "DESTINATION"}) == ({"bootstrap.servers": "a:1"}, {})
    with pytest.raises(
        UsageError, match=r"link\.mode is not a setting of a mirror: a mirror is created at the destination"
    ):
        split({"link.mode": "SOURCE"})
    with pytest.raises(UsageError, match=r"groups\.include and consumer.offset.group.filters contradict"):
        canonical({"groups.include": "a", "consumer.offset.group.filters": ""})
    with pytest.raises(UsageError, match="contradict each other"):
        canonical({"refresh.interval.seconds": "5", "acl.sync.ms": "1000"})


def test_no_foreign_key_is_a_setting() -> None:
    assert [key for key in OTHER_TOOL_KEYS if is_setting(key)] == []
    assert all(row.why and row.instead for row in (*OTHER_TOOL_KEYS.values(), *FAMILIES.values()))
