"""Frames as they arrive on a stream."""

from __future__ import annotations

import selectors
import struct

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.stream import Stream

PLAIN = ClientConfig((("127.0.0.1", 1),), connect_timeout_ms=20_000, request_timeout_ms=20_000)


def receive(stream: Stream) -> memoryview:
    """Wait for the next frame, and send what is still to be sent."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream.fileno(), selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            selector.modify(stream.fileno(), selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.sending else 0))
            events = selector.select(20)
            assert events, "nothing came"
            if stream.sending:
                stream.flush()
            if (frame := stream.receive()) is not None:
                return frame


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def is_readable(stream: Stream, within: float = 20) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream.fileno(), selectors.EVENT_READ)
        return bool(selector.select(within))
