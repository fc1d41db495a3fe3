"""The result of a run: a row for each partition that it copied, and for each mirror that it did not copy to the end."""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.commands import on_mirror
from kmirror.engine.driver.driver import Ending
from kmirror.engine.driver.engines import Engines, NotCopied
from kmirror.engine.status.journal import Level
from kmirror.errors import Reason
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.state.records import PartitionState
from kmirror.words import counted


def outcome(request: RunRequest, engines: Engines, ending: Ending, not_copied: Mapping[str, NotCopied]) -> VerbResult:
    """Return the result; `not_copied` are the mirrors without an engine at the end.

    Raises:
        KmirrorError: why the engine of the only mirror, or of all mirrors, ended; not of one that stands by again.
    """
    copied = [engine for engine in engines.last if engine.mirror not in not_copied]
    if not copied and not request.all_mirrors and not (request.standby and ending is not Ending.LOST):
        for engine in engines.last:
            if (error := engines.why_ended(engine)) is not None:
                raise error
    mirrors = (*(engine.mirror for engine in copied), *not_copied)
    is_stopped = request.until_caught_up and ending is Ending.STOPPED
    is_late = is_stopped or ending is Ending.TIMED_OUT
    rows = [_left_out(mirror, one, is_late) for mirror, one in sorted(not_copied.items())]
    for engine in copied:
        # the lag counts from the source end that was to be reached, otherwise from the current one
        targets: dict[TopicPartition, int | None] = dict.fromkeys(a.destination for a in engine.orders.assignments())
        targets.update(engine.partitions.targets or {})
        shown = {TopicPartition(row.topic, row.partition): row for topic in engine.topics() for row in topic.partitions}
        for partition, target in sorted(targets.items()):
            row, status = engine.partitions.rows.get(partition), shown.get(partition)
            end = row.destination_offset if row else engine.source.lacking_starts.get(partition)
            if request.until_caught_up:
                lag = max(0, target - end) if end is not None and target is not None else None
            else:
                lag = status.lag if status is not None else None
            reason, why = (status.reason, status.error_message) if status is not None else (None, None)
            detail = f"; {why}" if why else ""
            if row is not None and row.state is PartitionState.FAILED:
                rows.append(
                    TopicResult(*partition, Outcome.FAILED, row.message, row.reason, lag=lag, hint=_hint(engine.mirror))
                )
            elif request.until_caught_up and lag != 0:
                # even when all have caught up, one can fall back before its lane has ended
                unknown = "the number of missing records is unknown"
                missing = unknown if lag is None else counted(lag, "record is missing", "records are missing")
                when = "before the run was stopped" if is_stopped else "in time"
                message = f"{partition} has not caught up {when}: {missing}{detail}"
                rows.append(
                    TopicResult(
                        *partition,
                        Outcome.TIMED_OUT,
                        message,
                        reason,
                        lag=lag,
                        hint="run it again" if is_stopped else "run it again, or with a longer --timeout",
                    )
                )
            elif lag is None:
                message = f"the lag of {partition} is unknown{detail}"
                rows.append(TopicResult(*partition, Outcome.DONE, message, reason))
            else:
                rows.append(TopicResult(*partition, Outcome.DONE, why, reason, lag=lag))
    return VerbResult.of("run", ",".join(mirrors), rows)


def _left_out(mirror: str, not_copied: NotCopied, is_late: bool) -> TopicResult:
    """Return the row of a mirror without an engine; for a standby it is normal that another engine copies it."""
    if is_late:
        result = Outcome.TIMED_OUT
    elif not_copied.level is Level.INFO:
        result = Outcome.NOOP
    else:
        result = Outcome.REFUSED if not_copied.reason is Reason.FENCED else Outcome.FAILED
    hint = f"`kmirror list` shows who copies {mirror}" if not_copied.reason is Reason.FENCED else _hint(mirror)
    return TopicResult(None, None, result, f"mirror {mirror}: {not_copied.why}", not_copied.reason, hint=hint)


def _hint(mirror: str) -> str:
    return f"`{on_mirror('describe', mirror)} --failed` shows all of them"
