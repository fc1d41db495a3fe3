"""A topic's settings as its cluster reports them, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One setting of a topic as its cluster reports it; `value` is None where the broker does not return it."""

    value: str | None
    #: True when it is set on the topic itself, not taken from the brokers.
    is_override: bool


TopicSettings = Mapping[str, TopicSetting]
