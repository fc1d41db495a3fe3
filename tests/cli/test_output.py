"""How the results of verbs look: to people, to scripts that cut columns out of a pipe, to scripts that read JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror.cli.commands.copying import verified
from kmirror.cli.terminal import progress_lines as progress
from kmirror.cli.terminal.output import JsonOutput, Output, TableOutput, output_for
from kmirror.cli.terminal.screen import Screen
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.bulk.runner import Where
from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.base.results import ErrorInfo, VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.check.findings import CheckLine, CheckReport
from kmirror.ops.stop.report import stopped_row, totals_of
from kmirror.ops.verify.verify_results import VerifyOutcome, VerifyRow
from kmirror.state.records import AtStop, PartitionRecord, PartitionState
from kmirror_sandbox.cli.sandbox import show_status
from kmirror_sandbox.registry import BrokerState, BrokerStatus, SandboxStatus
from tests.support.screens import piped, terminal, written

pytestmark = pytest.mark.usefixtures("plain_environment")

DONE = TopicResult("orders", None, Outcome.DONE, "created with 8 partitions")
NOOP = TopicResult("payments", None, Outcome.NOOP, "is already a mirror topic")
REFUSED = TopicResult(
    "users", None, Outcome.REFUSED, "exists already", Reason.DESTINATION_WRITTEN, hint="--adopt takes it over"
)


def test_a_verb_that_went_well() -> None:
    screen = piped()
    TableOutput(screen).result(VerbResult.of("add", "m", [DONE, NOOP]))
    assert written(screen) == (
        "TOPIC     RESULT  MESSAGE\n"
        "orders    DONE    created with 8 partitions\n"
        "payments  NOOP    is already a mirror topic\n",
        "",
    )


def test_a_verb_about_the_mirror_itself() -> None:
    screen = piped()
    TableOutput(screen).result(
        VerbResult.of("create", "m", [TopicResult(None, None, Outcome.DONE, "created mirror m")])
    )
    assert written(screen) == ("created mirror m\n", "")


def test_a_verb_that_went_wrong_in_part() -> None:
    screen = piped()
    result = VerbResult.of("add", "m", [DONE, REFUSED], dry_run=True, warnings=["disks are small"])
    TableOutput(screen).result(result)
    assert written(screen) == (
        "TOPIC   RESULT   MESSAGE\n"
        "orders  OK       created with 8 partitions\n"
        "users   REFUSED  DESTINATION_WRITTEN: exists already\n",
        "dry run: nothing was changed\n"
        "kmirror: warning: disks are small\n"
        "kmirror: exists already\n"
        "  --adopt takes it over\n",
    )


def test_a_verb_about_partitions_with_a_headline() -> None:
    screen = piped()
    rows = [
        TopicResult("orders", 0, Outcome.DONE, lag=0),
        TopicResult("orders", 1, Outcome.FAILED, "offset 7 is missing", Reason.SOURCE_TRUNCATED),
    ]
    TableOutput(screen).result(VerbResult.of("run", "m", rows), "stopped after 3s")
    assert written(screen) == (
        "TOPIC   PARTITION  RESULT  MESSAGE\n"
        "orders          1  FAILED  SOURCE_TRUNCATED: offset 7 is missing\n"
        "stopped after 3s\n",
        "kmirror: offset 7 is missing\n",
    )


def test_a_verb_for_scripts() -> None:
    screen = piped()
    result = VerbResult.of("add", "m", [DONE, REFUSED], warnings=["disks are small"])
    JsonOutput(screen).result(result, "never shown")
    out, err = written(screen)
    assert json.loads(out) == result.to_json()
    assert err == "kmirror: warning: disks are small\nkmirror: exists already\n  --adopt takes it over\n"


EQUAL_ROW = VerifyRow(
    topic="orders", partition=0, result=Outcome.DONE, message="equal up to offset 7", records=7, size_in_bytes=1200
)
DIFFERENT_ROW = VerifyRow(
    topic="orders",
    partition=1,
    result=Outcome.FAILED,
    message="differs at offset 3",
    different=True,
    notes=("look",),
)
OUTCOME = VerifyOutcome(
    mirror="m",
    exit_code=ExitCode.OK,
    rows=(EQUAL_ROW,),
    error=None,
    warnings=("one was compacted",),
    where=Where.THREADS,
    tasks=1,
    how="in 1 thread",
)
DIFFERENT = VerifyOutcome(
    mirror="m",
    exit_code=ExitCode.HISTORIES_DIFFER,
    rows=(EQUAL_ROW, DIFFERENT_ROW),
    error=ErrorInfo(ExitCode.HISTORIES_DIFFER, "1 of 2 partitions differ", "look there"),
    warnings=(),
)


def test_verify() -> None:
    screen = piped()
    TableOutput(screen).verified(OUTCOME, verified(OUTCOME, 1.5))
    assert written(screen) == (
        "TOPIC   PARTITION  RESULT  RECORDS  MESSAGE\n"
        "orders          0  equal         7  equal up to offset 7\n"
        "equal: 1 partition, 7 records, 1.2 KB compared in 1.5s, in 1 thread\n",
        "kmirror: warning: one was compacted\n",
    )


def test_verify_that_finds_a_difference() -> None:
    screen = piped()
    TableOutput(screen).verified(DIFFERENT, verified(DIFFERENT, 61))
    assert written(screen) == (
        "TOPIC   PARTITION  RESULT     RECORDS  MESSAGE\n"
        "orders          0  equal            7  equal up to offset 7\n"
        "orders          1  DIFFERENT        0  differs at offset 3; look\n"
        "DIFFERENT: 2 partitions, 7 records, 1.2 KB compared in 1m1s\n",
        "kmirror: 1 of 2 partitions differ\n  look there\n",
    )


def test_verify_for_scripts() -> None:
    screen = piped()
    JsonOutput(screen).verified(DIFFERENT, "never shown")
    out, err = written(screen)
    assert json.loads(out) == DIFFERENT.to_json()
    assert err == "kmirror: 1 of 2 partitions differ\n  look there\n"


BROKERS = SandboxStatus(
    Path("/sandbox"),
    (
        BrokerStatus(
            cluster="a",
            cluster_id="id-a",
            node_id=1,
            address="127.0.0.1:19092",
            pid=42,
            state=BrokerState.RUNNING,
            kafka_version="4.3.1",
            log_file="/sandbox/a/1.log",
        ),
        BrokerStatus(
            cluster="b",
            cluster_id="id-b",
            node_id=1,
            address="127.0.0.1:19102",
            pid=None,
            state=BrokerState.DOWN,
            kafka_version="4.3.1",
            log_file="/sandbox/b/1.log",
        ),
    ),
)


def test_sandbox_status() -> None:
    screen = piped()
    show_status(TableOutput(screen), BROKERS)
    assert written(screen) == (
        "CLUSTER  BROKER  ADDRESS          STATE    PID  KAFKA  LOG\n"
        "a             1  127.0.0.1:19092  RUNNING   42  4.3.1  /sandbox/a/1.log\n"
        "b             1  127.0.0.1:19102  DOWN       -  4.3.1  /sandbox/b/1.log\n",
        "",
    )


def test_no_sandbox() -> None:
    screen = piped()
    show_status(TableOutput(screen), SandboxStatus(Path("/sandbox"), ()))
    assert written(screen) == ("", "no sandbox in /sandbox; `kmirror sandbox up` creates one\n")


def test_what_the_sandbox_would_do() -> None:
    would = VerbResult.of("sandbox up", "", [TopicResult(None, None, Outcome.DONE, "would start a")], dry_run=True)
    table, document = piped(), piped()
    show_status(TableOutput(table), BROKERS, would)
    show_status(JsonOutput(document), BROKERS, would)
    assert written(table) == ("would start a\n", "dry run: nothing was changed\n")
    assert json.loads(written(document)[0]) == {**would.to_json(), **BROKERS.to_json()}


LINES = (
    CheckLine(cluster="source", what="reachable", ok=True, message="cluster-a answers"),
    CheckLine(
        cluster="source", what="least rights", ok=True, message="what is needed:\nkafka-acls three\nkafka-acls four"
    ),
    CheckLine(cluster="destination", what="broker 1", ok=False, message="it is Kafka 2.8", hint="3.9 is needed"),
    CheckLine(
        cluster="destination",
        what="filling offsets",
        ok=True,
        message="slowly",
        hint="kafka-acls one\nkafka-acls two",
    ),
)
REPORT = CheckReport(lines=LINES, exit_code=ExitCode.REFUSED)


def test_check_as_it_goes() -> None:
    screen = piped()
    output = TableOutput(screen)
    for line in LINES:
        output.check_line(line)
    output.check(REPORT)
    assert written(screen)[0] == (
        "ok    source       reachable          cluster-a answers\n"
        "ok    source       least rights       what is needed:\n"
        "      kafka-acls three\n"
        "      kafka-acls four\n"
        "FAIL  destination  broker 1           it is Kafka 2.8\n"
        "      3.9 is needed\n"
        "warn  destination  filling offsets    slowly\n"
        "      kafka-acls one\n"
        "      kafka-acls two\n"
        "1 of 4 checks failed\n"
    )


def test_check_for_scripts_is_one_document() -> None:
    screen = piped()
    output = JsonOutput(screen)
    for line in LINES:
        output.check_line(line)
    output.check(REPORT)
    assert json.loads(written(screen)[0]) == REPORT.to_json()


@pytest.mark.parametrize("kind", ["table", "json"])
def test_a_failure_is_reported_on_standard_error_by_every_output(kind: str) -> None:
    screen = piped()
    output: Output = output_for(kind, screen)
    output.failure(ErrorInfo.of(RefusedError("no\nway", "try\nthis")), {"error": 1})
    out, err = written(screen)
    assert err == "kmirror: no way\n  try\n  this\n"
    assert out == ('{\n  "error": 1\n}\n' if kind == "json" else "")


@pytest.mark.parametrize(
    ("answer", "yes"), [("y\n", True), ("Yes\n", True), ("\n", False), ("no\n", False), ("", False), ("yess\n", False)]
)
def test_only_a_yes_is_a_yes(answer: str, yes: bool) -> None:
    screen = terminal(answer)
    assert screen.can_ask
    assert screen.ask("Forget mirror m?") is yes
    assert written(screen)[1].startswith("Forget mirror m? [y/N] ")


def test_a_stop_shows_totals_and_the_rows_that_need_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    def row(partition: int, source_offset: int) -> TopicResult:
        known = AtStop(2000, 5, 1000, source_offset, source_max_timestamp_ms=1500, source_as_of_ms=2000)
        record = PartitionRecord(
            "m", "orders", partition, PartitionState.STOPPED, 2000, last_mirrored_offset=5, at_stop=known
        )
        return stopped_row(TopicPartition("orders", partition), record, Outcome.DONE, Reason.FAILED_OVER)

    rows = [row(0, 5), row(1, 8)]
    result = VerbResult.of("failover", "m", rows, totals=totals_of(rows, None))
    TableOutput(Screen.of_this_process()).result(result)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:2] == [
        "2 partitions: 3 offsets known lost as of 1970-01-01T00:00:02Z",
        "RPO: 0.5 s between the last mirrored record and the source's last one",
    ]
    assert "orders-1 is stopped at 5; 3 offsets known lost" in shown.out
    assert "orders-0" not in shown.out
    assert "1 row without errors or loss not shown; -v shows all" in shown.err
    TableOutput(Screen.of_this_process(), 1).result(result)
    assert "orders-0" in capsys.readouterr().out
    output_for("json", Screen.of_this_process()).result(result)
    document = json.loads(capsys.readouterr().out)
    assert document["totals"] == {
        "partitions": 2,
        "completePartitions": 0,
        "failedPartitions": 0,
        "knownLostRecords": 3,
        "partitionsUnknown": 0,
        "estimatedMoreRecords": 0,
        "estimatedMoreAtLossRecords": 0,
        "foreignRecords": 0,
        "rpoMs": 500,
        "rpoAtLeastMs": 500,
        "rpoAtLossMs": None,
        "sourceLostAt": None,
        "lastMirroredTimestampMs": 1000,
        "asOf": 2000,
        "sourceAnswers": True,
    }
    assert [one["lag"] for one in document["results"]] == [0, 3]


def test_what_is_waited_for_is_a_line_on_standard_error_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    for make in (TableOutput, JsonOutput):
        screen = piped()
        with make(screen).waiting("waiting for m to be drained") as show:
            for found in ("2 left", "2 left", "1 left"):
                show(found)
        assert written(screen) == ("", "waiting for m to be drained: 2 left\nwaiting for m to be drained: 1 left\n")
