"""The file of `--report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror.cli.report import Report
from kmirror.errors import UsageError


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


@pytest.mark.parametrize("held", ["my notes", "[]", "{}", '{"verb": "verify", "earlier": 1}'])
def test_a_file_of_something_else_is_not_replaced(tmp_path: Path, held: str) -> None:
    file = tmp_path / "notes"
    file.write_text(held, encoding="utf-8")
    with pytest.raises(UsageError, match="something else"):
        Report.at(str(file))
    assert file.read_text(encoding="utf-8") == held


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere/evidence.json", "No such file or directory"), ("folder", "is a folder")],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=message):
        Report.at(str(tmp_path / path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder"]
