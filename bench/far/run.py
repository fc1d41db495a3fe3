"""Measure one case: two clusters with a link between them, and each contender's copy over it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path as File
from typing import Any

from bench.clusters import Pair, Place
from bench.contenders import Contender, Kmirror, Load, prepare_senders, start_senders
from bench.data import DISTANCE, Amount
from bench.far.cases import BROKERS, DESTINATION_FAR, Case
from bench.far.enclosure import inside
from bench.far.link import FAR, HOSTS, NEAR, Link
from bench.far.raw import CONNECTIONS, fetch_rate
from bench.latency import Latency, measure_latency
from bench.measure import Copy, CopyFailedError, ProcessTree, watch
from bench.mirrormaker import MirrorMaker
from bench.processes import carry_out

#: Every contender copies the smaller topic, and those that were fast then the larger one.
_SMALLER_MB, _LARGER_MB = 160, 1600
_FAST_MB_S = 25.0
CONTENDERS = (Kmirror.key, MirrorMaker.key)


@dataclass(slots=True)
class Result:
    """What was measured of a case, rates in megabytes a second. A contender whose copy failed is missing."""

    case: Case
    measured_at: str
    raw: dict[int, float] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)
    latencies: dict[str, Latency] = field(default_factory=dict)
    #: Of each side, by `kmirror verify` of the copy, its start included; None: not measured.
    verified: float | None = None

    def stored(self) -> dict[str, Any]:
        """Return it as the results' file has it."""
        return {"key": self.case.key, **asdict(self)}


def clusters(link: Link, case: Case, folder: File) -> Pair:
    """Return the clusters of a case, one at each end of the link, not yet started."""
    near, far = Place(NEAR, nullcontext), Place(FAR, lambda: inside(link.far))
    source, destination = (near, far) if case.far == DESTINATION_FAR else (far, near)
    kind = BROKERS[case.broker_kind]
    return Pair(folder, case.brokers, source=source, destination=destination, properties=kind)


def measure(
    case: Case, folder: File, contenders: Sequence[str], failed: Callable[[str], None], say: Callable[[str], None]
) -> tuple[Result, str]:
    """Measure a case with some of the contenders; return the result and the brokers' version."""
    folder.mkdir()
    result = Result(case, datetime.now(UTC).isoformat(timespec="seconds"))
    with Link(case.path, HOSTS[case.host]) as link, clusters(link, case, folder) as pair:
        kmirror = Kmirror(pair, folder)
        tools: list[Contender] = [kmirror, MirrorMaker(pair, folder, over_a_distance=True)]
        loads: dict[int, Load] = {}

        def load(megabytes: int) -> Load:
            if megabytes not in loads:
                loads[megabytes] = _filled(pair, folder, case, megabytes)
            return loads[megabytes]

        for tool in tools:
            if tool.key not in contenders:
                continue
            try:
                if case.latency:
                    latency = result.latencies[tool.key] = measure_latency(pair, tool)
                    say(f"  {tool.title:<14} adds {latency.added_ms.p50:.0f} ms, 99 %: {latency.added_ms.p99:.0f} ms")
                    continue

                def compare(copied: Load, tool: Contender = tool) -> None:
                    if tool is kmirror:
                        result.verified = _compare(kmirror, copied)
                        say(f"  verify        {result.verified:7.1f} MB/s")

                copy = _copy(pair, tool, load(_SMALLER_MB))
                link.check()
                say(f"  {tool.title:<14}{copy.megabytes_per_second:7.1f} MB/s")
                if copy.megabytes_per_second >= _FAST_MB_S:
                    copy = _copy(pair, tool, load(_LARGER_MB), compare)
                    link.check()
                    say(f"  {tool.title:<14}{copy.megabytes_per_second:7.1f} MB/s of more")
                result.copies[tool.key] = copy
            except CopyFailedError as error:
                failed(f"{case.key}: {tool.title}: {error}")
        if not case.latency and case.far != DESTINATION_FAR:
            try:
                for connections in CONNECTIONS:
                    rate = fetch_rate(pair.source, load(_SMALLER_MB), connections, case.round_trip_ms)
                    link.check()
                    result.raw[connections] = rate
                    say(f"  raw fetches over {connections:2}: {rate:7.1f} MB/s")
            except CopyFailedError as error:
                failed(f"{case.key}: raw fetches: {error}")
        return result, pair.source.sandbox.kafka_version


def _filled(pair: Pair, folder: File, case: Case, megabytes: int) -> Load:
    """Fill a topic of the source, within its network."""
    amount = Amount.of(DISTANCE, megabytes, case.partitions)
    load = Load(f"bench-far-{megabytes}", DISTANCE, amount, time.time_ns() // 1_000_000)
    pair.source.create_topic(load.topic, case.partitions)
    senders = prepare_senders(pair.source, load, folder)
    start_senders(senders)
    for process in senders.processes:
        process.wait()
    senders.end()
    assert sum(pair.source.log_ends(load.topic, case.partitions)) == amount.records
    return load


def _compare(kmirror: Kmirror, load: Load) -> float:
    """Compare source and copy record by record; return how many megabytes of each a second that was."""
    began = time.monotonic()
    carry_out(kmirror.command("verify"))
    return load.amount.stored_bytes / 1e6 / (time.monotonic() - began)


def _copy(pair: Pair, tool: Contender, load: Load, then: Callable[[Load], None] = lambda load: None) -> Copy:
    """Copy a topic to its end, and return the rates from the first byte that arrives."""
    tool.prepare(load)
    os.sync()
    running = None
    try:
        started_at = time.monotonic()
        running = tool.start()
        tree = ProcessTree([process.pid for process in running.processes], beside=pair.pids)
        seen = watch(
            lambda: sum(pair.destination.log_ends(load.topic, load.amount.partitions)),
            load.amount.records,
            tree,
            started_at,
            running.check,
        )
        running.end()
    finally:
        if running is not None:
            running.kill()
    _check_complete(pair, load)
    then(load)
    tool.clean_up()
    return seen.copy(tool.key, load.data_set.key, 1, load.amount.stored_bytes)


def _check_complete(pair: Pair, load: Load) -> None:
    """Raise CopyFailedError unless every partition has the source's records, at least by their count."""
    ends = [cluster.log_ends(load.topic, load.amount.partitions) for cluster in (pair.source, pair.destination)]
    if ends[0] != ends[1]:
        raise CopyFailedError(f"the source's logs end at {ends[0]}, those of the copy at {ends[1]}")
