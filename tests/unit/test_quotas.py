"""Which quotas are taken over, changed and removed: decided without a broker."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.quota import Quota
from kmirror.state.client_records import ClientsRecord, SourceAclsRecord
from kmirror.state.record_kinds import decode, encode
from kmirror.sync.quotas import copied_quotas, quota_plan
from tests.support.acls import acls


def quota(value: float = 1000, user: str = "app", key: str = "producer_byte_rate") -> Quota:
    return Quota((("user", user),), key, value)


def test_quotas_by_name_are_taken_over_and_neither_defaults_nor_our_own() -> None:
    both = Quota((("client-id", "web"), ("user", "app")), "request_percentage", 12.5)
    others = [
        quota(user=""),
        Quota((("client-id", ""), ("user", "app")), "producer_byte_rate", 1),
        Quota((("ip", "10.0.0.1"),), "connection_creation_rate", 1),
        quota(user="kmirror"),
        Quota((("client-id", "kmirror"),), "producer_byte_rate", 1),
    ]
    assert copied_quotas([quota(), both, *others], lambda kind, name: name == "kmirror") == {quota(), both}
    assert str(both) == "request_percentage=12.5 for client-id web and user app"
    assert str(quota(user="")) == "producer_byte_rate=1000 for user <default>"


@pytest.mark.parametrize(
    ("source", "here", "ours", "wanted", "unwanted", "kept", "differing"),
    [
        ([quota()], [], [], [quota()], [], [quota()], []),
        ([quota()], [quota()], [], [], [], [], []),  # another has set the same
        ([quota()], [quota()], [quota()], [], [], [quota()], []),
        ([quota(2)], [quota(1)], [quota(1)], [quota(2)], [], [quota(2)], []),  # it was changed at the source
        ([quota(2)], [quota(7)], [quota(1)], [], [], [], [quota(2)]),  # another has changed ours
        ([quota(2)], [quota(7)], [], [], [], [], [quota(2)]),
        ([quota(2)], [quota(1)], [quota(1), quota(2)], [quota(2)], [], [quota(2)], []),  # killed before it was set
        ([quota(2)], [quota(2)], [quota(1), quota(2)], [], [], [quota(2)], []),  # and after it
        ([], [quota(1)], [quota(1)], [], [quota(1)], [], []),
        ([], [quota(7)], [quota(1)], [], [], [], []),
        ([], [quota(1)], [], [], [], [], []),
        ([quota(1)], [quota(1, key="consumer_byte_rate")], [], [quota(1)], [], [quota(1)], []),
    ],
)
def test_only_what_kmirror_has_set_is_changed_or_removed(
    source: list[Quota],
    here: list[Quota],
    ours: list[Quota],
    wanted: list[Quota],
    unwanted: list[Quota],
    kept: list[Quota],
    differing: list[Quota],
) -> None:
    plan = quota_plan(source, here, ours, deletes=True)
    found: tuple[frozenset[Quota], ...] = (plan.wanted, plan.unwanted, plan.kept, plan.differing)
    assert found == tuple(map(frozenset, (wanted, unwanted, kept, differing)))
    assert plan.ours == {*ours, *wanted}  # on record before anything is changed


def test_what_clients_of_stopped_topics_live_by_stays() -> None:
    plan = quota_plan([], [quota()], [quota()], deletes=False)
    assert (plan.unwanted, plan.kept) == (frozenset(), frozenset({quota()}))


def test_records_are_stored_whole() -> None:
    record = ClientsRecord("m", (quota(12.5),), (quota(), quota(3, user="b")), 7, ("app", "b"), 8, {"newer": 1})
    assert decode(*encode(record)) == record
    assert decode(*encode(ClientsRecord("m"))) == ClientsRecord("m")
    assert encode(ClientsRecord("m", (quota(12.5),), scram_users=(), scram_users_ms=7)) == (
        b'["clients","m"]',
        b'{"made":[[[["user","app"]],"producer_byte_rate",12.5]],"scram_users":[],"scram_users_ms":7,"v":1}',
    )
    page = SourceAclsRecord("m", 1, tuple(acls("topic", "t", "app", "READ")))
    for one in (page, SourceAclsRecord("m", 0, (), 7, 1)):
        assert decode(*encode(one)) == one
