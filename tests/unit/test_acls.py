"""Which ACLs are copied, deferred, denied and created: decided without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import EVERYONE, AclBinding
from kmirror.cluster.rights.acls import delete_acls, kafka_acls_line
from kmirror.errors import UsageError
from kmirror.settings.acl_filters import AclFilters, parse_acl_filters
from kmirror.state.record_kinds import Unknown, decode, encode
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.sync.acl_changes import OwnPrincipals, Wanted, enforcement, grantable, producers_of, sync_plan, wanted_acls
from kmirror.sync.acl_index import AclIndex
from kmirror.sync.client_acls import on_cluster, on_transactional_ids
from tests.support.acls import acls, denial

KMIRROR = OwnPrincipals(frozenset({"User:kmirror"}))
SUPER = OwnPrincipals(frozenset({"User:kmirror"}), is_super_user=True)


def wanted(
    *source: AclBinding, topics: tuple[str, ...] = ("t", "t2"), own: OwnPrincipals = KMIRROR
) -> dict[str, Wanted]:
    """Decide for two topics and a group `g`, where groups whose names begin with g are mirrored."""
    return wanted_acls(source, topics, ["g"], lambda group: group.startswith("g"), own)


@pytest.mark.parametrize(
    ("present", "own", "denied", "open_by"),
    [
        ([], KMIRROR, [], 0),
        (acls("topic", "t", "app", "WRITE"), KMIRROR, ["app"], 0),
        (acls("topic", "t", "app", "ALL"), KMIRROR, ["app"], 0),
        (acls("topic", "t", "app", "READ", "DELETE", "ALTER"), KMIRROR, [], 0),
        (acls("topic", "", "app", "WRITE", prefixed=True), KMIRROR, ["app"], 0),
        (acls("topic", "*", "app", "WRITE"), KMIRROR, ["app"], 0),
        (acls("topic", "t2", "app", "WRITE"), KMIRROR, [], 0),
        (acls("group", "t", "app", "ALL"), KMIRROR, [], 0),
        (acls("topic", "t", "kmirror", "WRITE"), KMIRROR, [], 0),
        ([one._replace(host="10.0.0.1") for one in acls("topic", "t", "app", "WRITE")], KMIRROR, ["app"], 0),
        (acls("topic", "t", "app", "WRITE") + acls("topic", "t", "app", "ALL", deny=True), KMIRROR, [], 0),
        (acls("topic", "t", "app", "WRITE") + acls("topic", "t", "*", "WRITE", deny=True), KMIRROR, [], 0),
        (
            acls("topic", "t", "app", "WRITE")
            + [one._replace(host="10.0.0.1") for one in acls("topic", "t", "app", "WRITE", deny=True)],
            KMIRROR,
            ["app"],
            0,
        ),
        (acls("topic", "t", "*", "WRITE") + acls("topic", "t", "app", "WRITE"), KMIRROR, ["app"], 1),
        (acls("topic", "t", "*", "WRITE") + acls("topic", "t", "app", "WRITE"), SUPER, ["*"], 0),
    ],
)
def test_principals_that_may_write_are_denied_write(
    present: list[AclBinding], own: OwnPrincipals, denied: list[str], open_by: int
) -> None:
    found = enforcement(AclIndex(present), "t", own, [])
    assert found.denied == {denial("t", who) for who in denied}
    assert len(found.open_by) == open_by


def test_denials_that_kmirror_created_do_not_count_as_those_of_others() -> None:
    ours = denial("t", "app")
    present = [ours, *acls("topic", "t", "app", "WRITE")]
    assert enforcement(AclIndex(present), "t", KMIRROR, [ours]).denied == {ours}
    assert enforcement(AclIndex(present), "t", KMIRROR, []).denied == frozenset()
    copied = acls("topic", "t", "app", "ALL", prefixed=True, deny=True)  # the source may delete it
    assert enforcement(AclIndex([*present, *copied]), "t", KMIRROR, [ours, *copied]).denied == {ours}
    assert enforcement(AclIndex(present), "t", KMIRROR, [*present]).denied == {ours}
    assert enforcement(AclIndex([ours]), "t", KMIRROR, [ours]).denied == frozenset()
    assert producers_of([*present, *acls("topic", "t", "*", "WRITE")], ["t"]) - {EVERYONE} == {"User:app"}


def test_acls_for_readers_are_created_and_those_that_allow_changes_are_deferred() -> None:
    reads = acls("topic", "t", "app", "READ", "DESCRIBE", "DESCRIBE_CONFIGS")
    changes = acls("topic", "t", "app", "WRITE", "DELETE", "ALTER", "ALTER_CONFIGS", "CREATE")
    found = wanted(*reads, *changes, *acls("topic", "other", "app", "READ"))
    assert found == {"t": Wanted(frozenset(reads), frozenset(changes)), "t2": Wanted(), SHARED: Wanted()}
    everything = acls("topic", "t", "app", "ALL")
    assert wanted(*everything)["t"] == Wanted(frozenset(reads), frozenset(everything))


def test_a_prefix_stays_a_prefix_and_a_star_is_narrowed() -> None:
    reads, writes = acls("topic", "t", "app", "READ", prefixed=True), acls("topic", "t", "app", "WRITE", prefixed=True)
    found = wanted(*reads, *writes, *acls("topic", "x", "app", "READ", prefixed=True))
    assert found[SHARED] == Wanted(frozenset(reads), frozenset(writes))
    assert found["t2"] == Wanted(frozenset(), frozenset(acls("topic", "t2", "app", "WRITE")))
    wide = wanted(*acls("topic", "*", "app", "READ", "WRITE"))
    assert wide["t2"] == Wanted(
        frozenset(acls("topic", "t2", "app", "READ")), frozenset(acls("topic", "t2", "app", "WRITE"))
    )
    assert wide[SHARED] == Wanted()


def test_groups_come_along_when_they_are_mirrored() -> None:
    taken = [*acls("group", "g7", "app", "READ"), *acls("group", "g", "app", "DELETE", prefixed=True)]
    left = [*acls("group", "x", "app", "READ"), *acls("group", "x", "app", "READ", prefixed=True)]
    narrowed = acls("group", "g", "all", "READ")
    found = wanted(*taken, *left, *acls("group", "*", "all", "READ"), *acls("cluster", "kafka-cluster", "app", "ALTER"))
    assert found[SHARED] == Wanted(frozenset([*taken, *narrowed]))


def test_kmirror_neither_shuts_itself_out_nor_takes_over_its_own_rights() -> None:
    everybody, itself = (acls("topic", "t", who, "WRITE", deny=True) for who in ("*", "kmirror"))
    other = acls("topic", "t", "app", "READ", deny=True)
    own_rights = acls("topic", "t", "kmirror", "READ", "WRITE")
    found = wanted(*everybody, *itself, *other, *own_rights)
    assert found["t"] == Wanted(frozenset(other), frozenset([*everybody, *itself]))
    found = wanted(*everybody, *itself, *other, own=SUPER)
    assert found["t"].deferred == frozenset()
    on_group = acls("group", "g", "*", "READ", deny=True)
    assert wanted(*on_group)[SHARED] == Wanted(frozenset(), frozenset(on_group))


def test_only_ours_are_deleted_and_what_stopped_topics_live_by_stays() -> None:
    old, new, theirs = (frozenset(acls("topic", "t", who, "READ")) for who in ("old", "new", "theirs"))
    local = frozenset(acls("topic", "t", "local", "READ"))
    plan = sync_plan({"t": Wanted(new | theirs)}, old | theirs | local, {"t": old}, [])
    assert (plan.create, plan.delete, plan.made) == (new, old, {"t": new})
    prefix = frozenset(acls("topic", "t", "app", "READ", prefixed=True))
    gone = sync_plan({SHARED: Wanted()}, prefix, {SHARED: prefix}, ["x"])
    assert (gone.delete, gone.made) == (prefix, {SHARED: frozenset()})
    kept = sync_plan({SHARED: Wanted()}, prefix, {SHARED: prefix}, ["t1"])
    assert (kept.delete, kept.made) == (frozenset(), {SHARED: prefix})
    assert (gone.obsolete, kept.obsolete) == ({SHARED: prefix}, {SHARED: frozenset()})


def test_consumers_of_stopped_topics_are_not_ended_as_they_are_on_the_source() -> None:
    """Consumers move to the topics here; to end those at the source, an operator denies them there."""
    reads = frozenset(acls("group", "g", "app", "READ"))
    denied = frozenset([*acls("group", "g", "app", "READ", deny=True), *txn("a", "app", deny=True)])
    denied |= frozenset(acls("topic", "t", "app", "READ", prefixed=True, deny=True))
    own_ids = frozenset(txn("kmirror-", "app", prefixed=True, deny=True))
    wants = {SHARED: Wanted(denied | own_ids)}
    mirrored = sync_plan(wants, reads, {SHARED: reads}, [])
    assert (mirrored.create, mirrored.delete) == (denied | own_ids, reads)
    stopped = sync_plan(wants, reads, {SHARED: reads}, ["t1"])
    assert (stopped.create, stopped.delete, stopped.made) == (own_ids, frozenset(), {SHARED: reads | own_ids})
    elsewhere = sync_plan(wants, reads, {SHARED: reads}, ["x"])  # the prefix covers no stopped topic
    assert elsewhere.create == own_ids | frozenset(acls("topic", "t", "app", "READ", prefixed=True, deny=True))


def test_shared_acls_are_given_when_they_cover_no_mirror_topic_any_more() -> None:
    prefix, group = acls("topic", "t", "app", "WRITE", prefixed=True), acls("group", "g", "*", "READ", deny=True)
    deferred = [*prefix, *group]
    assert grantable(deferred, ["t1"], mirror_has_topics=True) == frozenset()
    assert grantable(deferred, ["x"], mirror_has_topics=True) == set(prefix)
    assert grantable(deferred, ["t1"], mirror_has_topics=False) == set(group)
    assert grantable(deferred, [], mirror_has_topics=False) == set(deferred)
    power = acls("cluster", "kafka-cluster", "app", "ALTER")
    assert grantable(power, ["another-mirrors"], mirror_has_topics=False) == frozenset()
    assert grantable(power, [], mirror_has_topics=True) == frozenset()
    assert grantable(power, [], mirror_has_topics=False) == set(power)


def test_a_deletion_that_fails_for_the_acl_alone_is_an_error() -> None:
    """AclAuthorizer, with ZooKeeper, leaves the code of the filter 0."""
    (binding,) = acls("topic", "t", "app", "WRITE", deny=True)

    class Client:
        config = SimpleNamespace(request_timeout_ms=100)
        code = -1

        def ask_any(self, _: Any) -> Any:
            acl = SimpleNamespace(error_code=self.code, error_message="it failed")
            one = SimpleNamespace(error_code=0, error_message=None, matching_acls=[acl])
            return SimpleNamespace(filter_results=[one])

    client = Client()
    error = delete_acls(cast(ClusterClient, client), [binding])[binding]
    assert error is not None
    assert "it failed" in str(error)
    client.code = 0
    assert delete_acls(cast(ClusterClient, client), [binding]) == {binding: None}


def txn(name: str, who: str, *operations: str, prefixed: bool = False, deny: bool = False) -> list[AclBinding]:
    """Return ACLs on a transactional id."""
    return acls("transactional_id", name, who, *(operations or ("WRITE",)), prefixed=prefixed, deny=deny)


def test_producers_are_the_principals_that_may_write_to_a_topic_of_the_mirror() -> None:
    source = [
        *acls("topic", "t", "app", "WRITE"),
        *acls("topic", "t", "reader", "READ"),
        *acls("topic", "t", "denied", "WRITE", deny=True),
        *acls("topic", "x", "stranger", "WRITE"),
        *acls("topic", "", "*", "ALL", prefixed=True),
    ]
    assert producers_of(source, ["t"]) == {"User:app", "User:*"}
    assert producers_of(source, []) == frozenset()


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        (txn("a", "app", "WRITE", "DESCRIBE"), txn("a", "app", "WRITE", "DESCRIBE")),
        (txn("a", "app", prefixed=True), txn("a", "app", prefixed=True)),
        (txn("a", "app", deny=True), txn("a", "app", deny=True)),
        (txn("a", "*"), txn("a", "*")),
        (txn("a", "stranger"), []),
        (txn("a", "kmirror"), []),
        (acls("cluster", "kafka-cluster", "app", "ALTER"), []),
        # what reaches kmirror's own ids
        (txn("*", "app"), [*txn("*", "app"), *txn("kmirror-", "app", prefixed=True, deny=True)]),
        (txn("k", "app", "ALL", prefixed=True), [*txn("k", "app", "ALL", prefixed=True),
                                                 *txn("kmirror-", "app", prefixed=True, deny=True)]),
        (txn("*", "app", "DESCRIBE"), txn("*", "app", "DESCRIBE")),
        (txn("*", "app", deny=True), txn("*", "app", deny=True)),
        (txn("kmirror-x", "app"), []),
        (txn("kmirror-m-", "app", prefixed=True), []),
        (txn("*", "*"), []),
        (txn("*", "*", deny=True), []),
        (txn("*", "kmirror", deny=True), []),
        # who was granted kmirror's ids here keeps them
        (txn("*", "granted"), txn("*", "granted")),
    ],
)  # fmt: skip
def test_transactional_ids_come_along_with_their_producers(source: list[AclBinding], taken: list[AclBinding]) -> None:
    here = txn("kmirror-", "granted", prefixed=True)
    found = on_transactional_ids(source, {"User:app", "User:granted"}, here, KMIRROR)
    assert found == Wanted(frozenset(taken))
    assert on_transactional_ids(source, (), here, KMIRROR) == Wanted()
    if source == txn("a", "stranger"):
        assert on_transactional_ids(source, {"User:*"}, here, KMIRROR) == Wanted(frozenset(source))


def test_power_over_the_cluster_is_deferred_and_brokers_rights_stay_behind() -> None:
    def cluster(who: str, *operations: str, deny: bool = False) -> list[AclBinding]:
        return acls("cluster", "kafka-cluster", who, *operations, deny=deny)

    harmless = cluster("app", "DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE")
    power = cluster("app", "CREATE", "ALTER", "ALTER_CONFIGS")
    left = [*cluster("app", "CLUSTER_ACTION"), *cluster("kmirror", "ALTER"), *cluster("*", "ALTER", deny=True)]
    denial_of_one = cluster("other", "ALTER", deny=True)
    found = on_cluster([*harmless, *power, *left, *denial_of_one, *acls("topic", "t", "app", "READ")], KMIRROR)
    assert found == Wanted(frozenset([*harmless, *denial_of_one]), frozenset(power))
    everything = cluster("app", "ALL")
    assert on_cluster(everything, KMIRROR) == Wanted(frozenset(harmless), frozenset(everything))


def test_what_clients_of_stopped_topics_live_by_is_not_deleted() -> None:
    mine = frozenset([*txn("a", "app"), *acls("cluster", "kafka-cluster", "app", "DESCRIBE")])
    assert sync_plan({SHARED: Wanted()}, mine, {SHARED: mine}, ["t"]).delete == frozenset()
    assert sync_plan({SHARED: Wanted()}, mine, {SHARED: mine}, []).delete == mine


def test_rights_are_stored_whole() -> None:
    made, denied, deferred = (tuple(acls("topic", "t", "app", one)) for one in ("READ", "DESCRIBE", "WRITE"))
    for record in (
        RightsRecord("m", "t", made, denied, deferred, "why", denied, 5, 6, {"newer": 1}),
        RightsRecord("m", SHARED),
    ):
        assert decode(*encode(record)) == record
    assert encode(RightsRecord("m", "t", made)) == (
        b'["rights","m","t"]',
        b'{"blocked":[],"denied":[],"held_back":[],"made":[["TOPIC","t","LITERAL","User:app","*","READ","ALLOW"]],"v":1}',
    )
    key, value = encode(RightsRecord("m", "t", made))
    for damaged in (value.replace(b'"READ"', b'"FLY"'), value.replace(b'"t"', b"7"), value.replace(b'"*",', b"")):
        assert isinstance(decode(key, damaged), Unknown)


def test_the_commands_for_an_administrator() -> None:
    (one,) = acls("group", "a b", "ann", "DESCRIBE", prefixed=True)
    assert kafka_acls_line(one._replace(host="10.0.0.1"), ("--bootstrap-server", "b:9092")) == (
        "kafka-acls --bootstrap-server b:9092 --add --allow-principal User:ann --allow-host 10.0.0.1 "
        "--operation Describe --group 'a b' --resource-pattern-type prefixed"
    )
    (everybody,) = acls("cluster", "kafka-cluster", "*", "ALTER_CONFIGS", deny=True)
    assert kafka_acls_line(everybody, ("--bootstrap-server", "b:9092"), remove=True) == (
        "kafka-acls --bootstrap-server b:9092 --remove --force --deny-principal 'User:*' "
        "--operation AlterConfigs --cluster"
    )


def test_filters_are_confluent_s() -> None:
    text = (
        '{"aclFilters":[{"resourceFilter":{"resourceType":"any","patternType":"PREFIXED","name":"t"},'
        '"accessFilter":{"operation":"DescribeConfigs","permissionType":"any"}},'
        '{"accessFilter":{"principal":"User:app","host":"*","permissionType":"allow"}}]}'
    )
    filters = parse_acl_filters("acls.include", text)
    assert parse_acl_filters("acls.include", str(filters)) == filters
    (prefixed,) = acls("topic", "t", "x", "DESCRIBE_CONFIGS", prefixed=True)
    assert filters.matches(prefixed)
    assert not filters.matches(prefixed._replace(resource_name="u"))
    assert filters.matches(*acls("group", "g", "app", "READ"))
    assert not filters.matches(*acls("group", "g", "app", "READ", deny=True))
    assert AclFilters().matches(prefixed)
    assert str(AclFilters()) == ""


def test_rules_are_those_of_kafkas_cluster_mirroring() -> None:
    filters = parse_acl_filters("acls.include", "topic;orders-.*;read, *;*;*;*;User:app-.*")
    assert str(filters) == "TOPIC;orders-.*;READ,*;*;*;*;User:app-.*"
    assert parse_acl_filters("acls.include", str(filters)) == filters
    (one,) = acls("topic", "orders-eu", "x", "READ")
    assert filters.matches(one)
    assert not filters.matches(one._replace(resource_name="x-orders-eu"))
    assert not filters.matches(*acls("topic", "orders-eu", "x", "WRITE"))
    assert filters.matches(*acls("group", "g", "app-1", "WRITE"))
    assert not filters.matches(*acls("group", "g", "an-app-1", "READ"))
    assert parse_acl_filters("acls.include", "*") == AclFilters()
    ids = parse_acl_filters("acls.include", "transactional-id;app-.*, CLUSTER;*;idempotent_write")
    assert ids.matches(*txn("app-1", "x"))
    assert not ids.matches(*txn("web-1", "x"))
    assert ids.matches(*acls("cluster", "kafka-cluster", "x", "IDEMPOTENT_WRITE"))
    assert not ids.matches(*acls("cluster", "kafka-cluster", "x", "ALTER"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TOPIC;a;READ;ALLOW;User:a;more", "is not a rule"),
        ("TOPIC;;READ", "is not a rule"),
        ("TOPIC;a[", "pattern a. is not understood"),
        ("FLOWER;a", "resource type=FLOWER is unknown"),
        ("{", "acls.include is not JSON"),
        ("[]", "not an object with a list aclFilters"),
        ('{"aclFilters":{}}', "not an object with a list aclFilters"),
        ('{"aclFilters":[],"topicFilters":[]}', "not an object with a list aclFilters"),
        ('{"aclFilters":[]}', "has no filter in aclFilters"),
        ('{"aclFilters":[{"resource":{}}]}', "a filter has resourceFilter and accessFilter"),
        ('{"aclFilters":[{"resourceFilter":[]}]}', "resourceFilter is not an object"),
        ('{"aclFilters":[{"resourceFilter":{"type":"topic"}}]}', "resourceFilter has no type="),
        ('{"aclFilters":[{"accessFilter":{"operation":"fly"}}]}', "operation=fly is unknown"),
        ('{"aclFilters":[{"accessFilter":{"principal":7}}]}', "accessFilter has no principal=7"),
    ],
)
def test_filters_that_are_not_understood_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_acl_filters("acls.include", text)
