// The fleet: all mirrors of all clusters, worst first. All is pure.

const HEALTHS = [["bad", "not copied"], ["warn", "need attention"], ["ok", "fine"], ["soft", "stopped"]];

/** Return the clusters that cannot be read, as sentences: what is wrong, since when, and how old what is shown of them is. */
function clusterNotices(clusters, mirrors, nowMs) {
  return clusters.filter(one => one.error).map(one => {
    const count = (mirrors || []).filter(row => row.cluster === one.name).length;
    const since = (one.errorSince ?? null) === null ? "" : ` since ${moment(one.errorSince, nowMs)} (${duration(Math.max(0, nowMs - one.errorSince))})`;
    const known = (one.asOf ?? null) === null ? "Nothing is known of it." : count ? `What is shown of its ${counted(count, "mirror")} is of ${moment(one.asOf, nowMs)}.` : "";
    return `<p class="alarm"><strong>${escaped(one.name)}</strong> cannot be read${since}: ${prose(one.error)}. ${known}</p>`;
  }).join("");
}

/** Return the mirrors with their health, the worst first: not copied, then what needs attention, then by their lag in time. */
function fleetRows({ mirrors, clusters }) {
  const silent = new Set(clusters.filter(one => one.error).map(one => one.name)), order = HEALTHS.map(([health]) => health);
  const compared = (a, b) => a < b ? -1 : a > b ? 1 : 0, behind = row => row.maxTimeLagMs ?? (row.state === "STOPPED" ? -1 : Infinity);
  return (mirrors || []).map(row => ({ ...row, isSilent: silent.has(row.cluster), health: healthOf(row, silent.has(row.cluster)) }))
    .sort((a, b) => compared(order.indexOf(a.health), order.indexOf(b.health)) || compared(ORDER.indexOf(a.state), ORDER.indexOf(b.state)) ||
      (b.objectivesBreached || 0) - (a.objectivesBreached || 0) || compared(behind(b), behind(a)) || compared(a.mirror, b.mirror) || compared(a.cluster ?? "", b.cluster ?? ""));
}

function fleetChosen(rows, words, health) {
  const wanted = words.toLowerCase().split(/\s+/).filter(word => word);
  const textOf = row => [row.cluster, row.mirror, row.state, row.reason, row.engine, row.missing].join(" ").toLowerCase();
  return rows.filter(row => (!health || row.health === health) && wanted.every(word => textOf(row).includes(word)));
}

/** Return how many mirrors are how well, as buttons that choose them. */
function fleetCounts(rows, chosenHealth) {
  return HEALTHS.map(([health, words]) => [health, words, rows.filter(row => row.health === health).length])
    .filter(([health, , count]) => count || health === chosenHealth)
    .map(([health, words, count]) => `<button type="button" class="chip" data-health="${health}" aria-pressed="${health === chosenHealth}">` +
      `<span class="spot ${health}"></span><b>${number(count)}</b> ${words}</button>`).join("");
}

const small = (text, color = "soft") => text ? `<small class="${color}">${text}</small>` : "";

function fleetRow(row, { clusters, charge, history, nowMs, has }) {
  const [engine, life, color] = engineOf(row, nowMs), hour = history && history.mirrors.find(one => isOf(one, { cluster: row.cluster ?? null, mirror: row.mirror }));
  const held = has.charge && chargeOf(row, clusters, charge), old = row.isSilent ? clusters.find(one => one.name === row.cluster).asOf : null;
  const why = row.failed ? `${counted(row.failed, "partition")} FAILED` : row.missing;
  const cells = [
    ["name", "", `<a href="${linkTo(row.cluster, row.mirror)}">${escaped(row.mirror)}</a>` + small(escaped(row.cluster ?? row.sourceClusterId ?? ""))],
    ["state", "", badge(row, row.isSilent) + (row.isSilent ? small(`as of ${moment(old, nowMs)}`, "warn") : "") + (why && row.health !== "ok" ? `<small class="soft why">${prose(why)}</small>` : "")],
    ["number", "LAG", number(row.lag, row.lagUnknown ? "≥ " : "") + small(duration(row.maxTimeLagMs).replace(/^-$/, ""))],
    ["hour", "LAST HOUR", hour ? spark(hour.points, history.until ?? history.asOf) : ""],
    ["number", "RATE", rate(row.bytesPerSecond) + small(row.etaMs ? `done in ${duration(row.etaMs)}` : "")],
    ["engine", "ENGINE", `<span class="${color}">${engine}</span>` + small(life, color || "soft")],
    ...(has.objectives ? [["objectives", "OBJECTIVES", objectivesOf(row) || UNKNOWN]] : []),
    ...(has.charge ? [["charge", "IN CHARGE", held ? `<span class="${held[1]}">${escaped(held[0])}</span>` + (held[2] ? `<small class="soft why">${prose(held[2])}</small>` : "") : UNKNOWN]] : []),
  ];
  return `<tr class="${row.health}">` + cells.map(([kind, head, content]) => `<td class="${kind}${content === UNKNOWN ? " none" : ""}" data-head="${head}"><div>${content}</div></td>`).join("") + "</tr>";
}

/** Return the table of mirrors; columns that no mirror has a value in are absent. */
function fleetTable(rows, fleet, history, charge) {
  const has = { objectives: rows.some(row => objectivesOf(row)), charge: Boolean(charge && charge.length) };
  const heads = [["MIRROR", ""], ["STATE", ""], ["LAG", "number"], ["LAST HOUR", ""], ["RATE", "number"], ["ENGINE", ""], ...(has.objectives ? [["OBJECTIVES", ""]] : []), ...(has.charge ? [["IN CHARGE", ""]] : [])];
  const about = { clusters: fleet.clusters, charge, history, nowMs: fleet.asOf, has };
  return `<table class="fleet"><thead><tr>${heads.map(([name, style]) => `<th class="${style}">${name}</th>`).join("")}</tr></thead><tbody>` +
    rows.slice(0, MOST_ROWS).map(row => fleetRow(row, about)).join("") + "</tbody></table>";
}

/** Say why there are no mirrors. */
function nothingShown(fleet) {
  if (fleet.mirrors === null) return `<p>Nothing is copied yet: ${escaped(fleet.missing || fleet.phase)}.</p>`;
  return fleet.mirrors.length ? "" : fleet.phase === "watching" ? "<p>No cluster that answers has a mirror.</p>" : "<p>There is no mirror to copy.</p>";
}
