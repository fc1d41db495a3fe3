"""What a broker's error code for a fetch or an append means for a partition. Pure."""

from __future__ import annotations

from kmirror.cluster.protocol.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.protocol.fetch import FetchedPartition
from kmirror.cluster.protocol.filler import begins_with_filler
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.histories.judge import Fail, Trouble
from kmirror.errors import Reason
from kmirror.words import counted

#: Error codes that reject the batch itself.
REJECTED = {
    Code.MESSAGE_TOO_LARGE,
    Code.RECORD_LIST_TOO_LARGE,
    Code.INVALID_RECORD,
    Code.INVALID_TIMESTAMP,
    Code.CORRUPT_MESSAGE,
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
#: Error codes after which nothing arrives any more. The log end says whether the batch was appended: a leader that is
#: demoted while it waits for its replicas answers as if it had not been (LEADER_MOVED).
_DECIDED = (
    LEADER_MOVED
    | REJECTED
    | {
        Code.INVALID_PRODUCER_EPOCH,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
        Code.NOT_ENOUGH_REPLICAS,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.UNKNOWN_PRODUCER_ID,
    }
)


def unusable(answer: FetchedPartition, source: TopicPartition, next_offset: int, *, begun: bool) -> Trouble | None:
    """Return why a part of a Fetch response for `next_offset` on cannot be copied; None if it can.

    `begun`: records of this source were copied before.
    """
    if answer.error_code:
        return fetch_refused(source, answer.error_code)
    if answer.diverging_epoch:
        # an inspection finds out where exactly, and whether the copy differs at all
        epoch, end = answer.diverging_epoch
        what = f"the source's epoch {epoch} now ends at offset {end}, but {next_offset} was reached in it"
        return Trouble(Reason.SOURCE_DIVERGED, what)
    if not begun and begins_with_filler(answer.records):
        what = (
            f"{source} is itself a mirror whose log start is not ready yet: it begins with filler;"
            " copying begins when its own mirror has removed the filler"
        )
        return Trouble(Reason.SOURCE_UNREACHABLE, what)
    return None


def fetch_refused(source: TopicPartition, code: int) -> Trouble:
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to READ source topic {source.topic}", True)
    return Trouble(Reason.SOURCE_UNREACHABLE, f"fetching {source}: {code_name(code)} ({code})")


def append_refused(destination: TopicPartition, offset: int, code: int, what: str) -> Fail | Trouble:
    """Return what the error code of an append means; `what` is the error in words."""
    if code in REJECTED:
        what = f"the destination rejects the batch at offset {offset} of {destination}: {what}"
        return Fail(Reason.RECORD_REJECTED, what, offset)
    if code == Code.INVALID_PRODUCER_EPOCH:
        return Fail(Reason.FENCED, f"{destination} is no longer written by this engine: it was fenced ({what})", offset)
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to WRITE mirror topic {destination.topic}", True)
    return Trouble(Reason.DESTINATION_UNREACHABLE, f"appending to {destination}: {what}")


def refusal(code: int, detail: str | None, size_in_bytes: int) -> str:
    """Return in words with which error code a batch of this size was refused."""
    if code == Code.UNSUPPORTED_FOR_MESSAGE_FORMAT and not detail:
        detail = "message.format.version of the mirror topic, or its brokers' log.message.format.version, is below 0.11"
    what = f"{code_name(code)} ({code})" + (f": {detail}" if detail else "")
    is_too_large = code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
    return f"{what}; the batch has {counted(size_in_bytes, 'byte')}" if is_too_large else what


def may_yet_be_appended(code: int) -> bool:
    """Return True if a refused batch may still be appended after the log end was read."""
    return code not in _DECIDED


def altered(destination: TopicPartition, offset: int, base_offset: int) -> Fail:
    """Return the failure for a batch that was appended at another offset, or there with other timestamps."""
    if base_offset == offset:
        what = (
            f"the destination replaced the timestamps of the batch at offset {offset} of {destination}: "
            "message.timestamp.type of the mirror topic is or was LogAppendTime"
        )
    else:
        what = f"a batch for offset {offset} of {destination} was appended at {base_offset}"
        what += ": another client writes to it"
    return Fail(Reason.OFFSET_MISMATCH, f"{what}; copying has stopped and nothing was repaired", offset)
