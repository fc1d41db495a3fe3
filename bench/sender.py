"""Send prepared batches to some partitions of a topic as fast as the broker takes them: `python -m bench.sender JSON`.

Fills the source, and measures the destination's ceiling. Prepares its batches, prints `ready`, and starts when a line
arrives on standard input; ends when all replicas have acknowledged everything.
"""

from __future__ import annotations

import json
import selectors
import sys
from dataclasses import asdict, dataclass

from bench.data import batch_of, data_set_of
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.stream import Stream
from kmirror.errors import BrokerError

_ANSWER_BYTES = 64 << 10
_STALLED_S = 60.0


@dataclass(frozen=True, slots=True)
class SendJob:
    """The job of one sender: this many batches to each of the partitions, with some requests in flight."""

    bootstrap_servers: str
    topic: str
    data_set: str
    partitions: list[int]
    batches: int
    timestamp_ms: int
    requests_in_flight: int

    def argv(self) -> list[str]:
        """Return the command that does it."""
        return [sys.executable, "-m", "bench.sender", json.dumps(asdict(self))]


class _Sender:
    def __init__(self, job: SendJob) -> None:
        config = client_config({"bootstrap.servers": job.bootstrap_servers, "client.id": "bench-sender"})
        with ClusterClient(config) as client:
            metadata = client.metadata([job.topic])
        leader = metadata.leader(TopicPartition(job.topic, job.partitions[0]))
        assert leader is not None
        assert leader.leader_id is not None
        broker = metadata.brokers[leader.leader_id]
        self._job = job
        self._topic_id = metadata.topics[job.topic].topic_id
        self._connection = Connection.open(broker.host, broker.port, config)
        self._version = self._connection.version_for(produce.API)
        self._stream = Stream(self._connection, _ANSWER_BYTES)
        self._pool = data_set_of(job.data_set).pool(job.timestamp_ms)
        self._in_flight = 0

    def run(self) -> None:
        """Send everything and wait for the last answer."""
        with selectors.DefaultSelector() as selector:
            key = selector.register(self._stream.fileno(), selectors.EVENT_READ)
            sent = 0
            while sent < self._job.batches or self._in_flight:
                while (
                    sent < self._job.batches
                    and self._in_flight < self._job.requests_in_flight
                    and not self._stream.sending
                ):
                    self._send(sent)
                    sent += 1
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._stream.sending else 0)
                if key.events != events:
                    key = selector.modify(self._stream.fileno(), events)
                if not selector.select(_STALLED_S):
                    raise TimeoutError(f"{self._connection!r} has not answered for {_STALLED_S:.0f} s")
                self._stream.flush()
                while (view := self._stream.receive()) is not None:
                    self._answered(view)

    def _send(self, index: int) -> None:
        job = self._job
        appends = [
            produce.Append(job.topic, self._topic_id, partition, batch_of(self._pool, partition, index))
            for partition in job.partitions
        ]
        correlation_id = self._connection.next_correlation_id()
        self._stream.send(
            produce.request(
                correlation_id, self._version, "bench-sender", appends, acks=produce.ACKS_ALL, timeout_ms=30_000
            )
        )
        self._in_flight += 1

    def _answered(self, view: memoryview) -> None:
        answers, _ = produce.answer(view, self._version)
        for answer in answers:
            if answer.error_code:
                raise BrokerError(answer.error_code, answer.error_message or "", f"appending to {self._job.topic}")
        self._in_flight -= 1


def main() -> None:
    """Do the job given on the command line."""
    sender = _Sender(SendJob(**json.loads(sys.argv[1])))
    print("ready", flush=True)
    sys.stdin.readline()
    sender.run()


if __name__ == "__main__":
    main()
