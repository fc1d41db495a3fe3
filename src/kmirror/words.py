"""How counts and times are written for people."""

from __future__ import annotations

import time


def counted(number: int, noun: str) -> str:
    """Return `1 topic`, `2,000 topics`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def at_time(epoch_ms: int) -> str:
    """Return a moment as `2026-11-22T18:59:13Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_ms / 1000))
