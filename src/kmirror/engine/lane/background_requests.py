"""What a lane needs that waits for clusters: done by two threads of their own, reported as events.

One looks: inspections, leaders, connections. The other changes or doubts: it trims logs, fills offsets by transactions
where markers are not allowed, and looks twice at a source that seems to have nothing more to give. That may take long,
and must not keep the first from its work.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.connection import Connection, Stream
from kmirror.cluster.empty_transaction import EmptyTransactions
from kmirror.cluster.protocol import fetch, list_offsets, markers, produce
from kmirror.cluster.protocol.batch import CorruptBatchError, batch_headers
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchedPartition
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.trim import trim_compacted
from kmirror.engine.clock import now
from kmirror.engine.histories.inspection import Inspector
from kmirror.engine.histories.judge import Facts, Trouble
from kmirror.engine.lane.links import Side
from kmirror.engine.spec import LaneSpec
from kmirror.engine.threads import guarded_thread
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason
from kmirror.state.assignment import Assignment

BackgroundRequest = Callable[[], None]
_SOURCE_RECEIVE_BUFFER = 4 << 20
_DESTINATION_SEND_BUFFER = 4 << 20
_FILL_BUFFER = 64 << 10
_SIDES: dict[Side, str] = {"source": "source", "destination": "destination", "fill": "destination"}
_END_LOOK_PAUSE = 0.5
_PAUSE = 1.0
#: So long the leaders of logs whose ends are looked at are not asked for again, unless they have moved.
_LEADERS_SECONDS = 60.0
#: Transactions that fill are ended so often at least, so that the lane learns how far they are.
_ROUNDS = 50


class BackgroundRequests:
    """Run background requests for one lane; `done` callbacks run in their thread and should only pass events on.

    `broken` receives an unexpected error, after which that thread runs no more requests.
    """

    def __init__(
        self,
        spec: LaneSpec,
        source: ClientConfig,
        destination: ClientConfig,
        broken: Callable[[Exception], None],
        *,
        stream_bytes: int,
    ) -> None:
        self._spec = spec
        self._configs = {"source": source, "destination": destination}
        self._stream_bytes = stream_bytes
        self._looks: queue.SimpleQueue[BackgroundRequest | None] = queue.SimpleQueue()
        self._changes: queue.SimpleQueue[BackgroundRequest | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            guarded_thread(run, name, broken)
            for run, name in ((self._run_looks, "kmirror-looks"), (self._run_changes, "kmirror-changes"))
        ]

    def start(self) -> None:
        """Begin to run requests."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the requests under way; those that could wait longer stop waiting."""
        self._stopping.set()
        self._looks.put(None)
        self._changes.put(None)

    def join(self, timeout: float) -> None:
        """Wait for both threads to end."""
        for thread in self._threads:
            thread.join(timeout)

    def _run_looks(self) -> None:
        spec, configs = self._spec, self._configs
        with ClusterClient(configs["source"]) as source, ClusterClient(configs["destination"]) as destination:
            self._inspector = Inspector(source, destination, spec.source_cluster_id)
            self._looked_at = destination
            self._leaders: tuple[ClusterMetadata | None, float] = None, 0.0
            while (background_request := self._looks.get()) is not None:
                background_request()

    def _run_changes(self) -> None:
        configs = self._configs
        with ClusterClient(configs["source"]) as source, ClusterClient(configs["destination"]) as destination:
            self._source, self._destination = source, destination
            self._transactions: dict[str, EmptyTransactions] = {}
            while (background_request := self._changes.get()) is not None:
                background_request()

    # -- looks ----------------------------------------------------------------------------------------------------

    def inspect(self, assignments: Sequence[Assignment], done: Callable[[list[Facts]], None]) -> None:
        """Gather the facts of these partitions."""

        def background_request() -> None:
            try:
                facts = self._inspector.inspect(assignments)
            except (KmirrorError, OutcomeUnknown) as error:
                reason = getattr(error, "reason", None) or Reason.SOURCE_UNREACHABLE
                facts = [Facts(trouble=Trouble(reason, str(error)))] * len(assignments)
            done(facts)

        self._looks.put(background_request)

    def look_at_ends(
        self, partitions: Sequence[TopicPartition], done: Callable[[Mapping[TopicPartition, int | None]], None]
    ) -> None:
        """Look up the true ends of the destination's logs: None of one that is gone; what is not known is left out."""

        def background_request() -> None:
            try:
                leaders = self._leaders_of(partitions)
                found = self._looked_at.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True, metadata=leaders)
            except (KmirrorError, OutcomeUnknown):
                found = {}
            ends = {p: answer.offset for p, answer in found.items() if answer.offset is not None}
            gone = {p for p, answer in found.items() if answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION}
            done(ends | dict.fromkeys(gone))

        self._looks.put(background_request)

    def _leaders_of(self, partitions: Sequence[TopicPartition]) -> ClusterMetadata:
        """Return who leads these partitions at the destination, as it was within the last minute."""
        known, asked_at = self._leaders
        topics = {partition.topic for partition in partitions}
        if known is None or now() - asked_at > _LEADERS_SECONDS or not topics <= known.topics.keys():
            known = self._looked_at.metadata(topics)
            self._leaders = known, now()
        return known

    def connect(
        self,
        side: Side,
        node_id: int,
        done: Callable[[Stream, tuple[int, ...]], None],
        failed: Callable[[str, Reason | None], None],
    ) -> None:
        """Connect to a broker; `done` takes the stream and the versions of the requests it is for."""

        def background_request() -> None:
            inspector = self._inspector
            metadata = inspector.source_metadata if side == "source" else inspector.destination_metadata
            broker = metadata.brokers.get(node_id) if metadata else None
            if broker is None:
                failed(f"broker {node_id} is not there", None)
                return
            config = self._configs["source" if side == "source" else "destination"]
            try:
                connection = Connection.open(broker.host, broker.port, config)
                stream, versions = self._stream(side, connection)
            except (KmirrorError, OutcomeUnknown) as error:
                failed(f"the {_SIDES[side]}: {error}", error.reason if isinstance(error, KmirrorError) else None)
            else:
                done(stream, versions)

        self._looks.put(background_request)

    def _stream(self, side: Side, connection: Connection) -> tuple[Stream, tuple[int, ...]]:
        ask = connection.version_for
        if side == "source":
            versions: tuple[int, ...] = (ask(fetch.API_KEY, fetch.LOWEST_VERSION, fetch.HIGHEST_VERSION, "Fetch"),)
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOURCE_RECEIVE_BUFFER)
            return Stream(connection, self._stream_bytes), versions
        if side == "fill":
            versions = (
                ask(markers.API_KEY, markers.LOWEST_VERSION, markers.HIGHEST_VERSION, "WriteTxnMarkers"),
                ask(list_offsets.API_KEY, list_offsets.LOWEST_VERSION, list_offsets.HIGHEST_VERSION, "ListOffsets"),
            )
            return Stream(connection, _FILL_BUFFER), versions
        versions = (ask(produce.API_KEY, produce.LOWEST_VERSION, produce.HIGHEST_VERSION, "Produce"),)
        # Brokers open a small window (socket.receive.buffer.bytes). What waits for it should wait in the kernel,
        # which reads on at once; left to itself that holds a part of a request, and the rest waits for this thread.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _DESTINATION_SEND_BUFFER)
        return Stream(connection, self._stream_bytes), versions

    # -- changes and doubts ---------------------------------------------------------------------------------------

    def trim(
        self, offsets: Mapping[TopicPartition, int], done: Callable[[Mapping[TopicPartition, Trouble | None]], None]
    ) -> None:
        """Delete the destination's records below these offsets, whatever the topics' cleanup policy."""

        def background_request() -> None:
            found: dict[TopicPartition, Trouble | None]
            try:
                trimmed = trim_compacted(self._destination, offsets)
                found = {p: _trim_trouble(p, end.error_code) for p, end in trimmed.items()}
            except (KmirrorError, OutcomeUnknown) as error:
                trouble = _trouble(error, "trimming")
                found = dict.fromkeys(offsets, trouble)
            done(found)

        self._changes.put(background_request)

    def look_beyond(self, source: TopicPartition, offset: int, done: Callable[[int | None, str | None], None]) -> None:
        """Find out whether the source has nothing from `offset` on: up to where, or None if it has something.

        A fetch of this partition alone brings a batch if there is one; asked twice, with a pause. Where what it brings
        is no batch with that offset or a later one, `done` takes why as well.
        """

        def background_request() -> None:
            until: int | None = None
            problem: str | None = None
            try:
                reader = PartitionReader(self._source, source, read_committed=True)
                for attempt in range(2):
                    found = reader.fetch(offset)
                    stable = found.last_stable_offset
                    if len(found.records) or stable is None or stable <= offset or (attempt and stable != until):
                        until, problem = None, _problem_of(found, offset) if len(found.records) else None
                        break
                    until = stable
                    self._stopping.wait(_END_LOOK_PAUSE)
            except (KmirrorError, OutcomeUnknown):
                until = None
            done(until, problem)

        self._changes.put(background_request)

    def settle(
        self, transactional_ids: Sequence[str], done: Callable[[], None], troubled: Callable[[Trouble], None]
    ) -> None:
        """Fence earlier lanes that filled by transactions, and wait for the end of what they left open."""

        def background_request() -> None:
            if all(self._settle(transactional_id, troubled) for transactional_id in transactional_ids):
                done()

        self._changes.put(background_request)

    def _settle(self, transactional_id: str, troubled: Callable[[Trouble], None]) -> bool:
        """Settle one, however long it takes; False when this lane ends before."""
        while not self._stopping.is_set():
            trouble = self._try_to_settle(transactional_id)
            if trouble is None:
                return True
            troubled(trouble)
            self._stopping.wait(_PAUSE)
        return False

    def _try_to_settle(self, transactional_id: str) -> Trouble | None:
        transactions = self._transactions.get(transactional_id) or EmptyTransactions(
            self._destination, transactional_id
        )
        try:
            transactions.settle()
        except (KmirrorError, OutcomeUnknown) as error:
            return _fill_trouble(error, transactional_id)
        self._transactions[transactional_id] = transactions
        return None

    def fill(
        self,
        transactional_id: str,
        gaps: Mapping[TopicPartition, int],
        may_go_on: Callable[[], bool],
        filled: Callable[[int], None],
        troubled: Callable[[Trouble], None],
        doubtful: Callable[[Trouble], None],
    ) -> None:
        """Fill offsets of several partitions by transactions, the same number of each.

        Ends with `filled(count)`; or with `doubtful`, when one more may have been filled than was told, and nothing is
        on its way any more. Until then `troubled` says why it takes long.
        """

        def background_request() -> None:
            if transactional_id not in self._transactions and (trouble := self._try_to_settle(transactional_id)):
                doubtful(trouble)
                return
            count = 0
            try:
                while count < min(_ROUNDS, *gaps.values()) and not self._stopping.is_set() and may_go_on():
                    self._transactions[transactional_id].fill_once(gaps)
                    count += 1
            except (KmirrorError, OutcomeUnknown) as error:
                trouble = _fill_trouble(error, transactional_id)
                troubled(trouble)
                if self._settle(transactional_id, troubled):
                    doubtful(trouble)
                return
            filled(count)

        self._changes.put(background_request)


def _fill_trouble(error: KmirrorError | OutcomeUnknown, transactional_id: str) -> Trouble:
    if isinstance(error, BrokerError) and error.code in {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }:
        message = (
            "offsets without records cannot be filled: neither ALTER on the cluster is granted nor all that "
            f"transactions need, which is WRITE on the transactional id {transactional_id} and on the topic ({error})"
        )
        return Trouble(Reason.NOT_AUTHORIZED, message, True)
    return _trouble(error, "filling by transactions")


def _problem_of(found: FetchedPartition, offset: int) -> str | None:
    """Say why an answer to a fetch of one partition takes it no further; None where it does."""
    reached: int | None = None
    try:
        for header in batch_headers(found.records):
            reached = header.next_offset
            if reached > max(offset, found.high_watermark or 0):
                what = f"the broker sends a batch of the offsets {header.base_offset} to {reached - 1}"
                return f"{what}, above its own high watermark {found.high_watermark}"
            if reached > offset:
                return None
    except CorruptBatchError as error:
        return str(error)
    if reached is None:
        return f"the broker sends the begin of a batch, {len(found.records)} bytes, and never the rest"
    return f"the broker sends batches up to offset {reached}, and none after it"


def _trouble(error: KmirrorError | OutcomeUnknown, what: str) -> Trouble:
    if isinstance(error, BrokerError) and error.code in {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
    }:
        return Trouble(Reason.NOT_AUTHORIZED, f"{what}: {error}", True)
    reason = error.reason if isinstance(error, KmirrorError) and error.reason else Reason.DESTINATION_UNREACHABLE
    return Trouble(reason, f"{what}: {error}")


def _trim_trouble(partition: TopicPartition, code: int) -> Trouble | None:
    if not code:
        return None
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to DELETE records of topic {partition.topic}", True)
    return Trouble(Reason.DESTINATION_UNREACHABLE, f"trimming {partition}: {code_name(code)} ({code})")
