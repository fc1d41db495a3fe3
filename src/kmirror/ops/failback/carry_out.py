"""Carry out the plan of a failback. An error with one topic does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from kmirror.errors import ExitCode, Reason, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.add.topic_admin import await_topics
from kmirror.ops.context import Destination, actor, change, now_ms, source_client
from kmirror.ops.failback.facts import TopicLook
from kmirror.ops.failback.groups import take_over
from kmirror.ops.failback.plan import already_mirrored, rows_of
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.ops.failback.steps import CREATED, CREATION_S, PAUSE_S, PLANNED, RECREATED, Course, Topic
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.rights.source_cut import forget_handed_over, hand_over
from kmirror.ops.stop.steps import Step, carry_out
from kmirror.ops.upstream import stored_state_on
from kmirror.ops.verify.comparing import Pairs
from kmirror.ops.verify.comparing import carry_out as compare_as_planned
from kmirror.settings.patterns import TopicSelector
from kmirror.state.client import Deadline
from kmirror.state.events import Event
from kmirror.state.snapshot import Changes, State


def carry_out_plan(course: Course) -> None:
    """Run the table that the plan asks for, between the records of its beginning and its end."""
    plan, request = course.plan, course.plan.request
    if plan.looks or plan.deleted or course.progress.is_under_way:
        course.progress.begin(
            {
                "sourceClusterId": course.mirror.source_cluster_id,
                "way": request.way.value if request.way else None,
                "discard": request.discard,
                "topics": [one.topic for one in plan.beyond][:100],
                "count": len(plan.looks) + len(plan.deleted),
            }
        )
        course.clock.reached("begun")
        carry_out(_CUT if plan.cuts else _MIRROR, course, course.clock)
        bad = any(row.result not in (Outcome.DONE, Outcome.NOOP) for row in course.rows)
        is_over = not bad and not plan.cuts
        outcome = "PARTLY_DONE" if bad else ExitCode.OK.name if is_over else "PLANNED"
        course.progress.finish(outcome, {"archives": course.archives, "plan": request.plan}, is_over=is_over)
        course.clock.reached("finished")
    course.rows += [already_mirrored(name) for name in plan.mirrored]


def _record_mirror(course: Course) -> str:
    record = course.mirror

    def decide(state: State) -> Changes:
        if state.mirror(record.name) == record:
            return Changes()
        details = {"sourceClusterId": record.source_cluster_id, "settings": dict(record.settings)}
        event = Event(now_ms(), record.name, "failback", actor(), "MIRROR", details)
        return Changes((record,), (), (event,))

    change(course.destination, record.name, decide)
    return "mirror recorded"


def _hand_over_denials(course: Course) -> str | None:
    there = stored_state_on(course.mirror.source) or State()
    taken = hand_over(course.destination, there, course.mirror.name, _all_topics(course))
    return "denials taken over" if taken else None


def _forget_denials(course: Course) -> str | None:
    there = stored_state_on(course.mirror.source) or State()
    name = course.mirror.name
    blocked = [topic.topic for topic in there.topics(name) if there.rights(name, topic.topic).blocked]
    here = course.destination.state()
    if trouble := forget_handed_over(course.mirror.source, course.mirror.source_cluster_id, here, name, blocked):
        course.warnings.append(trouble)
    return None


def _all_topics(course: Course) -> list[str]:
    return [*(one.topic for one in course.plan.looks), *(work.topic for work in course.plan.deleted)]


def _clean(course: Course) -> list[TopicLook]:
    return [one for one in course.plan.looks if not one.lies_beyond]


def _take_over_groups(course: Course) -> str | None:
    looks = _clean(course)
    if not looks:
        return None
    _add_partitions(course.destination, looks)
    limits = {divergence.place: divergence.shared_end for one in looks for divergence in one.divergences}
    course.groups += take_over(course.destination, course.mirror.name, course.settings, limits)
    return "groups taken over"


def _add_partitions(destination: Destination, looks: Collection[TopicLook]) -> None:
    """Give topics the partitions that the new primary has got since."""
    wanted = {
        look.topic: len(look.there.partitions)
        for look in looks
        if look.here is not None and len(look.there.partitions) > len(look.here.partitions)
    }
    if not wanted:
        return
    destination.client.create_partitions(wanted)
    deadline = Deadline(CREATION_S)
    while not deadline.passed:
        found = await_topics(destination.client, list(wanted), deadline).topics
        if all(len(found[name].partitions) >= count for name, count in wanted.items()):
            return
        time.sleep(PAUSE_S)
    raise UnreachableError(f"{min(wanted)} did not get its new partitions within {CREATION_S:g} s", "try again")


def _adopt(course: Course) -> str | None:
    looks = _clean(course)
    if not looks:
        return None
    topics = TopicSelector(tuple(one.topic for one in looks))
    result = add(course.destination, course.mirror.name, topics, adopt=True, bulk=course.bulk, watch=course.watch)
    course.warnings += result.warnings
    rows = {row.topic: row for row in result.results}
    for one in looks:
        row = rows.get(one.topic)
        if row is None or row.result in (Outcome.DONE, Outcome.NOOP):
            course.progress.forget([one.topic])
            course.rows += rows_of(one) or [row or already_mirrored(one.topic)]
            continue
        if row.reason is Reason.DESTINATION_WRITTEN:
            course.attempt(one.topic, partial(_note_difference, course, one))
            hint = "run the same command again: it finds the fork there and shows the records after it"
            row = replace(row, result=Outcome.FAILED, hint=hint)
        course.rows.append(row)
    return "adopted"


def _note_difference(course: Course, one: TopicLook) -> None:
    """Remember where a topic differs that the search for the fork took for the same."""
    assert one.here is not None
    differs = _differences(course, one)
    if differs:
        topic_id = one.here.printed_topic_id
        course.progress.note(TopicWork(one.topic, TopicStep.DIFFERS, topic_id, ends=one.ends, differs=differs))
        course.clock.reached("difference found")


def _differences(course: Course, look: TopicLook) -> dict[int, int]:
    """Compare all of a topic's partitions; return where they differ first."""
    places = [one.place for one in look.divergences]
    with source_client(course.mirror.source) as there:
        comparison = Pairs.look(there, course.destination.client, [(place, place) for place in places])
        plan = comparison.plan(course.bulk, course.mirror.source, course.destination.properties)
        what = f"searching for all differences of {look.topic}"
        verdicts = compare_as_planned(course.bulk, plan, what, course.watch)
    found = {place.partition: verdict.first_difference for place, verdict in verdicts.items()}
    return {partition: difference.offset for partition, difference in found.items() if difference is not None}


def _recreate_all(course: Course) -> None:
    for work in course.plan.deleted:
        course.attempt(work.topic, partial(carry_out, CREATED, Topic(course, work), course.clock))
    for one in course.plan.beyond:
        topic = Topic(course, course.plan.works.get(one.topic), one)
        course.attempt(one.topic, partial(carry_out, RECREATED, topic, course.clock))


def _plan_cuts(course: Course) -> str:
    request, destination = course.plan.request, course.destination
    assert request.plan is not None
    for one in course.plan.looks:
        if one.lies_beyond:
            topic = Topic(course, course.plan.works.get(one.topic), one)
            course.attempt(one.topic, partial(carry_out, PLANNED, topic, course.clock))
        else:
            done = f"{one.topic}: no records after the fork; run the same command again to mirror it"
            course.rows.append(TopicResult(one.topic, None, Outcome.NOOP, done))
    if course.cuts:
        ordered = tuple(sorted(course.cuts, key=lambda cut: (cut.topic, cut.partition)))
        write_plan(TruncationPlan(destination.cluster_id, course.mirror.name, now_ms(), ordered), request.plan)
        course.warnings.append(
            f"the plan is {request.plan}. Next: stop all brokers of this cluster cleanly; on each, run `kmirror "
            f"truncate-logs --plan {request.plan} --log-dir DIR`; start them; run the same failback command again"
        )
    return "planned"


_MIRROR = (
    Step("record the mirror of the new primary", _record_mirror, durable=True),
    # before they are protected as mirror topics, for which one has to be able to write to them
    Step("take over what keeps producers from writing here since the move", _hand_over_denials, durable=True),
    # before the group sync runs; after a kill in between, the next run does the same again
    Step("create missing partitions, and take over the groups' committed offsets", _take_over_groups),
    Step("adopt topics that need no cut, and create those that do not exist", _adopt),
    Step("recreate the others, one by one", _recreate_all),
    Step("forget at the new primary what was taken over", _forget_denials),
)
_CUT = (Step("archive topics one by one, and write the plan by which they are cut", _plan_cuts),)
