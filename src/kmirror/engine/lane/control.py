"""What keeps a lane honest: it may write only while it sees that no one has taken its place.

A thread follows `__kmirror_state` with a long poll. Each time it has read to the end without meeting a newer claim, the
lane may write for `ttl` seconds from the moment *that request was sent*. A successor writes its claim first and
waits for `ttl` before it relies on the silence; so no two lanes ever write on the strength of their claims at once,
whatever the clocks of their machines say. A claim is

* an engine record of another lease, or one that has given this lane to a later incarnation, or that is stopping;
* a progress record of the same lane by a later incarnation (Spark starts a lost task again by itself).

The engine's record also says which change of its work (`LaneChangeRecord`) the lane has to go by. Changes are read
here, one after another; while one is missing the lane may not write, and it ends when that stays so: a task that Spark
starts again begins with the work that it was first given, and must not write to what it was to release since.

The lane's progress is written there by another thread, about once a second while something moves.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.records import Record, make_batch
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.tail import Tail
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.counts import Counts
from kmirror.engine.lane.pages import Pages
from kmirror.engine.lane.report import News
from kmirror.engine.spec import LaneSpec
from kmirror.engine.threads import guarded_thread
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown
from kmirror.state.records import (
    EngineRecord,
    EngineState,
    LaneChangeRecord,
    LaneRowsRecord,
    LaneRun,
    ProgressRecord,
    Unknown,
    decode,
    encode,
    encode_key,
)
from kmirror.words import counted

STATE_PARTITION = TopicPartition("__kmirror_state", 0)
_POLL_MS = 500
_PROGRESS_SECONDS = 1.0
_SIGN_OF_LIFE_SECONDS = 2.0
#: Without any sign of the engine for this long, a lane ends by itself: its driver is gone or stuck.
_ENGINE_SILENCE_SECONDS = 30.0
#: Heartbeats and progress come about once a second each: the last claim is among this many records.
_LOOK_BACK = 200
#: A change and the engine's record that names it are written together, and may still be read one after the other.
_BEHIND_SECONDS = 3.0
_PAUSE = 0.2
#: Brokers refuse a time that their clock is far behind (by an hour since 4.0), and this one nowhere: KIP-32.
_NO_TIMESTAMP = -1
#: Brokers take a batch of 1 MB at most, unless told otherwise.
_BATCH_BYTES = 256 << 10


class LaneControl:
    """Follow the claims on one lane, and publish its progress. `deadline` and `ended` may be read from any thread."""

    def __init__(
        self,
        spec: LaneSpec,
        attempt: int,
        config: ClientConfig,
        news: Callable[[], News],
        broken: Callable[[Exception], None],
    ) -> None:
        self.spec = spec
        self.attempt = attempt
        #: Seconds of `clock.now` until which this lane may write.
        self.deadline = 0.0
        #: Why this lane has to end: (one of LaneResult.ended, a sentence); None while it may go on.
        self.ended: tuple[str, str] | None = None
        #: True while the engine's record says that the time of all that it overruled for this run is over.
        self.is_alone = False
        #: When our own first progress record was acknowledged: from then on every predecessor's time runs out.
        self.claimed_at: float | None = None
        self._client = ClusterClient(config)
        self._news = news
        self._pages = Pages()
        #: Set when another run of this lane has stored a page: it may be one of ours.
        self._page_is_overwritten = False
        #: True while something is new that no report has said; and what the last one said the lane goes by.
        self._has_news = False
        self._said_standing: tuple[int, int] | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._host = socket.gethostname()
        self._engine_seen = now()
        self._tail = Tail(self._client, STATE_PARTITION, look_back=_LOOK_BACK)
        #: The keys of what is said to this lane: all else is read past.
        kinds = (("engine", spec.mirror), *((kind, spec.mirror, spec.lane) for kind in ("change", "progress")))
        self._keys = frozenset(encode_key(key) for key in kinds)
        #: How the keys of this lane's pages begin, whatever their numbers.
        self._page_prefix = encode_key(("rows", spec.mirror, spec.lane))[:-1] + b","
        self._owner: EngineRecord | None = None
        self._read_once = False
        #: Set by a lane that fills offsets by transactions; its successors have to know, see `said_so`.
        self.fills_by_transactions = False
        self.said_so = False
        self.on_change: Callable[[], None] = lambda: None
        self.counts = Counts()
        #: What was fetched since the lane began, and for how many seconds its share kept it from fetching.
        self.usage: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        #: The last change that was read, and what takes it.
        self.revision = 0
        self.on_lane_change: Callable[[LaneChangeRecord], None] = lambda _: None
        #: The last change that the lane goes by, and the last whose partitions it has released; who receives the second
        #: when the engine knows it.
        self.standing: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.on_told: Callable[[int], None] = lambda _: None
        self._behind_since: float | None = None
        self._follower = guarded_thread(self._follow, "kmirror-control", broken)
        self._reporter = guarded_thread(self._report_loop, "kmirror-progress", broken)
        self._report_client = ClusterClient(config)

    def start(self) -> None:
        """Begin to follow and to report."""
        self._follower.start()
        self._reporter.start()

    def stop(self, *, final_report: bool) -> None:
        """End both threads, then report the partitions' state a last time."""
        self._stop.set()
        self._wake.set()
        self._follower.join(timeout=_POLL_MS / 1000 + 1)
        self._reporter.join(timeout=2)
        if final_report and not self._reporter.is_alive():
            with contextlib.suppress(KmirrorError, OutcomeUnknown):
                self._report(self._look())
        self._tail.close()
        self._client.close()
        self._report_client.close()

    @property
    def bytes_per_second(self) -> int | None:
        """How much the lane may fetch; None: as much as it can; 0 while it does not know its share. From any thread."""
        owner = self._owner
        if owner is None or owner.lease_id != self.spec.lease_id:
            return 0
        return None if owner.throttle is None else owner.throttle.get(self.spec.lane, 0)

    @property
    def first_topics(self) -> tuple[str, ...]:
        """The topics that are fetched before all others now; none: all are alike. From any thread."""
        owner = self._owner
        is_ours = owner is not None and owner.lease_id == self.spec.lease_id
        return (owner.first_topics or ()) if owner is not None and is_ours else ()

    def report_soon(self) -> None:
        """Publish progress now rather than within the second."""
        self._wake.set()

    # -- following ------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stop.is_set() and self.ended is None:
            try:
                self._poll()
            except (KmirrorError, OutcomeUnknown):
                self._stop.wait(_PAUSE)
            if self.ended is None and now() - self._engine_seen > _ENGINE_SILENCE_SECONDS:
                self._end("LOST_ENGINE", f"no sign of the engine for {_ENGINE_SILENCE_SECONDS:.0f} s")

    def _poll(self) -> None:
        sent_at = now()
        answer = self._tail.poll(_POLL_MS if self._read_once else 0)
        for record in answer.records:
            self._meet(record)
        if answer.reached_end:
            self._read_once = True
            self._read_to_the_end(sent_at)

    def _read_to_the_end(self, sent_at: float) -> None:
        """Draw the conclusion from all claims there are."""
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
        # a later attempt is Spark's: the engine cannot speak for the one before it
        self.is_alone = granted == (spec.generation, self.attempt) and not owner.settle_ms
        if self.ended is None:
            first = not self.deadline
            self.deadline = sent_at + spec.ttl_ms / 1000
            if first:
                self.on_change()

    def _is_behind(self, owner: EngineRecord, generation: int) -> bool:
        """Tell whether a change is missing; end when that lasts."""
        number = (owner.revisions or {}).get(self.spec.lane, 0) if generation == self.spec.generation else 0
        if number <= self.revision:
            self._behind_since = None
            return False
        self._behind_since = self._behind_since or now()
        if now() - self._behind_since > _BEHIND_SECONDS:
            self._end("OUTDATED", f"its work was changed {counted(number, 'time')}, of which it knows {self.revision}")
        return True

    def _meet(self, record: Record) -> None:
        if record.key is None:
            return
        if record.key.startswith(self._page_prefix):
            page = decode(record.key, record.value)
            self._page_is_overwritten |= not isinstance(page, LaneRowsRecord) or page.run != self._run
            return
        if record.key not in self._keys:
            return
        met = decode(record.key, record.value)
        spec = self.spec
        if isinstance(met, EngineRecord) and met.mirror == spec.mirror:
            self._engine_seen = now()
            self._owner = met
        elif isinstance(met, Unknown) and met.key == ("engine", spec.mirror):
            self._end("FENCED", "an engine of a newer version took over")
        elif (
            isinstance(met, LaneChangeRecord)
            and (met.mirror, met.lane) == (spec.mirror, spec.lane)
            and (met.lease_id, met.generation, met.revision) == (spec.lease_id, spec.generation, self.revision + 1)
        ):
            self.revision = met.revision
            self.on_lane_change(met)
        elif (
            isinstance(met, ProgressRecord)
            and met.mirror == spec.mirror
            and met.lane == spec.lane
            and met.lease_id == spec.lease_id
            and (met.generation, met.attempt) > (spec.generation, self.attempt)
        ):
            self._end("SUPERSEDED", "a later incarnation of this lane took over")

    def _end(self, how: str, message: str) -> None:
        if self.ended is None:
            self.ended = (how, message)
            self.deadline = 0.0
            self.on_change()

    # -- reporting ------------------------------------------------------------------------------------------------

    def _report_loop(self) -> None:
        written = 0.0
        while not self._stop.is_set():
            standing = self._look()
            unsaid = self.fills_by_transactions and not self.said_so
            is_news = self._has_news or standing != self._said_standing or unsaid
            if self.claimed_at is None or is_news or now() - written > _SIGN_OF_LIFE_SECONDS:
                try:
                    self._report(standing)
                    written = now()
                    if self.claimed_at is None:
                        self.claimed_at = written
                        self.on_change()
                except (KmirrorError, OutcomeUnknown):
                    self._stop.wait(_PAUSE)
                    continue
            self._wake.wait(_PROGRESS_SECONDS)
            self._wake.clear()

    def _look(self) -> tuple[int, int]:
        """Take what is new of the partitions; return the changes that this goes by, or an earlier one."""
        standing, news = self.standing(), self._news()
        self._pages.take(news.changed, news.gone, now())
        if self._page_is_overwritten:
            self._page_is_overwritten = False
            self._pages.say_again()
        pages = self._pages.unsaid()
        self._has_news = self._has_news or bool(news) or bool(pages)
        return standing

    @property
    def _run(self) -> LaneRun:
        return LaneRun(self.spec.lease_id, self.spec.generation, self.attempt)

    def _report(self, standing: tuple[int, int]) -> None:
        """Write one report behind the pages that it refers to.

        Raises:
            KmirrorError, OutcomeUnknown: not all of it was written, or perhaps not.
        """
        spec, (taken, given_up), run = self.spec, standing, self._run
        (fetched_bytes, throttled_seconds), counts = self.usage(), self.counts
        pages = self._pages.unsaid()
        report = ProgressRecord(
            spec.mirror,
            spec.lane,
            *run,
            self._host,
            os.getpid(),
            now_ms(),
            tuple(self._pages.loose.values()),
            self.fills_by_transactions,
            taken,
            given_up,
            fetched_bytes,
            int(throttled_seconds * 1000),
            counts.batches_copied,
            counts.batches_taken_apart,
            counts.batches_merged,
            counts.offsets_filled,
            counts.fetches.so_far,
            counts.appends.so_far,
            self._pages.count,
        )
        stored = [
            LaneRowsRecord(spec.mirror, spec.lane, number, *run, tuple(rows.values())) for number, rows in pages.items()
        ]
        for some in _by_size([*map(encode, stored), encode(report)]):
            batch = make_batch([Record(offset, _NO_TIMESTAMP, *one) for offset, one in enumerate(some)])
            append_to(self._report_client, STATE_PARTITION, memoryview(batch))
        self._pages.said(pages)
        self._has_news, self._said_standing = False, standing
        self.on_told(given_up)
        if report.fills_by_transactions and not self.said_so:
            self.said_so = True
            self.on_change()


def _by_size(encoded: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Put records together into batches that brokers take."""
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
    metadata = client.metadata([partition.topic])
    leader = metadata.leader(partition)
    if leader is None or leader.leader_id is None:
        raise OutcomeUnknown(f"{partition} has no leader")
    broker = metadata.brokers[leader.leader_id]
    connection = client.connect(broker.node_id, broker.host, broker.port)
    version = connection.version_for(produce.API_KEY, produce.LOWEST_VERSION, produce.HIGHEST_VERSION, "Produce")
    correlation_id = connection.next_correlation_id()
    timeout_ms = client.config.request_timeout_ms
    append = produce.Append(partition.topic, metadata.topics[partition.topic].topic_id, partition.partition, batch)
    request = produce.request(
        correlation_id, version, client.config.client_id, [append], acks=produce.ACKS_ALL, timeout_ms=timeout_ms
    )
    frame = connection.exchange_frame(request, correlation_id, timeout_ms / 1000)
    (answer,), throttle_time_ms = produce.answer(frame, version)
    connection.note_throttle(throttle_time_ms)
    if answer.error_code:
        raise BrokerError(answer.error_code, code_name(answer.error_code), f"appending to {partition}")
    return answer.base_offset
