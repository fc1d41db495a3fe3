"""Measure one large partition: `python -m bench.big`, or `python -m bench.big 1 4 20 --out FILE` (gigabytes).

For each size, on a fresh pair of clusters with segments of 64 MB: the first copy, in tenths of the log, with its engine
killed after a quarter and stopped after two thirds; then `verify`; an adoption of the same copy by a new mirror; a
`promote --verify`; and an offline failback, after which the old source has a fifth of the log to archive. All commands
run in processes of their own. Memory is that of their process trees. What the brokers send is counted by the kernel.
An independent consumer compares the copy with what was written, value by value.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.big_copy import Tenth, WatchedCopy, judge
from bench.big_page import RESULTS, write_page
from bench.clusters import Cluster, Pair
from bench.contenders import Load, prepare_senders, start_senders
from bench.data import DATA_SETS, Amount
from bench.machine import describe_machine
from bench.measure import CopyFailedError, ProcessTree
from bench.processes import REPOSITORY, carry_out, kmirror, last_output

SIZES = (1, 4, 20)
TOPIC, MIRROR = "big", "big"
_SEGMENT_BYTES = 64 << 20
_KILLED_AT, _STOPPED_AT, _WELL_UNDER_WAY = 0.25, 0.65, 0.02
_TAIL = 0.2


@dataclass(slots=True)
class Restart:
    """An engine that was ended and started again: for how long nothing was copied, and what was sent twice."""

    how: str
    pause_seconds: float
    sent_twice_megabytes: float


@dataclass(slots=True)
class Step:
    """One command; the megabytes are what each cluster's broker sent meanwhile; `load` is that of the last minute."""

    command: str
    seconds: float
    cpu_seconds: float
    memory_megabytes: int
    source_megabytes: int
    destination_megabytes: int
    load: float


@dataclass(slots=True)
class Big:
    """The results for one size; `sent_share` of the log's bytes were sent in addition to them."""

    gigabytes: float
    records: int
    segments: int
    copy_seconds: float = 0.0
    sent_share: float = 0.0
    load: float = 0.0
    tenths: list[Tenth] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class _Bench:
    def __init__(self, pair: Pair, folder: Path, gigabytes: float) -> None:
        self.pair = pair
        self.folder = folder
        self.data_set = DATA_SETS["256k"]
        self.timestamp_ms = int(time.time() * 1000)
        self.amount = Amount.of(self.data_set, gigabytes * 1000, 1)
        self.bytes_a_record = self.amount.stored_bytes / self.amount.records
        self.found = Big(gigabytes, self.amount.records, 0)

    def run(self) -> Big:
        """Carry out everything."""
        self.pair.source.create_topic(TOPIC, 1)
        self.send(self.pair.source, self.amount)
        self.found.segments = len(list(self.pair.source.sandbox.brokers[0].log_dir.glob(f"{TOPIC}-0/*.log")))
        source = self.properties(self.pair.source)
        here = self.pair.destination
        carry_out(self.kmirror(here, "create", "--mirror-config", source))
        carry_out(self.kmirror(here, "add", "--topics", TOPIC))
        self.copy()
        print(json.dumps(asdict(self.found)), flush=True)
        judge(here.bootstrap_servers, TOPIC, DATA_SETS["256k"], 0, self.amount.records)
        self.step("verify", here, "verify", "--json")
        carry_out(self.kmirror(here, "remove", "--topics", TOPIC, "--yes"))
        carry_out(self.kmirror(here, "delete", "--yes"))
        carry_out(self.kmirror(here, "create", "--mirror-config", source))
        self.step("add --adopt", here, "add", "--adopt", "--topics", TOPIC, "--json")
        self.step("run, adopted", here, "run", "--until-caught-up")
        self.step("promote --verify", here, "promote", "--verify", "--yes", "--json")
        self.failback()
        return self.found

    def send(self, cluster: Cluster, amount: Amount, key: str = "256k") -> None:
        """Append so many batches of a data set to the topic."""
        senders = prepare_senders(cluster, Load(TOPIC, DATA_SETS[key], amount, self.timestamp_ms), self.folder)
        start_senders(senders)
        for process in senders.processes:
            process.wait()
        senders.end()

    def properties(self, cluster: Cluster) -> str:
        """Return a file that describes the connection to a cluster."""
        file = self.folder / f"{cluster.bootstrap_servers}.properties"
        file.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\n")
        return str(file)

    def kmirror(self, cluster: Cluster, verb: str, *arguments: str) -> list[str]:
        """Return a command line."""
        return kmirror(verb, "--mirror", MIRROR, "--bootstrap-server", cluster.bootstrap_servers, *arguments)

    def sent(self, cluster: Cluster) -> int:
        """Return how many bytes a cluster's broker has written so far: to its clients, if no one produces."""
        lines = Path(f"/proc/{cluster.sandbox.brokers[0].pid}/io").read_text(encoding="ascii").splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    def copy(self) -> None:
        """Copy, and end the engine twice on the way."""
        records, size, before = self.amount.records, self.amount.stored_bytes, self.sent(self.pair.source)
        command = self.kmirror(self.pair.destination, "run", "--standby")
        copy = WatchedCopy(
            command, self.folder / "run.log", lambda: self.pair.destination.log_ends(TOPIC, 1)[0], records, size
        )

        def in_addition() -> float:
            """Return how many megabytes the source has sent in addition to what is copied; some are under way."""
            return (self.sent(self.pair.source) - before - copy.end / records * size) / 1e6

        for share, how in ((_KILLED_AT, signal.SIGKILL), (_STOPPED_AT, signal.SIGTERM)):
            copy.until(int(share * records))
            sent = in_addition()
            stopped_at = copy.stop(how)
            copy.start()
            pause = copy.until(stopped_at + int(_WELL_UNDER_WAY * records))
            self.found.restarts.append(Restart(how.name, round(pause, 1), round(in_addition() - sent, 1)))
        copy.until(records)
        copy.stop(signal.SIGTERM)
        self.found.tenths, self.found.copy_seconds = copy.tenths, round(copy.moved_at - copy.begun_at, 1)
        self.found.load, self.found.sent_share = round(os.getloadavg()[0], 1), round(in_addition() * 1e6 / size, 4)

    def step(self, name: str, cluster: Cluster, verb: str, *arguments: str) -> Any:
        """Run a command to its end, watch it, and return what it printed."""
        with tempfile.TemporaryFile("w+") as out:
            sent = [self.sent(one) for one in (self.pair.source, self.pair.destination)]
            began, argv = time.monotonic(), self.kmirror(cluster, verb, *arguments)
            with (self.folder / "steps.log").open("ab") as log:
                process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
            tree = ProcessTree([process.pid])
            used = 0.0
            while process.poll() is None:
                used = max(used, tree.cpu_seconds())
                tree.sample_memory()
                time.sleep(0.25)
            seconds = time.monotonic() - began
            out.seek(0)
            printed = out.read()
        source, destination = (
            round((self.sent(one) - was) / 1e6)
            for one, was in zip((self.pair.source, self.pair.destination), sent, strict=True)
        )
        if process.returncode:
            raise CopyFailedError(
                f"{name} ended with {process.returncode}: {printed}\n{last_output(self.folder / 'steps.log')}"
            )
        self.found.steps.append(
            Step(
                name,
                round(seconds, 1),
                round(used, 1),
                round(tree.peak_memory / 2**20),
                source,
                destination,
                round(os.getloadavg()[0], 1),
            )
        )
        print(json.dumps(asdict(self.found.steps[-1])), flush=True)
        return printed

    def failback(self) -> None:
        """Give both clusters records of their own, and make the old source a mirror by an offline truncation."""
        old, new = self.pair.source, self.pair.destination
        tail = Amount.of(self.data_set, self.found.gigabytes * _TAIL * 1000, 1)
        self.send(old, tail)
        own = Amount.of(DATA_SETS["16k"], 10, 1)
        self.send(new, own, "16k")
        plan = self.folder / "plan.json"
        argv = (
            "failback",
            "--mirror-config",
            self.properties(new),
            "--offline",
            "--plan",
            str(plan),
            "--yes",
            "--json",
        )
        self.step("failback, archiving a fifth", old, *argv)
        old.sandbox.stop()
        folder = old.sandbox.brokers[0].log_dir
        carry_out(kmirror("truncate-logs", "--plan", str(plan), "--log-dir", str(folder), "--yes"))
        old.sandbox.start()
        self.step("failback, truncated", old, *argv)
        self.step("run, failed back", old, "run", "--until-caught-up")
        judge(old.bootstrap_servers, TOPIC, DATA_SETS["16k"], self.amount.records, own.records)


def main() -> int:
    """Measure each size, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=float, nargs="*", default=SIZES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--page", action="store_true", help="only write the table of docs/verify.md from stored results"
    )
    given = parser.parse_args()
    if given.page:
        write_page()
        return 0
    found: list[Big] = []
    for size in given.sizes:
        properties = {"log.segment.bytes": str(_SEGMENT_BYTES)}
        with (
            tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name,
            Pair(Path(name), properties=properties) as pair,
        ):
            found.append(_Bench(pair, Path(name), size).run())
            version = pair.source.sandbox.spec.kafka_version
        print(json.dumps(asdict(found[-1])), flush=True)
        document = {"machine": asdict(describe_machine(version)), "sizes": [asdict(one) for one in found]}
        given.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
