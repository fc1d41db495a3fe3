"""Folders that other users of the host write to, and a home that this user may not write to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kmirror.engine.spark.run_folder import remove_abandoned, run_folder
from kmirror.engine.spark.shipping import cache_folder
from kmirror.errors import RefusedError
from kmirror.ops.base.spark import new_log_file
from tests.support.clusters import ClusterPair
from tests.support.engine import command

#: Another user than the one who runs the tests, if that is root.
ANOTHER = 65534


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_fifo_in_the_temporary_folder_keeps_no_run(shared: Path) -> None:
    (shared / "kmirror-run-planted").mkdir()
    os.mkfifo(shared / "kmirror-run-planted/lock")
    with run_folder() as folder:  # opening a FIFO to read it would wait for ever
        assert (folder / "lock").exists()
    assert (shared / "kmirror-run-planted/lock").exists()


def test_a_link_in_the_temporary_folder_deletes_nothing(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    victim = tmp_path_factory.mktemp("victim")
    (victim / "lock").touch()
    (shared / "kmirror-run-folder").symlink_to(victim)
    (shared / "kmirror-run-lock").mkdir()
    (shared / "kmirror-run-lock/lock").symlink_to(victim / "lock")
    remove_abandoned()
    assert (victim / "lock").exists()
    assert (shared / "kmirror-run-lock/lock").is_symlink()


def test_what_another_run_of_ours_left_is_removed(shared: Path) -> None:
    (shared / "kmirror-run-left").mkdir()
    (shared / "kmirror-run-left/lock").touch()
    remove_abandoned()
    assert list(shared.iterdir()) == []


def test_folders_of_others_are_left_alone(shared: Path) -> None:
    left = shared / "kmirror-run-left"
    left.mkdir()
    (left / "lock").touch()
    if os.geteuid() == 0:
        os.chown(left, ANOTHER, ANOTHER)
    remove_abandoned()
    assert left.exists() == (os.geteuid() == 0)


def test_no_cache_of_another_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java would take classes from there."""
    (tmp_path / "kmirror").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    os.chown(tmp_path / "kmirror", os.getuid(), os.getgid())
    if os.getuid() == 0:
        os.chown(tmp_path / "kmirror", ANOTHER + 1, ANOTHER + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RefusedError, match="belongs to another user") as refusal:
        new_log_file()
    assert refusal.value.hint == "set XDG_CACHE_HOME to a folder of this user that kmirror may write to"


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc/1/none", "/proc", ""])
def test_a_home_that_cannot_be_written(cluster_pair: ClusterPair, home: str) -> None:
    """Verbs work; `run`, which needs a place for Spark's log, says what to set."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
    environment["HOME"] = home or "/dev/null"
    for verb, code in (("list", 0), ("run", 3)):
        line = command(cluster_pair.destination, verb, *(("--mirror", "m") if verb == "run" else ()))
        assert line[0] == sys.executable
        done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        if verb == "run":
            assert "set XDG_CACHE_HOME to a folder of this user" in done.stderr
