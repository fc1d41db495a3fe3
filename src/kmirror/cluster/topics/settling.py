"""Which settings of a topic to settle for where a cluster refuses those asked for. Pure.

Which setting was refused, and what would be accepted, is told in words only, if at all. So it is found out by asking:
first with the weakest values, then with each setting as close to the wanted one as it is accepted. Each question may
cost some of a quota of changes, so the usual limits are asked for first, and most settings are asked for together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

_HOUR_MS, _MIB = 3_600_000, 1 << 20

#: By setting, what to settle for, the best first: times in whole hours up to ten years, sizes in bytes or MiB.
_ALTERNATIVES: Mapping[str, Sequence[int]] = {
    "max.message.bytes": range((1 << 31) - 1, 0, -1),
    "retention.ms": range(87_600 * _HOUR_MS, 0, -_HOUR_MS),
    "retention.bytes": range(1 << 50, 0, -_MIB),
}
#: By setting, limits that clusters usually have, the best first.
_USUAL: Mapping[str, Sequence[int]] = {
    "max.message.bytes": [
        *(number * _MIB for number in (100, 64, 50, 32, 30, 20, 16, 15, 12, 10)),
        *(10_000_000, 8 * _MIB, 8_000_000, 5 * _MIB, 4 * _MIB, 2_097_164, 2 * _MIB),
        *(1_048_588, _MIB, 1_000_012, 1_000_000),
    ],
    "retention.ms": [24 * _HOUR_MS * days for days in (3650, 730, 366, 365, 180, 90, 60, 31, 30, 28, 14, 7, 3, 2, 1)],
    "retention.bytes": [_MIB << power for power in range(24, 9, -1)],
}
#: Without these a topic is no copy: a cluster that refuses them is no destination.
NEEDED = frozenset({"cleanup.policy", "message.timestamp.type"})

#: Settings of which any value keeps the copy right, as long as its batches fit.
ADJUSTABLE = frozenset(_ALTERNATIVES)
#: Settings that a cluster takes instead of those asked for; None: left out, so that its default or present value holds.
Settled = Mapping[str, str | None]
#: Settings of a topic; None: removed, so that the brokers' default applies.
Settings = Mapping[str, str | None]


def settled_for(
    settings: Settings, accepts: Callable[[Settings], bool], kept: Collection[str] = NEEDED
) -> dict[str, str | None] | None:
    """Return what to set otherwise, or leave out, so that refused settings are accepted; None: it would not help.

    The settings `kept` stay as they are. Of a setting in bytes or time, a cluster may refuse values that are too large
    or too small: the next usual value above the wanted one is asked for first, then those below it, then those above.
    """
    changeable = [key for key in settings if key not in kept]
    # limits are the usual reason: with those left out, most often all else is accepted at once
    for keys in ([key for key in changeable if key in ADJUSTABLE], changeable):
        settled: dict[str, str | None] = dict.fromkeys(keys)
        if settled and accepts(with_settled(settings, settled)):
            break
    else:
        return None
    for key in list(settled):
        others = {other: value for other, value in settled.items() if other != key}
        if accepts(with_settled(settings, others)):
            settled = others
        elif key in ADJUSTABLE:
            asked = partial(_accepts_value, settings, accepts, others, key)
            settled[key] = _closest(key, settings[key], asked)
    return settled


def _accepts_value(
    settings: Settings, accepts: Callable[[Settings], bool], others: Settled, key: str, value: int
) -> bool:
    return accepts(with_settled(settings, {**others, key: str(value)}))


def _closest(key: str, wanted: str | None, accepts: Callable[[int], bool]) -> str | None:
    """Return the accepted value that is closest to the wanted one; None if none is."""
    values, usual = _ALTERNATIVES[key], _USUAL[key]
    number = int(wanted or -1)
    if number < 0 or number >= values[0]:
        return _largest(values, usual, accepts)
    above = [value for value in reversed(usual) if value > number]
    if above and accepts(above[0]):
        return str(above[0])
    below = values[_first(0, len(values), lambda at: values[at] < number) :]
    found = _largest(below, [value for value in usual if value in below], accepts)
    return found or next((str(value) for value in above[1:] if accepts(value)), None)


def _largest(values: Sequence[int], usual: Sequence[int], accepts: Callable[[int], bool]) -> str | None:
    """Return the first of the values, which fall, that is accepted; None if none is."""
    low, high = 0, len(values)
    place = _first(0, len(usual), lambda at: accepts(usual[at]))
    if place < len(usual):
        high = values.index(usual[place])
        if high == 0 or not accepts(values[high - 1]):
            return str(values[high])
        high -= 1
    if place > 0:
        low = values.index(usual[place - 1]) + 1
    found = _first(low, high, lambda at: accepts(values[at]))
    return str(values[found]) if found < len(values) else None


def _first(low: int, high: int, is_accepted: Callable[[int], bool]) -> int:
    """Return the first accepted place from `low` on, `high` if there is none below it."""
    while low < high:
        middle = (low + high) // 2
        if is_accepted(middle):
            high = middle
        else:
            low = middle + 1
    return low


def with_settled(settings: Settings, settled: Settled) -> dict[str, str | None]:
    """Return the settings with what was settled for instead."""
    kept = {key: settled.get(key, value) for key, value in settings.items()}
    return {key: value for key, value in kept.items() if key not in settled or value is not None}


def set_to(settings: Settings) -> dict[str, str]:
    """Return the settings that are not removed."""
    return {key: value for key, value in settings.items() if value is not None}
