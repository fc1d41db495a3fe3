"""Bring mirrors to their engines while a run lasts, and start engines again that have ended.

With `run --all` every mirror of the destination gets an engine, including one that is created later, until it is
deleted or failed over. With named mirrors, one whose lease a command has taken, to fence a slow engine, starts again
when that command has ended, and with `--standby` one that another engine has taken when that engine has ended; any
other whose engine has ended starts again while other mirrors are copied.

Each mirror starts in a thread of its own, so that none waits for another. What prevents a start is shown and retried; a
lease that another engine holds is taken once that engine has ended or stopped sending heartbeats.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue

from kmirror.cluster.security.client_config import client_config
from kmirror.engine.clock import now, now_ms
from kmirror.engine.driver.engines import Engines, NotCopied
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.lanes.lane_jobs import LaneRunner
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.status.journal import Level, Note
from kmirror.engine.threads import call_in_thread, guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.destination_job import SharedStore
from kmirror.ops.base.retrying import FIRST_PAUSE_S, LONGEST_PAUSE_S, is_transient
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.run.engine_start import EngineStart, check_source
from kmirror.ops.stop.stop import is_being_stopped, require_not_failed_over
from kmirror.state.engine_identity import EngineSilence, FencedByCommandError, has_ended
from kmirror.state.records import EngineRecord, MirrorRecord
from kmirror.state.snapshot import State

_READ_S = 1.0
_STEP_S = 0.1
#: How many mirrors start at the same time.
_AT_ONCE = 16
#: How long Spark's workers may take to check what they have: less than the lease lasts.
_WORKERS_S = 3.0
#: After an engine has run this long, its failures are counted from zero.
_LONG_S = 60.0


def wanted_mirrors(state: State) -> dict[str, MirrorRecord]:
    """Return the mirrors that may have something to copy: all but those failed over as a whole."""
    unreadable = unreadable_mirrors(state)
    found = {}
    for record in state.mirrors:
        with suppress(RefusedError):
            require_not_failed_over(state, record)
            found[record.name] = record
    return {name: record for name, record in found.items() if name not in unreadable}


def unreadable_mirrors(state: State) -> dict[str, NotCopied]:
    """Return the mirrors with records that only a newer kmirror can read: they are not touched."""
    found = {}
    for name in sorted({str(record.key[1]) for record in state.unreadable()}):
        try:
            state.require_readable(name)
        except RefusedError as error:
            found[name] = NotCopied(f"{error.message}; {error.hint}", Level.ERROR, error.reason)
    return found


class OtherEngines:
    """Know when an engine elsewhere has left a mirror: its record says so, is gone, or is not renewed."""

    def __init__(self) -> None:
        self._seen: dict[str, EngineSilence] = {}

    def take(self, mirror: str, record: EngineRecord | None) -> None:
        """Take what is stored of the engine in charge."""
        self._seen.setdefault(mirror, EngineSilence()).take(record)

    def forget(self, mirror: str) -> None:
        """Forget what is known of a mirror's engine."""
        self._seen.pop(mirror, None)

    def has_left(self, mirror: str) -> bool:
        """Return True if the mirror may be taken; False until its engine's record was read."""
        if (silence := self._seen.get(mirror)) is None:
            return False
        return silence.record is None or has_ended(silence.record) is True or silence.outlasts_lease

    def silent(self, mirror: str) -> EngineRecord | None:
        """Return the record of an engine that has left a mirror; None if there is none, or it has not left."""
        return self._seen[mirror].record if self.has_left(mirror) else None


def not_copied_because(error: Exception, request: RunRequest) -> NotCopied:
    """Return why an error keeps a mirror from its engine; for a standby, a lease that is held elsewhere is normal."""
    reason = getattr(error, "reason", None)
    if reason is Reason.FENCED:
        level = Level.INFO if request.standby else Level.WARNING
    else:
        level = Level.WARNING if is_transient(error) else Level.ERROR
    known = isinstance(error, KmirrorError | OutcomeUnknown)
    return NotCopied(str(error) if known else f"{type(error).__name__}: {error}", level, reason)


def is_left_out(error: Exception, request: RunRequest) -> bool:
    """Return True if the mirror is left out of the run after this error; only a run that ends by itself does that."""
    if request.standby and getattr(error, "reason", None) is Reason.FENCED:
        return False
    return request.until_caught_up and (request.fails_fast or not is_transient(error))


@dataclass(slots=True)
class _Member:
    """One mirror of the run."""

    record: MirrorRecord
    not_copied: NotCopied = field(default_factory=lambda: NotCopied("it is starting", Level.INFO))
    #: Its start, while that is in progress.
    step: Future[MirrorEngine | None] | None = None
    engine: MirrorEngine | None = None
    engine_since: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    #: Another engine holds its lease.
    is_held: bool = False
    #: It starts again: the holder is a command, which gives the lease back, or this run stands by.
    starts_again: bool = False
    is_left_out: bool = False
    is_being_stopped: bool = False
    had_lease: bool = False


class EngineSupervisor:
    """Start and restart the engines of a run; for one thread, which calls `tick` many times a second.

    With `until_caught_up` the mirrors are those that exist at the start, and a permanent error leaves one out. With
    `named` engines their mirrors are all there are; the run ends when none of them runs and none starts again.
    """

    def __init__(
        self, destination: Destination, request: RunRequest, state: State, named: Sequence[MirrorEngine] | None = None
    ) -> None:
        self._destination, self._request = destination, request
        self._named = None if named is None else {engine.mirror for engine in named}
        self._members = {name: _Member(record) for name, record in self._wanted(state).items()}
        for engine in named or ():
            if (member := self._members.get(engine.mirror)) is not None:
                member.engine, member.engine_since, member.had_lease = engine, now(), True
        self._unreadable = unreadable_mirrors(state) if named is None else {}
        #: Mirrors that may be taken from other engines: none that is created later or is lost again.
        self._taken_over = set(self._members) if request.take_over and named is None else set()
        self._others = OtherEngines()
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._seen: State | None = state
        self._closing = threading.Event()
        #: Spark, once it has started, and what runs lanes there.
        self._workers: tuple[SparkRuntime, LaneRunner] | None = None
        self._has_lease = threading.Event()
        guarded_thread(self._follow, "kmirror-mirrors", self._broken).start()

    def use(self, runtime: SparkRuntime, lanes: LaneRunner) -> None:
        """Have the engines use Spark, which has started, and what runs lanes there."""
        self._workers = runtime, lanes

    @property
    def records(self) -> Sequence[MirrorRecord]:
        """The mirrors of the run."""
        return [member.record for member in self._members.values()]

    def wait_for_work(self) -> None:
        """Return when there is a mirror to copy; for a standby, when one is taken."""
        while not (self._has_lease.is_set() if self._request.standby else self._members):
            if self._closing.wait(_STEP_S):
                return

    @property
    def is_done(self) -> bool:
        """True when no other engine will start."""
        members = self._members.values()
        if self._named is not None:
            return all(
                member.engine is None and member.step is None and (member.is_left_out or not member.starts_again)
                for member in members
            )
        return self._request.until_caught_up and all(m.is_left_out or m.engine is not None for m in members)

    @property
    def not_copied(self) -> Mapping[str, NotCopied]:
        """Return why mirrors have no engine in this run now, by mirror."""
        own = {name: member.not_copied for name, member in self._members.items() if member.engine is None}
        return {**self._unreadable, **own}

    @property
    def is_busy(self) -> bool:
        """True while a thread uses the destination."""
        return any(member.step is not None for member in self._members.values())

    def take_notes(self) -> Sequence[Note]:
        """Return the notes that were not taken before."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._notes.get_nowait())
        return found

    def close(self) -> None:
        """Start nothing more."""
        self._closing.set()

    def tick(self, engines: Engines) -> None:
        """Take changes of the mirrors, and the next step for each without an engine; never waits."""
        at = now()
        if (state := self._seen) is not None:
            self._seen = None
            self._take_state(state, engines, at)
        room = _AT_ONCE - sum(member.step is not None for member in self._members.values())
        for name, member in self._members.items():
            if member.engine is not None:
                self._check_engine(member, engines, at)
            elif member.step is not None and member.step.done():
                self._finish_step(member, member.step, engines, at)
            elif member.step is None and room > 0 and self._is_due(name, member, at):
                room -= 1
                silent = self._others.silent(name)
                member.step = call_in_thread(partial(self._start, member, silent))

    def take_ended(self, engines: Engines) -> None:
        """Take which engines have ended by themselves since the last `tick`; starts nothing."""
        for member in self._members.values():
            self._check_engine(member, engines, now())

    def _follow(self) -> None:
        """Read repeatedly which mirrors exist."""
        shared, reported = SharedStore.take(self._destination.config), ""
        try:
            while not self._closing.wait(_READ_S):
                if self._named is not None and all(member.engine is not None for member in self._members.values()):
                    continue  # there is nothing to start
                try:
                    self._seen = shared.store.read()
                except (KmirrorError, OutcomeUnknown):
                    continue  # heartbeats report that; what was read before stays
                except Exception as error:  # such as no further thread: it passes, too
                    if reported != (reported := str(error)):
                        self._broken(error)
        finally:
            shared.give_back()

    def _broken(self, error: Exception) -> None:
        text = f"cannot read any more which mirrors are created and deleted: {error}"
        self._notes.put(Note(now_ms(), Level.ERROR, "*", text))

    def _wanted(self, state: State) -> dict[str, MirrorRecord]:
        found = wanted_mirrors(state)
        return found if self._named is None else {name: found[name] for name in found if name in self._named}

    def _take_state(self, state: State, engines: Engines, at: float) -> None:
        wanted = self._wanted(state)
        for name in wanted:
            self._others.take(name, state.engine(name))
        for member in self._members.values():
            stops, member.is_being_stopped = member.is_being_stopped, is_being_stopped(state, member.record.name)
            if member.is_being_stopped and not stops:
                member.not_copied = NotCopied("it is being stopped as a whole", Level.INFO)
                member.is_left_out = self._request.until_caught_up
        if self._request.until_caught_up:
            return
        if self._named is None:
            self._unreadable = unreadable_mirrors(state)
        for name, record in wanted.items():
            if name not in self._members:
                self._members[name] = _Member(record)
                self._note(name, "new mirror: starting to copy it")
            elif (member := self._members[name]).record != record:
                member.record, member.retry_at = record, at
        for name in self._members.keys() - wanted.keys():
            member = self._members[name]
            if member.step is not None:
                continue  # first its start ends
            if self._named is not None:
                member.is_left_out = True  # its engine ends by itself, and reports why
                continue
            del self._members[name]
            if name not in self._unreadable:
                self._note(
                    name,
                    "failed over as a whole: no longer copied" if state.mirror(name) else "deleted: no longer copied",
                )
            engines.drop(name)

    def _note(self, mirror: str, text: str) -> None:
        self._notes.put(Note(now_ms(), Level.INFO, mirror, text))

    def _is_due(self, name: str, member: _Member, at: float) -> bool:
        if member.is_left_out or member.is_being_stopped or at < member.retry_at:
            return False
        return not member.is_held or self._others.has_left(name)

    def _start(self, member: _Member, silent: EngineRecord | None) -> MirrorEngine | None:
        """Take the mirror's lease and create its engine once Spark has started; None when the run ends before."""
        takes_over = member.record.name in self._taken_over
        request = replace(self._request, standby=False, take_over=takes_over)
        start = EngineStart(
            self._destination, member.record, request, self._closing, again=member.had_lease, silent=silent
        )
        try:
            if request.until_caught_up:
                check_source(member.record, must_answer=True)
            client_config(member.record.source)  # if a secret is missing, the lease must not be taken
            member.had_lease = True
            start.take_lease()
            self._taken_over.discard(member.record.name)
            self._has_lease.set()
            if request.until_caught_up:
                # topics that the filters match now must be copied too
                for text in start.discover():
                    self._note(start.mirror, text)
            while (workers := self._workers) is None:
                if self._closing.wait(_READ_S):
                    start.close()
                    return None
                start.keep()
            start.check_workers(workers[0], _WORKERS_S)
            return start.engine(*workers)
        except BaseException:
            start.close()
            raise

    def _finish_step(self, member: _Member, step: Future[MirrorEngine | None], engines: Engines, at: float) -> None:
        member.step = None
        error = step.exception()
        if error is None:
            if (engine := step.result()) is not None:
                member.engine, member.engine_since = engine, at
                member.is_held = member.starts_again = False
                engines.add(engine)
        elif isinstance(error, Exception):
            self._failed(member, error, at)
        else:
            raise error

    def _check_engine(self, member: _Member, engines: Engines, at: float) -> None:
        """Check whether a mirror's engine has ended by itself."""
        engine = member.engine
        if engine is None or (why := engines.why_ended(engine)) is None or engine in engines.running:
            return
        member.is_left_out = self._request.until_caught_up
        member.engine = None
        self._others.forget(member.record.name)
        if at - member.engine_since > _LONG_S:
            member.failures = 0
        self._failed(member, why, at)

    def _failed(self, member: _Member, error: Exception, at: float) -> None:
        member.not_copied = not_copied_because(error, self._request)
        member.is_held = member.not_copied.reason is Reason.FENCED
        passes = not member.is_held and is_transient(error)
        waits = isinstance(error, FencedByCommandError) or (self._request.standby and member.is_held)
        member.starts_again = waits or (member.starts_again and (passes or self._request.standby))
        member.is_left_out |= is_left_out(error, self._request)
        member.retry_at = at + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(member.failures, 10))
        member.failures += 1
