"""`pause` and `resume`: stop copying temporarily. The topics stay read-only meanwhile."""

from __future__ import annotations

import uuid
from dataclasses import replace

from kmirror.commands import on_mirror
from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.base.context import Destination, change, own_event, require_mirror
from kmirror.ops.base.handover import Handover, await_handover
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.settings.patterns import TopicSelector
from kmirror.state.engine_identity import EngineSilence
from kmirror.state.lease import end_lease
from kmirror.state.record_kinds import Record
from kmirror.state.records import DesiredState, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline

#: How long to wait until an engine has nothing of a topic in flight.
_PATIENCE_S = 30.0
_RELEASED = (PartitionState.PAUSED, PartitionState.FAILED)
_MOST_TOPICS_IN_EVENT = 100


def pause(
    destination: Destination, mirror: str, topics: TopicSelector | None = None, *, dry_run: bool = False
) -> VerbResult:
    """Stop copying these topics; by default all of the mirror, including those added later.

    Raises:
        RefusedError: no such mirror or topic.
        UnreachableError: the destination does not answer.
    """
    return _change(destination, "pause", mirror, topics, dry_run=dry_run)


def resume(
    destination: Destination, mirror: str, topics: TopicSelector | None = None, *, dry_run: bool = False
) -> VerbResult:
    """Resume copying these topics, by default all of the mirror. Raises as `pause`."""
    return _change(destination, "resume", mirror, topics, dry_run=dry_run)


def _change(
    destination: Destination, verb: str, mirror: str, topics: TopicSelector | None, *, dry_run: bool
) -> VerbResult:
    if not dry_run:
        destination.will_change(mirror)
    state = destination.state()
    require_mirror(state, mirror)
    chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
    if topics is None:  # what was stopped before is refused only if it is named, or if nothing else is left
        chosen = [topic for topic in chosen if topic.desired is not DesiredState.STOPPED] or chosen
    pauses = verb == "pause"
    before, after = (DesiredState.ACTIVE, DesiredState.PAUSED) if pauses else (DesiredState.PAUSED, DesiredState.ACTIVE)
    changed = [topic.topic for topic in chosen if topic.desired is before]
    # the engine's answer names the pause: an answer to an earlier one may still be stored
    pause_id = uuid.uuid4().hex
    if dry_run and changed:
        require_own_rights(destination)
    elif not dry_run:

        def decide(now: State) -> Changes:
            record = require_mirror(now, mirror)
            found = [now.topic(mirror, name) for name in changed]
            # another command may have stopped some meanwhile
            chosen[:] = [now.topic(mirror, topic.topic) or topic for topic in chosen]
            records: list[Record] = [
                replace(topic, desired=after, pause_id=pause_id if pauses else topic.pause_id)
                for topic in found
                if topic is not None and topic.desired is before
            ]
            if topics is None and record.paused is not pauses:
                records.append(replace(record, paused=pauses))
            details = {"topics": changed[:_MOST_TOPICS_IN_EVENT], "count": len(changed), "all": topics is None}
            event = own_event(mirror, verb, ExitCode.OK.name, details)
            return Changes(tuple(records), (), (event,)) if records else Changes()

        change(destination, mirror, decide)
    # also wait for topics already being paused: the command that recorded that may have been killed
    living = [topic.topic for topic in chosen if topic.desired is not DesiredState.STOPPED]
    warnings: list[str] = []
    late = not dry_run and pauses and _is_late(destination, mirror, living, warnings)
    rows = [_row(topic, verb, topic.topic in changed, dry_run=dry_run, late=late) for topic in chosen]
    if topics is None and (not rows or require_mirror(state, mirror).paused is not pauses):
        word = ("would be" if dry_run else "is") + (" paused" if pauses else " resumed")
        rows.append(TopicResult(None, None, Outcome.DONE, f"mirror {mirror} {word}, including topics added later"))
    return VerbResult.of(verb, mirror, rows, dry_run=dry_run, warnings=warnings)


def _is_late(destination: Destination, mirror: str, topics: list[str], warnings: list[str]) -> bool:
    """Wait for the engine, and fence a silent one, whose lanes may run; return whether one may still copy."""
    if not topics:
        return False
    until, silence = Deadline(_PATIENCE_S), EngineSilence()
    while True:
        ended = await_handover(destination, mirror, topics, _RELEASED, until.remaining, silence)
        if ended is not Handover.SILENT:
            return ended is Handover.LATE
        destination.require_condition()
        try:
            end_lease(destination.store, mirror, silence.record)
        except RefusedError as error:
            if error.reason is not Reason.FENCED:
                raise
            continue  # it sent a heartbeat, or another engine is in charge
        again = f"if it does not start again by itself, `{on_mirror('run', mirror)}` starts one"
        warnings.append(f"the engine of mirror {mirror} sent no heartbeat and was fenced; {again}")


def _row(topic: TopicRecord, verb: str, changed: bool, *, dry_run: bool, late: bool) -> TopicResult:
    name = topic.topic
    if topic.desired is DesiredState.STOPPED:
        hint = "`kmirror add --adopt` makes it a mirror topic again; `kmirror failback` mirrors in the other direction"
        return TopicResult(name, None, Outcome.REFUSED, f"{name} is stopped: it is no longer a mirror topic", hint=hint)
    if late:
        message = f"{name} is being paused, but its engine may still copy it after {_PATIENCE_S:g} s"
        return TopicResult(name, None, Outcome.TIMED_OUT, message, hint="`kmirror describe` shows when it is paused")
    if not changed:
        word = "paused" if verb == "pause" else "not paused"
        return TopicResult(name, None, Outcome.NOOP, f"{name} is already {word}")
    word = {"pause": "paused", "resume": "resumed"}[verb]
    return TopicResult(name, None, Outcome.DONE, f"{name} {'would be' if dry_run else 'is'} {word}")
