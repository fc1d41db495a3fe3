// Charts of a mirror's history. All is pure. Lines are stretched with their chart; what must not be is placed by percentages.

const GAP_MS = 150000, MOST_POINTS = 720;
const CHARTS = [
  ["Total lag", "lag", value => counted(value, "offset"), brief],
  ["Time lag", "timeLagMs", value => duration(value), value => duration(value)],
  ["Copied", "bytesPerSecond", rate, rate],
  ["Records copied", "recordsPerSecond", value => (value < 10 ? Number(value.toPrecision(3)) : number(value)) + " records/s", brief],
];
const TIME_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map(seconds => seconds * SECOND_MS);
const RANGES = [["1 h", HOUR_MS], ["6 h", 6 * HOUR_MS], ["48 h", 48 * HOUR_MS]];

// -- scales --------------------------------------------------------------------------------------------------------

/** Return round values from 0 up to one that is not below `most`: five at most. */
function ticksOf(most, key) {
  const need = Math.max(most, key === "timeLagMs" ? SECOND_MS : 0) / 4 || 0.25;
  const size = 10 ** Math.floor(Math.log10(need));
  const round = [1, 2, 5, 10].map(one => one * size).find(one => one >= need * 0.9999);
  const step = (key === "timeLagMs" && TIME_STEPS.find(one => one >= need)) || (key === "lag" ? Math.max(1, round) : round);
  return Array.from({ length: Math.max(1, Math.ceil(most / step - 1e-9)) + 1 }, (_, index) => index * step);
}

/** Return round times within a range, some six of them, with their names. */
function timeTicks(from, until) {
  const step = TIME_STEPS.find(one => (until - from) / one <= 6) || 24 * HOUR_MS, found = [];
  for (let ms = Math.ceil(from / step) * step; ms <= until && found.length < 100; ms += step)
    found.push([ms, ms % (24 * HOUR_MS) === 0 ? dayOf(ms) : atTime(ms).slice(11, 16)]);
  return found;
}

function gapOf(from, until) {
  return Math.max(GAP_MS, (until - from) / MOST_POINTS * 2.5);
}

function within(points, from, until) {
  return points.filter(point => point.timeMs >= from && point.timeMs <= until);
}

function mostOf(points, key) {
  const known = points.map(point => point[key] ?? null).filter(value => value !== null);
  return known.length ? known.reduce((a, b) => Math.max(a, b)) : null;
}

const xOf = (ms, from, until) => (ms - from) / (until - from) * 100, yOf = (value, top) => 98 - value / top * 96;

// -- drawings ------------------------------------------------------------------------------------------------------

function svg(kind, content, words) {
  const read = words ? `role="img" aria-label="${escaped(words)}"` : 'aria-hidden="true"';
  return `<svg class="${kind}" viewBox="0 0 720 100" preserveAspectRatio="none" ${read}>${content}</svg>`;
}

/** Draw a value over a time as lines that end where it is not known, dashed where partitions with unknown lag are left out. */
function paths(points, key, from, until, highest) {
  const known = within(points, from, until), isLag = key === "lag" || key === "timeLagMs", gap = gapOf(from, until);
  const top = highest || Math.max(0, mostOf(known, key) ?? 0) || 1, lines = [], fills = [];
  let path = [], before = null, isLeast = false;
  const end = () => {
    if (path.length) lines.push(`<path class="line${isLeast ? " least" : ""}" d="M${path.join(" ")}${path.length === 1 ? " h0.01" : ""}"/>`);
    if (path.length > 1) fills.push(`<path class="fill" d="M${path[0].split(",")[0]},98 L${path.join(" ")} V98Z"/>`);
    path = [];
  };
  for (const point of known) {
    const value = point[key] ?? null, least = isLag && point.lagUnknown > 0, last = path[path.length - 1];
    const ends = value === null || (before !== null && point.timeMs - before > gap);
    if (ends || least !== isLeast) end();
    if (!ends && least !== isLeast && last) path.push(last);
    isLeast = least;
    before = value === null ? null : point.timeMs;
    if (value !== null) path.push(`${(xOf(point.timeMs, from, until) * 7.2).toFixed(1)},${yOf(value, top).toFixed(1)}`);
  }
  end();
  return fills.join("") + lines.join("");
}

function line(points, key, from, until, top) {
  return svg("chart", paths(points, key, from, until, top));
}

/** Draw the lag of the last hour, small. */
function spark(points, until) {
  const from = until - HOUR_MS, most = mostOf(within(points, from, until), "lag");
  if (most === null) return `<span class="soft">no history</span>`;
  return svg("spark", paths(points, "lag", from, until), `lag in the last hour: at most ${counted(most, "offset")}`);
}

/** Draw spans `[from, until, health]` as a coloured strip, empty where nothing is known; the worst are above their neighbours. */
function strip(spans, from, until) {
  const order = ["ok", "warn", "bad"], x = ms => ms / (until - from) * 720;
  const bars = spans.filter(([, , health]) => health).sort((a, b) => order.indexOf(a[2]) - order.indexOf(b[2]));
  return svg("strip", bars.map(([begin, end, health]) =>
    `<rect x="${x(begin - from).toFixed(2)}" y="0" width="${Math.max(1, x(end - begin)).toFixed(2)}" height="100" class="${health}"/>`).join(""));
}

function healthAt(point) {
  if (point.failed || (point.phase && point.phase !== "NOTHING_TO_COPY")) return "bad";
  return point.phase || point.notCopied || point.lagUnknown ? "warn" : "ok";
}

/** Return the spans of a mirror's health: each point is about the time before it, a minute at most after a gap. */
function spansOf(points, from, until) {
  const spans = [], gap = gapOf(from, until);
  const add = (begin, end, health) => {
    const last = spans[spans.length - 1];
    if (last && last[2] === health) last[1] = end;
    else if (end > begin) spans.push([begin, end, health]);
  };
  let at = from;
  for (const point of within(points, from, until)) {
    const begin = point.timeMs - at > gap ? Math.max(at, point.timeMs - MINUTE_MS) : at;
    add(at, begin, null);
    add(begin, point.timeMs, healthAt(point));
    at = point.timeMs;
  }
  if (until - at > gap) add(at, until, null);
  return spans;
}

const LEGEND = '<span class="legend"><span class="ok">■</span> copied &ensp;<span class="warn">■</span> some partitions not copied or unknown &ensp;' +
  '<span class="bad">■</span> FAILED, or nothing copied &ensp;<span class="soft">□</span> not known</span>';

function timeAxis(from, until) {
  return '<svg class="x" aria-hidden="true">' + timeTicks(from, until).map(([ms, name]) => {
    const x = xOf(ms, from, until), side = x < 4 ? ' class="first"' : x > 96 ? ' class="last"' : "";
    return `<text x="${x.toFixed(2)}%" y="1em"${side}>${name}</text>`;
  }).join("") + "</svg>";
}

/** Draw one value with axes; the pointer and the arrow keys read it, see `cursorAt`. */
function graph([title, key, words, short], points, from, until) {
  const most = mostOf(points, key), ticks = ticksOf(most ?? 0, key), top = ticks[ticks.length - 1], last = points[points.length - 1];
  const now = last && (last[key] ?? null) !== null && until - last.timeMs < gapOf(from, until) ? words(last[key]) : null;
  const said = most === null ? "not known" : `most: ${words(most)}`;
  const grid = ticks.map(value => `<line class="grid" x1="0" x2="100%" y1="${yOf(value, top).toFixed(2)}%" y2="${yOf(value, top).toFixed(2)}%"/>`).join("") +
    timeTicks(from, until).map(([ms]) => `<line class="grid" x1="${xOf(ms, from, until).toFixed(2)}%" x2="${xOf(ms, from, until).toFixed(2)}%" y1="0" y2="98%"/>`).join("");
  const heights = most === null ? "" : ticks.map(value => `<text x="100%" y="${yOf(value, top).toFixed(2)}%" dy=".32em">${short(value)}</text>`).join("");
  return `<figure class="graph"><figcaption><strong>${title}</strong><span class="soft">${said}</span></figcaption>` +
    `<div class="plot" data-key="${key}" tabindex="0" role="slider" aria-label="${title}, over time" aria-valuemin="${from}" aria-valuemax="${until}" ` +
    `aria-valuenow="${until}" aria-valuetext="${now ? `now ${now}` : said}"><svg class="y" aria-hidden="true">${heights}</svg>` +
    `<div class="field"><svg class="under" aria-hidden="true">${grid}</svg>${line(points, key, from, until, top)}` +
    '<svg class="over" aria-hidden="true"><line class="cursor" y1="0" y2="98%"/><circle class="dot" r="4"/></svg><span class="tip" hidden></span></div>' +
    `${timeAxis(from, until)}</div></figure>`;
}

/** Draw a mirror's points between two times, and above them its health. */
function charts({ points, spans }, from, until) {
  const ofTime = within(points, from, until);
  return `<figure class="states"><figcaption><strong>States</strong>${LEGEND}</figcaption><div class="field">${strip(spans || spansOf(ofTime, from, until), from, until)}</div>${timeAxis(from, until)}</figure>` +
    `<div class="charts">${CHARTS.map(one => graph(one, ofTime, from, until)).join("")}</div>` +
    '<p class="soft note">What is not known is not drawn; a dashed line leaves out partitions whose lag was not known.</p>';
}

// -- reading a chart -----------------------------------------------------------------------------------------------

/** Return the index of the point nearest to a time, null where there is none. */
function nearest(points, ms) {
  let found = null;
  points.forEach((point, index) => {
    if (found === null || Math.abs(point.timeMs - ms) < Math.abs(points[found].timeMs - ms)) found = index;
  });
  return found;
}

/** Return what a chart says at a time: where, in percent, and in words; `y` is null where the value is not known. */
function cursorAt(key, points, from, until, ms) {
  const ofTime = within(points, from, until), index = nearest(ofTime, ms);
  if (index === null) return null;
  const point = ofTime[index], value = point[key] ?? null, [, , words] = CHARTS.find(one => one[1] === key);
  const ticks = ticksOf(mostOf(ofTime, key) ?? 0, key), least = (key === "lag" || key === "timeLagMs") && point.lagUnknown ? "≥ " : "";
  return {
    timeMs: point.timeMs,
    x: xOf(point.timeMs, from, until),
    y: value === null ? null : yOf(value, ticks[ticks.length - 1]),
    time: (until - from > 6 * HOUR_MS ? dayOf(point.timeMs) + " " : "") + atTime(point.timeMs).slice(11, 19) + " UTC",
    value: value === null ? "not known" : least + words(value),
  };
}

/** Return the time of a neighbour of the point at a time, `by` points further, or of the first or last. */
function neighbour(points, ms, by) {
  const at = ms === null ? points.length - 1 : nearest(points, ms);
  return points.length ? points[Math.max(0, Math.min(points.length - 1, (ms === null && by < 0 ? at + 1 : at) + by))].timeMs : null;
}
