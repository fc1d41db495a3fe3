"""The evidence of a rehearsal: its verdict, its page, and the folder that shows a trend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.errors import ExitCode, UsageError
from kmirror_rehearse.rehearsal_evidence import (
    ClusterUsed,
    FailoverStep,
    Loss,
    PhaseName,
    PhaseResult,
    RecoveryTimes,
    Rehearsal,
    RehearsalPhase,
    RehearsedTopic,
)
from kmirror_rehearse.rehearsal_files import RehearsalFolder
from kmirror_rehearse.rehearsal_findings import Kind, bad, warn
from kmirror_rehearse.rehearsal_page import rehearsal_page, summary
from tests.support.json_documents import check

HOUR_MS = 3_600_000
PASSED = Rehearsal(
    began_ms=1_795_000_000_000,
    ended_ms=1_795_000_090_000,
    operator="ops@host",
    source=ClusterUsed(cluster_id="source-id", bootstrap_server="a:9092"),
    destination=ClusterUsed(cluster_id="there-id", bootstrap_server="b:9092", is_sandbox=True),
    window_ms=HOUR_MS,
    phases=(RehearsalPhase(phase=PhaseName.COPY, result=PhaseResult.DONE, began_ms=1, seconds=3.5, message="copy"),),
    recovery=RecoveryTimes(
        noticed=1.0, failed_over=2.5, written=3.0, checked=4.0, steps=(FailoverStep(step="fenced", seconds=0.25),)
    ),
    loss=Loss(reported_least=3, reported_most=9, counted=5, behind=0),
    topics=(RehearsedTopic(topic="orders", partitions=2, offsets=10, reported=3, lost=5, written=True, read=True),),
    findings=(),
)
EVIL = bad(Kind.NOT_COPIED, "<script>alert(1)</script>", "a\x1b[31m<b>", "do it")


def test_the_exit_code_is_the_worst_of_the_findings() -> None:
    assert (PASSED.exit_code, PASSED.error) == (ExitCode.OK, None)
    warned = replace(PASSED, findings=(warn(Kind.UNKNOWN, "clients", "which"),))
    assert (warned.exit_code, warned.error) == (ExitCode.OK, None)
    found = replace(PASSED, findings=(warn(Kind.UNKNOWN, "x", "y"), EVIL))
    assert found.exit_code is ExitCode.PARTLY_DONE
    assert found.error is not None
    assert found.error.hint == "do it"
    assert replace(found, findings=(*found.findings, bad(Kind.CONTENTS_DIFFER, "t", "d"))).exit_code == 7


def test_the_rto_is_that_of_the_check_and_unknown_without_a_write() -> None:
    assert PASSED.recovery.seconds == 4.0
    assert replace(PASSED.recovery, checked=None).seconds == 3.0
    assert replace(PASSED.recovery, written=None).seconds is None
    assert ("bad", "Clients could not write to all topics after the failover.") in summary(
        replace(PASSED, recovery=RecoveryTimes(noticed=None))
    )


def test_the_document_is_as_declared() -> None:
    document = json.loads(json.dumps(replace(PASSED, findings=(EVIL,)).to_json()))
    check("rehearsal", document)
    assert document["recovery"]["seconds"] == 4.0
    assert document["exitCode"] == 4


def test_the_page_tells_the_summary_and_shows_foreign_text_escaped() -> None:
    page = rehearsal_page(replace(PASSED, findings=(EVIL,), loss=replace(PASSED.loss, behind=7)))
    assert "found 1 problem" in page
    assert "Clients could write 4.0 s after the source was cut off" in page
    assert "Lost, as counted: 5 records; the failover reported 3 to 9." in page
    assert "7 records behind it" in page
    assert "<script" not in page
    assert "\x1b" not in page
    assert "Earlier rehearsals" not in page


def test_the_folder_keeps_each_rehearsal_and_shows_the_trend(tmp_path: Path) -> None:
    folder = RehearsalFolder.at(str(tmp_path / "evidence"))
    first = folder.write(PASSED)
    assert "Earlier" not in first.read_text()
    (folder.path / "rehearsal-other.json").write_text("{")
    (folder.path / "rehearsal-old.json").write_text('{"version": 0, "verb": "rehearse"}')
    later = replace(PASSED, began_ms=PASSED.began_ms + HOUR_MS, recovery=RecoveryTimes(noticed=None), findings=(EVIL,))
    second = folder.write(later)
    assert second != first
    page = second.read_text()
    assert "Earlier rehearsals" in page
    assert page.count("<rect") == 3 + 2 - 3  # nothing was reached: only those of the trend
    assert "NOT_COPIED" in page
    assert [one["beganMs"] for one in folder.earlier()] == [PASSED.began_ms, later.began_ms]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out: cannot write"):
        RehearsalFolder.at(str(tmp_path / "file"))
