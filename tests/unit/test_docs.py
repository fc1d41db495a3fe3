"""The docs and the code say the same: every setting has its row, every verb and reason its place."""

from __future__ import annotations

from pathlib import Path

from kmirror.errors import ExitCode
from kmirror.settings import describe

DOCS = Path(__file__).parent.parent.parent / "docs"


def settings_table() -> str:
    """Return the table of docs/settings.md as the settings themselves tell it."""
    lines = ["| setting | allowed | default | changeable | what it does |", "|---|---|---|---|---|"]
    for row in describe():
        names = f"`{row['key']}`" + "".join(f"<br>`{alias}`" for alias in row["aliases"].split(", ") if alias)
        allowed = row["allowed"].replace("|", "or")
        lines.append(f"| {names} | {allowed} | {row['default'] or '–'} | {row['changeable']} | {row['help']} |")
    return "\n".join(lines)


def test_every_setting_is_documented_as_it_is() -> None:
    assert settings_table() in (DOCS / "settings.md").read_text()


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "operating.md").read_text()
    assert [code for code in ExitCode if f"| {int(code)} |" not in text] == []
