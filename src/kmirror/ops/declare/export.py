"""`export`: write the stored mirrors as a file for `apply`, which then changes nothing. Pure, but for the reading.

The order is that of names, and of the table of settings, so that two exports differ where the mirrors do. Settings with
their default values are left out, and so is what `apply` would not restore: stopped topics, topics whose `add` was
interrupted, and the filters of a mirror that was failed over as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from kmirror.ops.add.add_plan import is_added
from kmirror.ops.base.context import Destination, require_mirror
from kmirror.ops.declare.declared import EXCLUDE, INCLUDE
from kmirror.settings.parsing import stored_settings, unknown_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import SETTINGS
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.words import visible

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")
#: Longer lists have a line for each entry.
_LONGEST_LINE = 100
#: How two braces are written that are no variable.
_BRACES, _BRACES_VARIABLE = "{{", "braces"


def export(destination: Destination, mirrors: Iterable[str] = ()) -> str:
    """Return the file of these mirrors, by default of all.

    Raises:
        RefusedError: there is no such mirror, or a newer kmirror wrote records that this version cannot read.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    names = list(dict.fromkeys(mirrors))
    for unreadable in state.unreadable() if not names else ():
        raise unreadable_error(unreadable)
    return file_of(state, names or [one.name for one in state.mirrors])


def file_of(state: State, names: Iterable[str]) -> str:
    """Return the text of the file of these mirrors. Raises RefusedError."""
    parts = ["\n".join(_mirror(require_mirror(state, name), state.topics(name))) for name in sorted(names)]
    text = "\n\n".join(parts)
    if f"{_BRACES}{_BRACES_VARIABLE}" in text:
        text = f'[variables]\n{_BRACES_VARIABLE} = "{_BRACES}"\n\n{text}'
    return f"# Written by `kmirror export`, for `kmirror apply`.\n\n{text}\n" if text else "# There is no mirror.\n"


def _mirror(record: MirrorRecord, topics: tuple[TopicRecord, ...]) -> Iterator[str]:
    settings = stored_settings(record.settings)
    name = f"mirrors.{_key(record.name)}"
    yield f"[{name}]"
    mirrored = [one for one in topics if is_added(one)]
    include = () if record.discovery_ended else settings.topics_include.patterns
    exclude = settings.topics_exclude.patterns
    sources = [one.source_topic for one in mirrored if one.source_topic not in exclude]
    others = sorted(one for one in sources if record.discovery_ended or not settings.selects(one))
    if record.discovery_ended:
        yield "# failed over as a whole: it discovers no topics"
    yield from _list("topics", [*others, *include])
    yield from _list("exclude", exclude)
    if record.paused:
        yield "paused = true"
    otherwise = DesiredState.ACTIVE if record.paused else DesiredState.PAUSED
    key = "copying-topics" if record.paused else "paused-topics"
    yield from _list(key, [one.topic for one in mirrored if one.desired is otherwise])
    yield f"\n[{name}.source]"
    yield from (f"{_quoted(key)} = {_string(value)}" for key, value in sorted(record.source.items()))
    if rows := list(_settings(record.settings)):
        yield f"\n[{name}.settings]"
        yield from rows


def _settings(stored: Mapping[str, str]) -> Iterator[str]:
    settings = stored_settings(stored)
    for row in SETTINGS:
        value = getattr(settings, row.attribute)
        if row.key in (INCLUDE, EXCLUDE) or value == row.default:
            continue
        if isinstance(value, TopicSelector):
            yield from _list(_quoted(row.key), value.patterns, keep=True)
        elif isinstance(value, bool | int):
            yield f"{_quoted(row.key)} = {str(value).lower()}"
        else:
            yield f"{_quoted(row.key)} = {_string(row.kind.write(value))}"
    for key in unknown_settings(stored):
        yield f"# {visible(key)}: set by a newer kmirror, unknown to this one"


def _list(key: str, entries: Iterable[str], *, keep: bool = False) -> Iterator[str]:
    """Yield a list, in lines of its own if it is long; nothing if it is empty, unless it is to be kept."""
    written = [_string(one) for one in entries]
    if not written and not keep:
        return
    line = f"{key} = [{', '.join(written)}]"
    if len(line) <= _LONGEST_LINE:
        yield line
        return
    yield f"{key} = ["
    yield from (f"  {one}," for one in written)
    yield "]"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def _string(text: str) -> str:
    """Return a TOML string: a literal one where that spares escapes. Variables are put in for what looks like one."""
    text = text.replace(_BRACES, f"{_BRACES}{_BRACES_VARIABLE}}}}}")
    if ("\\" in text or '"' in text) and "'" not in text and text.isprintable():
        return f"'{text}'"
    return _quoted(text)


def _quoted(text: str) -> str:
    """Return a basic TOML string, in which what a terminal would obey is an escape."""
    return "".join(one if one.isprintable() else _escaped(one) for one in json.dumps(text, ensure_ascii=False))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
