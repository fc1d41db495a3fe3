"use strict";
// What the page of a running engine and a report show. The functions up to `start` are pure: documents in, markup out.

const HOUR_MS = 3600000, GAP_MS = 150000, STALE_MS = 10000, MOST_ROWS = 1500, UNKNOWN = "-";
// From the declarations in Python: states by their colour and order, results of events, and key, heading and kind of the columns
// of topics and of events.
const { BAD, FINE, ORDER, BAD_RESULTS, COLUMNS, EVENTS, BREACHES, OPTIONAL } = {/* look */};

// -- words ---------------------------------------------------------------------------------------------------------

/** Return text in which characters that are not shown, or turn others around, are escapes. */
function visible(text) {
  return String(text ?? UNKNOWN).replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, found => "\\u{" + found.codePointAt(0).toString(16) + "}");
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

/** Return a time; one out of range, which a record may carry, as milliseconds. */
function atTime(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  return Math.abs(ms) < 6e13 ? new Date(ms).toISOString().slice(0, 19) + "Z" : ms + " ms";
}

function counted(count, noun) {
  return number(count) + " " + noun + (count === 1 ? "" : "s");
}

// -- tables --------------------------------------------------------------------------------------------------------

const SHOWN = { text: escaped, prose, number, duration, rate, time: atTime };

/** Return a row: each value by the kind of its column, `[text, colour]`, or by `special` functions the markup and its class. */
function tableRow(columns, row, special = {}) {
  const cells = columns.map(([key, head, kind]) => {
    const value = row[key], isNumber = !["text", "prose", "time"].includes(kind);
    const [content, style] = special[key] ? special[key](row)
      : Array.isArray(value) ? [prose(value[0]), value[1]] : [SHOWN[kind](value), kind === "prose" ? kind : ""];
    return `<td data-head="${head}"${isNumber ? ' class="number"' : ""}><span class="${style}">${content}</span></td>`;
  });
  return "<tr>" + cells.join("") + "</tr>";
}

function tableHead([, head, kind], content = head, more = "") {
  return `<th${["text", "prose", "time"].includes(kind) ? "" : ' class="number"'}${more}>${content}</th>`;
}

/** Return a table; on a narrow screen each row becomes a list of its cells. */
function table(columns, rows, special) {
  return `<table><thead><tr>${columns.map(column => tableHead(column)).join("")}</tr></thead><tbody>` +
    rows.map(row => tableRow(columns, row, special)).join("") + "</tbody></table>";
}

/** Return a table of a report, with its title and notes. */
function tableSection({ title, note, columns, rows, more, folded }) {
  const keyed = columns.map(([head, kind], index) => [index, head, kind]);
  const made = `<div class="table wide">${table(keyed, rows)}</div>`, words = text => text && `<p class="soft">${text}</p>`;
  return `<section><h2>${title}</h2>` + words(note) +
    (folded ? `<details><summary>${counted(rows.length, "time")}</summary>${made}</details>` : made) + words(more) + "</section>";
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

function stateCell(row) {
  const failed = row.failed ? `, ${row.failed} FAILED` : "", color = kindOf(row.state, row.reasons, row.failed);
  const state = [row.state, ...row.reasons.slice(0, 3).map(reason => `(${reason})`)].join(" ") + failed;
  const message = row.errorMessage && color !== "ok" && row.state !== "STOPPED" ? `<small class="prose">${prose(row.errorMessage)}</small>` : "";
  const filling = row.offsetsToFill ? `<small class="prose">${counted(row.offsetsToFill, "offset")} without records to fill</small>` : "";
  return [escaped(state) + message + filling, color + " words"];
}

/** Return the columns of topics: optional ones only if one of them has a value. */
function columnsOf(topics) {
  const used = ([key, head]) => OPTIONAL.includes(head) && topics.some(row => (row[key] ?? null) !== null);
  return COLUMNS.some(used) ? COLUMNS : COLUMNS.filter(([, head]) => !OPTIONAL.includes(head));
}

function topicRow(row, several, columns = COLUMNS) {
  return tableRow(columns, row, {
    topic: () => [escaped(row.topic) + (several ? ` <small>${escaped(row.mirror)}</small>` : ""), "prose"],
    state: stateCell,
    lag: () => [number(row.lag, row.lagUnknown ? "≥ " : ""), ""],
    objectiveState: () => [escaped(row.objectiveState), { WITHIN: "ok", BREACHED: "bad", UNKNOWN: "warn" }[row.objectiveState] || ""],
  });
}

/** Return what the run does now, in words. */
function phaseOf(status) {
  const topics = status.topics || [];
  return topics.length && topics.every(row => row.state === "STOPPED") ? "nothing to copy: all topics are stopped" : status.phase;
}

// -- mirrors -------------------------------------------------------------------------------------------------------

const CHARTS = [
  ["Total lag", "lag", value => counted(value, "offset")],
  ["Time lag", "timeLagMs", value => duration(value)],
  ["Copied", "bytesPerSecond", rate],
  ["Records copied", "recordsPerSecond", value => (value < 10 ? Number(value.toPrecision(3)) : number(value)) + " records/s"],
];

function svg(kind, content) {
  return `<svg class="${kind}" viewBox="0 0 720 100" preserveAspectRatio="none" aria-hidden="true">${content}</svg>`;
}

/** Draw a value over a time as lines that end where it is not known, dashed where partitions with unknown lag are left out. */
function line(points, key, from, until) {
  const known = points.filter(point => point.timeMs >= from && point.timeMs <= until), isLag = key === "lag" || key === "timeLagMs";
  const top = Math.max(0, ...known.map(point => point[key] ?? 0)) || 1;
  const paths = [];
  let path = [], before = null, isLeast = false;
  const end = () => {
    if (path.length) paths.push(`<path class="line${isLeast ? " least" : ""}" d="M${path.join(" ")}${path.length === 1 ? " h0.01" : ""}"/>`);
    path = [];
  };
  for (const point of known) {
    const value = point[key] ?? null, least = isLag && point.lagUnknown > 0, last = path[path.length - 1];
    const ends = value === null || (before !== null && point.timeMs - before > GAP_MS);
    if (ends || least !== isLeast) end();
    if (!ends && least !== isLeast && last) path.push(last);
    isLeast = least;
    before = value === null ? null : point.timeMs;
    if (value !== null) path.push(`${((point.timeMs - from) / (until - from) * 720).toFixed(1)},${(98 - value / top * 96).toFixed(1)}`);
  }
  end();
  return svg("chart", paths.join(""));
}

/** Draw spans `[from, until, health]` as a coloured strip, empty where nothing is known; the worst are above their neighbours. */
function strip(spans, from, until) {
  const order = ["ok", "warn", "bad"], x = ms => ms / (until - from) * 720;
  const bars = spans.filter(([, , health]) => health).sort((a, b) => order.indexOf(a[2]) - order.indexOf(b[2]));
  return svg("strip", bars.map(([begin, end, health]) =>
    `<rect x="${x(begin - from).toFixed(2)}" y="0" width="${Math.max(1, x(end - begin)).toFixed(2)}" height="100" class="${health}"/>`).join(""));
}

const LEGEND = '<span><span class="ok">■ copied</span> <span class="warn">■ some partitions not copied or unknown</span> ' +
  '<span class="bad">■ FAILED, or nothing copied</span> <span class="soft">□ not known</span></span>';

/** Draw a mirror's points between two times, and above them the spans of its health where there are some. */
function charts({ points, spans }, from, until) {
  const named = ms => until - from > HOUR_MS ? atTime(ms).slice(5, 16).replace("T", " ") + " UTC" : atTime(ms).slice(11, 16) + " UTC";
  const axis = `<div class="axis">${[from, (from + until) / 2, until].map(ms => `<span>${named(ms)}</span>`).join("")}</div>`;
  const figure = (title, words, drawn) => `<figure><figcaption><strong>${title}</strong>${words}</figcaption>${drawn}${axis}</figure>`;
  const ofTime = points.filter(point => point.timeMs >= from && point.timeMs <= until);
  const most = (key, words) => {
    const known = ofTime.map(point => point[key] ?? null).filter(value => value !== null);
    return `<span>${known.length ? "most: " + words(Math.max(...known)) : "not known"}</span>`;
  };
  return (spans ? figure("States", LEGEND, strip(spans, from, until)) : "") +
    `<div class="charts">${CHARTS.map(([title, key, words]) => figure(title, most(key, words), line(ofTime, key, from, until))).join("")}</div>` +
    '<p class="soft">What is not known is not drawn; a dashed line leaves out partitions whose lag was not known.</p>';
}

/** Show a mirror; `own` facts, with a colour each, stand in for those of the same name. */
function mirrorSection(row, topics, history, own) {
  const ofMirror = topics.filter(one => one.mirror === row.mirror), failed = sumOf(ofMirror.map(one => one.failed)) || 0;
  const lag = sumOf(ofMirror.map(one => one.lag)), unknown = sumOf(ofMirror.map(one => one.lagUnknown)) || 0;
  const state = (row.state || "no topics") + (row.reason ? ` (${row.reason})` : "");
  const facts = [
    ["State", `<strong class="${kindOf(row.state || "ACTIVE", row.reason ? [row.reason] : [], failed)}">${escaped(state)}</strong>`],
    ["Total lag", number(lag, unknown ? "≥ " : "") + " offsets" + (unknown ? `, not known of ${counted(unknown, "partition")}` : "")],
    ["Time lag", duration(row.maxTimeLagMs)], ["Rate", rate(row.bytesPerSecond)], ["Done in", duration(row.etaMs)],
    ["Topics", number(row.topics) + (row.stoppedTopics ? ` (${number(row.stoppedTopics)} stopped)` : "") + ` with ${counted(row.partitions, "partition")}` + (failed ? `, <span class="bad">${failed} FAILED</span>` : "")],
    ["Source", escaped([row.sourceClusterId, row.sourceBootstrapServer].filter(part => part).join(", ") || UNKNOWN)],
    ["Last heartbeat", row.engineAgeMs === null ? UNKNOWN : duration(row.engineAgeMs) + " before"],
    ...(row.throttleBytesPerSecond ? [["Limit", rate(row.throttleBytesPerSecond)]] : []),
    ...own.map(([name, text, color]) => [name, `<span class="${color}">${prose(text)}</span>`]),
  ];
  const shown = history && history.mirrors.find(one => one.mirror === row.mirror);
  return `<h2>Mirror ${escaped(row.mirror)}</h2><dl>` + [...new Map(facts)].map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("") +
    "</dl>" + (shown ? charts(shown, history.from ?? history.asOf - HOUR_MS, history.asOf) : "");
}

function mirrorsShown(status, history, own = []) {
  if (status.mirrors === null) return `<p>Nothing is copied yet: ${escaped(status.missing || status.phase)}.</p>`;
  return status.mirrors.map(row => mirrorSection(row, status.topics, history, own)).join("") || "<p>There is no mirror to copy.</p>";
}

// -- events and alarms ---------------------------------------------------------------------------------------------

const EVENT_CELLS = {
  mirror: event => [escaped(event.mirror), "prose"],
  actor: event => [escaped(event.actor), "prose"],
  result: event => [escaped(event.result), BAD_RESULTS.includes(event.result) ? "bad" : ""],
  details: event => {
    const text = JSON.stringify(event.details, null, 1).replace(/\n */g, " ");
    return [text === "{}" ? UNKNOWN : escaped(text.length > 400 ? text.slice(0, 400) + "… (kmirror events shows all)" : text), "prose"];
  },
};

/** Return a table of events, the newest first. */
function eventsTable(events) {
  return table(EVENTS, [...events].reverse(), EVENT_CELLS);
}

/** Return a section with a table of breached objectives, the newest first; nothing if there are none. */
function breachesSection(breaches) {
  if (!breaches || !breaches.length) return "";
  const made = table(BREACHES, [...breaches].reverse(), {
    untilMs: one => [one.untilMs === null ? '<strong>not met yet</strong>' : atTime(one.untilMs), one.untilMs === null ? "bad" : ""],
    topic: one => [escaped(one.topic), "prose"],
    message: one => [prose(one.message), "prose"],
  });
  return `<section><h2>Breached objectives</h2><div class="table wide">${made}</div></section>`;
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
  const shown = { status: null, statusAt: 0, ageAtOnce: 0, trouble: null, history: null, historyTrouble: null, column: "STATE", topics: [], facts: [], tables: [] };

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
    const columns = columnsOf(shown.topics);
    put("rows", found.slice(0, MOST_ROWS).map(row => topicRow(row, several, columns)).join(""));
    put("heads", columns.map(column => {
      const head = column[1], sorted = head === shown.column ? ` aria-sort="${by("down").checked ? "descending" : "ascending"}"` : "";
      return tableHead(column, `<button type="button" data-head="${head}">${head}</button>`, sorted);
    }).join(""));
    by("more").textContent = found.length > MOST_ROWS ? `${number(found.length - MOST_ROWS)} more topics; filter to see them.`
      : found.length < shown.topics.length ? `${number(found.length)} of ${counted(shown.topics.length, "topic")}` : "";
    by("order").value = shown.column;
  }

  function showAll() {
    if (shown.status) {
      shown.topics = shown.status.topics || [];
      by("topics").hidden = shown.status.topics === null;
      put("mirrors", mirrorsShown(shown.status, shown.history, shown.facts));
      put("tables", breachesSection(shown.history && shown.history.breaches) + shown.tables.map(tableSection).join(""));
      showTopics();
    }
    if (shown.history) {
      const events = shown.history.events;
      put("events", eventsTable(events || []));
      by("more-events").textContent = events && !events.length ? "None." : shown.history.leftOut || "";
    }
    const trouble = shown.historyTrouble ? `What is shown of the last hour is not of now: ${shown.historyTrouble}` : shown.history && shown.history.eventsTrouble;
    by("events-trouble").hidden = !trouble;
    by("events-trouble").textContent = trouble || "";
  }

  async function follow(path, least, take) {
    for (;;) {
      const asked = Date.now();
      if (!document.hidden) await take(path);
      showAll();
      showAge();
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
  by("shown").hidden = false;
  const report = by("report").textContent;
  if (report) {
    Object.assign(shown, JSON.parse(report));
    for (const one of shown.history.mirrors)
      one.points = one.points.map(row => Object.fromEntries(one.keys.map((key, index) => [key, row[index]])));
    showAll();
    return;
  }
  setInterval(showAge, 1000);
  follow("status.json", 2000, async path => {
    try {
      const { found, ageMs } = await ask(path);
      Object.assign(shown, { status: found, statusAt: Date.now(), ageAtOnce: ageMs, trouble: null });
    } catch (error) {
      shown.trouble = error.message;
    }
  });
  follow("history.json", 15000, async path => {
    try {
      Object.assign(shown, { history: (await ask(path)).found, historyTrouble: null });
    } catch (error) {
      shown.historyTrouble = error.message;
    }
  });
}

if (typeof document !== "undefined") start();
