"""How the values of settings are read and written, and what a row of the table is made of. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kmirror.errors import UsageError
from kmirror.settings.durations import parse_timestamp
from kmirror.settings.patterns import TopicSelector, split_patterns

_LONGEST_PREFIX = 100
_EPOCH = datetime(1970, 1, 1)
_LATEST_TIMESTAMP_MS = (datetime.max - _EPOCH) // timedelta(milliseconds=1)
_START_HINT = "use one of: earliest, latest, timestamp:T, with T as 2026-03-01T12:00:00Z or epoch milliseconds"


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Where the copy of a topic begins: `earliest`, `latest`, or the first record with `timestamp_ms` or later."""

    word: str = "earliest"
    #: Epoch milliseconds; None unless the word is `timestamp`.
    timestamp_ms: int | None = None

    @property
    def is_earliest(self) -> bool:
        """Return whether the copy begins where the source's log does."""
        return self.word == "earliest"

    def __str__(self) -> str:
        if self.timestamp_ms is None:
            return self.word
        moment = _EPOCH + timedelta(milliseconds=self.timestamp_ms)
        precision = "milliseconds" if self.timestamp_ms % 1000 else "seconds"
        return f"{self.word}:{moment.isoformat(timespec=precision)}Z"


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value: `read(key, text)` parses it or raises UsageError; `write` is the opposite."""

    name: str
    #: The allowed values, for the docs: `1 – 86400`, `earliest`.
    allowed: str
    read: Callable[[str, str], Any]
    write: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Alias:
    """Another tool's name for a setting; `translate(key, text)` converts its value to ours."""

    key: str
    translate: Callable[[str, str], str] = lambda _, text: text
    #: If several such names are given, the lowest value counts: other tools have two intervals where we have one.
    lowest: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    key: str
    attribute: str
    kind: ValueType
    default: Any
    help: str
    changeable: bool
    aliases: tuple[Alias, ...]

    def lowest_of(self, key: str, one: str, other: str) -> str | None:
        """Return which of two given values counts; None if they contradict each other."""
        counts = any(alias.lowest for alias in self.aliases if alias.key == key)
        return min((one, other), key=int) if counts else None


def integer(lowest: int, highest: int, unit: str = "") -> ValueType:
    """Return the type of whole numbers in a range; `unit` is named in messages."""

    def read(key: str, text: str) -> int:
        if not re.fullmatch("-?[0-9]{1,18}", text) or not lowest <= int(text) <= highest:
            raise UsageError(
                f"{key}={text} is not a whole number from {lowest} to {highest}{unit and f' ({unit})'}",
                "give a number in that range" + (", without a unit" if unit else ""),
            )
        return int(text)

    return ValueType("int", f"{lowest} – {highest}", read)


def auto_or(kind: ValueType) -> ValueType:
    """Return the type that also takes `auto`, which is read as None."""

    def read(key: str, text: str) -> Any:
        if text.lower() == "auto":
            return None
        try:
            return kind.read(key, text)
        except UsageError as error:
            raise UsageError(error.message, f"{error.hint}, or auto") from None

    def write(value: Any) -> str:
        return "auto" if value is None else kind.write(value)

    return ValueType(kind.name, f"auto, {kind.allowed}", read, write)


def byte_rate(lowest: int, highest: int) -> ValueType:
    """Return the type of rates in bytes a second: 0, or a number in a range."""

    def read(key: str, text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or (int(text) and not lowest <= int(text) <= highest):
            raise UsageError(
                f"{key}={text} is neither 0 nor a whole number of bytes a second from {lowest} to {highest}",
                "give a number in that range, without a unit; 0 takes the limit away",
            )
        return int(text)

    return ValueType("int", f"0, {lowest} – {highest}", read)


def parse_start_from(key: str, text: str) -> StartFrom:
    """Parse where a copy begins: `earliest`, `latest` or `timestamp:T`; `key` is the flag or setting.

    Raises:
        UsageError: it is none of these.
    """
    word, colon, moment = text.strip().partition(":")
    word = word.lower()
    if word in ("earliest", "latest") and not colon:
        return StartFrom(word)
    timestamp_ms = _timestamp_ms(moment) if word == "timestamp" else None
    if timestamp_ms is None:
        raise UsageError(f"invalid value {key}={text}", _START_HINT)
    return StartFrom(word, timestamp_ms)


def _timestamp_ms(text: str) -> int | None:
    """Parse an absolute point in time; None if it is not one, or not in 1970 – 9999."""
    if not re.fullmatch("[0-9]{12,15}", text) and not re.search("[-T]", text):
        return None
    try:
        timestamp_ms = parse_timestamp(text, 0)
    except UsageError:
        return None
    return timestamp_ms if 0 <= timestamp_ms <= _LATEST_TIMESTAMP_MS else None


def start_offset_spec(key: str, text: str) -> str:
    """Translate Confluent's value, which is a bare time where ours is `timestamp:T`."""
    known = text if text.lower() in ("earliest", "latest") else f"timestamp:{text}"
    try:
        return str(parse_start_from(key, known))
    except UsageError:
        hint = "use one of: earliest, latest, a time such as 2026-03-01T12:00:00Z, epoch milliseconds"
        raise UsageError(f"invalid value {key}={text}", hint) from None


def boolean() -> ValueType:
    """Return the type of true and false."""

    def read(key: str, text: str) -> bool:
        if text.lower() not in {"true", "false"}:
            raise UsageError(f"invalid value {key}={text}", "use true or false")
        return text.lower() == "true"

    return ValueType("boolean", "true | false", read, lambda value: str(value).lower())


def choice(*words: str) -> ValueType:
    """Return the type of a few words."""

    def read(key: str, text: str) -> str:
        if text.lower() not in words:
            raise UsageError(f"invalid value {key}={text}", f"use one of: {', '.join(words)}")
        return text.lower()

    return ValueType("word", " | ".join(words), read)


def patterns() -> ValueType:
    """Return the type of lists of names and regular expressions."""

    def read(key: str, text: str) -> TopicSelector:
        return TopicSelector(tuple(dict.fromkeys(split_patterns(text, key))) if text else ())

    return ValueType("list", "comma-separated names and regular expressions", read)


def topic_characters(lowest: int, what: str) -> ValueType:
    """Return the type of texts that may be part of a topic's name; `what` it is, for messages."""
    count = f"{lowest} to {_LONGEST_PREFIX}" if lowest else f"at most {_LONGEST_PREFIX}"

    def read(key: str, text: str) -> str:
        if not re.fullmatch(f"[A-Za-z0-9._-]{{{lowest},{_LONGEST_PREFIX}}}", text):
            raise UsageError(
                f"{key}={text} is not a valid {what}", f"use {count} letters, digits, dots, underscores and hyphens"
            )
        return text

    return ValueType("string", f"{count.replace('to', '–')} topic name characters", read)


def read_replication_factor(key: str, text: str) -> int:
    """Read a replication factor; -1 is the broker's default."""
    return -1 if text == "-1" else int(integer(1, 32_767).read(key, text))


def start_of_consumers(key: str, text: str) -> str:
    """Translate `auto.offset.reset` of MirrorMaker 2's consumers, which says where the copy of a new topic begins."""
    if text.lower() in ("earliest", "latest"):
        return text
    raise UsageError(f"invalid value {key}={text}", "use earliest or latest; start.from says where a topic begins")


def divergence_policy(key: str, text: str) -> str:
    """Translate Confluent's boolean to the policy that it means."""
    return "auto" if boolean().read(key, text) else "fail"


def seconds_of_milliseconds(key: str, text: str) -> str:
    """Round up to whole seconds."""
    return str(-(-int(integer(0, 86_400_000, "milliseconds").read(key, text)) // 1000))
