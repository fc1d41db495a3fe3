"""Timed drills: `python -m bench.drills`, or one part with chosen sizes, `--only failover --partitions 10`.

* failover: the source is killed under load. Measures the time from typing `failover` to the first write that the
  destination accepts (RTO), the acknowledged records that are missing (RPO), and what `failover` reported.
* switchover: under load, with `--block-producers`. Measures how long no cluster accepts writes.
* failback: how much of a log is copied again when the old source becomes the mirror, compared with the whole log.

Each size gets a fresh pair of clusters with TLS, logins and ACLs: only where writes are denied can one see when they
are allowed again. Results go to docs/results/drills.json, and the tables of docs/drills.md are generated from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.clusters import Pair
from bench.drill_clients import Load, Waiting
from bench.machine import describe_machine
from bench.measure import CopyFailedError
from bench.processes import REPOSITORY, Running, carry_out, kmirror, start
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission, Operation, PatternType, ResourceType
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acls import await_acls, create_acls
from kmirror.cluster.security.client_config import client_config
from tests.support.librdkafka import librdkafka

RESULTS = REPOSITORY / "docs" / "results" / "drills.json"
PAGE = REPOSITORY / "docs" / "drills.md"
BEGIN = "<!-- {}: written by: python -m bench.drills -->\n"
END = "<!-- end -->\n"
SIZES = {"failover": (10, 1_000, 5_000), "switchover": (100, 1_000), "failback": (10,)}
#: The longest time without writes that a switchover may cause, by number of partitions.
AIMS_S = {100: 2.0, 1_000: 10.0}
PARTITIONS_OF_A_TOPIC = 10
_RATE = 1_000
_LOADED_S = 20.0
#: More than `index.interval.bytes`: the append after them writes to the log's index files for the first time. That took
#: 2 to 15 ms of a broker's thread each on the measured machine, and is the state of a log that is seconds old.
_FIRST_RECORDS = 5
#: From the loss of the source until someone types the command.
_NOTICED_S = 5.0
#: The most topics that are checked for when they accept writes.
_WATCHED = 20
_TIMEOUT_S = 900.0
_USERS = {"app": "app-secret"}
#: Mirrors store references to passwords, never passwords.
_LOGIN = "KMIRROR_DRILL_LOGIN"
_RECORDS_BEFORE, _RECORDS_SINCE = 100_000, 1_000


@dataclass(frozen=True, slots=True)
class FailoverDrill:
    """A failover after the source was killed under load, in seconds and records; unknown is None.

    `lost_*` is the truth: what the source had acknowledged and the destination did not have when the command was typed;
    the window is from the acknowledgement of the first such record to the kill. `told_*` is what the command reported.
    """

    partitions: int
    topics: int
    records_per_second: int
    first_write_seconds: float
    last_write_seconds: float
    command_seconds: float
    lost_records: int
    lost_window_seconds: float
    lost_rpo_seconds: float
    told_lost_records: int | None
    told_more_records: int
    told_rpo_seconds: float | None
    told_source_answers: bool
    #: Of the further loss and the RPO, if the source died when the connections to it broke, as it did.
    told_more_at_loss_records: int
    told_rpo_at_loss_seconds: float | None

    @property
    def is_honest(self) -> bool:
        """Return whether the report is at least as alarming as the truth; an unknown RPO is."""
        at_loss = self.told_rpo_at_loss_seconds
        if at_loss is not None and (
            at_loss < self.lost_rpo_seconds
            or (self.told_lost_records or 0) + self.told_more_at_loss_records < self.lost_records
        ):
            return False
        return self.told_rpo_seconds is None or (
            self.told_rpo_seconds >= self.lost_rpo_seconds
            and (self.told_lost_records or 0) + self.told_more_records >= self.lost_records
        )


@dataclass(frozen=True, slots=True)
class SwitchoverDrill:
    """A switchover with `--block-producers`: how long no write was accepted, as measured and as reported (`told_*`)."""

    partitions: int
    topics: int
    records_per_second: int
    median_seconds: float
    longest_seconds: float
    told_longest_seconds: float | None
    command_seconds: float
    steps: dict[str, float]
    lost_records: int


@dataclass(frozen=True, slots=True)
class FailbackDrill:
    """What was copied first, and what a failback copies again; each including the start of its engine."""

    partitions: int
    full_records: int
    full_seconds: float
    delta_records: int
    copied_again_records: int
    failback_seconds: float
    delta_seconds: float


class Site:
    """Two clusters, a mirror `drill` from one to the other, and how commands reach them."""

    def __init__(self, pair: Pair, folder: Path, partitions: int) -> None:
        self.pair = pair
        self.folder = folder
        # the mirror refers to what this program makes
        os.environ["KMIRROR_TRUST_PATHS"], os.environ["KMIRROR_TRUST_ENV"] = str(folder), _LOGIN
        per_topic = min(PARTITIONS_OF_A_TOPIC, partitions)
        self.topics = [f"drill-{number:04}" for number in range(partitions // per_topic)]
        # in this order, so that a load on all partitions in turn writes to each topic as often as it can
        self.places = [TopicPartition(topic, p) for p in range(per_topic) for topic in self.topics]
        step = max(1, -(-len(self.topics) // _WATCHED))
        self.watched = [TopicPartition(topic, 0) for topic in {*self.topics[::step], self.topics[-1]}]
        for cluster in (pair.source, pair.destination):
            properties = cluster.sandbox.client_properties()
            os.environ[_LOGIN] = properties["sasl.jaas.config"]
            name = cluster.sandbox.name
            self._write(f"{name}-admin", properties)
            self._write(f"{name}-link", {**properties, "sasl.jaas.config": f"${{env:{_LOGIN}}}"})
            with ClusterClient(client_config(properties)) as admin:
                rule = (PatternType.LITERAL, "User:app", "*")
                may = [
                    AclBinding(ResourceType.TOPIC, "*", *rule, operation, AclPermission.ALLOW)
                    for operation in (Operation.WRITE, Operation.READ)
                ]
                if set(create_acls(admin, may).values()) != {None} or not await_acls(admin, may):
                    raise CopyFailedError("cannot grant the applications' rights")

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (self.folder / f"{name}.properties").write_text(text, encoding="utf-8")

    def app(self, name: str) -> dict[str, str]:
        """Return the client properties of an application at one of the clusters."""
        cluster = self.pair.source if name == "source" else self.pair.destination
        return cluster.sandbox.client_properties("app")

    def command(self, at: str, verb: str, *arguments: str) -> list[str]:
        """Return a command line for a verb at one of the clusters."""
        cluster = self.pair.source if at == "source" else self.pair.destination
        config = str(self.folder / f"{at}-admin.properties")
        here = ("--bootstrap-server", cluster.bootstrap_servers, "--command-config", config)
        return kmirror(verb, "--mirror", "drill", *here, *arguments)

    def link(self, to: str) -> str:
        """Return the properties file with which a mirror connects to a cluster."""
        return str(self.folder / f"{to}-link.properties")

    def mirror(self) -> None:
        """Create the topics, with a few records in each partition, and mirror them."""
        _create(self.pair, self.topics, len(self.places) // len(self.topics))
        _produce(self.app("source"), self.places, _FIRST_RECORDS * len(self.places))
        carry_out(self.command("destination", "create", "--mirror-config", self.link("source")))
        carry_out(self.command("destination", "add", "--topics", "drill-.*"))

    def run(self) -> Running:
        """Start an engine; return when everything is copied, and both clusters have written to each log's index."""
        log = self.folder / "run.log"
        running = Running([start(self.command("destination", "run"), log)], log, False)
        try:
            self._wait("caught-up")
            _produce(self.app("source"), self.places, len(self.places))
            self._wait("caught-up")
            self._wait("healthy")
        except BaseException:
            running.kill()
            raise
        return running

    def _wait(self, condition: str) -> None:
        carry_out(self.command("destination", "wait", "--for", condition, "--timeout", f"{_TIMEOUT_S:g}s"))

    def timed(self, argv: Sequence[str]) -> tuple[float, dict[str, Any]]:
        """Run a command with `--json`; return its seconds and its document."""
        began = time.monotonic()
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if done.returncode:
            raise CopyFailedError(f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr[-2000:]}")
        return seconds, json.loads(done.stdout)


def drill_failover(site: Site) -> FailoverDrill:
    """Kill the source under load, and fail over."""
    site.mirror()
    running = site.run()
    try:
        with Load(site.app("source"), site.places, _RATE) as load:
            time.sleep(_LOADED_S)
            killed_at = time.monotonic()
            for broker in site.pair.source.sandbox.brokers:
                site.pair.source.sandbox.kill(broker.node_id)
        time.sleep(max(0.0, killed_at + _NOTICED_S - time.monotonic()))
        per_topic = len(site.places) // len(site.topics)
        ends = {
            TopicPartition(topic, p): end
            for topic in site.topics
            for p, end in enumerate(site.pair.destination.log_ends(topic, per_topic))
        }
        with Waiting(site.app("destination"), site.watched) as waiting:
            typed_at = time.monotonic()
            seconds, report = site.timed(site.command("destination", "failover", "--yes", "--json"))
            accepted = waiting.wait(_NOTICED_S)
    finally:
        running.kill()
    lost = {
        partition: [one for one in ones if one.offset >= ends[partition]]
        for partition, ones in load.acknowledged.items()
    }
    rpos = []
    for partition, ones in load.acknowledged.items():
        if lost[partition]:
            copied = [one.timestamp_ms for one in ones if one.offset < ends[partition]]
            rpos.append(ones[-1].timestamp_ms - (copied[-1] if copied else ones[0].timestamp_ms))
    first_lost = min((ones[0].at for ones in lost.values() if ones), default=killed_at)
    totals = report["totals"]
    wrong = [row for row in report["results"] if row["lastMirroredOffset"] != ends[_place_of(row)]]
    if wrong:
        raise CopyFailedError(f"a wrong end was reported for {len(wrong)} partitions: {wrong[:3]}")
    return FailoverDrill(
        len(site.places),
        len(site.topics),
        _RATE,
        round(min(accepted.values()) - typed_at, 2),
        round(max(accepted.values()) - typed_at, 2),
        round(seconds, 2),
        sum(map(len, lost.values())),
        round(max(0.0, killed_at - first_lost), 2),
        round(max(rpos, default=0) / 1000, 2),
        totals["knownLostRecords"],
        totals["estimatedMoreRecords"],
        None if totals["rpoMs"] is None else totals["rpoMs"] / 1000,
        totals["sourceAnswers"],
        totals["estimatedMoreAtLossRecords"],
        None if totals["rpoAtLossMs"] is None else totals["rpoAtLossMs"] / 1000,
    )


def _place_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def drill_switchover(site: Site) -> SwitchoverDrill:
    """Move all producers under load, with writes denied while they move."""
    site.mirror()
    running = site.run()
    evidence = site.folder / "switchover.json"
    try:
        with Load(site.app("source"), site.places, _RATE) as load:
            time.sleep(_LOADED_S)
            back = ("--mirror-config", site.link("destination"), "--timeout", f"{_TIMEOUT_S:g}s")
            arguments = ("--block-producers", *back, "--yes", "--json", "--report", str(evidence))
            with Waiting(site.app("destination"), site.watched) as waiting:
                seconds, report = site.timed(site.command("destination", "switchover", *arguments))
                accepted = waiting.wait(_NOTICED_S)
    finally:
        running.kill()
    gaps = sorted(at - load.last_acknowledged(partition.topic) for partition, at in accepted.items())
    durations = [row["durationMs"] for row in report["blockedProducers"]]
    ends = {_place_of(row): row["lastMirroredOffset"] for row in report["results"] if row.get("lastMirroredOffset")}
    lost = sum(one.offset >= ends.get(partition, 0) for partition, ones in load.acknowledged.items() for one in ones)
    return SwitchoverDrill(
        len(site.places),
        len(site.topics),
        _RATE,
        round(gaps[len(gaps) // 2], 2),
        round(gaps[-1], 2),
        None if None in durations or not durations else round(max(durations) / 1000, 2),
        round(seconds, 2),
        {step["step"]: step["seconds"] for step in json.loads(evidence.read_text())["promote"]["steps"]},
        lost,
    )


def drill_failback(site: Site) -> FailbackDrill:
    """Promote, write some records to the destination, and make the old source its mirror."""
    site.mirror()
    _produce(site.app("source"), site.places, _RECORDS_BEFORE)
    once = ("--until-caught-up", "--timeout", f"{_TIMEOUT_S:g}s")
    full_seconds = _seconds(lambda: carry_out(site.command("destination", "run", *once)))
    carry_out(site.command("destination", "promote", "--idle", "1s", "--timeout", f"{_TIMEOUT_S:g}s", "--yes"))
    _produce(site.app("destination"), site.places, _RECORDS_SINCE)
    report = site.folder / "failback.json"
    arguments = ("--mirror-config", site.link("destination"), "--yes", "--json", "--report", str(report))
    failback_seconds, _ = site.timed(site.command("source", "failback", *arguments))
    delta_seconds = _seconds(lambda: carry_out(site.command("source", "run", *once)))
    forks = json.loads(report.read_text())["forks"]
    return FailbackDrill(
        len(site.places),
        _RECORDS_BEFORE + len(site.places),
        full_seconds,
        _RECORDS_SINCE,
        sum(fork["offsetsToCopy"] for fork in forks),
        round(failback_seconds, 2),
        delta_seconds,
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 2)


def _create(pair: Pair, topics: Sequence[str], partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({**librdkafka(client_config(pair.source.sandbox.client_properties())), "log_level": 0})
    for first in range(0, len(topics), 100):
        new = [NewTopic(topic, partitions, 1) for topic in topics[first : first + 100]]
        for created in admin.create_topics(new, operation_timeout=120, request_timeout=120).values():
            created.result(_TIMEOUT_S)


def _produce(properties: Mapping[str, str], topic_partitions: Sequence[TopicPartition], count: int) -> None:
    """Write records to all partitions in turn."""
    from confluent_kafka import Producer

    producer = Producer({**librdkafka(client_config(properties)), "log_level": 0, "linger.ms": 20})
    for number in range(count):
        topic_partition = topic_partitions[number % len(topic_partitions)]
        producer.produce(topic_partition.topic, bytes(1000), partition=topic_partition.partition)
        if number % 1000 == 0:
            producer.poll(0.05)
    if producer.flush(_TIMEOUT_S):
        raise CopyFailedError("the records were not acknowledged")


DRILLS: dict[str, Callable[[Site], FailoverDrill | SwitchoverDrill | FailbackDrill]] = {
    "failover": drill_failover,
    "switchover": drill_switchover,
    "failback": drill_failback,
}


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the page's tables of the results, by part."""
    parts = {"machine": _machine, "failover": _failover, "switchover": _switchover, "failback": _failback}
    is_known = {"machine": bool(results), **{name: name in results for name in DRILLS}}
    return {
        name: "".join(f"{line}\n" for line in part(results)) if is_known[name] else "Not measured yet.\n"
        for name, part in parts.items()
    }


def _machine(results: Mapping[str, Any]) -> Iterator[str]:
    for name in DRILLS:
        if machine := results.get(name, {}).get("machine"):
            yield (
                f"- {name}: {machine['measured_at'][:10]}, {machine['cores']} cores of {machine['cpu']} for both"
                f" clusters, the engine and the producers, {machine['memory_gigabytes']} GB; Kafka {machine['kafka']};"
                f" load average before: {machine['load_average']}"
            )


def _failover(results: Mapping[str, Any]) -> Iterator[str]:
    yield "| partitions | first write after | all after | records lost | reported lost | RPO | reported RPO |"
    yield "|---|---|---|---|---|---|---|"
    for row in results.get("failover", {}).get("drills", ()):
        told = "unknown" if row["told_lost_records"] is None else f"{row['told_lost_records']:,}"
        at_loss = f"{row['told_more_at_loss_records']:,} to " if "told_more_at_loss_records" in row else ""
        more = f" and about {at_loss}{row['told_more_records']:,} more" if row["told_more_records"] else ""
        rpo = "unknown" if row["told_rpo_seconds"] is None else f"{row['told_rpo_seconds']:g} s"
        if row.get("told_rpo_at_loss_seconds") is not None:
            rpo += f", at most {row['told_rpo_at_loss_seconds']:g} s if it died when it was lost"
        yield (
            f"| {row['partitions']:,} | {row['first_write_seconds']:g} s | {row['last_write_seconds']:g} s"
            f" | {row['lost_records']:,} | {told}{more} | {row['lost_rpo_seconds']:g} s | {rpo} |"
        )


def _switchover(results: Mapping[str, Any]) -> Iterator[str]:
    yield "| partitions | no writes, median | longest | reported | aim | records lost |"
    yield "|---|---|---|---|---|---|"
    for row in results.get("switchover", {}).get("drills", ()):
        told = "unknown" if row["told_longest_seconds"] is None else f"at most {row['told_longest_seconds']:g} s"
        aim = f"{AIMS_S[row['partitions']]:g} s" if row["partitions"] in AIMS_S else "–"
        yield (
            f"| {row['partitions']:,} | {row['median_seconds']:g} s | {row['longest_seconds']:g} s | {told} | {aim}"
            f" | {row['lost_records']:,} |"
        )


def _failback(results: Mapping[str, Any]) -> Iterator[str]:
    yield "| | records | seconds |"
    yield "|---|---|---|"
    for row in results.get("failback", {}).get("drills", ()):
        yield f"| the first copy, with the start of its engine | {row['full_records']:,} | {row['full_seconds']:g} |"
        yield f"| the command `failback` | – | {row['failback_seconds']:g} |"
        yield f"| the copy after it, with the start of its engine | {row['copied_again_records']:,}" + (
            f" | {row['delta_seconds']:g} |"
        )


def write_page(results: Mapping[str, Any]) -> None:
    """Replace the tables of docs/drills.md."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables(results).items():
        before, _, after = text.partition(BEGIN.format(name))
        text = before + BEGIN.format(name) + table + END + after.partition(END)[2]
    PAGE.write_text(text, encoding="utf-8")


def stored() -> dict[str, Any]:
    """Return the stored results, by part."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run drills and store the results; return 1 if a loss was under-reported or an aim was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.drills", description="Timed drills.")
    parser.add_argument("--only", choices=DRILLS, action="append", help="only this part; may be repeated")
    parser.add_argument(
        "--partitions", type=int, action="append", help="instead of the part's own sizes; may be repeated"
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="results file; keeps the parts that do not run (%(default)s)"
    )
    parser.add_argument("--page", action="store_true", help="only write docs/drills.md from the stored results")
    options = parser.parse_args(arguments)
    results = stored()
    if options.page:
        write_page(results)
        return 0
    missed = False
    for name in options.only or DRILLS:
        rows: list[dict[str, Any]] = []
        machine = None
        for partitions in options.partitions or SIZES[name]:
            with (
                tempfile.TemporaryDirectory(prefix="kmirror-drill-") as folder,
                Pair(Path(folder), users=_USERS) as pair,
            ):
                machine = machine or describe_machine(pair.source.sandbox.kafka_version)
                drill = DRILLS[name](Site(pair, Path(folder), partitions))
            print(json.dumps({name: asdict(drill)}), flush=True)
            rows.append(asdict(drill))
            missed |= isinstance(drill, FailoverDrill) and not drill.is_honest
            if isinstance(drill, SwitchoverDrill):
                missed |= bool(drill.lost_records) or drill.longest_seconds > AIMS_S.get(
                    partitions, drill.longest_seconds
                )
        results[name] = {"machine": asdict(machine) if machine else None, "drills": rows}
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.output == RESULTS:
        write_page(results)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
