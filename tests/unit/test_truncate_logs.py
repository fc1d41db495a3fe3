"""Cutting the logs of a stopped broker, on log directories made by hand; what brokers make of it: tests/kafka."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.errors import ExitCode, RefusedError, UsageError
from kmirror.ops.failback.truncate_logs import Preview, truncate_logs, undo_truncation
from kmirror.work import WorkView
from tests.support.cutting import CUT_AT_40, SEGMENTS, cut, outcomes, plan
from tests.support.log_batches import LogBatch, control_record, encode
from tests.support.log_dirs import (
    CLUSTER_ID,
    add_entry,
    add_partition,
    batch,
    contents,
    entries,
    locked_by_another,
    make_log_dir,
    own_files,
)
from tests.support.watching import assert_grows


def test_the_log_ends_at_the_cut(log_dir: Path) -> None:
    before = contents(log_dir)
    done = cut(CUT_AT_40, log_dir)
    assert (done.exit_code, outcomes(done)) == (0, [("orders", 0, "DONE")])
    assert done.results[0].message == (
        f"log end 90 -> 40: 50 records (5 batches, {len(encode(SEGMENTS[30][0])) * 5:,} bytes) cut off"
    )
    after = contents(log_dir)
    assert after.pop("orders-0/00000000000000000030.log") == encode(SEGMENTS[30][0])
    changed = {name for name in before if before[name] != after.get(name)}
    assert changed == {
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "orders-0/00000000000000000030.index",
        "orders-0/00000000000000000030.log",
        "orders-0/00000000000000000030.timeindex",
        *(f"orders-0/00000000000000000060.{kind}" for kind in ("index", "log", "snapshot", "timeindex")),
        "orders-0/00000000000000000090.snapshot",
        "orders-0/leader-epoch-checkpoint",
    }
    assert after.keys() <= before.keys()
    assert entries(log_dir / "recovery-point-offset-checkpoint") == ["orders 0 30", "bystander 0 90"]
    assert entries(log_dir / "replication-offset-checkpoint") == ["orders 0 40", "bystander 0 90"]
    assert entries(log_dir / "orders-0/leader-epoch-checkpoint") == ["0 0"]


def test_nothing_is_cut_off_that_its_archive_no_longer_keeps(log_dir: Path) -> None:
    before = contents(log_dir)
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match=r"since 2023-11-14T22:13:20Z its archives no longer keep"):
            cut(replace(CUT_AT_40, archives_kept_until_ms=1_700_000_000_000), log_dir, dry_run=dry_run)
    assert contents(log_dir) == before
    assert cut(replace(CUT_AT_40, archives_kept_until_ms=4_000_000_000_000), log_dir).exit_code == 0


def test_progress_counts_the_bytes_read_and_copied(log_dir: Path) -> None:
    views: list[WorkView] = []
    truncate_logs(CUT_AT_40, [log_dir], lambda _: True, views.append)
    assert_grows(views, "reading", "cutting")
    sizes = [len(encode(one)) for base in (30, 60) for one in SEGMENTS[base]]
    assert [view.total for view in views if view.is_over] == [sum(sizes), sum(sizes[1:3])]


def test_a_cut_between_two_segments_changes_no_log_file(log_dir: Path) -> None:
    kept = (log_dir / "orders-0/00000000000000000030.index").read_bytes()
    assert cut(plan(("orders", 0, 60)), log_dir).exit_code == 0
    assert sorted(path.name for path in (log_dir / "orders-0").glob("*.log")) == [
        "00000000000000000000.log",
        "00000000000000000030.log",
    ]
    assert (log_dir / "orders-0/00000000000000000030.index").read_bytes() == kept
    assert entries(log_dir / "recovery-point-offset-checkpoint")[0] == "orders 0 30"


def test_a_log_can_be_emptied(log_dir: Path) -> None:
    assert cut(plan(("orders", 0, 0)), log_dir).exit_code == 0
    assert [(path.name, path.stat().st_size) for path in (log_dir / "orders-0").glob("*.log")] == [
        ("00000000000000000000.log", 0)
    ]
    assert entries(log_dir / "orders-0/leader-epoch-checkpoint") == []
    assert entries(log_dir / "replication-offset-checkpoint")[0] == "orders 0 0"


def test_the_cleaners_position_is_lowered_too(log_dir: Path) -> None:
    (log_dir / "cleaner-offset-checkpoint").write_text("0\n2\norders 0 60\nbystander 0 60\n")
    cut(CUT_AT_40, log_dir)
    assert entries(log_dir / "cleaner-offset-checkpoint") == ["orders 0 40", "bystander 0 60"]


def test_a_log_with_holes_ends_after_its_last_batch(tmp_path: Path) -> None:
    path = make_log_dir(tmp_path / "data")
    add_partition(path, "orders-0", {0: [batch(0, 10), batch(25, 5), batch(50, 10)]})
    done = cut(plan(("orders", 0, 40)), path)
    assert (done.results[0].message or "").startswith("log end 60 -> 30: 10 records")


def test_a_second_cut_changes_nothing(log_dir: Path) -> None:
    cut(CUT_AT_40, log_dir)
    before, own = contents(log_dir), own_files(log_dir)
    again = cut(CUT_AT_40, log_dir)
    assert (again.exit_code, outcomes(again)) == (0, [("orders", 0, "NOOP")])
    assert again.results[0].message == "ends at 40: there is nothing to truncate"
    assert (contents(log_dir), own_files(log_dir)) == (before, own)


def test_a_log_that_ends_before_the_cut_stays(log_dir: Path) -> None:
    before = contents(log_dir)
    for offset in (90, 1000):
        assert outcomes(cut(plan(("orders", 0, offset)), log_dir)) == [("orders", 0, "NOOP")]
    assert contents(log_dir) == before


def test_a_dry_run_changes_nothing(log_dir: Path) -> None:
    before = contents(log_dir)
    shown = cut(CUT_AT_40, log_dir, dry_run=True)
    assert (shown.exit_code, shown.dry_run, outcomes(shown)) == (0, True, [("orders", 0, "DONE")])
    assert (contents(log_dir), own_files(log_dir)) == (before, [])


# -- several directories -----------------------------------------------------------------------------------------------


def test_partitions_are_cut_in_every_directory(log_dir: Path, tmp_path: Path) -> None:
    second = make_log_dir(tmp_path / "second")
    add_partition(second, "orders-1", SEGMENTS)
    third = make_log_dir(tmp_path / "third")
    asked = plan(("orders", 0, 40), ("orders", 1, 60), ("orders", 2, 10))
    done = cut(asked, log_dir, second, third)
    assert outcomes(done) == [("orders", 0, "DONE"), ("orders", 1, "DONE"), ("orders", 2, "NOOP")]
    assert done.results[2].message == "not in these log directories"
    assert done.exit_code == 0
    assert not (second / ".kafka_cleanshutdown").exists()
    assert (third / ".kafka_cleanshutdown").exists()


def test_a_directory_named_twice_counts_once(log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(log_dir)
    assert outcomes(cut(CUT_AT_40, log_dir, tmp_path / "link")) == [("orders", 0, "DONE")]


def test_none_of_the_partitions_is_here(log_dir: Path) -> None:
    with pytest.raises(RefusedError, match="these log directories hold no partition of the plan"):
        cut(plan(("others", 0, 40)), log_dir)


def test_directories_of_two_brokers_are_refused(log_dir: Path, tmp_path: Path) -> None:
    second = make_log_dir(tmp_path / "second", node_id=2)
    with pytest.raises(RefusedError, match="belong to different brokers"):
        cut(CUT_AT_40, log_dir, second)


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="belongs to cluster AAAAAAAAAAAAAAAAAAAAAA, the plan is for"):
        cut(CUT_AT_40, make_log_dir(tmp_path / "other", cluster_id="AAAAAAAAAAAAAAAAAAAAAA"))


def test_a_path_that_is_not_a_log_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"is not a log directory: it has no meta\.properties"):
        cut(CUT_AT_40, tmp_path)
    with pytest.raises(UsageError, match="is not a directory"):
        cut(CUT_AT_40, tmp_path / "none")


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_a_running_broker_is_refused(log_dir: Path) -> None:
    before = contents(log_dir)
    with locked_by_another(log_dir) as answer:
        assert answer == "locked"
        for command in (cut, lambda asked, path: undo_truncation(asked, [path])):
            with pytest.raises(RefusedError, match="is in use by a broker or another command"):
                command(CUT_AT_40, log_dir)
    assert contents(log_dir) == before


def test_no_broker_starts_while_we_work(log_dir: Path) -> None:
    answers: list[str] = []

    def while_asked(_: Preview) -> bool:
        with locked_by_another(log_dir) as answer:
            answers.append(answer)
        return True

    def between_steps(_: str) -> None:
        with locked_by_another(log_dir) as answer:
            answers.append(answer)

    truncate_logs(CUT_AT_40, [log_dir], while_asked, checkpoint=between_steps)
    assert set(answers) == {"taken"}
    with locked_by_another(log_dir) as answer:
        assert answer == "locked"


def test_no_confirmation_changes_nothing(log_dir: Path) -> None:
    before = contents(log_dir)
    asked: list[Preview] = []

    def say_no(preview: Preview) -> bool:
        asked.append(preview)
        return False

    with pytest.raises(RefusedError, match="not confirmed"):
        truncate_logs(CUT_AT_40, [log_dir], say_no)
    assert (asked[0].cluster_id, asked[0].node_id, asked[0].log_dirs) == (CLUSTER_ID, "1", (log_dir,))
    assert outcomes(asked[0].result) == [("orders", 0, "DONE")]
    assert (contents(log_dir), own_files(log_dir)) == (before, [])


# -- what is refused ---------------------------------------------------------------------------------------------------


def _tiered(log_dir: Path) -> None:
    add_entry(log_dir / "log-start-offset-checkpoint", "orders 0 0")


def _trimmed(log_dir: Path) -> None:
    add_entry(log_dir / "log-start-offset-checkpoint", "orders 0 41")


def _recreated(log_dir: Path) -> None:
    (log_dir / "orders-0/partition.metadata").write_text("version: 0\ntopic_id: 15gB0VeyQkmA6mAAMkyWAQ")


def _nameless(log_dir: Path) -> None:
    (log_dir / "orders-0/partition.metadata").unlink()


def _unknown_file(log_dir: Path) -> None:
    (log_dir / "orders-0/00000000000000000030.log.swap").touch()


def _being_moved(log_dir: Path) -> None:
    (log_dir / f"orders-0.{'0a' * 16}-future").mkdir()


def _being_deleted(log_dir: Path) -> None:
    (log_dir / f"orders-0.{'0a' * 16}-delete").mkdir()


def _damaged(log_dir: Path) -> None:
    with (log_dir / "orders-0/00000000000000000030.log").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")


def _torn(log_dir: Path) -> None:
    os.truncate(log_dir / "orders-0/00000000000000000030.log", 100)


def _old_format(log_dir: Path) -> None:
    (log_dir / "orders-0/00000000000000000030.log").write_bytes(encode(batch(30, 10, magic=1)))


def _old_format_behind(log_dir: Path) -> None:
    (log_dir / "orders-0/00000000000000000060.log").write_bytes(encode(batch(60, 10, magic=1)))


def _strange_epochs(log_dir: Path) -> None:
    (log_dir / "orders-0/leader-epoch-checkpoint").write_text("9\n0\n")


REFUSED: list[tuple[Callable[[Path], None], str]] = [
    (_tiered, "has tiered storage"),
    (_trimmed, "begins at 41, after the cut at 40"),
    (_recreated, "has topic id 15gB0VeyQkmA6mAAMkyWAQ, the plan is for"),
    (_nameless, "orders-0/partition.metadata is missing"),
    (_unknown_file, "orders-0 holds 00000000000000000030.log.swap, which is unknown"),
    (_being_moved, "is being moved between log directories or deleted"),
    (_being_deleted, "is being moved between log directories or deleted"),
    (_damaged, "the batch at offset 30 is corrupt"),
    (_torn, "00000000000000000030.log ends with an incomplete batch at offset 30"),
    (_old_format, "holds message format 1"),
    (_old_format_behind, "00000000000000000060.log holds message format 1"),
    (_strange_epochs, "leader-epoch-checkpoint cannot be parsed: its version is '9'"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[spoil.__name__ for spoil, _ in REFUSED])
def test_doubtful_logs_are_refused(log_dir: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(log_dir)
    before = contents(log_dir)
    done = cut(CUT_AT_40, log_dir)
    assert (done.exit_code, outcomes(done)) == (ExitCode.REFUSED, [("orders", 0, "REFUSED")])
    assert done.error is not None
    assert message in done.error.message
    assert done.error.hint
    assert (contents(log_dir), own_files(log_dir)) == (before, [])


def test_a_cut_inside_a_batch_is_refused(log_dir: Path) -> None:
    done = cut(plan(("orders", 0, 45)), log_dir)
    assert done.exit_code == ExitCode.REFUSED
    assert done.results[0].message == "the cut at 45 is inside a batch (offsets 40 to 49)"


def test_records_that_came_after_the_plan_are_refused(log_dir: Path) -> None:
    done = cut(plan(("orders", 0, 40), expected=80), log_dir)
    assert done.exit_code == ExitCode.REFUSED
    assert done.results[0].message == "orders-0 ends at 90; it was 80 when the plan was made"
    assert cut(plan(("orders", 0, 40), expected=95), log_dir).exit_code == 0


def test_a_plan_that_was_carried_out_cuts_off_nothing_that_came_since(log_dir: Path) -> None:
    asked = plan(("orders", 0, 40), expected=90, epoch=0)
    assert cut(asked, log_dir).exit_code == 0
    # the broker runs again, and is stopped cleanly
    with (log_dir / "orders-0/00000000000000000030.log").open("ab") as log:
        log.write(encode(batch(40, 10), leader_epoch=7))
    (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":12}')
    before = contents(log_dir)
    done = cut(asked, log_dir)
    assert done.exit_code == ExitCode.REFUSED
    assert "they have leader epoch 7, which was 0 then" in str(done.results[0].message)
    assert contents(log_dir) == before
    assert cut(plan(("orders", 0, 40), expected=90, epoch=7), log_dir).exit_code == 0


def test_one_partition_in_two_directories_is_refused(log_dir: Path, tmp_path: Path) -> None:
    second = make_log_dir(tmp_path / "second")
    add_partition(second, "orders-0", SEGMENTS)
    done = cut(CUT_AT_40, log_dir, second)
    assert done.exit_code == ExitCode.REFUSED
    assert "orders-0 is in" in (done.results[0].message or "")


def test_a_checkpoint_file_that_cannot_be_parsed_is_refused(log_dir: Path) -> None:
    (log_dir / "replication-offset-checkpoint").write_text("7\n")
    before = contents(log_dir)
    with pytest.raises(RefusedError, match="replication-offset-checkpoint cannot be parsed: its version is '7'"):
        cut(CUT_AT_40, log_dir)
    assert contents(log_dir) == before


def test_the_other_partitions_are_still_cut(log_dir: Path) -> None:
    done = cut(plan(("bystander", 0, 40), ("orders", 0, 45)), log_dir)
    assert (done.exit_code, outcomes(done)) == (
        ExitCode.PARTLY_DONE,
        [("bystander", 0, "DONE"), ("orders", 0, "REFUSED")],
    )


def test_files_that_brokers_leave_behind_are_ignored(log_dir: Path) -> None:
    (log_dir / "orders-0/00000000000000000000.timeindex.deleted").touch()
    (log_dir / "orders-0/leader-epoch-checkpoint.tmp").touch()
    assert cut(CUT_AT_40, log_dir).exit_code == 0


def test_the_unclean_end_of_the_last_segment_is_removed_too(log_dir: Path) -> None:
    with (log_dir / "orders-0/00000000000000000060.log").open("ab") as file:
        file.write(bytes(500))
    assert (cut(CUT_AT_40, log_dir).results[0].message or "").startswith("log end 90 -> 40: 50 records")


def test_holes_do_not_hide_a_batch_that_spans_the_cut(tmp_path: Path) -> None:
    path = make_log_dir(tmp_path / "data")
    with_holes = LogBatch(20, 49, batch(20, 5).records, 1_700_000_000_000)
    add_partition(path, "orders-0", {0: [batch(0, 10), with_holes, batch(50, 10)]})
    assert cut(plan(("orders", 0, 30)), path).exit_code == ExitCode.REFUSED
    assert cut(plan(("orders", 0, 50)), path).exit_code == 0


# -- transactions ------------------------------------------------------------------------------------------------------


def _transactional(base_offset: int, producer_id: int, marker: str | None = None) -> LogBatch:
    records = (control_record(base_offset, 1, marker, 0),) if marker else batch(base_offset, 10).records
    end = records[-1].offset
    return LogBatch(
        base_offset, end, records, 1, producer_id=producer_id, producer_epoch=0, transaction=1, marker=marker
    )


def test_a_transaction_that_would_lose_its_end_is_removed_whole(tmp_path: Path) -> None:
    path = make_log_dir(tmp_path / "data")
    ended = [_transactional(0, 7), _transactional(10, 7, "COMMIT"), _transactional(11, 8)]
    later = [_transactional(21, 9), _transactional(31, 8, "COMMIT"), _transactional(32, 9, "ABORT")]
    folder = add_partition(path, "orders-0", {0: ended, 21: later})
    snapshot = struct.pack(">hIi", 1, 0, 2)
    snapshot += struct.pack(">qhiqiqiq", 7, 0, 9, 9, 9, 1, 0, -1) + struct.pack(">qhiqiqiq", 8, 0, 9, 20, 9, 1, 0, 11)
    (folder / f"{21:020d}.snapshot").write_bytes(snapshot)

    def end_of(cut_offset: int) -> str:
        return (cut(plan(("orders", 0, cut_offset)), path, dry_run=True).results[0].message or "").split(":")[0]

    assert end_of(11) == "log end 33 -> 11"
    assert end_of(21) == "log end 33 -> 11", "producer 8 began in the segment before"
    assert end_of(31) == "log end 33 -> 11", "producer 9 began at 21, and there 8 is open"
    assert end_of(32) == "log end 33 -> 11", "producer 9 began at 21, and there 8 is open"
    assert end_of(10) == "log end 33 -> 0"
    done = cut(plan(("orders", 0, 32)), path)
    assert (done.results[0].message or "").endswith(
        "; not at 32, but where a transaction begins that would have lost its end"
    )
    assert outcomes(cut(plan(("orders", 0, 32)), path)) == [("orders", 0, "NOOP")]
