"""`delete`: delete the stored state of a mirror whose topics are stopped or gone. No topic is changed.

The denials on topics that are gone, or were never created, are removed first: no stop has lifted them, and afterwards
no record of them is left.
The events stay: from them a mirror that was deleted before (a NOOP) is known from one that never existed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kmirror.cluster.rights.acl_commands import AS_ADMIN, admin_options
from kmirror.cluster.rights.acls import NoAuthorizerError, delete_acls
from kmirror.commands import on_topics, option
from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.base.context import Destination, change, naming_cluster, own_event, require_mirror
from kmirror.ops.base.gone import gone_topics
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.ops.rights.producer_block import unblocking_lines
from kmirror.ops.rights.protection import is_mirrored
from kmirror.state.engine_identity import living_engine
from kmirror.state.records import (
    PENDING_ADD,
    PENDING_STOP,
    DesiredState,
    EngineRecord,
    EngineState,
    PartitionState,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.words import at_time, counted

_MOST_NAMES = 10
#: The code of this verb, in results and in events.
_VERB = "delete"


def delete(destination: Destination, mirror: str, *, dry_run: bool = False) -> VerbResult:
    """Delete everything stored of the mirror; no topic is changed. NOOP if that was done before.

    Raises:
        RefusedError: the mirror never existed, a topic is neither stopped nor gone, or an engine still runs.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    if (before := _deleted_before(destination, state, mirror)) is not None:
        return _result(mirror, before, dry_run, Outcome.NOOP)
    require_mirror(state, mirror)
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        topics = state.topics(mirror)
        found = destination.client.metadata([topic.topic for topic in topics]).topics
        gone = gone_topics(destination.client, topics, found)
    known = state.engine(mirror)
    _require_no_engine(living_engine(destination.store, known, DEFAULT_TIMEOUT_S))
    require_deletable(state, mirror, gone)
    kept = [topic for topic in topics if topic.topic not in gone and not found[topic.topic].error_code]
    whole = f"mirror {mirror}; {_kept(len(kept))}"
    left = _left_at_source(state, mirror)
    if dry_run:
        require_own_rights(destination)
        return replace(_result(mirror, f"would delete {whole}", dry_run), warnings=left)

    def decide(now: State) -> Changes:
        if now.mirror(mirror) is None:
            return Changes()
        engine = now.engine(mirror)
        if engine != known and engine is not None and engine.state is not EngineState.RELEASED:
            _require_no_engine(engine)  # it has begun meanwhile
        require_deletable(now, mirror, gone)
        details = {"topics": [topic.topic for topic in now.topics(mirror)][:100], "count": len(now.topics(mirror))}
        event = own_event(mirror, _VERB, ExitCode.OK.name, details)
        return Changes((), now.keys_of(mirror), (event,))

    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        left += _lift_protection(destination, state, mirror, gone)
    if not change(destination, mirror, decide):
        # another operation has deleted it meanwhile
        return delete(destination, mirror)
    return replace(_result(mirror, f"deleted {whole}", dry_run), warnings=left)


def _require_no_engine(engine: EngineRecord | None) -> None:
    if engine is not None:
        raise RefusedError(
            f"an engine is in charge of mirror {engine.mirror}: process {engine.pid} on {engine.host}",
            "stop it first (Ctrl-C there, or SIGTERM); `run --all` releases a mirror that was failed over as a whole",
        )


def require_deletable(state: State, mirror: str, gone: Collection[str]) -> None:
    """Refuse to delete a mirror that is in use; `gone` are those of its topics that were deleted.

    Raises:
        RefusedError: names the topics that are neither stopped nor gone, or whose stop is unfinished.
    """
    left = [topic for topic in state.topics(mirror) if not _is_deletable(state, topic, gone)]
    alive = [topic.topic for topic in left]
    if unfinished := [topic for topic in left if topic.pending_operation == PENDING_STOP]:
        first = unfinished[0].stop_reason or Reason.FAILED_OVER
        names = [topic.topic for topic in unfinished if topic.stop_reason is unfinished[0].stop_reason]
        verb = {Reason.PROMOTED: "promote", Reason.REMOVED: "remove"}.get(first, "failover")
        raise RefusedError(
            f"a {verb} of {_some(names)} has started and is not finished",
            f"`{on_topics(verb, mirror, names[:_MOST_NAMES])}` finishes it: it makes them writable",
        )
    if alive:
        many = counted(len(alive), "topic that is", "topics that are")
        raise RefusedError(
            f"mirror {mirror} still has {many} neither stopped nor gone: {_some(alive)}",
            "`kmirror promote`, `failover` or `remove` stops them; a deleted topic counts as gone",
        )


def _kept(topics: int) -> str:
    """Return what is said of the topics: no verb deletes their records."""
    if not topics:
        return "no topic of it exists"
    return f"{counted(topics, 'topic')} {'is' if topics == 1 else 'are'} kept, with all records"


def _deleted_before(destination: Destination, state: State, mirror: str) -> str | None:
    """Return a message with who deleted a mirror and when; None if it exists or no event says so."""
    if state.mirror(mirror) is not None:
        return None
    state.require_readable(mirror)
    for event in reversed(destination.store.read_events(mirror)):
        if event.what == _VERB and event.result == ExitCode.OK.name:
            return f"mirror {mirror} was already deleted by {event.actor} at {at_time(event.time_ms)}"
    return None


def _is_deletable(state: State, topic: TopicRecord, gone: Collection[str]) -> bool:
    if topic.pending_operation == PENDING_ADD or topic.topic in gone:
        return True
    stopped = all(one.state is PartitionState.STOPPED for one in state.partitions(topic.mirror, topic.topic))
    return topic.desired is DesiredState.STOPPED and topic.pending_operation is None and stopped


def _left_at_source(state: State, mirror: str) -> tuple[str, ...]:
    """Return a warning about the denials that stay on the source, and of which no record is left."""
    blocked = [one for topic in state.topics(mirror) for one in state.rights(mirror, topic.topic).blocked]
    if not blocked:
        return ()
    servers = require_mirror(state, mirror).source.get("bootstrap.servers", "SOURCE")
    lines = unblocking_lines(blocked, (*option("--bootstrap-server", servers), *AS_ADMIN))
    return (f"the source still refuses writes to topics that moved; to let producers write there again:\n{lines}",)


def _lift_protection(destination: Destination, state: State, mirror: str, gone: Collection[str]) -> tuple[str, ...]:
    """Remove the denials on topics that are gone or were never created, unless another mirror has a topic of that name.

    Returns a warning about those that kmirror may not remove.
    """
    others = [one.name for one in state.mirrors if one.name != mirror]
    names = [
        topic.topic
        for topic in state.topics(mirror)
        if (topic.topic in gone or topic.pending_operation == PENDING_ADD)
        and not any(is_mirrored(state.topic(other, topic.topic)) for other in others)
    ]
    denied = [one for name in names for one in state.rights(mirror, name).denied]
    left = []
    for denial, error in delete_acls(destination.client, denied).items():
        if error is None or isinstance(error, NoAuthorizerError):
            continue
        if error.reason is not Reason.NOT_AUTHORIZED:
            raise error
        left.append(denial)
    if not left:
        return ()
    lines = unblocking_lines(left, admin_options(destination.config))
    why = "the destination still refuses writes to topics that are gone, should they be created again"
    return (f"{why}; to let producers write to them:\n{lines}",)


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:_MOST_NAMES]) + (", …" if len(shown) > _MOST_NAMES else "")


def _result(mirror: str, message: str, dry_run: bool, outcome: Outcome = Outcome.DONE) -> VerbResult:
    return VerbResult.of(_VERB, mirror, [TopicResult(None, None, outcome, message)], dry_run=dry_run)
