"""The page and a report in a real browser, where there is one: they are drawn, and fit a desk and a telephone."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from kmirror.web.report_page import page
from tests.support.browser import chromium
from tests.support.page_server import Bodies, serving
from tests.support.pictures import bodies
from tests.support.report_facts import report_facts

#: The page of a fleet, of one of its mirrors, of a topic, of an engine with one mirror, and a report.
PATHS = (
    "fleet/",
    "fleet/#/mirror/frankfurt/orders",
    "fleet/#/mirror/frankfurt/orders/topic/orders.placed",
    "engine/",
    "report.html",
)
WIDTHS = (1280, 1000, 800, 600, 390)
#: Looks at documents of the same address through windows of several widths, and writes down what it sees.
LOOK = """<!doctype html><title>look</title><body><script>
const seen = [], views = [];
for (const path of PATHS) for (const width of WIDTHS) {
  const view = document.createElement("iframe");
  view.width = width; view.height = 900; view.src = path;
  document.body.append(view);
  views.push([path, width, view]);
}
const wait = ms => new Promise(done => setTimeout(done, ms));
(async () => {
  const has = (view, what, least) => view.contentDocument?.querySelectorAll(what).length >= least;
  for (const [path, , view] of views)
    for (let turn = 0; turn < 2000; turn++) {
      if (has(view, "tbody tr", 3) && (path.includes("topic") || has(view, "path.line", 4))) break;
      await wait(25);
    }
  await wait(100);
  for (const [path, width, view] of views) {
    const root = view.contentDocument.documentElement;
    // a busy browser asks late, and then the page says so
    const is_late = () => (root.querySelector("#alarm")?.textContent || "").includes("may be wrong");
    for (let turn = 0; turn < 2000 && is_late(); turn++) await wait(25);
    const is_cut = one => one.clientWidth && one.scrollWidth > one.clientWidth + 1 && !one.classList.contains("why");
    const parts = "td > span, td > div, dd, p, li, .table, th, figure, button";
    const cut = [...root.querySelectorAll(parts)].filter(is_cut).map(one => one.textContent);
    const count = what => [...root.querySelectorAll(what)].filter(one => one.getClientRects().length).length;
    const alarm = root.querySelector("#alarm")?.textContent;
    seen.push({ path, width, whole: root.scrollWidth, rows: count("tbody tr"), lines: count("path.line"), cut, alarm });
  }
  await fetch("seen", { method: "POST", body: JSON.stringify(seen) });
})();
</script>"""

#: Uses the page of a fleet as its reader does, and writes down what it sees after each step.
USE = """<!doctype html><title>use</title><body><script>
const view = document.createElement("iframe");
view.width = WIDTH; view.height = 900; view.src = "fleet/";
document.body.append(view);
const wait = ms => new Promise(done => setTimeout(done, ms));
const all = what => [...view.contentDocument.querySelectorAll(what)].filter(one => one.getClientRects().length);
const one = what => all(what)[0];
async function until(what, is_so) {
  for (let turn = 0; turn < 2000; turn++) {
    try { if (is_so()) return; } catch (error) { /* not yet */ }
    await wait(25);
  }
  throw new Error("never: " + what);
}
const texts = what => all(what).map(found => found.textContent);
function type(what, text) {
  one(what).value = text;
  one(what).dispatchEvent(new Event("input", { bubbles: true }));
}
const press = key => one(".plot").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
(async () => {
  const seen = {};
  await until("the fleet", () => all(".fleet tbody tr .spark").length >= 6);
  seen.mirrors = texts(".fleet tbody .name a");
  one("[data-health=bad]").click();
  seen.bad = texts(".fleet tbody .name a");
  one("[data-health=bad]").click();
  type("#fleet-filter", "orders");
  seen.filtered = texts(".fleet tbody .name a");
  one(".fleet tbody .name a").click();
  await until("the mirror", () => all(".graph").length === 4 && all("#rows tr").length > 5);
  seen.title = one("h2.title").textContent;
  seen.hash = view.contentWindow.location.hash;
  seen.events = texts(".events li p");
  one(".plot").focus();
  press("Home");
  press("ArrowRight");
  seen.read = one(".plot").getAttribute("aria-valuetext");
  seen.tips = texts(".tip").length;
  one(".plot").blur();
  seen.hidden = texts(".tip").length;
  const { left, width, top } = one(".plot .field").getBoundingClientRect();
  const at = { clientX: left + width / 2, clientY: top + 9, bubbles: true };
  one(".plot .field").dispatchEvent(new PointerEvent("pointermove", at));
  seen.pointed = texts(".tip");
  seen.focus_kept = (one("#filter").focus(), await wait(3000), view.contentDocument.activeElement.id);
  all("#ranges a")[1].click();
  await until("six hours", () => texts(".x text").includes("22:00"));
  seen.range = view.contentWindow.location.hash;
  type("#filter", "placed failed");
  seen.topics = texts("#rows a");
  one("#rows a").click();
  await until("the topic", () => all("#topic tbody tr").length === 3);
  seen.partitions = texts("#topic tbody tr td:nth-child(2)");
  view.contentWindow.history.back();
  await until("the mirror again", () => all(".graph").length === 4);
  seen.range_again = view.contentWindow.location.hash;
  view.contentWindow.history.back();
  view.contentWindow.history.back();
  await until("the fleet again", () => all(".fleet tbody tr").length === 1);
  seen.filter_again = one("#fleet-filter").value;
  seen.whole = view.contentDocument.documentElement.scrollWidth;
  return seen;
})().catch(error => ({ error: String(error) }))
  .then(seen => fetch("seen", { method: "POST", body: JSON.stringify(seen) }));
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
(async () => {
  for (const [made, what, least] of [[hostile, "tbody tr", 10], [silent, "noscript", 1]])
    while (!(made.contentDocument?.querySelectorAll(what).length >= least))
      await new Promise(done => setTimeout(done, 25));
  const seen = [hostile, silent].map(({ contentDocument: { documentElement: root }, contentWindow }) => ({
    owned: contentWindow.owned ?? null, images: root.querySelectorAll("img").length,
    rows: root.querySelectorAll("tbody tr").length, text: root.innerText,
  }));
  await fetch("seen", { method: "POST", body: JSON.stringify(seen) });
})();
</script>"""


def seen_in_browser(bodies: Bodies, profile: Path, expected: str | None = None) -> Any:
    """Return what the script of the first page posts; only what is expected may be written to the console."""
    posted: Queue[bytes] = Queue()
    with serving(bodies, posted) as address, (profile / "console").open("w+") as console:
        browser = subprocess.Popen(
            (
                *(
                    chromium(),
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--enable-logging=stderr",
                    "--log-level=0",
                ),
                *("--remote-debugging-port=0", f"--user-data-dir={profile / 'profile'}", f"{address}/"),
            ),
            stdout=subprocess.DEVNULL,
            stderr=console,
        )
        try:
            found = posted.get(timeout=240)
        finally:
            browser.terminate()
            browser.wait(30)
            console.seek(0)
            said = [line for line in console if ":CONSOLE" in line]
        assert [line for line in said if expected is None or expected not in line] == []
    return json.loads(found)


def test_a_report_runs_nothing_that_others_wrote_and_has_a_summary_without_its_script(tmp_path: Path) -> None:
    facts = report_facts()
    attack = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'><!--"
    poisoned = facts.status.changed(lambda row: replace(row, topic=f"{row.topic}{attack}", error_message=attack))
    hostile = replace(facts, status=replace(poisoned, record=replace(facts.status.record, created_by=attack)))
    reports = {
        "/": LOOK_INTO_REPORTS.encode(),
        "/hostile.html": page(hostile).encode(),
        "/report.html": page(facts).encode(),
    }
    attacked, silent = seen_in_browser(reports, tmp_path, "Blocked script execution")
    assert (attacked["owned"], attacked["images"]) == (None, 0)
    assert attacked["rows"] >= 10
    assert attacked["text"].count(attack) >= 5
    assert silent["rows"] == 0
    assert "the destination lacked 160 offsets of 8 partitions." in silent["text"]
    assert "Tables and charts need JavaScript." in silent["text"]


def pages(first: str) -> Bodies:
    """Return what is at each path, with this page first."""

    return lambda path, query: first.encode() if path == "/" else bodies(path, query)


def test_nothing_is_cut_and_nothing_scrolls_sideways(tmp_path: Path) -> None:
    look = LOOK.replace("PATHS", json.dumps(PATHS)).replace("WIDTHS", json.dumps(WIDTHS))
    seen = seen_in_browser(pages(look), tmp_path)
    assert [(one["path"], one["width"]) for one in seen] == [(path, width) for path in PATHS for width in WIDTHS]
    for one in seen:
        assert one["whole"] <= one["width"], one
        assert one["cut"] == [], one
        assert one["lines"] >= (0 if "topic" in one["path"] else 3), one
        assert one["rows"] >= (3 if "topic" in one["path"] else 5), one
    assert {one["path"]: one["alarm"] for one in seen} == {
        "fleet/": "",
        "fleet/#/mirror/frankfurt/orders": "Not all records flow: orders.placed-3 FAILED",
        "fleet/#/mirror/frankfurt/orders/topic/orders.placed": "Not all records flow: orders.placed-3 FAILED",
        "engine/": "Not all records flow: dr: shop.orders-0000-0 FAILED (SOURCE_DIVERGED)",
        "report.html": "",
    }


@pytest.mark.parametrize("width", [1280, 390])
def test_a_reader_goes_from_the_fleet_to_a_topic_and_back(width: int, tmp_path: Path) -> None:
    seen = seen_in_browser(pages(USE.replace("WIDTH", str(width))), tmp_path)
    assert "error" not in seen, seen
    assert (seen["mirrors"][:2], len(seen["mirrors"])) == (["orders", "payments"], 8)
    assert (seen["bad"], seen["filtered"]) == (["orders", "payments"], ["orders"])
    assert (seen["title"], seen["hash"]) == ("Mirror orders FAILED SOURCE_DIVERGED", "#/mirror/frankfurt/orders")
    assert seen["events"][0].startswith("orders.placed-3 FAILED SOURCE_DIVERGED: the logs differ")
    # the second point, by the keyboard, in all charts; then the middle of the hour, by the pointer
    assert re.fullmatch(r"02:06:30 UTC: [0-9]+ offsets", seen["read"])
    assert (seen["tips"], seen["hidden"]) == (4, 0)
    assert len(seen["pointed"]) == 4
    assert all(re.search(r" 02:3[56]:[0-9]{2} UTC$", tip) for tip in seen["pointed"]), seen["pointed"]
    assert seen["focus_kept"] == "filter"
    assert seen["range"] == seen["range_again"] == "#/mirror/frankfurt/orders?range=6h"
    assert seen["topics"] == ["orders.placed"]
    assert [text.split()[0] for text in seen["partitions"]] == ["FAILED", "MIRRORING", "MIRRORING"]
    assert seen["filter_again"] == "orders"
    assert seen["whole"] <= width
