// Mirrors, topics, partitions and events as markup. All is pure.

const STALE_MS = 10000, FIRST_ROWS = 200, MOST_ROWS = 1500, MOST_EVENTS = 40;

// -- routes --------------------------------------------------------------------------------------------------------

/** Return text as a part of an address; nothing for text that no address can have. */
function addressed(text) {
  try {
    return escaped(encodeURIComponent(text ?? ""));
  } catch (error) {
    return "";
  }
}

/** Return the link to a mirror, or to one of its topics, with a range of its charts that is not the shortest. */
function linkTo(cluster, mirror, { topic, rangeMs } = {}) {
  const range = RANGES.find(([, ms]) => ms === rangeMs), more = range && range !== RANGES[0] ? "?range=" + range[0].replace(" ", "") : "";
  return `#/mirror/${addressed(cluster)}/${addressed(mirror)}` + (topic === undefined ? "" : `/topic/${addressed(topic)}`) + more;
}

/** Return what an address shows: the fleet, a mirror, or one of its topics; `cluster` is null for a mirror of an engine. */
function routeOf(hash) {
  const [path, query] = hash.split("?");
  const found = /^#\/mirror\/([^/]*)\/([^/]+)(?:\/topic\/([^/]+))?$/.exec(path);
  try {
    if (found === null) return { view: "fleet" };
    const [, cluster, mirror, topic] = found.map(part => part === undefined ? undefined : decodeURIComponent(part));
    const range = RANGES.find(([name]) => "range=" + name.replace(" ", "") === query) || RANGES[0];
    return { view: topic === undefined ? "mirror" : "topic", cluster: cluster || null, mirror, topic, rangeMs: range[1] };
  } catch (error) {
    return { view: "fleet" };
  }
}

const isOf = (row, { cluster, mirror }) => row.mirror === mirror && (row.cluster ?? null) === cluster;

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

/** Return a topic's row; its name leads to its partitions if `opens`. */
function topicRow(row, several, columns = COLUMNS, opens = false) {
  const name = opens ? `<a href="${linkTo(row.cluster, row.mirror, { topic: row.topic })}">${escaped(row.topic)}</a>` : escaped(row.topic);
  return tableRow(columns, row, {
    topic: () => [name + (several ? ` <small>${escaped(row.mirror)}</small>` : ""), "prose"],
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

/** Return the partitions of a topic, those that need attention first. */
function partitionsTable(partitions) {
  const attention = row => row.state === "FAILED" ? 0 : ["MIRRORING", "STOPPED"].includes(row.state) ? 2 : 1;
  const rows = [...partitions].sort((a, b) => attention(a) - attention(b) || a.partition - b.partition);
  const used = PARTITIONS.map(([key, head, kind]) => [key, head, key === "partition" ? "text" : kind]).filter(([key, , kind]) => key === "state" || key === "partition" || kind === "number" && key !== "lane" || rows.some(row => (row[key] ?? null) !== null));
  const made = table(used, rows.slice(0, MOST_ROWS), {
    state: row => {
      const color = row.state === "FAILED" ? "bad" : row.state === "STOPPED" ? "soft" : row.reason ? "warn" : "ok";
      const said = row.errorMessage && color !== "soft" ? `<small class="prose">${prose(row.errorMessage)}</small>` : "";
      const end = color === "soft" && (row.lastMirroredOffset ?? null) !== null ? `<small class="prose">last mirrored offset ${number(row.lastMirroredOffset)}</small>` : "";
      const limit = row.limitedBy ? `<small class="prose">${prose(row.limitedBy)}</small>` : "";
      return [escaped(row.state + (row.reason ? ` (${row.reason})` : "")) + said + end + limit, color + " words"];
    },
    partition: row => [number(row.partition), ""],
    lag: row => row.lag === null && row.state !== "STOPPED" && (row.lastKnownLag ?? null) !== null
      ? [`<span class="soft">last known ${number(row.lastKnownLag)}</span>`, ""] : [number(row.lag), ""],
    worker: row => [escaped(row.worker), "prose"],
  });
  return `<div class="table wide">${made}</div>` +
    (rows.length > MOST_ROWS ? `<p class="soft">${number(rows.length - MOST_ROWS)} more partitions.</p>` : "");
}

/** Show a topic: its row as `top` has it, its partitions, and what happened to it. */
function topicShown(row, partitions, events) {
  const concerns = event => event.details && (event.details.topic === row.topic || (Array.isArray(event.details.topics) && event.details.topics.includes(row.topic)));
  const ofTopic = (events || []).filter(concerns);
  const [state, style] = stateCell({ ...row, errorMessage: null, offsetsToFill: null });
  return `<h2 class="title">${escaped(row.topic)}</h2><p class="${style}">${state}</p>` +
    (row.errorMessage ? `<p class="prose">${prose(row.errorMessage)}</p>` : "") +
    tiles([
      ["Lag", number(row.lag, row.lagUnknown ? "≥ " : ""), "offsets"], ["Time lag", duration(row.timeLagMs)], ["Rate", rate(row.bytesPerSecond)],
      ["Done in", duration(row.etaMs)], ...(row.objectiveMs ? [["Objective", duration(row.objectiveMs), escaped(row.objectiveState)]] : []),
    ]) +
    `<section><h2>Partitions</h2>${partitionsTable(partitions)}</section>` +
    (ofTopic.length ? `<section><h2>What happened to it</h2>${eventsList(ofTopic)}</section>` : "");
}

// -- mirrors -------------------------------------------------------------------------------------------------------

function tiles(facts) {
  return '<dl class="tiles">' + facts.map(([name, value, unit]) => `<div><dt>${name}</dt><dd>${value}${unit ? ` <small>${unit}</small>` : ""}</dd></div>`).join("") + "</dl>";
}

/** Return how well a mirror is: bad, warn, ok, or soft if it has stopped; what is shown of a silent cluster is not certain. */
function healthOf(row, isSilent = false) {
  const state = kindOf(row.state || "ACTIVE", row.reason ? [row.reason] : [], row.failed);
  if (state === "bad" || (row.state !== "STOPPED" && NOT_COPYING.includes(row.reason))) return "bad";
  return state === "ok" && (isSilent || row.missing || row.objectivesBreached) ? "warn" : state;
}

/** Return where a mirror's engine is, whether it lives, and a colour. */
function engineOf(row, nowMs) {
  const seen = row.engineLastSeenMs ?? null;
  if (row.state === "STOPPED") return [escaped(row.engine), "", "soft"];
  if (row.reason === "ENGINE_SILENT") return [escaped(row.engine), `silent since ${moment(seen, nowMs)}`, "bad"];
  if (row.engine === null) return ["none", seen === null ? "none ever ran" : `since ${moment(seen, nowMs)} (${duration(nowMs - seen)})`, row.state ? "bad" : "soft"];
  return [escaped(row.engine), "alive" + (row.engineIsHere ? ", on this host" : ""), ""];
}

function objectivesOf(row) {
  const parts = [["objectivesBreached", "breached", "bad"], ["objectivesUnknown", "unknown", "warn"], ["objectivesWithin", "within", ""]];
  return parts.filter(([key]) => row[key]).map(([key, words, color]) => `<span class="${color}">${number(row[key])} ${words}</span>`).join(", ");
}

/** Say which of a mirror's clusters is in charge, by what each of them says of itself: words, colour, and why that is not certain. */
function chargeOf(row, clusters, charge) {
  const here = clusters.find(one => one.name === row.cluster), isHere = one => one.cluster === row.cluster || (here && one.clusterId === here.clusterId);
  const ends = (charge || []).filter(one => one.mirror === row.mirror && (isHere(one) || (one.clusterId && one.clusterId === row.sourceClusterId)));
  if (!ends.length) return null;
  const named = one => (isHere(one) ? "destination" : "source") + (one.cluster && one.cluster !== one.bootstrapServers ? ` ${one.cluster}` : ""), holders = ends.filter(one => one.inCharge === true);
  const unsure = ends.filter(one => one.inCharge === null || one.inCharge === undefined);
  const why = [...new Set((unsure.length ? unsure : ends).map(one => one.reason).filter(one => one))].join("; ");
  if (holders.length > 1) return ["both clusters", "bad", why];
  if (holders.length && !unsure.length) return [named(holders[0]), "", ""];
  if (holders.length) return [`${named(holders[0])}; the other is not certain`, "warn", why];
  return unsure.length ? ["not certain", "warn", why] : ["neither cluster", "warn", why];
}

/** Return a mirror's state as a badge, and its reason. */
function badge(row, isSilent) {
  const color = healthOf(row, isSilent), reason = row.reason ? ` <span class="${color} reason">${escaped(row.reason)}</span>` : "";
  return `<strong class="badge ${color}">${escaped(row.state || "no topics")}</strong>${reason}`;
}

/** Show a mirror; `own` facts, with a colour each, stand in for those of the same name. */
function mirrorSection(row, topics, { clusters = [], charge, own = [], nowMs = null } = {}) {
  const ofMirror = (topics || []).filter(one => one.mirror === row.mirror && (one.cluster ?? null) === (row.cluster ?? null));
  const known = (name, of) => row[name] !== undefined ? row[name] : sumOf(ofMirror.map(one => one[of || name]));
  const failed = known("failed") || 0, lag = known("lag"), unknown = known("lagUnknown") || 0, cluster = clusters.find(one => one.name === row.cluster);
  const held = chargeOf(row, clusters, charge), objectives = objectivesOf(row), [engine, life, color] = engineOf(row, nowMs ?? 0);
  const facts = [
    ["Topics", number(row.topics) + (row.stoppedTopics ? ` (${number(row.stoppedTopics)} stopped)` : "") + ` with ${counted(row.partitions, "partition")}` + (failed ? `, <span class="bad">${number(failed)} FAILED</span>` : "")],
    ["Source", escaped([row.sourceClusterId, row.sourceBootstrapServer].filter(part => part).join(", ") || UNKNOWN)],
    ...(cluster ? [["Destination", escaped([cluster.name, cluster.clusterId, cluster.bootstrapServers].filter((part, at, all) => part && all.indexOf(part) === at).join(", "))]] : []),
    ...(nowMs === null ? [] : [["Engine", `<span class="${color}">${engine}${life ? ", " + life : ""}</span>`]]),
    ["Last heartbeat", row.engineAgeMs === null ? UNKNOWN : duration(row.engineAgeMs) + " before"],
    ...(objectives ? [["Objectives", objectives]] : []),
    ...(held ? [["In charge", `<span class="${held[1]}">${escaped(held[0])}</span>` + (held[2] ? `<small class="prose">${prose(held[2])}</small>` : "")]] : []),
    ...(row.throttleBytesPerSecond ? [["Limit", rate(row.throttleBytesPerSecond)]] : []),
    ...own.map(([name, text, shade]) => [name, `<span class="${shade}">${prose(text)}</span>`]),
  ];
  return `<h2 class="title">Mirror ${escaped(row.mirror)} ${badge(row, cluster && cluster.error)}</h2>` +
    tiles([
      ["Total lag", number(lag, unknown ? "≥ " : ""), "offsets" + (unknown ? `, not known of ${counted(unknown, "partition")}` : "")],
      ["Time lag", duration(row.maxTimeLagMs)], ["Rate", rate(row.bytesPerSecond)], ["Done in", duration(row.etaMs)],
    ]) +
    '<dl class="facts">' + [...new Map(facts)].map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("") + "</dl>";
}

/** Return the charts of a mirror in a history, for its own range or the one of `rangeMs` before its end. */
function historyShown(history, route, rangeMs) {
  const found = history && history.mirrors.find(one => isOf(one, route));
  if (!found) return "";
  const until = history.until ?? history.asOf, whole = history.from ?? until - HOUR_MS;
  return charts(found, rangeMs ? Math.max(whole, until - rangeMs) : whole, until);
}

// -- events --------------------------------------------------------------------------------------------------------

function eventItem(event, isNamed) {
  const color = BAD_RESULTS.includes(event.result) ? "bad" : "";
  const said = event.sentence ?? `${event.actor}: ${event.what} ${event.result}`, whose = isNamed ? `<b>${escaped(event.mirror)}</b> ` : "";
  const text = JSON.stringify(event.details ?? {}, null, 2), shown = text.length > 4000 ? text.slice(0, 4000) + "… (kmirror events shows all)" : text;
  return `<li class="${color}"><time>${atTime(event.timeMs).slice(11, 19) || UNKNOWN}</time><div><p>${whose}${prose(said)}</p>` +
    `<details data-key="${escaped(event.timeMs + event.what + event.result)}"><summary>details</summary><p class="soft">${escaped(event.actor)}, ${atTime(event.timeMs)}: ` +
    `${escaped(event.what)} ${escaped(event.result)}</p>${text === "{}" ? "" : `<pre>${escaped(shown)}</pre>`}</details></div></li>`;
}

/** Return events as sentences, the newest first, with their days; `isNamed` adds their mirrors. */
function eventsList(events, isNamed = false) {
  const items = [];
  let day = null;
  for (const event of [...events].reverse()) {
    const its = dayOf(event.timeMs);
    if (its !== day) items.push(`<li class="day">${its}</li>`);
    day = its;
    items.push(eventItem(event, isNamed));
  }
  return `<ol class="events">${items.join("")}</ol>`;
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

// -- alarms --------------------------------------------------------------------------------------------------------

/** Say what is wrong, null where nothing is. `trouble` is why the last question was not answered, `ageMs` how old the numbers are. */
function alarmOf(status, trouble, ageMs) {
  if (trouble && !status) return `The engine does not answer: ${trouble}. Nothing is known.`;
  const who = status && status.phase === "watching" ? "kmirror serve" : "The engine";
  if (trouble) return `${who} does not answer: ${trouble}. What is shown here is ${duration(ageMs)} old and may be wrong.`;
  if (status && ageMs > STALE_MS) return `What is shown here is ${duration(ageMs)} old and may be wrong.`;
  if (status && !status.ready && status.mirrors !== null) return `Not all records flow: ${status.missing}`;
  return null;
}

/** How long to wait before the next question: an answer that takes long is asked for less often. */
function pause(tookMs, least) {
  return Math.min(60000, Math.max(least, 20 * tookMs));
}
