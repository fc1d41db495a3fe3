"""Control of a lane: whether it may still write, since no other has taken its place; and its progress reports.

`__kmirror_state` is followed with a long poll. Each time it was read to the end without a newer claim, the lane may
write for `ttl` from the moment *that request was sent*. A successor writes its claim first and waits for
`ttl` before it writes to partitions; so no two lanes ever write at once, whatever the clocks of their machines say. A
claim is

* an engine record of another lease, or one that assigns this lane to a later incarnation, or that is stopping;
* a progress record of the same lane by a later incarnation (Spark starts a lost task again by itself).

The engine's record also names the last change of its work (`LaneChangeRecord`) that the lane must apply. Changes are
read here, in order; while one is missing the lane may not write, and it ends if that lasts: a task that Spark restarts
begins with its original work, and must not write to partitions revoked since.

The lane's progress is written there about once a second while something changes. All lanes of a process share the two
threads that read and write (`state_log`).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.reports.pages import Pages
from kmirror.engine.lane.reports.row_reports import RowChanges
from kmirror.engine.lane.reports.state_log import StateLog
from kmirror.engine.spec import LaneSpec
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.record_kinds import Unknown, decode, encode, encode_key
from kmirror.state.records import (
    FRESH_SECONDS,
    EngineRecord,
    EngineState,
    LaneRowsRecord,
    LaneRun,
    ProgressRecord,
    ProgressRow,
)
from kmirror.words import counted

_PROGRESS_SECONDS = 1.0
#: All lanes of a process look at the same times, so that what they report is stored by few requests.
_STEP_SECONDS = 0.25
_SIGN_OF_LIFE_SECONDS = 2.0 - _STEP_SECONDS
#: Without an engine record for this long a lane ends by itself: its driver is gone or stuck.
_ENGINE_SILENCE_SECONDS = 30.0
#: A change and the engine's record that names it are written together, but may be read one after the other.
_BEHIND_SECONDS = 3.0
_PAUSE = 0.2
_FINAL_REPORT_SECONDS = 2.0


class LaneControl:
    """Follow the claims on one lane, and report its progress. `deadline` and `ended` may be read from any thread."""

    def __init__(
        self,
        spec: LaneSpec,
        attempt: int,
        state_log: StateLog,
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
        self._state_log = state_log
        self._row_changes = row_changes
        self.broken = broken
        self._pages = Pages()
        #: Set when another run of this lane has stored a page: it may have overwritten one of ours.
        self._page_is_overwritten = False
        #: True while there are unreported row changes; and the revisions in the last report.
        self._has_changes = False
        self._seen_within = FRESH_SECONDS
        self._reported_revisions: tuple[int, int] | None = None
        #: When to look for something to report, and when something was last stored.
        self._report_at = self._written_at = 0.0
        #: What becomes true when the report that is being stored is stored.
        self._storing: _Storing | None = None
        #: Whether the next report is the last one, which says how the lane ended; None while it runs.
        self._is_last_wanted: bool | None = None
        #: The last report as it is stored: it says nothing new to the lane itself.
        self._own_report: bytes | None = None
        self._host = socket.gethostname()
        self._started_at = self._engine_seen = now()
        #: What the keys of this lane's pages begin with.
        self._page_prefix = encode_key(("rows", spec.mirror, spec.lane))[:-1] + b","
        kinds = (("engine", spec.mirror), *((kind, spec.mirror, spec.lane) for kind in ("change", "progress")))
        self.keys = frozenset((*map(encode_key, kinds), self._page_prefix))
        self._owner: EngineRecord | None = None
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
        self._leave_claims: Callable[[], None] = lambda: None
        self._leave_reports: Callable[[], threading.Event] = threading.Event

    def start(self) -> None:
        """Start following and reporting."""
        self._leave_claims = self._state_log.claims.follow(self)
        self._leave_reports = self._state_log.reports.add(self)

    def stop(self, *, final_report: bool) -> None:
        """Stop following and reporting; the last that is done is to report the partitions' state, if `final_report`."""
        self._leave_claims()
        self._is_last_wanted = final_report
        left = self._leave_reports()
        if final_report:
            left.wait(_FINAL_REPORT_SECONDS + self._state_log.request_seconds)

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
        self._report_at = 0.0
        self._state_log.reports.wake()

    def take_claims(self, records: Sequence[Record], sent_at: float, *, reached_end: bool) -> None:
        """Take what was read of this lane's records; `reached_end`: there were no others when that was asked for."""
        if self.ended is not None:
            return
        for record in records:
            self._read(record)
        if reached_end:
            self._decide(sent_at)
        self.take_silence()

    def take_silence(self) -> None:
        """End the lane if nothing has been heard of its engine for too long."""
        if self.ended is None and now() - self._engine_seen > _ENGINE_SILENCE_SECONDS:
            self._end("LOST_ENGINE", f"no record of the engine for {_ENGINE_SILENCE_SECONDS:.0f} s")

    def _decide(self, sent_at: float) -> None:
        """Decide by all claims there are whether this lane may write."""
        spec, owner = self.spec, self._owner
        if owner is None:
            return
        granted = owner.lanes.get(spec.lane)
        is_granted = (owner.lease_id, granted) == (spec.lease_id, (spec.generation, self.attempt))
        if sent_at < self._started_at and not is_granted:
            return  # others of the process have read that; what lets this lane write may have been stored since
        if owner.lease_id != spec.lease_id:
            self._end("FENCED", f"another engine took over on {owner.host} (process {owner.pid})")
        elif owner.state is not EngineState.RUNNING or granted is None:
            self._end("STOPPED", "the engine stopped it")
        elif granted > (spec.generation, self.attempt):
            self._end("SUPERSEDED", "a later incarnation of this lane took over")
        elif self._is_behind(owner, granted.generation):
            return
        # Spark started a later attempt by itself: `settle_ms` says nothing about the one before it
        self.is_alone = is_granted and not owner.settle_ms
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
        if record.key is None or (record.value is not None and record.value == self._own_report):
            return
        if record.key.startswith(self._page_prefix):
            page = decode(record.key, record.value)
            self._page_is_overwritten |= not isinstance(page, LaneRowsRecord) or page.run != self._run
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

    def due_at(self) -> float:
        """Return when to look for something to report; when that is, `prepare` is called."""
        return self._report_at

    def prepare(self) -> Sequence[tuple[bytes, bytes]]:
        """Return what to store now: the changed pages, then a report that refers to them, if there is anything new.

        The last call comes when the lane has stopped.
        """
        if self._is_last_wanted is False:
            return ()
        at = now()
        self._report_at = (at + _PROGRESS_SECONDS) // _STEP_SECONDS * _STEP_SECONDS
        revisions = self._observe()
        must_announce = self.fills_by_transactions and not self.transactions_announced
        is_new = self._has_changes or revisions != self._reported_revisions or must_announce or self._is_last_wanted
        if self.claimed_at is None or is_new or at - self._written_at > _SIGN_OF_LIFE_SECONDS:
            return self._report(revisions)
        return ()

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

    def _report(self, revisions: tuple[int, int]) -> Sequence[tuple[bytes, bytes]]:
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
        self._storing = _Storing(pages, revisions, fills_by_transactions=report.fills_by_transactions)
        encoded = encode(report)
        self._own_report = encoded[1]
        return [*map(encode, stored), encoded]

    def stored(self, *, is_known: bool) -> None:
        """Note that what was prepared is stored, or that this is not known: then all of it is stored again."""
        storing, self._storing = self._storing, None
        if not is_known or storing is None:
            self._report_at = now() + _PAUSE
            return
        self._written_at = now()
        self._pages.stored(storing.pages)
        self._has_changes, self._reported_revisions = False, storing.revisions
        self.on_report_stored(storing.revisions[1])
        if storing.fills_by_transactions and not self.transactions_announced:
            self.transactions_announced = True
            self.on_change()
        if self.claimed_at is None:
            self.claimed_at = self._written_at
            self.on_change()


@dataclass(frozen=True, slots=True)
class _Storing:
    """What a report says that is being stored."""

    pages: Mapping[int, Mapping[TopicPartition, ProgressRow]]
    revisions: tuple[int, int]
    fills_by_transactions: bool
