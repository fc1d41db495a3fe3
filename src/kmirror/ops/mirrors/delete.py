"""`delete`: forget a mirror whose topics are stopped or gone. No topic is touched; the events stay.

They tell a mirror that was forgotten before, where nothing has to be done, from one that never was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.context import (
    PENDING_ADD,
    Destination,
    actor,
    change,
    naming_cluster,
    now_ms,
    require_mirror,
)
from kmirror.ops.gone import gone_topics
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.rights.source_cut import unblocking_lines
from kmirror.ops.show.rows import engine_in_charge
from kmirror.state.events import Event
from kmirror.state.records import DesiredState, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.words import at_time, counted

_MOST_NAMES = 10
#: The code of this verb, in results and in events.
_VERB = "delete"


def delete(destination: Destination, mirror: str, *, dry_run: bool = False) -> VerbResult:
    """Forget everything remembered of the mirror; no topic is touched. NOOP where that was done before.

    Raises:
        RefusedError: there never was such a mirror, a topic is neither stopped nor gone, or an engine still runs.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    if (before := _forgotten_before(destination, state, mirror)) is not None:
        return _result(mirror, before, dry_run, Outcome.NOOP)
    require_mirror(state, mirror)
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        topics = state.topics(mirror)
        found = destination.client.metadata([topic.topic for topic in topics]).topics
        gone = gone_topics(destination.client, topics, found)
    require_deletable(state, mirror, gone, now_ms())
    whole = f"mirror {mirror} and its {counted(len(state.topics(mirror)), 'topic')}"
    left = _left_at_source(state, mirror)
    if dry_run:
        return replace(_result(mirror, f"would delete {whole}", dry_run), warnings=left)

    def decide(now: State) -> Changes:
        if now.mirror(mirror) is None:
            return Changes()
        require_deletable(now, mirror, gone, now_ms())
        details = {"topics": [topic.topic for topic in now.topics(mirror)][:100], "count": len(now.topics(mirror))}
        event = Event(now_ms(), mirror, _VERB, actor(), ExitCode.OK.name, details)
        return Changes((), now.keys_of(mirror), (event,))

    if not change(destination, mirror, decide):
        # somebody else has done it since
        return delete(destination, mirror)
    return replace(_result(mirror, f"deleted {whole}", dry_run), warnings=left)


def require_deletable(state: State, mirror: str, gone: Collection[str], now_ms: int) -> None:
    """Refuse to forget a mirror that is still at work; `gone` are those of its topics that were deleted.

    Raises:
        RefusedError: names the engine in charge, or the topics that are neither stopped nor gone.
    """
    engine = engine_in_charge(state, mirror, now_ms)
    if engine is not None:
        raise RefusedError(
            f"an engine is in charge of mirror {mirror}: process {engine.pid} on {engine.host}",
            "stop it first (Ctrl-C there, or SIGTERM); `run --all` lets a mirror go that was failed over as a whole",
        )
    alive = [topic.topic for topic in state.topics(mirror) if not _may_be_forgotten(state, topic, gone)]
    if alive:
        many = counted(len(alive), "topic that is", "topics that are")
        raise RefusedError(
            f"mirror {mirror} still has {many} neither stopped nor gone: {_some(alive)}",
            "`kmirror promote`, `failover` or `remove` stops them; a topic that its owner has deleted counts as gone",
        )


def _forgotten_before(destination: Destination, state: State, mirror: str) -> str | None:
    """Return who has forgotten a mirror that is not there any more, and when; None where no event tells."""
    if state.mirror(mirror) is not None:
        return None
    state.require_readable(mirror)
    for event in reversed(destination.store.read_events(mirror)):
        if event.what == _VERB and event.result == ExitCode.OK.name:
            return f"mirror {mirror} was already deleted by {event.actor} at {at_time(event.time_ms)}"
    return None


def _may_be_forgotten(state: State, topic: TopicRecord, gone: Collection[str]) -> bool:
    if topic.pending_operation == PENDING_ADD or topic.topic in gone:
        return True
    stopped = all(one.state is PartitionState.STOPPED for one in state.partitions(topic.mirror, topic.topic))
    return topic.desired is DesiredState.STOPPED and stopped


def _left_at_source(state: State, mirror: str) -> tuple[str, ...]:
    """Return a warning of the denials that stay at the source, and that nobody remembers then."""
    blocked = [one for topic in state.topics(mirror) for one in state.rights(mirror, topic.topic).blocked]
    if not blocked:
        return ()
    servers = require_mirror(state, mirror).source.get("bootstrap.servers", "SOURCE")
    lines = unblocking_lines(blocked, f"--bootstrap-server {servers} --command-config admin.properties")
    return (f"the source goes on refusing writes to topics that moved; to let producers write there again:\n{lines}",)


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:_MOST_NAMES]) + (", …" if len(shown) > _MOST_NAMES else "")


def _result(mirror: str, message: str, dry_run: bool, outcome: Outcome = Outcome.DONE) -> VerbResult:
    return VerbResult.of(_VERB, mirror, [TopicResult(None, None, outcome, message)], dry_run=dry_run)
