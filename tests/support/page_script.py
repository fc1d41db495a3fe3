"""The script of the page, run by a real engine of JavaScript, in as much of a browser as it touches."""

from __future__ import annotations

import json
import re
from typing import Any

from py_mini_racer import MiniRacer

from kmirror.web.look import script
from tests.support.report_facts import NOW
from tests.support.strict_html import StrictHtml

#: Elements by id, questions and timers that the test answers.
BROWSER = """
const elements = {}, questions = [], timers = [];
let clock = NOW;
Date.now = () => clock;
class AbortController { signal = { aborted: false }; abort() { this.signal.aborted = true; } }
function setTimeout(work, ms) { timers.push([work, ms]); return timers.length - 1; }
function setInterval(work, ms) { globalThis.everySecond = work; }
function clearTimeout(timer) {}
const location = { hash: "" }, history = { replaceState() {} }, heardByWindow = {};
let scrollY = 0;
function scrollTo(x, y) { scrollY = y; }
function addEventListener(what, work) { heardByWindow[what] = work; }
function go(hash) { location.hash = hash; heardByWindow.hashchange(); }
function fetch(path) { return new Promise((answer, fail) => questions.push({ path, answer, fail })); }
function element(id) {
  return { id, innerHTML: "", textContent: "", hidden: false, value: "", checked: false, className: "", heard: {},
           addEventListener(what, work) { this.heard[what] = work; } };
}
const document = {
  hidden: false, title: "", getElementById: id => elements[id] ||= element(id), addEventListener() {},
};
function newest(path) {
  const place = questions.map(one => one.path.split("?")[0]).lastIndexOf(path);
  if (place < 0) throw new Error("nothing asks for " + path + " but " + questions.map(one => one.path));
  return questions.splice(place, 1)[0];
}
function answer(path, status, text) {
  const headers = { get: () => new Date(NOW).toUTCString() };
  newest(path).answer({ ok: status === 200, status, text: async () => text, headers });
}
function turn() { for (const [work, ms] of timers.splice(0)) if (ms < 15000) work(); }
""".replace("NOW", str(NOW))

_REPORT = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)


class Script:
    """Call the functions of the page."""

    def __init__(self, before: str = "") -> None:
        self._engine = MiniRacer()
        self._engine.eval(before + script())

    def run(self, code: str) -> Any:
        """Return what an expression gives, once all promises are kept that can be."""
        return json.loads(str(self._engine.eval(f"JSON.stringify({code})")))

    def __call__(self, function: str, *arguments: object) -> Any:
        given = ", ".join(json.dumps(one) for one in arguments)
        return self.run(f"{function}({given}) ?? null")


def inlined(report: str) -> str:
    """Return the data that a report has within itself, as it is written there."""
    (found,) = _REPORT.findall(report)
    return str(found)


def drawn(report: str) -> str:
    """Return the markup of a report once its script has run."""
    given = f"elements.report = {{ ...element('report'), textContent: {json.dumps(inlined(report))} }};"
    page = Script(BROWSER + given)
    assert page.run("questions") == []
    places = ("mirrors", "charts", "heads", "rows", "more", "tables", "events", "more-events")
    made = page.run(f"{[*places]}.map(id => elements[id].innerHTML || elements[id].textContent)")
    mirrors, charts, heads, rows, more, tables, events, more_events = made
    topics = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    static = _REPORT.sub("", report).rpartition("<footer>")
    return "\n".join((static[0], mirrors, charts, topics, more, tables, events, more_events, *static[1:]))


def text_of(report: str) -> str:
    """Return all words that a report shows, with `|` after each cell and a row on each line."""
    marked = re.sub(r"(</tr>|</p>|</dd>|</h2>|</summary>|</li>)", r"\n\1", drawn(report).replace("</td>", "|</td>"))
    return StrictHtml(marked).text()
