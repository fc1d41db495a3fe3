"""Control of a lane: whether it may still write, since no other has taken its place; and its progress reports.

A thread follows `__kmirror_state` with a long poll. Each time it has read to the end without finding a newer claim, the
lane may write for `ttl` from the moment *that request was sent*. A successor writes its claim first and waits for
`ttl` before it writes to partitions; so no two lanes ever write at once, whatever the clocks of their machines say. A
claim is

* an engine record of another lease, or one that assigns this lane to a later incarnation, or that is stopping;
* a progress record of the same lane by a later incarnation (Spark starts a lost task again by itself).

The engine's record also names the last change of its work (`LaneChangeRecord`) that the lane must apply. Changes are
read here, in order; while one is missing the lane may not write, and it ends if that lasts: a task that Spark restarts
begins with its original work, and must not write to partitions revoked since.

Another thread writes the lane's progress there, about once a second while something changes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.reports.pages import Pages
from kmirror.engine.lane.reports.row_reports import RowChanges
from kmirror.engine.spec import LaneSpec
from kmirror.engine.threads import guarded_thread
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.record_kinds import Unknown, decode, encode, encode_key
from kmirror.state.records import (
    FRESH_SECONDS,
    EngineRecord,
    EngineState,
    LaneRowsRecord,
    LaneRun,
    ProgressRecord,
)
from kmirror.words import counted

STATE_PARTITION = TopicPartition("__kmirror_state", 0)
_POLL_MS = 500
_PROGRESS_SECONDS = 1.0
_SIGN_OF_LIFE_SECONDS = 2.0
#: Without an engine record for this long a lane ends by itself: its driver is gone or stuck.
_ENGINE_SILENCE_SECONDS = 30.0
#: Heartbeats and progress are written about once a second each: the last claim is among this many records.
_LOOK_BACK = 200
#: A change and the engine's record that names it are written together, but may be read one after the other.
_BEHIND_SECONDS = 3.0
_PAUSE = 0.2
#: So many records at once are mostly of other mirrors, which write hundreds a second: then they are read less often.
_MANY_RECORDS, _MANY_PAUSE = 10, 0.2
#: Brokers reject a timestamp far ahead of their clock (an hour since 4.0), but never this one (KIP-32).
_NO_TIMESTAMP = -1
#: By default brokers accept batches of up to 1 MB.
_BATCH_BYTES = 256 << 10


class LaneControl:
    """Follow the claims on one lane, and report its progress. `deadline` and `ended` may be read from any thread."""

    def __init__(
        self,
        spec: LaneSpec,
        attempt: int,
        config: ClientConfig,
        row_changes: Callable[[], RowChanges],
        broken: Callable[[Exception], None],
    ) -> None:
        self.spec = spec
        self.attempt = attempt
        #: Seconds of `clock.now` until which this lane may write.
        self.deadline = 0.0
        #: Why this lane must end: (one of LaneResult.ended, a sentence); None while it may continue.
        self.ended: tuple[str, str] | None = None
        #: True while the engine's record says that no run that this one replaced can still write.
        self.is_alone = False
        #: When our first progress record was acknowledged: predecessors stop within `ttl` after it.
        self.claimed_at: float | None = None
        self._client = ClusterClient(config)
        self._row_changes = row_changes
        self._pages = Pages()
        #: Set when another run of this lane has stored a page: it may have overwritten one of ours.
        self._page_is_overwritten = False
        #: True while there are unreported row changes; and the revisions in the last report.
        self._has_changes = False
        self._seen_within = FRESH_SECONDS
        self._reported_revisions: tuple[int, int] | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        #: Whether to report once more at the end.
        self._reports_at_end = False
        self._host = socket.gethostname()
        self._engine_seen = now()
        self._tail = PartitionFollower(self._client, STATE_PARTITION, look_back=_LOOK_BACK)
        #: The keys of records for this lane; all others are skipped.
        kinds = (("engine", spec.mirror), *((kind, spec.mirror, spec.lane) for kind in ("change", "progress")))
        self._keys = frozenset(encode_key(key) for key in kinds)
        #: What the keys of this lane's pages begin with.
        self._page_prefix = encode_key(("rows", spec.mirror, spec.lane))[:-1] + b","
        self._owner: EngineRecord | None = None
        self._read_once = False
        #: True while the lane fills offsets by transactions. Its successors must know: it may do so only once a stored
        #: report says so (`transactions_announced`).
        self.fills_by_transactions = False
        self.transactions_announced = False
        self.on_change: Callable[[], None] = lambda: None
        self.counts = Counts()
        #: Bytes fetched since the lane started, and for how many seconds it was throttled.
        self.usage: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        self.path_limit: Callable[[], tuple[int, int]] = lambda: (0, 0)
        #: Why a source broker accepted no more connections, the first time.
        self.connections_refused: str | None = None
        #: The last change that was read, and what applies it.
        self.revision = 0
        self.on_lane_change: Callable[[LaneChangeRecord], None] = lambda _: None
        #: The last change that the lane has applied, and the last whose revoked partitions it has released; the
        #: callback takes the second when a report with it is stored.
        self.revisions: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.on_report_stored: Callable[[int], None] = lambda _: None
        self._behind_since: float | None = None
        self._follower = guarded_thread(self._follow, "kmirror-control", broken)
        self._reporter = guarded_thread(self._report_all, "kmirror-progress", broken)
        self._report_client = ClusterClient(config)

    def start(self) -> None:
        """Start following and reporting."""
        self._follower.start()
        self._reporter.start()

    def stop(self, *, final_report: bool) -> None:
        """Stop both threads; the last thing that one does is to report the partitions' state, if `final_report`.

        A thread that is connecting takes longer than this waits: each closes its own connections when it ends.
        """
        self._reports_at_end = final_report
        self._stop.set()
        self._wake.set()
        self._follower.join(timeout=_POLL_MS / 1000 + 1)
        self._reporter.join(timeout=2 + (self._report_client.config.request_timeout_ms / 1000 if final_report else 0))

    @property
    def _ours(self) -> EngineRecord | None:
        """The last record of the engine that this lane belongs to, while none has taken over."""
        owner = self._owner
        return owner if owner is not None and owner.lease_id == self.spec.lease_id else None

    @property
    def bytes_per_second(self) -> int | None:
        """How much the lane may fetch; None: unlimited; 0 while its share is unknown. For any thread."""
        ours = self._ours
        if ours is None:
            return 0
        return None if ours.throttle is None else ours.throttle.get(self.spec.lane, 0)

    @property
    def connections(self) -> int:
        """How many connections the lane may open to a broker. For any thread."""
        ours = self._ours
        return 1 if ours is None else max(1, ours.connections or 1)

    @property
    def buffer_bytes(self) -> int | None:
        """How many bytes the lane may hold of what it has fetched; None while that is unknown. For any thread."""
        ours = self._ours
        return None if ours is None else ours.buffer_bytes

    @property
    def first_topics(self) -> tuple[str, ...]:
        """The topics that are fetched before all others; empty: no priority. For any thread."""
        ours = self._ours
        return () if ours is None else ours.first_topics or ()

    def report_soon(self) -> None:
        """Report progress now rather than within the second."""
        self._wake.set()

    def _follow(self) -> None:
        with self._client, closing(self._tail):
            while not self._stop.is_set() and self.ended is None:
                try:
                    self._poll()
                except (KmirrorError, OutcomeUnknown):
                    self._stop.wait(_PAUSE)
                if self.ended is None and now() - self._engine_seen > _ENGINE_SILENCE_SECONDS:
                    self._end("LOST_ENGINE", f"no record of the engine for {_ENGINE_SILENCE_SECONDS:.0f} s")

    def _poll(self) -> None:
        sent_at = now()
        answer = self._tail.poll(_POLL_MS if self._read_once else 0)
        for record in answer.records:
            self._read(record)
        if answer.reached_end:
            is_first, self._read_once = not self._read_once, True
            self._decide(sent_at)
            if len(answer.records) >= _MANY_RECORDS and not is_first:
                self._stop.wait(_MANY_PAUSE)

    def _decide(self, sent_at: float) -> None:
        """Decide by all claims there are whether this lane may write."""
        spec, owner = self.spec, self._owner
        if owner is None:
            return
        granted = owner.lanes.get(spec.lane)
        if owner.lease_id != spec.lease_id:
            self._end("FENCED", f"another engine took over on {owner.host} (process {owner.pid})")
        elif owner.state is not EngineState.RUNNING or granted is None:
            self._end("STOPPED", "the engine stopped it")
        elif granted > (spec.generation, self.attempt):
            self._end("SUPERSEDED", "a later incarnation of this lane took over")
        elif self._is_behind(owner, granted.generation):
            return
        # Spark started a later attempt by itself: `settle_ms` says nothing about the one before it
        self.is_alone = granted == (spec.generation, self.attempt) and not owner.settle_ms
        if self.ended is None:
            first = not self.deadline
            self.deadline = sent_at + spec.ttl_ms / 1000
            if first:
                self.on_change()

    def _is_behind(self, owner: EngineRecord, generation: int) -> bool:
        """Return True if a change is missing; end the lane if that lasts."""
        number = (owner.revisions or {}).get(self.spec.lane, 0) if generation == self.spec.generation else 0
        if number <= self.revision:
            self._behind_since = None
            return False
        self._behind_since = self._behind_since or now()
        if now() - self._behind_since > _BEHIND_SECONDS:
            self._end("OUTDATED", f"its work was changed {counted(number, 'time')}, but it has read {self.revision}")
        return True

    def _read(self, record: Record) -> None:
        if record.key is None:
            return
        if record.key.startswith(self._page_prefix):
            page = decode(record.key, record.value)
            self._page_is_overwritten |= not isinstance(page, LaneRowsRecord) or page.run != self._run
            return
        if record.key not in self._keys:
            return
        found = decode(record.key, record.value)
        spec = self.spec
        if isinstance(found, EngineRecord) and found.mirror == spec.mirror:
            self._engine_seen = now()
            self._owner = found
        elif isinstance(found, Unknown) and found.key == ("engine", spec.mirror):
            self._end("FENCED", "an engine of a newer version took over")
        elif (
            isinstance(found, LaneChangeRecord)
            and (found.mirror, found.lane) == (spec.mirror, spec.lane)
            and (found.lease_id, found.generation, found.revision)
            == (spec.lease_id, spec.generation, self.revision + 1)
        ):
            self.revision = found.revision
            self.on_lane_change(found)
        elif (
            isinstance(found, ProgressRecord)
            and found.mirror == spec.mirror
            and found.lane == spec.lane
            and found.lease_id == spec.lease_id
            and (found.generation, found.attempt) > (spec.generation, self.attempt)
        ):
            self._end("SUPERSEDED", "a later incarnation of this lane took over")

    def _end(self, how: str, message: str) -> None:
        if self.ended is None:
            self.ended = (how, message)
            self.deadline = 0.0
            self.on_change()

    def _report_all(self) -> None:
        with self._report_client:
            self._report_loop()
            if self._reports_at_end:
                with suppress(KmirrorError, OutcomeUnknown):
                    self._report(self._observe())

    def _report_loop(self) -> None:
        written = 0.0
        while not self._stop.is_set():
            revisions = self._observe()
            must_announce = self.fills_by_transactions and not self.transactions_announced
            is_new = self._has_changes or revisions != self._reported_revisions or must_announce
            if self.claimed_at is None or is_new or now() - written > _SIGN_OF_LIFE_SECONDS:
                try:
                    self._report(revisions)
                    written = now()
                    if self.claimed_at is None:
                        self.claimed_at = written
                        self.on_change()
                except (KmirrorError, OutcomeUnknown):
                    self._stop.wait(_PAUSE)
                    continue
            self._wake.wait(_PROGRESS_SECONDS)
            self._wake.clear()

    def _observe(self) -> tuple[int, int]:
        """Take the partitions' row changes; return the revisions that they include at least."""
        revisions, changes = self.revisions(), self._row_changes()
        self._pages.take(changes.changed, changes.gone, now())
        self._seen_within = changes.seen_within
        if self._page_is_overwritten:
            self._page_is_overwritten = False
            self._pages.store_again()
        pages = self._pages.unstored()
        self._has_changes = self._has_changes or bool(changes) or bool(pages)
        return revisions

    @property
    def _run(self) -> LaneRun:
        return LaneRun(self.spec.lease_id, self.spec.generation, self.attempt)

    def _report(self, revisions: tuple[int, int]) -> None:
        """Write the changed pages, then a report that refers to them.

        Raises:
            KmirrorError, OutcomeUnknown: not everything was written, or this is unknown.
        """
        spec, (applied, released), run = self.spec, revisions, self._run
        (fetched_bytes, throttled_seconds), counts = self.usage(), self.counts
        pages = self._pages.unstored()
        report = ProgressRecord(
            spec.mirror,
            spec.lane,
            *run,
            self._host,
            os.getpid(),
            now_ms(),
            tuple(self._pages.loose.values()),
            self.fills_by_transactions,
            applied,
            released,
            fetched_bytes,
            int(throttled_seconds * 1000),
            counts.batches_copied,
            counts.batches_taken_apart,
            counts.batches_merged,
            counts.offsets_filled,
            counts.fetches.so_far,
            counts.appends.so_far,
            self._pages.count,
            *self.path_limit(),
            self.connections_refused,
            int(self._seen_within * 1000),
        )
        stored = [
            LaneRowsRecord(spec.mirror, spec.lane, number, *run, tuple(rows.values())) for number, rows in pages.items()
        ]
        for some in _by_size([*map(encode, stored), encode(report)]):
            records = [Record(offset, _NO_TIMESTAMP, *one) for offset, one in enumerate(some)]
            # a fifth of the bytes: whoever reads the state from afar waits for them
            batch = make_batch(records, compression_type="gzip")
            append_to(self._report_client, STATE_PARTITION, memoryview(batch))
        self._pages.stored(pages)
        self._has_changes, self._reported_revisions = False, revisions
        self.on_report_stored(released)
        if report.fills_by_transactions and not self.transactions_announced:
            self.transactions_announced = True
            self.on_change()


def _by_size(encoded: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Group records into batches that brokers accept."""
    some: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in encoded:
        if some and size + len(value) > _BATCH_BYTES:
            yield some
            some, size = [], 0
        some.append((key, value))
        size += len(value)
    yield some


def append_to(client: ClusterClient, partition: TopicPartition, batch: memoryview) -> int:
    """Append one batch without sequence numbers and return its base offset.

    Raises:
        BrokerError: refused.
        OutcomeUnknown: sent, not answered.
    """
    leader = client.metadata([partition.topic]).leader_address(partition)
    if leader is None:
        raise OutcomeUnknown(f"{partition} has no leader")
    connection = client.connect(leader.node_id, leader.host, leader.port)
    append = produce.Append(partition.topic, leader.topic_id, partition.partition, batch)
    answers = connection.request(produce.exchange([append], client.config.request_timeout_ms))
    answer: produce.AppendAnswer | None = answers.get(partition)
    if answer is None:
        raise OutcomeUnknown(f"{connection.address} responded for different partitions")
    if answer.error_code:
        raise BrokerError(answer.error_code, code_name(answer.error_code), f"appending to {partition}")
    return answer.base_offset
