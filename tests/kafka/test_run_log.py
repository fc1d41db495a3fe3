"""The log of a real engine whose destination goes away and comes back: what it says meanwhile is known."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import Engine, Pair
from tests.support.scraped import address_in, fetching, scraped, value
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_a_destination_that_goes_and_comes_back_is_in_the_log(
    source_cluster: SandboxCluster, passing_destination: SandboxCluster, tmp_path: Path
) -> None:
    destination, log = passing_destination, tmp_path / "run.log"
    pair = Pair(source_cluster, destination, tmp_path, unique_topic(), partitions=2)

    def logged() -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    def says(**fields: object) -> list[dict[str, Any]]:
        return [line for line in logged() if fields.items() <= line.items()]

    try:
        pair.create()
        pair.fill(10)
        arguments = ("--log-file", str(log), "--log-format", "json", "--http", "0")
        engine: Engine = pair.engine(*arguments, with_spark=False)
        pair.wait_until_equal(engine)
        wait_until(lambda: says(state="ACTIVE", topics=[pair.topic]))
        get = fetching(address_in(engine.output))
        wait_until(lambda: get("/readyz") == (200, "records flow\n"))
        destination.stop()
        wait_until(lambda: says(state="LINK_FAILED", reason="ENGINE_SILENT"))
        (lost,) = says(state="LINK_FAILED", reason="ENGINE_SILENT")
        assert lost["level"] == "ERROR"
        told = "the destination has not accepted a heartbeat of this engine since 20"
        assert told in lost["message"]
        # the next line that sums up repeats it, and knows of no lag
        wait_until(lambda: says(phase="not copying", reason="ENGINE_SILENT"))
        summary = says(phase="not copying", reason="ENGINE_SILENT")[0]
        assert (summary["level"], summary["lag"], summary["lagAsOfMs"]) == ("ERROR", None, None)
        assert "total lag unknown, 0 B/s, 1 LINK_FAILED; " in summary["message"]
        assert told in summary["message"]
        # it lives, but is not ready, and says why as its log does; what the destination has accepted is old
        assert get("/healthz") == (200, "the driver is running\n")
        status, why = get("/readyz")
        assert (status, told in why) == (503, True), why
        samples = scraped(get)
        assert value(samples, "kmirror_partitions", mirror=pair.mirror, state="ENGINE_SILENT") == 2
        assert (value(samples, "kmirror_engine_heartbeat_age_seconds", mirror=pair.mirror) or 0) > 10
        # the source answers all the while
        assert not [line for line in logged() if "the source of" in line["message"]]
        destination.start()
        wait_until(lambda: logged().index(lost) < max(map(logged().index, says(state="ACTIVE"))))
        wait_until(lambda: get("/readyz")[0] == 200)
        host, port = address_in(engine.output).split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"GET /metrics HTTP/1.0\r\n")
            assert engine.stop() == 0
        assert (logged()[-1]["level"], logged()[-1]["exitCode"]) == ("INFO", 0)
        assert [json.loads(line) for line in engine.output.splitlines()][:-1] == logged()[:-1]
        # besides what is logged every minute
        assert len([line for line in logged() if "phase" not in line]) < 40
    finally:
        pair.close()
