"""`run` waits for what may pass, and ends at once for what cannot.

That it never runs on without Spark: test_engine_copy.py.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.ending import killed_at_last, printed
from tests.support.engine import Pair, command, kmirror
from tests.support.waiting import wait_until

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "server", "code"),
    [
        (["--until-caught-up", "--timeout", "2s"], NOBODY, 5),
        (["--for", "2s"], NOBODY, 5),
        (["--until-caught-up"], NOBODY, 6),
        (["--for", "2s"], "nowhere.invalid:9092", 5),
    ],
)
def test_how_long_a_cluster_is_waited_for(arguments: list[str], server: str, code: int) -> None:
    ended = kmirror(server, "run", "--mirror", "m", *arguments, with_spark=False)
    assert ended.returncode == code, ended.stderr
    assert "cannot connect to" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "arguments", "code"),
    [
        (signal.SIGINT, [], 0),
        (signal.SIGTERM, [], 0),
        (signal.SIGTERM, ["--until-caught-up", "--timeout", "1h"], 5),
    ],
)
def test_waiting_ends_on_request(number: signal.Signals, arguments: list[str], code: int) -> None:
    started = subprocess.Popen(
        command(NOBODY, "run", "--mirror", "m", *arguments, with_spark=False),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with killed_at_last(started) as engine:
        assert engine.stdout is not None
        assert any(", retrying: " in line for line in engine.stdout)
        engine.send_signal(number)
        out, err = printed(engine)
    assert engine.returncode == code, err
    assert "caught up" not in out


@pytest.mark.slow
def test_a_broker_that_comes_later_is_waited_for(
    source_cluster: SandboxCluster, passing_destination: SandboxCluster, tmp_path: Path
) -> None:
    pair = Pair(source_cluster, passing_destination, tmp_path, unique_topic(), partitions=1)
    try:
        pair.create()
        pair.fill(10)
        passing_destination.stop()
        engine = pair.engine(with_spark=False)
        wait_until(lambda: "waiting for the clusters, retrying" in engine.output)
        passing_destination.start_broker(1)
        pair.wait_until_equal(engine)
        assert engine.stop() == 0
    finally:
        pair.close()
