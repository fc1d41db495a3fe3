"""A faulty network between a client and a real broker; and listeners that are no brokers at all."""

from __future__ import annotations

import contextlib
import math
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence

#: What happens to one answer's frame (size included): the bytes to pass on, or None to pass on nothing more and close.
Fault = Callable[[bytes], bytes | None]

FETCH, PRODUCE, METADATA, API_VERSIONS = 1, 0, 3, 18


class Turns:
    """How often clients of a wire waited for it: opening a connection is a turn, and so is each request.

    Whatever is sent before the wire has passed on an answer did not wait for it, so requests that are under way
    together count as one. That is exact while `Wire.delay` is longer than what brokers and clients do meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = 0
        self._at: dict[socket.socket, int] = {}
        #: Of each request: its turn, the number of its connection, its API key.
        self.requests: list[tuple[int, int, int]] = []
        self._numbers: dict[socket.socket, int] = {}

    @property
    def count(self) -> int:
        """Return the length of the longest chain of requests that waited for one another."""
        return max((turn for turn, _, _ in self.requests), default=0)

    @property
    def connections(self) -> int:
        """Return how many connections were opened."""
        return len(self._numbers)

    def opened(self, client: socket.socket) -> None:
        """Count a connection."""
        with self._lock:
            self._at[client] = self._seen + 1
            self._numbers[client] = len(self._numbers)

    def asked(self, client: socket.socket, api_key: int) -> int:
        """Count a request; return its turn."""
        with self._lock:
            turn = 1 + max(self._seen, self._at.get(client, 0))
            self.requests.append((turn, self._numbers.get(client, -1), api_key))
            return turn

    def answered(self, turn: int) -> None:
        """Note that the answer to a request of this turn is passed on."""
        with self._lock:
            self._seen = max(self._seen, turn)


class Wire:
    """Forward connections to a broker. `spoil` sets what happens to the answers from then on, one fault each.

    An `opaque` wire does not look for frames in its bytes, as under TLS.
    """

    def __init__(self, host: str, port: int, *, listen_on: str = "127.0.0.1", opaque: bool = False) -> None:
        self._target = (host, port)
        self._opaque = opaque
        self._faults: list[tuple[int | None, Fault]] = []
        self._chance: Callable[[], Fault | None] = lambda: None
        self._lies: dict[int | None, Fault] = {}
        self._rewriting: dict[int, Callable[[bytes], bytes]] = {}
        self._frozen: set[tuple[str, int]] = set()
        self._thawed = threading.Condition()
        self._freeze_new = False
        self._asked: dict[tuple[socket.socket, int], tuple[int, int]] = {}
        self._listener = socket.create_server((listen_on, 0))
        self._sockets: set[socket.socket] = {self._listener}
        self.host, self.port = self._listener.getsockname()
        self.spoiled = 0
        #: How much later answers are passed on, in seconds, each as if the others did not wait.
        self.delay = 0.0
        #: How many bytes a second pass on a connection to the broker, and from it.
        self.bytes_per_second = self.answered_bytes_per_second = math.inf
        #: How many bytes of answers it has passed on.
        self.answered_bytes = 0
        #: Of the requests since it was last replaced.
        self.turns = Turns()
        self._thread(self._accept)

    def spoil(self, *faults: Fault, api_key: int | None = None) -> None:
        """Apply these faults to the next answers (to requests of this kind), in this order; the rest pass unchanged."""
        self._faults += [(api_key, fault) for fault in faults]

    def spoil_at_random(self, rng: random.Random, chance: float, faults: Sequence[Fault]) -> None:
        """From now on apply one of these to any answer with this probability; 0 stops it."""
        self._chance = lambda: rng.choice(faults) if rng.random() < chance else None

    def lie(self, api_key: int, fault: Fault | None) -> None:
        """From now on apply this to all answers to requests of a kind; None stops it."""
        if fault is None:
            del self._lies[api_key]
        else:
            self._lies[api_key] = fault

    def rewrite(self, api_key: int, change: Callable[[bytes], bytes]) -> None:
        """From now on change all requests of a kind (size included) on their way; `calm` stops it."""
        self._rewriting[api_key] = change

    def calm(self) -> None:
        """Pass on everything unchanged from now on."""
        self._lies.clear()
        self._rewriting.clear()

    @property
    def all_fired(self) -> bool:
        """True if no fault is left to apply."""
        return not self._faults

    def freeze(self, address: tuple[str, int]) -> None:
        """Forward nothing any more, either way, for the client's connection from this address and all new ones."""
        with self._thawed:
            self._frozen.add(address)
            self._freeze_new = True

    def thaw(self) -> None:
        """Resume all frozen connections."""
        with self._thawed:
            self._frozen.clear()
            self._freeze_new = False
            self._thawed.notify_all()

    def lead_to(self, host: str, port: int) -> None:
        """Lead new connections to another broker."""
        self._target = (host, port)

    def cut(self) -> None:
        """Close the connections there are."""
        self._end({self._listener})

    def close(self) -> None:
        """Close all connections."""
        self.thaw()
        self._end(set())

    def _end(self, kept: set[socket.socket]) -> None:
        for sock in self._sockets - kept:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _thread(self, target: Callable[..., None], *args: object) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(OSError):
                target(*args)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            client, address = self._listener.accept()
            if self._freeze_new:
                self.freeze(address)
            self.turns.opened(client)
            try:
                broker = socket.create_connection(self._target)
            except OSError:  # it is being restarted
                client.close()
                continue
            self._sockets |= {client, broker}
            threading.Thread(target=self._serve, args=(client, broker, address), daemon=True).start()

    def _serve(self, client: socket.socket, broker: socket.socket, address: tuple[str, int]) -> None:
        """Forward both ways until either side has ended; then close."""
        there = self._thread(self._bytes if self._opaque else self._requests, client, broker, address)
        back = self._thread(self._bytes if self._opaque else self._answers, broker, client, address)
        there.join()
        back.join()
        client.close()
        broker.close()
        self._sockets -= {client, broker}
        for lost in [asked for asked in list(self._asked) if asked[0] is broker]:
            del self._asked[lost]

    def _wait_for_thaw(self, address: tuple[str, int]) -> None:
        with self._thawed:
            while address in self._frozen:
                self._thawed.wait()

    def _bytes(self, source: socket.socket, destination: socket.socket, address: tuple[str, int]) -> None:
        while data := source.recv(65536):
            self._wait_for_thaw(address)
            destination.sendall(data)
        destination.shutdown(socket.SHUT_WR)

    def _requests(self, client: socket.socket, broker: socket.socket, address: tuple[str, int]) -> None:
        while frame := _frame(client):
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            self._asked[broker, correlation_id] = api_key, self.turns.asked(client, api_key)
            self._wait_for_thaw(address)
            if (change := self._rewriting.get(api_key)) is not None:
                frame = change(frame)
            time.sleep(len(frame) / self.bytes_per_second)
            broker.sendall(frame)
        broker.shutdown(socket.SHUT_WR)

    def _answers(self, broker: socket.socket, client: socket.socket, address: tuple[str, int]) -> None:
        under_way: queue.SimpleQueue[tuple[float, bytes, int]] = queue.SimpleQueue()
        passing_on = self._thread(self._pass_on, under_way, client)
        try:
            self._receive_answers(broker, under_way, address)
        finally:
            under_way.put((0.0, b"", 0))
            passing_on.join()
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, under_way: queue.SimpleQueue[tuple[float, bytes, int]], client: socket.socket) -> None:
        while (one := under_way.get())[1]:
            time.sleep(max(0.0, one[0] - time.monotonic()) + len(one[1]) / self.answered_bytes_per_second)
            self.turns.answered(one[2])
            self.answered_bytes += len(one[1])
            client.sendall(one[1])

    def _receive_answers(
        self, broker: socket.socket, under_way: queue.SimpleQueue[tuple[float, bytes, int]], address: tuple[str, int]
    ) -> None:
        while frame := _frame(broker):
            self._wait_for_thaw(address)
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            api_key, turn = self._asked.pop((broker, correlation_id), (None, 0))
            fault = self._fault_for(api_key)
            passed_on = fault(frame) if fault else frame
            if fault:
                self.spoiled += 1
            if passed_on is None:
                break
            if passed_on:
                under_way.put((time.monotonic() + self.delay, passed_on, turn))

    def _fault_for(self, api_key: int | None) -> Fault | None:
        for planned in self._faults:
            if planned[0] in {None, api_key}:
                self._faults.remove(planned)
                return planned[1]
        return self._lies.get(api_key) or self._chance()


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := sock.recv(min(size - len(data), 1 << 20))):
        data += more
    return bytes(data) if len(data) == size else b""


def _frame(sock: socket.socket) -> bytes:
    """Return the next request or answer with its length; nothing once the connection ends, also in the middle of it."""
    head = _exactly(sock, 4)
    body = _exactly(sock, struct.unpack(">i", head)[0]) if head else b""
    return head + body if body else b""


def hang_up(_: bytes) -> None:
    """Close the connection instead of answering."""


def swallow(_: bytes) -> bytes:
    """Answer nothing, and keep the connection."""
    return b""


def cut_to(size: int) -> Fault:
    """Return the fault of an answer that is shorter than it should be, and says so."""
    return lambda frame: struct.pack(">i", size - 4) + frame[4:size]


@contextlib.contextmanager
def listener(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on a local port and treat each connection like this; the connection stays open after it."""
    server = socket.create_server(("127.0.0.1", 0))
    sockets = [server]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = server.accept()
                sockets.append(sock)
                behave(sock)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        for sock in sockets:
            sock.close()
        thread.join(60)


def closed_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
