"""Topics whose records are archived, on brokers that forget producers at once, and archiving that is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kmirror.engine.archive import copy as archive_copy
from kmirror.engine.clock import now_ms
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.archiving import assert_holds, check
from tests.support.clusters import unique_topic
from tests.support.installed_logs import create_topics
from tests.support.log_batches import VisibleRecord
from tests.support.real_logs import write
from tests.support.shared_clusters import ForgetfulCluster, forgetful_cluster, set_brokers
from tests.support.visible import shown

DAY_MS = 86_400_000
#: How long brokers remember a producer.
SHORT_MEMORY = {"producer.id.expiration.ms": "3000"}
KEEPS_ALL = {
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "max.message.bytes": "100000000",
}


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that forgets producers whose last record is three seconds old."""
    if request.param == DEFAULT_KAFKA_VERSION:
        request.getfixturevalue("short_memory")
    return forgetful_cluster(request, request.param, SHORT_MEMORY)


@pytest.fixture(scope="module")
def short_memory(forgetful: ForgetfulCluster) -> Iterator[None]:
    """Let the shared cluster forget this quickly while this module uses it."""
    set_brokers(forgetful.cluster, SHORT_MEMORY)
    yield
    set_brokers(forgetful.cluster, dict.fromkeys(SHORT_MEMORY))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have archives written in batches of about five of the records that `make_topic` writes."""
    monkeypatch.setattr(archive_copy, "_BATCH_BYTES", 1000)


@pytest.fixture
def quick_to_believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe at once that a log has ended: there is one broker, and no leader changes."""
    monkeypatch.setattr("kmirror.engine.compare.visible_log._PATIENCE_S", 0.1)
    monkeypatch.setattr("kmirror.engine.compare.visible_log._WAIT_MS", 50)


def make_topic(cluster: SandboxCluster, records: int = 0, *, old: int = 0) -> str:
    """Create a topic with this many records, the first `old` of them thirty days old; return its name."""
    topic = unique_topic("saved")
    create_topics(cluster, {topic: KEEPS_ALL})
    now = now_ms()
    stamps = [now + n - (30 * DAY_MS if n < old else 0) for n in range(records)]
    written = [
        VisibleRecord(0, at, b"key-%d" % n, b"value %d " % n * 9, (("n", b"%d" % n),)) for n, at in enumerate(stamps)
    ]
    write(cluster, topic, written)
    return topic


def assert_saved(cluster: SandboxCluster, topic: str, archive: str, ranges: list[tuple[int, int]]) -> None:
    """Have the archive read by librdkafka, and compared by kmirror."""
    wanted = [one for one in shown(cluster, topic) if any(low <= one.offset < high for low, high in ranges)]
    assert_holds(cluster, archive, wanted)
    found = check(cluster, topic, archive, ranges)
    assert found.equal, found
    assert found.records == len(wanted)


class StoppedError(Exception):
    """Interrupts the copying."""


def stop_after(batches: int) -> Callable[[int], None]:
    """Return a `progress` that stops the copying after this many batches."""
    left = iter(range(batches))

    def count(_: int) -> None:
        if next(left) == batches - 1:
            raise StoppedError

    return count
