"""What makes a line in the log of `run`, how lines look, and what becomes of the file they go to."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.cli.commands.log_file import LogFile
from kmirror.cli.terminal.output import JsonOutput, TableOutput
from kmirror.cli.terminal.run_log import JSON, TEXT, ChangeTracker, Entry, RunLog, ended
from kmirror.cli.terminal.screen import Screen
from kmirror.engine.driver.driver import RunView
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.status.journal import Level, Note
from kmirror.errors import Reason, UnreachableError
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus
from tests.cli.conftest import Run
from tests.support.json_documents import check
from tests.support.statuses import topic_of

AT = 1_795_417_337_123  # 2026-11-23T07:02:17.123Z


def orders(
    topic: str = "orders",
    lag: int | None = 1_500,
    state: TopicState = TopicState.ACTIVE,
    reason: Reason | None = None,
    message: str | None = None,
    *,
    at_ms: int = AT - 2_000,
    mirror: str = "m",
) -> TopicStatus:
    """Return a topic of eight partitions that is copied."""
    as_of_ms = None if lag is None else at_ms
    return topic_of(topic, 8, lag, 42_500_000, state, reason, message, as_of_ms, mirror=mirror)


ORDERS = orders()
VIEW = RunView(AT, 0.0, "copying", ("m",), (ORDERS,), 42_500_000.0, ())


def silent(topic: str = "orders") -> TopicStatus:
    """Return a topic of an engine whose heartbeats the destination does not accept."""
    why = "the destination has not accepted a heartbeat of this engine since 2026-11-23T07:02:00Z"
    return topic_of(topic, 8, None, 0, TopicState.LINK_FAILED, Reason.ENGINE_SILENT, why)


def later(view: RunView, seconds: float, *topics: TopicStatus) -> RunView:
    """Return the view so much later, perhaps of other topics."""
    at = view.time_ms + int(1000 * seconds)
    return replace(view, time_ms=at, elapsed_seconds=view.elapsed_seconds + seconds, topics=topics or view.topics)


def hour(view: RunView) -> Iterator[RunView]:
    """Yield a view for each second of the next hour, in which nothing but the lag changes."""
    for second in range(1, 3_601):
        yield later(view, second, orders(lag=second, at_ms=AT + 1000 * second))


def logged(changes: ChangeTracker, view: RunView) -> list[tuple[Level, str, str]]:
    return [(entry.level, entry.mirror, entry.message) for entry in changes.entries(view)]


def test_a_quiet_hour_is_sixty_lines() -> None:
    changes = ChangeTracker()
    assert len(changes.entries(VIEW)) == 2
    lines = [entry for view in hour(VIEW) for entry in changes.entries(view)]
    assert len(lines) == 60
    assert lines[0].message == "copying: 1 topic, 8 partitions, total lag 60 as of 2026-11-23T07:03:17Z, 42.5 MB/s"


def test_what_changes_is_a_line_at_once() -> None:
    changes = ChangeTracker()
    changes.entries(VIEW)
    what = TopicState.FAILED, Reason.OFFSET_MISMATCH
    failed = orders("orders", 5, *what, "expected 7,\ngot 9")
    assert logged(changes, later(VIEW, 1, failed)) == [
        (Level.ERROR, "m", "orders: FAILED OFFSET_MISMATCH (was ACTIVE): expected 7, got 9")
    ]
    # another number in the same sentence is no change
    assert logged(changes, later(VIEW, 2, orders("orders", 5, *what, "expected 7, got 10"))) == []
    assert logged(changes, later(VIEW, 3)) == [(Level.INFO, "m", "orders: ACTIVE (was FAILED OFFSET_MISMATCH)")]
    paused = orders("orders", 5, TopicState.PAUSED, Reason.PAUSED_BY_OPERATOR, "paused")
    assert logged(changes, later(VIEW, 4, paused)) == [(Level.INFO, "m", "orders: PAUSED (was ACTIVE)")]


def test_a_mirror_that_another_engine_took_is_reported_at_once_and_every_minute() -> None:
    changes, both = ChangeTracker(), replace(VIEW, mirrors=("m", "n"))
    changes.entries(both)
    not_copied = {"n": NotCopied("process 7 on h took over\nat 7:03", Level.ERROR, Reason.FENCED)}
    taken = (Level.ERROR, "n", "not copied by this engine: process 7 on h took over at 7:03")
    assert logged(changes, replace(later(both, 1), not_copied=not_copied)) == [taken]
    assert logged(changes, replace(later(both, 2), not_copied=not_copied)) == []
    assert logged(changes, replace(later(both, 61), not_copied=not_copied))[1] == taken
    assert logged(changes, later(both, 62)) == [(Level.INFO, "n", "this engine is in charge")]
    # one that was deleted is none of this run any more
    changes.entries(replace(later(both, 63), not_copied=not_copied))
    assert logged(changes, later(VIEW, 64)) == []


def test_topics_that_change_alike_share_a_line() -> None:
    changes, topics = ChangeTracker(), [orders(f"t{number:03}") for number in range(1_000)]
    (first, _) = changes.entries(later(VIEW, 0, *topics))
    assert first.message == "t000, t001, t002, t003, t004 and 995 more: ACTIVE"
    (line,) = changes.entries(later(VIEW, 1, *(silent(one.topic) for one in topics)))
    assert line.fields["topicCount"] == 1_000
    assert len(line.text()) < 300


def test_a_topic_that_flaps_for_an_hour_fills_no_disk() -> None:
    changes, slow = ChangeTracker(), orders("orders", 0, TopicState.ACTIVE, Reason.OPEN_TRANSACTION, "since noon")
    changes.entries(VIEW)
    lines = [
        entry
        for second in range(1, 3_601)
        for entry in changes.entries(later(VIEW, second, (ORDERS, slow)[second % 2]))
    ]
    assert len(lines) <= 60 * 32
    assert lines[-2].message == "30 more changes of topics not shown"


def test_levels_come_from_states_and_reasons_and_from_notes() -> None:
    note = Note(AT, Level.WARNING, "m", "lane 0 of m stopped responding", about_spark=True)
    assert logged(ChangeTracker(), replace(VIEW, notes=(note,), spark_log="/c/spark-1.log"))[0] == (
        Level.WARNING,
        "m",
        "lane 0 of m stopped responding; Spark logs to /c/spark-1.log",
    )
    for state, reason, level in (
        (TopicState.ACTIVE, Reason.OPEN_TRANSACTION, Level.WARNING),
        (TopicState.SOURCE_UNAVAILABLE, Reason.SOURCE_UNREACHABLE, Level.WARNING),
        (TopicState.LINK_FAILED, Reason.NO_WORKERS, Level.ERROR),
        (TopicState.PENDING_MIRROR, None, Level.INFO),
    ):
        topic = orders("orders", 0, state, reason, "ERROR FAILED")
        assert {entry.level for entry in ChangeTracker().entries(later(VIEW, 0, topic))} == {level}


def test_a_destination_that_is_gone_leaves_nothing_that_reassures() -> None:
    changes = ChangeTracker()
    changes.entries(VIEW)
    changes.entries(later(VIEW, 15, silent()))
    (line,) = changes.entries(later(VIEW, 75, silent()))
    assert (line.level, line.message) == (
        Level.ERROR,
        "not copying: 1 topic, 8 partitions, total lag unknown, 0 B/s, 1 LINK_FAILED; orders LINK_FAILED "
        "ENGINE_SILENT since 2026-11-23T07:02:32Z or longer: the destination has not accepted a heartbeat of this "
        "engine since 2026-11-23T07:02:00Z",
    )
    assert (line.fields["lag"], line.fields["lagAsOfMs"]) == (None, None)


def test_before_there_is_an_engine_the_minute_says_what_is_waited_for() -> None:
    changes = ChangeTracker()
    view = replace(VIEW, phase="waiting since 2026-11-23T07:00:00Z for the clusters", topics=(), level=Level.WARNING)
    expected = [(Level.WARNING, "m", "waiting since 2026-11-23T07:00:00Z for the clusters")]
    assert logged(changes, view) == expected
    assert logged(changes, later(view, 59)) == []
    assert logged(changes, later(view, 60)) == expected


def test_each_mirror_is_summed_up_by_itself_and_an_unknown_lag_is_never_a_number() -> None:
    unknown = orders("users", None), orders("users", None, mirror="n")
    view = replace(VIEW, mirrors=("m", "n", "o"), topics=(ORDERS, *unknown))
    assert [line for line in logged(ChangeTracker(), view) if "partition" in line[2] or "no topics" in line[2]] == [
        (
            Level.INFO,
            "m",
            "copying: 2 topics, 16 partitions, total lag at least 1,500 as of 2026-11-23T07:02:15Z, "
            "unknown for 1 topic, 85.0 MB/s",
        ),
        (Level.INFO, "n", "copying: 1 topic, 8 partitions, total lag unknown, 42.5 MB/s"),
        (Level.INFO, "o", "not copying: no topics to copy"),
    ]


def test_how_lines_look() -> None:
    entry = Entry(AT, Level.WARNING, "m", "two\nlines", {"lag": 5, "reason": None})
    assert entry.text() == "2026-11-23T07:02:17.123Z WARNING m two lines"
    assert json.loads(entry.json()) == {
        "time": "2026-11-23T07:02:17.123Z",
        "level": "WARNING",
        "mirror": "m",
        "message": "two lines",
        "lag": 5,
        "reason": None,
    }
    lines: list[str] = []
    RunLog(lines.append, JSON).take(VIEW)
    document = json.loads(lines[-1])
    check("run-log", document)
    assert (document["phase"], document["lag"], document["lagAsOfMs"]) == ("copying", 1_500, AT - 2_000)
    assert (document["bytesPerSecond"], document["topicStates"]) == (42_500_000, {"ACTIVE": 1})


def test_the_log_ends_with_what_went_wrong_and_how_it_ended() -> None:
    rows = [TopicResult("orders", n, Outcome.FAILED, "gone", Reason.SOURCE_TOPIC_DELETED) for n in range(22)]
    done = VerbResult.of("run", "m", rows, warnings=["a group is not in sync"])
    lines = list(ended(AT, done, "stopped after 5s"))
    assert [line.level for line in lines] == [Level.ERROR] * 21 + [Level.WARNING, Level.ERROR]
    assert [lines[0].message, *(line.message for line in lines[-3:])] == [
        "orders-0: FAILED gone",
        "2 more partitions failed",
        "a group is not in sync",
        "stopped after 5s",
    ]
    assert lines[-1].fields == {"exitCode": 4}
    written: list[str] = []
    RunLog(written.append, TEXT).fail(AT, ("m", "n"), UnreachableError("no answer", "check it"))
    assert written == ["2026-11-23T07:02:17.123Z ERROR   m,n no answer; check it"]


def test_standard_output_is_all_json_or_text_that_ends_with_the_headline() -> None:
    done = VerbResult.of("run", "m", [TopicResult("orders", 0, Outcome.DONE, lag=0)])
    for log_format in (JSON, TEXT):
        screen = Screen(io.StringIO(), io.StringIO(), io.StringIO())
        output = TableOutput(screen)
        with output.running(log_format) as show:
            show(VIEW)
        output.run_ended(done, "caught up after 5s", log_format)
        assert isinstance(screen.out, io.StringIO)
        lines = screen.out.getvalue().splitlines()
        if log_format == JSON:
            assert [json.loads(line)["message"] for line in lines][-1] == "caught up after 5s"
        else:
            assert lines[-1] == "caught up after 5s"


def test_with_a_json_document_the_log_goes_to_standard_error() -> None:
    screen = Screen(io.StringIO(), io.StringIO(), io.StringIO())
    output = JsonOutput(screen)
    with output.running(TEXT) as show:
        show(VIEW)
    output.run_ended(VerbResult.of("run", "m", []), "stopped", TEXT)
    assert isinstance(screen.out, io.StringIO)
    assert isinstance(screen.err, io.StringIO)
    assert json.loads(screen.out.getvalue())["verb"] == "run"
    assert re.match(r"2026-11-23T07:02:17\.123Z INFO    m orders: ACTIVE\n", screen.err.getvalue())


def test_the_file_is_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.cli.commands.log_file.LARGEST_BYTES", 1_000)
    (tmp_path / "m.log").write_text("of the last run\n")
    file = LogFile.at(str(tmp_path / "m.log"), pytest.fail)
    for number in range(1_000):
        file.write(f"line {number:04}")
    file.close()
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["m.log", *(f"m.log.{number}" for number in range(1, 6))]
    assert all(path.stat().st_size <= 1_000 for path in kept)
    lines = [line for path in (*reversed(kept[1:]), kept[0]) for line in path.read_text().splitlines()]
    assert lines == [f"line {number:04}" for number in range(1_000 - len(lines), 1_000)]


def test_a_file_that_cannot_be_written_any_more_is_reported_once_and_ends_nothing() -> None:
    warnings: list[str] = []
    file = LogFile.at("/dev/full", warnings.append)
    for _ in range(3):
        file.write("a line")
    file.close()
    assert warnings == ["kmirror: warning: the log file /dev/full cannot be written"]


@pytest.mark.parametrize("name", ["missing/m.log", "."])
def test_a_file_that_cannot_be_written_is_refused_at_once(run: Run, tmp_path: Path, name: str) -> None:
    ran = run("run", "--mirror", "m", "--bootstrap-server", "127.0.0.1:1", "--log-file", str(tmp_path / name))
    assert ran.code == 2
    assert ran.err.startswith("kmirror: --log-file: ")
    assert "\n  give " in ran.err


def test_the_file_holds_what_ended_the_run(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "m.log"
    ran = run(
        *("run", "--mirror", "m", "--bootstrap-server", "127.0.0.1:1", "--until-caught-up"),
        *("--log-file", str(log), "--log-format", "json"),
    )
    assert ran.code == 6
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        check("run-log", line)
    assert "Spark logs to " in lines[0]["message"]
    assert (lines[-1]["level"], lines[-1]["mirror"], lines[-1]["exitCode"]) == ("ERROR", "m", 6)
    assert "cannot connect to 127.0.0.1:1" in lines[-1]["message"]


def test_no_secret_is_logged(run: Run, tmp_path: Path) -> None:
    log, config = tmp_path / "m.log", tmp_path / "admin.properties"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=eve password='s3cr3t';"
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    (tmp_path / "spark.properties").write_text("secret=s3cr3t\n")
    secret = f"spark.x.password=${{file:{tmp_path / 'spark.properties'}:secret}}"
    ran = run(
        *("run", "--mirror", "m", "--bootstrap-server", "127.0.0.1:1", "--until-caught-up"),
        *("--command-config", str(config), "--spark-conf", secret, "--log-file", str(log)),
    )
    assert ran.code == 6
    assert "cannot connect to 127.0.0.1:1" in log.read_text()
    assert "s3cr3t" not in log.read_text() + ran.out + ran.err
