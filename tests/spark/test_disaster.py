"""The source is lost under load while an engine is frozen, and everything is failed over at once."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.ops.base.context import Destination
from kmirror.ops.stop.report import last_reports
from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import Pair, typed
from tests.support.mirrors import properties_of
from tests.support.processes import wait_gone
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.stored import log_dir_of, records_of, stored_batches
from tests.support.waiting import PATIENCE_S, wait_until

RECORDS = 20_000


class Load:
    """Write old records to the source until it is gone; remember what was acknowledged, and when."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        #: Partition, offset, and when, in epoch milliseconds.
        self.acknowledged: list[tuple[int, int, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        producer = Producer({**properties_of(self._pair.source), "linger.ms": 5, "message.timeout.ms": 5_000})
        old = self._pair.days_ago(30)
        while not self._end.wait(0.01):
            for partition in range(len(self._pair.partitions)):
                producer.produce(
                    self._pair.topic,
                    b"under load",
                    partition=partition,
                    timestamp=old,
                    on_delivery=self._delivered,
                )
            producer.poll(0)
        producer.purge()
        producer.flush(1)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), time.time() * 1000))

    def end(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_source_is_killed_and_a_frozen_engine_wakes_up_later(
    mortal_cluster: SandboxCluster,
    forgetful: ForgetfulCluster,
    make_pair: MakePair,
    chance: random.Random,
    tmp_path: Path,
    with_spark: bool,
) -> None:
    """The records are 30 days old: the destination forgets at once who wrote them."""
    source, destination = mortal_cluster, forgetful.cluster
    pair = make_pair(source, destination, partitions=4)
    pair.fill(RECORDS, timestamp_ms=pair.days_ago(30))
    pair.create()
    engine = pair.engine(with_spark=with_spark)
    load = Load(pair)
    try:
        pair.wait_until_copying(engine)
        with Destination.open(properties_of(destination)) as opened:
            # what the source holds was reported of every partition once
            wait_until(lambda: len(last_known(opened, pair.mirror)) == len(pair.partitions))
        time.sleep(chance.uniform(0, 2))
        tree = engine.tree()
        for process in tree.all:
            process.send(signal.SIGSTOP)
        source.kill(1)
    finally:
        load.end()
    report = tmp_path / "report.json"
    failed_over = typed(destination, "failover", "--mirror", pair.mirror, "--yes", "--json", "--report", str(report))
    assert failed_over.returncode == 0, failed_over.stderr
    rows = {row["partition"]: row for row in json.loads(failed_over.stdout)["results"]}
    assert set(rows) == set(range(4))
    assert json.loads(report.read_text())["exitCode"] == 0
    described = json.loads(typed(destination, "describe", "--mirror", pair.mirror, "--json").stdout)
    as_of = {row["partition"]: row["asOf"] for row in described}
    assert {row["state"] for row in described} == {"STOPPED"}
    # what others write from now on stays where it is
    produced = write_locally(pair)
    for process in tree.all:
        process.send(signal.SIGCONT)
    assert not wait_gone(tree.workers, PATIENCE_S), "a worker that was frozen lives on"
    assert engine.wait(PATIENCE_S) == 3
    assert pair.destination_end() == sum(row["lastMirroredOffset"] for row in rows.values()) + len(rows) + produced
    # the source's disk can be read later: all that is here was there, at the same offset
    theirs, ours = log_dir_of(source), log_dir_of(destination)
    for partition, row in rows.items():
        lmo = row["lastMirroredOffset"]
        copied = [batch for batch in stored_batches(ours, pair.topic, partition) if batch.base_offset < lmo]
        here = [record for batch in copied for record in records_of(batch)]
        there = {r[0]: r for batch in stored_batches(theirs, pair.topic, partition) for r in records_of(batch)}
        assert here
        assert all(there[record[0]] == record for record in here)
        lost = max(there) + 1 - lmo
        later = [at for where, offset, at in load.acknowledged if where == partition and offset >= lmo + row["lag"]]
        # all that was not known of came after what is reported was seen
        assert row["lag"] <= lost
        assert all(at >= as_of[partition] for at in later), (partition, row, as_of)


def last_known(destination: Destination, mirror: str) -> set[int]:
    """Return the partitions of which the source's end is remembered."""
    seen = last_reports(destination.state(), mirror)
    return {topic_partition.partition for topic_partition, one in seen.items() if one.row.source_offset is not None}


def write_locally(pair: Pair) -> int:
    """Write to every partition of the destination; return how many records."""
    producer = Producer({**properties_of(pair.destination), "acks": "all"})
    for topic_partition in pair.partitions:
        producer.produce(topic_partition.topic, b"local", partition=topic_partition.partition)
    assert producer.flush(30) == 0
    return len(pair.partitions)
