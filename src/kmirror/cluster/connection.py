"""One TCP connection to one broker: blocking requests (`stream` has whole frames for the hot path).

Foreign exceptions (`OSError`, `ssl.SSLError`) end here. The type raised says what happened to a request:

* `ConnectFailedError`: nothing was sent; the broker cannot be reached or refuses us;
* `OutcomeUnknown`: the request was sent, and no whole answer came back. The connection cannot be used any more.

Every request has a time-out, and a broker's throttle (`throttle_time_ms`, KIP-219) is waited for before the next one is
sent.
"""

from __future__ import annotations

import math
import mmap
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from kmirror.cluster import KAFKA_IMPORTS
from kmirror.cluster.connect_hints import handshake_hint, strange_answer, tls_refusal, unreachable_hint
from kmirror.cluster.connecting import connected
from kmirror.cluster.protocol import api_versions, metadata
from kmirror.cluster.protocol.wire import INT32, Api, Buffer, Exchange, FrameError, framed, request_header
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.security.renewed_logins import RENEWED
from kmirror.cluster.security.sasl import authenticate
from kmirror.cluster.seen_throttles import SEEN_THROTTLES
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.words import address_of

#: Time after which a request without an answer cannot arrive any more, in seconds.
SETTLE_S = 10.0
#: The largest answer we accept. Brokers send at most one batch more than requested; no answer comes near this.
MAX_FRAME_BYTES = 1 << 30
#: The same during the handshake, when the other side may not be a broker: any four bytes can be read as a size.
MAX_HANDSHAKE_FRAME_BYTES = 1 << 20
#: Larger frames use mapped memory, which the system provides page by page as bytes arrive: the length may be a lie.
_CLAIMED_BYTES = 4 << 20
#: The longest throttle that we wait for; a broker with a longer one mutes the connection itself (KIP-219).
_LONGEST_THROTTLE_MS = 300_000
#: The part of a SASL session's lifetime for which a connection is used.
_SESSION_PART = 0.85
_HIGHEST_PORT = 65535
#: How many small requests it takes to believe that a path is long.
_MEASUREMENTS = 3
#: Metadata's key.
_METADATA = 3
#: Requests that only read: Fetch, ListOffsets, Metadata, OffsetFetch, DescribeGroups, ListGroups, OffsetForLeaderEpoch,
#: DescribeAcls, DescribeConfigs, DescribeLogDirs, DescribeClientQuotas, DescribeUserScramCredentials, DescribeCluster,
#: DescribeProducers, DescribeTransactions, ListTransactions. Not FindCoordinator: a cluster without its internal topic
#: creates it then.
_READING = frozenset({1, 2, _METADATA, 9, 15, 16, 23, 29, 32, 35, 48, 50, 60, 61, 65, 66})
#: Where a framed request has the number of its kind.
_API_KEY = struct.Struct(">4xh")
#: kafka-python's classes of answers, and versions, of which one has been decoded.
_known_answers: set[tuple[Any, int]] = set()


def _api_key_of(buffers: Sequence[Buffer]) -> int:
    # the length may be a buffer of its own
    head = b"".join(bytes(one[: _API_KEY.size]) for one in buffers[:2])
    return int(_API_KEY.unpack_from(head)[0])


class ConnectFailedError(UnreachableError):
    """A broker that cannot be reached, or that refuses the connection."""


class UnknownHostError(ConnectFailedError):
    """A host name that has no address."""


class WrongClusterError(ConnectFailedError):
    """A broker of another cluster than the expected one; its cluster's id is `found`."""

    found: str | None = None


class UnsupportedVersionError(KmirrorError):
    """A broker that does not support a version of a request that we need."""


class Connection:
    """One authenticated connection to a broker.

    `request` is for everything that may block; the hot path uses `socket`, and encodes and decodes frames itself.
    """

    def __init__(self, host: str, port: int, config: ClientConfig, sock: socket.socket) -> None:
        self.host = host
        self.port = port
        self.config = config
        self.socket = sock
        self.api_versions: Mapping[int, tuple[int, int]] = {}
        #: When to open a new connection, before the broker ends this session (CLOCK_MONOTONIC seconds); None for never.
        self._replace_at: float | None = None
        self._largest_frame = MAX_HANDSHAKE_FRAME_BYTES
        self._correlation_id = 0
        #: True until the broker has said that it is one of the expected cluster.
        self._is_unproven = False
        self._throttled_until = 0.0
        #: The shortest time from a request to its answer, in seconds.
        self.round_trip = math.inf

    @classmethod
    def open(cls, host: str, port: int, config: ClientConfig) -> Connection:
        """Connect, do the handshakes (TLS, API versions, SASL) and return the connection.

        If the password is refused, and the file that it came from now has another one, that one is tried.

        Raises:
            ConnectFailedError: not reachable, not Kafka, or not with this configuration.
        """
        known = RENEWED.current(config)
        try:
            return cls._open(host, port, known)
        except UnreachableError as error:
            another = config.with_current_password()
            if error.reason is not Reason.AUTHENTICATION_FAILED or another == known:
                raise
        connection = cls._open(host, port, another)
        RENEWED.record(config, another)
        return connection

    @classmethod
    def _open(cls, host: str, port: int, config: ClientConfig) -> Connection:
        timeout = config.connect_timeout_ms / 1000
        try:
            if not host or not 0 < port <= _HIGHEST_PORT:
                raise OSError("not a valid address")
            sock = connected(host, port, config, timeout)
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            is_unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
            raise (UnknownHostError if is_unknown else ConnectFailedError)(
                f"cannot connect to {address_of(host, port)}: {reason_of(error)}",
                unreachable_hint(host, port, config),
            ) from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            context = config.ssl_context()
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=host)
            connection = cls(host, port, config, sock)
            connection._shake_hands()
            connection._largest_frame = MAX_FRAME_BYTES
            connection._is_unproven = config.cluster_id is not None
        except (OSError, OutcomeUnknown, FrameError) as error:
            sock.close()
            # in TLS 1.3 a broker rejects our certificate with its first answer, not in the handshake
            refusal = error if isinstance(error, ssl.SSLError) else error.__context__
            if isinstance(refusal, ssl.SSLError):
                what, hint = tls_refusal(refusal, config.with_current_stores())
                raise ConnectFailedError(
                    f"TLS with {address_of(host, port)} failed: {what}", hint, Reason.AUTHENTICATION_FAILED
                ) from None
            raise ConnectFailedError(
                f"handshake with {address_of(host, port)} failed: {reason_of(error)}",
                handshake_hint(config),
            ) from None
        except BaseException:
            sock.close()
            raise
        return connection

    def _ask_versions(self) -> tuple[int, Mapping[int, tuple[int, int]]]:
        seconds = self.config.connect_timeout_ms / 1000
        found: tuple[int, Mapping[int, tuple[int, int]]]
        found, _ = self._exchanged(api_versions.exchange("kmirror"), api_versions.VERSION, seconds)
        return found

    def require_cluster(self, timeout: float | None = None) -> None:
        """Find out whose broker it is, if that is not known yet.

        Raises:
            WrongClusterError: another cluster's; the connection is closed.
            OutcomeUnknown: the connection is lost.
        """
        if self._is_unproven:
            self.request(metadata.exchange([]), timeout=timeout)

    def measure_round_trip(self, long: float) -> None:
        """Find out if a small request takes `long` seconds; on a busy machine a single one says nothing.

        Raises:
            OutcomeUnknown: the connection is lost.
        """
        for _ in range(_MEASUREMENTS):
            if self.round_trip >= long:
                self._ask_versions()

    def _shake_hands(self) -> None:
        code, self.api_versions = self._ask_versions()
        if code:
            raise ConnectFailedError(f"{self.address} refuses ApiVersions with error {code}")
        lowest, highest = self.api_versions.get(_METADATA, (0, -1))
        if lowest > highest:
            # such a connection would be kept, and never be of use
            raise ConnectFailedError(
                f"{self.address} offers no version of Metadata, which every broker does",
                "name brokers in bootstrap.servers, not controllers",
            )
        if self.config.sasl_mechanism is not None:
            lifetime_ms = authenticate(self._exchange, self.config, self.address)
            if lifetime_ms:
                self._replace_at = time.monotonic() + lifetime_ms / 1000 * _SESSION_PART

    def __repr__(self) -> str:
        return f"<Connection {self.address} {'closed' if self.socket.fileno() < 0 else 'open'}>"

    @property
    def address(self) -> str:
        """Return the broker's address for messages."""
        return address_of(self.host, self.port)

    def message(self, what: str) -> str:
        """Return a message about this broker."""
        return f"{self.address}: {what}"

    def close(self) -> None:
        """Close the socket; closing twice is fine."""
        self.socket.close()

    @property
    def must_be_replaced(self) -> bool:
        """True if the SASL session ends soon (KIP-368): open a new connection before the broker closes this one."""
        return self._replace_at is not None and time.monotonic() > self._replace_at

    def version_for(self, api: Api) -> int:
        """Return the highest version of a request that both sides speak.

        Raises:
            UnsupportedVersionError: there is none.
        """
        lowest, highest = self.api_versions.get(api.key, (0, -1))
        version = min(api.highest, highest)
        if version < max(api.lowest, lowest):
            raise UnsupportedVersionError(
                f"{self.address} does not offer {api.name} version {api.lowest} to {api.highest}",
                "the broker is too old for this; `kmirror check` shows what it lacks",
            )
        return version

    def next_correlation_id(self) -> int:
        """Return a new correlation id."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def request(
        self, message: Any, *, lowest: int = 0, highest: int | None = None, timeout: float | None = None
    ) -> Any:
        """Send an `Exchange`, or one of `kafka.protocol`'s requests, in the best version; return the decoded answer.

        `timeout` in seconds, by default `request.timeout.ms`. Error codes inside the answer are the caller's.

        Raises:
            OutcomeUnknown: no whole answer in time, or nothing was sent as the broker throttles for longer.
            UnsupportedVersionError: the broker speaks no version we do.
        """
        patience = timeout or self.config.request_timeout_ms / 1000
        exchange = message if isinstance(message, Exchange) else exchange_of(message, lowest=lowest, highest=highest)
        version = self.version_for(exchange.api)
        self.wait_for_throttle(patience)
        is_metadata = exchange.api.key == _METADATA
        self._is_unproven &= not is_metadata
        content, throttle_time_ms = self._exchanged(exchange, version, patience)
        self.note_throttle(throttle_time_ms)
        if is_metadata:
            self._require_cluster(content.cluster_id)
        return content

    def request_all(self, messages: Sequence[Exchange], *, timeout: float | None = None) -> list[Any]:
        """Send several requests at once, which the broker carries out in this order; return the decoded answers.

        Raises:
            OutcomeUnknown: not all answers in time; the connection is closed.
            UnsupportedVersionError: the broker does not speak a version of one that we do; nothing was sent.
        """
        patience = timeout or self.config.request_timeout_ms / 1000
        versions = [self.version_for(one.api) for one in messages]
        if self._is_unproven and any(one.api.key not in _READING for one in messages):
            self.require_cluster(patience)
        self.wait_for_throttle(patience)
        ids = [self.next_correlation_id() for _ in messages]
        asked = list(zip(messages, versions, ids, strict=True))
        frames = [message.encode(number, version, self.config.client_id) for message, version, number in asked]
        answers = self._exchange_frames(frames, ids, patience)
        decoded = [self._decoded(one, frame, version) for (one, version, _), frame in zip(asked, answers, strict=True)]
        self.note_throttle(max((throttle_time_ms for _, throttle_time_ms in decoded), default=0))
        return [content for content, _ in decoded]

    def wait_for_throttle(self, patience: float = math.inf) -> None:
        """Sleep for the rest of the broker's last throttle; raise OutcomeUnknown if that takes longer than patience."""
        pause = self._throttled_until - time.monotonic()
        if pause > 0:
            time.sleep(min(pause, patience))
        if pause > patience:
            left = f"for another {pause - patience:.0f} s"
            raise OutcomeUnknown(f"{self.address} throttles this client, {left}: its quota is too small")

    def note_throttle(self, throttle_time_ms: int) -> None:
        """Note for how long the broker asked us to send nothing."""
        if throttle_time_ms > 0:
            counts_ms = min(throttle_time_ms, _LONGEST_THROTTLE_MS)
            self._throttled_until = time.monotonic() + counts_ms / 1000
            SEEN_THROTTLES.note(self.config, self.address, counts_ms)

    @property
    def is_throttled(self) -> bool:
        """True while nothing should be sent."""
        return time.monotonic() < self._throttled_until

    def _exchanged(self, exchange: Exchange, version: int, timeout: float) -> tuple[Any, int]:
        correlation_id = self.next_correlation_id()
        frame = exchange.encode(correlation_id, version, self.config.client_id)
        return self._decoded(exchange, self.exchange_frame([frame], correlation_id, timeout), version)

    def _decoded(self, exchange: Exchange, answer: memoryview, version: int) -> tuple[Any, int]:
        try:
            return exchange.decode(answer, version)
        except FrameError as error:
            self.close()
            raise FrameError(f"the answer of {self.address} to {exchange.api.name} cannot be read: {error}") from None

    def _exchange(self, message: Any, version: int, timeout: float) -> Any:
        return self._exchanged(exchange_of(message), version, timeout)[0]

    def ask(self, api_key: int, version: int, body: bytes, timeout: float) -> memoryview:
        """Send a request that was encoded by hand; return the answer's frame from its correlation id on.

        Raises:
            OutcomeUnknown: no whole answer in time, or the broker throttles for longer.
        """
        correlation_id = self.next_correlation_id()
        request = request_header(api_key, version, correlation_id, self.config.client_id) + body
        self.wait_for_throttle(timeout)
        return self.exchange_frame([framed(request)], correlation_id, timeout)

    def exchange_frame(self, buffers: Sequence[Buffer], correlation_id: int, timeout: float) -> memoryview:
        """Send one framed request and return the answer's frame from its correlation id on.

        Raises:
            OutcomeUnknown: no whole answer in time; the connection is closed.
        """
        (answer,) = self._exchange_frames(buffers, [correlation_id], timeout)
        return answer

    def _exchange_frames(
        self, buffers: Sequence[Buffer], correlation_ids: Sequence[int], timeout: float
    ) -> list[memoryview]:
        """Send framed requests, and return the answers' frames; on a new connection, find out whose broker it is.

        What changes something is sent only then: a broker carries out what it has received.
        """
        if self._is_unproven and _api_key_of(buffers) not in _READING:
            self.require_cluster(timeout)
        sent_at = time.monotonic()
        deadline = sent_at + timeout
        if is_unproven := self._is_unproven:
            # it costs no time of its own: both are under way together, and answered in this order
            question = metadata.exchange([])
            version = self.version_for(question.api)
            correlation_id = self.next_correlation_id()
            self.send_frame([question.encode(correlation_id, version, self.config.client_id)], timeout)
        self.send_frame(buffers, timeout)
        if is_unproven:
            frame = self.receive_frame(correlation_id, deadline, sent_at)
            self._require_cluster(self._decoded(question, frame, version)[0].cluster_id)
            self._is_unproven = False
        return [
            self.receive_frame(correlation_id, deadline, None if answered else sent_at)
            for answered, correlation_id in enumerate(correlation_ids)
        ]

    def _require_cluster(self, found: str | None) -> None:
        wanted = self.config.cluster_id
        if wanted is None or found == wanted:
            return
        self.close()
        error = WrongClusterError(
            f"another cluster answers at {self.address}: its id is {found}, not {wanted}",
            "check bootstrap.servers, and the advertised.listeners of the brokers",
            self.config.wrong_cluster,
        )
        error.found = found
        raise error

    def send_frame(self, buffers: Sequence[Buffer], timeout: float) -> None:
        """Send one framed request without waiting for its answer; brokers answer in order.

        Raises:
            OutcomeUnknown: not sent in time; the connection is closed.
        """
        with self._closed_after_trouble():
            self.socket.settimeout(timeout)
            for buffer in buffers:
                self.socket.sendall(buffer)

    def receive_frame(self, correlation_id: int, deadline: float, sent_at: float | None = None) -> memoryview:
        """Return the next answer's frame; `sent_at` is when it was asked for, if nothing else was asked meanwhile.

        Raises:
            OutcomeUnknown: no whole answer by `deadline` (CLOCK_MONOTONIC seconds); the connection is closed.
        """
        with self._closed_after_trouble():
            head = self._receive(4, deadline)
            if sent_at is not None:
                self.round_trip = min(self.round_trip, time.monotonic() - sent_at)
            (size,) = INT32.unpack(head)
            if not 4 <= size <= self._largest_frame:
                raise FrameError(f"{self.address} {strange_answer(bytes(head))}")
            answer = self._receive(size, deadline)
            if INT32.unpack_from(answer)[0] != correlation_id:
                raise FrameError(f"{self.address} responded to a different request")
        return answer

    @contextmanager
    def _closed_after_trouble(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise OutcomeUnknown(f"no response from {self.address}: {reason_of(error)}") from None
        except BaseException:
            self.close()
            raise

    def _receive(self, size: int, deadline: float) -> memoryview:
        buffer = room_for(size)
        filled = 0
        while filled < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self.socket.settimeout(left)
            count = self.socket.recv_into(buffer[filled:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            filled += count
        return buffer


def exchange_of(message: Any, *, lowest: int = 0, highest: int | None = None) -> Exchange:
    """Return one of `kafka.protocol`'s requests, of which versions from `lowest` to `highest` will do."""
    kind = type(message)
    answers = getattr(sys.modules[kind.__module__], kind.__name__.removesuffix("Request") + "Response")

    def encode(correlation_id: int, version: int, client_id: str) -> bytes:
        message.API_VERSION = version
        message.with_header(correlation_id=correlation_id, client_id=client_id)
        frame: bytes = message.encode(header=True, framed=True)
        return frame

    def decode(frame: memoryview, version: int) -> tuple[Any, int]:
        # kafka-python writes the code that decodes a version when it first meets one. Threads that do so together leave
        # code that never works, and a dead class in its table of answers: hence one thread, and not the table.
        with nullcontext() if (answers, version) in _known_answers else KAFKA_IMPORTS:
            try:
                answer = answers.decode(frame, version=version, header=True)
            except (ValueError, IndexError, struct.error) as error:
                raise FrameError(str(error)) from None
        _known_answers.add((answers, version))
        return answer, getattr(answer, "throttle_time_ms", 0) or 0

    top = kind.max_version if highest is None else highest
    return Exchange(Api(kind.API_KEY, kind.name, lowest, top), encode, decode)


def room_for(size: int) -> memoryview:
    """Return a buffer for a frame of the claimed size. Raises OSError if the system has not that much memory."""
    return memoryview(bytearray(size) if size <= _CLAIMED_BYTES else mmap.mmap(-1, size))


def reason_of(error: BaseException) -> str:
    """Return why a socket failed, for a message."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
