"""Connected clients come back through their door after a planned move, with every record once, and so back again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bench.redirect.clients import Kind, java_client
from bench.redirect.results import PAGE
from bench.redirect.scenarios import run
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.kafka_tools import kafka_tool
from tests.support.waiting import wait_until

KINDS = [Kind("java", "", java_client(DEFAULT_KAFKA_VERSION))]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_connected_clients_come_back_through_the_door_with_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old cluster is restarted by docs/examples/restart-hook.sh, as docs/apps/evicting-clients.md says."""
    for name in ("KMIRROR_TRUST_PATHS", "KMIRROR_TRUST_ENV", "KMIRROR_REDIRECT_LOGIN"):
        monkeypatch.setenv(name, "")  # the bench sets them for its own process: afterwards they are as before
    moved = dict(run("planned", KINDS, tmp_path, 1))
    assert moved.keys() == {"planned", "back"}
    for outcomes in moved.values():
        assert [(one.is_exact, one.unread) for one in outcomes] == [(True, 0)]
        assert all(one.seconds_without_read is not None for one in outcomes)
        assert all(one.refused > 0 for one in outcomes), "no write met the block of producers"


@pytest.mark.slow
def test_the_settings_on_the_page_can_be_set_and_taken_back(mortal_cluster: SandboxCluster) -> None:
    """The address from which the limit is undone is this one; no broker or client with another address is there."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    evict_user, undo_user, limit, undo_limit = (
        shlex.split(line.replace("a:9092 --command-config admin.properties", mortal_cluster.bootstrap_servers))[1:]
        for line in re.findall(r"^ +(kafka-configs .*)$", text, re.MULTILINE)
    )
    limit[-1] = limit[-1].replace("10.0.0.9", "127.0.0.1")
    here = ("--describe", "--bootstrap-server", mortal_cluster.bootstrap_servers)

    def limits() -> bytes:
        return kafka_tool("kafka-configs.sh", *here, "--entity-type", "brokers", "--entity-default")

    def credentials() -> bytes:
        return kafka_tool("kafka-configs.sh", *here, "--entity-type", "users", "--entity-name", "orders-app")

    kafka_tool("kafka-configs.sh", *limit)
    wait_until(lambda: b"max.connections.per.ip=0 " in limits())
    kafka_tool("kafka-configs.sh", *undo_limit)
    wait_until(lambda: b"max.connections.per.ip" not in limits())
    kafka_tool("kafka-configs.sh", *undo_user)
    wait_until(lambda: b"SCRAM-SHA-512=iterations=" in credentials())
    kafka_tool("kafka-configs.sh", *evict_user)
    wait_until(lambda: b"SCRAM-SHA-512=iterations=" not in credentials())
