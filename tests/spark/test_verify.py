"""`verify` on real clusters and real Spark: one mirror with topics in every condition, and what is said of each."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.bulk.ranges import cut_offsets
from kmirror.engine.bulk.runner import Where
from kmirror.errors import ExitCode, Reason, RefusedError, UnreachableError, UsageError
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.verify.verify import VerifyRequest, explain, verify
from kmirror.ops.verify.verify_results import VERIFY_PLAN, VerifyOutcome, VerifyRow
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import DesiredState
from tests.support.clusters import ClusterPair
from tests.support.json_documents import check
from tests.support.stored_mirror import Side, StoredMirror
from tests.support.waiting import PATIENCE_S
from tests.support.watching import assert_grows

BASE_TIME = 1_700_000_000_000


def records(start: int, end: int) -> list[Record]:
    return [Record(i, BASE_TIME + i, b"k%d" % i, b"v%d" % i * 20) for i in range(start, end)]


@pytest.fixture
def on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark do what is small, too."""
    monkeypatch.setattr("kmirror.ops.base.bulk.SPARK_FROM_BYTES", 0)


@pytest.fixture
def mirror(cluster_pair: ClusterPair) -> Iterator[StoredMirror]:
    made = StoredMirror(Side(cluster_pair.source), Side(cluster_pair.destination))
    yield made
    made.forget()
    made.source.close()
    made.destination.close()


@contextmanager
def kept_moving(pair: ClusterPair, topic: str) -> Iterator[None]:
    """Append to a topic all the time, to the source and then to the destination, as a mirror would."""
    source, destination = Side(pair.source), Side(pair.destination)
    stop, begun = threading.Event(), threading.Event()

    def move() -> None:
        for start in itertools.count(step=50):
            for side in (source, destination):
                side.append(topic, records(start, start + 50))
            begun.set()
            if stop.wait(0.005):
                return

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        try:
            assert begun.wait(PATIENCE_S)
            yield
        finally:
            stop.set()
            moving.result(PATIENCE_S)
    source.close()
    destination.close()


def row_of(outcome: VerifyOutcome, topic: str, partition: int | None = 0) -> VerifyRow:
    (found,) = [row for row in outcome.rows if (row.topic, row.partition) == (topic, partition)]
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("on_spark")
def test_topics_in_every_condition(mirror: StoredMirror, cluster_pair: ClusterPair, tmp_path: Path) -> None:
    source, destination = mirror.source, mirror.destination
    whole = records(0, 300)

    equal = mirror.topic("equal", partitions=3)
    for partition in range(2):
        source.append(equal, whole, partition=partition)
        destination.append(equal, whole, partition=partition, codec="lz4")
    lagging = mirror.topic("lagging")
    source.append(lagging, whole)
    destination.append(lagging, whole[:200])
    different = mirror.topic("different")
    source.append(different, whole)
    destination.append(different, [replace(one, value=b"x") if one.offset == 217 else one for one in whole])
    beyond = mirror.topic("beyond")
    source.append(beyond, whole[:250])
    destination.append(beyond, whole)
    stopped = mirror.topic("stopped", desired=DesiredState.STOPPED)
    mirror.stopped_at(stopped, 200)
    source.append(stopped, whole)
    destination.append(stopped, whole[:200])
    destination.append(stopped, records(900, 950))
    cut_off = mirror.topic("cut-off", desired=DesiredState.STOPPED)
    mirror.stopped_at(cut_off, 250)
    source.append(cut_off, whole)
    destination.append(cut_off, whole[:200])
    purged = mirror.topic("purged")
    source.append(purged, whole)
    destination.append(purged, whole)
    source.delete_records(purged, 120)
    grown = mirror.topic("grown", there=2)
    source.append(grown, whole, partition=1)
    shrunk = mirror.topic("shrunk", partitions=2, there=1)
    destination.append(shrunk, whole, partition=1)
    gone_there = mirror.topic("gone-there")
    source.delete(gone_there)
    gone_here = mirror.topic("gone-here")
    destination.delete(gone_here)
    recreated = mirror.topic("recreated")
    destination.append(recreated, whole)
    source.delete(recreated)
    source.create(recreated)
    source.append(recreated, records(50, 350))
    moving = mirror.topic("moving")
    mirror.save()

    with kept_moving(cluster_pair, moving):
        outcome = mirror.verify(master="local[2]", log_file=tmp_path / "spark.log")

    row = row_of(outcome, moving)
    assert (row.result, row.records) == (Outcome.DONE, row.end)
    assert row.records > 0
    for partition in range(2):
        row = row_of(outcome, equal, partition)
        assert (row.result, row.message, row.records, row.lag) == (Outcome.DONE, "equal up to offset 300", 300, 0)
        assert row.size_in_bytes > 300 * 60
    assert row_of(outcome, equal, 2).message == "nothing to compare"
    row = row_of(outcome, lagging)
    assert (row.result, row.message, row.lag) == (Outcome.DONE, "equal up to offset 200, lag 100", 100)
    row = row_of(outcome, different)
    assert (row.result, row.different, row.reason) == (Outcome.FAILED, True, None)
    assert row.message == "differs at offset 217: value differs"
    row = row_of(outcome, beyond)
    assert row.message == "differs at offset 250: the source ends at offset 250"
    row = row_of(outcome, stopped)
    assert (row.result, row.end, row.records, row.lag) == (Outcome.DONE, 200, 200, None)
    row = row_of(outcome, cut_off)
    assert (row.reason, row.message) == (
        Reason.DESTINATION_TRUNCATED,
        "differs at offset 200: the destination ends at offset 200",
    )
    row = row_of(outcome, purged)
    assert (row.result, row.start, row.records) == (Outcome.DONE, 120, 180)
    assert row.notes == ("offsets 0 to 119 were not compared: the source's log starts at 120",)
    assert row_of(outcome, grown, 1).message == "not on the destination yet, lag 300"
    row = row_of(outcome, shrunk, 1)
    assert (row.result, row.different, row.reason) == (Outcome.FAILED, True, Reason.PARTITIONS_DECREASED)
    row = row_of(outcome, gone_there, None)
    assert (row.result, row.different, row.reason) == (Outcome.FAILED, False, Reason.SOURCE_TOPIC_DELETED)
    row = row_of(outcome, gone_here, None)
    assert (row.result, row.different, row.reason) == (Outcome.FAILED, False, Reason.DESTINATION_TOPIC_DELETED)
    row = row_of(outcome, recreated)
    assert (row.different, row.reason) == (True, Reason.SOURCE_TOPIC_RECREATED)
    assert row.first_difference
    assert row.first_difference.offset == 0

    assert outcome.exit_code == ExitCode.HISTORIES_DIFFER
    assert outcome.error
    assert "5 of 17 partitions differ, 2 of 17 partitions could not be compared" in outcome.error.message
    document = json.loads(json.dumps(outcome.to_json()))
    check("verify", document)
    (reported,) = [row for row in document["results"] if row["topic"] == different]
    assert reported["firstDifference"]["offset"] == 217
    assert reported["firstDifference"]["source"]["timestamp"] == BASE_TIME + 217
    assert reported["firstDifference"]["source"]["checksum"] != reported["firstDifference"]["destination"]["checksum"]
    evidence = json.loads(json.dumps(outcome.evidence))
    check("verify-report", evidence)
    assert evidence["source"]["clusterId"] == source.cluster_id
    assert [step["step"] for step in evidence["steps"]] == ["look", "compare"]
    assert len(evidence["partitions"]) == 17

    works = [view.what.partition(" ")[0] for view in mirror.views if view.is_over]
    assert works == ["reading", "starting", "comparing"]
    assert (document["comparedIn"], document["tasks"]) == (evidence["comparedIn"], evidence["tasks"]) == ("SPARK", 1)
    assert mirror.views[-1].what == f"comparing mirror {mirror.name} in 1 Spark task on local[2]"
    assert_grows(mirror.views)
    assert "DIFFERENT" in mirror.views[-1].note


@pytest.mark.long
@pytest.mark.usefixtures("on_spark")
def test_a_large_partition_is_compared_in_pieces_at_once(
    mirror: StoredMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of one partition run side by side; of several differences the first is shown; a sample looks at less."""
    monkeypatch.setattr("kmirror.engine.bulk.ranges._SMALLEST_TASK_BYTES", 100_000)
    source, destination = mirror.source, mirror.destination
    topic = mirror.topic("large")
    log = [Record(i, BASE_TIME + i, b"k%d" % i, b"v" * 1000) for i in range(4000)]
    source.append(topic, log)
    destination.append(topic, [replace(one, value=b"x") if one.offset in (2500, 3999) else one for one in log])
    mirror.save()
    outcome = mirror.verify(master="local[2]", log_file=tmp_path / "spark.log")
    assert outcome.exit_code == ExitCode.HISTORIES_DIFFER
    row = row_of(outcome, topic)
    assert row.first_difference
    assert row.first_difference.offset == 2500
    assert 2500 < row.records < 4000
    assert outcome.tasks == 8

    sampled = row_of(mirror.verify(master="local[2]", sample=0), topic)
    assert sampled.first_difference
    assert sampled.first_difference.offset == 3999
    assert sampled.offsets == 2000


def test_what_is_refused_before_spark_is_started(
    mirror: StoredMirror, cluster_pair: ClusterPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = mirror.topic("t")
    mirror.save()
    with Destination.open(mirror.destination.properties) as destination:

        def ask(name: str = mirror.name, **request: object) -> VerifyOutcome:
            return verify(destination, VerifyRequest(name, **request), lambda _: None)  # type: ignore[arg-type]

        with pytest.raises(RefusedError, match="there is no mirror nosuch"):
            ask("nosuch")
        with pytest.raises(RefusedError, match="no such mirror topic"):
            ask(topics=TopicSelector.parse(["nosuch"]))
        with pytest.raises(UsageError, match="--sample -1"):
            ask(sample=-1)
        with pytest.raises(UsageError, match="not a Spark master"):
            ask(spark=SparkChoice("nowhere"))
        with pytest.raises(RefusedError, match="Spark Connect"):
            ask(spark=SparkChoice("sc://somewhere"))
        # both topics are empty: there is nothing that Spark would be needed for
        outcome = ask(topics=TopicSelector.parse([topic]))
        assert (outcome.exit_code, outcome.rows[0].message) == (ExitCode.OK, "nothing to compare")
        assert (outcome.where, outcome.tasks) == (None, 0)
        # nor for what is small, nor to say how it would be shared out
        for side in (mirror.source, mirror.destination):
            side.append(topic, records(0, 20))
        outcome = ask()
        assert (outcome.where, outcome.rows[0].message) == (Where.THREADS, "equal up to offset 20")
        monkeypatch.setattr("kmirror.ops.base.bulk.SPARK_FROM_BYTES", 0)
        monkeypatch.setattr("kmirror.engine.bulk.ranges._SMALLEST_TASK_BYTES", 1)
        spark = SparkChoice("local[2]")
        planned = explain(destination, VerifyRequest(mirror.name, spark=spark), lambda _: None)
        assert [(one.start, one.end) for one in planned] == cut_offsets(0, 20, 8)
        assert [one.task for one in planned] == list(range(8))
        assert {one.where for one in planned} == {Where.SPARK}
        check("verify-plan", [VERIFY_PLAN.document(one) for one in planned])
        mirror.save(cluster_id="another")
        with pytest.raises(UnreachableError, match=r"the source: another cluster answers .*, not another") as changed:
            ask()
        assert (changed.value.exit_code, changed.value.reason) == (ExitCode.REFUSED, Reason.SOURCE_CLUSTER_CHANGED)
        mirror.source.properties = {"bootstrap.servers": "127.0.0.1:1"}
        mirror.save()
        with pytest.raises(UnreachableError, match="the source: cannot connect") as silent:
            ask()
        assert silent.value.exit_code == ExitCode.UNREACHABLE
        mirror.source.properties = {"bootstrap.servers": cluster_pair.source.bootstrap_servers}
