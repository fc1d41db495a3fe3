"""A network to a real broker that loses requests, or delays them and delivers them when the test says so."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MARKERS = 27


class Fate(Enum):
    """The fate of a request; after each but ANSWERED the client's connection is closed."""

    ANSWERED = "answered"
    #: It never arrives.
    LOST = "lost"
    #: It is processed, and its answer is lost.
    UNANSWERED = "unanswered"
    #: It is delayed until `deliver`, or for a random time when fates are random.
    LATE = "late"


@dataclass
class _Held:
    broker: socket.socket
    frame: bytes


class LateWire:
    """Forward connections to a broker; requests meet the fates planned for their kind, one each."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._planned: list[tuple[int, Fate]] = []
        self._random: tuple[random.Random, Sequence[Fate], float] | None = None
        self._lock = threading.Lock()
        self._held: list[_Held] = []
        self._delayed: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = {self._listener}
        self.host, self.port = self._listener.getsockname()
        self.met: Counter[Fate] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def plan(self, *fates: Fate, api_key: int = MARKERS) -> None:
        """Let the next requests of this kind meet these fates, in this order; later ones are answered."""
        self._planned += [(api_key, fate) for fate in fates]

    def roll(self, rng: random.Random, fates: Sequence[Fate], longest_delay: float) -> None:
        """Draw fates at random for requests for markers; late ones arrive within this many seconds."""
        self._random = (rng, fates, longest_delay)

    def calm(self) -> None:
        """Deliver everything that is delayed, and cause no more faults."""
        self._random = None
        for thread in self._delayed:
            thread.join()
        self._delayed.clear()

    @property
    def all_met(self) -> bool:
        """True when no planned fate is left."""
        return not self._planned

    def deliver(self) -> list[bytes]:
        """Deliver what was delayed, in the order in which it was sent, and return the answers' frames."""
        with self._lock:
            held, self._held = self._held, []
        answers = []
        for one in held:
            one.broker.sendall(one.frame)
            answers.append(_frame(one.broker))
        return answers

    def close(self) -> None:
        """Close all connections."""
        for sock in self._sockets.copy():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(self._target)
                except OSError:  # it is being restarted
                    client.close()
                    continue
                self._sockets |= {client, broker}
                threading.Thread(target=self._serve, args=(client, broker), daemon=True).start()

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        """Forward one request after the other with its answer; clients of these tests never send two at once."""
        late = False
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                match self._fate_of(frame):
                    case Fate.ANSWERED:
                        broker.sendall(frame)
                        client.sendall(_frame(broker))
                        continue
                    case Fate.UNANSWERED:
                        broker.sendall(frame)
                        _frame(broker)
                    case Fate.LATE:
                        late = True
                        self._keep(_Held(broker, frame))
                    case Fate.LOST:
                        pass
                break
        ended = {client} if late else {client, broker}  # a delayed request is still to be sent
        for sock in ended:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._sockets -= ended

    def _fate_of(self, frame: bytes) -> Fate:
        (api_key,) = struct.unpack_from(">h", frame, 4)
        planned = next((one for one in self._planned if one[0] == api_key), None)
        if planned:
            self._planned.remove(planned)
            fate = planned[1]
        elif self._random and api_key == MARKERS:
            rng, fates, _ = self._random
            fate = rng.choice(fates)
        else:
            return Fate.ANSWERED
        self.met[fate] += 1
        return fate

    def _keep(self, held: _Held) -> None:
        if self._random is None:
            with self._lock:
                self._held.append(held)
            return
        rng, _, longest = self._random
        delay = rng.random() * longest

        def later() -> None:
            time.sleep(delay)
            with contextlib.suppress(OSError):
                held.broker.sendall(held.frame)
                _frame(held.broker)

        thread = threading.Thread(target=later, daemon=True)
        self._delayed.append(thread)
        thread.start()


def _frame(sock: socket.socket) -> bytes:
    """Receive one frame, size included; empty if the other side closed."""
    head = _exactly(sock, 4)
    return head + _exactly(sock, struct.unpack(">i", head)[0]) if head else b""


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        if not more:
            return b""
        data += more
    return bytes(data)
