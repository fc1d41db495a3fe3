// The page itself: what is shown, what is asked for, and what its reader does.

function start() {
  const by = id => document.getElementById(id);
  const shown = {
    route: routeOf(location.hash), fleet: null, hour: null, charge: null, status: null, history: null, own: [], tables: [], isReport: false,
    column: "STATE", health: null, rangeMs: null, cursorMs: null, allEvents: false, allTopics: false,
  };
  const written = new Map(), scrolled = new Map();
  let isBack = false;

  // -- asking

  async function ask(path) {
    const control = new AbortController(), timer = setTimeout(() => control.abort(), 15000);
    try {
      const answer = await fetch(path, { signal: control.signal, cache: "no-store" });
      const text = await answer.text();
      let found = null;
      try { found = JSON.parse(text); } catch (error) { /* said below */ }
      if (!answer.ok) throw Object.assign(new Error((found && found.error && found.error.message) || `it answers ${answer.status}`), { status: answer.status });
      if (found === null) throw new Error("its answer is not JSON");
      return { found, ageMs: Math.max(0, Date.parse(answer.headers.get("Date")) - found.asOf) || 0 };
    } catch (error) {
      throw control.signal.aborted ? new Error("no answer within 15s") : error instanceof TypeError ? new Error("it cannot be reached") : error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Return what is shown: a lone mirror is shown instead of its fleet. */
  function current() {
    const mirrors = shown.fleet && shown.fleet.mirrors;
    if (shown.route.view !== "fleet" || !mirrors || mirrors.length !== 1 || shown.fleet.clusters.length > 1) return shown.route;
    return { view: "mirror", cluster: mirrors[0].cluster ?? null, mirror: mirrors[0].mirror, rangeMs: shown.rangeMs || HOUR_MS };
  }

  function chosenMirror(route) {
    return `mirror=${encodeURIComponent(route.mirror)}` + (route.cluster === null ? "" : `&cluster=${encodeURIComponent(route.cluster)}`);
  }

  const isFleet = () => current().view === "fleet";

  /** Return why a mirror or topic cannot be shown, null if it can, or if its server does not answer. */
  function absence() {
    const { trouble } = feedOf("status"), isWatched = shown.fleet && shown.fleet.phase === "watching";
    return trouble && (trouble.status === 404 || (isWatched && trouble.status === 503 && !shown.status)) ? trouble.message : null;
  }

  /** What is asked for, kept by its name: the address, null if it is not needed now, and the least pause. An engine does not know who is in charge. */
  const feeds = [
    { name: "fleet", path: () => "fleet.json", least: () => isFleet() ? 2000 : 10000 },
    {
      name: "status",
      path: () => {
        const route = current();
        if (route.view === "topic") return `status.json?${chosenMirror(route)}&topic=${encodeURIComponent(route.topic)}`;
        return route.view === "mirror" ? `status.json?${chosenMirror(route)}&partitions=false` : null;
      },
      least: () => 2000,
    },
    {
      name: "history",
      path: () => {
        const route = current();
        if (route.view === "fleet" || !shown.fleet) return null;
        return `history.json?${chosenMirror(route)}` + (route.rangeMs > HOUR_MS ? `&from=${shown.fleet.asOf - route.rangeMs}` : "");
      },
      least: () => (current().rangeMs || 0) > HOUR_MS ? 60000 : 15000,
    },
    { name: "hour", path: () => isFleet() ? "history.json" : null, least: () => 30000 },
    { name: "charge", path: () => shown.fleet && shown.fleet.phase === "watching" ? "in-charge.json" : null, least: () => 10000 },
  ].map(feed => ({ ...feed, turn: 0, timer: null, asked: null, at: 0, ageAtOnce: 0, trouble: null }));
  const feedOf = name => feeds.find(feed => feed.name === name);

  async function follow(feed) {
    const path = feed.path(), turn = ++feed.turn, began = Date.now();
    clearTimeout(feed.timer);
    if (path === null || feed.isAbsent) return;
    feed.asked = path;
    if (!document.hidden) {
      try {
        const { found, ageMs } = await ask(path);
        if (turn !== feed.turn) return;
        const isFirst = shown[feed.name] === null;
        shown[feed.name] = found;
        Object.assign(feed, { at: Date.now(), ageAtOnce: ageMs, trouble: null, shows: path });
        if (feed.name === "fleet" && isFirst) followAll("fleet");
      } catch (error) {
        if (turn !== feed.turn) return;
        if (feed.name === "charge") feed.isAbsent = error.status === 404;
        feed.trouble = error;
      }
      showAll();
    }
    feed.timer = setTimeout(() => follow(feed), pause(Date.now() - began, feed.least()));
  }

  /** Ask at once for all whose address has changed. */
  function followAll(except) {
    for (const feed of feeds) if (feed.name !== except && (feed.path() !== feed.asked || feed.path() === null || feed.name === "fleet")) follow(feed);
  }

  // -- showing

  /** Show markup at a place; what had the focus has it again. */
  function put(id, markup) {
    if (written.get(id) === markup) return;
    written.set(id, markup);
    const place = by(id), held = document.activeElement, open = [];
    const keyOf = one => one.dataset.key || one.dataset.head || one.dataset.health || one.getAttribute("href");
    const isHeld = held && held !== place && place.contains(held) && keyOf(held);
    if (place.querySelectorAll) place.querySelectorAll("details[open]").forEach(one => open.push(one.dataset.key));
    place.innerHTML = markup;
    if (open.length) place.querySelectorAll("details").forEach(one => { one.open = open.includes(one.dataset.key); });
    if (isHeld) [...place.querySelectorAll(held.localName)].find(one => keyOf(one) === isHeld)?.focus({ preventScroll: true });
  }

  function showAge() {
    const route = current(), feed = feedOf(route.view === "fleet" ? "fleet" : "status"), known = route.view === "fleet" ? shown.fleet : shown.status;
    const ageMs = known ? feed.ageAtOnce + Date.now() - feed.at : null;
    const isAbsent = route.view !== "fleet" && absence() !== null;
    const row = known && route.view !== "fleet" && known.mirrors && known.mirrors.find(one => isOf(one, route));
    // the fleet says of each mirror what it misses; a mirror says it at its head
    const missing = row ? (row.missing === undefined ? known.missing : row.missing) : null;
    const seen = known && { ...known, missing, ready: !missing || row.state === "STOPPED" };
    const alarm = isAbsent ? null : alarmOf(seen, feed.trouble && feed.trouble.message, ageMs);
    by("alarm").hidden = alarm === null;
    put("alarm", prose(alarm || ""));
    const old = known && !isAbsent && (feed.trouble !== null || ageMs > STALE_MS);
    by("shown").className = old ? "old" : "";
    by("age").className = old ? "bad" : "soft";
    by("age").textContent = !known ? (feed.trouble ? "" : "asking …")
      : `kmirror ${known.version}, ${phaseOf(known)}; as of ${atTime(known.asOf).slice(11, 19)} UTC, ${duration(ageMs)} ago`;
    const mirrors = shown.fleet && shown.fleet.mirrors;
    const bad = route.view === "fleet" && mirrors ? fleetRows(shown.fleet).filter(one => one.health === "bad").length : 0;
    document.title = (alarm || bad ? "⚠ " : "") + (bad ? `${bad} not copied - ` : "") + "kmirror" +
      (route.view === "fleet" ? "" : ` ${visible(route.topic ?? route.mirror)}`);
  }

  function showTopics() {
    const topics = (shown.status && shown.status.topics) || [];
    const found = chosen(topics, by("filter").value, shown.column, by("down").checked);
    const several = new Set(topics.map(row => row.mirror)).size > 1, columns = columnsOf(topics);
    const most = shown.isReport || shown.allTopics ? MOST_ROWS : FIRST_ROWS;
    put("rows", found.slice(0, most).map(row => topicRow(row, several, columns, !shown.isReport)).join(""));
    put("heads", columns.map(column => {
      const head = column[1], sorted = head === shown.column ? ` aria-sort="${by("down").checked ? "descending" : "ascending"}"` : "";
      return tableHead(column, `<button type="button" data-head="${head}">${head}</button>`, sorted);
    }).join(""));
    by("all-topics").hidden = most === MOST_ROWS || found.length <= most;
    by("all-topics").textContent = found.length > MOST_ROWS ? `Show ${number(MOST_ROWS)} topics` : `Show all ${number(found.length)} topics`;
    by("more").textContent = found.length > most ? `${number(found.length - most)} more topics; filter to see them.`
      : found.length < topics.length ? `${number(found.length)} of ${counted(topics.length, "topic")}` : "";
    by("order").value = shown.column;
  }

  function showFleet() {
    const rows = fleetRows(shown.fleet), found = fleetChosen(rows, by("fleet-filter").value, shown.health);
    put("counts", fleetCounts(rows, shown.health));
    by("fleet-controls").hidden = !rows.length;
    put("fleet-rows", nothingShown(shown.fleet) || fleetTable(found, shown.fleet, shown.hour, shown.charge));
    by("fleet-more").textContent = found.length < rows.length ? `${number(found.length)} of ${counted(rows.length, "mirror")}` : "";
    const events = shown.hour && shown.hour.events;
    put("fleet-events", events && events.length ? `<h2>Last events</h2>${eventsList(events.slice(-10), true)}` : "");
  }

  function showEvents() {
    const { history } = shown, events = (history && history.events) || [], most = shown.isReport || shown.allEvents ? events.length : MOST_EVENTS;
    put("events", events.length ? eventsList(events.slice(-most)) : "");
    by("all-events").hidden = events.length <= most;
    by("all-events").textContent = `Show all ${number(events.length)} events`;
    by("more-events").textContent = history && history.events && !events.length ? "None." : (history && history.leftOut) || "";
    const failed = !shown.isReport && feedOf("history").trouble;
    const trouble = failed ? `What is shown of the past is not of now: ${failed.message}` : history && history.eventsTrouble;
    by("events-trouble").hidden = !trouble;
    by("events-trouble").textContent = trouble || "";
  }

  function showMirror(route) {
    const { status, fleet, history } = shown, clusters = (status && status.clusters) || (fleet && fleet.clusters) || [];
    const row = [status, fleet].map(one => one && one.mirrors && one.mirrors.find(each => isOf(each, route))).find(one => one);
    const nowMs = shown.isReport ? null : ((status || fleet) && (status || fleet).asOf) ?? null;
    if (!shown.isReport) put("notices", clusterNotices(clusters.filter(one => one.name === route.cluster), fleet && fleet.mirrors, nowMs));
    put("mirrors", row ? mirrorSection(row, status && status.topics, { clusters, charge: shown.charge, own: shown.own, nowMs })
      : absence() !== null ? `<p>${prose(absence())}</p>` : status ? nothingShown({ ...status, mirrors: status.mirrors ?? null }) : '<p class="soft">asking …</p>');
    by("topics").hidden = !status || status.topics === null || !row;
    const drawn = history ? historyShown(history, route, shown.isReport ? shown.rangeMs : null) : "", isWithin = drawn || by("charts").innerHTML;
    by("past").hidden = by("happened").hidden = !row || !history;
    if (isWithin) put("charts", drawn);
    put("ranges", rangesShown(route));
    put("tables", breachesSection(history && history.breaches) + shown.tables.map(tableSection).join(""));
    showTopics();
    showEvents();
    moveCursor(shown.cursorMs);
  }

  /** Return the ranges as links, so that they can be shared; in a report, and of a lone mirror, as buttons. */
  function rangesShown(route) {
    const { history } = shown, whole = history && history.from ? (history.until ?? history.asOf) - history.from : 48 * HOUR_MS;
    const picked = shown.isReport ? shown.rangeMs : route.rangeMs;
    const choices = shown.isReport ? [...RANGES.filter(([, ms]) => ms < whole), ["all", null]] : RANGES;
    return choices.length < 2 ? "" : choices.map(([name, ms]) => shown.isReport || shown.route.view === "fleet"
      ? `<button type="button" data-key="${ms}" aria-pressed="${ms === picked}">${name}</button>`
      : `<a href="${linkTo(route.cluster, route.mirror, { rangeMs: ms })}" ${ms === picked ? 'aria-current="true"' : ""}>${name}</a>`).join("");
  }

  function showTopic(route) {
    const { status, fleet } = shown, row = status && status.topics && status.topics.find(one => one.topic === route.topic && isOf(one, route));
    const clusters = (fleet && fleet.clusters) || [];
    put("notices", clusterNotices(clusters.filter(one => one.name === route.cluster), fleet && fleet.mirrors, fleet ? fleet.asOf : 0));
    const partitions = row ? status.partitions.filter(one => one.topic === route.topic && isOf(one, route)) : [];
    put("topic", row ? topicShown(row, partitions, shown.history && shown.history.events)
      : absence() !== null ? `<p>${prose(absence())}</p>`
        : status ? `<p>Mirror ${escaped(route.mirror)} has no topic ${escaped(route.topic)}.</p>` : '<p class="soft">asking …</p>');
  }

  function showCrumbs(route) {
    const isAlone = current() !== shown.route, parts = [];
    if (route.view !== "fleet" && !isAlone) {
      const count = shown.fleet && shown.fleet.mirrors && shown.fleet.mirrors.length;
      parts.push(`<a href="#">${count === 1 ? "Mirror" : "All mirrors"}</a>`, route.cluster === null ? "" : `<span>${escaped(route.cluster)}</span>`);
      parts.push(route.view === "topic" ? `<a href="${linkTo(route.cluster, route.mirror)}">${escaped(route.mirror)}</a>` : `<span aria-current="page">${escaped(route.mirror)}</span>`);
      if (route.view === "topic") parts.push(`<span aria-current="page">${escaped(route.topic)}</span>`);
    }
    put("crumbs", parts.filter(part => part).join(' <span class="soft">/</span> '));
    by("crumbs").hidden = !parts.length;
  }

  function showAll() {
    const route = current();
    if (!shown.isReport) {
      by("fleet").hidden = route.view !== "fleet" || !shown.fleet;
      by("mirror").hidden = route.view !== "mirror";
      by("topic").hidden = route.view !== "topic";
      showCrumbs(route);
    }
    if (route.view === "mirror") showMirror(route);
    else if (route.view === "topic") showTopic(route);
    else if (shown.fleet) {
      put("notices", clusterNotices(shown.fleet.clusters, shown.fleet.mirrors, shown.fleet.asOf));
      showFleet();
    }
    if (!shown.isReport) showAge();
  }

  // -- its reader

  /** Show what all charts say at a time; null: nothing. */
  function moveCursor(ms) {
    shown.cursorMs = ms;
    const found = chartNow();
    for (const plot of (found && by("charts").querySelectorAll && by("charts").querySelectorAll(".plot")) || []) {
      const at = ms === null ? null : cursorAt(plot.dataset.key, found.points, found.from, found.until, ms), tip = plot.querySelector(".tip");
      plot.classList.toggle("read", at !== null);
      tip.hidden = at === null;
      if (at === null) continue;
      const cursor = plot.querySelector(".cursor"), dot = plot.querySelector(".dot");
      cursor.setAttribute("x1", at.x + "%");
      cursor.setAttribute("x2", at.x + "%");
      dot.setAttribute("cx", at.x + "%");
      dot.setAttribute("cy", (at.y ?? -50) + "%");
      tip.innerHTML = `<b>${escaped(at.value)}</b> ${escaped(at.time)}`;
      tip.style.left = at.x + "%";
      tip.classList.toggle("left", at.x > 50);
      plot.setAttribute("aria-valuenow", at.timeMs);
      plot.setAttribute("aria-valuetext", `${at.time}: ${at.value}`);
    }
  }

  /** Return the points that charts show now, and their range. */
  function chartNow() {
    const { history } = shown, found = history && history.mirrors.find(one => isOf(one, current()));
    if (!found) return null;
    const until = history.until ?? history.asOf, whole = history.from ?? until - HOUR_MS;
    const from = shown.isReport && shown.rangeMs ? Math.max(whole, until - shown.rangeMs) : whole;
    return { points: within(found.points, from, until), from, until };
  }

  function listen(id, what, work) {
    by(id).addEventListener(what, work);
  }

  function navigate() {
    const before = shown.route;
    shown.route = routeOf(location.hash);
    const isSame = before.view === shown.route.view && before.cluster === shown.route.cluster && before.mirror === shown.route.mirror && before.topic === shown.route.topic;
    if (before.mirror !== shown.route.mirror || before.cluster !== shown.route.cluster) Object.assign(shown, { history: null, allEvents: false, allTopics: false });
    if (!isSame) Object.assign(shown, { status: null, cursorMs: null });
    for (const feed of feeds) if (feed.name === "status" || feed.name === "history") feed.trouble = null;
    showAll();
    if (!isSame) scrollTo(0, isBack ? scrolled.get(location.hash) || 0 : 0);
    isBack = false;
    followAll();
  }

  by("order").innerHTML = COLUMNS.map(([, head]) => `<option>${head}</option>`).join("");
  listen("filter", "input", showTopics);
  listen("down", "change", showTopics);
  listen("order", "change", () => { shown.column = by("order").value; showTopics(); });
  listen("fleet-filter", "input", showFleet);
  listen("counts", "click", event => {
    const chip = event.target.closest("[data-health]");
    if (!chip) return;
    shown.health = chip.dataset.health === shown.health ? null : chip.dataset.health;
    showFleet();
  });
  listen("controls", "submit", event => event.preventDefault());
  listen("fleet-controls", "submit", event => event.preventDefault());
  listen("all-topics", "click", () => { shown.allTopics = true; showTopics(); });
  listen("all-events", "click", () => { shown.allEvents = true; showEvents(); });
  listen("heads", "click", event => {
    const head = event.target.dataset.head;
    if (!head) return;
    by("down").checked = head === shown.column ? !by("down").checked : COLUMNS.find(one => one[1] === head)[2] !== "text";
    shown.column = head;
    showTopics();
  });
  listen("ranges", "click", event => {
    const { key } = event.target.dataset;
    if (!key) return;
    Object.assign(shown, { rangeMs: key === "null" ? null : Number(key), cursorMs: null });
    showAll();
    if (!shown.isReport) followAll();
  });
  listen("charts", "pointermove", event => {
    const field = event.target.closest(".plot .field"), found = chartNow();
    if (!field || !found) return moveCursor(null);
    const { left, width } = field.getBoundingClientRect();
    return moveCursor(found.from + (event.clientX - left) / width * (found.until - found.from));
  });
  listen("charts", "pointerleave", () => moveCursor(null));
  listen("charts", "focusout", () => moveCursor(null));
  listen("charts", "keydown", event => {
    const found = chartNow(), by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") moveCursor(null);
    if (by === undefined || !found || !event.target.closest(".plot")) return;
    event.preventDefault();
    moveCursor(neighbour(found.points, shown.cursorMs, by));
  });
  by("shown").hidden = false;
  const report = by("report").textContent;
  if (report) {
    Object.assign(shown, JSON.parse(report), { isReport: true });
    for (const one of shown.history.mirrors)
      one.points = one.points.map(row => Object.fromEntries(one.keys.map((key, index) => [key, row[index]])));
    Object.assign(shown, { own: shown.facts, route: { view: "mirror", cluster: null, mirror: shown.status.mirrors[0].mirror } });
    by("mirror").hidden = false;
    showAll();
    return;
  }
  addEventListener("popstate", event => { isBack = Boolean(event.state); });
  addEventListener("hashchange", () => {
    navigate();
    history.replaceState({ seen: true }, "");
  });
  addEventListener("scroll", () => scrolled.set(location.hash, scrollY), { passive: true });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) feeds.forEach(follow); });
  history.replaceState({ seen: true }, "");
  setInterval(showAge, 1000);
  feeds.forEach(follow);
}

if (typeof document !== "undefined") start();
