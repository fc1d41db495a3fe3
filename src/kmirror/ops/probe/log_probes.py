"""Logs as a whole: made to begin above 0, deleted, and created again with another id."""

from __future__ import annotations

from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.cluster.protocol.pieces import Run
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, format_topic_id
from kmirror.cluster.topics.topic_requests import delete_topics
from kmirror.cluster.topics.trim import delete_records
from kmirror.errors import BrokerError
from kmirror.ops.base.context import now_ms
from kmirror.ops.probe.guarantees import Guarantee, broken, holds, weaker
from kmirror.ops.probe.partition import ProbePartition, run_of
from kmirror.ops.probe.topic import ProbeTopic

LOG_STARTS, TOPIC_IDS = "log starts", "topic ids"
_NO_TRIM = "topics whose log begins above 0 cannot be mirrored, and deletions at the source are not followed"


def trim_guarantees(trial: ProbePartition) -> list[Guarantee]:
    """Make a log begin above 0: fill it with the largest batch of filler, delete that, and append after it."""
    at_ms = now_ms()
    filler = memoryview(filler_batch(FILLER_RECORDS, at_ms))
    try:
        trial.out.append_run(Run(0, FILLER_RECORDS, at_ms, filler))
    except BrokerError as error:
        return [weaker(LOG_STARTS, f"a batch of filler is refused ({error}): {_NO_TRIM}", _ask("its batches"))]
    trimmed = delete_records(trial.client, {trial.partition: FILLER_RECORDS})[trial.partition]
    if trimmed.error_code:
        why = f"{code_name(trimmed.error_code)} ({trimmed.error_code})"
        return [weaker(LOG_STARTS, f"DeleteRecords is refused: {why}; {_NO_TRIM}", _ask("DeleteRecords"))]
    ends = trial.log_start(), trial.log_end()
    if ends != (FILLER_RECORDS, FILLER_RECORDS):
        wanted = f"deleting records below offset {FILLER_RECORDS}, up to the log end, leaves a log"
        return [broken(LOG_STARTS, f"{wanted} from {ends[0]} to {ends[1]}: readers of a mirror would see filler")]
    trial.out.append_run(run_of(FILLER_RECORDS, 1))
    return [holds(LOG_STARTS, "a log can be made to begin above 0, and its first records can be deleted")]


def _ask(what: str) -> str:
    return f"ask who runs the cluster to allow {what}"


def recreation_guarantees(trial: ProbePartition, topic: ProbeTopic) -> list[Guarantee]:
    """Delete the topic, create it again, and send a batch for the old one."""
    old = topic.topic_id()
    if old is None or old == NO_TOPIC_ID:
        return [broken(TOPIC_IDS, "topics have no ids: a recreated topic would be taken for the old one")]
    # it knows the topic by its old id from now on
    trial.out.append_run(run_of(0, 1))
    delete_topics(trial.client, [old])
    if not topic.create_again():
        return [broken(TOPIC_IDS, "a deleted topic is still there")]
    new = topic.topic_id()
    if new is None or new in (old, NO_TOPIC_ID):
        name = "none" if new is None else format_topic_id(new)
        return [broken(TOPIC_IDS, f"a recreated topic has the id of the old one ({name}): it would be taken for it")]
    if (end := trial.log_end()) != 0:
        return [broken(TOPIC_IDS, f"the log of a recreated topic ends at {end}, not at 0")]
    if trial.client.highest_version(produce.API_KEY) < produce.FIRST_VERSION_WITH_TOPIC_IDS:
        return [holds(TOPIC_IDS, "a recreated topic has another id; batches name the topic, so the id is compared")]
    late = trial.try_batch(run_of(0, 1), 0)
    if late.is_appended or late.code == Code.NONE:
        return [broken(TOPIC_IDS, "a batch for a deleted topic is appended to the one that has its name now")]
    return [holds(TOPIC_IDS, "a recreated topic has another id, and a batch for the old topic is refused")]
