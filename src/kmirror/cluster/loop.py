"""Where a thread that sends waits: for its connections, and for events from other threads."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import struct
import time
from collections.abc import Callable

from kmirror.cluster.stream import Stream

Event = Callable[[float], None]
#: What is called with the event mask of a connection that is ready.
Ready = Callable[[int], None]


class Loop:
    """Wait for connections and events; all but `post` and `wake` is for the sending thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    def post(self, event: Event) -> None:
        """Have the sending thread call `event` with the time; from any thread."""
        self._events.put(event)
        self.wake()

    def wake(self) -> None:
        """Have `wait` return; from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"x")

    def wait(self, timeout: float | None) -> list[tuple[Ready, int]]:
        """Wait for events; return what was added for the connections that are ready, with their event masks.

        A `timeout` of None: wait as long as it takes.
        """
        ready: list[tuple[Ready, int]] = []
        for selected, mask in self._selector.select(timeout):
            if selected.data is not None:
                ready.append((selected.data, mask))
                continue
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        return ready

    def fileno(self) -> int:
        """Return what is readable when `wait` would return something."""
        return self._selector.fileno()

    def take_events(self) -> None:
        """Call the posted events."""
        while not self._events.empty():
            self._events.get_nowait()(self._clock())

    def add(self, stream: Stream, ready: Ready) -> None:
        """Register a connection for reading."""
        self._selector.register(stream.fileno(), selectors.EVENT_READ, ready)

    def watch(self, stream: Stream) -> None:
        """Wait for a connection to be readable, and writable while data is left to send."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.sending else 0)
        known = self._selector.get_key(stream.fileno())
        if known.events != events:
            self._selector.modify(stream.fileno(), events, known.data)

    def hang_up(self, stream: Stream) -> None:
        """Close a connection and discard what the kernel has not sent, so that nothing more gets through."""
        with contextlib.suppress(OSError):
            stream.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.remove(stream)

    def remove(self, stream: Stream) -> None:
        """Close a connection."""
        self._selector.unregister(stream.fileno())
        stream.close()

    def watch_loop(self, loop: Loop, ready: Ready) -> None:
        """Register a loop of which this thread handles what comes."""
        self._selector.register(loop, selectors.EVENT_READ, ready)

    def leave_loop(self, loop: Loop) -> None:
        """Register a loop no more."""
        self._selector.unregister(loop)

    def close(self) -> None:
        """Close the selector and its sockets."""
        self._selector.close()
        self._waker.close()
        self._woken.close()
