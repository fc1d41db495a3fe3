"""Lists of topics in flags and settings: names and regular expressions, separated by commas (`--topics LIST`).

A pattern made only of the characters of topic names (letters, digits, `.`, `_`, `-`) is a **plain name**: it matches
that topic only, and its dots are dots. Anything else is a **regular expression**, which has to match the whole name.
Expressions are RE2's: they take linear time for any input, and so have neither look-around nor back references
(https://github.com/google/re2/wiki/Syntax).

Commas separate patterns, except within `[]`, `()` or `{}` or after a backslash: `a{1,3},b` is `a{1,3}` and `b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kmirror.bounded_files import read_file
from kmirror.errors import UsageError

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_LOOK_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
_BACK_REFERENCE = re.compile(r"\\(?:[1-9]|k[<{']|g)|\(\?P=")
_UNCLOSED = "a bracket is not closed"
_SYNTAX_HINT = "see https://github.com/google/re2/wiki/Syntax for the syntax of patterns"
_LIST_HINT = "give names or regular expressions, separated by commas, or @FILE with one per line"


@dataclass(frozen=True, slots=True)
class TopicSelector:
    """Selects topics by names and regular expressions; without any, none."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, values: Iterable[str], flag: str = "--topics") -> TopicSelector:
        """Return the selector for the values of a flag that may be repeated; each is a list or `@FILE`.

        A file contains one pattern per line; empty lines and lines that begin with `#` are ignored.

        Raises:
            UsageError: a value is empty, a file cannot be read, or a pattern is invalid.
        """
        patterns: list[str] = []
        for value in values:
            if value.startswith("@"):
                patterns += _read_patterns(value[1:], flag)
            else:
                patterns += split_patterns(value, flag)
        return cls(tuple(dict.fromkeys(patterns)))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the plain names."""
        return _kinds(self.patterns)[0]

    @property
    def expressions(self) -> tuple[str, ...]:
        """Return the regular expressions."""
        return _kinds(self.patterns)[1]

    def matches(self, topic: str) -> bool:
        """Return whether one of the patterns matches the whole name."""
        _, expressions, names = _kinds(self.patterns)
        return topic in names or any(_compiled(expression).fullmatch(topic) for expression in expressions)

    def select(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that match, sorted."""
        return sorted(topic for topic in topics if self.matches(topic))

    def unmatched(self, topics: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the topics, in the order they were written."""
        existing = set(topics)
        return [pattern for pattern in self.patterns if not _matches_any(pattern, existing)]

    def plus(self, other: TopicSelector) -> TopicSelector:
        """Return a selector with the patterns of both, each once."""
        return TopicSelector(tuple(dict.fromkeys(self.patterns + other.patterns)))

    def missing_names(self, topics: Iterable[str]) -> list[str]:
        """Return the plain names that are not among the topics, in the order they were written."""
        existing = set(topics)
        return [name for name in self.names if name not in existing]

    def __str__(self) -> str:
        """Return the list as it is written in a flag or setting."""
        return ",".join(self.patterns)


@dataclass(frozen=True, slots=True)
class ExcludedNames:
    """Selects names that `include` does not match, or that `exclude` does."""

    include: TopicSelector = TopicSelector((".*",))
    exclude: TopicSelector = TopicSelector()

    @lru_cache(maxsize=4096)  # noqa: B019 - jobs ask for the same settings of the same brokers again and again
    def matches(self, name: str) -> bool:
        """Return whether a name is excluded."""
        return not self.include.matches(name) or self.exclude.matches(name)


def is_plain_name(pattern: str) -> bool:
    """Return whether a pattern is a topic name rather than a regular expression."""
    return _PLAIN_NAME.fullmatch(pattern) is not None


def split_patterns(text: str, name: str = "--topics") -> list[str]:
    """Return the checked patterns of a comma-separated list; `name` is the flag or setting that errors begin with.

    Raises:
        UsageError: the list is empty, or a pattern is invalid; names it, and the position of the error.
    """
    patterns = [pattern for part in split_at_commas(text) if (pattern := part.strip())]
    if not patterns:
        raise UsageError(f"{name} is empty", _LIST_HINT)
    for pattern in patterns:
        if pattern.startswith("@"):
            raise UsageError(
                f"{name}: {pattern} cannot be part of a list", "give @FILE by itself; the flag may be repeated"
            )
        if not is_plain_name(pattern):
            _check_expression(pattern, name)
    return patterns


def _read_patterns(path: str, flag: str) -> list[str]:
    try:
        lines = read_file(path).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
        hint = "name a readable file with one pattern per line"
        raise UsageError(f"{flag}: cannot read {path}: {why}", hint) from None
    written = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not written:
        raise UsageError(f"{flag}: {path} contains no pattern", "write one topic name or regular expression per line")
    return [pattern for line in written for pattern in split_patterns(line, f"{flag} @{path}")]


def _matches_any(pattern: str, topics: Set[str]) -> bool:
    return pattern in topics or (
        not is_plain_name(pattern) and any(_compiled(pattern).fullmatch(topic) for topic in topics)
    )


@lru_cache(maxsize=64)
def _kinds(patterns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the plain names, the expressions, and the names again as a set."""
    names = tuple(pattern for pattern in patterns if is_plain_name(pattern))
    expressions = tuple(pattern for pattern in patterns if not is_plain_name(pattern))
    return names, expressions, frozenset(names)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    # a group may have a line break in its name, and `.*` means every group
    options.dot_nl = True
    return re2.compile(pattern, options)


def _check_expression(pattern: str, name: str) -> None:
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        why, position, hint = _diagnosis(pattern, error.args[0])
        raise _bad_pattern(name, pattern, why, position, hint) from None
    # RE2 takes a lone { literally; in a list it would be unclear where such a pattern ends
    if (position := _unclosed(pattern)) is not None:
        raise _bad_pattern(name, pattern, _UNCLOSED, position, "put a backslash before a literal bracket")


def _bad_pattern(name: str, pattern: str, why: str, position: int | None, hint: str) -> UsageError:
    at = "" if position is None else f" at character {position + 1}"
    return UsageError(f"{name}: the pattern {pattern} is not understood{at}: {why}", hint)


def _diagnosis(pattern: str, complaint: bytes | str) -> tuple[str, int | None, str]:
    """Return what is wrong with a pattern, its index if that is known, and a hint."""
    syntax = list(_syntax(pattern))
    for index, _ in syntax:
        if _LOOK_AROUND.match(pattern, index):
            return "look-around is not supported", index, "use --exclude to exclude topics"
        if _BACK_REFERENCE.match(pattern, index):
            return "back references are not supported", index, _SYNTAX_HINT
    text = complaint.decode("utf-8", "replace") if isinstance(complaint, bytes) else complaint
    what, _, fragment = text.partition(": ")
    if what.startswith("missing"):
        return _UNCLOSED, _unclosed(pattern), _SYNTAX_HINT
    if what.startswith("unexpected"):
        return what, _unopened(pattern), _SYNTAX_HINT
    if what.startswith("trailing"):
        return what, len(pattern) - 1, _SYNTAX_HINT
    where = next((index for index, _ in syntax if fragment and pattern.startswith(fragment, index)), None)
    if where is None and fragment and pattern.count(fragment) == 1:
        where = pattern.index(fragment)
    hint = "for every topic write .*" if pattern.startswith("*") else _SYNTAX_HINT
    return what, where, hint


def _syntax(text: str) -> Iterator[tuple[int, str]]:
    """Yield index and character of everything that is neither escaped nor inside a character class."""
    index, class_start = 0, None
    while index < len(text):
        character = text[index]
        if class_start is None:
            yield index, character
            if character == "[":
                # a ] right after the opening bracket is literal
                class_start = index + (2 if text[index + 1 : index + 2] == "^" else 1)
        elif character == "]" and index > class_start:
            class_start = None
            yield index, character
        elif text.startswith("[:", index) and (named_end := text.find(":]", index + 2)) > 0:
            index = named_end + 1
        index += 2 if character == "\\" else 1


def _unclosed(text: str) -> int | None:
    """Return the index of the last bracket that is not closed."""
    opened: list[tuple[int, str]] = []
    for index, character in _syntax(text):
        if character in _CLOSING:
            opened.append((index, character))
        elif opened and character == _CLOSING[opened[-1][1]]:
            opened.pop()
    return opened[-1][0] if opened else None


def _unopened(text: str) -> int | None:
    """Return the index of the first `)` that closes nothing."""
    depth = 0
    for index, character in _syntax(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return index
    return None


def split_at_commas(text: str) -> Iterator[str]:
    """Yield the parts of a list, which are separated by commas outside of brackets."""
    start, depth = 0, 0
    for index, character in _syntax(text):
        if character in "({":
            depth += 1
        elif character in ")}":
            depth = max(depth - 1, 0)
        elif character == "," and not depth:
            yield text[start:index]
            start = index + 1
    yield text[start:]
