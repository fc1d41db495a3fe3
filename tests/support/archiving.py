"""Archives in tests: created, written in this process or in one that is killed, and read by librdkafka.

The module run as a program is that process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.engine.archive import copy as archive_copy
from kmirror.engine.archive.archive_check import ArchiveComparison, verify_archive_partition
from kmirror.engine.archive.archive_topic import Range, archive_name, archive_settings
from kmirror.engine.archive.archiving import ArchiveResult
from kmirror.engine.archive.copy import Archived, archive_partition
from kmirror.work import unwatched
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import librdkafka_records
from tests.support.visible import COMMITTED, UNCOMMITTED

_ROOT = Path(__file__).parent.parent.parent
_ADDED = 3


def make_archive(cluster: SandboxCluster, topic: str, partitions: int = 1) -> str:
    """Create the next archive of a topic, as kmirror does."""
    with ClusterClient(client_config(cluster.client_properties())) as client:
        name = archive_name(topic, client.metadata().topics)
        known = topic_settings(client, [topic])[topic]
        create_topic(client, name, partitions, -1, archive_settings(known))
        client.list_offsets({TopicPartition(name, index): LATEST for index in range(partitions)})
    return name


def is_saved(result: ArchiveResult) -> bool:
    """Tell whether all partitions are proved to be in their archive."""
    return all(outcome.saved for outcome in result.outcomes)


def save(
    cluster: SandboxCluster,
    topic: str,
    archive: str,
    ranges: Sequence[Range],
    progress: Callable[[int], None] = unwatched,
) -> Archived:
    """Copy records of partition 0 to its archive."""
    with ExitStack() as stack:
        config = client_config(cluster.client_properties())
        one, other = (stack.enter_context(ClusterClient(config)) for _ in range(2))
        return archive_partition(one, other, TopicPartition(topic, 0), TopicPartition(archive, 0), ranges, progress)


def check(cluster: SandboxCluster, topic: str, archive: str, ranges: Sequence[Range]) -> ArchiveComparison:
    """Compare records of partition 0 with its archive, as kmirror does."""
    with ExitStack() as stack:
        config = client_config(cluster.client_properties())
        one, other = (stack.enter_context(ClusterClient(config)) for _ in range(2))
        return verify_archive_partition(one, other, TopicPartition(topic, 0), TopicPartition(archive, 0), ranges)


def assert_holds(
    cluster: SandboxCluster, archive: str, wanted: Iterable[VisibleRecord], epoch: int | None = None, partition: int = 0
) -> None:
    """Read an archive with librdkafka in both isolation levels: it holds exactly these records in this order.

    Offsets come from its headers. If an epoch is given, all records have that one.
    """
    expected = list(wanted)
    for isolation in (COMMITTED, UNCOMMITTED):
        found = []
        for one in librdkafka_records(cluster.bootstrap_servers, archive, partition, isolation):
            (offset, epoch_header, timestamp) = one.headers[-_ADDED:]
            assert offset[0] == "kmirror.offset"
            assert epoch_header[0] == "kmirror.leader.epoch"
            assert epoch is None or epoch_header[1] == b"%d" % epoch
            assert timestamp == ("kmirror.timestamp", b"%d" % one.timestamp)
            own = one.headers[:-_ADDED]
            found.append(VisibleRecord(int(offset[1] or b""), one.timestamp, one.key, one.value, own))
        assert [record.offset for record in found] == [record.offset for record in expected]
        assert found == expected


class ArchiveProcess:
    """A process that copies partition 0 to its archive in batches of this many bytes, and can be killed."""

    def __init__(
        self, cluster: SandboxCluster, topic: str, archive: str, low: int, high: int, batch_bytes: int
    ) -> None:
        arguments = [cluster.bootstrap_servers, topic, archive, str(low), str(high), str(batch_bytes)]
        command = [sys.executable, "-m", "tests.support.archiving", *arguments]
        self.process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)

    def wait_for_batches(self, count: int) -> bool:
        """Wait until it has appended this many; False if it ended before."""
        assert self.process.stdout is not None
        return all(self.process.stdout.readline() for _ in range(count))

    def kill(self) -> None:
        """Kill it, wherever it is."""
        self.process.kill()
        self.process.communicate()


def _tell(offsets: int) -> None:
    sys.stdout.write(f"{offsets}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    servers, name, archive_topic_name, first, end, most = sys.argv[1:]
    archive_copy._BATCH_BYTES = int(most)
    where = client_config({"bootstrap.servers": servers})
    places = TopicPartition(name, 0), TopicPartition(archive_topic_name, 0)
    with ClusterClient(where) as reader, ClusterClient(where) as writer:
        archive_partition(reader, writer, *places, [(int(first), int(end))], _tell)
