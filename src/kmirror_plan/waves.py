"""In which order applications move, and how long each wave takes. Pure.

Waves are filled in the order of the applications' sizes, the smallest first: the first wave is a rehearsal that costs
little. No application is split over two waves. Schemas come first, since everyone needs them, and topics that are hubs
last, since they can only be switched when no one is left. What is of unknown size may be larger than any limit: it
comes after what is known, and shares no wave with it.

The time of a wave is known only if the rate of a copy is: it was given, or measured by a trial copy. Records that are
written meanwhile are copied too, so a copy catches up only if it is faster than they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kmirror.columns import COUNT, FLAG, TEXT, Column, Type, list_of, shown, table_row
from kmirror.settings.durations import format_duration
from kmirror.words import byte_count, byte_rate, counted
from kmirror_plan.applications import Application
from kmirror_plan.inventory import BYTES, BYTES_PER_SECOND, Shape, TopicFacts

_SECONDS = Type("number", "seconds", minimum=0)
#: From `add` to the first byte copied, where an engine runs.
START_SECONDS = 2.0
#: Unless limits are given, waves are filled to this many bytes.
USUAL_WAVE_BYTES = 100_000_000_000


def duration_text(seconds: float) -> str:
    """Format predicted seconds, one at least."""
    return format_duration(max(1, round(seconds)) * 1000)


def _caught_up(wave: Wave) -> str | None:
    if wave.never_catches_up:
        return "never"
    return None if wave.caught_up_seconds is None else duration_text(wave.caught_up_seconds)


@table_row
class Wave:
    """Applications whose topics are copied, and switched over, together."""

    number: int = shown(COUNT, "its place in the order, from 1", "WAVE")
    applications: tuple[str, ...] = shown(list_of(TEXT), "its applications")
    topics: tuple[str, ...] = shown(list_of(TEXT), "their topics")
    partitions: int = shown(COUNT, "their partitions", "PARTITIONS")
    size: int | None = shown(
        BYTES.null_when("the size of a topic is not known"), "bytes to copy", "BYTES", key="bytes", cell=byte_count
    )
    rate: float | None = shown(
        BYTES_PER_SECOND.null_when("the rate of a topic is not known"),
        "bytes written to the topics per second",
        "WRITTEN",
        key="bytesPerSecond",
        cell=byte_rate,
    )
    copy_seconds: float | None = shown(
        _SECONDS.null_when("bytes, or the rate of a copy, are not known"),
        "predicted seconds to copy what is there now",
        "COPY",
        cell=duration_text,
    )
    caught_up_seconds: float | None = shown(
        _SECONDS.null_when("it is not known, or the copy never catches up"),
        "predicted seconds until the copy has caught up with what is written meanwhile",
        "CAUGHT-UP",
        of_row=_caught_up,
    )
    never_catches_up: bool = shown(FLAG, "whether records are written at least as fast as they can be copied")
    exceeds: str | None = shown(
        TEXT.null_when("it is within the limits"),
        "the limit that it exceeds, for one application alone is larger; or that the size of some topics is not known",
    )


#: Of a wave in tables: how many applications and topics it has.
WAVE_COUNTS: tuple[Column[Wave], ...] = (
    Column("", COUNT, "", lambda wave: len(wave.applications), "APPLICATIONS", is_number=True),
    Column("", COUNT, "", lambda wave: len(wave.topics), "TOPICS", is_number=True),
)


@dataclass(frozen=True, slots=True)
class CopyRates:
    """How many bytes a second a copy brings, by the class of a topic's batches; `usual` where a class has none."""

    usual: float | None = None
    by_class: Mapping[str, float] = field(default_factory=dict)

    def of(self, topic: TopicFacts) -> float | None:
        """Return the rate for a topic; None if it is not known."""
        return self.by_class.get(batch_class(topic), self.usual)


#: No rate is known.
NO_RATES = CopyRates()


def batch_class(topic: TopicFacts) -> str:
    """Return the class of a topic's batches: how fast they are copied depends on their size and shape."""
    if topic.has_old_format or topic.is_compacted:
        return "taken apart"
    mean = topic.mean_batch
    return "unknown" if mean is None else "large" if mean >= 64_000 else "medium" if mean >= 8_000 else "small"


@dataclass(frozen=True, slots=True)
class WaveLimits:
    """What a wave may take at most; None for no limit."""

    size: int | None = None
    seconds: float | None = None

    @property
    def in_force(self) -> WaveLimits:
        """These limits, or the usual ones if there are none."""
        return self if self.size is not None or self.seconds is not None else WaveLimits(USUAL_WAVE_BYTES)


def waves_of(
    applications: Sequence[Application],
    topics: Mapping[str, TopicFacts],
    hubs: frozenset[str],
    rates: CopyRates,
    limits: WaveLimits,
) -> tuple[Wave, ...]:
    """Return the waves; `hubs` are the topics that are hubs."""
    order = sorted(applications, key=lambda one: (*_place(one, topics, hubs), one.name))
    waves = list(_filled(order, topics, hubs, rates, limits.in_force))
    return tuple(replace(wave, number=number) for number, wave in enumerate(waves, 1))


def _place(application: Application, topics: Mapping[str, TopicFacts], hubs: frozenset[str]) -> tuple[int, bool, int]:
    if any(topics[topic].shape is Shape.SCHEMAS for topic in application.topics):
        return 0, False, 0
    size, least = _sum([topics[topic] for topic in application.topics], lambda topic: topic.size)
    return (2 if hubs & {*application.topics} else 1), size is None, least


def _filled(
    order: Sequence[Application],
    topics: Mapping[str, TopicFacts],
    hubs: frozenset[str],
    rates: CopyRates,
    limits: WaveLimits,
) -> Iterator[Wave]:
    some: list[Application] = []
    for application in order:
        tried = _wave([*some, application], topics, rates, limits)
        before = _place(some[-1], topics, hubs)[0] if some else None
        if some and (tried.exceeds or before != _place(application, topics, hubs)[0]):
            yield _wave(some, topics, rates, limits)
            some = []
        some.append(application)
    if some:
        yield _wave(some, topics, rates, limits)


def _wave(
    applications: Sequence[Application], topics: Mapping[str, TopicFacts], rates: CopyRates, limits: WaveLimits
) -> Wave:
    names = tuple(sorted(name for application in applications for name in application.topics))
    found = [topics[name] for name in names]
    size, least_size = _sum(found, lambda topic: topic.size)
    written, _ = _sum(found, lambda topic: topic.rate)
    copying, least_copying = _sum(found, lambda topic: _seconds_of(topic, rates))
    copy_seconds = None if copying is None else START_SECONDS + copying
    # the share of its time that a copy needs to keep up with what is written
    load, least_load = _sum(found, lambda topic: _share_of(topic, rates))
    never = least_load >= 1
    caught_up = None if copy_seconds is None or load is None or never else copy_seconds / (1 - load)
    exceeds = None
    if limits.size is not None and least_size > limits.size:
        exceeds = f"--wave-bytes {byte_count(limits.size)}"
    elif limits.seconds is not None and START_SECONDS + least_copying > limits.seconds:
        exceeds = f"--wave-time {duration_text(limits.seconds)}"
    elif unknown := sum(topic.size is None for topic in found):
        exceeds = f"the size of {counted(unknown, 'topic')} is not known"
    return Wave(
        number=0,
        applications=tuple(application.name for application in applications),
        topics=names,
        partitions=sum(topic.partitions for topic in found),
        size=None if size is None else int(size),
        rate=written,
        copy_seconds=None if copy_seconds is None else round(copy_seconds, 1),
        caught_up_seconds=None if caught_up is None else round(caught_up, 1),
        never_catches_up=never,
        exceeds=exceeds,
    )


def _seconds_of(topic: TopicFacts, rates: CopyRates) -> float | None:
    rate = rates.of(topic)
    if topic.size == 0:
        return 0.0
    return None if topic.size is None or not rate else topic.size / rate


def _share_of(topic: TopicFacts, rates: CopyRates) -> float | None:
    rate = rates.of(topic)
    if topic.rate == 0:
        return 0.0
    return None if topic.rate is None or not rate else topic.rate / rate


def _sum(topics: Sequence[TopicFacts], value: Callable[[TopicFacts], Any]) -> tuple[Any, Any]:
    """Return a sum, None if one of the values is not known; and the sum of those that are, which it is at least."""
    values = [value(topic) for topic in topics]
    least = sum(one for one in values if one is not None)
    return None if None in values else least, least
