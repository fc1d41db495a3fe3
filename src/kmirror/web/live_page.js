"use strict";
// What the page of a running engine shows. The functions up to `start` are pure: documents in, markup out.

const HOUR_MS = 3600000, GAP_MS = 150000, STALE_MS = 10000, MOST_ROWS = 500, UNKNOWN = "-";
// From the declarations in Python: states by their colour and order, results of events, and key, heading and kind of columns.
const { BAD, FINE, ORDER, BAD_RESULTS, COLUMNS } = {/* look */};

// -- words ---------------------------------------------------------------------------------------------------------

/** Return text in which characters that are not shown, or turn others around, are escapes. */
function visible(text) {
  return String(text).replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, found => "\\u{" + found.codePointAt(0).toString(16) + "}");
}

function escaped(text) {
  return visible(text).replace(/[&<>"']/g, found => `&#${found.charCodeAt(0)};`);
}

/** Return text as markup in which no time is broken at the end of a line. */
function prose(text) {
  return escaped(text).replace(/\d{4}-\d\d-\d\dT[\d:]{8}Z/g, "<time>$&</time>");
}

function number(value, bound) {
  return value === null || value === undefined ? UNKNOWN : (bound || "") + Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

function duration(ms, bound) {
  if (ms === null || ms === undefined) return UNKNOWN;
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  let seconds = Math.floor(ms / 1000);
  if (seconds < 1) return (bound || "") + (ms > 0 ? "<1s" : "0s");
  const parts = [];
  for (const [unit, size] of units) {
    const count = Math.floor(seconds / size);
    if (count || parts.length) parts.push(count ? count + unit : "");
    seconds -= count * size;
  }
  return (bound || "") + parts.slice(0, 2).join("");
}

function rate(bytes) {
  if (bytes === null || bytes === undefined) return UNKNOWN;
  for (const [size, unit] of [[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "KB/s"]])
    if (bytes >= size) return (bytes / size).toFixed(1) + " " + unit;
  return Math.round(bytes) + " B/s";
}

function atTime(ms) {
  return ms === null || ms === undefined ? UNKNOWN : new Date(ms).toISOString().slice(0, 19) + "Z";
}

function counted(count, noun) {
  return number(count) + " " + noun + (count === 1 ? "" : "s");
}

// -- topics --------------------------------------------------------------------------------------------------------

/** Add what may be unknown: the sum of what is known, null where nothing is. */
function sumOf(values) {
  const known = values.filter(value => value !== null && value !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

/** Return what topics are sorted by. What is not known may be the largest; what has stopped is not behind. */
function rankOf(row, [key, , kind]) {
  if (key === "state") return ORDER.indexOf(row.state);
  const value = key === "lag" && row.lagUnknown ? null : row[key];
  return value !== null ? value : kind === "rate" || row.state === "STOPPED" ? -1 : Infinity;
}

/** Return the topics to show: those that have all the words, in the order of a column. Unknown lag counts as the largest. */
function chosen(topics, words, column, down) {
  const wanted = words.toLowerCase().split(/\s+/).filter(word => word);
  const by = COLUMNS.find(one => one[1] === column) || COLUMNS.find(one => one[1] === "STATE");
  const compared = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  return topics
    .filter(row => {
      const text = [row.mirror, row.topic, row.state, ...row.reasons].join(" ").toLowerCase();
      return wanted.every(word => text.includes(word));
    })
    .sort((a, b) => (down ? -1 : 1) * compared(rankOf(a, by), rankOf(b, by)) || compared(a.topic, b.topic) || compared(a.mirror, b.mirror));
}

function kindOf(state, reasons, failed) {
  if (BAD.includes(state) || failed) return "bad";
  return !FINE.includes(state) || (state === "ACTIVE" && reasons.length) ? "warn" : state === "STOPPED" ? "soft" : "ok";
}

function cell(head, content, kind, isNumber) {
  return `<td data-head="${head}"${isNumber ? ' class="number"' : ""}><span class="${kind}">${content}</span></td>`;
}

const SHOWN = { text: escaped, number, duration, rate };

function topicCell(row, [key, head, kind], several) {
  if (key === "topic") return cell(head, escaped(row.topic) + (several ? ` <small>${escaped(row.mirror)}</small>` : ""), "prose");
  if (key !== "state") return cell(head, SHOWN[kind](row[key], key === "lag" && row.lagUnknown ? "≥ " : ""), "", kind !== "text");
  const failed = row.failed ? `, ${row.failed} FAILED` : "", color = kindOf(row.state, row.reasons, row.failed);
  const state = [row.state, ...row.reasons.slice(0, 3).map(reason => `(${reason})`)].join(" ") + failed;
  const message = row.errorMessage && color !== "ok" && row.state !== "STOPPED" ? `<small class="prose">${prose(row.errorMessage)}</small>` : "";
  const filling = row.offsetsToFill ? `<small class="prose">${counted(row.offsetsToFill, "offset")} without records to fill</small>` : "";
  return cell(head, escaped(state) + message + filling, color + " words");
}

function topicRow(row, several) {
  return "<tr>" + COLUMNS.map(column => topicCell(row, column, several)).join("") + "</tr>";
}

/** Return what the run does now, in words. */
function phaseOf(status) {
  const topics = status.topics || [];
  return topics.length && topics.every(row => row.state === "STOPPED") ? "nothing to copy: all topics are stopped" : status.phase;
}

// -- mirrors -------------------------------------------------------------------------------------------------------

/** Draw a value over the hour until `until` as lines that end where it is not known. */
function spark(points, key, until) {
  const from = until - HOUR_MS, known = points.filter(point => point.timeMs >= from && point.timeMs <= until);
  const top = Math.max(0, ...known.map(point => point[key] === null ? 0 : point[key])) || 1;
  const paths = [];
  let path = [], before = null;
  const end = () => {
    if (path.length) paths.push(`<path class="line" d="M${path.join(" ")}${path.length === 1 ? " h0.01" : ""}"/>`);
    path = [];
  };
  for (const point of known) {
    if (point[key] === null || (before !== null && point.timeMs - before > GAP_MS)) end();
    if (point[key] === null) { before = null; continue; }
    before = point.timeMs;
    path.push(`${((point.timeMs - from) / HOUR_MS * 720).toFixed(1)},${(98 - point[key] / top * 96).toFixed(1)}`);
  }
  end();
  return `<svg class="spark" viewBox="0 0 720 100" preserveAspectRatio="none" aria-hidden="true">${paths.join("")}</svg>`;
}

function sparks(points, until) {
  const from = until - HOUR_MS, ofHour = points.filter(point => point.timeMs >= from && point.timeMs <= until);
  const most = (key, words) => {
    const known = ofHour.map(point => point[key]).filter(value => value !== null);
    return known.length ? "most: " + words(Math.max(...known)) : "not known";
  };
  const figure = (title, key, words) => `<figure><figcaption><strong>${title}</strong><span>${most(key, words)}</span></figcaption>` +
    spark(points, key, until) + `<div class="axis"><span>${atTime(from).slice(11, 16)}</span><span>${atTime(until).slice(11, 16)} UTC</span></div></figure>`;
  return '<div class="sparks">' + figure("Total lag", "lag", value => counted(value, "offset")) + figure("Time lag", "timeLagMs", value => duration(value)) +
    figure("Copied", "bytesPerSecond", rate) + "</div>";
}

function mirrorSection(row, topics, points, until) {
  const own = topics.filter(one => one.mirror === row.mirror), failed = sumOf(own.map(one => one.failed)) || 0;
  const lag = sumOf(own.map(one => one.lag)), unknown = sumOf(own.map(one => one.lagUnknown)) || 0;
  const state = (row.state || "no topics") + (row.reason ? ` (${row.reason})` : "");
  const facts = [
    ["State", `<strong class="${kindOf(row.state || "ACTIVE", row.reason ? [row.reason] : [], failed)}">${escaped(state)}</strong>`],
    ["Total lag", number(lag, unknown ? "≥ " : "") + " offsets" + (unknown ? `, not known of ${counted(unknown, "partition")}` : "")],
    ["Time lag", duration(row.maxTimeLagMs)], ["Rate", rate(row.bytesPerSecond)], ["Done in", duration(row.etaMs)],
    ["Topics", number(row.topics) + (row.stoppedTopics ? ` (${number(row.stoppedTopics)} stopped)` : "") + ` with ${counted(row.partitions, "partition")}` + (failed ? `, <span class="bad">${failed} FAILED</span>` : "")],
    ["Source", escaped([row.sourceClusterId, row.sourceBootstrapServer].filter(part => part).join(", ") || UNKNOWN)],
    ["Last heartbeat", row.engineAgeMs === null ? UNKNOWN : duration(row.engineAgeMs) + " before"],
  ];
  if (row.throttleBytesPerSecond) facts.push(["Limit", rate(row.throttleBytesPerSecond)]);
  return `<h2>Mirror ${escaped(row.mirror)}</h2><dl>` + facts.map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("") +
    "</dl>" + (points ? sparks(points, until) : "");
}

function mirrorsShown(status, history) {
  if (status.mirrors === null) return `<p>Nothing is copied yet: ${escaped(status.missing || status.phase)}.</p>`;
  const points = new Map(((history && history.mirrors) || []).map(one => [one.mirror, one.points]));
  return status.mirrors.map(row => mirrorSection(row, status.topics, points.get(row.mirror), history && history.asOf)).join("") ||
    "<p>There is no mirror to copy.</p>";
}

// -- events and alarms ---------------------------------------------------------------------------------------------

function eventRow(event) {
  const details = JSON.stringify(event.details, null, 1).replace(/\n */g, " ");
  const kind = BAD_RESULTS.includes(event.result) ? "bad" : "";
  return "<tr>" + cell("TIME", atTime(event.timeMs), "") + cell("MIRROR", escaped(event.mirror), "prose") + cell("WHO", escaped(event.actor), "prose") +
    cell("WHAT", escaped(event.what), "") + cell("RESULT", escaped(event.result), kind) +
    cell("DETAILS", details === "{}" ? UNKNOWN : escaped(details.length > 400 ? details.slice(0, 400) + "…" : details), "prose") + "</tr>";
}

/** Say what is wrong, null where nothing is. `trouble` is why the last question was not answered, `ageMs` how old the numbers are. */
function alarmOf(status, trouble, ageMs) {
  if (trouble && !status) return `The engine does not answer: ${trouble}. Nothing is known.`;
  if (trouble) return `The engine does not answer: ${trouble}. What is shown here is ${duration(ageMs)} old and may be wrong.`;
  if (status && ageMs > STALE_MS) return `What is shown here is ${duration(ageMs)} old and may be wrong.`;
  if (status && !status.ready && status.mirrors !== null) return `Not all records flow: ${status.missing}`;
  return null;
}

/** How long to wait before the next question: an answer that takes long is asked for less often. */
function pause(tookMs, least) {
  return Math.min(60000, Math.max(least, 20 * tookMs));
}

// -- the page itself -----------------------------------------------------------------------------------------------

function start() {
  const by = id => document.getElementById(id);
  const shown = { status: null, statusAt: 0, ageAtOnce: 0, trouble: null, history: null, historyTrouble: null, column: "STATE", topics: [] };

  async function ask(path) {
    const control = new AbortController(), timer = setTimeout(() => control.abort(), 15000);
    try {
      const answer = await fetch(path, { signal: control.signal, cache: "no-store" });
      const text = await answer.text();
      let found = null;
      try { found = JSON.parse(text); } catch (error) { /* said below */ }
      if (!answer.ok) throw new Error((found && found.error && found.error.message) || `it answers ${answer.status}`);
      if (found === null) throw new Error("its answer is not JSON");
      return { found, ageMs: Math.max(0, Date.parse(answer.headers.get("Date")) - found.asOf) || 0 };
    } catch (error) {
      throw control.signal.aborted ? new Error("no answer within 15s") : error instanceof TypeError ? new Error("it cannot be reached") : error;
    } finally {
      clearTimeout(timer);
    }
  }

  function put(id, markup) {
    if (by(id).innerHTML !== markup) by(id).innerHTML = markup;
  }

  function showAge() {
    const ageMs = shown.status ? shown.ageAtOnce + Date.now() - shown.statusAt : null;
    const alarm = alarmOf(shown.status, shown.trouble, ageMs);
    by("alarm").hidden = alarm === null;
    put("alarm", prose(alarm || ""));
    const old = shown.status && (shown.trouble !== null || ageMs > STALE_MS);
    by("shown").className = old ? "old" : "";
    by("age").className = old ? "bad" : "soft";
    by("age").textContent = !shown.status ? (shown.trouble ? "" : "asking the engine …")
      : `kmirror ${shown.status.version}, ${phaseOf(shown.status)}; as of ${atTime(shown.status.asOf).slice(11, 19)} UTC, ${duration(ageMs)} ago`;
    document.title = (alarm ? "⚠ " : "") + "kmirror" + (shown.status && shown.status.mirrors ? " " + shown.status.mirrors.map(row => row.mirror).join(", ") : "");
  }

  function showTopics() {
    const found = chosen(shown.topics, by("filter").value, shown.column, by("down").checked);
    const several = new Set(shown.topics.map(row => row.mirror)).size > 1;
    put("rows", found.slice(0, MOST_ROWS).map(row => topicRow(row, several)).join(""));
    put("heads", COLUMNS.map(([, head, kind]) => {
      const sorted = head === shown.column ? ` aria-sort="${by("down").checked ? "descending" : "ascending"}"` : "";
      return `<th${kind !== "text" ? ' class="number"' : ""}${sorted}><button type="button" data-head="${head}">${head}</button></th>`;
    }).join(""));
    by("more").textContent = found.length > MOST_ROWS ? `${number(found.length - MOST_ROWS)} more topics; filter to see them.`
      : found.length < shown.topics.length ? `${number(found.length)} of ${counted(shown.topics.length, "topic")}` : "";
    by("order").value = shown.column;
  }

  function showAll() {
    if (shown.status) {
      shown.topics = shown.status.topics || [];
      by("topics").hidden = shown.status.topics === null;
      put("mirrors", mirrorsShown(shown.status, shown.history));
      showTopics();
    }
    if (shown.history) {
      const events = shown.history.events;
      put("events", (events || []).map(eventRow).reverse().join(""));
      by("no-events").textContent = events && !events.length ? "None." : "";
    }
    const trouble = shown.historyTrouble ? `What is shown of the last hour is not of now: ${shown.historyTrouble}` : shown.history && shown.history.eventsTrouble;
    by("events-trouble").hidden = !trouble;
    by("events-trouble").textContent = trouble || "";
    showAge();
  }

  async function follow(path, least, take) {
    for (;;) {
      const asked = Date.now();
      if (!document.hidden) await take(path);
      await new Promise(done => setTimeout(done, pause(Date.now() - asked, least)));
    }
  }

  by("order").innerHTML = COLUMNS.map(([, head]) => `<option>${head}</option>`).join("");
  by("filter").addEventListener("input", showTopics);
  by("down").addEventListener("change", showTopics);
  by("order").addEventListener("change", () => { shown.column = by("order").value; showTopics(); });
  document.querySelector("form").addEventListener("submit", event => event.preventDefault());
  by("heads").addEventListener("click", event => {
    const head = event.target.dataset.head;
    if (!head) return;
    by("down").checked = head === shown.column ? !by("down").checked : COLUMNS.find(one => one[1] === head)[2] !== "text";
    shown.column = head;
    showTopics();
  });
  setInterval(showAge, 1000);
  follow("status.json", 2000, async path => {
    try {
      const { found, ageMs } = await ask(path);
      Object.assign(shown, { status: found, statusAt: Date.now(), ageAtOnce: ageMs, trouble: null });
    } catch (error) {
      shown.trouble = error.message;
    }
    showAll();
  });
  follow("history.json", 15000, async path => {
    try {
      Object.assign(shown, { history: (await ask(path)).found, historyTrouble: null });
    } catch (error) {
      shown.historyTrouble = error.message;
    }
    showAll();
  });
}

if (typeof document !== "undefined") start();
