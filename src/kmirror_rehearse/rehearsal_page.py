"""A rehearsal as one HTML page: the verdict, the RTO by phase, the loss, the findings, the trend. Pure: no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from kmirror import __version__
from kmirror.settings.durations import format_duration
from kmirror.web.plain_page import plain_page, section, sentences, table_of, text, text_table
from kmirror.words import UNKNOWN, at_time, counted, listed
from kmirror_rehearse.rehearsal_evidence import PHASES, TOPICS, Rehearsal
from kmirror_rehearse.rehearsal_findings import FINDINGS

_FILE = "the JSON file"
#: The most runs in the trend.
_MOST_RUNS = 24
#: Of the pictures, in their own units.
_WIDTH, _HEIGHT, _ROW, _LEFT, _BOTTOM = 1000, 220, 34, 150, 40


def rehearsal_page(done: Rehearsal, earlier: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page; `earlier` are the documents of earlier rehearsals, oldest first."""
    verdict = "passed" if not done.bad else f"found {counted(len(done.bad), 'problem')}"
    return plain_page(
        f"Rehearsal of {at_time(done.began_ms)}: {verdict}",
        "rehearse",
        f"By {done.operator}, in {format_duration(done.ended_ms - done.began_ms)}. From cluster"
        f" {done.source.cluster_id}, which was only read, to {_destination(done)}. Made with kmirror {__version__}.",
        (
            *section("Summary", sentences(summary(done))),
            *section("From the cut to clients that write", _recovery(done)),
            *section("What is wrong, or would lack", table_of(FINDINGS, done.findings, _FILE)),
            *(section("Earlier rehearsals", _trend(done, earlier)) if earlier else ()),
            *section("Phases", table_of(PHASES, done.phases, _FILE)),
            *section("Topics", table_of(TOPICS, done.topics, _FILE)),
            *(section("The check", _checks(done)) if done.checks else ()),
        ),
        "Times are UTC; - is not known.",
    )


def _destination(done: Rehearsal) -> str:
    where = "a cluster that was started for it" if done.destination.is_sandbox else done.destination.bootstrap_server
    return f"{where} ({done.destination.cluster_id})"


def summary(done: Rehearsal) -> Iterator[tuple[str, str]]:
    """Yield the sentences that matter most, each with how bad it is: nothing, warn or bad."""
    rto = done.recovery.seconds
    if rto is None:
        yield "bad", "Clients could not write to all topics after the failover."
    else:
        yield "", f"Clients could write {rto:.1f} s after the source was cut off, if someone acts at once."
    loss = done.loss
    if loss.counted is None:
        yield "warn", "What was lost could not be counted."
    else:
        least, most = loss.reported_least, loss.reported_most
        reported = UNKNOWN if least is None or most is None else _between(least, most)
        yield "", f"Lost, as counted: {counted(loss.counted, 'record')}; the failover reported {reported}."
    if loss.behind:
        yield (
            "warn",
            f"The copy of the source was {counted(loss.behind, 'record')} behind it when it was cut off: these would be"
            " lost too.",
        )
    if done.bad:
        subjects = listed(list(dict.fromkeys(one.subject for one in done.bad)), 8)
        yield "bad", f"{counted(len(done.bad), 'thing')} {'is' if len(done.bad) == 1 else 'are'} wrong: {subjects}."
    if warnings := len(done.findings) - len(done.bad):
        yield "warn", f"{counted(warnings, 'further finding')} {'is' if warnings == 1 else 'are'} a warning."
    if not done.findings:
        yield "", "Nothing else was found."


def _between(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _recovery(done: Rehearsal) -> Iterator[str]:
    """Draw a bar for each time since the cut."""
    found = done.recovery
    times = [
        ("noticed", found.noticed),
        ("failed over", found.failed_over),
        ("written to", found.written),
        *([("check passed", found.checked)] if done.checks else []),
    ]
    longest = max((seconds for _, seconds in times if seconds is not None), default=0.0) or 1.0
    height = _ROW * len(times)
    yield f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Seconds since the cut">\n'
    for row, (name, seconds) in enumerate(times):
        top = row * _ROW
        yield f'<text x="8" y="{top + 22}" font-size="15" fill="currentColor">{name}</text>\n'
        if seconds is None:
            yield f'<text x="{_LEFT}" y="{top + 22}" font-size="15" fill="currentColor">not reached</text>\n'
            continue
        width = max(2.0, (_WIDTH - _LEFT - 110) * seconds / longest)
        yield f'<rect class="ok" x="{_LEFT}" y="{top + 7}" width="{width:.1f}" height="20" rx="3"></rect>\n'
        yield (
            f'<text x="{_LEFT + width + 8:.1f}" y="{top + 22}" font-size="15" fill="currentColor">'
            f"{seconds:.1f} s</text>\n"
        )
    yield "</svg><figcaption>Seconds since the source was cut off</figcaption></figure>\n"
    if found.steps:
        rows = [(step.step, f"{step.seconds:.3f}") for step in found.steps]
        yield from text_table(("STEP OF THE FAILOVER", "SECONDS"), rows)


def _trend(done: Rehearsal, earlier: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Draw the RTO of each rehearsal, and list what each found."""
    runs = [*earlier, done.to_json()][-_MOST_RUNS:]
    times = [one["recovery"]["seconds"] for one in runs]
    longest = max((one for one in times if one is not None), default=0.0) or 1.0
    room = _HEIGHT - _BOTTOM - 20
    step = (_WIDTH - 60) / len(runs)
    yield f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="RTO of each rehearsal">\n'
    yield f'<line x1="50" x2="{_WIDTH}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM}" stroke="currentColor"/>\n'
    yield f'<text x="2" y="26" font-size="13" fill="currentColor">{longest:.1f} s</text>\n'
    yield f'<text x="2" y="{_HEIGHT - _BOTTOM}" font-size="13" fill="currentColor">0 s</text>\n'
    for number, (one, seconds) in enumerate(zip(runs, times, strict=True)):
        x, kind = 55 + number * step, "bad" if one["exitCode"] else "ok"
        tall = room * (seconds / longest) if seconds is not None else 0.0
        title = f"{at_time(one['beganMs'])}: {'not reached' if seconds is None else f'{seconds:.1f} s'}"
        top = _HEIGHT - _BOTTOM - tall
        shape = f'x="{x:.1f}" y="{top:.1f}" width="{max(4.0, step * 0.6):.1f}" height="{max(2.0, tall):.1f}"'
        yield f'<rect class="{kind}" {shape}><title>{text(title)}</title></rect>\n'
    first, last = at_time(runs[0]["beganMs"])[:10], at_time(runs[-1]["beganMs"])[:10]
    yield f'<text x="55" y="{_HEIGHT - 14}" font-size="13" fill="currentColor">{first}</text>\n'
    place = f'x="{_WIDTH - 4}" y="{_HEIGHT - 14}" text-anchor="end"'
    yield f'<text {place} font-size="13" fill="currentColor">{last}</text>\n'
    yield "</svg><figcaption>RTO by rehearsal; red ones found something wrong</figcaption></figure>\n"
    yield from text_table(("REHEARSAL", "RTO", "LOST", "FOUND"), [_run(one) for one in reversed(runs)])


def _run(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    found = [finding["finding"] for finding in one["findings"] if finding["level"] == "bad"]
    seconds, lost = one["recovery"]["seconds"], one["loss"]["counted"]
    return (
        at_time(one["beganMs"]),
        UNKNOWN if seconds is None else f"{seconds:.1f} s",
        UNKNOWN if lost is None else f"{lost:,}",
        ", ".join(dict.fromkeys(found)) or "nothing",
    )


def _checks(done: Rehearsal) -> Iterator[str]:
    for run in done.checks:
        ended = f"exit code {run.exit_code}" if run.exit_code is not None else str(run.outcome)
        yield f"<p><code>{text(run.command)}</code>: {ended}</p>\n<pre>{escape(run.output)}</pre>\n"
