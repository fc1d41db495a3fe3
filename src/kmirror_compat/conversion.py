"""Convert the keys of another tool's file to the properties of a mirror. Pure.

Each key has an outcome: it is TAKEN as a property of the mirror, asks for the DEFAULT, has NO_MEANING here and is left
out, or is REFUSED because the mirror would behave differently without it. No key is ignored silently.

A file of a Confluent cluster link (`kafka-cluster-links --config-file`) is converted here, one of MirrorMaker 2 in
`mirrormaker`. For keys that are not in the file the tool's defaults apply; each that differs from kmirror's has a row:
it is taken over if it decides what is mirrored, otherwise the row says what kmirror does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kmirror.errors import UsageError
from kmirror.ops.base.converted_keys import KeyOutcome, KeyResult
from kmirror.settings.client_keys import is_client_key, refusal_of
from kmirror.settings.other_tools import AT_CREATION, other_tool_key
from kmirror.settings.parsing import GROUP_FILTERS, canonical, is_setting, nearest_key, setting_of
from kmirror.settings.table import SETTINGS

_DEFAULTS = {setting.key: setting.kind.write(setting.default) for setting in SETTINGS}
#: Keys of the connection; other keys of Kafka's clients are about consuming and producing.
_CONNECTION = (
    *("bootstrap.servers", "client.", "security.", "sasl.", "ssl.", "request.timeout.ms", "socket.connection."),
    *("send.buffer.bytes", "receive.buffer.bytes"),
)
_PROVIDERS = frozenset({"env", "file", "dir", ""})
_LINK_NOTE = ": a link's default, not set in the file"
_LINK_SYNC, _LINK_FILTERS = "consumer.offset.sync.enable", "consumer.offset.group.filters"
_LINK_GROUPS = ("groups.include", "groups", "mirror.groups.include")
_ACL_SYNC, _ACL_FILTERS = "sync.topic.acls.enabled", "acls.include"
_NO_ACL_FILTERS = "acl.filters is missing: a link syncs the ACLs that it selects, a mirror without it would sync all"
_ADD_ACL_FILTERS = "add acl.filters={…} with the content of the link's --acl-filters-json-file"
#: A link's defaults that are not taken over, with what kmirror does.
_LINK_DIFFERENCES = {
    "topic.config.sync.ms": "every 10 s here, every 5 s in a link",
    "consumer.offset.sync.ms": "every 10 s here, every 30 s in a link",
    "topic.config.sync.include": "all settings of source topics are copied here, some in a link",
    "num.cluster.link.fetchers": "as many lanes as suit the machine here, one fetcher in a link",
}


@dataclass(frozen=True, slots=True)
class Given:
    """One key of a file: as it is written there, what it means for one mirror, and its value."""

    written: str
    key: str
    value: str
    #: Added to the message, for instance that the key is not in the file.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The mirror that a file describes: its properties, keys for `create` only, and what became of each key."""

    properties: Mapping[str, str] = field(default_factory=dict)
    at_creation: Mapping[str, str] = field(default_factory=dict)
    key_results: tuple[KeyResult, ...] = ()

    @property
    def refused(self) -> tuple[KeyResult, ...]:
        """The keys that prevent the conversion."""
        return tuple(key_result for key_result in self.key_results if key_result.became is KeyOutcome.REFUSED)

    def without(self, keys: Collection[str], why: str) -> Conversion:
        """Return the same without some properties of the mirror, which something else overrides."""
        key_results = tuple(self._without(key_result, keys, why) for key_result in self.key_results)
        kept = {key: value for key, value in self.properties.items() if key not in keys}
        return replace(self, properties=kept, key_results=key_results)

    def _without(self, key_result: KeyResult, keys: Collection[str], why: str) -> KeyResult:
        left = tuple(key for key in key_result.properties if key not in keys)
        if left == key_result.properties or (left and key_result.became is KeyOutcome.REFUSED):
            return key_result
        if not left:
            return replace(key_result, became=KeyOutcome.NO_MEANING, message=why, hint=None)
        stays = ", ".join(f"{key}={self.properties[key]}" for key in left)
        return replace(key_result, message=f"{stays}; {why}", properties=left)

    def refusing(self, keys: Collection[str], why: str, hint: str) -> Conversion:
        """Return the same with some properties of the mirror refused."""
        key_results = tuple(
            replace(key_result, became=KeyOutcome.REFUSED, message=why, hint=hint)
            if set(key_result.properties) & set(keys)
            else key_result
            for key_result in self.key_results
        )
        return replace(self, key_results=key_results)


def convert(given: Iterable[Given]) -> Conversion:
    """Return the mirror that these keys describe; of several names for one interval the shortest counts."""
    properties: dict[str, str] = {}
    at_creation: dict[str, str] = {}
    key_results = []
    for one in given:
        key_result, taken = _key_result(one)
        if one.key in AT_CREATION:
            at_creation[one.key] = one.value.strip()
        for key, value in taken.items():
            before = properties.setdefault(key, value)
            if before == value:
                continue
            is_one = is_setting(one.key) and one.key != GROUP_FILTERS
            lowest = setting_of(one.key).lowest_of(one.key, before, value) if is_one else None
            if lowest is None:
                key_result = KeyResult(
                    one.written, KeyOutcome.REFUSED, f"{key}={before} is already set", "keep one of them"
                )
            else:
                key_result = replace(key_result, message=f"{key}={lowest}: the shortest of these intervals counts")
                properties[key] = lowest
        key_results.append(key_result)
    return Conversion(properties, at_creation, tuple(key_results))


def own_keys(key: str) -> tuple[str, ...]:
    """Return kmirror's names of what a key sets; a key that is no setting unchanged."""
    if key == GROUP_FILTERS:
        return "groups.include", "groups.exclude"
    return (setting_of(key).key if is_setting(key) else key,)


def not_taken_over(written: Iterable[str], differences: Mapping[str, str]) -> Iterator[KeyResult]:
    """Yield a row for each default of the other tool that is not taken over, unless its key is in the file."""
    known = {own for key in written for own in own_keys(key)}
    for key, what in differences.items():
        if not known & set(own := own_keys(key)):
            yield KeyResult(key, KeyOutcome.NO_MEANING, f"not set in the file: {what}", properties=own)


def _key_result(given: Given) -> tuple[KeyResult, dict[str, str]]:
    """Return the outcome of a key by itself, and the properties that it sets."""
    key, value = given.key, given.value.strip()
    if key in AT_CREATION:
        return KeyResult(given.written, KeyOutcome.TAKEN, f"{key}={value}, when the mirror is created"), {}
    if is_client_key(key):
        return _client_key_result(given)
    if is_setting(key):
        return _setting_key_result(given)
    foreign = other_tool_key(key)
    if foreign is None:
        near = nearest_key(key)
        hint = f"did you mean {near}?" if near else "remove it, if the mirror can do without"
        return KeyResult(given.written, KeyOutcome.REFUSED, "unknown key", hint), {}
    if foreign.accepts(value):
        return KeyResult(given.written, KeyOutcome.DEFAULT, f"{value or 'empty'}: {foreign.why}"), {}
    if foreign.harmless:
        return KeyResult(given.written, KeyOutcome.NO_MEANING, foreign.why), {}
    return KeyResult(given.written, KeyOutcome.REFUSED, foreign.why, foreign.instead), {}


def _client_key_result(given: Given) -> tuple[KeyResult, dict[str, str]]:
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
        why = "client properties only say how to reach the source; kmirror controls the copy"
        return KeyResult(given.written, KeyOutcome.NO_MEANING, why), {}
    message = f"the source's {key}{given.note}"
    return KeyResult(given.written, KeyOutcome.TAKEN, message, properties=(key,)), {key: value}


def _setting_key_result(given: Given) -> tuple[KeyResult, dict[str, str]]:
    try:
        stored = canonical({given.key: given.value}, complete=False)
    except UsageError as error:
        own = own_keys(given.key)
        return KeyResult(given.written, KeyOutcome.REFUSED, error.message, error.hint, properties=own), {}
    message = ", ".join(f"{key}={value}" for key, value in stored.items())
    is_default = all(_DEFAULTS[key] == value for key, value in stored.items())
    became = KeyOutcome.DEFAULT if is_default else KeyOutcome.TAKEN
    return KeyResult(given.written, became, f"{message}{given.note}", properties=tuple(stored)), stored


def link_conversion(properties: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Conversion:
    """Return the mirror that the file of a cluster link describes, and what became of each key.

    `overrides` are settings that are given beside it: they select ACLs, too.
    """
    given = [Given(key, key, value) for key, value in properties.items()]
    if _LINK_SYNC not in properties:
        given.append(Given(_LINK_SYNC, _LINK_SYNC, "false", _LINK_NOTE))
    elif properties[_LINK_SYNC].strip().lower() == "true" and not {_LINK_FILTERS, *_LINK_GROUPS} & properties.keys():
        given.append(Given(_LINK_FILTERS, _LINK_FILTERS, "", f"{_LINK_NOTE}, and no group is synced"))
    found = convert(given)
    filters = _acl_filters(overrides or {}) or _acl_filters(properties)
    if found.properties.get(_ACL_SYNC) == "true" and not any(filters):
        found = found.refusing([_ACL_SYNC], _NO_ACL_FILTERS, _ADD_ACL_FILTERS)
    differing = not_taken_over(properties, _LINK_DIFFERENCES)
    return replace(found, key_results=(*found.key_results, *differing))


def _acl_filters(properties: Mapping[str, str]) -> list[str]:
    return [value.strip() for key, value in properties.items() if _ACL_FILTERS in own_keys(key)]
