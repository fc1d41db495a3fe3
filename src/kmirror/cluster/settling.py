"""Which settings of a topic to settle for where a cluster refuses those asked for. Pure.

Which setting was refused, and what would be accepted, is told in words only, if at all. So it is found out by asking:
first with the weakest values, then with each setting as close to the wanted one as it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

_HOUR_MS, _MIB = 3_600_000, 1 << 20

#: By setting, what to settle for, the best first: times in whole hours up to ten years, sizes in bytes or MiB.
_ALTERNATIVES: Mapping[str, Sequence[int]] = {
    "max.message.bytes": range((1 << 31) - 1, 0, -1),
    "retention.ms": range(87_600 * _HOUR_MS, 0, -_HOUR_MS),
    "retention.bytes": range(1 << 50, 0, -_MIB),
}
#: Without these a topic is no copy: a cluster that refuses them is no destination.
_NEEDED = frozenset({"cleanup.policy", "message.timestamp.type"})

#: Settings of which any value keeps the copy right, as long as its batches fit.
ADJUSTABLE = frozenset(_ALTERNATIVES)
#: Settings that a cluster takes instead of those asked for; None: left out, so that its default or present value holds.
Settled = Mapping[str, str | None]
#: Settings of a topic; None: removed, so that the brokers' default applies.
Settings = Mapping[str, str | None]


def settled_for(
    settings: Settings, accepts: Callable[[Settings], bool], kept: Collection[str] = ()
) -> dict[str, str | None] | None:
    """Return what to set otherwise, or leave out, so that refused settings are accepted; None: it would not help.

    The settings `kept` stay as they are. A larger value of a setting in bytes or time must not be accepted where a
    smaller one is refused.
    """
    settled: dict[str, str | None] = {key: None for key in settings if key not in {*_NEEDED, *kept}}
    if not settled or not accepts(with_settled(settings, settled)):
        return None
    for key in list(settled):
        others = {other: value for other, value in settled.items() if other != key}
        if accepts(with_settled(settings, others)):
            settled = others
            continue
        alternatives = _ALTERNATIVES.get(key, ())
        low, high = 0, len(alternatives)
        while low < high:
            middle = (low + high) // 2
            if accepts(with_settled(settings, {**others, key: str(alternatives[middle])})):
                high = middle
            else:
                low = middle + 1
        if low < len(alternatives):
            settled[key] = str(alternatives[low])
    return settled


def with_settled(settings: Settings, settled: Settled) -> dict[str, str | None]:
    """Return the settings with what was settled for instead."""
    kept = {key: settled.get(key, value) for key, value in settings.items()}
    return {key: value for key, value in kept.items() if key not in settled or value is not None}


def set_to(settings: Settings) -> dict[str, str]:
    """Return the settings that are not removed."""
    return {key: value for key, value in settings.items() if value is not None}
