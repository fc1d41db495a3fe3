"""The file of `--report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror.cli.report import Report
from kmirror.errors import UsageError


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    file.write_text("old", encoding="utf-8")
    report = Report.at(str(file))
    assert file.read_text(encoding="utf-8") == "old"
    report.write({"verb": "verify", "warnings": ["größer"]})
    assert json.loads(file.read_text(encoding="utf-8")) == {"verb": "verify", "warnings": ["größer"]}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere/evidence.json", "No such file or directory"), ("folder", "is a folder")],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=message):
        Report.at(str(tmp_path / path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder"]
