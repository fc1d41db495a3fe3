"""What `add` decides about each topic, from facts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, format_topic_id
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import ExitCode, Reason, UsageError
from kmirror.ops.add.add_plan import Action, AddFacts, Selection, TopicPlan, decide, select
from kmirror.ops.add.topic_admin import requests_of
from kmirror.ops.base.results import exit_code_of
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.upstream import Upstream, follow, links_of
from kmirror.settings.parsing import parse_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.settings.value_types import StartFrom
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import PENDING_ADD, DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State
from kmirror.sync.setting_changes import SettingsPlan

SOURCE_ID, DESTINATION_ID = bytes(15) + b"\1", bytes(15) + b"\2"
SOURCE = ClientConfig((("source", 9092),))
DESTINATION = ClientConfig(
    (("b1", 9092), ("b2", 9092)), security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", username="kmirror"
)


def topic(
    name: str, partitions: int = 2, error: int = 0, topic_id: bytes = SOURCE_ID, internal: bool = False
) -> TopicMetadata:
    found = {i: PartitionMetadata(i, 0, 1, 0, (1,), (1,)) for i in range(0 if error else partitions)}
    return TopicMetadata(name, error, topic_id, internal, found)


def topics(*names: str) -> dict[str, TopicMetadata]:
    return {name: topic(name) for name in names}


def choose(patterns: str, found: Mapping[str, TopicMetadata], settings: str = "", **options: Any) -> Selection:
    stored = dict(line.split("=") for line in settings.split())
    exclude = TopicSelector.parse([options.pop("exclude")]) if "exclude" in options else TopicSelector()
    options.setdefault("allow_missing", False)
    return select(TopicSelector.parse([patterns]), exclude, parse_settings(stored), found, SOURCE, **options)


def record(
    name: str,
    desired: DesiredState = DesiredState.ACTIVE,
    pending: str | None = None,
    mirror: str = "m",
    source: str | None = None,
    topic_id: bytes | None = DESTINATION_ID,
) -> TopicRecord:
    printed = None if topic_id is None else format_topic_id(topic_id)
    return TopicRecord(mirror, name, source or name, None, printed, desired, 2, TopicOrigin.CREATED, pending)


def mirror(name: str = "m", source_cluster_id: str = "A") -> MirrorRecord:
    return MirrorRecord(name, {}, {}, source_cluster_id, "eve@ops", 0)


def decided(
    name: str = "orders",
    *,
    here: TopicMetadata | None = None,
    records: tuple[TopicRecord | MirrorRecord, ...] = (),
    end: int = 0,
    adopt: bool = False,
    named: bool = True,
    keep_stopped: bool = False,
    settings: Settings | None = None,
    **facts: Any,
) -> TopicPlan | TopicResult:
    facts = {"source": {name: topic(name)}, "source_settings": {name: SettingsPlan({}, {})}, **facts}
    known = AddFacts(
        State.of([mirror(), *records]),
        "m",
        settings or Settings(),
        destination={} if here is None else {here.name: here},
        destination_ends={} if here is None else {TopicPartition(here.name, 1): end},
        source_login=SOURCE,
        destination_login=DESTINATION,
        **facts,
    )
    return decide(known, name, adopt=adopt, named=named, keep_stopped=keep_stopped)


def existing(partitions: int = 2, name: str = "orders") -> TopicMetadata:
    return topic(name, partitions, topic_id=DESTINATION_ID)


def refused(outcome: TopicPlan | TopicResult) -> TopicResult:
    assert isinstance(outcome, TopicResult)
    assert outcome.result is Outcome.REFUSED
    assert outcome.hint
    return outcome


# -- which topics ---------------------------------------------------------------------------------------------------


def test_names_and_expressions_match_source_names() -> None:
    chosen = choose("orders,pay.*", topics("orders", "pay-1", "pay-2", "other"))
    assert chosen.chosen == ("orders", "pay-1", "pay-2")


def test_expressions_are_kept_for_later_topics_and_names_are_not() -> None:
    chosen = choose("orders,pay.*", topics("orders"), exclude="pay-x", allow_missing=True)
    assert chosen.results == ()
    assert chosen.filters.apply(Settings()) == {"topics.include": "pay.*", "topics.exclude": "pay-x"}
    assert chosen.warnings == ("pay.* matches no topic of the source yet",)


def test_an_exclusion_is_kept_where_topics_are_discovered() -> None:
    for kind in (
        "topics.include=.*",
        "auto.create.mirror.topics.enable=true\nauto.create.mirror.topics.filters="
        '{"topicFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"}]}',
    ):
        chosen = choose("orders", topics("orders"), kind, exclude="pay-x")
        assert (chosen.filters.exclude_gains, chosen.warnings) == (("pay-x",), ())
        # nothing is changed by an add that is refused
        assert not choose("no-orders", topics("orders"), kind, exclude="pay-x").filters
    alone = choose("orders", topics("orders"), exclude="pay-x")
    assert (bool(alone.filters), alone.warnings) == (
        False,
        ("--exclude pay-x is not kept: this mirror discovers no topics",),
    )


@pytest.mark.parametrize("exclude", ["orders", "ord.*"])
def test_a_name_that_is_excluded_too_is_a_contradiction(exclude: str) -> None:
    with pytest.raises(UsageError, match="--topics and --exclude contradict each other: orders"):
        choose("orders,pay.*", topics("orders", "pay-1"), exclude=exclude)


def test_an_expression_that_matches_nothing_is_refused_and_not_kept() -> None:
    chosen = choose("orders.*,pay.*", topics("orders", "__pay"), exclude="orders-x")
    assert (chosen.chosen, chosen.warnings) == (("orders",), ())
    assert chosen.filters.include_gains == ("orders.*",)
    (row,) = chosen.results
    assert (row.topic, row.result) == (None, Outcome.REFUSED)
    assert (row.message or "").startswith("pay.* matches no source topic")
    assert "--allow-missing" in (row.hint or "")
    (row,) = choose("pay.*", topics("pay-1"), "topics.exclude=pay-1").results
    assert row.result is Outcome.REFUSED
    assert "are excluded by" in (row.message or "")


def test_a_missing_name_is_refused_and_with_allow_missing_it_follows() -> None:
    (row,) = choose("orders", {}).results
    assert row.result is Outcome.REFUSED
    assert row.message == "the source has no topic orders"
    later = choose("orders", {}, allow_missing=True)
    assert later.results == ()
    assert later.filters.include_gains == ("orders",)


def test_a_topic_we_may_not_see_names_the_rights() -> None:
    (row,) = choose("orders", {"orders": topic("orders", error=Code.TOPIC_AUTHORIZATION_FAILED)}).results
    assert row.reason is Reason.NOT_AUTHORIZED
    assert "READ" in (row.message or "")
    assert "--operation DescribeConfigs" in (row.hint or "")
    assert exit_code_of([row]) == ExitCode.REFUSED


def test_expressions_never_take_internal_topics_or_archives() -> None:
    found = topics("orders", "__kmirror_state", "__mine", "orders.kmirror-archive.3")
    found["_schemas"] = topic("_schemas", internal=True)
    assert choose(".*", found).chosen == ("orders",)


def test_names_take_an_archive_but_nothing_internal() -> None:
    found = topics("orders.kmirror-archive.3", "__kmirror_state")
    chosen = choose("orders.kmirror-archive.3,__kmirror_state", found)
    assert chosen.chosen == ("orders.kmirror-archive.3",)
    assert [row.topic for row in chosen.results] == ["__kmirror_state"]


def test_excluded_topics_stay_out_and_naming_the_pattern_takes_it_off_the_list() -> None:
    found = topics("pay-1", "pay-2")
    assert choose("pay.*", found, "topics.exclude=pay-2").chosen == ("pay-1",)
    again = choose("pay-2", found, "topics.exclude=pay-2")
    assert again.chosen == ("pay-2",)
    assert str(again.filters) == "topics.exclude loses pay-2"
    (row,) = choose("pay-2", found, "topics.exclude=pay-[0-9]").results
    assert row.result is Outcome.REFUSED
    assert "topics.exclude" in (row.message or "")


def test_filters_that_would_contradict_each_other_are_refused() -> None:
    chosen = choose("pay.*", topics("pay-1"), exclude="pay.*")
    with pytest.raises(UsageError, match="contradict"):
        chosen.filters.apply(Settings())


def test_refusals_bear_the_destination_name() -> None:
    (row,) = choose("orders", {}, "topic.prefix=a.").results
    assert row.topic == "a.orders"


# -- what is done with one ------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_created_with_the_sources_partitions() -> None:
    plan = decided(settings=parse_settings({"topic.prefix": "a."}))
    assert isinstance(plan, TopicPlan)
    assert (plan.action, plan.topic, plan.partitions) == (Action.CREATE, "a.orders", 2)
    assert plan.source_topic_id == format_topic_id(SOURCE_ID)


def test_clusters_without_topic_ids_are_refused() -> None:
    nameless = refused(decided(source={"orders": topic("orders", topic_id=NO_TOPIC_ID)}))
    assert "the source has no topic ids" in str(nameless.message)
    assert "inter.broker.protocol.version on the source's brokers" in str(nameless.hint)
    memory = refused(decided(here=topic(STATE_TOPIC, topic_id=NO_TOPIC_ID)))
    assert "the destination has no topic ids" in str(memory.message)
    assert isinstance(decided(here=topic(STATE_TOPIC)), TopicPlan)
    assert isinstance(decided(here=topic(STATE_TOPIC, error=3, topic_id=NO_TOPIC_ID)), TopicPlan)


def test_an_existing_topic_is_refused_and_with_adopt_its_content_decides() -> None:
    assert "--adopt" in (refused(decided(here=existing())).hint or "")
    plan = decided(here=existing(), adopt=True, end=5)
    assert isinstance(plan, TopicPlan)
    assert plan.action is Action.ADOPT


def test_partition_counts_have_to_be_equal() -> None:
    row = refused(decided(here=existing(partitions=3), adopt=True))
    assert row.message == "topic orders already exists with 3 partitions; orders has 2"
    assert "delete or rename it" in str(row.hint)
    # what is missing can be added, and need not cost the records
    row = refused(decided(here=existing(partitions=1), adopt=True))
    assert "delete" not in str(row.hint)
    assert str(row.hint).endswith("--alter --topic orders --partitions 2")
    # kafka-topics reads a regular expression
    row = refused(decided("eu.orders", here=topic("eu.orders", partitions=1), adopt=True))
    assert str(row.hint).endswith("--alter --topic 'eu[.]orders' --partitions 2")


def test_adding_a_mirror_topic_again_changes_nothing() -> None:
    outcome = decided(here=existing(), records=(record("orders"),))
    assert isinstance(outcome, TopicResult)
    assert outcome.result is Outcome.NOOP


def test_an_interrupted_add_is_finished_without_adopt_while_its_topic_is_empty() -> None:
    claim = record("orders", pending=PENDING_ADD, topic_id=None)
    plan = decided(here=existing(), records=(claim,))
    assert isinstance(plan, TopicPlan)
    assert plan.action is Action.FINISH
    refused(decided(here=existing(), records=(claim,), end=1))
    begun = decided(records=(claim,))
    assert isinstance(begun, TopicPlan)
    assert begun.action is Action.CREATE


LATEST: dict[str, Any] = {"start_from": StartFrom("latest")}
NAMED: dict[str, Any] = {**LATEST, "start_is_named": True}


def planned(outcome: TopicPlan | TopicResult) -> TopicPlan:
    assert isinstance(outcome, TopicPlan)
    return outcome


def test_a_new_topic_begins_where_start_from_says() -> None:
    assert not planned(decided()).is_start_open
    assert planned(decided(**LATEST)).is_start_open
    assert planned(decided(here=existing(), adopt=True, **LATEST)).is_start_open


def test_records_that_are_there_decide_where_an_adopted_topic_continues() -> None:
    plan = planned(decided(here=existing(), adopt=True, end=5, **LATEST))
    assert (plan.is_start_open, plan.begun) == (False, frozenset({1}))
    row = refused(decided(here=existing(), adopt=True, end=5, **NAMED))
    assert "omit --start-from latest" in (row.hint or "")
    earliest: dict[str, Any] = {"start_from": StartFrom(), "start_is_named": True}
    assert planned(decided(here=existing(), adopt=True, end=5, **earliest)).action is Action.ADOPT


def test_adding_a_mirror_topic_again_does_not_move_its_beginning() -> None:
    outcome = decided(here=existing(), records=(record("orders"),), **NAMED)
    assert isinstance(outcome, TopicResult)
    assert outcome.result is Outcome.NOOP
    assert outcome.message == ("orders is already a mirror topic; --start-from latest does not change where it started")


@pytest.mark.parametrize("fixed", [{0: 4, 1: 9}, None])
def test_an_interrupted_add_keeps_where_it_had_decided_to_begin(fixed: dict[int, int] | None) -> None:
    claim = record("orders", pending=PENDING_ADD, topic_id=None)
    claim = replace(claim, source_topic_id=format_topic_id(SOURCE_ID), first_offsets=fixed)
    for here in (None, existing()):
        plan = planned(decided(here=here, records=(claim,), **NAMED))
        assert (plan.first_offsets, plan.is_start_open, plan.is_start_fixed) == (fixed or {}, False, True)
    # those were offsets of another topic
    recreated: dict[str, Any] = {"source": {"orders": topic("orders", topic_id=bytes(15) + b"\7")}}
    plan = planned(decided(records=(claim,), **recreated, **NAMED))
    assert (plan.first_offsets, plan.is_start_open, plan.is_start_fixed) == ({}, True, False)


def test_a_stopped_topic_comes_back_only_by_name_and_with_adopt() -> None:
    stopped = record("orders", DesiredState.STOPPED)
    assert "was stopped" in (refused(decided(here=existing(), records=(stopped,))).message or "")
    matched = decided(here=existing(), records=(stopped,), named=False)
    assert isinstance(matched, TopicResult)
    assert matched.result is Outcome.NOOP
    plan = decided(here=existing(), records=(stopped,), adopt=True)
    assert isinstance(plan, TopicPlan)
    assert plan.action is Action.ADOPT
    kept = decided(here=existing(), records=(stopped,), adopt=True, named=False, keep_stopped=True)
    assert isinstance(kept, TopicResult)
    assert kept.result is Outcome.NOOP


def test_a_mirror_topic_that_was_deleted_is_created_again_when_asked() -> None:
    gone = topic("orders", error=Code.UNKNOWN_TOPIC_OR_PARTITION)
    plan = decided(here=gone, records=(record("orders"),))
    assert isinstance(plan, TopicPlan)
    assert plan.action is Action.CREATE
    # another topic bears its name now: it is no one's until adopted
    refused(decided(here=topic("orders", topic_id=bytes(15) + b"\7"), records=(record("orders"),)))


def test_two_mirrors_cannot_own_one_topic() -> None:
    other = (mirror("n"), record("orders", mirror="n"))
    assert refused(decided(records=other)).message == "orders is a mirror topic of mirror n"
    freed = (mirror("n"), record("orders", DesiredState.STOPPED, mirror="n"))
    assert isinstance(decided(records=freed), TopicPlan)


def test_two_source_topics_cannot_become_one() -> None:
    other = record("a.orders", source="a.orders")
    row = refused(decided("orders", records=(other,), settings=parse_settings({"topic.prefix": "a."})))
    assert row.message == "a.orders already mirrors a.orders"


def test_a_copy_of_ours_is_not_copied_back() -> None:
    there = State.of([mirror("back", "B"), record("orders", mirror="back", source="a.orders")])
    loops, further = follow(there, links_of(["orders"], "b."), "B")
    assert not further
    row = refused(decided(upstream=Upstream(loops=loops), settings=parse_settings({"topic.prefix": "b."})))
    assert row.reason is Reason.LOOP
    assert "a.orders here → orders on the source (mirror back there) → b.orders here" in (row.message or "")


@pytest.mark.parametrize("harmless", ["another cluster", "stopped"])
def test_a_copy_from_elsewhere_or_one_that_was_stopped_is_no_loop(harmless: str) -> None:
    desired = DesiredState.STOPPED if harmless == "stopped" else DesiredState.ACTIVE
    cluster = "C" if harmless == "another cluster" else "B"
    there = State.of([mirror("back", cluster), record("orders", desired, mirror="back")])
    loops, further = follow(there, links_of(["orders"], ""), "B")
    assert loops == {}
    assert bool(further) is (harmless == "another cluster")


def test_a_longer_way_round_is_reported_in_full() -> None:
    source = State.of([mirror("from-c", "C"), record("orders", mirror="from-c", source="x.orders")])
    _, further = follow(source, links_of(["orders", "other"], "b."), "B")
    at_c = State.of([mirror("from-b", "B"), record("x.orders", mirror="from-b", source="orders")])
    loops, beyond = follow(at_c, further["C"], "B")
    assert not beyond
    assert loops == {
        "orders": "orders here → x.orders on cluster C (mirror from-b there) → orders on the source (mirror from-c "
        "there) → b.orders here"
    }


def test_with_a_prefix_a_copy_is_mirrored_only_when_it_is_named() -> None:
    upstream, prefix = Upstream(frozenset({"orders"})), parse_settings({"topic.prefix": "b."})
    left = decided(upstream=upstream, settings=prefix, named=False)
    assert isinstance(left, TopicResult)
    assert left.result is Outcome.NOOP
    assert isinstance(decided(upstream=upstream, settings=prefix), TopicPlan)
    # without one the copy keeps its name all the way, and is taken
    assert isinstance(decided(upstream=upstream, named=False), TopicPlan)


def test_expressions_do_not_go_with_the_other_kind_of_filters() -> None:
    text = '{"topicFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"}]}'
    settings = parse_settings({"auto.create.mirror.topics.enable": "true", "auto.create.mirror.topics.filters": text})
    kept = choose("pay.*", topics("pay-1")).filters
    with pytest.raises(UsageError, match=r"pay\.\*: patterns are stored in topics\.include") as refusal:
        kept.apply(settings)
    assert "auto.create.mirror.topics.filters" in refusal.value.message
    assert not choose("pay-1", topics("pay-1")).filters


def test_missing_rights_are_named() -> None:
    row = refused(decided(source_rights_missing={"orders": ["READ"]}))
    assert row.reason is Reason.NOT_AUTHORIZED
    assert "READ on topic orders" in (row.message or "")
    acls = "kafka-acls --bootstrap-server source:9092 --add --allow-principal User:ANONYMOUS"
    assert row.hint == f"{acls} --operation Read --topic orders"
    row = refused(decided(source_settings={"orders": int(Code.TOPIC_AUTHORIZATION_FAILED)}))
    assert "DESCRIBE_CONFIGS" in (row.message or "")
    assert row.hint == f"{acls} --operation DescribeConfigs --topic orders"
    row = refused(decided(here=topic("orders", error=Code.TOPIC_AUTHORIZATION_FAILED)))
    assert row.reason is Reason.NOT_AUTHORIZED
    assert row.hint == (
        "kafka-acls --bootstrap-server b1:9092,b2:9092 --command-config admin.properties "
        "--add --allow-principal User:kmirror --operation Describe --topic orders"
    )


def test_a_name_that_grows_too_long_is_refused() -> None:
    name = "x" * 240
    row = refused(decided(name, settings=parse_settings({"topic.prefix": "a" * 10})))
    assert "too long for a topic name" in (row.message or "")


def test_topics_are_created_in_few_requests_that_a_controller_takes() -> None:
    small = {f"small-{number:04}": 9 for number in range(1_500)}
    requests = requests_of(small)
    assert [len(names) for names in requests] == [500, 1_000]
    assert [name for names in requests for name in names] == sorted(small)
    # a topic is never divided, even if the controller will refuse it
    assert requests_of({"a": 1, "large": 20_000, "b": 1}) == [["a"], ["large"], ["b"]]
    assert requests_of({}) == []
