"""How results look: to people, to scripts that cut columns out of a pipe, to scripts that read JSON."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.cli.copying import verified
from kmirror.cli.output import JsonOutput, Output, TableOutput, output_for
from kmirror.cli.screen import Screen
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.columns import Table
from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.check.findings import CheckLine, CheckReport
from kmirror.ops.mirrors.config import MIRROR_SETTINGS, SettingRow
from kmirror.ops.results import ErrorInfo, Outcome, TopicResult, VerbResult
from kmirror.ops.show.describe_groups import GROUPS, GroupRow
from kmirror.ops.show.describe_settings import TOPIC_SETTINGS, TopicSettingRow
from kmirror.ops.show.tables import (
    FAILED_PARTITIONS,
    MIRRORS,
    PARTITIONS,
    STOPPED_PARTITIONS,
    MirrorRow,
    PartitionRow,
    TopicState,
)
from kmirror.ops.stop.report import stopped_row, totals_of
from kmirror.ops.verify.results import VerifyOutcome, VerifyRow
from kmirror.sandbox.registry import BrokerState, BrokerStatus, SandboxStatus
from kmirror.state.group_records import GroupReason
from kmirror.state.records import AtStop, PartitionRecord, PartitionState
from kmirror.sync.topic_settings import SettingState


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def piped() -> Screen:
    return Screen(io.StringIO(), io.StringIO(), io.StringIO())


def terminal(answers: str = "") -> Screen:
    return Screen(Terminal(), Terminal(), Terminal(answers))


def written(screen: Screen) -> tuple[str, str]:
    """Return what went to standard output and to standard error."""
    assert isinstance(screen.out, io.StringIO)
    assert isinstance(screen.err, io.StringIO)
    return screen.out.getvalue(), screen.err.getvalue()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


ROW = PartitionRow(
    mirror="m",
    topic="orders",
    partition=0,
    source_offset=1_234_567,
    destination_offset=1_234_560,
    lag=7,
    state=PartitionState.MIRRORING,
    retry_attempt=0,
    error_message=None,
    source_topic="orders",
    topic_state=TopicState.ACTIVE,
    reason=None,
    state_time_ms=1_772_366_400_000,
    time_lag_ms=12,
    last_known_lag=7,
    source_log_start=0,
    destination_log_start=0,
    source_high_watermark=1_234_568,
    last_mirrored_offset=None,
    last_mirrored_epoch=None,
    initial_copy_complete=True,
    rebuilt_at_ms=None,
    archive=None,
    as_of_ms=1_772_366_400_000,
)
FAILED = replace(
    ROW,
    topic="a-topic-with-a-long-name",
    partition=10,
    source_offset=None,
    lag=None,
    state=PartitionState.FAILED,
    retry_attempt=3,
    error_message="offset 5 is\nmissing",
    topic_state=TopicState.FAILED,
    reason=Reason.SOURCE_TRUNCATED,
)


def test_describe_in_a_pipe() -> None:
    screen = piped()
    TableOutput(screen).rows(PARTITIONS, [ROW, FAILED])
    assert written(screen) == (
        "MIRROR  TOPIC                     PARTITION  SOURCE-OFFSET  DESTINATION-OFFSET  LAG  STATE\n"
        "m       orders                            0        1234567             1234560    7  MIRRORING\n"
        "m       a-topic-with-a-long-name         10              -             1234560    -  FAILED\n",
        "m: 1 of 2 partitions FAILED; `kmirror describe --mirror m --failed` says why\n",
    )


def test_describe_failed_in_a_pipe() -> None:
    screen = piped()
    TableOutput(screen).rows(FAILED_PARTITIONS, [FAILED])
    assert written(screen) == (
        "MIRROR  TOPIC                     PARTITION  RETRY  REASON            ERROR\n"
        "m       a-topic-with-a-long-name         10      3  SOURCE_TRUNCATED  offset 5 is missing\n",
        "",
    )


def test_describe_never_cuts_a_name_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = piped()
    TableOutput(screen).rows(PARTITIONS, [replace(ROW, topic="t" * 249)])
    assert written(screen)[0].splitlines()[1].split() == ["m", "t" * 249, "0", "1234567", "1234560", "7", "MIRRORING"]


def test_describe_on_a_terminal() -> None:
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [ROW, FAILED])
    shown = written(screen)[0]
    assert "\x1b[32mMIRRORING\x1b[0m" in shown
    assert "\x1b[1;31mFAILED" in shown


def test_only_codes_have_a_style_whatever_a_text_says() -> None:
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [replace(ROW, topic="FAILED")])
    row = TopicResult("DONE", None, Outcome.REFUSED, "FAILED before")
    TableOutput(screen).result(VerbResult.of("add", "m", [row]))
    shown = written(screen)[0]
    assert "FAILED" in shown
    assert "\x1b[1;31m" not in shown
    assert "\x1b[31mREFUSED" in shown
    assert "\x1b[32mDONE" not in shown


def test_a_terminal_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [ROW])
    shown = [line.split() for line in written(screen)[0].splitlines()]
    assert shown[1] == ["m", "orders", "0", "1234567", "1234560", "7", "MIRRORING"]


def test_a_terminal_that_can_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [ROW])
    assert "\x1b" not in written(screen)[0]


def test_describe_says_why_nothing_moves() -> None:
    screen = piped()
    row = replace(
        ROW, reason=Reason.NO_ENGINE, error_message="no engine copies mirror m", topic_state=TopicState.LINK_FAILED
    )
    silent = replace(ROW, mirror="n", source_offset=None, lag=None, topic_state=TopicState.SOURCE_UNAVAILABLE)
    TableOutput(screen).rows(PARTITIONS, [row, silent, replace(silent, partition=1, last_known_lag=None)])
    assert written(screen)[1].splitlines() == [
        "m: 1 partition not copied: no engine copies mirror m",
        "n: the source does not answer for 2 partitions; the last known lag of these partitions is 7",
    ]


def test_describe_never_shows_as_mirroring_what_is_not() -> None:
    screen = piped()
    waiting = replace(ROW, topic_state=TopicState.PENDING_STOPPED)
    idle = replace(ROW, reason=Reason.NO_WORKERS)
    both = replace(waiting, reason=Reason.ENGINE_SILENT)
    stopping = replace(waiting, state=PartitionState.STOPPING)
    TableOutput(screen).rows(PARTITIONS, [ROW, waiting, idle, both, stopping])
    heading, *lines = written(screen)[0].splitlines()
    assert [line[heading.index("STATE") :] for line in lines] == [
        "MIRRORING",
        "PENDING_STOPPED",
        "NO_WORKERS (MIRRORING)",
        "ENGINE_SILENT (PENDING_STOPPED)",
        "STOPPING",
    ]


def test_describe_stopped_in_a_pipe() -> None:
    screen = piped()
    stopped = replace(ROW, state=PartitionState.STOPPED, reason=Reason.PROMOTED, last_mirrored_offset=1_234_560)
    TableOutput(screen).rows(STOPPED_PARTITIONS, [stopped])
    assert written(screen) == (
        "MIRROR  TOPIC   PARTITION  LAST-MIRRORED-OFFSET  LAST-MIRRORED-EPOCH  STOPPED               REASON\n"
        "m       orders          0               1234560                    -  2026-03-01T12:00:00Z  PROMOTED\n",
        "",
    )


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (PARTITIONS, "no topic is mirrored yet; `kmirror add` makes one a mirror topic\n"),
        (FAILED_PARTITIONS, "no partition is FAILED\n"),
        (STOPPED_PARTITIONS, "no partition is STOPPED\n"),
    ],
)
def test_describe_of_nothing(table: Table[PartitionRow], told: str) -> None:
    screen = piped()
    TableOutput(screen).rows(table, [])
    out, err = written(screen)
    assert (len(out.splitlines()), err) == (1, told)


def test_describe_for_scripts() -> None:
    screen = piped()
    JsonOutput(screen).rows(PARTITIONS, [ROW, FAILED])
    out, err = written(screen)
    first, second = json.loads(out)
    assert (first["sourceOffset"], first["lag"], first["state"], first["reason"]) == (1234567, 7, "MIRRORING", None)
    assert (second["sourceOffset"], second["retryAttempt"], second["reason"]) == (None, 3, "SOURCE_TRUNCATED")
    assert err == ""


MIRROR = MirrorRow(
    mirror="m",
    topics=2,
    partitions=9,
    source_cluster_id="cluster-a",
    source_bootstrap_server="a:9092",
    state=TopicState.LINK_FAILED,
    engine="host/app-1",
    max_lag=7,
    reason=Reason.ENGINE_SILENT,
    engine_last_seen_ms=1,
    engine_age_ms=65_400,
)
UNKNOWN_MIRROR = MirrorRow(
    mirror="other",
    topics=0,
    partitions=0,
    source_cluster_id=None,
    source_bootstrap_server=None,
    state=None,
    engine=None,
    max_lag=None,
)


def test_list() -> None:
    screen = piped()
    TableOutput(screen).rows(MIRRORS, [MIRROR, UNKNOWN_MIRROR])
    assert written(screen) == (
        "MIRROR  TOPICS  PARTITIONS  STATE        MAX-LAG  SOURCE-CLUSTER-ID  SOURCE  ENGINE      HEARTBEAT-AGE  "
        "REASON\n"
        "m            2           9  LINK_FAILED        7  cluster-a          a:9092  host/app-1           1m5s  "
        "ENGINE_SILENT\n"
        "other        0           0  -                  -  -                  -       -                       -  -\n",
        "",
    )


def test_an_empty_list() -> None:
    table, document = piped(), piped()
    TableOutput(table).rows(MIRRORS, [])
    JsonOutput(document).rows(MIRRORS, [])
    assert written(table)[1] == "no mirrors on this destination; `kmirror create` makes one\n"
    assert written(document) == ("[]\n", "")


def test_topic_settings() -> None:
    row = TopicSettingRow(
        mirror="m",
        topic="b.t",
        source_topic="t",
        key="cleanup.policy",
        source_value="compact, delete",
        destination_value="",
        state=SettingState.PENDING,
        why="it is to be",
    )
    untold = TopicSettingRow(mirror="m", topic="b.u", source_topic="u", why="nobody tells")
    screen = piped()
    TableOutput(screen).rows(TOPIC_SETTINGS, [row, untold])
    assert written(screen)[0].splitlines() == [
        "MIRROR  TOPIC  KEY             SOURCE          DESTINATION  STATE    WHY",
        'm       b.t    cleanup.policy  compact,delete  ""           PENDING  it is to be',
        "m       b.u    -               -               -            -        nobody tells",
    ]
    screen = piped()
    JsonOutput(screen).rows(TOPIC_SETTINGS, [row])
    assert json.loads(written(screen)[0]) == [
        {
            "mirror": "m",
            "topic": "b.t",
            "sourceTopic": "t",
            "key": "cleanup.policy",
            "sourceValue": "compact, delete",
            "destinationValue": "",
            "state": "PENDING",
            "why": "it is to be",
        }
    ]


def test_settings() -> None:
    screen = piped()
    rows = [
        SettingRow(key="topics.include", value="orders, pay.*", is_default=False, changeable=True, help="h"),
        SettingRow(key="topic.prefix", value="", is_default=True, changeable=False, help="h"),
    ]
    TableOutput(screen).rows(MIRROR_SETTINGS, rows)
    assert written(screen)[0] == (
        "KEY             FROM     VALUE\ntopics.include  set      orders, pay.*\ntopic.prefix    default  -\n"
    )


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
        "orders  DONE     created with 8 partitions\n"
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
OUTCOME = VerifyOutcome("m", ExitCode.OK, (EQUAL_ROW,), None, ("one was compacted",), {})
DIFFERENT = VerifyOutcome(
    "m",
    ExitCode.HISTORIES_DIFFER,
    (EQUAL_ROW, DIFFERENT_ROW),
    ErrorInfo(ExitCode.HISTORIES_DIFFER, "1 of 2 partitions differ", "look there"),
    (),
    {},
)


def test_verify() -> None:
    screen = piped()
    TableOutput(screen).verified(OUTCOME, verified(OUTCOME, 1.5))
    assert written(screen) == (
        "TOPIC   PARTITION  RESULT  RECORDS  MESSAGE\n"
        "orders          0  equal         7  equal up to offset 7\n"
        "equal: 1 partition, 7 records, 1.2 KB compared in 1.5s\n",
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
            log_file=Path("/sandbox/a/1.log"),
        ),
        BrokerStatus(
            cluster="b",
            cluster_id="id-b",
            node_id=1,
            address="127.0.0.1:19102",
            pid=None,
            state=BrokerState.DOWN,
            kafka_version="4.3.1",
            log_file=Path("/sandbox/b/1.log"),
        ),
    ),
)


def test_sandbox_status() -> None:
    screen = piped()
    TableOutput(screen).sandbox(BROKERS, {})
    assert written(screen) == (
        "CLUSTER  BROKER  ADDRESS          STATE    PID  KAFKA  LOG\n"
        "a             1  127.0.0.1:19092  RUNNING   42  4.3.1  /sandbox/a/1.log\n"
        "b             1  127.0.0.1:19102  DOWN       -  4.3.1  /sandbox/b/1.log\n",
        "",
    )


def test_no_sandbox() -> None:
    screen = piped()
    TableOutput(screen).sandbox(SandboxStatus(Path("/sandbox"), ()), {})
    assert written(screen) == ("", "there is no sandbox in /sandbox; `kmirror sandbox up` makes one\n")


def test_what_the_sandbox_would_do() -> None:
    would = VerbResult.of("sandbox up", "", [TopicResult(None, None, Outcome.DONE, "would start a")], dry_run=True)
    table, document = piped(), piped()
    TableOutput(table).sandbox(BROKERS, {"brokers": []}, would)
    JsonOutput(document).sandbox(BROKERS, {"brokers": []}, would)
    assert written(table) == ("would start a\n", "dry run: nothing was changed\n")
    assert json.loads(written(document)[0]) == {**would.to_json(), "mirror": None, "brokers": []}


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
REPORT = CheckReport(LINES, ExitCode.REFUSED)


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
def test_a_failure_is_told_on_standard_error_by_every_output(kind: str) -> None:
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


def test_a_reader_that_has_gone_ends_the_writing_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    err = io.StringIO()
    screen = Screen(open(writing, "w", encoding="utf-8", closefd=False), err, io.StringIO())  # noqa: SIM115
    TableOutput(screen).rows(MIRRORS, [MIRROR])
    screen.tell("still here")
    assert err.getvalue() == "still here\n"
    os.close(writing)


GROUP = GroupRow(
    mirror="m",
    group="eu.app",
    source_group="app",
    kind=GroupKind.CONSUMER,
    topic="eu.orders",
    partition=0,
    source_offset=50,
    destination_offset=40,
    last_synced_offset=40,
    last_sync_ms=1_772_366_400_000,
    last_sync_age_ms=65_000,
    reason=GroupReason.HAS_MEMBERS,
)


def test_groups_for_people() -> None:
    screen = piped()
    unknown = replace(GROUP, partition=1, source_offset=None, last_sync_ms=None, last_sync_age_ms=None, reason=None)
    TableOutput(screen).rows(GROUPS, [GROUP, unknown])
    out, err = written(screen)
    assert [line.split() for line in out.splitlines()] == [
        ["MIRROR", "GROUP", "TOPIC", "PARTITION", "SOURCE-OFFSET", "DESTINATION-OFFSET", "LAST-SYNC", "REASON"],
        ["m", "eu.app", "eu.orders", "0", "50", "40", "1m5s", "HAS_MEMBERS"],
        ["m", "eu.app", "eu.orders", "1", "-", "40", "-", "-"],
    ]
    assert err == "m: HAS_MEMBERS: the group has members on the destination\n"


def test_groups_for_scripts() -> None:
    screen = piped()
    JsonOutput(screen).rows(GROUPS, [GROUP])
    assert json.loads(written(screen)[0]) == [
        {
            "mirror": "m",
            "group": "eu.app",
            "sourceGroup": "app",
            "type": "consumer",
            "topic": "eu.orders",
            "partition": 0,
            "sourceOffset": 50,
            "destinationOffset": 40,
            "lastSyncedOffset": 40,
            "lastSyncMs": 1_772_366_400_000,
            "lastSyncAgeMs": 65_000,
            "reason": "HAS_MEMBERS",
            "message": "the group has members on the destination",
        }
    ]


def test_no_groups() -> None:
    screen = piped()
    TableOutput(screen).rows(GROUPS, [])
    assert "no group has committed offsets" in written(screen)[1]


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
        "2 partitions: 3 records known lost as of 1970-01-01T00:00:02Z",
        "RPO: 0.5 s between the last mirrored record and the source's last one",
    ]
    assert "orders-1 is stopped at 5; 3 records known lost" in shown.out
    assert "orders-0" not in shown.out
    assert "1 row without trouble or loss not shown; -v shows all" in shown.err
    TableOutput(Screen.of_this_process(), 1).result(result)
    assert "orders-0" in capsys.readouterr().out
    output_for("json", Screen.of_this_process()).result(result)
    document = json.loads(capsys.readouterr().out)
    assert document["totals"] == {
        "partitions": 2,
        "failedPartitions": 0,
        "knownLostRecords": 3,
        "partitionsUnknown": 0,
        "estimatedMoreRecords": 0,
        "foreignRecords": 0,
        "rpoMs": 500,
        "rpoAtLeastMs": 500,
        "lastMirroredTimestampMs": 1000,
        "asOf": 2000,
        "sourceAnswers": True,
    }
    assert [one["lag"] for one in document["results"]] == [0, 3]
