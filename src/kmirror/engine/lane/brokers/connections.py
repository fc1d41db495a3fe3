"""The life of a lane's connections of one kind: opened in the background, used, and lost or closed.

That much is the same for fetching, reading ahead, appending and filling; what is sent, and what an answer or a loss
means, is the owner's. The deadline after which a lane must not write is checked here, before each byte.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import inf
from typing import Generic, Protocol, TypeVar

from kmirror.cluster.loop import Loop
from kmirror.cluster.protocol.wire import Buffer, FrameError
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now
from kmirror.engine.lane.brokers.background_requests import BackgroundRequests
from kmirror.engine.lane.brokers.links import LinkKind
from kmirror.errors import OutcomeUnknown, Reason

Key = TypeVar("Key", bound=Hashable)
Key_contra = TypeVar("Key_contra", bound=Hashable, contravariant=True)


class LaneLink(Protocol):
    """A connection that is open."""

    stream: Stream

    @property
    def waits_since(self) -> float | None:
        """When the oldest request in flight was sent; None without one."""


L = TypeVar("L", bound=LaneLink)


class Owner(Protocol[Key_contra, L]):
    """What a kind of connections is used for."""

    def opened(self, key: Key_contra, stream: Stream, versions: tuple[int, ...], /) -> L | None:
        """Take a new connection into use; None closes it, because it is of no use any more."""

    def refused(self, key: Key_contra, message: str, reason: Reason | None, at: float, /) -> None:
        """Note that a connection could not be opened."""

    def answered(self, link: L, view: memoryview, /) -> None:
        """Take the next frame. Raises OutcomeUnknown, FrameError: the connection is of no more use."""

    def lost(self, link: L, message: str, at: float, /) -> None:
        """Note that a connection is closed; what was in flight on it may have been carried out."""


class Connections(Generic[Key, L]):
    """One kind of connections by their keys, each to the node that `node_of` returns; for the sending thread.

    Any thread may call `get` and `items`.
    """

    #: Set before the first is opened.
    owner: Owner[Key, L]

    def __init__(
        self,
        kind: LinkKind,
        node_of: Callable[[Key], int],
        loop: Loop,
        requests: BackgroundRequests,
        timeout: float,
        deadline: Callable[[], float] = lambda: inf,
    ) -> None:
        self._kind: LinkKind = kind
        self._node_of = node_of
        self._loop = loop
        self._requests = requests
        self._timeout = timeout
        self._deadline = deadline
        #: None while one is being opened.
        self._links: dict[Key, L | None] = {}

    def get(self, key: Key) -> L | None:
        """Return the connection with this key if it is open."""
        return self._links.get(key)

    def items(self) -> list[tuple[Key, L | None]]:
        """Return all keys with their connections, None for one that is being opened."""
        return list(self._links.items())

    @property
    def opened(self) -> list[L]:
        """Those that are open."""
        return [link for link in list(self._links.values()) if link is not None]

    def open(self, key: Key) -> None:
        """Open a connection, unless it is open or being opened."""
        if key in self._links:
            return
        self._links[key] = None
        node_id = self._node_of(key)
        self._requests.connect(self._kind, node_id, partial(self._opened, key), partial(self._refused, key))

    def _opened(self, key: Key, stream: Stream, versions: tuple[int, ...], _: float) -> None:
        link = self.owner.opened(key, stream, versions)
        if link is None:
            self._links.pop(key, None)
            stream.close()
        else:
            self.add(key, link)

    def add(self, key: Key, link: L) -> None:
        """Serve a connection that is open."""
        self._links[key] = link
        self._loop.add(link.stream, partial(self._ready, key, link))

    def _refused(self, key: Key, message: str, reason: Reason | None, at: float) -> None:
        self._links.pop(key, None)
        self.owner.refused(key, message, reason, at)

    def _ready(self, key: Key, link: L, mask: int) -> None:
        """Receive from a connection, and send what is left to send."""
        links = self._links
        if links.get(key) is not link:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                if self._is_too_late(link):
                    return
                link.stream.flush()
            while links.get(key) is link and (view := link.stream.receive()) is not None:
                self.owner.answered(link, view)
            if links.get(key) is link:
                self._watch(link, mask)
        except (OutcomeUnknown, FrameError) as error:
            self.lose(link, str(error))

    def _watch(self, link: L, mask: int = 0) -> None:
        if link.stream.sending or mask & selectors.EVENT_WRITE:
            self._loop.watch(link.stream)

    def send(self, link: L, buffers: Sequence[Buffer]) -> bool:
        """Send requests that the link has noted as in flight; return False if the connection is lost."""
        if self._is_too_late(link):
            return False
        try:
            link.stream.send(buffers)
        except OutcomeUnknown as error:
            self.lose(link, str(error))
            return False
        self._watch(link)
        return True

    def _is_too_late(self, link: L) -> bool:
        if now() < self._deadline():
            return False
        self.lose(link, link.stream.connection.message("this lane's deadline has passed"))
        return True

    def must_end(self, link: L) -> bool:
        """Return True if the session of a connection has expired; it is closed once nothing is in flight."""
        if not link.stream.connection.must_be_replaced:
            return False
        if link.waits_since is None:
            self.lose(link, link.stream.connection.message("the session has expired"))
        return True

    def on_tick(self, at: float) -> None:
        """Hang up on brokers that do not respond in time, and on all with requests in flight after the deadline."""
        for link in self.opened:
            since = link.waits_since
            if since is not None and at - since > self._timeout:
                self.lose(link, link.stream.connection.message("no response in time"))
            elif since is not None:
                self._is_too_late(link)

    def lose(self, link: L, message: str) -> None:
        """Close a connection whose requests in flight may have been carried out."""
        if self.close(link):
            self.owner.lost(link, message, now())

    def close(self, link: L) -> bool:
        """Close a connection; return False if it was closed before."""
        key = next((key for key, one in self._links.items() if one is link), None)
        if key is None:
            return False
        self._loop.hang_up(link.stream)
        del self._links[key]
        return True

    def hang_up(self) -> None:
        """Close all connections at once."""
        for link in self.opened:
            self._loop.hang_up(link.stream)
        self._links.clear()
