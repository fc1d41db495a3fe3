"""What a request that is encoded by hand has to bring along, so that it is sent as any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Exchange:
    """Name a request, the versions that its codec speaks, and the codec itself.

    `encode` takes a correlation id, a version and a client id, and returns a framed request; `decode` takes the
    answer's frame (from its correlation id on) and the version, and returns what it says and its throttle time in
    milliseconds. It raises FrameError for anything else.
    """

    api_key: int
    name: str
    lowest: int
    highest: int
    encode: Callable[[int, int, str], bytes]
    decode: Callable[[memoryview, int], tuple[Any, int]]
