"""Logs that are tiered and whose store is slow, limited or failing are compared, archived and adopted in full or not.

A broker answers a read of the store that takes too long without records and without an error. What is then decided, or
deleted, would be decided on nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import ExitCode, KmirrorError, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.jobs.rebuild import TopicRebuilder
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds
from tests.support.clusters import unique_topic
from tests.support.engine import typed
from tests.support.local_engine import LocalEngine, Threads
from tests.support.mirrors import delete_topic, make_topic, new_mirror, properties_of, selector
from tests.support.round_trip import Trip, make_old_topic
from tests.support.shared_clusters import TieredPair, set_brokers
from tests.support.tiers import (
    IN_SEGMENT,
    REMOTE_QUOTA,
    log_end,
    make_tiered,
    payload,
    tiered_topic,
    wait_until_only_in_store,
    write_tiered,
)
from tests.support.visible import shown
from tests.support.waiting import wait_until

RECORDS, LOST = 200, 400
TOO_SLOW_MS = 1500
#: Less than a segment in the seconds over which the quota is measured: the first read uses it up.
QUOTA = 10_000


def slow(cluster: SandboxCluster) -> None:
    cluster.store.slow(TOO_SLOW_MS)


def limited(cluster: SandboxCluster) -> None:
    set_brokers(cluster, {REMOTE_QUOTA: str(QUOTA)})


def failing(cluster: SandboxCluster) -> None:
    cluster.store.fail()


def well(cluster: SandboxCluster) -> None:
    cluster.store.well()
    set_brokers(cluster, {REMOTE_QUOTA: None})


Trouble = Callable[[SandboxCluster], None]
every_trouble = pytest.mark.parametrize(
    "trouble", [slow, *(pytest.param(other, marks=pytest.mark.slow) for other in (limited, failing))]
)
#: How long readers ask a store again that stays too slow or fails, in seconds; 30 by default.
PATIENCE_S = 5.0
#: Exit codes of a verb that could not do its work: a quota lets it continue, only slowly; a failing store says so.
CODES: dict[Trouble, set[int]] = {slow: {5}, limited: {0, 5}, failing: {3, 4, 5, 6}}
#: How long to look at what must not happen.
WATCHED_S = 6.0


@pytest.fixture(autouse=True)
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers give up soon, unless a quota lets them continue slowly."""
    if "trouble" not in request.fixturenames or request.getfixturevalue("trouble") is not limited:
        monkeypatch.setattr("kmirror.cluster.reader.usual_patience_s", lambda _: PATIENCE_S)


@pytest.fixture
def trip(tiered_pair: TieredPair) -> Iterator[Trip]:
    with Trip(tiered_pair.source, tiered_pair.destination) as trip:
        yield trip


def run(cluster: SandboxCluster, verb: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a verb, and return its exit code, its document, and all that it says to people."""
    done = typed(cluster, verb, *arguments, "--json")
    document = json.loads(done.stdout)
    said = [str(row.get(key)) for row in document.get("results", ()) for key in ("message", "hint")]
    return done.returncode, document, " ".join([*said, done.stderr])


def topic_id(cluster: SandboxCluster, topic: str) -> str | None:
    return topics_of(cluster).get(topic)


def topics_of(cluster: SandboxCluster) -> dict[str, str | None]:
    """Return the ids of all topics."""
    with Destination.open(properties_of(cluster)) as opened:
        return {name: found.printed_topic_id for name, found in opened.client.metadata(None).topics.items()}


def values(cluster: SandboxCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in shown(cluster, topic, partition)]


def numbered(*ranges: range) -> list[bytes]:
    return [payload(number) for numbers in ranges for number in numbers]


# -- failback ----------------------------------------------------------------------------------------------------------


def fail_over_with_losses(trip: Trip) -> str:
    """Mirror a tiered topic, fail over, and write records that only the old source has, most of them in its store."""
    topic = tiered_topic(trip.a, RECORDS)
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    trip.copy_to_b()
    assert values(trip.b, topic) == numbered(range(RECORDS))
    code, *_ = run(trip.b, "failover", "--mirror", trip.mirror, "--yes")
    assert code == 0
    write_tiered(trip.a, topic, range(10_000, 10_000 + LOST))
    wait_until_only_in_store(trip.a, topic, RECORDS + LOST - IN_SEGMENT)
    write_tiered(trip.b, topic, range(20_000, 20_020))
    return topic


@pytest.mark.slow
def test_an_offline_failback_of_a_tiered_topic_is_refused_before_brokers_are_stopped(
    trip: Trip, tmp_path: Path
) -> None:
    topic, plan = fail_over_with_losses(trip), tmp_path / "plan.json"
    done = trip.back(strategy=Strategy.OFFLINE, plan=str(plan)).result
    assert (done.exit_code, plan.exists()) == (ExitCode.REFUSED, False)
    assert done.error is not None
    assert f"{topic}: tiered, and tiered logs cannot be truncated" in done.error.message
    assert "--recreate" in str(done.error.hint)


@pytest.mark.slow
@every_trouble
def test_failback_deletes_no_topic_whose_records_it_cannot_read(trip: Trip, tmp_path: Path, trouble: Trouble) -> None:
    topic = fail_over_with_losses(trip)
    lost = shown(trip.a, topic)[RECORDS:]
    assert [record.value for record in lost] == numbered(range(10_000, 10_000 + LOST))
    before = topic_id(trip.a, topic)
    file = tmp_path / "b.properties"
    file.write_text(f"bootstrap.servers={trip.b.bootstrap_servers}\n")
    arguments = ["failback", "--mirror", trip.mirror, "--mirror-config", str(file), "--recreate", "--yes"]

    trouble(trip.a)
    code, document, said = run(trip.a, *arguments)
    assert code in CODES[trouble], document
    if code != 0:
        assert f"{topic}-0" in said, said
        assert "offset" in said, said
        assert "nothing was archived" not in said, said
        assert topic_id(trip.a, topic) == before
        well(trip.a)
        assert shown(trip.a, topic)[RECORDS:] == lost
        code, document, said = run(trip.a, *arguments)
        assert code == 0, said
    well(trip.a)
    assert topic_id(trip.a, topic) != before
    archives = {row["topic"]: row["message"] for row in document["results"]}
    assert f"{LOST}" in str(archives), archives
    assert_holds(trip.a, f"{topic}.kmirror-archive.1", lost)
    trip.copy_to_a()
    trip.assert_same(topic)


@pytest.mark.slow
@every_trouble
def test_failback_finds_no_fork_in_a_new_primary_that_it_cannot_read(
    trip: Trip, tmp_path: Path, trouble: Trouble
) -> None:
    """The new primary's topic is tiered: whether the histories part is not known before its records are read."""
    topic = fail_over_with_losses(trip)
    make_tiered(trip.b, topic)
    write_tiered(trip.b, topic, range(30_000, 30_000 + LOST))
    wait_until_only_in_store(trip.b, topic, RECORDS)
    before = topic_id(trip.a, topic)
    lost = shown(trip.a, topic)[RECORDS:]
    file = tmp_path / "b.properties"
    file.write_text(f"bootstrap.servers={trip.b.bootstrap_servers}\n")
    arguments = ["failback", "--mirror", trip.mirror, "--mirror-config", str(file), "--recreate", "--yes"]

    trouble(trip.b)
    code, _, said = run(trip.a, *arguments)
    assert code in CODES[trouble], said
    well(trip.b)
    if code:
        assert topic_id(trip.a, topic) == before, said
        code, _, said = run(trip.a, *arguments)
        assert code == 0, said
    assert_holds(trip.a, f"{topic}.kmirror-archive.1", lost)
    trip.copy_to_a()
    trip.assert_same(topic)


# -- verify ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(trip: Trip) -> str:
    """Return a topic that is copied, and tiered on both sides."""
    topic = tiered_topic(trip.a, RECORDS)
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    make_tiered(trip.b, topic)
    trip.copy_to_b()
    wait_until_only_in_store(trip.b, topic, RECORDS // 2)
    assert run(trip.b, "verify", "--mirror", trip.mirror)[0] == 0
    return topic


SIDES = ("source", "destination")


@every_trouble
@pytest.mark.parametrize("sides", ["both", *(pytest.param(one, marks=pytest.mark.slow) for one in SIDES)])
@pytest.mark.parametrize("how", [(), pytest.param(("--sample", "3"), marks=pytest.mark.slow)], ids=["full", "sample"])
def test_verify_takes_no_silence_for_equality_or_difference(
    trip: Trip, copied: str, trouble: Trouble, sides: str, how: tuple[str, ...]
) -> None:
    troubled = {"both": (trip.a, trip.b), "source": (trip.a,), "destination": (trip.b,)}[sides]
    for cluster in troubled:
        trouble(cluster)
    code, document, said = run(trip.b, "verify", "--mirror", trip.mirror, *how)
    (row,) = document["results"]
    assert code in CODES[trouble], row
    if code == 0:
        assert how or row["recordsCompared"] == RECORDS, row
    else:
        assert "equal" not in row["message"], row
        assert f"{copied}-0" in said, said
        assert "offset" in said, said
    for cluster in troubled:
        well(cluster)
    code, document, _ = run(trip.b, "verify", "--mirror", trip.mirror)
    assert code == 0, document
    assert document["results"][0]["recordsCompared"] == RECORDS


# -- adopt -------------------------------------------------------------------------------------------------------------


@every_trouble
@pytest.mark.slow
@pytest.mark.parametrize("is_prefix", [True, False])
def test_adopt_takes_no_topic_whose_records_it_cannot_compare(
    tiered_pair: TieredPair, trouble: Trouble, is_prefix: bool
) -> None:
    source, destination = tiered_pair.source, tiered_pair.destination
    topic = tiered_topic(source, RECORDS)
    with Destination.open(properties_of(destination)) as opened:
        mirror = new_mirror(opened, source)
        assert add(opened, mirror, selector(topic)).exit_code == 0
        with LocalEngine(opened, mirror) as engine:
            engine.catch_up()
        assert run(destination, "remove", "--mirror", mirror, "--topics", topic, "--yes")[0] == 0
        if not is_prefix:
            delete_topic(destination, topic)
            make_topic(destination, topic)
            write_tiered(destination, topic, range(50_000, 50_000 + RECORDS))
        second = new_mirror(opened, source)
        arguments = ["add", "--mirror", second, "--topics", topic, "--adopt"]
        trouble(source)
        code, _, said = run(destination, *arguments)
        found = trouble is limited and not is_prefix
        assert code in CODES[trouble] - ({0} if not is_prefix else set()) | ({3} if found else set()), said
        if code != 0:
            assert "offset" in said, said
            assert opened.state().topic(second, topic) is None
        well(source)
        code, _, said = run(destination, *arguments)
        assert code == (0 if is_prefix else 3), said


# -- rebuild -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_trouble
def test_a_rebuild_deletes_no_mirror_topic_whose_records_it_cannot_read(
    tiered_pair: TieredPair, trouble: Trouble
) -> None:
    """The source topic was recreated; what the mirror topic holds, in its own store, exists nowhere else."""
    source, destination = tiered_pair.source, tiered_pair.destination
    topic = unique_topic()
    make_old_topic(source, topic)
    write_tiered(source, topic, range(RECORDS))
    with Destination.open(properties_of(destination)) as opened:
        mirror = new_mirror(opened, source)
        assert add(opened, mirror, selector(topic)).exit_code == 0
        make_tiered(destination, topic)
        with LocalEngine(opened, mirror) as engine:
            engine.catch_up()
        wait_until_only_in_store(destination, topic, RECORDS // 2)
        old = shown(destination, topic)
        assert len(old) == RECORDS
        delete_topic(source, topic)
        make_topic(source, topic)
        before = topic_id(destination, topic)
        rebuilder = TopicRebuilder(opened.properties, mirror, Threads())
        rebuilder.begin(topic, Reason.SOURCE_TOPIC_RECREATED, consented=True)
        trouble(destination)
        with pytest.raises(KmirrorError, match="offset") if trouble is not limited else nullcontext():
            rebuilder.carry_out(topic)
        well(destination)
        if trouble is not limited:
            assert topic_id(destination, topic) == before
            rebuilder.carry_out(topic)
        assert topic_id(destination, topic) != before
        assert_holds(destination, f"{topic}.kmirror-archive.1", old)


@pytest.mark.slow
@every_trouble
def test_recover_with_a_reset_keeps_what_it_cannot_read_yet(tiered_pair: TieredPair, trouble: Trouble) -> None:
    source, destination = tiered_pair.source, tiered_pair.destination
    topic = unique_topic()
    make_old_topic(source, topic)
    write_tiered(source, topic, range(RECORDS))
    with Destination.open(properties_of(destination)) as opened:
        mirror = new_mirror(opened, source, source_reset_policy="fail")
        assert add(opened, mirror, selector(topic)).exit_code == 0
        make_tiered(destination, topic)
        with LocalEngine(opened, mirror) as engine:
            engine.catch_up()
        wait_until_only_in_store(destination, topic, RECORDS // 2)
        old, before = shown(destination, topic), topic_id(destination, topic)
        assert len(old) == RECORDS
        delete_topic(source, topic)
        make_old_topic(source, topic)
        write_tiered(source, topic, range(70_000, 70_000 + RECORDS))
        with LocalEngine(opened, mirror):
            wait_until(lambda: state_of(destination, mirror) == ("FAILED", "SOURCE_TOPIC_RECREATED"))
            trouble(destination)
            typed(destination, "recover", "--mirror", mirror, "--topics", topic, "--accept-reset", "--yes")
            if trouble is not limited:
                watched_until = time.monotonic() + WATCHED_S
                while time.monotonic() < watched_until:
                    assert topic_id(destination, topic) == before
                    time.sleep(0.2)
            well(destination)
            # what was refused is tried again with growing pauses
            typed(destination, "recover", "--mirror", mirror, "--topics", topic, "--accept-reset", "--yes")
            wait_until(lambda: state_of(destination, mirror)[0] == "MIRRORING", 120)
            wait_until(lambda: log_end(destination, topic) == RECORDS)
        archive = next(name for name in topics_of(destination) if name.startswith(f"{topic}.kmirror-archive"))
        assert_holds(destination, archive, old)
        assert values(destination, topic) == numbered(range(70_000, 70_000 + RECORDS))


def state_of(destination: SandboxCluster, mirror: str) -> tuple[str, str | None]:
    (row,) = json.loads(typed(destination, "describe", "--mirror", mirror, "--json").stdout)
    return row["state"], row["reason"]


# -- what an engine looks at before it copies on -----------------------------------------------------------------------


@pytest.mark.slow
@every_trouble
def test_an_engine_that_starts_again_concludes_nothing_from_a_silent_mirror_topic(
    trip: Trip, copied: str, trouble: Trouble
) -> None:
    """It looks at the tail of its copy, and for other clients' records there."""
    write_tiered(trip.a, copied, range(RECORDS, RECORDS + 100))
    trouble(trip.b)
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        for _ in range(20):
            rows = json.loads(typed(trip.b, "describe", "--mirror", trip.mirror, "--json").stdout)
            assert all(row["state"] in {"LOG_ALIGNMENT", "MIRRORING"} for row in rows), rows
        well(trip.b)
        engine.catch_up()
    assert values(trip.b, copied) == numbered(range(RECORDS + 100))
    assert log_end(trip.b, copied) == RECORDS + 100
