"""`sandbox`: what needs no broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Run

HELP = """\
Usage: kmirror sandbox [OPTIONS] COMMAND [ARGS]...

  Run two real Kafka clusters on this machine.

Options:
  -h, --help  Show this message and exit.

Commands:
  up         Start clusters a and b, creating them if needed.
  down       Stop both clusters and delete their data.
  status     Show the brokers of both clusters.
  produce    Write records to a topic.
  challenge  Watch a copy, a truncated source and a reset topic.
"""


def test_help(run: Run) -> None:
    shown = run("sandbox", "--help")
    assert (shown.code, shown.out, shown.err) == (0, HELP, "")


def test_a_misspelt_verb(run: Run) -> None:
    shown = run("sandbox", "dwon")
    assert (shown.code, shown.out, shown.err) == (2, "", "kmirror: no such command dwon\n  did you mean down?\n")


def test_status_of_nothing(run: Run, tmp_path: Path) -> None:
    shown = run("sandbox", "status", "--dir", "none")
    assert shown.code == 0, shown.err
    assert shown.out == ""
    assert shown.err == f"no sandbox in {tmp_path}/none; `kmirror sandbox up` creates one\n"
    document = json.loads(run("sandbox", "status", "--dir", "none", "--json").out)
    assert document == {"directory": f"{tmp_path}/none", "clientFiles": [], "controlFiles": [], "brokers": []}


def test_tiered_storage_needs_a_version_that_has_it(run: Run) -> None:
    shown = run("sandbox", "up", "--dir", "s", "--tiered", "--kafka-version", "3.5.2", "--dry-run")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "kmirror: Kafka 3.5.2 has no tiered storage\n  use Kafka 3.6 or later, or omit --tiered\n"


def test_a_dry_run_makes_nothing(run: Run, tmp_path: Path) -> None:
    # below the ports that brokers of other tests are given
    shown = run("sandbox", "up", "--dir", "s", "--base-port", "5000", "--dry-run", "--json")
    assert shown.code == 0
    document = json.loads(shown.out)
    assert (document["verb"], document["mirror"], document["dryRun"], document["brokers"]) == (
        "sandbox up",
        None,
        True,
        [],
    )
    assert [row["message"] for row in document["results"]] == [
        "would create cluster a with 1 broker, ports from 5000",
        "would create cluster b with 1 broker, ports from 5010",
    ]
    assert list(tmp_path.iterdir()) == []


def test_down_where_nothing_is(run: Run) -> None:
    shown = run("sandbox", "down", "--dir", "s", "--json")
    assert shown.code == 0
    assert [row["result"] for row in json.loads(shown.out)["results"]] == ["NOOP"]


@pytest.mark.parametrize(
    "arguments",
    [("--brokers", "0"), ("--brokers", "many"), ("--kafka-version", "2.7.2"), ("--base-port", "80")],
)
def test_what_cannot_be_had(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shown = run("sandbox", "up", "--dir", "s", *arguments, "--json")
    assert shown.code == 2
    assert json.loads(shown.out)["error"]["code"] == 2
    assert shown.err.count("\n") == 2
    assert list(tmp_path.iterdir()) == []
