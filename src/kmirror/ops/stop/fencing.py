"""Fence the engines that could still write to topics that are stopped.

An engine that releases the topics reports that nothing is in flight any more. Where it does not, or where the verb
always fences, its lease is taken and its producer ids are fenced at every leader (`cluster.fence`).
"""

from __future__ import annotations

import time

from kmirror.cluster.fence import Writer, fence, log_ends
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.spec import own_producer_id
from kmirror.ops.stop.handover import Handover, await_handover
from kmirror.ops.stop.report import places_of
from kmirror.ops.stop.work import StopWork
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import EngineState, PartitionState, TopicRecord

#: How long an engine that is at work may take to give topics up.
_HANDOVER_S = 5.0
#: How long the lanes of an engine whose lease was taken may go on, at most, by the lease's own length.
_LEASE_TTL_MS = 5_000
_REFUSED = (Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED)


def take_charge(work: StopWork) -> str | None:
    """Have the engine release the topics, or take its lease; find out whether the brokers have to fence it."""
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
    """Take the lease from the engine that has it; return whether there may have been one."""
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
    """Fence the mirror's producers where that is needed, and look up where the logs end; the source is asked meanwhile.

    Partitions whose end is recorded already are left out.
    """
    client = work.destination.client
    work.look.ask_source()
    writers = {
        place: writer
        for topic in work.topics
        for place in places_of(topic)
        if (writer := _writer(work, topic, place)) is not None
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
        # the brokers fence no one: what is in flight arrives until the lease has expired
        engine = work.destination.state().engine(work.request.mirror)
        time.sleep((engine.settle_ms if engine else 0) / 1000)
        found |= log_ends(client, refused)
        work.done.warnings.append(
            "the mirror's producers were not fenced at the brokers: kmirror lacks the right to write markers "
            "(ALTER or CLUSTER_ACTION on the cluster). Only its lease keeps a forgotten engine from writing; "
            "--fence-with-record fences it at the cost of one visible record per partition"
        )
    work.log_ends = found
    return "writers fenced" if any(end.is_fenced for end in found.values()) else "ends read"


def _writer(work: StopWork, topic: TopicRecord, place: TopicPartition) -> Writer | None:
    """Return the producer of a partition's copy; None where its end is recorded already."""
    record, seen = work.state.partition(topic.mirror, *place), work.look.seen.get(place)
    if record is not None and record.last_mirrored_offset is not None:
        return None
    known_end = (seen.row.destination_offset or 0) if seen else 0
    guard = record.guard if record else None
    if guard is None:
        return Writer(own_producer_id(topic.mirror, *place), 0, known_end)
    return Writer(guard.producer_id, guard.producer_epoch, known_end)
