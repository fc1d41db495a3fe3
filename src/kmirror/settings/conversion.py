"""What becomes of each key of another tool's file when a mirror is made from it. Pure.

A key is TAKEN as a property of the mirror, asks for what is the DEFAULT anyway, has NO_MEANING here and is left out, or
is REFUSED because the mirror would be another one without it. None is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kmirror.errors import UsageError
from kmirror.settings.client_keys import is_client_key, refusal_of
from kmirror.settings.other_tools import AT_CREATION, other_tool_key
from kmirror.settings.table import SETTINGS, canonical, is_setting, setting_of

_DEFAULTS = {setting.key: setting.kind.write(setting.default) for setting in SETTINGS}
#: What a connection is made of; other keys of Kafka's clients are about consuming and producing.
_CONNECTION = (
    *("bootstrap.servers", "client.", "security.", "sasl.", "ssl.", "request.timeout.ms", "socket.connection."),
    *("send.buffer.bytes", "receive.buffer.bytes"),
)
_PROVIDERS = frozenset({"env", "file", "dir", ""})


class KeyOutcome(StrEnum):
    """Name what became of a key."""

    TAKEN = "TAKEN"
    DEFAULT = "DEFAULT"
    NO_MEANING = "NO_MEANING"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class KeyResult:
    """Say what became of one key as the file has it: as what it is taken, or why it is not, and what to do."""

    key: str
    became: KeyOutcome
    said: str
    hint: str | None = None
    #: The properties of the mirror that it is taken as.
    properties: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """One key of a file: as it is written there, what it means for one mirror, and its value."""

    written: str
    key: str
    value: str
    #: What is said after it is taken: that it was not written at all, for one.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The mirror that a file describes: its properties, what is to be done once, and what became of each key."""

    properties: Mapping[str, str] = field(default_factory=dict)
    at_creation: Mapping[str, str] = field(default_factory=dict)
    fates: tuple[KeyResult, ...] = ()

    @property
    def refused(self) -> tuple[KeyResult, ...]:
        """The keys that stand in the way."""
        return tuple(fate for fate in self.fates if fate.became is KeyOutcome.REFUSED)

    def without(self, keys: Collection[str], why: str) -> Conversion:
        """Return the same without some properties of the mirror, because of something else that counts."""
        fates = tuple(
            replace(fate, became=KeyOutcome.NO_MEANING, said=why) if set(fate.properties) & set(keys) else fate
            for fate in self.fates
        )
        kept = {key: value for key, value in self.properties.items() if key not in keys}
        return replace(self, properties=kept, fates=fates)

    def refusing(self, keys: Collection[str], why: str, hint: str) -> Conversion:
        """Return the same with some properties of the mirror refused."""
        fates = tuple(
            KeyResult(fate.key, KeyOutcome.REFUSED, why, hint) if set(fate.properties) & set(keys) else fate
            for fate in self.fates
        )
        return replace(self, fates=fates)


def convert(given: Iterable[Given]) -> Conversion:
    """Return the mirror that these keys describe; of names for one interval the shortest counts."""
    properties: dict[str, str] = {}
    at_creation: dict[str, str] = {}
    fates = []
    for one in given:
        fate, taken = _fate(one)
        if one.key in AT_CREATION:
            at_creation[one.key] = one.value.strip()
        for key, value in taken.items():
            before = properties.setdefault(key, value)
            if before == value:
                continue
            lowest = setting_of(one.key).lowest_of(one.key, before, value) if is_setting(one.key) else None
            if lowest is None:
                fate = KeyResult(
                    one.written, KeyOutcome.REFUSED, f"{key}={before} is given already", "keep one of them"
                )
            else:
                fate = replace(fate, said=f"{key}={lowest}: the shortest of these intervals counts")
                properties[key] = lowest
        fates.append(fate)
    return Conversion(properties, at_creation, tuple(fates))


def _fate(given: Given) -> tuple[KeyResult, dict[str, str]]:
    """Return what becomes of a key by itself, and the properties that it gives the mirror."""
    key, value = given.key, given.value.strip()
    if key in AT_CREATION:
        return KeyResult(given.written, KeyOutcome.TAKEN, f"{key}={value}, when the mirror is created"), {}
    if is_client_key(key):
        return _client_fate(given)
    if is_setting(key):
        return _setting_fate(given)
    foreign = other_tool_key(key)
    if foreign is None:
        near = _nearest(key)
        hint = f"did you mean {near}?" if near else "remove it, if the mirror can do without"
        return KeyResult(given.written, KeyOutcome.REFUSED, "not a key that is known", hint), {}
    if foreign.accepts(value):
        return KeyResult(given.written, KeyOutcome.DEFAULT, f"{value or 'empty'}: {foreign.why}"), {}
    if foreign.harmless:
        return KeyResult(given.written, KeyOutcome.NO_MEANING, foreign.why), {}
    return KeyResult(given.written, KeyOutcome.REFUSED, foreign.why, foreign.instead), {}


def _client_fate(given: Given) -> tuple[KeyResult, dict[str, str]]:
    key, value = given.key, given.value
    if key.startswith("config.providers"):
        names = {name.strip() for name in value.split(",")} if key == "config.providers" else set()
        if names <= _PROVIDERS:
            return KeyResult(
                given.written, KeyOutcome.DEFAULT, "references to env, file and dir are resolved anyway"
            ), {}
        why = f"{', '.join(sorted(names - _PROVIDERS))} is not env, file or dir"
        return KeyResult(
            given.written, KeyOutcome.REFUSED, why, "write secrets as ${env:…}, ${file:…:…} or ${dir:…:…}"
        ), {}
    if key == "isolation.level" and (refused := refusal_of(key, value)):
        return KeyResult(given.written, KeyOutcome.REFUSED, *refused), {}
    if refused := refusal_of(key, value):
        return KeyResult(given.written, KeyOutcome.NO_MEANING, refused[0]), {}
    if not key.startswith(_CONNECTION):
        why = "only how the source is reached is the client's; the copy itself is kmirror's"
        return KeyResult(given.written, KeyOutcome.NO_MEANING, why), {}
    said = f"the source's {key}{given.note}"
    return KeyResult(given.written, KeyOutcome.TAKEN, said, properties=(key,)), {key: value}


def _setting_fate(given: Given) -> tuple[KeyResult, dict[str, str]]:
    try:
        stored = canonical({given.key: given.value}, complete=False)
    except UsageError as error:
        return KeyResult(given.written, KeyOutcome.REFUSED, error.message, error.hint), {}
    said = ", ".join(f"{key}={value}" for key, value in stored.items())
    is_default = all(_DEFAULTS[key] == value for key, value in stored.items())
    became = KeyOutcome.DEFAULT if is_default else KeyOutcome.TAKEN
    return KeyResult(given.written, became, f"{said}{given.note}", properties=tuple(stored)), stored


def _nearest(key: str) -> str | None:
    try:
        setting_of(key)
    except UsageError as error:
        found = (error.hint or "").partition("did you mean ")[2].removesuffix("?")
        return found or None
    return None
