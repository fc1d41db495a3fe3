"""The operators' lock: one command at a time changes the stored state of a mirror.

It is held only while writing, never while waiting, and needs no clean-up: the next command takes it, and the command
that it fences reads and decides again.
"""

from __future__ import annotations

from kmirror.state.client import Deadline
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.writer import Decide, Writer, decide_and_write


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
    writer = Writer(store, "operator", mirror)
    try:
        return decide_and_write(store, writer, decide_readable, Deadline(timeout))
    finally:
        writer.close()
