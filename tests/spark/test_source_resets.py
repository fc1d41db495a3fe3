"""A source topic that was deleted and created again: recognised by its id, the old records archived, the topic rebuilt.

Each case has a mirror of its own, worked through the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.groups import commit, committed
from tests.support.installed_logs import create_topics
from tests.support.log_batches import VisibleRecord
from tests.support.mirrored import Mirrored, only_topic
from tests.support.mirrors import delete_topic
from tests.support.real_logs import delete_records, write
from tests.support.still_logs import FOREVER
from tests.support.visible import Bounds, bounds_of, shown
from tests.support.waiting import wait_until


@pytest.fixture
def mirror(cluster_pair: ClusterPair, tmp_path: Path) -> Iterator[Mirrored]:
    """Return a mirror of one topic of two partitions with 1,000 records in the first; no engine runs."""
    topic = unique_topic("reset")
    create_topics(cluster_pair.source, {topic: FOREVER}, 2)
    write(cluster_pair.source, topic, 1000)
    with Mirrored(cluster_pair.source, cluster_pair.destination, tmp_path, {topic: 2}) as made:
        made.create("refresh.interval.seconds=1")
        made.copy()
        yield made


def recreate(mirror: Mirrored, records: int, partitions: int = 2) -> None:
    """Delete the source's topic and create it again."""
    topic = only_topic(mirror)
    delete_topic(mirror.source, topic)
    create_topics(mirror.source, {topic: FOREVER}, partitions)
    mirror.topics[topic] = partitions
    write(mirror.source, topic, records)


def archived(mirror: Mirrored, number: int = 1, partition: int = 0) -> list[VisibleRecord]:
    """Return the records of an archive as they were: at their old offsets, without the headers that say so."""
    found = []
    for record in shown(mirror.destination, f"{only_topic(mirror)}.kmirror-archive.{number}", partition):
        headers = dict(record.headers[-3:])
        assert int(headers["kmirror.timestamp"] or b"") == record.timestamp
        offset = int(headers["kmirror.offset"] or b"")
        found.append(record._replace(offset=offset, headers=record.headers[:-3]))
    return found


def assert_rebuilt(mirror: Mirrored, number: int = 1) -> None:
    """Check that the mirror is its source's again, and that describe tells of it."""
    topic = only_topic(mirror)
    mirror.compare()
    for row in mirror.rows().values():
        assert (row["state"], row["archive"]) == ("MIRRORING", f"{topic}.kmirror-archive.{number}")
        assert row["topicState"] == ("LINK_FAILED" if row["reason"] == "NO_ENGINE" else "ACTIVE")
        assert row["rebuiltAt"] > row["asOf"] - 120_000


@pytest.mark.slow
def test_recreated_with_less_while_no_engine_ran(mirror: Mirrored) -> None:
    topic, group = only_topic(mirror), unique_topic("group")
    before = shown(mirror.destination, topic)
    commit(mirror.destination, group, topic, {0: 700})
    recreate(mirror, 100)
    delete_records(mirror.source, topic, 40)
    engine = mirror.copy()
    assert "SOURCE_TOPIC_RECREATED" in engine.output
    assert bounds_of(mirror.destination, topic) == Bounds(40, 100)
    assert_rebuilt(mirror)
    assert archived(mirror) == before
    assert committed(mirror.destination, group, topic) == {0: 40}
    mirror.verify()


@pytest.mark.long
def test_recreated_larger_than_it_was_twice_while_no_engine_ran(mirror: Mirrored) -> None:
    before = shown(mirror.destination, only_topic(mirror))
    recreate(mirror, 1)
    recreate(mirror, 1500)
    mirror.copy(with_spark=True)
    assert bounds_of(mirror.destination, only_topic(mirror)).end == 1500
    assert_rebuilt(mirror)
    assert archived(mirror) == before


@pytest.mark.long
def test_recreated_while_an_engine_runs_with_fewer_partitions_and_then_with_more(mirror: Mirrored) -> None:
    topic = only_topic(mirror)
    first = shown(mirror.destination, topic)
    engine = mirror.engine()
    for number, partitions, records in ((1, 1, 1200), (2, 3, 300)):
        recreate(mirror, records, partitions)
        name = f"{topic}.kmirror-archive.{number}"
        wait_until(lambda name=name: {row["archive"] for row in mirror.rows().values()} == {name}, 90)  # type: ignore[misc]
        mirror.wait_until_equal(engine, [topic])
        mirror.wait(engine, lambda: {row["state"] for row in mirror.rows().values()} == {"MIRRORING"})
        assert_rebuilt(mirror, number)
    write(mirror.source, topic, 10)
    mirror.wait_until_equal(engine, [topic])
    assert engine.stop() == 0
    assert archived(mirror) == first
    assert [record.offset for record in archived(mirror, 2)] == list(range(1200))
    assert len(mirror.rows()) == 3


def recover(mirror: Mirrored, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = typed(mirror.destination, "recover", "--mirror", mirror.name, "--json", *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return dict(json.loads(done.stdout))


@pytest.mark.long
def test_nothing_is_rebuilt_unasked_where_the_policy_says_so_or_the_brake_is_drawn(mirror: Mirrored) -> None:
    topic = only_topic(mirror)
    recreate(mirror, 100)
    for setting in ("source.reset.policy=fail", "source.reset.auto.max.topics=0"):
        mirror.run("config", "--set", setting)
        mirror.copy(exit_codes=(7,))
        row = mirror.rows()[topic, 0]
        assert (row["state"], row["reason"], row["archive"]) == ("FAILED", "SOURCE_TOPIC_RECREATED", None)
        assert f"kmirror recover --mirror {mirror.name} --topics {topic} --accept-reset" in row["errorMessage"]
        assert bounds_of(mirror.destination, topic).end == 1000
        mirror.run("config", "--unset", "source.reset.policy")
    refused = recover(mirror, code=3)
    assert {row["result"] for row in refused["results"]} == {"REFUSED"}
    engine = mirror.engine()
    mirror.wait(engine, lambda: mirror.rows()[topic, 0]["state"] == "FAILED", topics=[])
    done = recover(mirror, "--accept-reset", "--yes")
    assert {row["result"] for row in done["results"]} == {"DONE"}
    mirror.wait_until_equal(engine, [topic])
    assert engine.stop() == 0
    assert_rebuilt(mirror)
