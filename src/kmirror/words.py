"""How counts, times and texts are written for people."""

from __future__ import annotations

import time

#: What stands where something is not known.
UNKNOWN = "-"


def counted(number: int, noun: str) -> str:
    """Return `1 topic`, `2,000 topics`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def at_time(epoch_ms: int) -> str:
    """Return a moment as `2026-11-22T18:59:13Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_ms / 1000))


def one_line(text: str | None) -> str:
    """Return a text without line ends, `-` for none."""
    return " ".join(text.split()) if text and text.strip() else UNKNOWN
