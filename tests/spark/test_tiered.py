"""A source with tiered storage whose store is slow, limited, failing or away: nothing is made up, and nothing is lost.

Brokers answer a fetch of records that are in the store without records and without an error when the store takes longer
than `remote.fetch.max.wait.ms`, or when the quota for its reads is used up. Only later answers show what is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import Engine, typed
from tests.support.mirrored import Mirrored
from tests.support.shared_clusters import TieredPair, set_brokers
from tests.support.tiers import (
    IN_SEGMENT,
    REMOTE_QUOTA,
    log_end,
    make_tiered,
    payload,
    store_that,
    tiered_topic,
    wait_until_only_in_store,
    write_tiered,
)
from tests.support.visible import shown
from tests.support.waiting import wait_until

PARTITIONS, RECORDS = 2, 600
#: Longer than `remote.fetch.max.wait.ms`, half a second: no fetch of what is only in the store gets a record.
TOO_SLOW_MS = 1500
#: A fetch gets records once the three indexes of its segment have been read; until then there are several without.
SLOW_MS, SLOW_INDEX_MS = 400, 2000
#: How long to look at a mirror that has nothing to do but wait.
WATCHED_S = 6.0


@pytest.fixture
def mirror(tiered_pair: TieredPair, tmp_path: Path) -> Iterator[Mirrored]:
    """Return a mirror of a tiered topic whose older records are only in the source's store; nothing is copied yet."""
    topic = tiered_topic(tiered_pair.source, RECORDS, partitions=PARTITIONS)
    with Mirrored(tiered_pair.source, tiered_pair.destination, tmp_path, {topic: PARTITIONS}) as made:
        made.create()
        yield made


def topic_of(mirror: Mirrored) -> str:
    (topic,) = mirror.topics
    return topic


def wait_until_silent(mirror: Mirrored) -> None:
    """Wait until every partition is said to be silent, with its lag as it is; meanwhile nothing may be made up."""
    wait_until(partial(is_seen_waiting, mirror, "SOURCE_SILENT"))


def is_seen_waiting(mirror: Mirrored, *reasons: str | None) -> bool:
    """Return whether all partitions wait with one of these reasons; check that none claims what it does not have."""
    topic = topic_of(mirror)
    copied = [log_end(mirror.destination, topic, partition) for partition in range(PARTITIONS)]
    assert copied == [0] * PARTITIONS, "there is nothing to be copied that anybody could have read"
    rows = mirror.rows()
    assert {row["state"] for row in rows.values()} <= {"LOG_ALIGNMENT", "MIRRORING"}, rows
    # until the first look of an engine the lag is not known
    assert {row["lag"] for row in rows.values()} <= {RECORDS, None}, rows
    return {row["reason"] for row in rows.values()} <= set(reasons)


def watch(mirror: Mirrored, *reasons: str | None) -> None:
    """Look at a waiting mirror for a while."""
    deadline = time.monotonic() + WATCHED_S
    while time.monotonic() < deadline:
        assert is_seen_waiting(mirror, *reasons), mirror.rows()
        time.sleep(0.3)


def assert_complete(mirror: Mirrored, engine: Engine, records: int = RECORDS, seconds: float = 90) -> None:
    """Wait until the copy is complete, and compare it as consumers see it."""
    mirror.wait_until_equal(engine, seconds=seconds)
    assert engine.stop() == 0, engine.output
    seen = mirror.compare()
    assert {place: [one.value for one in found] for place, found in seen.items()} == {
        (topic_of(mirror), partition): [payload(number) for number in range(records)] for partition in range(PARTITIONS)
    }
    mirror.verify()


def result_of(mirror: Mirrored, verb: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = typed(mirror.destination, verb, "--mirror", mirror.name, "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


@contextmanager
def quota(pair: TieredPair, bytes_per_second: int) -> Iterator[None]:
    """Limit reads of the source's store."""
    set_brokers(pair.source, {REMOTE_QUOTA: str(bytes_per_second)})
    try:
        yield
    finally:
        set_brokers(pair.source, {REMOTE_QUOTA: None})


@pytest.mark.slow
@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_store_that_is_too_slow_is_waited_for(mirror: Mirrored, with_spark: bool) -> None:
    store = mirror.source.store
    with store_that(partial(store.slow, TOO_SLOW_MS), mirror.source):
        engine = mirror.engine(with_spark=with_spark)
        wait_until_silent(mirror)
        watch(mirror, "SOURCE_SILENT")
        assert all("offset 0" in row["errorMessage"] for row in mirror.rows().values()), mirror.rows()
        code, waited = result_of(mirror, "wait", "--for", "healthy", "--timeout", "1s")
        assert code == 5
        assert {one["reason"] for one in waited["results"]} == {"SOURCE_SILENT"}
        code, _ = result_of(mirror, "wait", "--for", "caught-up", "--timeout", "1s")
        assert code == 5
    assert_complete(mirror, engine)
    assert {row["reason"] for row in mirror.rows().values()} == {"NO_ENGINE"}


@pytest.mark.slow
def test_a_run_until_caught_up_does_not_end_before_it_is(mirror: Mirrored) -> None:
    with store_that(partial(mirror.source.store.slow, TOO_SLOW_MS), mirror.source):
        engine = mirror.engine("--until-caught-up", "--timeout", "8s")
        assert engine.wait(60) == 5, engine.output
        assert [log_end(mirror.destination, topic_of(mirror), partition) for partition in range(PARTITIONS)] == [0, 0]
    mirror.copy()
    mirror.compare()


@pytest.mark.slow
def test_a_promote_waits_for_a_store_that_is_too_slow(mirror: Mirrored) -> None:
    with store_that(partial(mirror.source.store.slow, TOO_SLOW_MS), mirror.source):
        engine = mirror.engine()
        code, promoted = result_of(mirror, "promote", "--timeout", "8s", "--idle", "1s")
        assert code == 5, promoted
        assert {row["result"] for row in promoted["results"]} == {"TIMED_OUT"}
        assert is_seen_waiting(mirror, "SOURCE_SILENT", None)
    assert_complete(mirror, engine)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["fresh", "continued"])
def test_a_slow_store_is_copied_at_its_pace(mirror: Mirrored, part: str) -> None:
    """Also a copy that had begun."""
    topic = topic_of(mirror)
    if part == "continued":
        mirror.copy()
        for partition in range(PARTITIONS):
            assert log_end(mirror.destination, topic, partition) == RECORDS
        write_tiered(mirror.source, topic, range(RECORDS, 2 * RECORDS), partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            wait_until_only_in_store(mirror.source, topic, 2 * RECORDS - IN_SEGMENT, partition)
    records = 2 * RECORDS if part == "continued" else RECORDS
    with store_that(partial(mirror.source.store.slow, SLOW_MS, SLOW_INDEX_MS), mirror.source):
        engine = mirror.engine()
        assert_grows(mirror, engine, records - RECORDS + 2 * IN_SEGMENT)
    assert_complete(mirror, engine, records)


def assert_grows(mirror: Mirrored, engine: Engine, records: int) -> None:
    """Wait until some partition has this many records; what is there until then is the beginning of the source."""
    topic = topic_of(mirror)

    def is_there() -> bool:
        ends = [log_end(mirror.destination, topic, partition) for partition in range(PARTITIONS)]
        for partition, end in enumerate(ends):
            copied = [one.value for one in shown(mirror.destination, topic, partition)]
            assert copied[:end] == [payload(number) for number in range(end)]
        return max(ends) >= records

    mirror.wait(engine, is_there, 150, topics=())


@pytest.mark.slow
def test_the_quota_for_reads_of_the_store_is_waited_for(tiered_pair: TieredPair, mirror: Mirrored) -> None:
    """A segment uses up the quota of many seconds; then fetches bring nothing for as long."""
    with quota(tiered_pair, 15_000):
        engine = mirror.engine()
        assert_grows(mirror, engine, 2 * IN_SEGMENT)
    assert_complete(mirror, engine)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["fail", "away"])
def test_a_store_that_fails_is_asked_again(mirror: Mirrored, behaviour: str) -> None:
    """Its fetches are answered with an error, which passes."""
    behave: Callable[[], None] = getattr(mirror.source.store, behaviour)
    with store_that(behave, mirror.source):
        engine = mirror.engine()
        deadline = time.monotonic() + WATCHED_S
        while time.monotonic() < deadline:
            is_seen_waiting(mirror)
            time.sleep(0.3)
        code, waited = result_of(mirror, "wait", "--for", "healthy", "--timeout", "1s")
        assert code == 5, waited
    assert_complete(mirror, engine)


@pytest.mark.slow
def test_a_broker_that_is_killed_in_the_middle_of_a_slow_read(mirror: Mirrored) -> None:
    source, topic = mirror.source, topic_of(mirror)
    source.store.record_operations()
    with store_that(partial(source.store.slow, TOO_SLOW_MS), source):
        engine = mirror.engine()
        wait_until(lambda: any(one.startswith(topic) for one in source.store.operations("INDEX")))
        source.kill(1)
        source.start()
        wait_until_silent(mirror)
        watch(mirror, "SOURCE_SILENT")
    assert_complete(mirror, engine)


@pytest.mark.slow
def test_a_log_that_grows_while_its_store_is_too_slow(mirror: Mirrored) -> None:
    """The newest records are on the broker's disk: they must not be taken for what follows the last copied one."""
    topic = topic_of(mirror)
    with store_that(partial(mirror.source.store.slow, TOO_SLOW_MS), mirror.source):
        engine = mirror.engine()
        wait_until_silent(mirror)
        write_tiered(mirror.source, topic, range(RECORDS, RECORDS + 40), partitions=PARTITIONS)
        deadline = time.monotonic() + WATCHED_S
        while time.monotonic() < deadline:
            assert log_end(mirror.destination, topic) == 0
            time.sleep(0.3)
    assert_complete(mirror, engine, RECORDS + 40)


@pytest.mark.slow
def test_a_destination_whose_own_store_is_too_slow(
    tiered_pair: TieredPair, mirror: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror topic is tiered where it is: what is read of it (its tail, a fork, for `verify`) is in its store."""
    monkeypatch.setattr("kmirror.cluster.reader.usual_patience_s", lambda _: 3.0)
    source, destination, topic = mirror.source, mirror.destination, topic_of(mirror)
    make_tiered(destination, topic)
    mirror.copy()
    for partition in range(PARTITIONS):
        wait_until_only_in_store(destination, topic, RECORDS // 2, partition)
    mirror.verify()
    with store_that(partial(destination.store.slow, TOO_SLOW_MS), source, destination):
        verified = typed(destination, "verify", "--mirror", mirror.name, "--full", "--json")
        assert verified.returncode == 5, verified.stdout
        named = [row["message"] for row in json.loads(verified.stdout)["results"]]
        assert all("offset" in message and "equal" not in message for message in named), named
        engine = mirror.engine()
        write_tiered(source, topic, range(RECORDS, RECORDS + 100), partitions=PARTITIONS)
        deadline = time.monotonic() + WATCHED_S
        while time.monotonic() < deadline:
            assert {row["state"] for row in mirror.rows().values()} <= {"LOG_ALIGNMENT", "MIRRORING"}, mirror.rows()
            time.sleep(0.3)
    assert_complete(mirror, engine, RECORDS + 100)
