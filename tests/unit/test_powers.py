"""Who can stop or damage which mirrors: decided without a broker."""

from __future__ import annotations

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.ops.check.powers import power_lines, power_over_all, power_over_mirror
from tests.support.acls import acls, denial

STATE = acls("topic", "__kmirror_", "kmirror", "READ", "WRITE", prefixed=True)


def test_principals_that_write_the_state_or_change_acls_have_power_over_every_mirror() -> None:
    def whom(*bindings: AclBinding) -> set[str]:
        return set(power_over_all(bindings).principals)

    assert whom(*STATE) == {"User:kmirror"}
    assert whom(*acls("topic", "__kmirror_events", "a", "DELETE")) == {"User:a"}
    assert whom(*acls("topic", "*", "a", "ALL")) == {"User:a"}
    assert whom(*acls("cluster", "kafka-cluster", "a", "ALTER"), *acls("cluster", "kafka-cluster", "b", "ALL")) == {
        "User:a",
        "User:b",
    }
    assert whom(*acls("cluster", "kafka-cluster", "a", "CLUSTER_ACTION")) == {"User:a"}
    harmless = [
        *acls("topic", "__kmirror_", "a", "READ", "DESCRIBE", prefixed=True),
        *acls("topic", "orders", "a", "ALL"),
        *acls("cluster", "kafka-cluster", "a", "CREATE", "DESCRIBE", "IDEMPOTENT_WRITE"),
        *acls("topic", "*", "b", "WRITE"),
        *acls("topic", "*", "b", "WRITE", deny=True),
    ]
    assert whom(*harmless) == set()
    assert (
        str(power_over_all(STATE)) == "User:kmirror (WRITE on topic __kmirror_events, WRITE on topic __kmirror_state)"
    )


def test_topics_and_locks_are_a_mirrors_own() -> None:
    here = [
        *acls("topic", "orders", "a", "WRITE", "DELETE", "READ"),
        denial("orders", "a"),
        *acls("transactional_id", "kmirror-operator-m", "b", "WRITE"),
        *acls("transactional_id", "kmirror-", "c", "ALL", prefixed=True),
    ]
    one = power_over_mirror(here, "m", ["orders"])
    assert {who: set(what) for who, what in one.rights.items()} == {
        "User:a": {"DELETE on topic orders"},
        "User:b": {"WRITE on transactional id kmirror-operator-m"},
        "User:c": {
            "WRITE on transactional id kmirror-operator-m",
            "WRITE on transactional id kmirror-engine-m",
        },
    }
    assert power_over_mirror(here, "n n", ["x"]).principals == {"User:c"}
    assert power_over_mirror(acls("transactional_id", "kmirror-engine-n%20n", "d", "WRITE"), "n n", []).principals


def test_check_warns_where_principals_share_power_over_several_mirrors() -> None:
    both = {"m": ["orders"], "n": ["pay"]}
    team = acls("topic", "__kmirror_state", "team", "WRITE")

    def lines_of(bindings: list[AclBinding], mirrors: dict[str, list[str]], *asked: str) -> list[tuple[str, str, bool]]:
        lines = power_lines(bindings, {"User:kmirror"}, mirrors, asked)
        return [(line.what, line.message, bool(line.hint)) for line in lines]

    ((what, message, is_warned),) = lines_of([*STATE, *team], both)
    assert (what, is_warned) == ("power over all mirrors", True)
    assert message == (
        "who can stop or damage all 2 mirrors here (m, n): User:kmirror (WRITE on topic __kmirror_events, WRITE on "
        "topic __kmirror_state), User:team (WRITE on topic __kmirror_state); super users can, too"
    )
    assert lines_of(STATE, both)[0][2] is False  # none but us
    assert lines_of([*STATE, *team], {"m": ["orders"]})[0][2] is False  # the engine's principal beside the operator's
    (_, message, _) = lines_of([], both)[0]
    assert "only super users can, by the ACLs; no ACL applies to __kmirror_state: with allow.everyone" in message

    damage = acls("topic", "pay", "app", "ALTER_CONFIGS")
    lines = lines_of([*STATE, *damage], both, "m")
    assert [line[0] for line in lines[1:]] == ["power over mirror m", "power over mirror n"]
    assert lines[1][1:] == ("no one else can damage it, by the ACLs", False)
    assert lines[2][1:] == ("these can damage it, too: User:app (ALTER_CONFIGS on topic pay)", True)
    assert lines_of([*STATE, *damage], both)[1:] == lines[2:]  # not asked for, but others can
