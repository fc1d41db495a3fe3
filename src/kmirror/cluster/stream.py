"""Whole frames over a connection to one broker without ever blocking: the hot path's side of a `Connection`.

Foreign exceptions end here, as in `connection`.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections import deque
from collections.abc import Sequence

from kmirror.cluster.connection import MAX_FRAME_BYTES, Connection, reason_of, room_for
from kmirror.cluster.protocol.wire import INT32, Buffer, FrameError
from kmirror.errors import OutcomeUnknown

#: sendmsg takes at most this many buffers at once (IOV_MAX).
_MAX_BUFFERS = 1024
#: Large frames are read in chunks of at least this size.
_AWAITED_BYTES = 1 << 20
#: Small answers are read together, up to this many bytes at once.
_INBOX_BYTES = 64 << 10
#: The most large buffers that are kept for reuse.
_SPARE_BUFFERS = 8


class Stream:
    """Send and receive frames over one connection.

    A frame is sent as a list of buffers, never joined (except with TLS, which has no gathering write). `send` may leave
    bytes unsent: call `flush` when the socket is writable. `receive` returns the next whole frame or None.
    """

    def __init__(self, connection: Connection, buffer_bytes: int, spare: deque[bytearray] | None = None) -> None:
        self.connection = connection
        sock = connection.socket
        sock.setblocking(False)
        self._socket = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._rest: list[memoryview] = []
        self._inbox = memoryview(bytearray(_INBOX_BYTES))
        self._inbox_start = self._inbox_end = 0
        #: True if the last read emptied the socket: the next one can wait until the selector reports it.
        self._drained = False
        #: The socket's SO_RCVLOWAT, and its value between frames.
        self._awaited = self._least = 1
        self._frame: memoryview | None = None
        self._filled = 0
        #: Large buffers for reuse; streams with buffers of one size may share them.
        self._spare: deque[bytearray] = deque(maxlen=_SPARE_BUFFERS) if spare is None else spare
        self._buffer_bytes = buffer_bytes
        self.received_bytes = 0
        #: True once the other side has ended the connection.
        self.is_cut_off = False

    def fileno(self) -> int:
        """Return the socket's file descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def sending(self) -> bool:
        """True while unsent bytes wait for the socket to become writable."""
        return bool(self._rest)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue one frame, and send what the socket accepts.

        Raises:
            OutcomeUnknown: the connection is gone.
        """
        self._rest.extend(map(memoryview, buffers))
        self.flush()

    def flush(self) -> None:
        """Send as many of the queued bytes as the socket accepts.

        Raises:
            OutcomeUnknown: the connection is gone.
        """
        rest = self._rest
        try:
            while rest:
                count = self._socket.send(rest[0]) if self._tls else self._socket.sendmsg(rest[:_MAX_BUFFERS])
                done = 0
                for buffer in rest:
                    if count < len(buffer):
                        rest[done] = buffer[count:]
                        break
                    count -= len(buffer)
                    done += 1
                del rest[:done]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self.is_cut_off = True
            raise OutcomeUnknown(self.connection.message(reason_of(error))) from None

    def receive(self) -> memoryview | None:
        """Return the next whole frame (from its correlation id on), or None if it has not arrived yet.

        The frame belongs to the caller until it is returned with `recycle`.

        Raises:
            OutcomeUnknown: the connection is gone.
            FrameError: not a frame.
        """
        try:
            frame = self._begin_frame() if self._frame is None else self._frame
            if frame is None:
                return None
            while self._filled < len(frame):
                wanted = len(frame) - self._filled
                count = self._socket.recv_into(frame[self._filled :])
                if count == 0:
                    raise ConnectionResetError("the broker closed the connection")
                self._filled += count
                self.received_bytes += count
                self._drained = count < wanted and not self._tls
                if self._drained:
                    self._await(wanted - count)
                    return None
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if self._frame is not None:
                self._await(len(self._frame) - self._filled)
            return None
        except OSError as error:
            self.is_cut_off = True
            raise OutcomeUnknown(self.connection.message(reason_of(error))) from None
        self._frame = None
        self._await(self._least)
        return frame

    def require_answer(self, frame: memoryview, awaited: int | None) -> None:
        """Raise FrameError unless a frame answers the request with this correlation id; None: none is in flight."""
        if INT32.unpack_from(frame)[0] != awaited:
            raise FrameError(f"{self.connection.address} responded to a different request")

    def await_frames(self, least_bytes: int) -> None:
        """Have the selector report new frames only when they have at least this many bytes together; the default is 1.

        They must arrive without another request being sent, or nothing is reported before the connection ends.
        """
        self._least = least_bytes
        if self._frame is None:
            self._await(least_bytes)

    def _await(self, count: int) -> None:
        """Have the selector report the socket when this many bytes are here, or its buffer is full.

        socket(7) on SO_RCVLOWAT; Linux makes the buffer twice as large, and also reports a full buffer.
        """
        wanted = min(count, _AWAITED_BYTES)
        if wanted != self._awaited and not self._tls and sys.platform == "linux":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._awaited = wanted

    def _begin_frame(self) -> memoryview | None:
        """Take the next frame's length and first bytes from the inbox; many small frames cost one system call."""
        if self._inbox_end - self._inbox_start < 4:
            rest = bytes(self._inbox[self._inbox_start : self._inbox_end])
            self._inbox[: len(rest)] = rest
            self._inbox_start, self._inbox_end = 0, len(rest)
            if self._drained:
                self._drained = False
                return None
            count = self._socket.recv_into(self._inbox[len(rest) :])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            self.received_bytes += count
            self._drained = count < len(self._inbox) - self._inbox_end and not self._tls
            self._inbox_end += count
            if self._inbox_end < 4:
                return None
        (size,) = INT32.unpack_from(self._inbox, self._inbox_start)
        if not 4 <= size <= MAX_FRAME_BYTES:
            raise FrameError(f"{self.connection.address} sent a response of {size} bytes")
        start = self._inbox_start + 4
        here = min(size, self._inbox_end - start)
        frame = self._buffer(size)
        frame[:here] = self._inbox[start : start + here]
        self._inbox_start = start + here
        self._frame, self._filled = frame, here
        return frame

    def _buffer(self, size: int) -> memoryview:
        if size > self._buffer_bytes or size < self._buffer_bytes >> 5:
            return room_for(size)
        spare = self._spare.pop() if self._spare else bytearray(self._buffer_bytes)
        return memoryview(spare)[:size]

    def recycle(self, frame: memoryview) -> None:
        """Take back a frame that is no longer used; large buffers are reused."""
        owner = frame.obj
        if isinstance(owner, bytearray) and len(owner) == self._buffer_bytes:
            self._spare.append(owner)
