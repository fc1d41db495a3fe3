"""Write small transactions at a rate, a thousand a second and more: `python -m bench.transactions JSON`.

Transactional clients could do this, but it would take dozens of them, and leave nothing of two cores to the copier. So
this appends what their transactions leave in a log, which is all that a mirror sees: the records as a transactional
batch, and then the marker that the coordinator would write. Some transactions are open in each partition at any time.
One producer's transactions in all partitions share one request; in each log they are transactions of that partition
alone, and are counted so. The brokers must be configured not to ask the coordinator whether there is a transaction.

Prepares, prints `ready`, starts when a line arrives on standard input, and prints what it has written.
"""

from __future__ import annotations

import json
import queue
import random
import struct
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.clusters import Cluster
from bench.data import PARTITIONS
from bench.measure import CopyFailedError
from bench.processes import Running, start
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import markers
from kmirror.cluster.protocol.batch import ATTRIBUTES_POSITION, TRANSACTIONAL, set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config

RECORDS_IN_TRANSACTION = 10
VALUE_BYTES = 100
#: How long a transaction is open at least.
_OPEN_S = 0.02
#: They take turns, so this many transactions can be open in each partition.
_PRODUCERS = 16
_TIMEOUT_S = 30.0
#: With a transactional id, batches go by topic name up to this version of Produce.
_PRODUCE_VERSION = 11
_INT16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Written:
    """How many transactions, in what time, and when the last marker was written (the system's monotonic clock)."""

    transactions: int
    seconds: float
    ended_at: float

    @property
    def per_second(self) -> float:
        """Return the achieved rate."""
        return self.transactions / self.seconds


@dataclass(frozen=True, slots=True)
class _Job:
    bootstrap_servers: str
    topic: str
    rate: float
    seconds: float


def prepare_writer(cluster: Cluster, topic: str, rate: float, seconds: float, folder: Path) -> Running:
    """Start a process that is ready to write transactions at this rate, each to one partition of the topic.

    Raises:
        CopyFailedError: it does not get ready.
    """
    log = folder / "writer.log"
    job = _Job(cluster.bootstrap_servers, topic, rate, seconds)
    process = start([sys.executable, "-m", "bench.transactions", json.dumps(asdict(job))], log, answers=True)
    writer = Running([process], log, ends_itself=True)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        process.wait()
        writer.check()
        raise CopyFailedError("the writer of transactions is not ready")
    return writer


def written(writer: Running) -> Written:
    """Wait for the result that the writer prints at its end. Raises CopyFailedError if it failed."""
    writer.end()
    (process,) = writer.processes
    assert process.stdout is not None
    return Written(**json.loads(process.stdout.readline()))


class _Writer:
    def __init__(self, job: _Job) -> None:
        self._job = job
        config = client_config({"bootstrap.servers": job.bootstrap_servers, "client.id": "bench-transactions"})
        with ClusterClient(config) as client:
            self._producer_ids = [_producer_id(client) for _ in range(_PRODUCERS)]
            metadata = client.metadata([job.topic])
        leader = metadata.leader(TopicPartition(job.topic, 0))
        assert leader is not None
        assert leader.leader_id is not None
        broker = metadata.brokers[leader.leader_id]
        self._for_batches, self._for_markers = (Connection.open(broker.host, broker.port, config) for _ in range(2))
        self._marker_version = self._for_markers.version_for(markers.API)
        self._client_id = config.client_id
        chance = random.Random(job.topic)
        self._values = [chance.randbytes(VALUE_BYTES) for _ in range(RECORDS_IN_TRANSACTION)]
        self._room = threading.Semaphore(_PRODUCERS)
        #: Ends of transactions, one in each partition, that are open, and until when; None at the end.
        self._open: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()

    def run(self) -> Written:
        """Write; a late transaction is written as soon as possible, and none after the time is over."""
        with ThreadPoolExecutor(2) as threads:
            batches, marked = threads.submit(self._write_batches), threads.submit(self._write_markers)
            for one in as_completed((batches, marked)):
                one.result()  # the first one that fails says why
        rounds, seconds = batches.result()
        return Written(rounds * PARTITIONS, seconds, marked.result())

    def _write_batches(self) -> tuple[int, float]:
        """Return how many rounds were written, and in how many seconds."""
        began = time.monotonic()
        period = PARTITIONS / self._job.rate
        number = 0
        try:
            while number * period < self._job.seconds and time.monotonic() < began + self._job.seconds:
                time.sleep(max(0.0, began + number * period - time.monotonic()))
                if not self._room.acquire(timeout=_TIMEOUT_S):
                    raise TimeoutError(f"no marker was written for {_TIMEOUT_S:.0f} s")
                self._write_batch(number)
                number += 1
                self._open.put((number - 1, time.monotonic() + _OPEN_S))
        finally:
            self._open.put(None)
        return number, time.monotonic() - began

    def _write_batch(self, number: int) -> None:
        from kafka.protocol.producer import ProduceRequest

        timestamp = time.time_ns() // 1_000_000
        batch = make_batch(Record(offset, timestamp, None, value) for offset, value in enumerate(self._values))
        _INT16.pack_into(batch, ATTRIBUTES_POSITION, TRANSACTIONAL)
        sequence = number // _PRODUCERS * RECORDS_IN_TRANSACTION
        set_producer(memoryview(batch), self._producer_of(number), 0, sequence)
        topic_type = ProduceRequest.TopicProduceData
        parts = [
            topic_type.PartitionProduceData(index=partition, records=bytes(batch)) for partition in range(PARTITIONS)
        ]
        request = ProduceRequest(
            transactional_id="bench",
            acks=-1,
            timeout_ms=int(_TIMEOUT_S * 1000),
            topic_data=[topic_type(name=self._job.topic, partition_data=parts)],
        )
        answer: Any = self._for_batches.request(request, highest=_PRODUCE_VERSION)
        _require(part.error_code for topic in answer.responses for part in topic.partition_responses)

    def _write_markers(self) -> float:
        """Return when the last was written."""
        while (one := self._open.get()) is not None:
            number, until = one
            time.sleep(max(0.0, until - time.monotonic()))
            fills = [
                markers.Fill(self._job.topic, partition, self._producer_of(number), 0, 1)
                for partition in range(PARTITIONS)
            ]
            correlation_id = self._for_markers.next_correlation_id()
            request = markers.request(correlation_id, self._marker_version, self._client_id, fills)
            frame = self._for_markers.exchange_frame([request], correlation_id, _TIMEOUT_S)
            _require(markers.answer(frame, self._marker_version).values())
            self._room.release()
        return time.monotonic()

    def _producer_of(self, number: int) -> int:
        return self._producer_ids[number % _PRODUCERS]


def _producer_id(client: ClusterClient) -> int:
    from kafka.protocol.producer import InitProducerIdRequest

    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1)
    while (answer := client.ask_any(request, highest=4)).error_code:
        time.sleep(0.1)  # the first ids of a new cluster take a while
    return int(answer.producer_id)


def _require(codes: Iterable[int]) -> None:
    if refused := set(codes) - {0}:
        raise RuntimeError(f"the source's broker refused with error codes {refused}")


def main() -> None:
    """Do the job given on the command line."""
    writer = _Writer(_Job(**json.loads(sys.argv[1])))
    print("ready", flush=True)
    if sys.stdin.readline():  # nothing: the parent is gone
        print(json.dumps(asdict(writer.run())), flush=True)


if __name__ == "__main__":
    main()
