"""What clients of the source cannot do at the destination: decided without a broker."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.sync.client_rights import LackingRight, Scope, is_of_clients, lacking_rights
from tests.support.acls import acls

SCOPE = Scope(
    {"t": "t", "t2": "eu.t2"}, {"g": "eu.g"}, lambda group: group.startswith("g"), lambda group: f"eu.{group}",
    {"User:kmirror"},
)  # fmt: skip
WRITES = acls("topic", "t", "app", "WRITE")
TXN = acls("transactional_id", "app-", "app", "WRITE", prefixed=True)


def lacking(source: list[AclBinding], here: list[AclBinding]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return who lacks what: principal, operation, kind and names."""
    found = lacking_rights(source, here, SCOPE)
    return [(one.principal, one.operation, one.resource_type, one.names) for one in found]


def from_host(host: str, *bindings: AclBinding) -> list[AclBinding]:
    return [one._replace(host=host) for one in bindings]


@pytest.mark.parametrize(
    ("source", "here", "found"),
    [
        (WRITES, [], [("User:app", "WRITE", "TOPIC", ("t",))]),
        (WRITES, WRITES, []),
        (WRITES, acls("topic", "t", "app", "READ"), [("User:app", "WRITE", "TOPIC", ("t",))]),
        (WRITES, acls("topic", "t", "app", "ALL"), []),
        (WRITES, acls("topic", "t", "*", "WRITE"), []),
        (WRITES, acls("topic", "*", "app", "WRITE"), []),
        (WRITES, acls("topic", "", "app", "WRITE", prefixed=True), []),
        (WRITES, acls("topic", "tt", "app", "WRITE", prefixed=True), [("User:app", "WRITE", "TOPIC", ("t",))]),
        (WRITES, [*WRITES, *acls("topic", "t", "app", "WRITE", deny=True)], [("User:app", "WRITE", "TOPIC", ("t",))]),
        (WRITES, [*WRITES, *acls("topic", "*", "*", "ALL", deny=True)], [("User:app", "WRITE", "TOPIC", ("t",))]),
        (WRITES, from_host("10.0.0.1", *WRITES), [("User:app", "WRITE", "TOPIC", ("t",))]),
        (from_host("10.0.0.1", *WRITES), WRITES, []),
        (WRITES, [*WRITES, *from_host("10.0.0.1", *acls("topic", "t", "app", "WRITE", deny=True))], []),
        ([*WRITES, *acls("topic", "t", "app", "ALL", deny=True)], [], []),  # it could not at the source
        (acls("topic", "t2", "app", "READ"), acls("topic", "t2", "app", "READ"),
         [("User:app", "READ", "TOPIC", ("eu.t2",))]),
        (acls("topic", "*", "app", "ALL"), [], [("User:app", "READ", "TOPIC", ("eu.t2", "t")),
                                                ("User:app", "WRITE", "TOPIC", ("eu.t2", "t"))]),
        (acls("topic", "t", "*", "READ"), acls("topic", "t", "app", "READ"), [("User:*", "READ", "TOPIC", ("t",))]),
        (acls("topic", "other", "app", "WRITE") + acls("topic", "t", "kmirror", "ALL"), [], []),
        # groups
        (acls("group", "g1", "app", "READ"), [], [("User:app", "READ", "GROUP", ("eu.g1",))]),
        (acls("group", "g1", "app", "READ"), acls("group", "eu.", "app", "READ", prefixed=True), []),
        (acls("group", "g1", "app", "DESCRIBE") + acls("group", "x", "app", "READ"), [], []),
        (acls("group", "g", "app", "READ", prefixed=True), acls("group", "eu.g", "app", "READ"),
         [("User:app", "READ", "GROUP", ("eu.g",))]),  # one name is not the prefix
        (acls("group", "*", "app", "READ"), [], [("User:app", "READ", "GROUP", ("eu.g",))]),
        (acls("group", "*", "app", "READ"), acls("group", "eu.g", "app", "READ"), []),
        # transactional ids of those that may write
        (TXN, [], []),
        ([*WRITES, *TXN], WRITES, [("User:app", "WRITE", "TRANSACTIONAL_ID", ("app-",))]),
        ([*WRITES, *TXN], [*WRITES, *acls("transactional_id", "*", "app", "WRITE")], []),
        ([*WRITES, *TXN], [*WRITES, *acls("transactional_id", "app-1", "app", "WRITE")],
         [("User:app", "WRITE", "TRANSACTIONAL_ID", ("app-",))]),
        ([*WRITES, *acls("transactional_id", "*", "app", "ALL")], [*WRITES, *TXN],
         [("User:app", "WRITE", "TRANSACTIONAL_ID", ("*",))]),
        # kmirror's own ids are denied beside a `*` that was taken over
        ([*WRITES, *acls("transactional_id", "*", "app", "WRITE")],
         [*WRITES, *acls("transactional_id", "*", "app", "WRITE"),
          *acls("transactional_id", "kmirror-", "app", "WRITE", prefixed=True, deny=True)], []),
    ],
)  # fmt: skip
def test_what_clients_could_do_and_cannot_do_here(
    source: list[AclBinding], here: list[AclBinding], found: list[tuple[str, str, str, tuple[str, ...]]]
) -> None:
    assert lacking(source, here) == found


def test_rights_from_one_host_are_reported_with_the_host() -> None:
    (one,) = lacking_rights(from_host("10.0.0.1", *WRITES), [], SCOPE)
    assert one == LackingRight("User:app", "10.0.0.1", *WRITES[0][5:6], *WRITES[0][0:1], *WRITES[0][2:3], ("t",))


def test_what_is_kept_of_the_sources_acls_is_about_its_clients() -> None:
    kept = [*WRITES, *TXN, *acls("group", "g", "app", "READ"), *acls("topic", "", "app", "READ", prefixed=True)]
    others = [*acls("topic", "other", "app", "READ"), *acls("cluster", "kafka-cluster", "app", "ALTER")]
    assert [one for one in (*kept, *others) if is_of_clients(one, frozenset({"t"}))] == kept
    star = acls("topic", "*", "app", "READ")
    assert [bool(is_of_clients(one, names)) for one in star for names in (frozenset({"t"}), frozenset())] == [
        True,
        False,
    ]
