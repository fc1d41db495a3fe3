"""Blocking requests of a lane, run by background threads; what each returns is posted as an event.

One thread reads: inspections, leaders. Another does what may take long and must not delay the first: it trims logs,
fills offsets by transactions where markers are not allowed, and probes the end of a source log that returns nothing
more. Each connection is opened in a thread of its own: many are opened at once, and each takes several round trips.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import fetch, list_offsets, markers, produce
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP
from kmirror.cluster.protocol.read_up_to import Batches, NoBatches, ReadUpTo, Silence
from kmirror.cluster.protocol.wire import Api
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.stream import Stream
from kmirror.cluster.topics.trim import trim_compacted
from kmirror.cluster.writing.empty_transaction import EmptyTransactions
from kmirror.engine import lifeline
from kmirror.engine.clock import now
from kmirror.engine.histories.identity_check import destination_trouble
from kmirror.engine.histories.inspection import Inspector
from kmirror.engine.histories.judge import Facts, SourceMark, Trouble
from kmirror.engine.histories.stretches import Side
from kmirror.engine.lane.brokers.links import LinkKind
from kmirror.engine.spec import LaneSpec, filling_prefix, filling_transactional_ids
from kmirror.engine.threads import guarded_thread
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason
from kmirror.state.assignment import Assignment

Found = TypeVar("Found")
#: What a request has found, as an event for the lane, which gives it the time.
Answer = Callable[[float], None]
#: Returns None if nobody is to be told any more.
BackgroundRequest = Callable[[], Answer | None]
#: Each kind of connection: its cluster, the requests that it needs, and the size of its buffers (None: the lane's).
_KINDS: dict[LinkKind, tuple[Side, tuple[Api, ...], int | None]] = {
    "source": ("source", (fetch.API,), None),
    "ahead": ("source", (fetch.API,), 640 << 10),
    "destination": ("destination", (produce.API,), None),
    "fill": ("destination", (markers.API, list_offsets.API), 64 << 10),
}
#: The most buffers for reuse of all connections that read ahead.
_SPARE_AHEAD = 32
_PROBE_PAUSE = 0.5
_PAUSE = 1.0
#: How long known leaders are used to read log ends, before metadata is requested again.
_LEADERS_SECONDS = 60.0
#: How long one filling request begins transactions: small gaps and other requests wait no longer for large gaps.
_FILL_SECONDS = 0.1


class BackgroundRequests:
    """Run background requests for one lane, of which each posts one callback, with the time as the last argument.

    `broken` receives an unexpected exception, after which that thread runs no more requests.
    """

    def __init__(
        self,
        spec: LaneSpec,
        source: ClientConfig,
        destination: ClientConfig,
        broken: Callable[[Exception], None],
        post: Callable[[Answer], None],
        *,
        stream_bytes: int,
    ) -> None:
        self._spec = spec
        self._post = post
        self._configs = {"source": source, "destination": destination}
        self._stream_bytes = stream_bytes
        self._spare_ahead: deque[bytearray] = deque(maxlen=_SPARE_AHEAD)
        self._reads: queue.SimpleQueue[BackgroundRequest | None] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[BackgroundRequest | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._broken = broken
        #: The connections of `connect`: some are handed over when nobody takes them any more.
        self._opened: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._opening = threading.Lock()
        read_source, self._read_client = ClusterClient(source), ClusterClient(destination)
        self._inspector = Inspector(read_source, self._read_client)
        self._leaders: tuple[ClusterMetadata | None, float] = None, 0.0
        self._source, self._destination = ClusterClient(source), ClusterClient(destination)
        self._transactions: dict[int, EmptyTransactions] = {}
        reads = partial(self._serve, self._reads, read_source, self._read_client)
        writes = partial(self._serve, self._writes, self._source, self._destination)
        self._reading = guarded_thread(reads, "kmirror-reads", broken)
        self._writing = guarded_thread(writes, "kmirror-writes", broken)

    def start(self) -> None:
        """Start both threads."""
        self._reading.start()
        self._writing.start()

    def stop(self) -> None:
        """Stop both threads after their current requests, which wait no longer than they must; drop all others."""
        self._stopping.set()
        self._reads.put(None)
        self._writes.put(None)

    def join(self, timeout: float) -> None:
        """Wait until nothing more is changed, and close all connections that were opened.

        Who reads from a cluster that does not answer is not waited for.
        """
        self._writing.join(timeout)
        with self._opening:
            for connection in self._opened:
                connection.close()
        for transactions in tuple(self._transactions.values()):
            transactions.close()

    def _serve(
        self, requests: queue.SimpleQueue[BackgroundRequest | None], source: ClusterClient, destination: ClusterClient
    ) -> None:
        with source, destination:
            while (background_request := requests.get()) is not None and not self._stopping.is_set():
                self._answer(background_request)

    def _answer(self, background_request: BackgroundRequest) -> None:
        if (answer := background_request()) is not None:
            self._post(answer)

    def _ask(
        self,
        requests: queue.SimpleQueue[BackgroundRequest | None],
        find: Callable[[], Found],
        failed: Callable[[KmirrorError | OutcomeUnknown], Found],
        done: Callable[[Found, float], None],
    ) -> None:
        """Have a thread call `find`, or `failed` with what it raises; `done` takes what either returns."""

        def background_request() -> Answer:
            try:
                found = find()
            except (KmirrorError, OutcomeUnknown) as error:
                found = failed(error)
            return partial(done, found)

        requests.put(background_request)

    def inspect(
        self,
        assignments: Sequence[Assignment],
        marks: Mapping[Assignment, SourceMark],
        done: Callable[[list[Facts], float], None],
    ) -> None:
        """Inspect these partitions; `marks` as in `Inspector`."""

        def failed(error: KmirrorError | OutcomeUnknown) -> list[Facts]:
            reason = getattr(error, "reason", None) or Reason.SOURCE_UNREACHABLE
            return [Facts(trouble=Trouble(reason, str(error)))] * len(assignments)

        self._ask(self._reads, partial(self._inspector.inspect, assignments, marks), failed, done)

    def ask_for_leaders(self, topics: Collection[str], done: Callable[[ClusterMetadata | None, float], None]) -> None:
        """Ask a source broker, another one each time, who leads these topics; None while nothing is known."""
        self._ask(self._reads, partial(self._inspector.leaders.ask_next, topics), lambda _: None, done)

    def read_log_ends(
        self, partitions: Sequence[TopicPartition], done: Callable[[Mapping[TopicPartition, int | None], float], None]
    ) -> None:
        """Read the log end offsets at the destination: None for a partition that is gone; unknown ones are left out."""

        def ends() -> dict[TopicPartition, int | None]:
            at_end = dict.fromkeys(partitions, LATEST)
            found = self._read_client.list_offsets(at_end, log_end=True, metadata=self._leaders_of(partitions))
            known = {p: answer.offset for p, answer in found.items() if answer.offset is not None}
            gone = {p for p, answer in found.items() if answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION}
            return known | dict.fromkeys(gone)

        self._ask(self._reads, ends, lambda _: {}, done)

    def _leaders_of(self, partitions: Sequence[TopicPartition]) -> ClusterMetadata:
        """Return the leaders of these destination partitions, at most a minute old."""
        known, asked_at = self._leaders
        topics = {partition.topic for partition in partitions}
        if known is None or now() - asked_at > _LEADERS_SECONDS or not topics <= known.topics.keys():
            known = self._read_client.metadata(topics)
            self._leaders = known, now()
        return known

    def connect(
        self,
        kind: LinkKind,
        node_id: int,
        done: Callable[[Stream, tuple[int, ...], float], None],
        failed: Callable[[str, Reason | None, float], None],
    ) -> None:
        """Connect to a broker; `done` takes the stream and the API versions to use on it."""

        def background_request() -> Answer | None:
            inspector, side = self._inspector, _KINDS[kind][0]
            metadata = inspector.source_metadata if side == "source" else inspector.destination_metadata
            broker = metadata.brokers.get(node_id) if metadata else None
            if broker is None:
                return partial(failed, f"broker {node_id} is not in the cluster's metadata", None)
            connection = None
            try:
                connection = Connection.open(broker.host, broker.port, self._configs[side])
                with self._opening:
                    self._opened.add(connection)
                    if self._stopping.is_set():
                        connection.close()
                        return None
                if side == "destination":
                    # a fetch proves its topic by the id, but nothing asks whom batches go to
                    connection.require_cluster()
                stream, versions = self._stream(kind, connection)
            except (KmirrorError, OutcomeUnknown) as error:
                if connection is not None:  # a broker that lacks a version
                    connection.close()
                return partial(failed, f"the {side}: {error}", getattr(error, "reason", None))
            return partial(done, stream, versions)

        lifeline.start_beside(
            guarded_thread(partial(self._answer, background_request), "kmirror-connect", self._broken)
        )

    def _stream(self, kind: LinkKind, connection: Connection) -> tuple[Stream, tuple[int, ...]]:
        _, apis, buffer_bytes = _KINDS[kind]
        versions = tuple(connection.version_for(api) for api in apis)
        if buffer_bytes is None:
            connection.measure_round_trip(LONG_ROUND_TRIP)
        spare = self._spare_ahead if kind == "ahead" else None
        return Stream(connection, buffer_bytes or self._stream_bytes, spare), versions

    def forget_limits(self, node_id: int) -> None:
        """Have the settings of a destination broker read again by the next inspection."""
        self._inspector.forget_limits(node_id)

    def trim(
        self,
        offsets: Mapping[TopicPartition, int],
        done: Callable[[Mapping[TopicPartition, Trouble | None], float], None],
    ) -> None:
        """Delete the destination's records below these offsets, whatever the cleanup policy of the topics."""

        def trimmed() -> dict[TopicPartition, Trouble | None]:
            found = trim_compacted(self._destination, offsets)
            return {p: _trim_trouble(p, end.error_code) for p, end in found.items()}

        def failed(error: KmirrorError | OutcomeUnknown) -> dict[TopicPartition, Trouble | None]:
            return dict.fromkeys(offsets, destination_trouble(error, "trimming"))

        self._ask(self._writes, trimmed, failed, done)

    def probe_log_end(
        self, source: TopicPartition, offset: int, done: Callable[[ReadUpTo | None, float], None]
    ) -> None:
        """Find out what the source has from `offset` on by reading this partition alone; None if that fails.

        That it has nothing more must be proved twice, with a pause.
        """

        def read() -> ReadUpTo | None:
            reader = PartitionReader(self._source, source, read_committed=True)
            try:
                found = reader.read(offset)
                if isinstance(found, NoBatches):
                    self._stopping.wait(_PROBE_PAUSE)
                    first, found = found, reader.read(offset)
                    if isinstance(found, NoBatches) and found != first:
                        return None
            except CorruptBatchError as error:
                return Silence(offset, offset, str(error), str(error))
            if isinstance(found, Batches) and found.headers[0].next_offset > max(offset, found.high_watermark or 0):
                return _above_high_watermark(found)
            return found

        self._ask(self._writes, read, lambda _: None, done)

    def settle(
        self, lanes: Sequence[int], done: Callable[[float], None], troubled: Callable[[Trouble, float], None]
    ) -> None:
        """Fence earlier runs of lanes that filled by transactions, and wait for the end of their open transactions."""

        def background_request() -> Answer | None:
            return done if all(self._settle(lane, troubled) for lane in lanes) else None

        self._writes.put(background_request)

    def _transactions_of(self, lane: int) -> EmptyTransactions:
        ids = filling_transactional_ids(self._spec.mirror, lane)
        return self._transactions.setdefault(lane, EmptyTransactions(self._destination, ids))

    def _settle(self, lane: int, troubled: Callable[[Trouble, float], None]) -> bool:
        """Settle one lane's transactions, however long it takes; return False if this lane ends before."""
        while not self._stopping.is_set():
            try:
                self._transactions_of(lane).settle()
            except (KmirrorError, OutcomeUnknown) as error:
                self._post(partial(troubled, self._fill_trouble(error)))
                self._stopping.wait(_PAUSE)
            else:
                return True
        return False

    def fill(
        self,
        gaps: Mapping[TopicPartition, int],
        may_continue: Callable[[], bool],
        filled: Callable[[Mapping[TopicPartition, tuple[int, int | None]], float], None],
        troubled: Callable[[Trouble, float], None],
        uncertain: Callable[[Trouble, float], None],
    ) -> None:
        """Fill offsets of several partitions by this lane's transactions, at most so many of each.

        Ends with `filled`, how many of each and where its log ends then, None if unknown; or with `uncertain`, if an
        unknown number was filled and nothing is in flight any more. Until then `troubled` reports why it takes long.
        """
        lane = self._spec.lane

        def background_request() -> Answer | None:
            transactions = self._transactions_of(lane)
            try:
                # any that another run of this lane may have left open were settled before (`settle`)
                transactions.prepare(max(gaps.values()))
            except (KmirrorError, OutcomeUnknown) as error:
                return partial(uncertain, self._fill_trouble(error))
            until = now() + _FILL_SECONDS
            try:
                counts = transactions.fill(
                    gaps, lambda: now() < until and may_continue() and not self._stopping.is_set()
                )
                ends = self._destination.list_offsets(dict.fromkeys(gaps, LATEST), log_end=True)
            except (KmirrorError, OutcomeUnknown) as error:
                trouble = self._fill_trouble(error)
                self._post(partial(troubled, trouble))
                return partial(uncertain, trouble) if self._settle(lane, troubled) else None
            return partial(filled, {partition: (counts[partition], ends[partition].offset) for partition in gaps})

        self._writes.put(background_request)

    def _fill_trouble(self, error: KmirrorError | OutcomeUnknown) -> Trouble:
        if isinstance(error, BrokerError) and error.code in {
            Code.TOPIC_AUTHORIZATION_FAILED,
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }:
            message = (
                "offsets without records cannot be filled: that takes ALTER on the cluster or, for transactions, WRITE "
                f"on the transactional ids {filling_prefix(self._spec.mirror)}* and on the topic ({error})"
            )
            return Trouble(Reason.NOT_AUTHORIZED, message, True)
        return destination_trouble(error, "filling by transactions")


def _above_high_watermark(found: Batches) -> Silence:
    """Return what is wrong with batches that the broker returns although they are not replicated by its own account."""
    first = found.headers[0]
    what = f"the broker sends a batch with offsets {first.base_offset} to {first.next_offset - 1}"
    problem = f"{what}, above its own high watermark {found.high_watermark}"
    return Silence(found.offset, found.high_watermark or 0, problem, problem)


def _trim_trouble(partition: TopicPartition, code: int) -> Trouble | None:
    if not code:
        return None
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to DELETE records of mirror topic {partition.topic}", True)
    return Trouble(Reason.DESTINATION_UNREACHABLE, f"trimming {partition}: {code_name(code)} ({code})")
