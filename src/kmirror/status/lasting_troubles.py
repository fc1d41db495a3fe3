"""What an engine should do beside copying and has not done for long. Pure: no I/O, no clock."""

from __future__ import annotations

from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State
from kmirror.status.engine_health import EngineHealth, engine_health
from kmirror.status.unmirrored import not_added_notes, not_added_topics
from kmirror.words import at_time, visible

#: By a side job's name, what is not done while it fails.
_NOT_DONE = {
    "group offsets": "group offsets are not synced",
    "topic settings": "topic settings are not synced",
    "rights": "rights are not synced, and new topics are not protected",
    "discovery": "new topics of the source are not found",
    "clients": "client quotas and users are not synced",
    "checkpoints": "MirrorMaker's checkpoints and offset syncs are not written",
    "heartbeats": "MirrorMaker's heartbeats are not written",
}


def failing_job_notes(state: State, mirror: str, health: EngineHealth) -> list[str]:
    """Return a sentence for each side job that the engine in charge reports as failing, if it is in good `health`.

    None while its source is away. Once all topics are stopped, there is nothing left to do but to find new ones.
    """
    engine, topics = state.engine(mirror), state.topics(mirror)
    if engine is None or engine.source_reason is not None or health.reason is not None:
        return []
    is_stopped = bool(topics) and all(topic.desired is DesiredState.STOPPED for topic in topics)
    return [
        f"mirror {visible(mirror)}: {_NOT_DONE.get(name, f'{visible(name)} fails')} since {at_time(failure.since_ms)}:"
        f" {failure.message}"
        for name, failure in sorted((engine.failing_jobs or {}).items())
        if name == "discovery" or not is_stopped
    ]


def lasting_notes(state: State, mirror: MirrorRecord, now_ms: int) -> list[str]:
    """Return a sentence for each source topic that could not be added, and for each side job that fails."""
    health = engine_health(state.engine(mirror.name), mirror.name, now_ms)
    return [*not_added_notes(not_added_topics(state, mirror)), *failing_job_notes(state, mirror.name, health)]
