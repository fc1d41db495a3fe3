"""Where Spark's own words of a run go, and how long they are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kmirror.ops.base.spark import new_log_file


def test_logs_of_runs_that_have_ended_are_deleted_and_never_one_of_a_run_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = new_log_file().parent
    # no process has a number as large: Linux ends at 4,194,304
    files = [folder / f"spark-{pid}.log" for pid in (os.getppid(), *range(5_000_000, 5_000_021))]
    for age, file in enumerate(files):
        file.touch()
        os.utime(file, (age, age))
    new_log_file()
    living, ended, *younger = files
    assert {*folder.iterdir()} == {living, *younger}
    assert not ended.exists()
