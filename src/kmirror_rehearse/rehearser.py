"""The phases of a rehearsal, one after another.

A stand-in mirrors the source, and the destination mirrors the stand-in. Then the stand-in's brokers are stopped in
their tracks: to the destination that is what a source behind a cut link looks like. What follows is what a runbook
does: `failover`, clients that write and read, `failback` to the old source, which comes back with records that the new
primary never got. The files of the stand-in tell how many these are.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from kmirror.cluster.client import LATEST, OffsetAnswer
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, TimedOutError
from kmirror.java_properties import write_properties
from kmirror.ops.add.add import add
from kmirror.ops.base.client_gaps import ClientGaps, gap_sentences
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.base.hook_process import run_hook
from kmirror.ops.base.hook_runs import HookCommand
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.mirrors.create import checked_properties, create
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.show.describe import describe
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.clients import ClientComparison
from kmirror.ops.stop.failover import failover
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.settings.patterns import TopicSelector
from kmirror.words import counted
from kmirror_rehearse import rehearsal_findings as find
from kmirror_rehearse.clusters import (
    copy_acls,
    ends_on_disk,
    for_a_record,
    freeze,
    thaw,
)
from kmirror_rehearse.reading import (
    SCHEMAS,
    clock_ahead_ms,
    has_record,
    is_slowed_by_quota,
    log_ends,
    newest_records,
    read_side,
    registered_schemas,
    schema_ids,
    write_to,
)
from kmirror_rehearse.rehearsal_evidence import (
    FailoverStep,
    Loss,
    PhaseName,
    lost_records,
    sum_if_known,
)
from kmirror_rehearse.rehearsal_findings import Finding, Kind, bad, warn
from kmirror_rehearse.rehearsal_run import (
    RehearsalRun,
)
from kmirror_sandbox.cluster import SandboxCluster

MIRROR = "rehearsal"
#: The mirror that makes the stand-in a copy of the source.
_STAND_IN_MIRROR = "kmirror-rehearsal-stand-in"
#: Settings of the file that are about reading the source: the stand-in's mirror has them too.
_OF_READING = ("copy.", "client.rack", "throttle.")
#: What the stand-in has besides records comes from the source as it is; nothing is kept from writing to it.
_STAND_IN = {
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "sync.topic.configs.enabled": "true",
    "sync.topic.acls.enabled": "false",
    "read.only": "detect",
}
_LOOK_S = 0.5
#: How old an open transaction is that is worth a finding.
_HANGING_MS = 20_000
#: How long `describe` gets to notice that the source is gone, and the stand-in's mirror to follow at the end.
_NOTICE_S = 20.0
_BACK_S = 600.0
_SOURCE_GONE = frozenset({Reason.SOURCE_UNREACHABLE})


class Rehearser:
    """The phases, one after another."""

    def __init__(
        self, run: RehearsalRun, stand_in: SandboxCluster, destination: Destination, folder: Path, stack: ExitStack
    ) -> None:
        self._run = run
        self._request = run.request
        self._progress = run.progress
        self._cluster = stand_in
        self._stand_in = stack.enter_context(Destination.open(stand_in.client_properties()))
        self._here = destination
        self._folder = folder
        self._stack = stack
        self._filling = stack.enter_context(OwnEngine(_STAND_IN_MIRROR, self._stand_in.properties))
        self._engine = stack.enter_context(OwnEngine(MIRROR, destination.properties))
        self._is_sandbox = run.request.destination is None
        self._cut_at = 0.0
        #: Where the stand-in's logs ended when it was cut off, and how many records it was behind the source then.
        self._ends: Mapping[TopicPartition, int] = {}
        self._behind: int | None = None

    def play(self) -> None:
        """Carry out all phases. Raises PhaseError: one failed."""
        run = self._run
        with run.phase(PhaseName.COPY, f"copy {counted(len(run.source.topics), 'topic')}"):
            self._copy()
        with run.phase(PhaseName.LIVE, f"follow the source for {self._request.live_ms / 1000:g} s"):
            self._follow()
        with run.phase(PhaseName.CUT, "cut the source off"):
            self._cut()
        with run.phase(PhaseName.FAILOVER, "fail over"):
            self._fail_over()
        with run.phase(PhaseName.WRITE, "write and read a record of each topic"):
            self._write()
        if self._request.check is not None:
            with run.phase(PhaseName.CHECK, "run the check"):
                self._check(self._request.check)
        with run.phase(PhaseName.COMPARE, "compare with the source"):
            self._compare()
        with run.phase(PhaseName.FAILBACK, "fail back"):
            self._fail_back()

    def _copy(self) -> None:
        run, request = self._run, self._request
        properties, settings = checked_properties(request.mirror_config)
        start = "earliest" if request.window_ms is None else f"timestamp:{now_ms() - request.window_ms}"
        if (why := copy_acls(run.source.client, self._stand_in.client)) is not None:
            run.findings.append(warn(Kind.UNKNOWN, "clients", f"the source's ACLs could not be copied: {why}"))
        reading = {key: value for key, value in settings.items() if key.startswith(_OF_READING)}
        create(self._stand_in, _STAND_IN_MIRROR, {**properties, **reading, **_STAND_IN, "start.from": start})
        self._add(self._stand_in, _STAND_IN_MIRROR, list(run.source.topics), "from the source")
        self._filling.start()
        topics = [one.source_topic for one in self._stand_in.state().topics(_STAND_IN_MIRROR)]
        if not topics:
            raise KmirrorError("no topic of the source can be mirrored", "see the findings")
        kept = {key: value for key, value in settings.items() if key not in _REPLACED and not key.startswith("emit.")}
        login = for_a_record(self._stand_in.properties, self._folder / "stand-in-secrets.properties")
        create(self._here, MIRROR, {**kept, **login, "start.from": "earliest"})
        self._add(self._here, MIRROR, topics, "to the destination")
        self._engine.start()
        run.names = {one.source_topic: one.topic for one in self._here.state().topics(MIRROR)}
        if not run.names:
            raise KmirrorError("no topic can be created at the destination", "see the findings")
        until = time.monotonic() + request.copy_ms / 1000
        self._await_copied(self._stand_in, _STAND_IN_MIRROR, self._filling, until)
        self._await_copied(self._here, MIRROR, self._engine, until)

    def _add(self, destination: Destination, mirror: str, topics: Sequence[str], where: str) -> None:
        done = add(destination, mirror, TopicSelector.parse(topics, "--topics"))
        for row in done.results:
            if row.result not in (Outcome.DONE, Outcome.NOOP) and row.topic is not None:
                kind = Kind.RIGHT_MISSING if row.reason is Reason.NOT_AUTHORIZED else Kind.NOT_COPIED
                self._run.findings.append(bad(kind, row.topic, f"{where}: {row.message or row.result}", row.hint))

    def _await_copied(self, destination: Destination, mirror: str, engine: OwnEngine, until: float) -> None:
        while True:
            left = max(0.1, min(2.0, until - time.monotonic()))
            done = wait(destination, mirror, Condition.CAUGHT_UP, round(1000 * left), on_check=self._progress)
            if not engine.is_running:
                raise KmirrorError(f"the engine ended: {engine.error_text()}")
            if engine is self._filling:
                self._note_quota()
            if _is_settled(done):
                return
            if time.monotonic() >= until:
                raise TimedOutError(
                    f"the first copy is not complete: {done.error.message if done.error else ''}",
                    "choose fewer topics, a shorter --window, or a longer --timeout",
                )

    def _note_quota(self) -> None:
        """Note once that the source delays what we fetch."""
        topic, known = next(iter(self._run.names)), self._run.findings
        if any(one.kind is Kind.SLOWED_BY_QUOTA for one in known):
            return
        with suppress(KmirrorError, OutcomeUnknown):
            if is_slowed_by_quota(self._run.source.client, TopicPartition(topic, 0)):
                text = "it delays what the mirror fetches: consumer_byte_rate or request_percentage is used up"
                known.append(bad(Kind.SLOWED_BY_QUOTA, "the source's quota", text, "raise it, or copy for longer"))

    def _follow(self) -> None:
        until = time.monotonic() + self._request.live_ms / 1000
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
        for where, destination, mirror in (
            ("from the source", self._stand_in, _STAND_IN_MIRROR),
            ("to the destination", self._here, MIRROR),
        ):
            rows = describe(destination, mirror, transactions_after_ms=_HANGING_MS)
            self._run.findings += find.not_copied(rows, where)
        self._run.side = read_side(self._run.source.client, {name: name for name in self._run.names})

    def _cut(self) -> None:
        run = self._run
        places = self._places
        ends: Mapping[TopicPartition, OffsetAnswer] = {}
        with suppress(KmirrorError):
            ends = run.source.client.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
        freeze(self._cluster)
        self._cut_at = time.monotonic()
        self._ends = ends_on_disk(self._cluster, places)
        known = {at: one.offset for at, one in ends.items() if one.offset is not None}
        if known.keys() == self._ends.keys() == set(places):
            self._behind = sum(max(0, known[at] - self._ends[at]) for at in places)
        until = self._cut_at + _NOTICE_S
        while time.monotonic() < until:
            rows = describe(self._here, MIRROR)
            if any(row.reason in _SOURCE_GONE or row.topic_state == "SOURCE_UNAVAILABLE" for row in rows):
                self._recovered(noticed=self._since_cut())
                return
        self._run.findings.append(
            warn(Kind.TOO_SLOW, "describe", f"it did not say within {_NOTICE_S:g} s that the source is gone")
        )

    @property
    def _places(self) -> list[TopicPartition]:
        """The partitions that are mirrored, by their names at the source."""
        topics = self._run.source.topics
        return [TopicPartition(topic, one) for topic in self._run.names for one in range(topics[topic])]

    def _since_cut(self) -> float:
        return round(time.monotonic() - self._cut_at, 3)

    def _recovered(self, **times: float | tuple[FailoverStep, ...] | None) -> None:
        self._run.recovery = replace(self._run.recovery, **times)  # type: ignore[arg-type]

    def _fail_over(self) -> None:
        run = self._run
        done = failover(self._here, MIRROR)
        steps = tuple(FailoverStep(step=one["step"], seconds=one["seconds"]) for one in done.evidence.get("steps", ()))
        self._recovered(failed_over=self._since_cut(), steps=steps)
        result = done.result
        for row in result.results:
            if row.result not in (Outcome.DONE, Outcome.NOOP):
                subject = row.topic or MIRROR
                run.findings.append(bad(Kind.FAILOVER_INCOMPLETE, subject, row.message or row.result, row.hint))
        if result.exit_code and not any(one.kind is Kind.FAILOVER_INCOMPLETE for one in run.findings):
            message, hint = f"exit code {result.exit_code}", None
            if result.error is not None:
                message, hint = result.error.message, result.error.hint
            run.findings.append(bad(Kind.FAILOVER_INCOMPLETE, MIRROR, message, hint))
        source_of = {name: source for source, name in run.names.items()}
        for row in result.results:
            if row.topic in source_of and row.partition is not None:
                at = TopicPartition(source_of[row.topic], row.partition)
                run.reported[at] = row.lag
                if row.last_mirrored_offset is not None:
                    run.offsets[at] = row.last_mirrored_offset
        totals = result.totals
        least = totals.known_lost_records if totals is not None and not totals.partitions_unknown else None
        most = None if totals is None or least is None else least + totals.estimated_more_at_loss_records
        run.lost = lost_records(self._places, self._ends, run.offsets)
        counted_loss = sum_if_known(run.lost, self._places)
        run.loss = Loss(reported_least=least, reported_most=most, counted=counted_loss, behind=self._behind)
        run.findings += find.loss_misreported(least, most, counted_loss)

    def _write(self) -> None:
        run, client = self._run, self._here.client
        value = json.dumps({"kmirror": "rehearsal", "of": secrets.token_hex(8)}).encode()
        places = {source: TopicPartition(name, 0) for source, name in run.names.items()}
        codes = write_to(client, places.values(), b"kmirror-rehearsal", value)
        refused = {source: codes[at] for source, at in places.items() if codes[at]}
        run.written = {source: not codes[at] for source, at in places.items()}
        for source, code in refused.items():
            run.findings.append(bad(Kind.WRITE_REFUSED, source, f"no record can be written: {code_name(code)}"))
        if not refused:
            self._recovered(written=self._since_cut())
        for source, at in places.items():
            if run.written[source]:
                start = run.offsets.get(TopicPartition(source, 0), 0)
                try:
                    run.read[source] = has_record(client, at, start, value)
                    why = "it is not there"
                except (KmirrorError, OutcomeUnknown) as error:
                    run.read[source], why = False, str(error)
                if not run.read[source]:
                    run.findings.append(
                        bad(Kind.NOT_READ_BACK, source, f"the record that was written cannot be read: {why}")
                    )
        limit = self._request.most_ms
        rto = run.recovery.written
        if limit is not None and (rto is None or 1000 * rto > limit):
            took = "clients cannot write to all topics" if rto is None else f"clients can write after {rto:.1f} s"
            run.findings.append(bad(Kind.TOO_SLOW, "RTO", f"{took}; at most {limit / 1000:g} s are allowed"))

    def _check(self, command: HookCommand) -> None:
        run = self._run
        config = write_properties(self._folder / "check.properties", self._here.properties)
        environ = {
            **os.environ,
            "KMIRROR_BOOTSTRAP_SERVER": self._here.bootstrap_server,
            "KMIRROR_COMMAND_CONFIG": str(config),
            "KMIRROR_REHEARSAL_TOPICS": ",".join(run.names.values()),
        }
        given = {"bootstrapServer": self._here.bootstrap_server, "mirror": MIRROR, "topics": sorted(run.names.values())}
        done = run_hook(command, json.dumps(given).encode(), environ=environ)
        run.checks.append(done)
        if done.is_done:
            self._recovered(checked=self._since_cut())
            return
        ending = f"exit code {done.exit_code}" if done.exit_code is not None else str(done.outcome)
        last = done.output.strip().rpartition("\n")[2]
        run.findings.append(bad(Kind.CHECK_FAILED, command.text, f"it ended with {ending}{': ' if last else ''}{last}"))

    def _compare(self) -> None:
        """Find what clients would lack, from both sides as they are now."""
        run, here = self._run, self._here.client
        there = read_side(here, run.names)
        run.findings += find.settings_that_differ(run.side, there, is_sandbox=self._is_sandbox)
        synced = {one.group: one.destination_group for one in self._here.state().groups(MIRROR)}
        places = [
            TopicPartition(name, one) for source, name in run.names.items() for one in range(run.source.topics[source])
        ]
        ends = log_ends(here, places)
        source_of = {name: one for one, name in run.names.items()}
        by_text = {f"{source_of[at.topic]}-{at.partition}": end for at, (_, end) in ends.items()}
        run.findings += find.groups_that_lack(run.side, there, run.names, synced, by_text)
        run.findings += find.streams_topics_left_out(run.side, run.names.keys())
        copied = {
            at: (start, min(end, run.offsets.get(TopicPartition(source_of[at.topic], at.partition), end)))
            for at, (start, end) in ends.items()
        }
        newest = {source_of[topic]: some for topic, some in newest_records(here, copied).items()}
        self._compare_schemas(newest)
        ahead = {}
        now = now_ms()
        for topic, some in newest.items():
            if (latest := max((one.timestamp for one in some), default=0)) > now:
                ahead[f"who writes to {topic}"] = latest - now
        try:
            ahead["the destination's broker"] = clock_ahead_ms(here, f"kmirror-rehearsal-clock-{secrets.token_hex(4)}")
        except (KmirrorError, OutcomeUnknown) as error:
            run.findings.append(warn(Kind.UNKNOWN, "clocks", f"the destination's clock could not be read: {error}"))
        run.findings += find.clocks_off(ahead)
        record = self._here.state().mirror(MIRROR)
        if record is not None:
            real = replace(record, source=run.source.properties, source_cluster_id=run.source.cluster_id)
            clients = ClientComparison(self._here, real)
            try:
                gaps = clients.gaps(self._here.state().topics(MIRROR))
                run.findings += clients_that_lack(gaps, is_sandbox=self._is_sandbox)
            finally:
                clients.close()

    def _compare_schemas(self, newest: Mapping[str, Sequence[Record]]) -> None:
        run = self._run
        used = schema_ids({topic: some for topic, some in newest.items() if topic != SCHEMAS})
        if not used or SCHEMAS not in run.side.topics:
            return
        try:
            known = registered_schemas(run.source.client, SCHEMAS)
            copied = registered_schemas(self._here.client, run.names[SCHEMAS]) if SCHEMAS in run.names else set()
        except (KmirrorError, OutcomeUnknown) as error:
            run.findings.append(warn(Kind.UNKNOWN, SCHEMAS, f"schemas could not be compared: {error}"))
            return
        really = {topic: ids & known for topic, ids in used.items()}
        run.findings += find.schemas_left_out(really, copied, is_copied=SCHEMAS in run.names)

    def _fail_back(self) -> None:
        """Bring the stand-in back as the old source, and make it a mirror of the destination."""
        self._engine.stop()
        thaw(self._cluster)
        self._filling.stop()
        stopped = failover(self._stand_in, _STAND_IN_MIRROR).result
        _require_done(stopped)
        self._verify(self._here, MIRROR, "the destination and its source differ")
        _require_done(delete(self._stand_in, _STAND_IN_MIRROR))
        new_primary = for_a_record(self._here.properties, self._folder / "new-primary-secrets.properties")
        request = FailbackRequest(MIRROR, new_primary, strategy=Strategy.RECREATE)
        _require_done(failback(self._stand_in, request).result)
        with OwnEngine(MIRROR, self._stand_in.properties) as engine:
            engine.start()
            self._await_copied(self._stand_in, MIRROR, engine, time.monotonic() + _BACK_S)
            self._verify(self._stand_in, MIRROR, "after the failback the old source and the new primary differ")

    def _verify(self, destination: Destination, mirror: str, what: str) -> None:
        outcome = verify(destination, VerifyRequest(mirror))
        for row in outcome.rows:
            if row.result is not Outcome.DONE:
                at = row.topic if row.partition is None else f"{row.topic}-{row.partition}"
                kind = Kind.CONTENTS_DIFFER if row.different else Kind.UNKNOWN
                self._run.findings.append(bad(kind, at, f"{what}: {row.message}", row.hint))


#: Keys of the file that the rehearsed mirror gets from elsewhere.
_REPLACED = frozenset({"start.from", "topics.include", "topics.exclude", "source.cluster.alias"})


def _is_settled(done: VerbResult) -> bool:
    """Return whether every topic is caught up, or will not be: what is wrong then is found later."""
    return all(row.result is not Outcome.TIMED_OUT for row in done.results)


def _require_done(done: VerbResult) -> None:
    if done.error is not None:
        raise KmirrorError(done.error.message, done.error.hint, done.error.reason)


def clients_that_lack(gaps: ClientGaps, *, is_sandbox: bool) -> Iterator[Finding]:
    """Yield what clients of the source lack at the destination: rights, quotas, SCRAM users.

    No cluster that was just started has quotas and users: of such a one they are warnings.
    """
    rights = set(gap_sentences(replace(gaps, quotas=None, scram_users=None, warned=())))
    for sentence in gap_sentences(replace(gaps, warned=())):
        if sentence in rights:
            yield bad(Kind.CLIENTS_LACK, "clients", sentence, "; ".join(gaps.commands[:3]))
        else:
            yield (warn if is_sandbox else bad)(Kind.CLIENTS_LACK, "clients", sentence)
    for sentence in gaps.unknown:
        yield warn(Kind.UNKNOWN, "clients", sentence)
