"""The one-line JAAS configuration of `sasl.jaas.config` (KIP-85).

    LoginModule required|requisite|sufficient|optional name=value name="quoted value" … ;

Words and quoted strings follow `java.io.StreamTokenizer`, as in Kafka's clients: a value that contains anything but
letters, digits and `_ - . $` must be in quotes (double or single); inside them a backslash escapes. Unlike there, a
reference `${…}` needs no quotes, and neither does a number. Errors never contain a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kmirror.errors import UsageError

_EXAMPLE = (
    "write: sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="NAME" password="${env:PASSWORD}";'
)
_CONTROL_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\r\n]*|/\*.*?\*/)
      | (?P<word>(?:\$\{[^}]*\}|[\w\-.$])+)
      | "(?P<double>(?:[^"\\\r\n]|\\.)*)"
      | '(?P<single>(?:[^'\\\r\n]|\\.)*)'
      | (?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module with its options; their values, secrets among them, never show in its repr."""

    login_module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> tuple[JaasEntry, ...]:
    """Return the login modules of a JAAS line, in their order.

    Raises:
        UsageError: the line is not JAAS; says where, never shows a value.
    """
    tokens = list(_tokens(text))
    entries: list[JaasEntry] = []
    position = 0
    while position < len(tokens):
        words = tokens[position : position + 2]
        if len(words) < 2 or words[0].is_sign or words[1].text.lower() not in _CONTROL_FLAGS:
            raise UsageError("sasl.jaas.config does not begin with a login module and a control flag", _EXAMPLE)
        position += 2
        options: dict[str, str] = {}
        while position < len(tokens) and not tokens[position].ends_entry:
            name, *rest = tokens[position : position + 3]
            if len(rest) < 2 or name.is_sign or not rest[0].is_equals or rest[1].is_sign:
                raise UsageError(
                    f"sasl.jaas.config: option {len(options) + 1} of {words[0].text} is not name=value", _EXAMPLE
                )
            options[name.text] = rest[1].text
            position += 3
        if position == len(tokens):
            raise UsageError("sasl.jaas.config does not end with a semicolon", "add a ; at the end")
        position += 1
        entries.append(JaasEntry(words[0].text, options))
    if not entries:
        raise UsageError("sasl.jaas.config is empty", _EXAMPLE)
    return tuple(entries)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_sign: bool = False

    @property
    def is_equals(self) -> bool:
        return self.is_sign and self.text == "="

    @property
    def ends_entry(self) -> bool:
        return self.is_sign and self.text == ";"


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UsageError(
                f"sasl.jaas.config cannot be read at character {position + 1}",
                'quote values with special characters, and write a quote inside them as \\"',
            )
        position = match.end()
        if match["word"] is not None:
            yield _Token(match["word"])
        elif match["sign"] is not None:
            yield _Token(match["sign"], is_sign=True)
        elif match["space"] is None:
            quoted = match["double"] if match["double"] is not None else match["single"]
            yield _Token(_ESCAPE.sub(_unescaped, quoted))


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)
