"""Carry out the plan of a failback. An error with one topic does not stop the others."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.topic_requests import create_partitions
from kmirror.commands import command_line, option
from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, Reason, UnreachableError, settled
from kmirror.ops.add.add import add
from kmirror.ops.add.topic_admin import CREATION_S, PAUSE_S, await_topics
from kmirror.ops.base.context import Destination, as_kmirror_error, change, now_ms, own_event, source_client
from kmirror.ops.base.retrying import interrupted_row
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.upstream import stored_state_on
from kmirror.ops.failback.facts import TopicComparison
from kmirror.ops.failback.groups import adopt_offsets, require_committed
from kmirror.ops.failback.plan import already_mirrored_row, rows_of
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.ops.failback.steps import AGAIN, CREATED, PLANNED, RECREATED, FailbackRun, Topic
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from kmirror.ops.rights.producer_block import forget_handed_over, hand_over_denials
from kmirror.ops.stop.steps import Step
from kmirror.ops.verify.comparing import PartitionPairs
from kmirror.ops.verify.comparing import carry_out as compare_as_planned
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.value_types import StartFrom
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline


def carry_out_plan(run: FailbackRun) -> None:
    """Walk the plan's table of steps."""
    plan = run.plan
    if plan.comparisons or plan.deleted or run.progress.is_unfinished:
        try:
            run.runner.walk(CUT if plan.cuts else MIRROR, run)
        except (KmirrorError, OutcomeUnknown) as error:
            if not run.has_begun:
                raise
            _report_interrupted(run, as_kmirror_error(error))
    if run.runner.acts:
        # what `add` refuses now comes after changes
        run.rows = [replace(r, result=Outcome.FAILED) if r.result is Outcome.REFUSED else r for r in run.rows]
    run.rows += [already_mirrored_row(name) for name in plan.mirrored]


def _report_interrupted(run: FailbackRun, error: KmirrorError) -> None:
    """Add the rows of the topics that an error has kept from being done."""
    named = {row.topic for row in run.rows}
    topics = [*(one.topic for one in run.plan.comparisons), *(work.topic for work in run.plan.deleted)]
    left: list[str | None] = [name for name in topics if name not in named]
    hint = f"{error.hint}; {AGAIN}" if error.hint else AGAIN
    for name in left or [None]:
        what = "how the failback has ended is not recorded" if name is None else f"{name} is not failed back yet"
        run.rows.append(interrupted_row(name, f"{what}: {error.message}", error, hint))


def _begin(run: FailbackRun) -> str:
    plan, request = run.plan, run.plan.request
    facts = {
        "sourceClusterId": run.mirror.source_cluster_id,
        "way": request.strategy.value if request.strategy else None,
        "discard": request.discard,
        "topics": [one.topic for one in plan.diverging][:100],
        "count": len(plan.comparisons) + len(plan.deleted),
    }
    run.progress.begin("BEGUN", facts, "RESUMED")
    run.has_begun = True
    return "begun"


def _finish(run: FailbackRun) -> str:
    plan = run.plan
    bad = any(row.result not in (Outcome.DONE, Outcome.NOOP) for row in run.rows)
    is_over = not bad and not plan.cuts
    outcome = "PARTLY_DONE" if bad else ExitCode.OK.name if is_over else "PLANNED"
    run.progress.finish(outcome, {"archives": run.archives, "plan": plan.request.plan}, is_over=is_over)
    return "finished"


def _record_mirror(run: FailbackRun) -> str:
    record = run.mirror

    def decide(state: State) -> Changes:
        if state.mirror(record.name) == record:
            return Changes()
        details = {"sourceClusterId": record.source_cluster_id, "settings": dict(record.settings)}
        event = own_event(record.name, "failback", "MIRROR", details)
        return Changes((record,), (), (event,))

    change(run.destination, record.name, decide)
    return "mirror recorded"


def _read_denials(run: FailbackRun) -> None:
    """Read which denials the new primary has on record."""
    run.there, name = stored_state_on(run.mirror.source), run.mirror.name
    run.denied = [topic.topic for topic in run.there.topics(name) if run.there.rights(name, topic.topic).blocked]


def _hand_over_denials(run: FailbackRun) -> str:
    topics = [*(one.topic for one in run.plan.comparisons), *(work.topic for work in run.plan.deleted)]
    hand_over_denials(run.destination, run.there, run.mirror.name, topics)
    return "denials taken over"


def _delete_handed_over_denials(run: FailbackRun) -> None:
    here, name = run.destination.state(), run.mirror.name
    if trouble := forget_handed_over(run.mirror.source, run.mirror.source_cluster_id, here, name, run.denied):
        run.warnings.append(trouble)


def _not_diverging(run: FailbackRun) -> list[TopicComparison]:
    return [one for one in run.plan.comparisons if not one.diverges]


def _adopt_groups(run: FailbackRun) -> str:
    for one in _not_diverging(run):
        run.attempt(one.topic, partial(_add_partitions, run.destination, one))
    failed = {row.topic for row in run.rows}
    topics = [one for one in _not_diverging(run) if one.topic not in failed]
    limits = {divergence.topic_partition: divergence.shared_end for one in topics for divergence in one.divergences}
    run.groups += adopt_offsets(run.destination, run.mirror.name, run.settings, limits)
    for one in topics:
        run.attempt(one.topic, partial(require_committed, run.groups, one.topic))
    return "groups taken over"


def _add_partitions(destination: Destination, topic: TopicComparison) -> None:
    """Create the partitions that the new primary has added since."""
    name, count = topic.topic, len(topic.there.partitions)
    if topic.here is None or count <= len(topic.here.partitions):
        return
    create_partitions(destination.client, {name: count})
    deadline = Deadline(CREATION_S)
    while not deadline.passed:
        if len(await_topics(destination.client, [name], deadline).topics[name].partitions) >= count:
            return
        time.sleep(PAUSE_S)
    raise UnreachableError(f"{name} did not get its new partitions within {CREATION_S:g} s", "try again")


def _adopt(run: FailbackRun) -> str:
    failed = {row.topic for row in run.rows}
    comparisons = [one for one in _not_diverging(run) if one.topic not in failed]
    topics = TopicSelector(tuple(one.topic for one in comparisons))
    result = add(
        run.destination,
        run.mirror.name,
        topics,
        adopt=True,
        start_from=StartFrom(),
        first_offsets={
            d.topic_partition: d.logs.first_offset
            for one in comparisons
            for d in one.divergences
            if d.logs.first_offset
        },
        bulk=run.bulk,
        watch=run.watch,
    )
    run.warnings += result.warnings
    rows = {row.topic: row for row in result.results}
    for one in comparisons:
        row = rows.get(one.topic)
        if row is None or row.result in (Outcome.DONE, Outcome.NOOP):
            run.progress.delete([one.topic])
            run.rows += rows_of(one) or [row or already_mirrored_row(one.topic)]
            continue
        if row.reason is Reason.DESTINATION_WRITTEN:
            run.attempt(one.topic, partial(_record_difference, run, one))
            hint = "run the same command again: it finds the fork there and shows the records after it"
            row = replace(row, hint=hint)
        run.rows.append(row)
    return "adopted"


def _record_difference(run: FailbackRun, one: TopicComparison) -> None:
    """Record where a topic differs although the search for the fork found it equal."""
    differs = _differences(run, one)
    if differs:
        topic_id = settled(one.here, "the topic's id").printed_topic_id
        run.progress.record(TopicWork(one.topic, TopicStep.DIFFERS, topic_id, ends=one.ends, differs=differs))
        run.runner.reached("difference found")


def _differences(run: FailbackRun, topic: TopicComparison) -> dict[int, int]:
    """Compare a topic's partitions in full; return the first difference of each."""
    topic_partitions = [one.topic_partition for one in topic.divergences]
    access = ClusterAccess(run.mirror.source, run.mirror.source_cluster_id)
    with source_client(access.properties, access.cluster_id) as there:
        comparison = PartitionPairs.read(
            there, run.destination.client, [(topic_partition, topic_partition) for topic_partition in topic_partitions]
        )
        plan = comparison.plan(run.bulk, access, run.destination.access)
        what = f"searching for all differences of {topic.topic}"
        verdicts = compare_as_planned(run.bulk, plan, what, run.watch)
    found = {topic_partition.partition: verdict.first_difference for topic_partition, verdict in verdicts.items()}
    return {partition: difference.offset for partition, difference in found.items() if difference is not None}


def _recreate_all(run: FailbackRun) -> None:
    for work in run.plan.deleted:
        run.attempt(work.topic, partial(run.runner.walk, CREATED, Topic(run, work)))
    for one in run.plan.diverging:
        topic = Topic(run, run.plan.works.get(one.topic), one)
        run.attempt(one.topic, partial(run.runner.walk, RECREATED, topic))


def _plan_cuts(run: FailbackRun) -> str:
    request, destination = run.plan.request, run.destination
    plan_file = settled(request.plan, "the plan's file")
    for one in run.plan.comparisons:
        if one.diverges:
            topic = Topic(run, run.plan.works.get(one.topic), one)
            run.attempt(one.topic, partial(run.runner.walk, PLANNED, topic))
        else:
            done = f"{one.topic}: no records after the fork; run the same command again to mirror it"
            run.rows.append(TopicResult(one.topic, None, Outcome.NOOP, done))
    for work in run.plan.deleted:
        done = f"{work.topic}: deleted by an earlier run; run the same command again to create and mirror it"
        run.rows.append(TopicResult(work.topic, None, Outcome.NOOP, done))
    if run.cuts:
        ordered = tuple(sorted(run.cuts, key=lambda cut: (cut.topic, cut.partition)))
        until_ms = min(run.kept_until_ms, default=None)
        write_plan(TruncationPlan(destination.cluster_id, run.mirror.name, now_ms(), ordered, until_ms), plan_file)
        truncate = command_line("kmirror", "truncate-logs", *option("--plan", str(plan_file)), "--log-dir", "DIR")
        run.warnings.append(
            f"the plan is {plan_file}. Next: stop all brokers of this cluster cleanly; on each, run `{truncate}`; "
            "start them; run the same failback command again"
        )
    return "planned"


_BEGIN = Step("record that the failback has begun", _begin)
_FINISH = Step("record how the failback has ended", _finish)
MIRROR: tuple[Step[FailbackRun], ...] = (
    _BEGIN,
    Step(
        "record the mirror of the new primary",
        _record_mirror,
        recorded=lambda run: run.destination.state().mirror(run.mirror.name) == run.mirror,
    ),
    # before the topics are protected as mirror topics, which takes the right to write to them
    Step(
        "take over the denials that have blocked producers here since the move",
        _hand_over_denials,
        _read_denials,
        needed=lambda run: bool(run.denied),
    ),
    # before the group sync runs; after a kill in between, the next run repeats it
    Step(
        "create missing partitions, and take over the groups' committed offsets",
        _adopt_groups,
        needed=lambda run: bool(_not_diverging(run)),
    ),
    Step(
        "adopt topics that need no cut, and create those that do not exist",
        _adopt,
        needed=lambda run: bool(_not_diverging(run)),
    ),
    Step(
        "recreate the others, one by one",
        _recreate_all,
        rehearse=_recreate_all,
        needed=lambda run: bool(run.plan.deleted or run.plan.diverging),
    ),
    Step(
        "delete the denials that were taken over from the new primary's state",
        _delete_handed_over_denials,
        needed=lambda run: bool(run.denied),
    ),
    _FINISH,
)
CUT: tuple[Step[FailbackRun], ...] = (
    _BEGIN,
    Step("archive topics one by one, and write the plan for cutting them", _plan_cuts, rehearse=_plan_cuts),
    _FINISH,
)
