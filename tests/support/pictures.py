"""Take the pictures of the page that docs/pictures has: `python -m tests.support.pictures [FOLDER]`.

Chromium draws them in the font that the system has for `system-ui`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kmirror.web.look import page_text
from kmirror.web.report_page import page
from tests.support import fleet_page
from tests.support.browser import chromium
from tests.support.page_server import history, json_body, serving, status
from tests.support.report_facts import report_facts

_FOLDER = Path(__file__).parent.parent.parent / "docs" / "pictures"
#: Each picture: its name, the page it is of, its width and height, and whether it is dark.
_PICTURES = (
    ("fleet-1280", "fleet/", 1280, 1010, False),
    ("fleet-390-dark", "fleet/", 390, 1400, True),
    ("mirror-1280", "fleet/#/mirror/frankfurt/orders", 1280, 1560, False),
    ("page-1280", "engine/", 1280, 1200, False),
    ("page-390-dark", "engine/", 390, 1300, True),
    ("report-1280", "report.html", 1280, 1500, False),
    ("report-390", "report.html", 390, 1300, False),
)


def bodies(path: str, query: str) -> bytes | None:
    """Return what is at a path: a fleet, an engine with one mirror, or a report."""
    if path.endswith("/"):
        return page_text()
    if path == "/report.html":
        return page(report_facts()).encode()
    if path.startswith("/fleet/"):
        return fleet_page.body(path.removeprefix("/fleet"), query)
    engine = status(ready=False, missing="dr: shop.orders-0000-0 FAILED (SOURCE_DIVERGED)")
    answers = {"fleet.json": engine | {"clusters": []}, "status.json": engine, "history.json": history()}
    found = answers.get(path.removeprefix("/engine/"))
    return None if found is None else json_body(found)


def take(folder: Path, only: str = "") -> Iterator[str]:
    """Write the pictures; yield their names."""
    with serving(bodies) as address:
        for name, path, width, height, is_dark in _PICTURES:
            if only in name:
                _take(f"{address}/{path}", folder / f"{name}.png", width, height, is_dark=is_dark)
                yield name


def _take(address: str, file: Path, width: int, height: int, *, is_dark: bool) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        subprocess.run(
            (
                *(chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(["--blink-settings=preferredColorScheme=0"] if is_dark else []),
                *(f"--user-data-dir={profile}", f"--window-size={width},{height}", "--virtual-time-budget=4000"),
                *(f"--screenshot={file}", address),
            ),
            check=True,
            capture_output=True,
            timeout=60,
        )


if __name__ == "__main__":
    for one in take(Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER, "".join(sys.argv[2:])):
        sys.stdout.write(f"{one}\n")
