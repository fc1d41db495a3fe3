"""Names that say which process made something, and when, so that what a killed process left is recognized."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from functools import cache
from pathlib import Path

_MARK = re.compile(r"(?P<made>[0-9]{1,12})-(?P<machine>[0-9a-f]{8})-(?P<process>[0-9]{1,9})-.*")


def process_mark() -> str:
    """Return a name that nothing else has, for something that this process will remove."""
    return f"{int(time.time())}-{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def is_abandoned(mark: str, stale_s: float) -> bool:
    """Return whether the process that made something has ended; one elsewhere has, if the mark is `stale_s` old.

    `mark` may have more after it. Anything else is not abandoned.
    """
    found = _MARK.fullmatch(mark)
    if found is None:
        return False
    if found["machine"] == _machine() and not Path("/proc", found["process"]).exists():
        return True
    return time.time() - int(found["made"]) > stale_s


@cache
def _machine() -> str:
    """Return what processes that see each other in /proc have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
