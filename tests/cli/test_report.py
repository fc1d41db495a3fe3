"""The file of `--report`, and that of `report --html`."""

from __future__ import annotations

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from kmirror.cli.commands.evidence_files import AtomicFile, Report
from kmirror.errors import ExitCode, KmirrorError, UsageError
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.verify.verify_results import VerifyOutcome, VerifyRow
from kmirror.web.look import GENERATOR
from tests.cli.conftest import Run


def test_a_report_takes_the_ones_before_along(tmp_path: Path) -> None:
    """A second run had nothing left to do, and its report replaced the evidence of the first one."""
    file = tmp_path / "evidence.json"
    file.touch()  # as mktemp makes it
    for number in range(3):
        before = file.read_text(encoding="utf-8")
        report = Report.at(str(file))
        assert file.read_text(encoding="utf-8") == before
        report.write({"verb": "verify", "warnings": [f"größer {number}"]})
    first, second = ({"verb": "verify", "warnings": [f"größer {number}"]} for number in range(2))
    last = {"verb": "verify", "warnings": ["größer 2"], "earlier": [first, second]}
    assert json.loads(file.read_text(encoding="utf-8")) == last
    assert list(tmp_path.iterdir()) == [file]


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    reports = [Report.at(str(file)) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        for written in [pool.submit(one.write, {"verb": "verify", "n": n}) for n, one in enumerate(reports)]:
            written.result()
    last = json.loads(file.read_text(encoding="utf-8"))
    assert sorted([last["n"], *(one["n"] for one in last["earlier"])]) == list(range(20))
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_written_is_on_disk_under_a_name_that_no_one_can_foresee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dr.html"
    file.touch(0o640)
    synced: list[bool] = []
    names: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced_too(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        sync(descriptor)

    def renamed_too(name: Path, target: Path) -> None:
        names.append(name.name)
        rename(name, target)

    monkeypatch.setattr(os, "fsync", synced_too)
    monkeypatch.setattr(os, "replace", renamed_too)
    for _ in range(2):
        AtomicFile.at(str(file), "--html", "the report").write("page")
    assert synced == [False, True] * 2
    assert len(set(names)) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_no_device_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="is not a regular file"):
        AtomicFile.at(str(tmp_path / "fifo"), "--html", "the report")


@pytest.mark.parametrize("held", ["my notes", "[]", "{}", '{"verb": "verify", "earlier": 1}'])
def test_a_file_of_something_else_is_not_replaced(tmp_path: Path, held: str) -> None:
    file = tmp_path / "notes"
    file.write_text(held, encoding="utf-8")
    with pytest.raises(UsageError, match="is not a kmirror report"):
        Report.at(str(file))
    assert file.read_text(encoding="utf-8") == held


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/evidence.json", "No such file or directory"),
        ("folder", "is a directory"),
        ("x" * 300, "File name too long"),
        ("x" * 240, "File name too long"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=message):
        Report.at(str(tmp_path / path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder"]


def test_a_page_replaces_only_a_page(tmp_path: Path) -> None:
    file = tmp_path / "dr.html"

    def require_own() -> None:
        written = AtomicFile.at(str(file), "--html", "the report")
        written.require_own("--html", "a kmirror report", 2_000, lambda head: GENERATOR.encode() in head)

    for held in (None, "", f"<!doctype html>{GENERATOR}"):
        if held is not None:
            file.write_text(held, encoding="utf-8")
        require_own()
    for held in ("<!doctype html><p>my notes", f"{' ' * 5000}{GENERATOR} is too late"):
        file.write_text(held, encoding="utf-8")
        with pytest.raises(UsageError, match="is not a kmirror report"):
            require_own()


def test_a_file_of_something_else_is_refused_before_any_cluster_is_asked(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("my notes", encoding="utf-8")
    ran = run("report", "--mirror", "m", "--html", str(file), "--bootstrap-server", "localhost:1")
    assert (ran.code, ran.out) == (2, "")
    assert "--html" in ran.err
    assert file.read_text(encoding="utf-8") == "my notes"


def test_a_disk_that_fills_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dr.html"
    file.write_text("old", encoding="utf-8")

    def fill(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    whole = AtomicFile.at(str(file), "--html", "the report")
    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(KmirrorError, match="No space left"):
        whole.write("new and longer")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_report_that_can_no_longer_be_written_hides_no_difference(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour a disk was full: `verify` exited with 1, and did not say where the topics differ."""
    different = VerifyRow(topic="orders", partition=0, result=Outcome.FAILED, message="differs at offset 3")
    outcome = VerifyOutcome(mirror="m", exit_code=ExitCode.HISTORIES_DIFFER, rows=(different,), error=None, warnings=())
    folder = tmp_path / "reports"
    folder.mkdir()

    def verify(*_: object) -> VerifyOutcome:
        shutil.rmtree(folder)
        return outcome

    monkeypatch.setattr("kmirror.ops.verify.verify.verify", verify)
    monkeypatch.setattr("kmirror.cli.options.Call.destination", lambda _: nullcontext())
    ran = run("verify", "--mirror", "m", "--report", str(folder / "r.json"), "--bootstrap-server", "localhost:1")
    assert (ran.code, "differs at offset 3" in ran.out) == (7, True), ran
    assert "kmirror: warning: the report" in ran.err
