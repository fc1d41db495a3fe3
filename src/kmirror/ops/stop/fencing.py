"""Fence engines that could still write to topics that are being stopped.

An engine that releases the topics confirms that nothing is in flight any more. If it does not, or if the verb always
fences, its lease is taken and its producer ids are fenced at every leader (`cluster.writing.fence`).
"""

from __future__ import annotations

import time
from contextlib import closing

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.authorized import cluster_operations, marker_operations, missing_operations
from kmirror.cluster.writing.fence import Writer, fence, replicated_ends
from kmirror.engine.spec import own_producer_id
from kmirror.ops.base.context import require_mirror
from kmirror.ops.base.handover import Handover, await_handover
from kmirror.ops.stop.facts import StopFacts
from kmirror.ops.stop.make_writable import ask_for_settings
from kmirror.ops.stop.report import partitions_of
from kmirror.ops.stop.work import StopWork
from kmirror.state.engine_identity import living_engine
from kmirror.state.lease import end_lease
from kmirror.state.records import DesiredState, EngineState, PartitionState, TopicRecord
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.state.waiting import STEP_S, Deadline

#: Time a running engine may take to release topics.
_HANDOVER_S = 5.0
_REFUSED = (Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED)


def decide_to_fence(work: StopWork) -> None:
    """Decide whether brokers must fence the engine, as far as that is known before it is told to stop."""
    work.must_fence = work.request.always_fence
    work.is_over = not work.topics


def release_topics(work: StopWork) -> str:
    """Wait until the engine has released the topics, or take its lease: then brokers must fence it."""
    request = work.request
    if not work.left:
        _end_engine(work)
        return "engine ended"
    if request.whole:
        work.must_fence |= _end_engine(work)
        return "engine fenced"
    names, states = [topic.topic for topic in work.left], (PartitionState.STOPPING, PartitionState.STOPPED)
    ended = await_handover(work.destination, request.mirror, names, states, _HANDOVER_S)
    if ended is Handover.CLEAN:
        return "engine released the topics"
    work.drop_taken()
    if len(work.left) < len(names):
        return release_topics(work)  # an engine does not release what it copies again
    if ended is Handover.LATE:
        work.done.warnings.append(f"the engine did not release the topics within {_HANDOVER_S:g} s and was fenced")
    _end_engine(work)
    work.must_fence = True
    return "engine fenced"


def foresee_release(work: StopWork) -> None:
    """Expect an engine that sends heartbeats to release the topics, unless all of the mirror is stopped."""
    mirror = work.request.mirror
    engine = work.state.engine(mirror)
    if engine is not None and engine.state is not EngineState.RELEASED and not work.must_fence:
        work.must_fence = work.request.whole or (
            living_engine(work.destination.store, engine, DEFAULT_TIMEOUT_S) is None
        )


def _end_engine(work: StopWork) -> bool:
    """Take the lease from the engine that has it; return False if there was certainly none."""
    mirror = work.request.mirror
    work.drop_taken()
    others = [] if work.left else work.destination.state().topics(mirror)
    if any(topic.desired is not DesiredState.STOPPED for topic in others):
        return False  # it copies topics that are mirrored since
    engine = work.state.engine(mirror)
    if engine is None or engine.state is EngineState.RELEASED:
        engine = work.destination.state().engine(mirror)  # one may have started as this was recorded
    if engine is None or engine.state is EngineState.RELEASED:
        return engine is not None and engine.settle_ms > 0
    end_lease(work.destination.store, mirror)
    return True


def find_writers(work: StopWork) -> None:
    """Find the producers of partitions whose ends are not recorded yet; start asking the source, and for settings."""
    mirror = require_mirror(work.state, work.request.mirror)
    work.facts = StopFacts(work.destination, work.state, mirror, work.topics)
    work.resources.enter_context(closing(work.facts.request)).start()
    if work.runner.acts:
        ask_for_settings(work)
    work.writers = {
        partition: writer
        for topic in work.topics
        for partition in partitions_of(topic)
        if (writer := _writer(work, topic, partition)) is not None
    }


def fence_writers(work: StopWork) -> str:
    """Fence the mirror's producers, which also returns where the logs ended."""
    client = work.destination.client
    work.drop_taken()
    found = fence(client, work.writers, metadata=work.metadata)
    refused = {p: w for p, w in work.writers.items() if found[p].error_code in _REFUSED}
    if refused and work.request.fence_with_record:
        found |= fence(client, refused, with_record=True)
    elif refused:
        # not fenced at the brokers: what is in flight may arrive until the lease has expired
        engine = work.destination.state().engine(work.request.mirror)
        settled = Deadline((engine.settle_ms if engine else 0) / 1000)
        while not settled.passed:
            time.sleep(min(settled.remaining, STEP_S))
        found |= replicated_ends(client, refused)
        rights = " or ".join(marker_operations(client))
        work.done.warnings.append(
            "the mirror's producers were not fenced at the brokers: kmirror lacks the right to write markers "
            f"({rights} on the cluster). Only its lease keeps a forgotten engine from writing; "
            "--fence-with-record fences it at the cost of one visible record per partition"
        )
    work.log_ends = found
    return "writers fenced" if any(end.is_fenced for end in found.values()) else "ends read"


def foresee_fence(work: StopWork) -> None:
    """Read where the logs ended or would end, and warn if the brokers would refuse to fence."""
    client = work.destination.client
    found = fence(client, work.writers, dry_run=True, metadata=work.metadata)
    work.log_ends = {partition: end for partition, end in found.items() if end.error_code not in _REFUSED}
    to_fence, operations = marker_operations(client), cluster_operations(client)
    if not work.request.fence_with_record and all(missing_operations(operations, [one]) for one in to_fence):
        work.done.warnings.append(
            f"kmirror lacks the right to write markers here ({' or '.join(to_fence)} on the cluster): a forgotten"
            " engine would be fenced by its lease only"
        )


def read_ends(work: StopWork) -> str | None:
    """Read where the logs of producers end that were not fenced."""
    missing = [partition for partition in work.writers if partition not in work.log_ends]
    work.log_ends |= replicated_ends(work.destination.client, missing) if missing else {}
    return "ends read" if missing else None


def _writer(work: StopWork, topic: TopicRecord, partition: TopicPartition) -> Writer | None:
    """Return the producer of a partition's copy; None if its end is recorded already."""
    record, report = work.state.partition(topic.mirror, *partition), work.facts.reports.get(partition)
    if record is not None and record.last_mirrored_offset is not None:
        return None
    known_end = (report.row.destination_offset or 0) if report else 0
    guard = record.guard if record else None
    if guard is None:
        return Writer(own_producer_id(topic.mirror, *partition), 0, known_end)
    return Writer(guard.producer_id, guard.producer_epoch, known_end)
