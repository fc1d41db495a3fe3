"use strict";
// What the page of a running engine shows. The functions up to `start` are pure: documents in, markup out.

const HOUR_MS = 3600000, GAP_MS = 150000, STALE_MS = 10000, MOST_ROWS = 500, UNKNOWN = "-";
const BAD = ["FAILED", "LINK_FAILED", "SOURCE_UNAVAILABLE"], FINE = ["ACTIVE", "STOPPED"];
const ORDER = ["FAILED", "LINK_FAILED", "SOURCE_UNAVAILABLE", "PENDING_STOPPED", "PENDING_MIRROR", "PAUSED", "ACTIVE", "STOPPED"];
const BAD_RESULTS = ["FAILED", "LOSS_ACCEPTED", "DESTINATION_TRUNCATED", "NO_WORKERS", "LINK_FAILED", "SOURCE_UNAVAILABLE", "died"];

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

/** Add what may be unknown: the sum of what is known, null where nothing is, and how many are not known. */
function sumOf(values) {
  const known = values.filter(value => value !== null && value !== undefined);
  return { sum: known.length ? known.reduce((a, b) => a + b, 0) : null, unknown: values.length - known.length };
}

/** The largest; null where one is not known. */
function largest(values) {
  return !values.length || values.some(value => value === null || value === undefined) ? null : Math.max(...values);
}

/** Sum up the partitions of a document of /status.json by topic. */
function topicsOf(partitions) {
  const byTopic = new Map();
  for (const row of partitions || []) {
    const key = row.mirror + "\n" + row.topic;
    if (!byTopic.has(key)) byTopic.set(key, []);
    byTopic.get(key).push(row);
  }
  return [...byTopic.values()].map(rows => {
    const living = rows.filter(row => row.state !== "STOPPED");
    const lag = sumOf(living.map(row => row.lag));
    return {
      mirror: rows[0].mirror, topic: rows[0].topic, state: rows[0].topicState,
      reasons: [...new Set(rows.map(row => row.reason).filter(reason => reason))],
      message: (rows.find(row => row.state === "FAILED") || rows.find(row => row.reason) || rows[0]).errorMessage,
      partitions: rows.length, failed: rows.filter(row => row.state === "FAILED").length,
      lag: lag.sum, lagUnknown: lag.unknown,
      timeLagMs: largest(living.map(row => row.timeLagMs)),
      toFill: sumOf(living.map(row => row.offsetsToFill)).sum,
      bytesPerSecond: sumOf(living.map(row => row.bytesPerSecond)).sum,
      etaMs: largest(living.map(row => row.etaMs)),
    };
  });
}

/** What is not known may be the largest; what has stopped is not behind. */
function behind(row, value) {
  return row.state === "STOPPED" ? -1 : value === null ? Infinity : value;
}

const COLUMNS = [
  ["TOPIC", row => row.topic, false], ["STATE", row => ORDER.indexOf(row.state), false], ["PARTITIONS", row => row.partitions, true],
  ["LAG", row => behind(row, row.lagUnknown ? null : row.lag), true],
  ["TIME LAG", row => behind(row, row.timeLagMs), true],
  ["RATE", row => row.bytesPerSecond === null ? -1 : row.bytesPerSecond, true],
  ["ETA", row => behind(row, row.etaMs), true],
];

/** Return the topics to show: those that have all the words, in the order of a column. Unknown lag counts as the largest. */
function chosen(topics, words, column, down) {
  const wanted = words.toLowerCase().split(/\s+/).filter(word => word);
  const value = (COLUMNS.find(one => one[0] === column) || COLUMNS[1])[1];
  const compared = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  return topics
    .filter(row => {
      const text = [row.mirror, row.topic, row.state, ...row.reasons].join(" ").toLowerCase();
      return wanted.every(word => text.includes(word));
    })
    .sort((a, b) => (down ? -1 : 1) * compared(value(a), value(b)) || compared(a.topic, b.topic) || compared(a.mirror, b.mirror));
}

function kindOf(state, reasons, failed) {
  if (BAD.includes(state) || failed) return "bad";
  return !FINE.includes(state) || (state === "ACTIVE" && reasons.length) ? "warn" : state === "STOPPED" ? "soft" : "ok";
}

function cell(head, content, kind, isNumber) {
  return `<td data-head="${head}"${isNumber ? ' class="number"' : ""}><span class="${kind}">${content}</span></td>`;
}

function topicRow(row, several) {
  const stopped = row.state === "STOPPED", least = row.lagUnknown ? "≥ " : "";
  const name = escaped(row.topic) + (several ? ` <small>${escaped(row.mirror)}</small>` : "");
  const state = [row.state, ...row.reasons.slice(0, 3).map(reason => `(${reason})`)].join(" ") + (row.failed ? `, ${row.failed} FAILED` : "");
  const message = row.message && kindOf(row.state, row.reasons, row.failed) !== "ok" && !stopped ? `<small class="prose">${prose(row.message)}</small>` : "";
  const filling = row.toFill ? `<small class="prose">${counted(row.toFill, "offset")} without records to fill</small>` : "";
  return "<tr>" + cell("TOPIC", name, "prose") + cell("STATE", escaped(state) + message + filling, kindOf(row.state, row.reasons, row.failed) + " words") +
    cell("PARTITIONS", number(row.partitions), "", true) + cell("LAG", stopped ? UNKNOWN : number(row.lag, least), "", true) +
    cell("TIME LAG", stopped ? UNKNOWN : duration(row.timeLagMs), "", true) + cell("RATE", rate(row.bytesPerSecond), "", true) +
    cell("ETA", stopped ? UNKNOWN : duration(row.etaMs), "", true) + "</tr>";
}

/** Return what the run does now, in words. */
function phaseOf(status) {
  const rows = status.partitions || [];
  return rows.length && rows.every(row => row.state === "STOPPED") ? "nothing to copy: all topics are stopped" : status.phase;
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

function mirrorSection(row, partitions, points, until) {
  const living = partitions.filter(one => one.mirror === row.mirror && one.state !== "STOPPED");
  const lag = sumOf(living.map(one => one.lag)), failed = living.filter(one => one.state === "FAILED").length;
  const state = (row.state || "no topics") + (row.reason ? ` (${row.reason})` : "");
  const facts = [
    ["State", `<strong class="${kindOf(row.state || "ACTIVE", row.reason ? [row.reason] : [], failed)}">${escaped(state)}</strong>`],
    ["Total lag", number(lag.sum, lag.unknown ? "≥ " : "") + " offsets" + (lag.unknown ? `, not known of ${counted(lag.unknown, "partition")}` : "")],
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
  return status.mirrors.map(row => mirrorSection(row, status.partitions, points.get(row.mirror), history && history.asOf)).join("") ||
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
    put("heads", COLUMNS.map(([head, , isNumber]) => {
      const sorted = head === shown.column ? ` aria-sort="${by("down").checked ? "descending" : "ascending"}"` : "";
      return `<th${isNumber ? ' class="number"' : ""}${sorted}><button type="button" data-head="${head}">${head}</button></th>`;
    }).join(""));
    by("more").textContent = found.length > MOST_ROWS ? `${number(found.length - MOST_ROWS)} more topics; filter to see them.`
      : found.length < shown.topics.length ? `${number(found.length)} of ${counted(shown.topics.length, "topic")}` : "";
    by("order").value = shown.column;
  }

  function showAll() {
    if (shown.status) {
      shown.topics = topicsOf(shown.status.partitions);
      by("topics").hidden = shown.status.partitions === null;
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

  by("order").innerHTML = COLUMNS.map(([head]) => `<option>${head}</option>`).join("");
  by("filter").addEventListener("input", showTopics);
  by("down").addEventListener("change", showTopics);
  by("order").addEventListener("change", () => { shown.column = by("order").value; showTopics(); });
  document.querySelector("form").addEventListener("submit", event => event.preventDefault());
  by("heads").addEventListener("click", event => {
    const head = event.target.dataset.head;
    if (!head) return;
    by("down").checked = head === shown.column ? !by("down").checked : COLUMNS.find(one => one[0] === head)[2];
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
