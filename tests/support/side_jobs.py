"""An engine's side jobs, run by hand: what the engine would show them, and their messages."""

from __future__ import annotations

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.side_jobs import JobEvent, JobView, SideJob
from kmirror.ops.base.context import Destination, require_mirror
from kmirror.settings.parsing import parse_settings


def view_of(destination: Destination, mirror: str) -> JobView:
    """Return what an engine that has copied nothing yet shows its jobs."""
    state = destination.state()
    record = require_mirror(state, mirror)
    topics = state.topics(mirror)
    partitions = {
        TopicPartition(one.topic, one.partition): one
        for topic in topics
        for one in state.partitions(mirror, topic.topic)
    }
    return JobView(record, parse_settings(record.settings), topics, partitions, {})


def run_once(job: SideJob, destination: Destination, mirror: str) -> list[JobEvent]:
    """Let a job run once; return its messages."""
    return [event for event in job.run(view_of(destination, mirror)) if isinstance(event, JobEvent)]
