"""Transaction markers: offsets filled with what readers are not shown, and producers fenced; or what replaces them."""

from __future__ import annotations

from contextlib import closing

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fill_plan import MAX_COORDINATOR_EPOCH, WriteMarkers
from kmirror.cluster.rights.acl_commands import PREFIXED, grant_line
from kmirror.cluster.rights.authorized import marker_operations
from kmirror.cluster.writing.empty_transaction import EmptyTransactions
from kmirror.cluster.writing.fence import Writer, fence
from kmirror.commands import option
from kmirror.engine.spec import filling_transactional_ids
from kmirror.errors import BrokerError, Reason, RefusedError
from kmirror.ops.probe.guarantees import Guarantee, Verdict, broken, holds, is_denied, weaker
from kmirror.ops.probe.partition import ProbePartition, run_of
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS

MARKERS, FENCE = "markers", "fence"
EMPTY_TRANSACTIONS = "empty transactions"
_RECORDS, _GAP = 2, 5
#: No mirror has this name.
_NO_MIRROR = "~probe"
_SLOWLY = "gaps are filled by empty transactions instead, about 3,000 offsets a second on a partition"
_NO_FENCE = (
    "a forgotten engine is not fenced at the brokers, only by its lease, or by one visible record per partition "
    "(failover --fence-with-record)"
)


def marker_guarantees(trial: ProbePartition) -> list[Guarantee]:
    """Fill a gap between records with markers; without the right to, with an empty transaction."""
    trial.out.append_run(run_of(0, _RECORDS))
    try:
        trial.out.fill(_RECORDS + _GAP)
    except RefusedError as error:
        if error.reason is not Reason.NOT_AUTHORIZED:
            raise
        return [_denied(trial.client, MARKERS, _SLOWLY), _empty_transactions(trial)]
    return [_filled(trial)]


def _filled(trial: ProbePartition) -> Guarantee:
    """Continue after the gap, send a marker that comes too late, and look at what readers are shown."""
    end = _RECORDS + _GAP
    if trial.log_end() != end:
        return broken(MARKERS, f"after {_GAP} markers from offset {_RECORDS} on the log ends at {trial.log_end()}")
    following = trial.try_batch(run_of(end, 1), _RECORDS)
    if following.code or following.base_offset != end:
        return broken(MARKERS, f"a batch after them is not appended at offset {end} ({following})")
    stale = trial.out.write_markers(WriteMarkers(1, 0, 0))
    if stale == Code.NONE or trial.log_end() != end + 1:
        return broken(
            MARKERS, "one with an earlier coordinator epoch is written: a delayed request would shift later records"
        )
    shown = [one.header for one in trial.stored(0, end + 1) if not one.header.is_control]
    if sum(header.record_count for header in shown) != _RECORDS + 1:
        return broken(MARKERS, "readers are shown records at the offsets that they fill")
    return holds(MARKERS, "they fill offsets and are not shown to readers; delayed ones are refused")


def _empty_transactions(trial: ProbePartition) -> Guarantee:
    """Fill one offset by a transaction without records."""
    before = trial.log_end()
    try:
        with closing(EmptyTransactions(trial.client, filling_transactional_ids(_NO_MIRROR, 0)[:1])) as transactions:
            transactions.settle()
            transactions.fill({trial.partition: 1})
    except BrokerError as error:
        if not is_denied(error):
            return broken(EMPTY_TRANSACTIONS, error.message)
        ids = option("--transactional-id", OWN_TRANSACTIONAL_IDS)
        hint = grant_line(trial.client.config, ("WRITE",), *ids, *PREFIXED)
        return Guarantee(EMPTY_TRANSACTIONS, Verdict.UNKNOWN, error.message, hint, Reason.NOT_AUTHORIZED)
    if (end := trial.log_end()) != before + 1:
        return broken(EMPTY_TRANSACTIONS, f"one moves the log end from {before} to {end}, not by one offset")
    if not next(trial.stored(before, end)).header.is_control:
        return broken(EMPTY_TRANSACTIONS, "readers are shown a record at the offset that one fills")
    return holds(EMPTY_TRANSACTIONS, "each fills one offset, which is not shown to readers")


def fence_guarantees(trial: ProbePartition) -> list[Guarantee]:
    """Fence a producer as a failover does, then send what a forgotten engine would."""
    trial.out.append_run(run_of(0, 1))
    writer = {trial.partition: Writer(trial.producer_id, 0)}
    by_marker = fence(trial.client, writer)[trial.partition]
    if by_marker.error_code not in (Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED):
        return [_fenced(trial, FENCE, by_marker.error_code, by_marker.is_fenced)]
    by_record = fence(trial.client, writer, with_record=True)[trial.partition]
    found = _fenced(trial, f"{FENCE} by record", by_record.error_code, by_record.is_fenced)
    return [_denied(trial.client, FENCE, _NO_FENCE), found]


def _fenced(trial: ProbePartition, what: str, code: int, is_fenced: bool) -> Guarantee:
    """Send a batch that would belong at the log end, and a marker, of the producer that was fenced."""
    if code or not is_fenced:
        why = f"{code_name(code)} ({code})" if code else "the log end does not move"
        return weaker(what, f"it is refused: {why}; {_NO_FENCE}", "make sure that no engine is left before a failover")
    late = trial.try_batch(run_of(1, 1), 1)
    if late.is_appended or not late.code:
        return broken(
            what, "a batch of the fenced producer is appended: a forgotten engine could write after a failover"
        )
    end = trial.log_end()
    if trial.out.write_markers(WriteMarkers(1, 0, MAX_COORDINATOR_EPOCH)) == Code.NONE or trial.log_end() != end:
        return broken(what, "a marker of the fenced producer is written: a forgotten engine could fill offsets later")
    return holds(what, "after it, batches and markers of a lower producer epoch are refused")


def _denied(client: ClusterClient, what: str, instead: str) -> Guarantee:
    """Return a guarantee that takes a right on the cluster that we lack."""
    operations = marker_operations(client)
    message = f"we lack {' and '.join(operations)} on the cluster: {instead}"
    hint = grant_line(client.config, operations[:1], "--cluster")
    return Guarantee(what, Verdict.UNKNOWN, message, hint, Reason.NOT_AUTHORIZED)
