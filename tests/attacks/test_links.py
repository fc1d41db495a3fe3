"""`truncate-logs`, often run as root, in log directories into which the broker's user put links and journals."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import KmirrorError, PartlyDoneError, RefusedError
from kmirror.offline.folder import is_path_inside
from kmirror.ops.base.results import VerbResult
from kmirror.ops.failback.truncate_logs import undo_truncation
from tests.support.cutting import CUT_AT_40, SEGMENTS, KillAfter, Killed, cut, outcomes
from tests.support.log_dirs import add_partition, contents, make_log_dir, own_files

#: Whom the log directory belongs to: another user if the tests run as root.
BROKER = 65534 if os.geteuid() == 0 else os.geteuid()
GROUP = 65534 if os.geteuid() == 0 else os.getegid()
SECRET = "root's, and no broker's\n"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory that belongs to the broker's user, in a folder that this user cannot even enter."""
    path = make_log_dir(tmp_path / "data")
    add_partition(path, "orders-0", SEGMENTS)
    (path / ".lock").touch()
    give_to_broker(path)
    return path


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A file outside of the log directory."""
    path = tmp_path / "foreign"
    path.write_text(SECRET)
    return path


def give_to_broker(path: Path) -> None:
    """Give everything there to the broker's user; links as such."""
    for one in (path, *path.rglob("*")):
        os.chown(one, BROKER, GROUP, follow_symlinks=False)


def seen(path: Path) -> tuple[str, int, int, int]:
    """Return what must not change of a file."""
    status = path.stat()
    return path.read_text(), status.st_uid, status.st_mode, status.st_nlink


def try_to_cut(log_dir: Path, *, dry_run: bool = False) -> VerbResult | KmirrorError:
    """Cut, and return the result or the refusal."""
    try:
        return cut(CUT_AT_40, log_dir, dry_run=dry_run)
    except KmirrorError as error:
        return error


def link(name: str) -> Callable[[Path, Path], None]:
    """Replace a file by a symbolic link to a foreign one."""

    def plant(log_dir: Path, foreign: Path) -> None:
        (log_dir / name).unlink(missing_ok=True)
        (log_dir / name).symlink_to(foreign)

    return plant


def second_name(name: str) -> Callable[[Path, Path], None]:
    """Replace a file by a hard link to a foreign one."""

    def plant(log_dir: Path, foreign: Path) -> None:
        (log_dir / name).unlink(missing_ok=True)
        os.link(foreign, log_dir / name)

    return plant


def fifo(name: str) -> Callable[[Path, Path], None]:
    """Replace a file by a FIFO, at which opening waits."""

    def plant(log_dir: Path, foreign: Path) -> None:
        (log_dir / name).unlink(missing_ok=True)
        os.mkfifo(log_dir / name)

    return plant


def elsewhere(log_dir: Path, foreign: Path) -> None:
    """Replace the partition's folder by a link to a copy of it outside."""
    shutil.move(log_dir / "orders-0", foreign.with_name("outside"))
    (log_dir / "orders-0").symlink_to(foreign.with_name("outside"))


FILES = (
    ".lock",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "orders-0/00000000000000000030.log",
    "orders-0/00000000000000000060.log",
    "orders-0/00000000000000000030.snapshot",
    "orders-0/leader-epoch-checkpoint",
    "orders-0/partition.metadata",
    "kmirror-cut-1.json",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [link, second_name, fifo])
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_file_of_a_log_directory_leads_elsewhere(
    log_dir: Path, foreign: Path, kind: Callable[[str], Callable[[Path, Path], None]], name: str, *, dry_run: bool
) -> None:
    kind(name)(log_dir, foreign)
    before = seen(foreign)
    done = try_to_cut(log_dir, dry_run=dry_run)
    assert seen(foreign) == before
    error = done.error if isinstance(done, VerbResult) else done
    assert error is not None
    # root, acting as the broker, may not even open what only another user may write
    assert re.search(
        rf"{re.escape(name)}: (is a link, or not a plain file or folder|Permission denied)$", error.message
    )
    assert SECRET.strip() not in error.message
    assert own_files(log_dir) == ([name] if name.startswith("kmirror") else [])


@pytest.mark.parametrize("name", ["kmirror-cut-unfinished", "kmirror-cut-1.0000.00000000000000000030.log.end"])
@pytest.mark.parametrize("kind", [link, second_name, fifo])
def test_our_own_files_are_never_written_through_a_link(
    log_dir: Path, foreign: Path, kind: Callable[[str], Callable[[Path, Path], None]], name: str
) -> None:
    before_all = contents(log_dir)
    kind(name)(log_dir, foreign)
    before = seen(foreign)
    assert outcomes(cut(CUT_AT_40, log_dir)) == [("orders", 0, "DONE")]
    after = seen(foreign)
    assert (after[:3], before[3] - after[3]) == (before[:3], 1 if kind is second_name else 0)
    assert outcomes(undo_truncation(CUT_AT_40, [log_dir])) == [("orders", 0, "DONE")]
    assert (contents(log_dir), own_files(log_dir)) == (before_all, [])


def test_a_partition_is_not_looked_for_behind_a_link(log_dir: Path, foreign: Path) -> None:
    elsewhere(log_dir, foreign)
    outside = contents(foreign.with_name("outside"))
    done = cut(CUT_AT_40, log_dir)
    assert outcomes(done) == [("orders", 0, "REFUSED")]
    assert "orders-0: is a link" in (done.results[0].message or "")
    assert contents(foreign.with_name("outside")) == outside


def test_a_link_that_appears_later_stops_the_cut(log_dir: Path, foreign: Path) -> None:
    class PlantLink(KillAfter):
        def __call__(self, step: str) -> None:
            if step == "journal":
                link("orders-0/00000000000000000030.log")(log_dir, foreign)

    with pytest.raises(PartlyDoneError, match="is a link, or not a plain file or folder"):
        cut(CUT_AT_40, log_dir, kill=PlantLink(0))
    assert foreign.read_text() == SECRET


def test_what_root_makes_belongs_to_the_broker(log_dir: Path) -> None:
    (log_dir / ".lock").unlink()
    cut(CUT_AT_40, log_dir)
    made = [log_dir / ".lock", *(log_dir / name for name in own_files(log_dir)), *log_dir.rglob("*checkpoint")]
    assert len(made) > 10
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(BROKER, GROUP)}
    undo_truncation(CUT_AT_40, [log_dir])
    assert {path.stat().st_uid for path in log_dir.rglob("*")} == {BROKER}


def test_root_may_do_no_more_than_the_broker(log_dir: Path) -> None:
    """Root acts as the owner of the folder: what this user may not read stays unread."""
    segment = log_dir / "orders-0/00000000000000000030.log"
    segment.chmod(0)
    done = cut(CUT_AT_40, log_dir)
    assert outcomes(done) == [("orders", 0, "REFUSED")]
    assert "Permission denied" in (done.results[0].message or "")


def test_root_without_capabilities_is_refused_only_where_it_must_act_as_another(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(groups: list[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setgroups", refuse)
    if os.geteuid() == 0:
        with pytest.raises(RefusedError, match="root cannot act as the broker's user here"):
            cut(CUT_AT_40, log_dir)
        for path in (log_dir, *log_dir.rglob("*")):
            os.chown(path, 0, 0)
    assert cut(CUT_AT_40, log_dir).exit_code == 0


# -- journals ----------------------------------------------------------------------------------------------------------


def planted(log_dir: Path, change: Callable[[dict[str, Any]], None], phase: str) -> None:
    """Plant a journal: a real one, changed."""
    kill = KillAfter(3)
    with pytest.raises(Killed):
        cut(CUT_AT_40, log_dir, kill=kill)
    path = log_dir / "kmirror-cut-1.json"
    journal = json.loads(path.read_text())
    journal["phase"] = phase
    change(journal)
    path.write_text(json.dumps(journal))


def _move_out(journal: dict[str, Any]) -> None:
    journal["changes"].append({"kind": "move", "path": "../foreign", "saved": "kmirror-cut-1.foreign"})
    journal["files"]["../foreign"] = [24, 1]


def _move_in(journal: dict[str, Any]) -> None:
    journal["changes"].append({"kind": "move", "path": "orders-0/new", "saved": "../foreign"})
    journal["files"]["orders-0/new"] = [24, 1]


def _rewrite_absolute(journal: dict[str, Any]) -> None:
    path = str(Path(os.environ["FOREIGN"]))
    journal["changes"].append({"kind": "rewrite", "path": path, "before": SECRET, "after": "poison"})
    journal["files"][path] = [24, 1]


def _shorten_out(journal: dict[str, Any]) -> None:
    journal["changes"].append(
        {"kind": "shorten", "path": "../foreign", "saved": "kmirror-cut-1.x", "kept_bytes": 0, "size_in_bytes": 24}
    )
    journal["files"]["../foreign"] = [24, 1]


def _save_elsewhere(journal: dict[str, Any]) -> None:
    for change in journal["changes"]:
        if "saved" in change:
            change["saved"] = "meta.properties"


def _another_run(journal: dict[str, Any]) -> None:
    journal["run"] = "1/../../foreign"


def _text_for_a_number(journal: dict[str, Any]) -> None:
    journal["partitions"][0]["records"] = "\x1b[2J"


def _unknown_file(journal: dict[str, Any]) -> None:
    journal["files"].clear()


@pytest.mark.parametrize(
    "change",
    [
        _move_out,
        _move_in,
        _rewrite_absolute,
        _shorten_out,
        _save_elsewhere,
        _another_run,
        _text_for_a_number,
        _unknown_file,
    ],
)
@pytest.mark.parametrize("phase", ["CUTTING", "CUT", "UNDONE"])
def test_journals_name_only_files_of_the_log_directory(
    log_dir: Path,
    foreign: Path,
    change: Callable[[dict[str, Any]], None],
    phase: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREIGN", str(foreign))
    planted(log_dir, change, phase)
    before, own = contents(log_dir), own_files(log_dir)
    with pytest.raises(RefusedError, match=r"kmirror-cut-1\.json cannot be read: "):
        cut(CUT_AT_40, log_dir)
    with pytest.raises(RefusedError, match=r"kmirror-cut-1\.json cannot be read: "):
        undo_truncation(CUT_AT_40, [log_dir])
    assert (contents(log_dir), own_files(log_dir), foreign.read_text()) == (before, own, SECRET)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"version":1}', "null", "7", '{"version": 1, "run": NaN}'])
def test_journals_that_are_none_are_refused(log_dir: Path, text: str) -> None:
    (log_dir / "kmirror-cut-1.json").write_text(text)
    with pytest.raises(RefusedError, match=r"kmirror-cut-1\.json cannot be read: "):
        cut(CUT_AT_40, log_dir)


@pytest.mark.parametrize("path", ["", ".", "..", "/etc/passwd", "../x", "a/../b", "a/b/c", "a//b", "a/.", "a\0b", "/"])
def test_paths_that_lead_out(path: str) -> None:
    assert not is_path_inside(path)


def test_paths_that_stay() -> None:
    assert is_path_inside("recovery-point-offset-checkpoint")
    assert is_path_inside("orders-0/00000000000000000030.log")
