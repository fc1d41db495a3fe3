"use strict";
// Values as words and tables as markup. All is pure, and each text is escaped: it may come from anywhere.

const SECOND_MS = 1000, MINUTE_MS = 60000, HOUR_MS = 3600000, UNKNOWN = "-";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
// From the declarations in Python: states by their colour and order, results of events, and key, heading and kind of the columns.
const { BAD, FINE, ORDER, NOT_COPYING, BAD_RESULTS, COLUMNS, PARTITIONS, BREACHES, OPTIONAL } = {/* look */};

// -- words ---------------------------------------------------------------------------------------------------------

/** Return text in which characters that are not shown, or turn others around, are escapes. */
function visible(text) {
  return String(text ?? UNKNOWN).replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, found => "\\u{" + found.codePointAt(0).toString(16) + "}");
}

function escaped(text) {
  return visible(text).replace(/[&<>"']/g, found => `&#${found.charCodeAt(0)};`);
}

/** Return text as markup in which no time is broken at the end of a line, and commands look like some. */
function prose(text) {
  return escaped(text).replace(/\d{4}-\d\d-\d\dT[\d:]{8}Z/g, "<time>$&</time>").replace(/`([^`]+)`/g, "<code>$1</code>");
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

/** Return the time of day; with the date, if it is not within a day before `nowMs`. */
function moment(ms, nowMs) {
  if (ms === null || ms === undefined || Math.abs(ms) >= 6e13) return atTime(ms);
  const clock = atTime(ms).slice(11, 16) + " UTC";
  return Math.abs(nowMs - ms) < 24 * HOUR_MS ? clock : dayOf(ms) + " " + clock;
}

function dayOf(ms) {
  const [, month, day] = atTime(ms).slice(0, 10).split("-");
  return day ? MONTHS[month - 1] + " " + Number(day) : atTime(ms);
}

/** Return a number in few characters, for an axis. */
function brief(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= size) return Number((value / size).toPrecision(3)) + unit;
  return String(Number(value.toPrecision(3)));
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
