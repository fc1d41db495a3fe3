"""`run --all`: every mirror of the destination has an engine, also one that comes later, until it goes.

And of those that are named: one whose lease a command has taken, to shut out an engine that was slow, is taken again
when that command has ended; any other whose engine has ended is taken again while others are copied.

Each mirror is brought to its engine by a thread of its own, so that none waits for another. What keeps one from its
engine is shown and tried again; a lease that another engine holds is taken once that one has ended or fallen silent.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from kmirror.cluster.security.client_config import client_config
from kmirror.engine.clock import now, now_ms
from kmirror.engine.control.engines import Apart, Engines
from kmirror.engine.control.journal import Level, Note
from kmirror.engine.control.mirror import MirrorEngine
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.threads import call_in_thread, guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.ops.context import Destination
from kmirror.ops.run.engine_start import EngineStart, check_source
from kmirror.ops.run.patience import FIRST_PAUSE_S, LONGEST_PAUSE_S, may_pass
from kmirror.ops.run.request import RunRequest
from kmirror.ops.stop.stop import require_not_failed_over
from kmirror.state.lease import FencedByCommandError, has_ended
from kmirror.state.records import DesiredState, EngineRecord, MirrorRecord
from kmirror.state.snapshot import State

_LOOK_S = 1.0
_STEP_S = 0.1
#: So many are brought to their engines at the same time.
_AT_ONCE = 16
#: An engine that ran for so long has not failed as those before it did.
_LONG_S = 60.0


def wanted_mirrors(state: State) -> dict[str, MirrorRecord]:
    """Return the mirrors of which there is something to copy, or may be: all but those failed over as a whole."""
    unreadable = unreadable_mirrors(state)
    found = {}
    for record in state.mirrors:
        with suppress(RefusedError):
            require_not_failed_over(state, record)
            found[record.name] = record
    return {name: record for name, record in found.items() if name not in unreadable}


def unreadable_mirrors(state: State) -> dict[str, Apart]:
    """Return the mirrors of which a newer kmirror keeps what this one cannot read: they are left alone."""
    found = {}
    for name in sorted({str(record.key[1]) for record in state.unreadable()}):
        try:
            state.require_readable(name)
        except RefusedError as error:
            found[name] = Apart(f"{error.message}; {error.hint}", Level.ERROR, error.reason)
    return found


def is_being_stopped(state: State, record: MirrorRecord) -> bool:
    """Tell whether a mirror is being stopped as a whole: no engine is to begin it."""
    return record.discovery_ended and all(t.desired is DesiredState.STOPPED for t in state.topics(record.name))


class Rivals:
    """Tell when an engine that is in charge elsewhere has left a mirror: it says so, is gone, or stands still."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[EngineRecord | None, float]] = {}

    def see(self, mirror: str, record: EngineRecord | None, at: float) -> None:
        """Take what is stored of the engine in charge now."""
        if mirror not in self._seen or self._seen[mirror][0] != record:
            self._seen[mirror] = record, at

    def forget(self, mirror: str) -> None:
        """Take nothing for known that was seen until now."""
        self._seen.pop(mirror, None)

    def has_left(self, mirror: str, at: float) -> bool:
        """Tell whether the mirror may be taken; not before somebody has looked."""
        if mirror not in self._seen:
            return False
        record, since = self._seen[mirror]
        return record is None or has_ended(record) is True or at - since > record.ttl_ms / 1000


def apart_by(error: Exception, request: RunRequest) -> Apart:
    """Return how a mirror is shown that an error keeps from its engine; a standby may find its lease held elsewhere."""
    reason = getattr(error, "reason", None)
    if reason is Reason.FENCED:
        level = Level.INFO if request.standby else Level.WARNING
    else:
        level = Level.WARNING if may_pass(error) else Level.ERROR
    known = isinstance(error, KmirrorError | OutcomeUnknown)
    return Apart(str(error) if known else f"{type(error).__name__}: {error}", level, reason)


def gives_up(error: Exception, request: RunRequest) -> bool:
    """Tell whether a mirror is left out of the run from then on; only one that is to end by itself does that."""
    if request.standby and getattr(error, "reason", None) is Reason.FENCED:
        return False
    return request.until_caught_up and (request.gives_up_at_once or not may_pass(error))


@dataclass(slots=True)
class _Member:
    """One mirror of the run."""

    record: MirrorRecord
    apart: Apart = field(default_factory=lambda: Apart("it is starting", Level.INFO))
    #: Its way to an engine, while it is on it.
    step: Future[MirrorEngine | None] | None = None
    engine: MirrorEngine | None = None
    engine_since: float = 0.0
    failures: int = 0
    again_at: float = 0.0
    #: Another engine holds its lease.
    is_held: bool = False
    #: The holder is a command, which gives it back.
    awaits_command: bool = False
    is_given_up: bool = False
    is_being_stopped: bool = False
    had_lease: bool = False


class AllMirrors:
    """Bring every mirror to an engine; for one thread, which calls `tick` many times a second.

    With `until_caught_up` these are the mirrors that are there at the start, and what cannot pass gives one up. Where
    mirrors are `named` these are all, and have their engines; when none of them runs any more, and none is waited for,
    that is the end.
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
        #: Those that may be taken from other engines: none that comes later, or is lost again.
        self._taken_over = set(self._members) if request.take_over and named is None else set()
        self._rivals = Rivals()
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._seen: State | None = state
        self._closing = threading.Event()
        #: Spark, once it has started.
        self.runtime: SparkRuntime | None = None
        self._has_lease = threading.Event()
        guarded_thread(self._follow, "kmirror-mirrors", self._broken).start()

    @property
    def records(self) -> Sequence[MirrorRecord]:
        """The mirrors of the run."""
        return [member.record for member in self._members.values()]

    def await_work(self) -> None:
        """Return when there is a mirror to copy; standing by, when one is taken."""
        while not (self._has_lease.is_set() if self._request.standby else self._members):
            if self._closing.wait(_STEP_S):
                return

    @property
    def is_done(self) -> bool:
        """True when no other engine will come."""
        members = self._members.values()
        if self._named is not None:
            return all(
                member.engine is None and member.step is None and (member.is_given_up or not member.awaits_command)
                for member in members
            )
        return self._request.until_caught_up and all(m.is_given_up or m.engine is not None for m in members)

    @property
    def apart(self) -> Mapping[str, Apart]:
        """Return the mirrors that have no engine in this run now."""
        own = {name: member.apart for name, member in self._members.items() if member.engine is None}
        return {**self._unreadable, **own}

    @property
    def is_under_way(self) -> bool:
        """True while a thread is at work with the destination."""
        return any(member.step is not None for member in self._members.values())

    def take_notes(self) -> Sequence[Note]:
        """Return what is to be shown and was not before."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._notes.get_nowait())
        return found

    def close(self) -> None:
        """Begin nothing more."""
        self._closing.set()

    def tick(self, engines: Engines) -> None:
        """Take and let go of mirrors, and bring those without an engine a step further; never waits."""
        at = now()
        if (state := self._seen) is not None:
            self._seen = None
            self._see(state, engines, at)
        room = _AT_ONCE - sum(member.step is not None for member in self._members.values())
        for name, member in self._members.items():
            if member.engine is not None:
                self._look_after(member, engines, at)
            elif member.step is not None and member.step.done():
                self._arrived(member, member.step, engines, at)
            elif member.step is None and room > 0 and self._is_due(name, member, at):
                room -= 1
                member.step = call_in_thread(lambda member=member: self._bring(member))  # type: ignore[misc]

    # -- which mirrors --------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Read again and again which mirrors there are."""
        while not self._closing.wait(_LOOK_S):
            if self._named is not None and all(member.engine is not None for member in self._members.values()):
                continue  # nothing is to be taken
            try:
                self._seen = self._destination.state()
            except (KmirrorError, OutcomeUnknown):
                continue  # heartbeats tell of it; what was known stays

    def _broken(self, error: Exception) -> None:
        text = f"which mirrors come and go is not seen any more: {error}"
        self._notes.put(Note(now_ms(), Level.ERROR, "*", text))

    def _wanted(self, state: State) -> dict[str, MirrorRecord]:
        found = wanted_mirrors(state)
        return found if self._named is None else {name: found[name] for name in found if name in self._named}

    def _see(self, state: State, engines: Engines, at: float) -> None:
        wanted = self._wanted(state)
        for name in wanted:
            self._rivals.see(name, state.engine(name), at)
        for member in self._members.values():
            stops, member.is_being_stopped = member.is_being_stopped, is_being_stopped(state, member.record)
            if member.is_being_stopped and not stops:
                member.apart = Apart("it is being stopped as a whole", Level.INFO)
                member.is_given_up = self._request.until_caught_up
        if self._request.until_caught_up:
            return
        if self._named is None:
            self._unreadable = unreadable_mirrors(state)
        for name, record in wanted.items():
            if name not in self._members:
                self._members[name] = _Member(record)
                self._note(name, "a new mirror: taken")
            elif (member := self._members[name]).record != record:
                member.record, member.again_at = record, at
        for name in self._members.keys() - wanted.keys():
            member = self._members[name]
            if member.step is not None:
                continue  # first it arrives
            if self._named is not None:
                member.is_given_up = True  # its engine ends by itself, and says why
                continue
            del self._members[name]
            if name not in self._unreadable:
                self._note(name, "failed over as a whole: let go" if state.mirror(name) else "deleted: let go")
            engines.let_go(name)

    def _note(self, mirror: str, text: str) -> None:
        self._notes.put(Note(now_ms(), Level.INFO, mirror, text))

    # -- each on its way ------------------------------------------------------------------------------------------

    def _is_due(self, name: str, member: _Member, at: float) -> bool:
        if member.is_given_up or member.is_being_stopped or at < member.again_at:
            return False
        return not member.is_held or self._rivals.has_left(name, at)

    def _bring(self, member: _Member) -> MirrorEngine | None:
        """Take the mirror's lease and make its engine once Spark has started; None when that is not wanted any more."""
        takes_over = member.record.name in self._taken_over
        request = replace(self._request, standby=False, take_over=takes_over)
        start = EngineStart(self._destination, member.record, request, self._closing, again=member.had_lease)
        try:
            if request.until_caught_up:
                check_source(member.record, must_answer=True)
            client_config(member.record.source)  # a secret that is missing is no reason to hold the lease
            member.had_lease = True
            start.take_lease()
            self._taken_over.discard(member.record.name)
            self._has_lease.set()
            if request.until_caught_up:
                # what the filters take now is part of what is to be copied
                for text in start.discover():
                    self._note(start.mirror, text)
            while (runtime := self.runtime) is None:
                if self._closing.wait(_LOOK_S):
                    start.close()
                    return None
                start.keep()
            return start.engine(runtime)
        except BaseException:
            start.close()
            raise

    def _arrived(self, member: _Member, step: Future[MirrorEngine | None], engines: Engines, at: float) -> None:
        member.step = None
        error = step.exception()
        if error is None:
            if (engine := step.result()) is not None:
                member.engine, member.engine_since, member.is_held = engine, at, False
                engines.add(engine)
        elif isinstance(error, Exception):
            self._failed(member, error, at)
        else:
            raise error

    def _look_after(self, member: _Member, engines: Engines, at: float) -> None:
        """See whether a mirror's engine has ended by itself."""
        engine = member.engine
        if engine is None or engine in engines.running or (why := engines.why_ended(engine)) is None:
            return
        member.is_given_up = self._request.until_caught_up
        member.engine = None
        self._rivals.forget(member.record.name)
        if at - member.engine_since > _LONG_S:
            member.failures = 0
        self._failed(member, why, at)

    def _failed(self, member: _Member, error: Exception, at: float) -> None:
        member.apart = apart_by(error, self._request)
        member.is_held = member.apart.reason is Reason.FENCED
        passes = not member.is_held and may_pass(error)
        member.awaits_command = isinstance(error, FencedByCommandError) or (member.awaits_command and passes)
        member.is_given_up |= gives_up(error, self._request)
        member.again_at = at + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(member.failures, 10))
        member.failures += 1
