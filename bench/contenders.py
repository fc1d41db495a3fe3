"""The contenders: kmirror as a user starts it, MirrorMaker 2 in `mirrormaker`, and the destination's own ceiling.

A contender copies a topic that the source has and the destination has not, under the same name. `prepare` runs once
before a copy, `start` starts what is timed, `clean_up` restores the destination.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.clusters import Cluster, Pair
from bench.data import Amount, DataSet
from bench.processes import Running, carry_out, kmirror, start
from bench.sender import SendJob

_SENDERS = 2
_REQUESTS_IN_FLIGHT = 3


@dataclass(frozen=True, slots=True)
class Load:
    """What to copy: a topic, and how to make its batches again."""

    topic: str
    data_set: DataSet
    amount: Amount
    timestamp_ms: int


class Contender(Protocol):
    """A tool that copies a topic to the destination. `key` names it on the command line and in the results."""

    key: str
    title: str
    #: True if the destination's brokers get their own cores meanwhile.
    apart: bool

    def prepare(self, load: Load, *, for_latency: bool = False) -> None:
        """Prepare a copy; `for_latency` if delay matters and volume does not."""

    def start(self) -> Running:
        """Start copying."""

    def clean_up(self) -> None:
        """Remove the copy and all state of it."""


class Kmirror:
    """`kmirror run` with defaults."""

    key = "kmirror"
    title = "kmirror"
    apart = False

    def __init__(self, pair: Pair, folder: Path) -> None:
        self._pair = pair
        self._folder = folder

    def prepare(self, load: Load, *, for_latency: bool = False) -> None:
        """Create a mirror and add the topic to it."""
        self._topic = load.topic
        self._mirror = f"bench-{uuid.uuid4().hex[:8]}"
        self._ends = not for_latency
        config = self._folder / "source.properties"
        config.write_text(f"bootstrap.servers={self._pair.source.bootstrap_servers}\n", encoding="utf-8")
        carry_out(self.command("create", "--mirror-config", str(config)))
        carry_out(self.command("add", "--topics", load.topic))

    def start(self) -> Running:
        """Start the engine."""
        log = self._folder / "kmirror.log"
        argv = self.command("run", *(["--until-caught-up"] if self._ends else []))
        return Running([start(argv, log)], log, ends_itself=self._ends)

    def clean_up(self) -> None:
        """Delete the topic, and then the mirror, which has nothing left."""
        self._pair.destination.delete_topics({self._topic})
        carry_out(self.command("delete", "--yes"))

    def command(self, verb: str, *arguments: str) -> list[str]:
        destination = self._pair.destination.bootstrap_servers
        return kmirror(verb, "--mirror", self._mirror, "--bootstrap-server", destination, *arguments)


class KmirrorApart(Kmirror):
    """The same, with the destination's brokers on their own cores."""

    key = "kmirror-apart"
    title = "kmirror, apart"
    apart = True


class Ceiling:
    """The destination alone: two processes send it the same batches from memory, with three requests in flight each."""

    key = "ceiling"
    title = "destination alone"
    apart = False

    def __init__(self, pair: Pair, folder: Path) -> None:
        self._pair = pair
        self._folder = folder

    def prepare(self, load: Load, *, for_latency: bool = False) -> None:
        """Create the topic and prepare the batches."""
        del for_latency  # nothing is read here, so there is no latency
        self._topic = load.topic
        self._pair.destination.create_topic(load.topic, load.amount.partitions)
        self._running = prepare_senders(self._pair.destination, load, self._folder)

    def start(self) -> Running:
        """Start the senders."""
        start_senders(self._running)
        return self._running

    def clean_up(self) -> None:
        """Delete the topic."""
        self._pair.destination.delete_topics({self._topic})


class CeilingApart(Ceiling):
    """The same, with the destination's brokers on the cores that they have while kmirror copies."""

    key = "ceiling-apart"
    title = "destination, apart"
    apart = True


def prepare_senders(cluster: Cluster, load: Load, folder: Path) -> Running:
    """Start processes that have prepared all batches of the load and wait for the start signal."""
    log = folder / "sender.log"
    shares = cluster.partitions_by_leader(load.topic)
    if len(shares) == 1 and len(shares[0]) >= _SENDERS:
        shares = [shares[0][at::_SENDERS] for at in range(_SENDERS)]
    processes = []
    for share in shares:
        job = SendJob(
            cluster.bootstrap_servers,
            load.topic,
            load.data_set.key,
            share,
            load.amount.batches,
            load.timestamp_ms,
            _REQUESTS_IN_FLIGHT,
        )
        with cluster.network():
            processes.append(start(job.argv(), log, answers=True))
    running = Running(processes, log, ends_itself=True)
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            process.wait()
            running.check()
    return running


def start_senders(senders: Running) -> None:
    """Send the start signal."""
    for process in senders.processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
