"""Transactional producers as processes of their own, so that they run on while a mirror copies and can be killed.

`TransactionWriters` write many transactions and tell what they have written; an `OpenTransaction` is held until it is
given how to end. The module run as a program is the process.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster

KEPT, DROPPED = b"kept", b"dropped"
_ROOT = Path(__file__).parent.parent.parent
_RECORDS_AT_MOST = 6


class _Process:
    """A program of this module, with pipes to and from it."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.support.transactions", *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, if it has not ended by itself."""
        self.process.kill()
        self.process.communicate()

    def _end(self, word: str, seconds: float) -> str:
        out, err = self.process.communicate(word, timeout=seconds)
        assert self.process.returncode == 0, err[-4000:]
        return out


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: records of committed transactions by partition, and how many records were aborted."""

    kept: dict[int, int]
    dropped: int


class TransactionWriters(_Process):
    """So many producers that write transactions to the partitions of a topic, all at the same time.

    With `in_halves` they pause half-way, until `wait` is called.
    """

    def __init__(
        self,
        cluster: SandboxCluster,
        topic: str,
        partitions: int,
        transactions: int,
        *,
        producers: int = 5,
        aborted: float = 0.3,
        in_halves: bool = False,
    ) -> None:
        numbers = (partitions, transactions, producers, int(in_halves))
        super().__init__("write", cluster.bootstrap_servers, topic, *map(str, numbers), str(aborted))

    def wait(self, seconds: float) -> Written:
        """Wait until all is written."""
        reported = json.loads(self._end("", seconds))
        return Written({int(partition): count for partition, count in reported["kept"].items()}, reported["dropped"])


class OpenTransaction(_Process):
    """A transaction with records in every partition of a topic, open until it gets how to end.

    If nothing ends it, its coordinator aborts it after `timeout_ms`.
    """

    def __init__(
        self, cluster: SandboxCluster, topic: str, *, partitions: int = 1, records: int = 10, timeout_ms: int = 60_000
    ) -> None:
        numbers = (partitions, records, timeout_ms)
        super().__init__("hold", cluster.bootstrap_servers, topic, *map(str, numbers))
        assert self.process.stdout is not None
        is_open = False
        try:
            is_open = self.process.stdout.readline() == "open\n"
        finally:
            if not is_open:
                self.process.kill()
        assert is_open, self.process.communicate()

    def commit(self) -> None:
        """Commit it."""
        self._end("commit\n", 60)

    def abort(self) -> None:
        """Abort it."""
        self._end("abort\n", 60)


def _write(
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    transactions: int,
    producers: int,
    aborted: float,
    *,
    in_halves: bool,
) -> None:
    share = -(-transactions // producers)
    may_go_on = threading.Event()

    def produce(number: int) -> tuple[Counter[int], int]:
        chance = random.Random(number)
        config = {"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "transactional.id": f"{topic}-{number}"}
        producer = Producer({**config, "compression.type": ("none", "lz4", "zstd")[number % 3]})
        producer.init_transactions(60)
        kept: Counter[int] = Counter()
        dropped = 0
        for transaction in range(min(share, transactions - number * share)):
            if in_halves and transaction == share // 2:
                may_go_on.wait()
            outcome = DROPPED if chance.random() < aborted else KEPT
            places = [chance.randrange(partitions) for _ in range(chance.randint(1, _RECORDS_AT_MOST))]
            producer.begin_transaction()
            for index, partition in enumerate(places):
                value = b"%s %d %d %d " % (outcome, number, transaction, index) * chance.randrange(1, 20)
                producer.produce(topic, value, b"key-%d" % chance.randrange(1000), partition)
            assert producer.flush(60) == 0  # an abort would not write what is still queued
            if outcome is KEPT:
                producer.commit_transaction(60)
                kept.update(places)
            else:
                producer.abort_transaction(60)
                dropped += len(places)
        return kept, dropped

    with ThreadPoolExecutor(producers) as pool:
        begun = [pool.submit(produce, number) for number in range(producers)]
        sys.stdin.read()  # closed by what waits for the end
        may_go_on.set()
        results = [one.result() for one in begun]
    kept_by_partition = sum((kept for kept, _ in results), Counter[int]())
    json.dump({"kept": kept_by_partition, "dropped": sum(dropped for _, dropped in results)}, sys.stdout)


def _hold(bootstrap_servers: str, topic: str, partitions: int, records: int, timeout_ms: int) -> None:
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": uuid.uuid4().hex}
    producer = Producer({**config, "transaction.timeout.ms": timeout_ms})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(partitions):
        for number in range(records):
            producer.produce(topic, b"held %d" % number, b"key-%d" % number, partition)
    assert producer.flush(60) == 0
    sys.stdout.write("open\n")
    sys.stdout.flush()
    {"commit": producer.commit_transaction, "abort": producer.abort_transaction}[sys.stdin.readline().strip()](60)


if __name__ == "__main__":
    _, verb, servers, name, *rest = sys.argv
    if verb == "write":
        partition_count, transaction_count, producer_count, halves = map(int, rest[:4])
        numbers = (partition_count, transaction_count, producer_count)
        _write(servers, name, *numbers, float(rest[4]), in_halves=bool(halves))
    else:
        partition_count, record_count, timeout = map(int, rest)
        _hold(servers, name, partition_count, record_count, timeout)
