"""Settings as they are given: in flags, files and stored records. They are checked, and looked up by their names. Pure.

A mirror's file also contains the source's client properties; `split` separates the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from kmirror.errors import RefusedError, UsageError
from kmirror.settings.client_keys import closest_client_key, is_client_key, refusal_of
from kmirror.settings.other_tools import nearest_other_tool_key, other_tool_key
from kmirror.settings.table import SETTINGS, Settings
from kmirror.settings.topic_filters import group_patterns
from kmirror.settings.value_types import Setting

_BY_KEY = {setting.key: setting for setting in SETTINGS}
_ALIASES = {alias.key: (setting, alias) for setting in SETTINGS for alias in setting.aliases}
#: Confluent's group filters, which are two settings here.
GROUP_FILTERS = "consumer.offset.group.filters"


def split(properties: Mapping[str, str], *, complete: bool = True) -> tuple[dict[str, str], dict[str, str]]:
    """Return the source's client properties and the mirror's settings, the latter under kmirror's own keys.

    `complete` is as for `parse_settings`.

    Raises:
        UsageError: a key is neither (names it and the closest known one), or a client property has no effect.
    """
    connection = {key: value for key, value in properties.items() if is_client_key(key)}
    for key, value in connection.items():
        if refused := refusal_of(key, value):
            raise UsageError(f"{key}={value} has no effect on a mirror: {refused[0]}", refused[1])
    rest = {key: value for key, value in properties.items() if key not in connection and not _is_met(key, value)}
    return connection, canonical(rest, complete=complete)


def _is_met(key: str, value: str) -> bool:
    """Return whether another tool's key asks for what a mirror does anyway."""
    foreign = other_tool_key(key)
    return foreign is not None and foreign.accepts(value)


def _expanded(raw: Mapping[str, str]) -> Mapping[str, str]:
    """Return settings with Confluent's group filters replaced by two settings."""
    if GROUP_FILTERS not in raw:
        return raw
    both = dict(
        zip(
            ("groups.include", "groups.exclude"), group_patterns(GROUP_FILTERS, raw[GROUP_FILTERS].strip()), strict=True
        )
    )
    for key in both:
        if key in raw:
            raise UsageError(f"{key} and {GROUP_FILTERS} contradict each other: both select groups", f"keep only {key}")
    return {key: text for key, text in (*raw.items(), *both.items()) if key != GROUP_FILTERS}


def canonical(raw: Mapping[str, str], *, complete: bool = True) -> dict[str, str]:
    """Return checked settings as they are stored: under kmirror's own keys, aliases translated, values normalised.

    `complete` is as for `parse_settings`.

    Raises:
        UsageError: as `parse_settings`.
    """
    settings = parse_settings(raw, complete=complete)
    given = {setting_of(key).key for key in _expanded(raw)}
    return {
        setting.key: setting.kind.write(getattr(settings, setting.attribute))
        for setting in SETTINGS
        if setting.key in given
    }


def parse_settings(raw: Mapping[str, str], *, complete: bool = True) -> Settings:
    """Parse the settings of a flag, a file or a stored record; those that are not given have their defaults.

    If they are not `complete`, others will be added, and contradictions are not checked.

    Raises:
        UsageError: an unknown key, a value that is invalid or out of range, or two that contradict each other; names
            the keys.
    """
    values: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for key, text in _expanded(raw).items():
        setting = setting_of(key)
        alias = _ALIASES[key][1] if key in _ALIASES else None
        value = setting.kind.read(key, (alias.translate(key, text.strip()) if alias else text).strip())
        if alias and alias.lowest and _is_lowest(written_as.get(setting.key)):
            value = min(value, values[setting.attribute])
        elif setting.attribute in values and values[setting.attribute] != value:
            raise UsageError(
                f"{written_as[setting.key]} and {key} contradict each other: they are the same setting",
                f"keep only {setting.key}",
            )
        values[setting.attribute] = value
        written_as[setting.key] = key
    settings = Settings(**values)
    if complete:
        _check_contradictions(settings)
        _check_emitted(settings, written_as)
    return settings


def _is_lowest(key: str | None) -> bool:
    return key in _ALIASES and _ALIASES[key][1].lowest


def stored_settings(raw: Mapping[str, str], *, complete: bool = True) -> Settings:
    """Parse the settings of a mirror's record; those that only a newer kmirror knows (`unknown_settings`) are ignored.

    Raises:
        UsageError: as `parse_settings`, for known keys.
    """
    unknown = unknown_settings(raw)
    return parse_settings({key: text for key, text in raw.items() if key not in unknown}, complete=complete)


def unknown_settings(raw: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys that this version does not know."""
    return tuple(sorted(key for key in raw if key not in _BY_KEY and key not in _ALIASES))


def is_setting(key: str) -> bool:
    """Return whether a key is a setting, under our name or another tool's."""
    return key in _BY_KEY or key in _ALIASES or key == GROUP_FILTERS


def setting_of(key: str) -> Setting:
    """Return the row of a key or alias.

    Raises:
        UsageError: there is none; names the closest known key.
    """
    if key in _BY_KEY:
        return _BY_KEY[key]
    if key in _ALIASES:
        return _ALIASES[key][0]
    if foreign := other_tool_key(key):
        raise UsageError(f"{key} is not a setting of a mirror: {foreign.why}", foreign.instead)
    meant = nearest_key(key)
    raise UsageError(
        f"unknown setting {key}",
        f"did you mean {meant}?" if meant else f"use one of: {', '.join(_BY_KEY)}; or a Kafka client property",
    )


def nearest_key(key: str) -> str | None:
    """Return the key of a setting, a Kafka client or another tool that was probably meant, None if none is close."""
    near = get_close_matches(key.lower().replace("_", "."), [*_BY_KEY, *_ALIASES], n=1, cutoff=0.75)
    return near[0] if near else closest_client_key(key) or nearest_other_tool_key(key)


def differing_keys(one: Settings, other: Settings) -> list[str]:
    """Return the keys whose values differ, in the table's order."""
    return [row.key for row in SETTINGS if getattr(one, row.attribute) != getattr(other, row.attribute)]


def check_change(before: Settings, after: Settings) -> None:
    """Refuse a change of settings that are fixed once the mirror exists.

    Raises:
        RefusedError: names them.
    """
    fixed = [key for key in differing_keys(before, after) if not _BY_KEY[key].changeable]
    if fixed:
        raise RefusedError(
            f"{', '.join(fixed)} cannot be changed once the mirror exists", "create a new mirror with that setting"
        )


def _check_emitted(settings: Settings, written_as: Mapping[str, str]) -> None:
    """Refuse what MirrorMaker 2 refuses too (KIP-1031), if offset syncs are disabled explicitly."""
    disabled = "emit.offset-syncs.enabled"
    if settings.emit_offset_syncs_enabled or disabled not in written_as:
        return
    for key, is_enabled in (
        ("emit.checkpoints.enabled", settings.emit_checkpoints_enabled),
        ("sync.group.offsets.enabled", settings.sync_group_offsets_enabled),
    ):
        if is_enabled and key in written_as:
            raise UsageError(
                f"{disabled}=false and {key}=true contradict each other: MirrorMaker 2 needs offset syncs for that",
                f"remove {disabled}: kmirror does not need offset syncs, and writes none unless it is true",
            )


def _check_contradictions(settings: Settings) -> None:
    if settings.sync_topic_acls_enabled and settings.topic_prefix:
        raise UsageError(
            "topic.prefix and sync.topic.acls.enabled exclude each other: ACLs name the source topics, but the mirror"
            " topics have other names",
            "remove one of them",
        )
    if settings.sync_cluster_acls_enabled and not settings.sync_topic_acls_enabled:
        raise UsageError(
            "sync.cluster.acls.enabled=true requires sync.topic.acls.enabled=true",
            "set sync.topic.acls.enabled=true, or remove sync.cluster.acls.enabled",
        )
    for what, include, exclude in (
        ("topics", settings.topics_include, settings.topics_exclude),
        ("groups", settings.groups_include, settings.groups_exclude),
    ):
        both = [pattern for pattern in include.patterns if pattern in exclude.patterns]
        if both:
            raise UsageError(
                f"{what}.include and {what}.exclude contradict each other: both contain {', '.join(both)}",
                "remove it from one of them",
            )
    if settings.group_prefix_enable and not settings.topic_prefix:
        raise UsageError(
            "group.prefix.enable=true requires topic.prefix",
            "set topic.prefix, or remove group.prefix.enable",
        )
    enable, filters = "auto.create.mirror.topics.enable", "auto.create.mirror.topics.filters"
    enabled, chosen = settings.auto_create_mirror_topics_enable, settings.auto_create_mirror_topics_filters
    if chosen.filters and not enabled:
        raise UsageError(f"{filters} is set, but {enable} is not true", f"set {enable}=true, or remove {filters}")
    if enabled and not chosen.includes_something:
        raise UsageError(
            f"{enable}=true requires {filters} with at least one INCLUDE",
            f'for every topic: {filters}={{"topicFilters":[{{"name":"*","patternType":"LITERAL",'
            '"filterType":"INCLUDE"}]}',
        )
    if enabled and settings.topics_include.patterns:
        raise UsageError(
            f"topics.include and {enable}=true exclude each other: both select topics",
            f"remove topics.include, or set {enable}=false, which clears {filters}",
        )
