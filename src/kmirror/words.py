"""Format counts, rates, times and foreign text for people. Pure: no clock.

Names and messages from clusters may hold characters that a terminal obeys. JSON keeps them, as escapes; everywhere else
`visible` shows them as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime

#: Shown for an unknown value.
UNKNOWN = "-"

_NOT_ASCII = re.compile(r"[^\n -~]")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return `1 topic` or `2,000 topics`; give a `plural` other than the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def address_of(host: str, port: int) -> str:
    """Return `kafka1:9092` or `[::1]:9092`, as it is written in bootstrap.servers."""
    # a hostile broker may advertise none
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def byte_rate(bytes_per_second: float) -> str:
    """Format bytes per second: `0 B/s`, `12.3 KB/s`, `85.0 MB/s` (a KB is 1,000 bytes)."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s")):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.1f} {unit}"
    return f"{bytes_per_second:.0f} B/s"


def byte_count(size: float) -> str:
    """Format bytes: `12 B`, `85.0 MB`, as in `byte_rate`."""
    return byte_rate(size).removesuffix("/s")


def at_time(epoch_ms: int) -> str:
    """Format a time as `2026-11-22T18:59:13Z`; one out of range, which a record may carry, as milliseconds."""
    try:
        return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return `a, b and 3 more`: the first `most` names, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(visible, names[:most])) + (f" and {more} more" if more > 0 else "")


def is_plain(text: str) -> bool:
    """Return whether a text has only characters that a terminal shows: no control, bidi, format or line characters."""
    return text.isprintable()


def visible(text: str) -> str:
    """Return a text in which each character that a terminal obeys rather than shows is an escape such as `\\x1b`."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escape(one) for one in text)


def visible_lines(text: str) -> str:
    """Return the same for a text of several lines, which stay lines."""
    return "\n".join(map(visible, text.split("\n")))


def _escape(character: str) -> str:
    code = ord(character)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def json_text(document: object, indent: int | None = None) -> str:
    """Return JSON in which only characters that a terminal shows are not escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return text if text.replace("\n", "").isprintable() else _NOT_ASCII.sub(_json_escape, text)


def one_line(text: str | None) -> str:
    """Return a text on one line, `-` if it is empty or None."""
    return visible(" ".join(text.split())) if text and text.strip() else UNKNOWN


def _json_escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]
