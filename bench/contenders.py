"""Who copies: kmirror as a user starts it, MirrorMaker 2 in `mirrormaker`, and the destination's own ceiling.

A contender is given a topic that the source holds and the destination does not; what it copies is the topic of the same
name. `prepare` is what is done once before a copy, `start` what the clock runs for, `clean_up` leaves the destination
as it was.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.clusters import Cluster, Pair
from bench.data import PARTITIONS, Amount, DataSet
from bench.processes import Running, carry_out, kmirror, start
from bench.sender import Errand

_SENDERS = 2
_REQUESTS_IN_FLIGHT = 3


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be copied: a topic, and how its batches can be made again."""

    topic: str
    data_set: DataSet
    amount: Amount
    timestamp_ms: int


class Contender(Protocol):
    """Somebody who brings a topic to the destination. `key` names it on the command line and in the results."""

    key: str
    title: str
    #: True when the destination's brokers get cores of their own meanwhile.
    apart: bool

    def prepare(self, load: Load, *, for_latency: bool = False) -> None:
        """Do what comes before a copy; `for_latency` where waiting matters and volume does not."""

    def start(self) -> Running:
        """Begin to copy."""

    def clean_up(self) -> None:
        """Remove the copy and all that was remembered of it."""


class Kmirror:
    """`kmirror run`, as it comes."""

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
        """Delete the topic, and then the mirror that has nothing left."""
        self._pair.destination.delete_topics({self._topic})
        carry_out(self.command("delete", "--yes"))

    def command(self, verb: str, *arguments: str) -> list[str]:
        destination = self._pair.destination.bootstrap_servers
        return kmirror(verb, "--mirror", self._mirror, "--bootstrap-server", destination, *arguments)


class KmirrorApart(Kmirror):
    """The same, with the destination's brokers on cores of their own."""

    key = "kmirror-apart"
    title = "kmirror, apart"
    apart = True


class Ceiling:
    """The destination alone: two processes send it the same batches from memory, three requests ahead each."""

    key = "ceiling"
    title = "destination alone"
    apart = False

    def __init__(self, pair: Pair, folder: Path) -> None:
        self._pair = pair
        self._folder = folder

    def prepare(self, load: Load, *, for_latency: bool = False) -> None:
        """Create the topic and have the batches made."""
        del for_latency  # nothing is read here, so there is no latency to speak of
        self._topic = load.topic
        self._pair.destination.create_topic(load.topic)
        self._running = prepare_senders(self._pair.destination, load, self._folder)

    def start(self) -> Running:
        """Let the senders go."""
        let_go(self._running)
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
    """Start processes that have prepared all batches of the load and wait for the word."""
    log = folder / "sender.log"
    share = PARTITIONS // _SENDERS
    processes = []
    for first in range(0, PARTITIONS, share):
        errand = Errand(
            cluster.bootstrap_servers,
            load.topic,
            load.data_set.key,
            list(range(first, first + share)),
            load.amount.batches,
            load.timestamp_ms,
            _REQUESTS_IN_FLIGHT,
        )
        processes.append(start(errand.argv(), log, answers=True))
    running = Running(processes, log, ends_itself=True)
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            process.wait()
            running.check()
    return running


def let_go(senders: Running) -> None:
    """Give the word."""
    for process in senders.processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
