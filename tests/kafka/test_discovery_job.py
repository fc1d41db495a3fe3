"""Topics that appear at the source become mirror topics where the filters say so, as `add` makes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.driver.side_jobs import JobEvent
from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror.ops.add import add_steps
from kmirror.ops.add.add import add
from kmirror.ops.add.add_work import AddWork
from kmirror.ops.base.context import Destination, change, require_mirror
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.show.describe import topic_notes
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.wait import Condition, wait
from kmirror.state.records import PENDING_ADD, DesiredState, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, outcomes, properties_of, selector, settings_of
from tests.support.new_topics import create_and_wait
from tests.support.side_jobs import run_once
from tests.support.waiting import wait_until

ENABLE, FILTERS = "auto.create.mirror.topics.enable", "auto.create.mirror.topics.filters"


@pytest.fixture
def prefix() -> str:
    """Return what the names of this test's topics begin with."""
    return unique_topic("found")


class Discovered:
    """A mirror with filters, and the job that looks."""

    def __init__(self, source: SandboxCluster, destination: Destination, **settings: str) -> None:
        self.destination = destination
        self.mirror = new_mirror(destination, source, **settings)
        self.job = DiscoveryJob(self.mirror, destination.properties)

    def look(self) -> list[JobEvent]:
        return run_once(self.job, self.destination, self.mirror)

    def topics(self) -> dict[str, TopicRecord]:
        return {topic.topic: topic for topic in self.destination.state().topics(self.mirror)}

    def stop_topic(self, topic: str) -> None:
        stopped = replace(self.topics()[topic], desired=DesiredState.STOPPED)
        change(self.destination, self.mirror, lambda _: Changes((stopped,)))


@pytest.fixture
def discovered(cluster_pair: ClusterPair, destination: Destination) -> Iterator[Callable[..., Discovered]]:
    made: list[Discovered] = []

    def make(**settings: str) -> Discovered:
        made.append(Discovered(cluster_pair.source, destination, **settings))
        return made[-1]

    yield make
    for one in made:
        one.job.close()


def json_filters(*entries: tuple[str, str, str]) -> str:
    names = ("name", "patternType", "filterType")
    return json.dumps({"topicFilters": [dict(zip(names, one, strict=True)) for one in entries]})


def test_new_topics_become_mirror_topics_as_add_makes_them(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*", topics_exclude=f"{prefix}-x", topic_prefix="d.")
    assert mirror.look() == []
    for name in ("a", "b", "x"):
        make_topic(cluster_pair.source, f"{prefix}-{name}", 3, retention_ms="60000")
    make_topic(cluster_pair.source, f"other-{prefix}")
    (reported,) = mirror.look()
    assert reported.note == f"now mirroring new source topics: {prefix}-a, {prefix}-b"
    found = mirror.topics()
    assert set(found) == {f"d.{prefix}-a", f"d.{prefix}-b"}
    record = found[f"d.{prefix}-a"]
    assert (record.desired, record.pending_operation, record.partitions) == (DesiredState.ACTIVE, None, 3)
    assert (record.deferred or {})["retention.ms"] == "60000"
    assert settings_of(cluster_pair.destination, f"d.{prefix}-a")["retention.ms"] == "-1"
    (event,) = [e for e in mirror.destination.store.read_events(mirror.mirror) if e.what == "discovery"]
    assert (event.result, event.details["topics"]) == ("ADDED", [f"d.{prefix}-a", f"d.{prefix}-b"])
    assert mirror.look() == []


def test_a_topic_of_which_it_was_unknown_where_it_comes_from_is_announced_later(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    """Until then it is not certain after a failover, for the whole mirror, which cluster is in charge."""
    mirror = discovered(topics_include=f"{prefix}.*")
    make_topic(cluster_pair.source, prefix)
    assert len(mirror.look()) == 1
    found = replace(mirror.topics()[prefix], term=2, announced=None)  # as where the source's state cannot be read
    change(mirror.destination, mirror.mirror, lambda _: Changes((found,)))
    assert mirror.look() == []
    assert mirror.topics()[prefix].announced is True


def test_what_an_add_of_names_excludes_is_not_discovered_either(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    for name in ("a", "secret"):
        make_topic(cluster_pair.source, f"{prefix}-{name}")
    done = add(mirror.destination, mirror.mirror, selector(f"{prefix}-a"), exclude=selector(f"{prefix}-secret"))
    assert done.exit_code == ExitCode.OK, done
    assert mirror.look() == []
    assert set(mirror.topics()) == {f"{prefix}-a"}


def test_a_run_uses_the_connections_of_the_last_one_unless_something_went_wrong_or_changed(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    open_it, opened = Connection.open, []

    def opens(host: str, port: int, config: ClientConfig) -> Connection:
        opened.append(open_it(host, port, config))
        return opened[-1]

    def new_ones() -> int:
        opened.clear()
        assert mirror.look() == []
        return len(opened)

    mirror.look()
    monkeypatch.setattr(Connection, "open", opens)
    assert new_ones() == 0
    monkeypatch.setattr(ClusterClient, "metadata", lambda *_, **__: (_ for _ in ()).throw(OutcomeUnknown("nothing")))
    with pytest.raises(KmirrorError, match="nothing"):
        mirror.look()
    monkeypatch.undo()
    monkeypatch.setattr(Connection, "open", opens)
    assert new_ones() >= 1
    assert new_ones() == 0
    source = cluster_pair.source.bootstrap_servers
    change_config(mirror.destination, mirror.mirror, {"bootstrap.servers": f"{source},127.0.0.1:1"}, ())
    assert new_ones() >= 1
    assert new_ones() == 0


def test_json_filters_choose_topics_and_removed_ones_stay_out(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    for name in ("a", "b", "c", "temp-1"):
        make_topic(cluster_pair.source, f"{prefix}-{name}")
    filters = json_filters(
        (f"{prefix}-temp", "PREFIXED", "EXCLUDE"),
        (f"{prefix}-", "PREFIXED", "INCLUDE"),
        (f"{prefix}-b", "LITERAL", "EXCLUDE"),
    )
    settings = {"auto_create_mirror_topics_enable": "true", "auto_create_mirror_topics_filters": filters}
    mirror = discovered(**settings, topics_exclude=f"{prefix}-c")
    mirror.look()
    assert set(mirror.topics()) == {f"{prefix}-a"}
    # disabling clears the filters, and nothing is discovered any more
    with pytest.raises(UsageError, match=ENABLE):
        change_config(mirror.destination, mirror.mirror, {"topics.include": ".*"})
    change_config(mirror.destination, mirror.mirror, {ENABLE: "false"})
    stored = require_mirror(mirror.destination.state(), mirror.mirror).settings
    assert FILTERS not in stored
    make_topic(cluster_pair.source, f"{prefix}-d")
    assert mirror.look() == []
    with pytest.raises(UsageError, match="at least one INCLUDE"):
        change_config(mirror.destination, mirror.mirror, {ENABLE: "true"})
    assert require_mirror(mirror.destination.state(), mirror.mirror).settings == stored


def test_a_topic_that_exists_is_listed_once_and_never_adopted(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    make_topic(cluster_pair.source, f"{prefix}-a")
    make_topic(cluster_pair.source, f"{prefix}-b")
    make_topic(cluster_pair.destination, f"{prefix}-a")
    mirror = discovered(topics_include=f"{prefix}.*")
    left, added = mirror.look()
    assert (left.what, left.result, left.details["topic"]) == ("discovery", "REFUSED", f"{prefix}-a")
    assert "already exists on the destination" in (left.note or "")
    assert (added.note or "").endswith(f": {prefix}-b")
    mirror.job._retry_at.clear()
    assert mirror.look() == []
    assert set(mirror.topics()) == {f"{prefix}-b"}
    # another mirror here cannot have it either
    other = discovered(topics_include=f"{prefix}-b")
    (left,) = other.look()
    assert f"belongs to mirror {mirror.mirror}" in (left.note or "")


def test_what_cannot_be_added_is_shown_until_it_is_mirrored_or_no_longer_selected(
    cluster_pair: ClusterPair, destination: Destination, prefix: str
) -> None:
    here, there = f"{prefix}-here", f"{prefix}-there"
    make_topic(cluster_pair.destination, here)
    for topic in (here, there):
        make_topic(cluster_pair.source, topic)
    mirror = new_mirror(destination, cluster_pair.source, topics_include=f"{prefix}.*", refresh_interval_seconds="1")

    def unhealthy(engine: LocalEngine) -> str | None:
        return next((served.missing for served in engine.service.status(mirror).mirrors), "it starts")

    with (
        closing(DiscoveryJob(mirror, destination.properties)) as job,
        LocalEngine(destination, mirror, [job]) as engine,
    ):
        wait_until(lambda: f"topic {here} already exists on the destination" in (unhealthy(engine) or ""))
        wait_until(lambda: topic_notes(destination, mirror))
        (note,) = topic_notes(destination, mirror)
        assert note.startswith(
            f"source topic {here} matches the filters of mirror {mirror} and is not mirrored: topic "
        )
        assert topic_notes(destination, mirror, selector(there)) == []
        assert next(row.not_added for row in list_mirrors(destination) if row.mirror == mirror) == 1
        at = cluster_pair.destination
        assert f"note: {note}\n" in typed(at, "describe", "--mirror", mirror).stderr
        assert f"note: mirror {mirror}: 1 source topic matches its filters and is not mir" in typed(at, "list").stderr
        assert wait(destination, mirror, Condition.HEALTHY, 120_000, topics=selector(there)).exit_code == ExitCode.OK
        waited = wait(destination, mirror, Condition.HEALTHY, 0)
        assert waited.exit_code == ExitCode.TIMED_OUT
        assert outcomes(waited) == {here: "TIMED_OUT", there: "DONE"}
        waited = wait(destination, mirror, Condition.CAUGHT_UP, 120_000)
        assert (waited.exit_code, note in waited.warnings) == (ExitCode.OK, True), waited
        change_config(destination, mirror, {"topics.exclude": here})
        assert wait(destination, mirror, Condition.HEALTHY, 120_000).exit_code == ExitCode.OK
        wait_until(lambda: unhealthy(engine) is None)
        assert topic_notes(destination, mirror) == []


def test_internal_topics_and_archives_are_never_discovered(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    for name in (f"{prefix}-a", f"{prefix}-a.kmirror-archive.1", f"__{prefix}-b"):
        make_topic(cluster_pair.source, name)
    mirror = discovered(topics_include=f"(__)?{prefix}.*,__consumer_offsets,__kmirror_state")
    mirror.look()
    assert set(mirror.topics()) == {f"{prefix}-a"}


def test_what_was_removed_or_stopped_does_not_come_back(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    for name in ("a", "b", "c"):
        make_topic(cluster_pair.source, f"{prefix}-{name}")
    mirror.look()
    mirror.stop_topic(f"{prefix}-a")
    delete_topic(cluster_pair.destination, f"{prefix}-a")
    assert mirror.look() == []
    assert mirror.topics()[f"{prefix}-a"].desired is DesiredState.STOPPED


def test_a_mirror_topic_that_its_owner_deletes_comes_back_while_filters_match(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    make_topic(cluster_pair.source, f"{prefix}-a")
    mirror.look()
    before = mirror.topics()[f"{prefix}-a"]
    delete_topic(cluster_pair.destination, f"{prefix}-a")
    failed = PartitionRecord(
        mirror.mirror, f"{prefix}-a", 0, PartitionState.FAILED, 1, Reason.DESTINATION_TOPIC_DELETED, "it is gone"
    )
    change(mirror.destination, mirror.mirror, lambda _: Changes((failed,)))
    before_it, after_it = mirror.look()
    anew = "deleted here, and the mirror's filters match: mirrored anew, with all of its history"
    assert (before_it.note, before_it.result) == (f"{prefix}-a: {anew}", "RECREATING")
    assert after_it.note == f"now mirroring new source topics: {prefix}-a"
    after = mirror.topics()[f"{prefix}-a"]
    assert after.destination_topic_id not in (None, before.destination_topic_id)
    assert (after.desired, after.pending_operation) == (DesiredState.ACTIVE, None)
    # with another topic of that name it is the owner's
    delete_topic(cluster_pair.destination, f"{prefix}-a")
    make_topic(cluster_pair.destination, f"{prefix}-a")
    change(mirror.destination, mirror.mirror, lambda _: Changes((failed,)))
    mirror.look()
    assert mirror.topics()[f"{prefix}-a"] == after


def test_after_a_failover_of_the_whole_mirror_nothing_is_discovered(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    make_topic(cluster_pair.source, f"{prefix}-a")

    def end() -> None:
        record = require_mirror(mirror.destination.state(), mirror.mirror)
        change(mirror.destination, mirror.mirror, lambda _: Changes((replace(record, discovery_ended=True),)))

    # the failover comes between the claim and the end
    make = add_steps._create_topics

    def make_and_end(at: Destination, work: AddWork) -> set[str]:
        made = make(at, work)
        end()
        return made

    monkeypatch.setattr(add_steps, "_create_topics", make_and_end)
    (reported,) = mirror.look()
    assert "it is an ordinary topic" in (reported.note or "")
    assert mirror.topics() == {}
    monkeypatch.undo()
    make_topic(cluster_pair.source, f"{prefix}-b")
    assert mirror.look() == []
    assert mirror.topics() == {}


def test_what_a_dead_engine_had_claimed_is_finished_by_the_next_one(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    make_topic(cluster_pair.source, f"{prefix}-a")
    monkeypatch.setattr(add_steps, "_complete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        mirror.look()
    monkeypatch.undo()
    assert mirror.topics()[f"{prefix}-a"].pending_operation == PENDING_ADD
    with closing(DiscoveryJob(mirror.mirror, mirror.destination.properties)) as successor:
        assert len(run_once(successor, mirror.destination, mirror.mirror)) == 1
    assert mirror.topics()[f"{prefix}-a"].pending_operation is None


def test_topics_that_come_while_the_mirror_is_paused_are_paused(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    mirror = discovered(topics_include=f"{prefix}.*")
    record = require_mirror(mirror.destination.state(), mirror.mirror)
    change(mirror.destination, mirror.mirror, lambda _: Changes((replace(record, paused=True),)))
    make_topic(cluster_pair.source, f"{prefix}-a")
    mirror.look()
    assert mirror.topics()[f"{prefix}-a"].desired is DesiredState.PAUSED


def test_more_topics_than_go_into_one_request_are_taken(
    cluster_pair: ClusterPair, discovered: Callable[..., Discovered], prefix: str
) -> None:
    admin = AdminClient(properties_of(cluster_pair.source))
    create_and_wait(admin, *[NewTopic(f"{prefix}-{n:03}", 1, 1) for n in range(120)])
    mirror = discovered(topics_include=f"{prefix}.*")
    notes = [reported.note or "" for reported in mirror.look()]
    assert [note[note.index("and") :] for note in notes] == ["and 90 more", "and 10 more"]
    assert len(mirror.topics()) == 120


def test_contradictory_misspelt_and_impossible_settings_are_refused_by_name_and_nothing_changes(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror = new_mirror(destination, cluster_pair.source, topics_include="a.*")
    before = require_mirror(destination.state(), mirror)
    everything = json_filters(("*", "LITERAL", "INCLUDE"))
    bad = [
        ({"topics.exclude": "a.*"}, "topics.include and topics.exclude"),
        ({ENABLE: "true"}, FILTERS),
        ({ENABLE: "true", FILTERS: everything}, f"topics.include and {ENABLE}"),
        ({FILTERS: everything}, f"{FILTERS} is set, but {ENABLE} is not true"),
        ({FILTERS: "{"}, f"{FILTERS}: this is not JSON"),
        ({"topic.property.exclude": "x"}, "unknown setting topic.property.exclude"),
        ({"refresh.interval.seconds": "0"}, "refresh.interval.seconds=0 is not"),
        ({"sync.topic.configs.enabled": "2"}, "sync.topic.configs.enabled=2"),
        ({"topic.prefix": "p."}, "topic.prefix cannot be changed"),
    ]
    for settings, message in bad:
        with pytest.raises((UsageError, RefusedError)) as refusal:
            change_config(destination, mirror, settings)
        assert message in str(refusal.value)
    for settings, message in bad[2:8]:
        with pytest.raises(UsageError) as reported:
            create(
                destination, f"{mirror}-2", {**properties_of(cluster_pair.source), "topics.include": "a.*", **settings}
            )
        assert message in str(reported.value)
    with pytest.raises(UsageError, match=r"topics\.include"):
        create_and_add(destination, cluster_pair.source, f"{mirror}-3", everything)
    assert require_mirror(destination.state(), mirror) == before
    assert destination.state().mirror(f"{mirror}-2") is None


def create_and_add(destination: Destination, source: SandboxCluster, mirror: str, filters: str) -> None:
    """Add topics by an expression to a mirror that has the other kind of filters."""
    create(destination, mirror, {**properties_of(source), ENABLE: "true", FILTERS: filters})
    add(destination, mirror, selector("none-[0-9]+"), allow_missing=True)
