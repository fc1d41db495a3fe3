"""The client programs of bench/redirect say what they were promised and what they read, as the log has it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bench.redirect.clients import Client, Event, Kind, java_client, python_client
from bench.redirect.outcome import outcome
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.clusters import ClusterPair
from tests.support.installed_logs import create_topics
from tests.support.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(java_client(DEFAULT_KAFKA_VERSION), id="java", marks=pytest.mark.slow),
        pytest.param(python_client("librdkafka_client"), id="librdkafka"),
        pytest.param(python_client("kafka_python_client"), id="kafka-python", marks=pytest.mark.slow),
    ],
)
def test_a_client_reports_what_the_log_has(
    command: Callable[[Path], list[str]], cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    cluster = cluster_pair.source
    client = Client(Kind(tmp_path.name, "", command), tmp_path, 2)
    create_topics(cluster, {client.topic: {}}, 2)
    with closing(client):
        client.start({"bootstrap.servers": cluster.bootstrap_servers}, 50)
        _wait_for_reads(client)
    events = client.events()
    began = min(event.at for event in events)
    found = outcome(client.kind.key, events, client.kept(cluster), began, _last(events))
    assert found.is_exact
    assert (found.refused, found.unread, found.restarts, found.errors) == (0, 0, 2, ())
    assert found.acknowledged > 100


def _wait_for_reads(client: Client) -> None:
    try:
        wait_until(lambda: sum(event.what == "read" for event in client.events()) > 100)
    except AssertionError as error:
        error.add_note(f"it printed:\n{client.printed()}")
        raise


def _last(events: list[Event]) -> int:
    return max(event.at for event in events)
