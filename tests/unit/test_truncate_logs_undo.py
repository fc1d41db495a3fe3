"""Undoing a cut of a stopped broker's logs, and resuming after a command was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kmirror.errors import PartlyDoneError, RefusedError
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback.truncate_logs import truncate_logs, undo_truncation
from kmirror.work import WorkView
from tests.support.cutting import CUT_AT_40, SEGMENTS, KillAfter, Killed, cut, outcomes, plan
from tests.support.log_batches import encode
from tests.support.log_dirs import add_partition, batch, contents, make_log_dir, own_files
from tests.support.watching import assert_grows

# -- taking it back ----------------------------------------------------------------------------------------------------


def _times(log_dir: Path) -> dict[str, int]:
    return {name: (log_dir / name).stat().st_mtime_ns for name in contents(log_dir)}


def test_undo_restores_every_byte(log_dir: Path) -> None:
    before, times = contents(log_dir), _times(log_dir)
    cut(CUT_AT_40, log_dir)
    views: list[WorkView] = []
    undone = undo_truncation(CUT_AT_40, [log_dir], views.append)
    assert_grows(views, "restoring")
    assert views[-1].total == 2 * len(encode(SEGMENTS[30][0]))
    assert (undone.exit_code, outcomes(undone)) == (0, [("orders", 0, "DONE")])
    assert undone.results[0].message == "log end 40 -> 90: 50 records restored"
    assert (contents(log_dir), _times(log_dir), own_files(log_dir)) == (before, times, [])
    assert outcomes(undo_truncation(CUT_AT_40, [log_dir])) == [("orders", 0, "NOOP")]
    assert outcomes(cut(CUT_AT_40, log_dir)) == [("orders", 0, "DONE")]


def test_a_dry_undo_changes_nothing(log_dir: Path) -> None:
    cut(CUT_AT_40, log_dir)
    before, own = contents(log_dir), own_files(log_dir)
    assert outcomes(undo_truncation(CUT_AT_40, [log_dir], dry_run=True)) == [("orders", 0, "DONE")]
    assert (contents(log_dir), own_files(log_dir)) == (before, own)


def _index_is_back(log_dir: Path) -> None:
    (log_dir / "orders-0/00000000000000000030.index").write_bytes(b"made by the broker")


def _bystander_was_recovered(log_dir: Path) -> None:
    (log_dir / "bystander-0/00000000000000000060.index").write_bytes(b"made by the broker")


def _stopped_cleanly_again(log_dir: Path) -> None:
    (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":12}')


def _log_grew(log_dir: Path) -> None:
    with (log_dir / "orders-0/00000000000000000030.log").open("ab") as file:
        file.write(encode(batch(40, 10)))


def _recovery_point_moved(log_dir: Path) -> None:
    (log_dir / "recovery-point-offset-checkpoint").write_text("0\n0\n")


@pytest.mark.parametrize(
    "broker", [_index_is_back, _bystander_was_recovered, _stopped_cleanly_again, _log_grew, _recovery_point_moved]
)
def test_undo_is_refused_once_the_broker_ran(log_dir: Path, broker: Callable[[Path], None]) -> None:
    cut(CUT_AT_40, log_dir)
    broker(log_dir)
    before, own = contents(log_dir), own_files(log_dir)
    with pytest.raises(RefusedError, match=r"was used since the truncation: .*; most likely the broker was started"):
        undo_truncation(CUT_AT_40, [log_dir])
    assert (contents(log_dir), own_files(log_dir)) == (before, own)


def test_the_last_cut_is_undone_first(log_dir: Path) -> None:
    before = contents(log_dir)
    at_20 = plan(("orders", 0, 20))
    cut(CUT_AT_40, log_dir)
    between = contents(log_dir)
    cut(at_20, log_dir)
    with pytest.raises(RefusedError, match="was truncated by another plan since"):
        undo_truncation(CUT_AT_40, [log_dir])
    undo_truncation(at_20, [log_dir])
    assert contents(log_dir) == between
    undo_truncation(CUT_AT_40, [log_dir])
    assert contents(log_dir) == before


# -- interrupted -------------------------------------------------------------------------------------------------------


def _two_dirs(folder: Path) -> tuple[Path, Path]:
    first, second = make_log_dir(folder / "first"), make_log_dir(folder / "second")
    add_partition(first, "orders-0", SEGMENTS, epochs=[(0, 0), (3, 40)])
    add_partition(first, "orders-1", SEGMENTS)
    add_partition(second, "orders-2", SEGMENTS)
    return first, second


TWO_DIRS = plan(("orders", 0, 40), ("orders", 1, 60), ("orders", 2, 10))


def _all(dirs: tuple[Path, ...]) -> list[dict[str, bytes]]:
    return [contents(path) for path in dirs]


def _steps(tmp_path: Path, *, undo: bool) -> int:
    dirs = _two_dirs(tmp_path / "counting")
    count = KillAfter(10_000)
    if undo:
        cut(TWO_DIRS, *dirs)
        undo_truncation(TWO_DIRS, dirs, checkpoint=count)
    else:
        cut(TWO_DIRS, *dirs, kill=count)
    return len(count.steps)


@pytest.mark.slow
def test_killed_after_any_step_and_run_again(tmp_path: Path) -> None:
    steps = _steps(tmp_path, undo=False)
    assert steps > 25
    whole = _two_dirs(tmp_path / "whole")
    cut(TWO_DIRS, *whole)
    for count in range(steps):
        dirs = _two_dirs(tmp_path / f"killed-{count}")
        with pytest.raises(Killed):
            cut(TWO_DIRS, *dirs, kill=KillAfter(count))
        again = cut(TWO_DIRS, *dirs)
        assert again.exit_code == 0, again
        assert _all(dirs) == _all(whole), f"after step {count}"
        original = _two_dirs(tmp_path / f"original-{count}")
        undo_truncation(TWO_DIRS, dirs)
        assert _all(dirs) == _all(original), f"after step {count}"


@pytest.mark.slow
def test_killed_after_any_step_and_undone(tmp_path: Path) -> None:
    original = _two_dirs(tmp_path / "original")
    for count in range(_steps(tmp_path, undo=False)):
        dirs = _two_dirs(tmp_path / f"killed-{count}")
        with pytest.raises(Killed):
            cut(TWO_DIRS, *dirs, kill=KillAfter(count))
        assert undo_truncation(TWO_DIRS, dirs).exit_code == 0
        assert _all(dirs) == _all(original), f"after step {count}"
        assert [own_files(path) for path in dirs] == [[], []]


@pytest.mark.slow
def test_an_undo_killed_after_any_step_and_run_again(tmp_path: Path) -> None:
    original = _two_dirs(tmp_path / "original")
    for count in range(_steps(tmp_path, undo=True)):
        dirs = _two_dirs(tmp_path / f"killed-{count}")
        cut(TWO_DIRS, *dirs)
        with pytest.raises(Killed):
            undo_truncation(TWO_DIRS, dirs, checkpoint=KillAfter(count))
        undo_truncation(TWO_DIRS, dirs)
        assert _all(dirs) == _all(original), f"after step {count}"
        assert [own_files(path) for path in dirs] == [[], []]


def _killed_before(log_dir: Path, name: str, *, undo: bool = False) -> None:
    """End the command right before the step of that name."""
    count = KillAfter(10_000)
    copy = log_dir.with_name("copy")
    shutil.copytree(log_dir, copy)
    for path, kill in ((copy, count), (log_dir, None)):
        if undo:
            cut(CUT_AT_40, path)
        killer = kill or KillAfter(count.steps.index(name) - 1)
        try:
            if undo:
                undo_truncation(CUT_AT_40, [path], checkpoint=killer)
            else:
                cut(CUT_AT_40, path, kill=killer)
        except Killed:
            assert killer is not count
    shutil.rmtree(copy)


def test_killed_while_the_end_was_being_saved(log_dir: Path) -> None:
    before = contents(log_dir)
    _killed_before(log_dir, "cut orders-0/00000000000000000030.log")
    (log_dir / "kmirror-cut-unfinished").write_bytes(b"half of it")
    assert cut(CUT_AT_40, log_dir).exit_code == 0
    assert (log_dir / "orders-0/00000000000000000030.log").read_bytes() == encode(SEGMENTS[30][0])
    undo_truncation(CUT_AT_40, [log_dir])
    assert contents(log_dir) == before


def test_killed_while_the_end_was_being_restored(log_dir: Path) -> None:
    before = contents(log_dir)
    _killed_before(log_dir, "undo orders-0/00000000000000000030.log", undo=True)
    with (log_dir / "orders-0/00000000000000000030.log").open("ab") as file:
        file.write(encode(SEGMENTS[30][1])[:50])
    undo_truncation(CUT_AT_40, [log_dir])
    assert contents(log_dir) == before


def test_the_broker_ran_before_a_cut_was_finished(log_dir: Path) -> None:
    _killed_before(log_dir, "cut orders-0/00000000000000000030.log")
    _bystander_was_recovered(log_dir)
    with pytest.raises(RefusedError, match="most likely the broker was started"):
        undo_truncation(CUT_AT_40, [log_dir])
    done = cut(CUT_AT_40, log_dir)
    assert outcomes(done) == [("orders", 0, "DONE")]
    assert (done.results[0].message or "").startswith("log end 60 -> 40: 20 records")
    assert "the broker ran before it was finished" in done.warnings[0]
    assert (log_dir / "orders-0/00000000000000000030.log").read_bytes() == encode(SEGMENTS[30][0])
    assert "kmirror-cut-1.0000.00000000000000000060.log" in own_files(log_dir)
    assert outcomes(undo_truncation(CUT_AT_40, [log_dir])) == [("orders", 0, "DONE")]


def test_an_interrupted_cut_is_finished_by_its_own_plan_only(log_dir: Path) -> None:
    _killed_before(log_dir, "done")
    with pytest.raises(RefusedError, match="a truncation by another plan was interrupted"):
        cut(plan(("orders", 0, 30)), log_dir)


def test_an_interrupted_undo_must_finish_before_a_new_cut(log_dir: Path) -> None:
    _killed_before(log_dir, "undone", undo=True)
    with pytest.raises(RefusedError, match="an undo was interrupted"):
        cut(CUT_AT_40, log_dir)


def test_an_interruption_says_how_to_continue(log_dir: Path) -> None:
    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(PartlyDoneError, match="stopped half-way in") as stopped:
        _cut_with(log_dir, full)
    assert "run the same command again to finish" in (stopped.value.hint or "")
    assert cut(CUT_AT_40, log_dir).results[0].result is Outcome.DONE


def _cut_with(log_dir: Path, checkpoint: Callable[[str], None]) -> None:
    truncate_logs(CUT_AT_40, [log_dir], lambda _: True, checkpoint=lambda s: None if s == "journal" else checkpoint(s))


def test_a_journal_that_cannot_be_read_is_refused(log_dir: Path) -> None:
    (log_dir / "kmirror-cut-1.json").write_text('{"version": 2}')
    with pytest.raises(RefusedError, match=r"kmirror-cut-1\.json cannot be read"):
        cut(CUT_AT_40, log_dir)
