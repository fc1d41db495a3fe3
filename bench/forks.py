"""Time finding the forks of a thousand partitions: `python -m bench.forks`, or `measure_forks` with two clusters.

Every partition has a million offsets on both sides, in batches of 500 records as a mirror has them from its source; the
destination holds the source's batches up to its fork, and others after it. Appending two billion records would take too
long, so the logs are put into the folders of stopped brokers, as hard links to segments that many partitions share.
Forks are anywhere, at a hundred offsets that ten partitions share each. So all reads come from memory, as on a broker
with enough of it, and would take longer from disk; the numbers of requests and reads are the same for any logs of this
shape.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clusters import Pair
from bench.measure import CopyFailedError
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.engine.bulk.runner import SparkTasks, Task
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import ForkQuestion, fork_work_units, search_work_unit
from kmirror.engine.histories.stretches import LogEnds
from kmirror.work import Meter, unwatched

PARTITIONS = 1000
OFFSETS = 1_000_000
_PARTITIONS_A_TOPIC = 100
_BATCH_RECORDS = 500
_SEGMENT_OFFSETS = 200_000
_BATCHES_A_SEGMENT = _SEGMENT_OFFSETS // _BATCH_RECORDS
_FORKS = 100
_SLOTS = 2
#: A broker has a thousand logs to open.
_START_TIMEOUT_S = 600.0
_INDEXES = (".index", ".timeindex")
_BEGINNING_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class ForkSearch:
    """How long it took to find the forks of these partitions, each with `offsets` on both sides, all correctly.

    `requests` are Fetch requests to both clusters, each for many partitions; `reads` how often both logs of one
    partition were read. `seconds` from the first task to the last answer; Spark was up after `spark_seconds`.
    """

    partitions: int
    offsets: int
    hinted: bool
    requests: int
    median_reads: float
    most_reads: int
    seconds: float
    spark_seconds: float


def measure_forks(pair: Pair, folder: Path, scale: float = 1.0) -> Iterator[ForkSearch]:
    """Yield how fast forks are found without hints and with correct ones; restarts the brokers before each.

    Raises:
        CopyFailedError: an answer is wrong.
    """
    from kmirror.engine.spark.application import SparkRuntime
    from kmirror.engine.spark.conf import SparkOptions

    topics = [f"bench-forks-{number}" for number in range(max(1, round(PARTITIONS * scale / _PARTITIONS_A_TOPIC)))]
    partitions = [TopicPartition(topic, index) for topic in topics for index in range(_PARTITIONS_A_TOPIC)]
    chosen = random.Random(1)
    some = [chosen.randrange(1, OFFSETS // _BATCH_RECORDS) * _BATCH_RECORDS for _ in range(_FORKS)]
    forks = {partition: some[number % _FORKS] for number, partition in enumerate(partitions)}
    _install(pair, topics, forks, folder / "fork-segments")
    options = SparkOptions(
        slots=_SLOTS,
        log_file=folder / "forks-spark.log",
        app_name="kmirror bench: forks",
        preload=("kmirror.engine.histories.fork_search",),
    )
    source, destination = (
        ClusterAccess({"bootstrap.servers": cluster.bootstrap_servers}, None)
        for cluster in (pair.source, pair.destination)
    )
    for hinted in (False, True):
        questions = [
            ForkQuestion(partition, partition, LogEnds(0, OFFSETS, 0, OFFSETS), forks[partition] if hinted else None)
            for partition in partitions
        ]
        begun_at = time.monotonic()
        with SparkRuntime(options) as spark:
            started_at = time.monotonic()
            shares = fork_work_units(questions, _SLOTS, source, destination)
            tasks = [Task(share, len(share.questions)) for share in shares]
            with Meter(unwatched, "forks") as meter:
                searched = list(SparkTasks(spark).run("forks", search_work_unit, tasks, meter))
            ended_at = time.monotonic()
        found = [one for share in searched for one in share.found]
        for one in found:
            fork = forks[one.question.destination]
            if one.fork != Fork(fork, True, fork - 1):
                raise CopyFailedError(f"{one.question.destination} forks at {fork:,}: {one.fork or one.trouble}")
        assert len(found) == len(partitions)
        reads = [one.reads for one in found]
        yield ForkSearch(
            len(partitions),
            OFFSETS,
            hinted,
            sum(share.requests for share in searched),
            statistics.median(reads),
            max(reads),
            ended_at - started_at,
            started_at - begun_at,
        )
    for cluster in (pair.source, pair.destination):
        cluster.delete_topics(set(topics))


def summary_lines(searches: list[ForkSearch]) -> Iterator[str]:
    """Return it as text."""
    for one in searches:
        yield (
            f"forks of {one.partitions:,} partitions of {one.offsets:,} offsets, {'with' if one.hinted else 'without'}"
            f" hints: {one.seconds:.1f} s, {one.requests:,} fetches, {one.median_reads:.0f} reads of each partition's"
            f" two logs (at most {one.most_reads}); Spark was up after {one.spark_seconds:.1f} s"
        )


def _install(pair: Pair, topics: list[str], forks: dict[TopicPartition, int], folder: Path) -> None:
    """Give both clusters these topics, with logs that fork there."""
    folder.mkdir()
    shared, others = _batches("s"), _batches("d")
    for cluster in (pair.source, pair.destination):
        for topic in topics:
            cluster.create_topic(topic, _PARTITIONS_A_TOPIC)
        cluster.sandbox.stop()
        (broker,) = cluster.sandbox.brokers
        for partition, fork in forks.items():
            at = OFFSETS if cluster is pair.source else fork
            _put_log(broker.log_dir / f"{partition}", folder, shared, others, at)
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            _set_offsets(broker.log_dir / name, forks)
        cluster.sandbox.start(_START_TIMEOUT_S)
    for cluster, topic in itertools.product((pair.source, pair.destination), topics):
        assert cluster.log_ends(topic, _PARTITIONS_A_TOPIC) == [OFFSETS] * _PARTITIONS_A_TOPIC


def _batches(name: str) -> list[bytes]:
    """Return the batches of a log whose records name their writer."""
    return [
        bytes(make_batch([_record(first + i, name) for i in range(_BATCH_RECORDS)], compression_type="lz4"))
        for first in range(0, OFFSETS, _BATCH_RECORDS)
    ]


def _record(offset: int, name: str) -> Record:
    value = b'{"number": %d, "written_by": "%s", "state": %d}' % (offset, name.encode(), offset * 2_654_435_761 % 2**32)
    return Record(offset, _BEGINNING_MS + offset, b"key-%d" % (offset % 1000), value)


def _put_log(partition: Path, folder: Path, shared: list[bytes], others: list[bytes], fork: int) -> None:
    for file in partition.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    at = fork // _BATCH_RECORDS
    for first in range(0, OFFSETS // _BATCH_RECORDS, _BATCHES_A_SEGMENT):
        end = first + _BATCHES_A_SEGMENT
        common = min(max(at, first), end)
        segment = folder / f"{first}-{common}"
        if not segment.exists():
            batches = [*shared[first:common], *others[common:end]]
            segment.write_bytes(b"".join(batches))
            _write_indexes(segment, first, batches)
        stem = f"{first * _BATCH_RECORDS:020d}"
        os.link(segment, partition / f"{stem}.log")
        for kind in _INDEXES:  # the broker changes these
            shutil.copyfile(segment.with_suffix(kind), partition / f"{stem}{kind}")


def _write_indexes(segment: Path, first: int, batches: list[bytes]) -> None:
    """Write what brokers would otherwise rebuild by reading all of it: a segment's indexes by offset and by time."""
    offsets, times = bytearray(), bytearray()
    position = 0
    for number, batch in enumerate(batches):
        last = (number + 1) * _BATCH_RECORDS - 1
        if number:
            offsets += struct.pack(">ii", last, position)
            times += struct.pack(">qi", _BEGINNING_MS + first * _BATCH_RECORDS + last, last)
        position += len(batch)
    for kind, data in zip(_INDEXES, (offsets, times), strict=True):
        segment.with_suffix(kind).write_bytes(data)


def _set_offsets(file: Path, topic_partitions: dict[TopicPartition, int]) -> None:
    """Set these partitions' entries of a stopped broker's checkpoint to the end of the log."""
    known = dict(line.rsplit(" ", 1) for line in file.read_text().splitlines()[2:]) if file.exists() else {}
    known |= {
        f"{topic_partition.topic} {topic_partition.partition}": str(OFFSETS) for topic_partition in topic_partitions
    }
    file.write_text(
        "\n".join(["0", str(len(known)), *(f"{topic_partition} {end}" for topic_partition, end in known.items()), ""])
    )


def main() -> int:
    """Measure on its own: `python -m bench.forks [SCALE]`."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        searches: list[Any] = []
        for one in measure_forks(pair, Path(name), scale):
            searches.append(one)
            print(*summary_lines([one]), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
