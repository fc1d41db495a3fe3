"""Errors: a sentence, a hint, the exit code; for scripts a document as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from kmirror.cli.failures import explain
from kmirror.cli.options import Call
from kmirror.cli.verbs import kmirror
from kmirror.errors import (
    BrokerError,
    HistoriesDifferError,
    KmirrorError,
    OutcomeUnknown,
    PartlyDoneError,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from .conftest import Run

DESTINATION = ("--bootstrap-server", "localhost:9092")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("creat",), "no such command creat", "did you mean create?"),
        (("failove",), "no such command failove", "did you mean failover?"),
        # not sure enough for a verb that cannot be undone
        (("fail",), "no such command fail", "`kmirror --help` lists the commands"),
        (("remote",), "no such command remote", "`kmirror --help` lists the commands"),
        (("start",), "no such command start", "`kmirror --help` lists the commands"),
        (("--mirror", "m"), "no such option --mirror", "see `kmirror --help`"),
        (("describe", "--topcs", "a"), "no such option --topcs", "did you mean --topics?"),
        (("list", "--frobnicate"), "no such option --frobnicate", "see `kmirror list --help`"),
        (("add", "--topics", "a"), "--mirror is missing", "see `kmirror add --help`"),
        (("add", "--mirror", "m"), "--topics is missing", "see `kmirror add --help`"),
        (("add", "--mirror"), "option '--mirror' requires an argument", "see `kmirror add --help`"),
        (
            ("describe", "orders"),
            "got unexpected extra argument (orders)",
            "see `kmirror describe --help`",
        ),
        (
            ("list", "--output", "xml"),
            "--output: 'xml' is not one of 'table', 'json'",
            "see `kmirror list --help`",
        ),
        (
            ("list",),
            "the destination is missing",
            "give --bootstrap-server HOST:PORT, set KMIRROR_BOOTSTRAP_SERVER, or give --cluster NAME from kmirror.toml",
        ),
        (
            ("top", *DESTINATION),
            "top needs a terminal",
            "use `kmirror describe --wide` to print the same once, with --json for scripts",
        ),
        (
            ("describe", "--watch", *DESTINATION),
            "--watch needs a terminal",
            "without --watch describe prints once; scripts use `kmirror wait`",
        ),
        (
            ("describe", "--failed", "--groups", *DESTINATION),
            "--failed, --stopped, --groups and --settings exclude each other",
            "give one of them",
        ),
        (
            ("describe", "--wide", "--groups", *DESTINATION),
            "--wide, --groups and --settings exclude each other",
            "give one of them",
        ),
        (
            ("list", "--cluster", "prod", *DESTINATION),
            "--bootstrap-server and --cluster exclude each other",
            "give one of them",
        ),
        (
            ("list", "--cluster", "prod"),
            "cluster prod is unknown: there is no kmirror.toml",
            "write [clusters.prod] in ~/.config/kmirror/kmirror.toml or /etc/kmirror/kmirror.toml",
        ),
        (
            ("list", "--command-config", "nowhere.properties", *DESTINATION),
            "cannot read the properties file nowhere.properties: No such file or directory",
            "name a readable file of Java properties",
        ),
        *(
            (("describe", *words), f"{flag} is empty", "give a value, or leave it out; a variable may not be set")
            for flag, words in {
                "--bootstrap-server": ("--bootstrap-server", ""),
                "--cluster": ("--cluster=",),
                "--command-config": ("--command-config", "", *DESTINATION),
                "--expect-cluster-id": ("--expect-cluster-id", "", *DESTINATION),
                "--mirror": ("--mirror", "", *DESTINATION),
            }.items()
        ),
        (
            ("failover", "--mirror", "m", "--report", "", *DESTINATION),
            "--report is empty",
            "give a value, or leave it out; a variable may not be set",
        ),
        *(
            ((*words, *DESTINATION), f"{flag}: \\udcff is not UTF-8 text", "check the encoding of the terminal")
            for flag, words in {
                "--topics": ("describe", "--mirror", "m", "--topics", "\udcff"),
                "--mirror": ("pause", "--mirror=\udcff"),
                "--config": ("add", "--mirror", "m", "--topics", "t", "--config", "\udcff"),
            }.items()
        ),
        (
            ("report", "--mirror", "m", "--html", "x" * 300, *DESTINATION),
            f"--html: cannot write {'x' * 300}: File name too long",
            "give a file in a writable directory",
        ),
        (
            ("run", "--mirror", "m", "--log-file", "x" * 300, *DESTINATION),
            f"--log-file: cannot write {'x' * 300}: File name too long",
            "give a file in a directory that kmirror may write to",
        ),
        *(
            (
                (*words, "~nobody-here/x"),
                f"{words[-1]}: the home directory in ~nobody-here/x is unknown",
                "write the full path",
            )
            for words in (
                ("failover", "--mirror", "m", "--yes", *DESTINATION, "--report"),
                ("report", "--mirror", "m", *DESTINATION, "--html"),
                ("run", "--mirror", "m", *DESTINATION, "--log-file"),
                ("truncate-logs", "--log-dir", "logs", "--plan"),
                ("plan", *DESTINATION, "--against"),
                ("rehearse", "--mirror-config", "f", *DESTINATION, "--out"),
                ("sandbox", "up", "--dir"),
            )
        ),
        (
            ("sandbox", "up", "--dir", "/dev/null"),
            "--dir: cannot use /dev/null: File exists",
            "name another directory",
        ),
        (
            ("events", "--since", "yesterday", "--bootstrap-server", "127.0.0.1:1"),
            "--since: 'yesterday' is not a time",
            "give a time such as 2026-03-01T12:00:00Z, epoch milliseconds, or 2h for two hours ago",
        ),
        (
            ("list", "--bootstrap-server", "localhost"),
            "bootstrap.servers: 'localhost' is not HOST:PORT",
            "write kafka1:9092,kafka2:9092 or [::1]:9092",
        ),
        (
            ("create", "--mirror", "m", "--mirror-config", "nowhere.properties", *DESTINATION),
            "cannot read the properties file nowhere.properties: No such file or directory",
            "name a readable file of Java properties",
        ),
        (
            ("create", "--mirror", "m", "--mirror-config", "f", "--config", "topics.include", *DESTINATION),
            "--config: 'topics.include' is not key=value",
            "write --config KEY=VALUE",
        ),
        (
            ("add", "--mirror", "m", "--topics", "orders(", *DESTINATION),
            "--topics: the pattern orders( is not understood at character 7: a bracket is not closed",
            "see https://github.com/google/re2/wiki/Syntax for the syntax of patterns",
        ),
        (
            ("add", "--mirror", "m", "--topics", "@nowhere", *DESTINATION),
            "--topics: cannot read nowhere: No such file or directory",
            "name a readable file with one pattern per line",
        ),
        (
            ("add", "--mirror", "m", "--topics", "a", "--exclude", "", *DESTINATION),
            "--exclude is empty",
            "give names or regular expressions, separated by commas, or @FILE with one per line",
        ),
        (
            ("add", "--mirror", "m", "--topics", "a", "--start-from", "yesterday", *DESTINATION),
            "invalid value --start-from=yesterday",
            "use one of: earliest, latest, timestamp:T, with T as 2026-03-01T12:00:00Z or epoch milliseconds",
        ),
        (
            ("wait", "--mirror", "m", "--for", "caught-up", "--timeout", "soon", *DESTINATION),
            "--timeout: 'soon' is not a duration",
            "give a duration such as 500ms, 10s, 5m or 1h30m",
        ),
        (
            ("wait", "--mirror", "m", "--for", "caught-up", "--timeout", "-5s", *DESTINATION),
            "--timeout: -5s is negative",
            "give a duration such as 500ms, 10s, 5m or 1h30m",
        ),
        (
            ("run", "--mirror", "m", "--for", "9999d", *DESTINATION),
            "--for: 9999d is longer than 365 days",
            "give a duration such as 500ms, 10s, 5m or 1h30m",
        ),
        (
            ("run", "--mirror", "m", "--timeout", "5s", *DESTINATION),
            "--timeout requires --until-caught-up",
            "to copy for a fixed time, give --for",
        ),
        (
            ("run", "--mirror", "m", "--all", *DESTINATION),
            "--mirror and --all exclude each other",
            "give one of them",
        ),
        (
            ("run", *DESTINATION),
            "--mirror is missing",
            "give --mirror M, or --all for every mirror of the destination",
        ),
        (
            (
                "run",
                "--mirror",
                "m",
                "--master",
                "yarn",
                "--spark-conf",
                "spark.submit.deployMode=cluster",
                *DESTINATION,
            ),
            "spark.submit.deployMode=cluster is not possible: kmirror itself is the Spark driver, and runs here",
            "leave spark.submit.deployMode out; lanes run on the cluster all the same. To have the driver restarted"
            " elsewhere, run kmirror under a supervisor, or with --standby on a second machine",
        ),
        (
            ("check", "--mirror", "m", "--mirror-config", "f", *DESTINATION),
            "--mirror and --mirror-config exclude each other",
            "give one of them",
        ),
        (
            ("check", "--config", "topics.include=.*", *DESTINATION),
            "--config requires --mirror-config",
            "give both, or --mirror alone",
        ),
    ],
)
def test_usage(run: Run, arguments: tuple[str, ...], message: str, hint: str) -> None:
    shown = run(*arguments)
    assert (shown.code, shown.out, shown.err) == (2, "", f"kmirror: {message}\n  {hint}\n")


def test_no_option_takes_another_one_for_its_value(run: Run) -> None:
    """As of a script's variable that is not set: `promote --report $FILE --dry-run` is never a promote."""
    shown = run("promote", "--mirror", "m", "--timeout", "--dry-run", *DESTINATION)
    hint = "a variable may not be set; a value that begins with a dash is written as --timeout=VALUE"
    assert (shown.code, shown.out, shown.err) == (2, "", f"kmirror: --timeout needs a value\n  {hint}\n")


@pytest.mark.parametrize("name", kmirror.list_commands(click.Context(kmirror)))
def test_no_option_of_any_verb_does(name: str) -> None:
    command = kmirror.get_command(click.Context(kmirror), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    flags = [flag for one in options for flag in one.opts]
    for flag in [flag for one in options if not (one.is_flag or one.count) for flag in one.opts]:
        for other in [*flags, "--dryrun", "--topics=orders", "--"]:
            with pytest.raises(UsageError, match=f"{flag} needs a value"):
                command.make_context(name, [flag, other])


def test_a_value_may_begin_with_dashes(run: Run) -> None:
    shown = run("promote", "--mirror", "m", "--report=--dry-run", "--timeout", "-5s", *DESTINATION)
    assert shown.err.startswith("kmirror: --timeout: -5s is negative")


@pytest.mark.parametrize("json_flag", [("--json",), ("--output", "json"), ("--output=json",)])
def test_a_verb_that_looks_fails_with_just_the_error(run: Run, json_flag: tuple[str, ...]) -> None:
    shown = run("describe", "--topcs", "a", *json_flag)
    assert shown.code == 2
    assert shown.err == "kmirror: no such option --topcs\n  did you mean --topics?\n"
    error = {"code": 2, "message": "no such option --topcs", "hint": "did you mean --topics?", "reason": None}
    assert json.loads(shown.out) == {"error": error}


def test_a_verb_that_changes_something_fails_with_its_document(run: Run) -> None:
    shown = run("add", "--mirror", "m", "--topics", "a", "--dry-run", "--json")
    assert shown.code == 2
    document = json.loads(shown.out)
    assert document["error"].pop("hint").startswith("give --bootstrap-server HOST:PORT")
    assert document == {
        "verb": "add",
        "mirror": "m",
        "dryRun": True,
        "exitCode": 2,
        "results": [],
        "groups": [],
        "error": {"code": 2, "message": "the destination is missing", "reason": None},
    }


def test_a_document_without_a_mirror_says_null(run: Run) -> None:
    assert json.loads(run("add", "--topics", "a", "--json").out)["mirror"] is None


def _failing(error: BaseException) -> Callable[[Call], None]:
    def destination(_: Call) -> None:
        raise error

    return destination


def _noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (KmirrorError("odd", "look"), 1, "kmirror: odd\n  look\n"),
        (UsageError("bad flag"), 2, "kmirror: bad flag\n"),
        (RefusedError("not now", "later"), 3, "kmirror: not now\n  later\n"),
        (PartlyDoneError("half"), 4, "kmirror: half\n"),
        (TimedOutError("too slow"), 5, "kmirror: too slow\n"),
        (UnreachableError("no answer", reason=Reason.DESTINATION_UNREACHABLE), 6, "kmirror: no answer\n"),
        (HistoriesDifferError("offset 7"), 7, "kmirror: offset 7\n"),
        (
            BrokerError(3, "UNKNOWN_TOPIC_OR_PARTITION", "orders"),
            1,
            "kmirror: orders: UNKNOWN_TOPIC_OR_PARTITION (3)\n",
        ),
        (
            OutcomeUnknown("no answer to CreateTopics"),
            1,
            "kmirror: no answer to CreateTopics: it may or may not have happened\n"
            "  check with `kmirror describe` before trying again\n",
        ),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "kmirror: unexpected: ZeroDivisionError: division by zero\n"
            "  this is a bug in kmirror, please report it; -vv shows the traceback\n",
        ),
        (KeyboardInterrupt(), 130, "kmirror: interrupted\n"),
        (_noted(KeyboardInterrupt(), "topic t may be left"), 130, "kmirror: interrupted\n  topic t may be left\n"),
    ],
)
def test_exit_codes(run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, reported: str) -> None:
    monkeypatch.setattr(Call, "destination", _failing(error))
    shown = run("list", *DESTINATION)
    assert (shown.code, shown.out, shown.err) == (code, "", reported)


def test_a_traceback_only_where_it_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "destination", _failing(ZeroDivisionError("nothing")))
    assert "Traceback" not in run("list", "-v", *DESTINATION).err
    shown = run("list", "-vv", *DESTINATION)
    assert shown.code == 1
    assert "Traceback (most recent call last)" in shown.err
    assert shown.err.endswith("-vv shows the traceback\n")


def test_a_destination_that_is_not_there(run: Run) -> None:
    shown = run("list", "--bootstrap-server", "127.0.0.1:1", "--json")
    assert shown.code == 6
    assert json.loads(shown.out)["error"]["reason"] == "DESTINATION_UNREACHABLE"
    assert "the destination" in shown.err


@pytest.mark.parametrize("arguments", [("--help",), ("describe", "--help"), ("list", "--json")])
def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    environment.pop("KMIRROR_BOOTSTRAP_SERVER", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kmirror", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
    finally:
        os.close(writing)
    if "--help" in arguments:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert done.stderr.startswith("kmirror: the destination is missing\n")


def test_errors_of_ours_pass_unchanged() -> None:
    error = RefusedError("no", "yes")
    assert explain(error) is error
    assert isinstance(explain(click.UsageError("Odd.")), UsageError)
