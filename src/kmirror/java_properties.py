"""Java `.properties` files, written: plain ASCII, which reads the same in every encoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file, escaped."""
    return "".join(f"{_escaped(key, ' :=#!')}={_escaped(value, '')}\n" for key, value in settings.items())


def write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write settings to a properties file that only its owner can read; return the path."""
    path.touch(mode=0o600)
    path.write_text(properties_text(settings), encoding="utf-8")
    return path


def _escaped(text: str, separators: str) -> str:
    def escape(position: int, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character in separators or (character == " " and position == 0):
            return f"\\{character}"
        if " " <= character <= "~":
            return character
        units = character.encode("utf-16-be")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return "".join(escape(position, character) for position, character in enumerate(text))
