"""`truncate-logs` as people and scripts see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmirror.offline.survey import PlannedCut
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from tests.support.log_dirs import CLUSTER_ID, TOPIC_ID, add_partition, batch, contents, make_log_dir
from tests.support.screens import Terminal

if TYPE_CHECKING:
    from .conftest import Run


@pytest.fixture
def log_dir(run: Run, tmp_path: Path) -> Path:
    """Return a log directory with `orders-0`, 0 to 29, and lay a plan beside it."""
    path = make_log_dir(tmp_path / "data")
    add_partition(path, "orders-0", {0: [batch(0, 10), batch(10, 10)], 20: [batch(20, 10)]})
    cuts = (PlannedCut("orders", TOPIC_ID, 0, 10, 30), PlannedCut("orders", TOPIC_ID, 1, 5))
    write_plan(TruncationPlan(CLUSTER_ID, "m", 1, cuts), tmp_path / "plan.json")
    return path


COMMAND = ("truncate-logs", "--plan", "plan.json", "--log-dir", "data")


def test_without_a_terminal_it_refuses(run: Run, log_dir: Path) -> None:
    before = contents(log_dir)
    shown = run(*COMMAND)
    assert (shown.code, shown.out) == (3, "")
    assert shown.err.endswith(
        "kmirror: this must be confirmed, and there is no terminal to ask on\n  add --yes to proceed\n"
    )
    assert contents(log_dir) == before


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 3), ("", 3)])
def test_it_asks_after_showing_what_is_removed(
    run: Run, log_dir: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    before, terminal = contents(log_dir), Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(*COMMAND).code == code
    assert terminal.getvalue().startswith(
        f"cluster:      {CLUSTER_ID}, broker 1\n"
        f"log dirs:     {log_dir}\n"
        "orders-0: log end 30 -> 10: 20 records (2 batches, 862 bytes) cut off\n"
        "orders-1: not in these log directories\n"
        "Truncate these logs? [y/N] "
    )
    assert (contents(log_dir) == before) == (code == 3)


def test_yes_and_undo(run: Run, log_dir: Path) -> None:
    before = contents(log_dir)
    shown = run(*COMMAND, "--yes")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == (
        "TOPIC   PARTITION  RESULT  MESSAGE\n"
        "orders          0  DONE    log end 30 -> 10: 20 records (2 batches, 862 bytes) cut off\n"
        "orders          1  NOOP    not in these log directories\n"
        f"what was cut off is kept in {log_dir}/kmirror-cut-1.*: --undo restores it until the broker starts;"
        " delete the files when they are no longer needed\n"
    )
    undone = run(*COMMAND, "--undo", "--json")
    document = json.loads(undone.out)
    assert (undone.code, document["verb"], document["mirror"]) == (0, "truncate-logs", "m")
    assert [(row["topic"], row["partition"], row["result"]) for row in document["results"]] == [
        ("orders", 0, "DONE"),
        ("orders", 1, "NOOP"),
    ]
    assert contents(log_dir) == before


def test_a_dry_run(run: Run, log_dir: Path) -> None:
    before = contents(log_dir)
    shown = run(*COMMAND, "--dry-run")
    assert (shown.code, shown.err) == (0, "dry run: nothing was changed\n")
    assert contents(log_dir) == before


def test_a_file_that_is_not_a_plan(run: Run, log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    shown = run(*COMMAND, "--json")
    assert shown.code == 2
    document = json.loads(shown.out)
    assert document["error"]["message"] == "--plan: plan.json: its version is None, not 1"
