"""The guard: sequence numbers as a compare-and-swap on the log end, own producer ids, and the log end itself."""

from __future__ import annotations

from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol.batch import SEQUENCE_MASK
from kmirror.ops.probe.guarantees import Guarantee, broken, holds, weaker
from kmirror.ops.probe.partition import ProbePartition, run_of

SEQUENCES = "sequence numbers"
PRODUCER_IDS = "own producer ids"
LOG_END = "log end"
#: Records of the first batch, and of the one that follows it.
_FIRST, _NEXT = 3, 2
#: Records of a batch whose sequence numbers start over at 0 after the second one.
_WRAPPING = 4


def append_guarantees(trial: ProbePartition) -> list[Guarantee]:
    """Find out whether appends are guarded, with batches that do and do not belong at the log end."""
    trial.out.append_run(run_of(0, _FIRST))
    found_end = trial.log_end()
    guard = _guard(trial)
    return [guard, _producer_ids(trial), _log_end(found_end)]


def _guard(trial: ProbePartition) -> Guarantee:
    """Send a batch after a gap, one that overlaps, one again, the next one, and one of an unknown producer."""
    for what, offset, count in (("after a gap", _FIRST + 1, _NEXT), ("that overlaps the last one", 1, _FIRST)):
        answer = trial.try_batch(run_of(offset, count), offset)
        if answer.is_appended or not answer.code:
            return broken(SEQUENCES, f"a batch {what} is not refused ({answer}): nothing keeps offsets equal")
    again = trial.try_batch(run_of(0, _FIRST), 0)
    if again.is_appended:
        return broken(SEQUENCES, "a repeated batch is appended a second time")
    following = trial.try_batch(run_of(_FIRST, _NEXT), _FIRST)
    if following.code or following.base_offset != _FIRST:
        return broken(SEQUENCES, f"the batch that belongs at the log end is not appended there ({following})")
    unknown = trial.try_batch(run_of(_FIRST + _NEXT, _WRAPPING), SEQUENCE_MASK - 1, producer_id=trial.producer_id ^ 1)
    if unknown.code:
        return broken(
            SEQUENCES,
            f"a producer id that the broker does not know may not begin with any sequence number ({unknown}): copying"
            " cannot resume once it has forgotten the id",
        )
    wrapped = trial.try_batch(run_of(_FIRST + _NEXT + _WRAPPING, 1), 2, producer_id=trial.producer_id ^ 1)
    if wrapped.code:
        return broken(SEQUENCES, f"sequence numbers do not continue with 0 after 2147483647 ({wrapped})")
    if again.code or again.base_offset != 0:
        return weaker(
            SEQUENCES,
            "a batch out of sequence is refused; a repeated one is not appended, but not answered with its offset"
            f" either ({again}): after a lost answer kmirror inspects the partition before it continues",
            "expect pauses in copying after connections break",
        )
    return holds(
        SEQUENCES, "a batch that does not continue the log is refused, a repeated one is answered with its old offset"
    )


def _producer_ids(trial: ProbePartition) -> Guarantee:
    """Compare the producer fields of the first stored batch, and what the leader reports of our producer."""
    stored = next(trial.stored(0, 1))
    sent = (trial.producer_id, 0, 0)
    found = (stored.header.producer_id, stored.header.producer_epoch, stored.header.base_sequence)
    if found != sent:
        return broken(
            PRODUCER_IDS,
            f"a batch with producer id, epoch and sequence number {sent} is stored with {found}: kmirror cannot tell"
            " its batches from those of other clients",
        )
    answer = describe_producers(trial.client, [trial.partition])[trial.partition]
    known = {one.producer_id: one.last_sequence for one in answer.producers}
    if trial.producer_id not in known:
        return broken(PRODUCER_IDS, "the leader does not report our producer id (DescribeProducers)")
    return holds(PRODUCER_IDS, "kept as sent, and reported with their sequence numbers")


def _log_end(found_end: int) -> Guarantee:
    if found_end != _FIRST:
        return broken(
            LOG_END, f"after an append up to offset {_FIRST} the log end (replica id -2) is reported as {found_end}"
        )
    return holds(LOG_END, "the leader reports it (replica id -2) up to the last append")
