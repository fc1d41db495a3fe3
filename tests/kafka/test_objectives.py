"""`objective.rpo` on real clusters: a throttled mirror breaches it, and meets it again without its limit."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.config import change_config
from kmirror.status.objective import Breach, breaches_of
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.scraped import asking, scraped, value
from tests.support.waiting import wait_until

LIMIT = 65_536


@pytest.mark.slow
def test_a_throttled_mirror_breaches_its_objective_and_meets_it_again(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path
) -> None:
    late, free = unique_topic("late"), unique_topic("free")
    for topic in (late, free):
        make_topic(cluster_pair.source, topic)
    producer = Producer({**properties_of(cluster_pair.source), "linger.ms": 5, "batch.size": 20_000})

    def write(topic: str, records: int) -> None:
        for _ in range(records):
            producer.produce(topic, bytes(1000))
        assert producer.flush(60) == 0

    mirror = new_mirror(destination, cluster_pair.source, objective_rpo=f"{late}=2s")

    def run(verb: str, *arguments: str, code: int = 0) -> Any:
        done = typed(cluster_pair.destination, verb, "--mirror", mirror, *arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout

    def wait_verb(code: int, *arguments: str) -> dict[str, Any]:
        found = run("wait", "--for", "objective", *arguments, "--json", code=code)
        return dict(json.loads(found))

    def breaches() -> tuple[Breach, ...]:
        return breaches_of(destination.store.read_events(mirror))

    bad = typed(cluster_pair.destination, "config", "--mirror", mirror, "--set", "objective.rpo=(=1s")
    assert (bad.returncode, "objective.rpo: the pattern ( is not understood" in bad.stderr) == (2, True)
    assert add(destination, mirror, selector(f"{late},{free}")).exit_code == 0
    write(late, 1)
    write(free, 1)
    # no engine has copied anything: unknown is not within
    assert wait_verb(5, "--timeout", "1ms")["results"][0]["result"] == "TIMED_OUT"
    assert wait_verb(3, "--timeout", "1s", "--topics", free)["error"]["message"].startswith("no topic has an objective")

    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        assert wait_verb(0, "--timeout", "2m")["exitCode"] == 0
        assert change_config(destination, mirror, {"throttle.bytes.per.second": str(LIMIT)}, ()).exit_code == 0
        wait_until(lambda: (one := destination.state().engine(mirror)) is not None and one.throttle is not None)
        # for as long as the limit is there, the source is ahead
        ended = threading.Event()

        def keep_writing() -> None:
            while not ended.is_set():
                write(late, 500)
                time.sleep(1)

        writer = threading.Thread(target=keep_writing)
        writer.start()
        try:
            wait_until(lambda: [one.topic for one in breaches()] == [late])
            waited = wait_verb(5, "--timeout", "1ms")
            assert [(row["topic"], row["result"]) for row in waited["results"]] == [(late, "TIMED_OUT")]
            assert f"copying is limited to {LIMIT:,} bytes/s" in waited["error"]["message"]
            rows = {row["topic"]: row for row in json.loads(run("describe", "--json"))}
            assert (rows[late]["objectiveMs"], rows[late]["objectiveState"]) == (2000, "BREACHED")
            assert (rows[free]["objectiveMs"], rows[free]["objectiveState"]) == (None, None)
            headers, *shown = run("describe", "--wide").splitlines()
            assert headers.split()[7:9] == ["OBJECTIVE", "RPO"]
            assert [line.split()[8] for line in shown if line.split()[1] == late] == ["BREACHED"]
            served = scraped(asking(engine.service))
            assert value(served, "kmirror_topic_objective_met", mirror=mirror, topic=late) == 0
            assert value(served, "kmirror_objectives", mirror=mirror, state="BREACHED") == 1
        finally:
            ended.set()
            writer.join()
        assert change_config(destination, mirror, {}, ("throttle.bytes.per.second",)).exit_code == 0
        assert wait_verb(0, "--timeout", "2m")["exitCode"] == 0
        wait_until(lambda: breaches()[-1].until_ms is not None)
    (breach,) = breaches()
    assert (breach.cause, breach.objective_ms) == ("THROTTLE", 2000)
    assert breach.message == f"copying is limited to {LIMIT:,} bytes/s (throttle.bytes.per.second)"
    everything = json.loads(typed(cluster_pair.destination, "list", "--json").stdout)
    (listed,) = [row for row in everything if row["mirror"] == mirror]
    assert listed["objectivesWithin"] + listed["objectivesUnknown"] + listed["objectivesBreached"] == 1
    page = tmp_path / "report.html"
    run("report", "--html", str(page))
    text = page.read_text()
    assert f"Objectives were breached 1 time, the last time by {late} at" in text
    assert '"cause": "THROTTLE"' in text
