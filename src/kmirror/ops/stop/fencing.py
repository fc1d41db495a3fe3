"""Fence engines that could still write to topics that are being stopped.

An engine that releases the topics confirms that nothing is in flight any more. If it does not, or if the verb always
fences, its lease is taken and its producer ids are fenced at every leader (`cluster.writing.fence`).
"""

from __future__ import annotations

import time

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.authorized import marker_operations
from kmirror.cluster.writing.fence import Writer, fence, log_ends
from kmirror.engine.spec import own_producer_id
from kmirror.ops.base.handover import Handover, await_handover
from kmirror.ops.stop.report import partitions_of
from kmirror.ops.stop.work import StopWork
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import EngineState, PartitionState, TopicRecord

#: Time a running engine may take to release topics.
_HANDOVER_S = 5.0
#: Length of our own lease, and so the longest the lanes of the engine it was taken from may continue.
_LEASE_TTL_MS = 5_000
_REFUSED = (Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED)


def release_topics(work: StopWork) -> str | None:
    """Wait until the engine has released the topics, or take its lease; decide whether brokers must fence it."""
    request = work.request
    work.must_fence = request.always_fence
    if not work.topics:
        work.is_over = True
        if not request.whole:
            return None
        _end_engine(work)
        return "engine ended"
    if request.whole:
        work.must_fence |= _end_engine(work)
        return "engine fenced"
    names, states = [topic.topic for topic in work.topics], (PartitionState.STOPPING, PartitionState.STOPPED)
    ended = await_handover(work.destination, request.mirror, names, states, _HANDOVER_S)
    if ended is Handover.CLEAN:
        return "engine released the topics"
    if ended is Handover.LATE:
        work.done.warnings.append(f"the engine did not release the topics within {_HANDOVER_S:g} s and was fenced")
    _end_engine(work)
    work.must_fence = True
    return "engine fenced"


def _end_engine(work: StopWork) -> bool:
    """Take the lease from the engine that has it; return False if there was certainly none."""
    mirror = work.request.mirror
    engine = work.destination.state().engine(mirror)
    if engine is None or (engine.state is EngineState.RELEASED and not engine.settle_ms):
        return False
    if engine.state is not EngineState.RELEASED:
        identity = EngineIdentity.of_this_process()
        lease = Lease.acquire(work.destination.store, mirror, identity, _LEASE_TTL_MS, take_over=True)
        try:
            lease.release()
        finally:
            lease.close()
    return True


def fence_writers(work: StopWork) -> str:
    """Fence the mirror's producers if needed, and read where the logs end; meanwhile the source is asked.

    Skips partitions whose end is recorded already.
    """
    client = work.destination.client
    work.facts.ask_source()
    writers = {
        partition: writer
        for topic in work.topics
        for partition in partitions_of(topic)
        if (writer := _writer(work, topic, partition)) is not None
    }
    if not writers:
        return "ends read"
    if not work.must_fence:
        work.log_ends = log_ends(client, writers)
        return "ends read"
    found = fence(client, writers)
    refused = {p: w for p, w in writers.items() if found[p].error_code in _REFUSED}
    if refused and work.request.fence_with_record:
        found |= fence(client, refused, with_record=True)
    elif refused:
        # not fenced at the brokers: what is in flight may arrive until the lease has expired
        engine = work.destination.state().engine(work.request.mirror)
        time.sleep((engine.settle_ms if engine else 0) / 1000)
        found |= log_ends(client, refused)
        rights = " or ".join(marker_operations(client))
        work.done.warnings.append(
            "the mirror's producers were not fenced at the brokers: kmirror lacks the right to write markers "
            f"({rights} on the cluster). Only its lease keeps a forgotten engine from writing; "
            "--fence-with-record fences it at the cost of one visible record per partition"
        )
    work.log_ends = found
    return "writers fenced" if any(end.is_fenced for end in found.values()) else "ends read"


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
