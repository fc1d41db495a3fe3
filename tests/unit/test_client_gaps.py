"""How people and scripts learn what clients lack at the destination."""

from __future__ import annotations

from dataclasses import replace

from kmirror.cluster.protocol.acl_binding import Operation, PatternType, ResourceType
from kmirror.cluster.protocol.quota import Quota
from kmirror.ops.base.client_gaps import ClientGaps, gap_sentences, grant_command
from kmirror.ops.base.results import VerbResult
from kmirror.sync.client_rights import LackingRight

AT = 1_000_000_000_000
WRITE = LackingRight("User:a", "*", Operation.WRITE, ResourceType.TOPIC, PatternType.LITERAL, ("orders", "pay"))
IDS = LackingRight(
    "User:a b", "10.0.0.1", Operation.WRITE, ResourceType.TRANSACTIONAL_ID, PatternType.PREFIXED, ("app-",)
)


def test_nothing_missing_differs_from_nothing_known() -> None:
    none = ClientGaps(found_ms=AT, rights=(), rights_as_of_ms=AT, quotas=(), scram_users=())
    assert list(gap_sentences(none)) == []
    document = ClientGaps(found_ms=AT, unknown=("why",), warned=("why",)).to_json()
    assert list(gap_sentences(ClientGaps(found_ms=AT, unknown=("why", "not asked for"), warned=("why",)))) == ["why"]
    unknown = ("rights", "rightsAsOf", "quotas", "quotasAsOf", "scramUsers", "scramUsersAsOf")
    assert document == dict.fromkeys(unknown) | {"deferred": [], "unknown": ["why"]}
    assert none.to_json()["rights"] == []


def test_principals_that_lack_the_same_share_a_sentence_with_its_time() -> None:
    another = WRITE._replace(principal="User:b")
    quota = Quota((("user", "a"),), "producer_byte_rate", 1000)
    gaps = ClientGaps(
        found_ms=AT,
        rights=(WRITE, another, IDS),
        rights_as_of_ms=AT - 120_000,
        quotas=(quota,),
        quotas_as_of_ms=AT,
        scram_users=tuple(f"u{n}" for n in range(7)),
        scram_users_as_of_ms=AT,
        commands=("one", "two", "three"),
    )
    since = "granted at the source as of 2001-09-09T01:44:40Z, 2m ago; `--json` has commands that grant it"
    assert list(gap_sentences(gaps)) == [
        f"User:a, User:b lack WRITE on 2 topics here (orders, pay), {since}",
        f"User:a b from 10.0.0.1 lacks WRITE on 1 transactional id prefix here (app-), {since}",
        "1 quota of the source is missing or different here (producer_byte_rate=1000 for user a)",
        "7 SCRAM users of the source cannot log in here (u0, u1, u2, u3, u4 and 2 more); create them here",
    ]
    live = replace(gaps, rights=(WRITE,), commands=("one",), rights_as_of_ms=AT)
    assert next(gap_sentences(live)).endswith(
        "(orders, pay), granted at the source; `--json` has commands that grant it"
    )
    document = gaps.to_json()
    assert document["rights"][2] == {
        "principal": "User:a b",
        "host": "10.0.0.1",
        "operation": "WRITE",
        "resourceType": "TRANSACTIONAL_ID",
        "patternType": "PREFIXED",
        "names": ["app-"],
        "command": "three",
    }
    assert document["quotas"] == [{"user": "a", "clientId": None, "key": "producer_byte_rate", "value": 1000}]
    result = VerbResult.of("failover", "m", [], clients=gaps, warnings=["first"])
    assert result.warnings == ("first", *gap_sentences(gaps))
    assert result.to_json()["clients"] == document


def test_a_command_grants_all_that_one_principal_lacks_of_a_kind() -> None:
    assert grant_command(WRITE, ("--bootstrap-server", "b:1")) == (
        "kafka-acls --bootstrap-server b:1 --add --allow-principal User:a --operation Write --topic orders --topic pay"
    )
    assert grant_command(IDS, ("--bootstrap-server", "b:1")) == (
        "kafka-acls --bootstrap-server b:1 --add --allow-principal 'User:a b' --allow-host 10.0.0.1 --operation Write"
        " --transactional-id app- --resource-pattern-type prefixed"
    )
