"""The operators' lock: one command at a time changes the stored state of a mirror.

It is held only while writing, never while waiting, and needs no clean-up: the next command takes it, and the command
that it fences reads and decides again.
"""

from __future__ import annotations

import threading

from kmirror.cluster.topics.leaders import NoLeaderError
from kmirror.errors import KmirrorError
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.waiting import Deadline
from kmirror.state.writer import Decide, StateWriter, decide_and_write


class KeptLock:
    """The lock of one mirror for a command that will change it: taken while other things are read, kept until closed.

    A transaction reads after it has the lock, and whoever takes the lock meanwhile fences its commit: keeping it is as
    safe as taking it again, and cheaper over a distance.
    """

    def __init__(self, store: StateStore, mirror: str) -> None:
        self._writer = StateWriter(store, "operator", mirror)
        self._deadline, self._leaders = Deadline(DEFAULT_TIMEOUT_S), store.found
        self._thread = threading.get_ident()
        #: Why it is of no use to try again.
        self._no_leader: NoLeaderError | None = None
        self._opening = threading.Thread(target=self._open, name="kmirror-lock", daemon=True)
        self._opening.start()

    def _open(self) -> None:
        try:
            self._writer.open(self._deadline, self._leaders)
        except NoLeaderError as error:
            self._no_leader = error
        except KmirrorError:
            pass  # whoever needs the lock tries again, and is told

    def writer(self) -> StateWriter:
        """Return the writer, which is open if the lock was granted. Raises NoLeaderError."""
        self._opening.join()
        error, self._no_leader = self._no_leader, None
        if error is not None:
            raise error
        return self._writer

    def lender(self, other: StateWriter) -> StateWriter | None:
        """Return the writer if it may lend its connections to another one: only within one thread."""
        if other is self._writer or threading.get_ident() != self._thread:
            return None
        return self.writer()

    def close(self) -> None:
        """Give it up."""
        self._deadline.end()
        self._opening.join()
        self._writer.close()


def take_lock_ahead(store: StateStore, mirror: str) -> None:
    """Begin to take the lock of a mirror that this command will change; the store keeps it until it is closed."""
    if mirror not in store.kept:
        store.kept[mirror] = KeptLock(store, mirror)


def transact(store: StateStore, mirror: str, decide: Decide, timeout: float = DEFAULT_TIMEOUT_S) -> Changes:
    """Change the stored state of one mirror by a pure function of the whole state; return what was written.

    `decide` may run several times, and raises RefusedError when its precondition does not hold. Missing internal topics
    are created. Raises what `decide` raises (reason FENCED when the precondition held until another process wrote),
    RefusedError when a newer kmirror wrote records of this mirror, TimedOutError, UnreachableError, and OutcomeUnknown
    when no broker confirms whether the change was made.
    """

    def decide_readable(state: State) -> Changes:
        state.require_readable(mirror)
        return decide(state)

    store.ensure_topics(timeout=timeout)
    kept = store.kept.get(mirror)
    writer = StateWriter(store, "operator", mirror) if kept is None else kept.writer()
    try:
        return decide_and_write(store, writer, decide_readable, Deadline(timeout))
    finally:
        if kept is None:
            writer.close()
