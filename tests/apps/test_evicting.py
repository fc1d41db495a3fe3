"""Connected clients come back through their door after a planned move, with every record once, and so back again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.redirect.clients import Kind, java_client, python_client
from bench.redirect.scenarios import run
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION

KINDS = [
    Kind("java", "", java_client(DEFAULT_KAFKA_VERSION)),
    Kind("librdkafka", "", python_client("librdkafka_client")),
]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_connected_clients_come_back_through_the_door_with_every_record_once(tmp_path: Path) -> None:
    """The old cluster is restarted by docs/examples/restart-hook.sh, as docs/apps/evicting-clients.md says."""
    moved = dict(run("planned", KINDS, tmp_path, 1))
    assert moved.keys() == {"planned", "back"}
    for outcomes in moved.values():
        assert [(one.client, one.is_exact, one.unread) for one in outcomes] == [
            ("java", True, 0),
            ("librdkafka", True, 0),
        ]
        assert all(one.seconds_without_read is not None for one in outcomes)
        assert all(one.refused > 0 for one in outcomes), "no write met the block of producers"
