"""One lane run by hand: its claim written to the state topic, the lane itself in a thread of the test."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from crc32c import crc32c

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.engine.lane.reports.state_log import STATE_PARTITION, append_to
from kmirror.engine.spec import LaneResult, LaneSpec, own_producer_id
from kmirror.state.assignment import Assignment
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.record_kinds import Record as StateRecord
from kmirror.state.record_kinds import decode, encode
from kmirror.state.records import EngineRecord, EngineState, Incarnation, ProgressRecord, ProgressRow
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.leader import create_topic
from tests.support.librdkafka import librdkafka
from tests.support.oracle import raw_log_bytes
from tests.support.stored import first_difference
from tests.support.waiting import PATIENCE_S, polls


class Mirror:
    """Some source topics and their mirrors, on two clusters or on one."""

    def __init__(self, source: SandboxCluster, destination: SandboxCluster, **spec: Any) -> None:
        self.source, self.destination = source, destination
        self.name = unique_topic("m")
        self.lease = "lease-1"
        self.at_source = ClusterClient(client_config(source.client_properties()))
        self.at_destination = ClusterClient(client_config(destination.client_properties()))
        #: How many connections a lane may open to a broker.
        self.connections = 64
        #: How much a lane may hold that it has read ahead.
        self.buffer_bytes = 64 << 20
        self._spec = spec
        self._assignments: list[Assignment] = []
        self._lanes: list[tuple[Lane, threading.Thread]] = []
        self._results: dict[int, LaneResult | BaseException] = {}
        self._prepare_state_topic()

    def _prepare_state_topic(self) -> None:
        admin = AdminClient(librdkafka(client_config(self.destination.client_properties())))
        if STATE_PARTITION.topic not in admin.list_topics(timeout=30).topics:
            create_topic(self.destination, name=STATE_PARTITION.topic, settings={"cleanup.policy": "compact"})

    def close(self) -> None:
        """End what still runs."""
        if any(thread.is_alive() for _, thread in self._lanes):
            self.claim(state=EngineState.STOPPING)
        for _, thread in self._lanes:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a lane did not end"
        self.at_source.close()
        self.at_destination.close()

    def add(self, topic: str, mirror_topic: str, partitions: int = 1) -> list[Assignment]:
        """Mirror this topic from the next start on."""
        source = self.at_source.metadata([topic]).topics[topic]
        destination = self.at_destination.metadata([mirror_topic]).topics[mirror_topic]
        new = [
            Assignment(
                topic=mirror_topic,
                partition=index,
                source_topic=topic,
                source_topic_id=source.printed_topic_id,
                destination_topic_id=destination.printed_topic_id,
                producer_id=own_producer_id(self.name, mirror_topic, index),
            )
            for index in range(partitions)
        ]
        self._assignments += new
        return new

    def assignments_of(self, topic: str) -> list[Assignment]:
        """Return the partitions of a topic that was added."""
        return [assignment for assignment in self._assignments if assignment.source_topic == topic]

    def topic(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """Create a source topic with its mirror and add them; on one cluster the mirror has another name."""
        topic = create_topic(self.source, partitions=partitions, settings=settings)
        create_topic(self.destination, partitions=partitions, name=self.mirror_of(topic), settings=settings)
        self.add(topic, self.mirror_of(topic), partitions)
        return topic

    def mirror_of(self, topic: str) -> str:
        """Return the name of a topic's mirror."""
        return topic if self.source is not self.destination else f"mirror-of-{topic}"

    def claim(
        self,
        *,
        state: EngineState = EngineState.RUNNING,
        lease: str | None = None,
        lanes: Mapping[int, Incarnation] | None = None,
        revisions: Mapping[int, int] | None = None,
        settle_ms: int = 0,
        **more: Any,
    ) -> None:
        """Write the engine's record."""
        granted = {0: Incarnation(1, 0)} if lanes is None else lanes
        at = time.time_ns() // 1_000_000
        self.write(
            EngineRecord(
                mirror=self.name,
                lease_id=lease or self.lease,
                state=state,
                host="here",
                boot_id="boot",
                pid=1,
                pid_start_time=1,
                application_id=None,
                master=None,
                since_ms=at,
                last_seen_ms=at,
                ttl_ms=10_000,
                settle_ms=settle_ms,
                lanes=granted,
                revisions=revisions,
                connections=self.connections,
                buffer_bytes=self.buffer_bytes,
                **more,
            )
        )

    def change(
        self, revision: int, given_up: Iterable[str] = (), taken: Iterable[Assignment] = (), *, in_doubt: bool = False
    ) -> None:
        """Send the lane a change as the engine does: release partition 0 of these topics, and copy these others too."""
        partitions = tuple((self.mirror_of(topic), 0) for topic in given_up)
        self.write(LaneChangeRecord(self.name, 0, self.lease, 1, revision, partitions, tuple(taken), in_doubt))
        self.claim(revisions={0: revision})

    def write(self, record: StateRecord) -> None:
        """Write any state record."""
        key, value = encode(record)
        batch = make_batch([Record(0, time.time_ns() // 1_000_000, key, value)])
        append_to(self.at_destination, STATE_PARTITION, memoryview(batch))

    def progress(self) -> list[ProgressRecord]:
        """Read all progress of this mirror from the state topic."""
        where = {STATE_PARTITION: EARLIEST}
        start = self.at_destination.list_offsets(where)[STATE_PARTITION].offset or 0
        end = self.at_destination.list_offsets(dict.fromkeys(where, LATEST))[STATE_PARTITION].offset or 0
        found = []
        for read in PartitionReader(self.at_destination, STATE_PARTITION).batches(start, end):
            for header in read.headers:
                for record in () if header.is_control else read_records(read.data, header):
                    met = decode(record.key or b"", record.value)
                    if isinstance(met, ProgressRecord) and met.mirror == self.name:
                        found.append(met)
        return found

    def start(self, attempt: int = 0, *, claim: bool = True, merges: bool = False, **changes: Any) -> Lane:
        """Start a lane in a thread; by default the engine grants it first.

        Without merged batches, all that is stored can be compared byte by byte.
        """
        if claim:
            self.claim()
        lane = Lane(self.spec(merges=merges, **changes), attempt)

        def run() -> None:
            try:
                self._results[id(lane)] = lane.run()
            except BaseException as error:
                self._results[id(lane)] = error
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._lanes.append((lane, thread))
        return lane

    def spec(self, *, merges: bool = False, **changes: Any) -> LaneSpec:
        """Return the work of a lane."""
        spec = LaneSpec(
            self.name,
            0,
            1,
            self.lease,
            # a partial answer is waited for this long, and faulty wires leave many
            {**self.source.client_properties(), "request.timeout.ms": "3000"},
            {**self.destination.client_properties(), "request.timeout.ms": "3000"},
            tuple(replace(assignment, merges_batches=merges) for assignment in self._assignments),
            10_000,
            False,
            300_000,
            self.source.cluster_id,
        )
        return replace(spec, **(self._spec | changes))

    def result(self, lane: Lane, seconds: float = PATIENCE_S) -> LaneResult:
        """Wait for a lane's end and return its result."""
        thread = next(thread for known, thread in self._lanes if known is lane)
        thread.join(seconds)
        assert not thread.is_alive(), f"the lane has not ended: {lane.partitions}"
        result = self._results[id(lane)]
        assert isinstance(result, LaneResult), repr(result)
        return result

    def stop(self, lane: Lane) -> LaneResult:
        """Have the engine stop the lane, and return its result."""
        self.claim(state=EngineState.STOPPING)
        return self.result(lane)

    def rows_at_stop(self, lane: Lane) -> list[ProgressRow]:
        """Stop the lane, and return the final states of its partitions."""
        self.stop(lane)
        return [row_of(partition) for partition in lane.partitions]

    def source_ends(self) -> dict[str, int]:
        """Return the source's log ends by mirror partition."""
        return _ends(self.at_source, {str(a.destination): a.source for a in self._assignments})

    def destination_ends(self) -> dict[str, int]:
        """Return the destination's log ends by mirror partition."""
        return _ends(self.at_destination, {str(a.destination): a.destination for a in self._assignments})

    def wait_copied(self, lane: Lane, seconds: float = PATIENCE_S) -> None:
        """Wait until both sides have equal ends."""
        self.wait(lane, lambda: self.destination_ends() == self.source_ends(), seconds)

    def wait(self, lane: Lane, true: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        """Wait until a condition holds; if it never does, print the lane's history."""
        deadline = time.monotonic() + seconds
        for _ in polls():
            if true():
                return
            thread = next(thread for known, thread in self._lanes if known is lane)
            if time.monotonic() > deadline or not thread.is_alive():
                story = "\n".join(str(line) for p in lane.partitions for line in (p, p.retry.trouble, *p.history))
                raise AssertionError(f"{self.source_ends()}\n{self.destination_ends()}\n{lane.control.ended}\n{story}")


def _ends(client: ClusterClient, partitions: Mapping[str, TopicPartition]) -> dict[str, int]:
    found = client.list_offsets(dict.fromkeys(partitions.values(), LATEST), log_end=True)
    return {name: found[partition].offset or 0 for name, partition in partitions.items()}


def states(partitions: Iterable[PartitionCopy]) -> dict[str, str]:
    """Return what each partition of a lane is doing."""
    return {str(p.assignment.destination): p.status.value for p in partitions}


def assert_same(mirror: Mirror, topic: str, partitions: int = 1) -> None:
    """Compare what both have on disk, and every checksum in the copy."""
    source, destination = (cluster.brokers[0].log_dir for cluster in (mirror.source, mirror.destination))
    for partition in range(partitions):
        assert (
            first_difference(source, destination, topic, partition, mirror.mirror_of(topic), same_batches=True) is None
        )
        data, position = raw_log_bytes(mirror.destination, mirror.mirror_of(topic), partition), 0
        while position < len(data) and (length := struct.unpack_from(">i", data, position + 8)[0]) > 0:
            end = position + 12 + length
            assert struct.unpack_from(">I", data, position + 17)[0] == crc32c(data[position + 21 : end])
            position = end


def fill(mirror: Mirror, topic: str, count: int, partition: int = 0) -> None:
    """Produce so many records."""
    producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers, "acks": "all"})
    for number in range(count):
        producer.produce(topic, b"value", b"%d" % number, partition)
    assert producer.flush(30) == 0


def claims_connection(lane: Lane) -> Connection:
    """Return the connection over which a lane reads the claims."""
    tail = lane.control._state_log.claims._tail
    assert tail is not None
    assert tail._connection is not None
    return tail._connection


def copy_of(lane: Lane, mirror_topic: str, partition: int = 0) -> PartitionCopy:
    return next(p for p in lane.partitions if p.assignment.destination == (mirror_topic, partition))
