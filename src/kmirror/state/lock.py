"""The operators' lock: one command at a time changes what is stored of a mirror.

It is held only for the moment of writing, never while waiting for something, and needs no clean-up: the next command
takes it, and a command that is fenced that way decides again on what it then finds.
"""

from __future__ import annotations

from kmirror.state.client import Deadline
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.writer import Decide, Writer, write_decided


def transact(store: StateStore, mirror: str, decide: Decide, timeout: float = DEFAULT_TIMEOUT_S) -> Changes:
    """Change what is stored of one mirror by a pure function of all that is stored; return what was written.

    `decide` may run several times, and raises RefusedError when its precondition does not hold. The internal topics
    are created where missing. Raises what `decide` raises (reason FENCED when the precondition held until another one
    wrote), RefusedError when a newer kmirror wrote records of this mirror, TimedOutError, UnreachableError, and
    OutcomeUnknown when no broker confirms whether the change was made.
    """

    def decide_readable(state: State) -> Changes:
        state.require_readable(mirror)
        return decide(state)

    store.ensure_topics(timeout=timeout)
    writer = Writer(store, "operator", mirror)
    try:
        return write_decided(store, writer, decide_readable, Deadline(timeout))
    finally:
        writer.close()
