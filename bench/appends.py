"""Measure how many small appends a second the pipeline carries: `python -m bench.appends [--seconds 5]`.

Each append is one record of some 40 bytes; they go round-robin to the partitions of one topic of a local broker.
Prints the rate, and the CPU time of this process, for each number of partitions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.clusters import Cluster
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.topics.topic_requests import create_topic

_PARTITIONS = (1, 12, 100)
#: The first round warms up the broker.
_ROUNDS = 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, Cluster("appends", Path(folder)).sandbox as sandbox:
        config = client_config(sandbox.client_properties())
        for partitions in _PARTITIONS:
            for number in range(_ROUNDS):
                rate, processor_us = _measure(config, f"appends-{partitions}-{number}", partitions, seconds)
                line = f"{partitions:4} partitions: {rate:9,.0f} appends/s, {processor_us:.1f} µs of CPU time each"
                print(line if number else f"{line} (warming up)", flush=True)


def _measure(config: ClientConfig, topic: str, partitions: int, seconds: float) -> tuple[float, float]:
    topic_partitions = [TopicPartition(topic, index) for index in range(partitions)]
    with ClusterClient(config) as client:
        create_topic(client, topic, partitions, 1, {"compression.type": "producer"})
    now_ms, sent = time.time_ns() // 1_000_000, 0
    with AppendPipeline(config, producer_id=FIRST_OWN_PRODUCER_ID + 1) as out:
        for partition in topic_partitions:
            out.log_end_offset(partition)
        began, processor_began = time.monotonic(), time.process_time()
        while time.monotonic() < began + seconds:
            for offset in range(sent, sent + 100):
                for partition in topic_partitions:
                    last = out.append(partition, [Record(offset, now_ms, b"key-%d" % offset, b"value-%d" % offset * 3)])
            sent += 100
        out.flush()
        took, processor_s = time.monotonic() - began, time.process_time() - processor_began
    if last.result() != sent:
        raise AssertionError(f"{topic} ends at {last.result()} instead of {sent}")
    return sent * partitions / took, processor_s / (sent * partitions) * 1e6


if __name__ == "__main__":
    main()
