"""What a file of mirrors declares, and how the table of one mirror is read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmirror.errors import RefusedError, UsageError
from kmirror.ops.mirrors.create import check_name, checked_properties
from kmirror.settings.client_keys import is_client_key
from kmirror.settings.parsing import is_setting, nearest_key, setting_of
from kmirror.settings.patterns import TopicSelector, split_patterns
from kmirror.settings.value_types import StartFrom, parse_start_from
from kmirror.toml_tables import TomlTable

INCLUDE, EXCLUDE = "topics.include", "topics.exclude"
#: The keys of a mirror's table, and of each `[[mirrors.NAME.add]]`.
MIRROR_KEYS = ("topics", "exclude", "paused", "paused-topics", "copying-topics", "source", "settings", "add")
ADD_KEYS = ("topics", "adopt", "allow-missing", "start-from", "config")
_REST = {INCLUDE: "topics", EXCLUDE: "exclude"}


@dataclass(frozen=True, slots=True)
class DeclaredTopics:
    """Names and patterns of source topics, and how they are added if they are not mirrored yet."""

    patterns: tuple[str, ...]
    adopt: bool = False
    allow_missing: bool = False
    start_from: StartFrom | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredMirror:
    """What a file says of one mirror; `source` and `settings` are as they are stored, without both filters.

    `paused` is None if the file does not say it; otherwise the mirror topics in `otherwise` are the exceptions.
    """

    name: str
    source: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[DeclaredTopics, ...] = ()
    exclude: tuple[str, ...] = ()
    paused: bool | None = None
    otherwise: frozenset[str] = frozenset()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return all names and patterns of source topics."""
        return tuple(pattern for group in self.topics for pattern in group.patterns)

    @property
    def filters(self) -> dict[str, str]:
        """Return the names and patterns, and the exclusions, as settings."""
        both = {INCLUDE: ",".join(self.patterns), EXCLUDE: ",".join(self.exclude)}
        return {key: text for key, text in both.items() if text}


@dataclass(frozen=True, slots=True)
class Declared:
    """A file of mirrors, in its order."""

    path: Path
    mirrors: tuple[DeclaredMirror, ...]

    def mirror(self, name: str) -> DeclaredMirror | None:
        """Return a mirror of the file, None if it has none of this name."""
        return next((one for one in self.mirrors if one.name == name), None)


def declared_mirror(name: str, table: TomlTable) -> DeclaredMirror:
    """Return what the table of a mirror says.

    Raises:
        UsageError: a key or value is invalid, or two contradict each other; names the file, the table and the key.
        RefusedError: a plaintext secret, or a reference where none counts.
    """
    table.check_keys(MIRROR_KEYS)
    with _naming(table):
        check_name(name)
    source, settings = table.table("source"), table.table("settings")
    given = dict(_properties(source, is_source=True))
    if not given.get("bootstrap.servers", "").strip():
        raise UsageError(
            f"{table.path}: {source.name} has no bootstrap.servers", 'write "bootstrap.servers" = "…:9092"'
        )
    wanted = dict(_properties(settings, is_source=False))
    groups = tuple(_groups(table))
    exclude = _patterns(table, "exclude")
    found = [pattern for group in groups for pattern in group.patterns]
    if twice := next((one for one in found if found.count(one) > 1), None):
        raise UsageError(f"{table.path}: {table.name} has {twice} twice among its topics", "keep one")
    expressions = TopicSelector(tuple(found)).expressions
    with _naming(table):
        if both := [one for one in found if one in exclude]:
            raise UsageError(f"topics and exclude both contain {', '.join(both)}", "remove it from one of them")
        # together, so that contradictions are found
        filters = {INCLUDE: ",".join(expressions), EXCLUDE: ",".join(exclude)}
        connection, stored = checked_properties(
            {**given, **wanted, **{key: one for key, one in filters.items() if one}}
        )
    stored = {key: text for key, text in stored.items() if key not in filters}
    return DeclaredMirror(name, connection, stored, groups, exclude, *_paused(table))


@contextmanager
def _naming(table: TomlTable) -> Iterator[None]:
    """Name the file and the table in errors."""
    try:
        yield
    except (UsageError, RefusedError) as error:
        raise type(error)(f"{table.path}: {table.name}: {error.message}", error.hint, error.reason) from None


def _properties(table: TomlTable, *, is_source: bool) -> Iterator[tuple[str, str]]:
    """Yield the keys and texts of a table of settings, or of the source's client properties."""
    for key, value in table.content.items():
        if isinstance(value, dict):
            raise UsageError(
                f"{table.path}: {table.dotted(key)} is a table",
                f'write the key in quotes: "{_first_key(key, value)}" = …',
            )
        with _naming(table):
            if is_source and not is_client_key(key):
                meant = nearest_key(key)
                raise UsageError(
                    f"{key} is not a Kafka client property",
                    f"it is a setting: write it in [{table.name.removesuffix('source')}settings]"
                    if is_setting(key)
                    else f"did you mean {meant}?"
                    if meant
                    else "see Kafka's documentation of consumers",
                )
            if not is_source and is_client_key(key):
                place = table.name.removesuffix("settings")
                raise UsageError(f"{key} is a client property", f"write it in [{place}source]")
            if not is_source and (instead := _REST.get(setting_of(key).key)):
                raise UsageError(
                    f"{key} is not written as a setting here", f"write {instead} = […] in the mirror's table"
                )
        yield key, _text(table, key, value)


def _first_key(key: str, value: Mapping[str, Any]) -> str:
    inner, below = next(iter(value.items()), ("…", None))
    return f"{key}.{_first_key(inner, below)}" if isinstance(below, dict) else f"{key}.{inner}"


def _text(table: TomlTable, key: str, value: Any) -> str:
    """Return a value as it would be written in a properties file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise UsageError(
        f"{table.path}: {table.dotted(key)} is not a string, a whole number, true, false or a list of strings",
        "write it as one of these",
    )


def _patterns(table: TomlTable, key: str) -> tuple[str, ...]:
    listed = table.strings(key) if key in table.content else []
    where = f"{table.path}: {table.dotted(key)}"
    return tuple(dict.fromkeys(pattern for text in listed for pattern in split_patterns(text, where)))


def _groups(table: TomlTable) -> Iterator[DeclaredTopics]:
    """Yield the topics of a mirror: those that are added as usual, then those with options."""
    if usual := _patterns(table, "topics"):
        yield DeclaredTopics(usual)
    content = table.content.get("add", [])
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise UsageError(f"{table.path}: {table.dotted('add')} is not a list of tables", f"write [[{table.name}.add]]")
    for number, one in enumerate(content, 1):
        group = TomlTable(table.path, f"{table.dotted('add')}[{number}]", one)
        group.check_keys(ADD_KEYS)
        if not (patterns := _patterns(group, "topics")):
            raise UsageError(f"{table.path}: {group.name} has no topics", 'write topics = ["…"]')
        start, config = group.string("start-from"), group.table("config")
        with _naming(group):
            start_from = None if start is None else parse_start_from("start-from", start)
        overrides = {key: _text(config, key, value) for key, value in config.content.items()}
        yield DeclaredTopics(patterns, _flag(group, "adopt"), _flag(group, "allow-missing"), start_from, overrides)


def _flag(table: TomlTable, key: str) -> bool:
    value = table.content.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"{table.path}: {table.dotted(key)} is not true or false", f"write {key} = true")
    return value


def _paused(table: TomlTable) -> tuple[bool | None, frozenset[str]]:
    """Return whether the mirror is paused, None if the file does not say it, and the exceptions."""
    paused = _flag(table, "paused")
    key, other = ("copying-topics", "paused-topics") if paused else ("paused-topics", "copying-topics")
    if other in table.content:
        raise UsageError(
            f"{table.path}: {table.dotted(other)} has no meaning while paused is {str(paused).lower()}",
            f"remove it, or write paused = {str(not paused).lower()}",
        )
    names = _patterns(table, key)
    if expressions := TopicSelector(names).expressions:
        raise UsageError(
            f"{table.path}: {table.dotted(key)}: {expressions[0]} is not the name of a topic",
            "list mirror topics by name",
        )
    return (paused if {"paused", key} & table.content.keys() else None), frozenset(names)
