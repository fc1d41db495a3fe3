"""The page and a report in a real browser, where there is one: they are drawn, and fit a desk and a telephone."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from kmirror.web.look import page_text
from kmirror.web.report_page import page
from tests.support.browser import chromium
from tests.support.page_server import history, json_body, serving, status
from tests.support.report_facts import report_facts

#: Looks at documents of the same address through windows of several widths, and writes down what it sees.
LOOK = """<!doctype html><title>look</title><body><script>
const seen = [], views = [];
for (const path of ["page.html", "report.html"]) for (const width of [1280, 1000, 800, 600, 390]) {
  const view = document.createElement("iframe");
  view.width = width; view.height = 900; view.src = path;
  document.body.append(view);
  views.push([path, width, view]);
}
setTimeout(() => {
  for (const [path, width, view] of views) {
    const root = view.contentDocument.documentElement;
    const is_cut = one => one.clientWidth && one.scrollWidth > one.clientWidth + 1;
    const cut = [...root.querySelectorAll("td > span, dd, p, .table, th")].filter(is_cut).map(one => one.textContent);
    const count = what => root.querySelectorAll(what).length;
    const alarm = root.querySelector(".alarm")?.textContent;
    seen.push({ path, width, whole: root.scrollWidth, rows: count("tbody tr"), lines: count("path.line"), cut, alarm });
  }
  document.body.textContent = JSON.stringify(seen);
}, 3000);
</script>"""


#: Looks at a report that others wrote parts of, and at one whose script may not run.
LOOK_INTO_REPORTS = """<!doctype html><title>look</title><body><script>
const view = (path, sandbox) => {
  const made = document.createElement("iframe");
  if (sandbox) made.sandbox = sandbox;
  made.src = path;
  document.body.append(made);
  return made;
};
const hostile = view("hostile.html"), silent = view("report.html", "allow-same-origin");
setTimeout(() => {
  const seen = [hostile, silent].map(({ contentDocument: { documentElement: root }, contentWindow }) => ({
    owned: contentWindow.owned ?? null, images: root.querySelectorAll("img").length,
    rows: root.querySelectorAll("tbody tr").length, text: root.innerText,
  }));
  document.body.textContent = JSON.stringify(seen);
}, 3000);
</script>"""


def seen_in_browser(bodies: Mapping[str, bytes], profile: Path) -> Any:
    """Return what the script of the first page writes into it."""
    with serving(bodies) as address:
        done = subprocess.run(
            (
                *(chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *(f"--user-data-dir={profile}", "--virtual-time-budget=10000", f"{address}/"),
            ),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    found = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert found is not None, done.stdout
    return json.loads(unescape(found[1]))


def test_a_report_runs_nothing_that_others_wrote_and_has_a_summary_without_its_script(tmp_path: Path) -> None:
    facts = report_facts()
    attack = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'><!--"
    poisoned = facts.status.changed(lambda row: replace(row, topic=f"{row.topic}{attack}", error_message=attack))
    hostile = replace(facts, status=replace(poisoned, record=replace(facts.status.record, created_by=attack)))
    bodies = {
        "/": LOOK_INTO_REPORTS.encode(),
        "/hostile.html": page(hostile).encode(),
        "/report.html": page(facts).encode(),
    }
    attacked, silent = seen_in_browser(bodies, tmp_path)
    assert (attacked["owned"], attacked["images"]) == (None, 0)
    assert attacked["rows"] >= 10
    assert attacked["text"].count(attack) >= 5
    assert silent["rows"] == 0
    assert "the destination lacked 160 offsets." in silent["text"]
    assert "Tables and charts need JavaScript." in silent["text"]


def test_nothing_is_cut_and_nothing_scrolls_sideways(tmp_path: Path) -> None:
    bodies = {
        "/": LOOK.encode(),
        "/page.html": page_text(),
        "/report.html": page(report_facts()).encode(),
        "/status.json": json_body(status(ready=False, missing="dr: shop.orders-0000-0 FAILED")),
        "/history.json": json_body(history()),
    }
    seen = seen_in_browser(bodies, tmp_path)
    assert [(one["path"], one["width"]) for one in seen] == [
        (path, width) for path in ("page.html", "report.html") for width in (1280, 1000, 800, 600, 390)
    ]
    for one in seen:
        assert one["whole"] <= one["width"], one
        assert one["cut"] == [], one
        assert one["lines"] >= 3, one
        assert one["rows"] >= 10, one
    # it is the answer's own Date that tells how old what it says is: these were written long ago
    assert "old and may be wrong" in seen[0]["alarm"]
