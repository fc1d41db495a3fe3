"""A plan as one HTML page, for people who decide and for those who carry it out. Pure: no I/O, no clock, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from kmirror import __version__
from kmirror.web.plain_page import plain_page, section, sentences, table_of, text, text_table
from kmirror.words import at_time, byte_count, byte_rate, counted
from kmirror_plan.applications import Application
from kmirror_plan.inventory import TopicFacts
from kmirror_plan.migration_plan import (
    HUBS,
    NEEDS,
    TOPICS_READ,
    UNSEEN,
    WAVES_SHOWN,
    MigrationPlan,
)
from kmirror_plan.waves import Wave, duration_text

#: The most rows of a table, and the most applications in the picture of a wave.
_MOST_ROWS, _MOST_CIRCLES = 500, 60
_FILE = "plan.json"
#: Of the picture, in its own units.
_WIDTH, _LEAST_RADIUS, _LARGEST_RADIUS, _GAP, _LEFT = 1000, 6.0, 44.0, 6.0, 90


def plan_page(plan: MigrationPlan) -> str:
    """Return the page."""
    return plain_page(
        f"Migration plan: {counted(len(plan.topics), 'topic')} in {counted(len(plan.waves), 'wave')}",
        "plan",
        f"From cluster {plan.inventory.cluster_id} to {plan.room.cluster_id}. Read"
        f" {at_time(plan.inventory.read_at_ms)}, rates over {plan.inventory.sample_ms / 1000:.0f} s."
        f" Made with kmirror {__version__}.",
        (
            *section("Summary", sentences(summary(plan))),
            *_picture(plan),
            *section("Waves", table_of(WAVES_SHOWN, plan.waves, _FILE)),
            *(section("Used by many applications", table_of(HUBS, plan.hubs, _FILE)) if plan.hubs else ()),
            *section("What the destination needs", table_of(NEEDS, plan.needs, _FILE)),
            *section("Applications", _applications(plan)),
            *(section("Not known", table_of(UNSEEN, plan.inventory.unseen, _FILE)) if plan.inventory.unseen else ()),
            *section("Topics", table_of(TOPICS_READ, sorted(plan.topics, key=lambda one: -(one.size or 0)), _FILE)),
        ),
        "Times are UTC; - is not known. Sizes are of one replica as stored.",
    )


def summary(plan: MigrationPlan) -> Iterator[tuple[str, str]]:
    """Yield the sentences that matter most, each with how bad it is: nothing, warn or bad."""
    sizes = [topic.size for topic in plan.topics]
    known = sum(size for size in sizes if size is not None)
    unknown = sizes.count(None)
    more = f" and {counted(unknown, 'topic')} of unknown size" if unknown else ""
    yield (
        "",
        f"{counted(len(plan.topics), 'topic')} ({byte_count(known)}{more}) of "
        f"{counted(len(plan.applications), 'application')} {'moves' if len(plan.topics) == 1 else 'move'} in "
        f"{counted(len(plan.waves), 'wave')}.",
    )
    if plan.rates.usual is None:
        yield "warn", "No times are predicted: how fast a copy is was not said (--bandwidth) or measured (--trial)."
    else:
        seconds = [wave.copy_seconds for wave in plan.waves]
        by_class = "".join(f", {name} batches {byte_rate(rate)}" for name, rate in plan.rates.by_class.items())
        if None not in seconds:
            total = sum(one for one in seconds if one is not None)
            rates = f"{byte_rate(plan.rates.usual)}{by_class}"
            yield "", f"Copying all waves, one after another, takes {duration_text(total)} at {rates}."
    never = [str(wave.number) for wave in plan.waves if wave.never_catches_up]
    if never:
        waves = f"wave {', '.join(never)}"
        yield "bad", f"Never caught up at this rate: {waves}. Records are written as fast as they are copied."
    for need in plan.needs:
        if need.is_enough is not True:
            yield ("bad" if need.is_enough is False else "warn"), f"{need.what}: {need.message}."
    for line in plan.findings:
        if not line.ok:
            yield "bad", f"{line.what} ({line.cluster}): {line.message}"
    for hub in plan.hubs:
        yield "warn", hub.reason + "."
    if plan.inventory.unseen:
        yield "warn", f"{counted(len(plan.inventory.unseen), 'thing')} could not be read: the plan may lack something."


def _applications(plan: MigrationPlan) -> Iterator[str]:
    wave_of = {name: wave.number for wave in plan.waves for name in wave.applications}
    found = sorted(plan.applications, key=lambda one: (wave_of[one.name], one.name))[:_MOST_ROWS]
    return text_table(
        ("APPLICATION", "WAVE", "TOPICS", "GROUPS", "PRODUCERS"),
        [
            (one.name, str(wave_of[one.name]), _some(one.topics), _some(one.groups), _some(one.producers))
            for one in found
        ],
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6:,} more" if len(names) > 6 else "")


def _picture(plan: MigrationPlan) -> Iterator[str]:
    """Draw each wave as a row of its applications: circles whose areas are their bytes."""
    topics = {topic.topic: topic for topic in plan.topics}
    titles = {one.name: _title(one, topics) for one in plan.applications}
    sizes = {one.name: _size(one, topics) for one in plan.applications}
    largest = max(sizes.values(), default=0) or 1
    parts, top = [], _GAP
    for wave in plan.waves:
        drawn, top = _row(wave, titles, sizes, largest, top)
        parts += drawn
    yield f"<figure><figcaption>Applications by wave; areas are bytes, the largest {byte_count(largest)}</figcaption>\n"
    yield f'<svg viewBox="0 0 {_WIDTH} {top:.0f}" role="img" aria-label="Applications by wave">\n'
    yield from parts
    yield "</svg></figure>\n"


def _size(application: Application, topics: dict[str, TopicFacts]) -> int:
    return sum(topics[name].size or 0 for name in application.topics)


def _title(application: Application, topics: dict[str, TopicFacts]) -> str:
    is_known = all(topics[name].size is not None for name in application.topics)
    size = byte_count(_size(application, topics)) if is_known else "of unknown size"
    return f"{application.name}: {counted(len(application.topics), 'topic')}, {size}"


def _row(
    wave: Wave, titles: dict[str, str], sizes: dict[str, int], largest: int, top: float
) -> tuple[list[str], float]:
    """Return the elements of a wave's row, and where the next one begins."""
    names = sorted(wave.applications, key=lambda name: (-sizes[name], name))
    shown = names[:_MOST_CIRCLES]
    parts, x, line, bottom = [], float(_LEFT), top, top
    for name in shown:
        radius = max(_LEAST_RADIUS, _LARGEST_RADIUS * sqrt(sizes[name] / largest))
        if x + 2 * radius > _WIDTH:
            x, line = float(_LEFT), bottom + _GAP
        kind = "bad" if wave.never_catches_up else "warn" if wave.exceeds else "ok"
        center = f'cx="{x + radius:.1f}" cy="{line + radius:.1f}"'
        parts.append(f'<circle class="{kind}" {center} r="{radius:.1f}"><title>{text(titles[name])}</title></circle>\n')
        x, bottom = x + 2 * radius + _GAP, max(bottom, line + 2 * radius)
    more = f" +{len(names) - len(shown)}" if len(names) > len(shown) else ""
    label = f'<text x="8" y="{top + 14:.1f}" font-size="14" fill="currentColor">wave {wave.number}{more}</text>\n'
    return [label, *parts], max(bottom, top + 18) + 2 * _GAP
