"""Healthy means that records flow: no worker, a frozen engine, no engine are each said everywhere, and by name.

Once a Spark master was without its only worker, 40,000 records waited, and everything said that all was well.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import Engine, Pair, typed
from tests.support.scraped import address_in, assert_all_say, fetching, value
from tests.support.spark_standalone import running_standalone_spark
from tests.support.waiting import wait_until


def listed(pair: Pair) -> dict[str, Any]:
    """Return what `list` says of the mirror."""
    rows = json.loads(typed(pair.destination, "list", "--json").stdout)
    return next(row for row in rows if row["mirror"] == pair.mirror)


def described(pair: Pair) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        typed(pair.destination, "describe", "--mirror", pair.mirror, "--json").stdout
    )
    return found


def assert_healthy(pair: Pair, engine: Engine) -> None:
    done = typed(pair.destination, "wait", "--mirror", pair.mirror, "--for", "healthy", "--timeout", "90s")
    assert done.returncode == 0, (done.stderr, engine.output)
    assert (listed(pair)["state"], listed(pair)["reason"]) == ("ACTIVE", None)


def assert_everything_says(pair: Pair, reason: str, *, hint: str) -> None:
    """Check every command that people look at: none of them says that records flow."""
    wait_until(lambda: {row["reason"] for row in described(pair)} == {reason}, 60)
    assert (listed(pair)["state"], listed(pair)["reason"]) == ("LINK_FAILED", reason)
    rows = described(pair)
    assert {row["topicState"] for row in rows} == {"LINK_FAILED"}
    # both clusters are asked afresh
    assert sum(row["lag"] for row in rows) == pair.source_end() - pair.destination_end()
    table = typed(pair.destination, "describe", "--mirror", pair.mirror)
    assert f"  {reason} (MIRRORING)\n" in table.stdout
    done = typed(pair.destination, "wait", "--mirror", pair.mirror, "--for", "healthy", "--timeout", "1s", "--json")
    assert done.returncode == 5, done.stdout
    error = json.loads(done.stdout)["error"]
    assert (error["reason"], hint in error["hint"]) == (reason, True), error


@pytest.mark.slow
def test_without_its_only_worker_nothing_says_that_records_flow_and_they_do_when_it_is_back(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair, tmp_path: Path
) -> None:
    pair = make_pair(source_cluster, destination_cluster, partitions=4)
    pair.fill(2_000)
    pair.create()
    with running_standalone_spark(tmp_path / "spark", workers=1, cores=3) as spark:
        engine = pair.engine("--master", spark.master_url, "--http", "0")
        pair.wait_until_equal(engine)
        assert_healthy(pair, engine)
        get = fetching(address_in(engine.output))
        assert_all_say(get, lambda: described(pair), lambda reported: reported["states"] == {"MIRRORING": 4})
        wait_until(lambda: get("/readyz") == (200, "records flow\n"))
        spark.kill_worker(spark.workers[0])
        name = f"{pair.mirror} {pair.topic}"
        has_changed = re.compile(rf"Z ERROR   {name}: LINK_FAILED NO_WORKERS \(was ACTIVE\): .*; Spark logs to /")
        sums_up = re.compile(
            rf"Z ERROR   {pair.mirror} not copying: 1 topic, 4 partitions, total lag 2,000 as of \S+Z, 0 B/s, "
            "1 LINK_FAILED; "
            rf"{pair.topic} LINK_FAILED NO_WORKERS since \S+Z or longer: .*; Spark logs to /"
        )
        pair.fill(2_000)
        assert_everything_says(pair, "NO_WORKERS", hint="start Spark workers")
        assert listed(pair)["engineAgeMs"] < 10_000
        found = assert_all_say(get, lambda: described(pair), lambda reported: reported["states"] == {"NO_WORKERS": 4})
        assert value(found, "kmirror_topic_lag_offsets", mirror=pair.mirror, topic=pair.topic) == 2_000
        status, why = get("/readyz")
        assert (status, get("/healthz")[0]) == (503, 200)
        assert why.startswith(
            f"{pair.mirror}: {pair.topic}-0 is not healthy: no worker has reported on lanes 0, 1 for "
        )
        # at once what has changed, and within a minute how far the copy is behind; both name Spark's own log
        wait_until(lambda: any(has_changed.search(line) for line in engine.output.splitlines()), 60)
        wait_until(lambda: any(sums_up.search(line) for line in engine.output.splitlines()), 90)

        spark.start_worker()
        pair.wait_until_equal(engine)
        assert_healthy(pair, engine)

        spark.kill_worker(spark.workers[1])
        pair.fill(2_000)
        wait_until(lambda: listed(pair)["reason"] == "NO_WORKERS", 60)
        engine.stop()
        last = next(line for line in engine.output.splitlines() if line.startswith("stopped after"))
        # that of partitions whose lane has not reported since it was started again is unknown
        assert re.search(r": NO_WORKERS, (the lag of \S+ is unknown; )?no worker has reported on lane", last), last
        assert ", total lag 0" not in last


@pytest.mark.slow
def test_an_engine_that_is_frozen_is_silent_and_one_that_is_killed_is_none(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster, partitions=2)
    pair.fill(1_000)
    pair.create()
    engine = pair.engine(with_spark=False)
    pair.wait_until_equal(engine)
    assert_healthy(pair, engine)
    name = listed(pair)["engine"]
    assert name is not None
    engine.process.send_signal(signal.SIGSTOP)
    assert_everything_says(pair, "ENGINE_SILENT", hint="--take-over")
    found = described(pair)[0]
    assert (found["engine"], found["engineAgeMs"] >= 10_000) == (name, True)
    engine.destroy()
    assert_everything_says(pair, "NO_ENGINE", hint="kmirror run")
    assert (listed(pair)["engine"], listed(pair)["engineLastSeenMs"]) == (None, found["engineLastSeenMs"])
