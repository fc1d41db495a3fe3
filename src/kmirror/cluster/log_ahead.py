"""Read one partition's log ahead, over several connections to its leader, for a blocking reader (`reader`).

Each connection has a thread that asks for ranges (`protocol/read_ahead`) and receives them; the reader takes them in
order. Reading ahead proves nothing but batches: whatever else a broker answers ends it, and the reader goes on by
itself from where it is, as if it had never been.

How many threads there are is bounded for the process, and what each reader holds is bounded too.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

from kmirror.cluster.connection import Connection
from kmirror.cluster.kept_connections import is_usable
from kmirror.cluster.protocol import fetch
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.fetch import FetchedAlone, FetchedPartition, FetchTarget
from kmirror.cluster.protocol.read_ahead import Range, ReadAhead, covered
from kmirror.cluster.protocol.read_up_to import Batches, batches_after
from kmirror.cluster.protocol.wire import Exchange
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import KmirrorError, OutcomeUnknown

#: How much one request asks for, how many wait at the broker per connection, and how much one reader holds.
_REQUEST_BYTES = 512 << 10
_REQUESTS = 2
_HELD_BYTES = 16 << 20
#: A stock broker's connection brings about 200 KB a round trip: so many connections a second of it bring 40 MB/s.
_CONNECTIONS_PER_SECOND = 200
_LEAST_CONNECTIONS, _MOST_CONNECTIONS = 2, 16
#: Less than this is no more than one or two requests bring.
_LEAST_BYTES = 512 << 10
_WAIT_MS = 500
#: After trouble the log is read the usual way for so many seconds, and after a throttled answer.
_USUAL_SECONDS = 5.0
_THROTTLED_SECONDS = 60.0
#: As many threads read ahead in one process.
_PLACES = threading.BoundedSemaphore(64)
_log = logging.getLogger(__name__)


class SpareConnections:
    """Further connections to the brokers of one cluster, opened as needed and kept for the next log; thread-safe."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._spare: list[Connection] = []
        self._users: set[LogAhead] = set()
        self._is_closed = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._spare)

    def note(self, user: LogAhead, *, is_open: bool) -> None:
        """Note a log that is read ahead over these connections, or no longer is."""
        with self._lock:
            (self._users.add if is_open else self._users.discard)(user)

    def take(self, host: str, port: int) -> Connection:
        """Return a connection that no one else uses.

        Raises:
            UnreachableError: the broker cannot be reached, refuses it, or is another cluster's.
            OutcomeUnknown: the connection was lost at once.
        """
        with self._lock:
            for one in self._spare:
                if (one.host, one.port) == (host, port):
                    self._spare.remove(one)
                    if is_usable(one):
                        return one
                    one.close()
                    break
        connection = Connection.open(host, port, self.config)
        # a topic that is fetched by its name may have a namesake elsewhere
        connection.require_cluster()
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection with no request under way."""
        with self._lock:
            if not self._is_closed and connection.socket.fileno() >= 0:
                self._spare.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """End all reading ahead, and close the connections, also those that are given back later."""
        with self._lock:
            self._is_closed = True
            spare, self._spare = self._spare, []
            users = list(self._users)
        for user in users:
            user.close()
        for connection in spare:
            connection.close()


class LogAhead:
    """The log of one partition, read ahead from one of its leader's batches on."""

    def __init__(self, connections: SpareConnections, target: FetchTarget, round_trip: float) -> None:
        self._connections = connections
        self._client_id = connections.config.client_id
        self._timeout_s = connections.config.request_timeout_ms / 1000
        self._target = target
        self._most = min(max(int(_CONNECTIONS_PER_SECOND * round_trip), _LEAST_CONNECTIONS), _MOST_CONNECTIONS)
        self._reading = ReadAhead(_REQUEST_BYTES)
        self._position = self._end = 0
        self._leader_epoch = -1
        #: When to read ahead again once it is over (CLOCK_MONOTONIC seconds).
        self.again_at = 0.0
        lock = threading.Lock()
        #: The reader waits for the first, threads without a request wait for the second; both have one lock.
        self._arrived = threading.Condition(lock)
        self._askable = threading.Condition(lock)
        self._is_over = False
        self._threads = 0
        #: Connections with requests under way.
        self._busy: set[Connection] = set()

    def begin(self, found: Batches, end: int) -> None:
        """Read ahead from the end of these batches, which were just read, up to offset `end`, if that is worth it."""
        if seen := covered(found.data):
            self._reading.learn(seen)
        self._position, self._end = found.next_offset, end
        self._leader_epoch = found.headers[-1].partition_leader_epoch
        left = (end - self._position) * self._reading.bytes_per_offset
        self._connections.note(self, is_open=True)
        wanted = min(self._most, int(left / _REQUEST_BYTES)) if left >= _LEAST_BYTES else 0
        for _ in range(wanted):
            if not self._start_thread():
                break

    def _start_thread(self) -> bool:
        """Start one more thread; return False if the process has enough of them, or may have no more."""
        if not _PLACES.acquire(blocking=False):
            return False
        thread = threading.Thread(target=self._run, name="kmirror-ahead", daemon=True)
        with self._arrived:
            self._threads += 1
        try:
            thread.start()
        except RuntimeError:
            self._thread_ended()
            return False
        return True

    def _thread_ended(self) -> None:
        _PLACES.release()
        with self._arrived:
            self._threads -= 1
            self._arrived.notify_all()

    def take(self, offset: int) -> Batches | None:
        """Wait for the batches from `offset` on and return them; None if they must be read the usual way."""
        with self._arrived:
            while offset == self._position < self._end and not self._is_over and self._threads:
                one = self._reading.take(offset, self._leader_epoch)
                self._reading.dropped.clear()
                found = None if one is None else _batches(one, offset)
                if found is not None:
                    self._position, self._leader_epoch = found.next_offset, found.headers[-1].partition_leader_epoch
                self._askable.notify_all()
                if found is not None:
                    return found
                if one is not None:
                    break
                self._arrived.wait()
            if not self._is_over and self._position < self._end:
                self._end_with(f"offset {offset} is not read over {self._threads} connections")
            return None

    def close(self) -> None:
        """End reading ahead; connections with requests under way are closed."""
        self._connections.note(self, is_open=False)
        with self._arrived:
            self._is_over = True
            self._reading.clear()
            self._reading.dropped.clear()
            for connection in self._busy:
                # not by SSLSocket's own method, which takes away what a receiving thread still uses
                with suppress(OSError):
                    socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)
            self._arrived.notify_all()
            self._askable.notify_all()

    def _end_with(self, why: str, seconds: float = _USUAL_SECONDS) -> None:
        _log.debug("no longer reading %s-%d ahead: %s", *self._target.partition, why)
        self._is_over = True
        self.again_at = time.monotonic() + seconds
        self._arrived.notify_all()
        self._askable.notify_all()

    # -- in the thread of a connection ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Ask and receive over one connection, and over another one whenever one that was of use is lost."""
        leader = self._target.leader
        try:
            while not self._is_over and self._serve(self._connections.take(leader.host, leader.port)):
                pass
        except (KmirrorError, OutcomeUnknown) as error:
            _log.debug("one connection less to read ahead from broker %d: %s", leader.node_id, error)
        finally:
            self._thread_ended()

    def _serve(self, connection: Connection) -> bool:
        """Ask and receive over a connection; return True if it was lost after it had brought something."""
        asked: deque[tuple[Range, Exchange, int]] = deque()
        is_of_use = False
        try:
            version = connection.version_for(fetch.API)
            connection.wait_for_throttle()
            while True:
                while len(asked) < _REQUESTS and (one := self._next_range(connection, may_wait=not asked)) is not None:
                    request = self._target.exchange(one.offset, one.size, _WAIT_MS)
                    number = connection.next_correlation_id()
                    asked.append((one, request, number))
                    connection.send_frame([request.encode(number, version, self._client_id)], self._timeout_s)
                if not asked:
                    self._connections.give_back(connection)
                    return False
                one, request, number = asked[0]
                deadline = time.monotonic() + self._timeout_s + _WAIT_MS / 1000
                answer, throttle_time_ms = request.decode(connection.receive_frame(number, deadline), version)
                asked.popleft()
                connection.note_throttle(throttle_time_ms)
                is_of_use = True
                self._answered(connection, one, answer, is_idle=not asked)
        except (KmirrorError, OutcomeUnknown) as error:
            _log.debug("reading ahead: %s", error)
            connection.close()
            return is_of_use
        finally:
            with self._arrived:
                self._busy.discard(connection)
                for one, _, _ in asked:
                    self._reading.give_up(one)
                if asked:
                    self._askable.notify_all()

    def _next_range(self, connection: Connection, *, may_wait: bool) -> Range | None:
        """Return what to ask for next; None if there is nothing now, or, with `may_wait`, when it is over."""
        with self._askable:
            while not self._is_over:
                one = self._reading.ask(self._position, self._end) if self._has_room else None
                if one is not None:
                    self._busy.add(connection)
                    return one
                if not may_wait or self._position >= self._end:
                    break
                self._askable.wait()
            return None

    @property
    def _has_room(self) -> bool:
        """True if more may be held, or what comes next is not asked for."""
        ranges = self._reading.ranges
        return self._reading.held_bytes < _HELD_BYTES or not ranges or ranges[0].offset > self._position

    def _answered(self, connection: Connection, one: Range, answer: FetchedAlone, *, is_idle: bool) -> None:
        with self._arrived:
            if is_idle:
                self._busy.discard(connection)
            if self._is_over or one not in self._reading.ranges:
                return
            part = answer.part
            if answer.throttle_time_ms:
                self._end_with("the broker throttles this client", _THROTTLED_SECONDS)
            elif answer.error_code or part is None:
                self._end_with(code_name(answer.error_code))
            elif part.diverging_epoch is not None or part.preferred_read_replica is not None:
                self._end_with("the broker names another replica or epoch")
            elif not self._reading.arrived(one, part.records, part):
                self._end_with(f"no batch from offset {one.offset} on")
            else:
                self._arrived.notify()


def _batches(one: Range, offset: int) -> Batches | None:
    """Return the batches of a range from `offset` on; None if they are not plain ones."""
    part: FetchedPartition = one.response
    try:
        return batches_after(replace(part, records=one.batches), offset)
    except CorruptBatchError:
        return None
