"""`failback`: make the old source a mirror of the new primary again.

It reads what the new primary has stored, checks that the old source is idle, and finds for every partition where the
two logs fork (`ops.failback.plan`). That plan is shown. If there are records after a fork and no option says what to do
with them, it ends there. Otherwise the plan is carried out (`ops.failback.carry_out`).

Nothing is recorded before the operator has confirmed. From then on every step is (`ops.failback.progress`): the same
command, run again, resumes where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from kmirror.errors import RefusedError, UsageError
from kmirror.ops.base.bulk import Bulk
from kmirror.ops.base.context import Destination, now_ms, source_client
from kmirror.ops.base.evidence import evidence_of
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.base.trust_checks import require_usable_once_stored
from kmirror.ops.base.versions import Role, require_supported, require_topic_ids_in_logs
from kmirror.ops.failback.carry_out import carry_out_plan
from kmirror.ops.failback.facts import new_primary
from kmirror.ops.failback.plan import FailbackRequest, Strategy, make_plan, mirror_for
from kmirror.ops.failback.progress import FAILBACK, Progress
from kmirror.ops.failback.steps import FailbackRun
from kmirror.ops.mirrors.create import check_name, checked_properties, source_cluster_id
from kmirror.ops.rights.own_rights import record_warnings
from kmirror.ops.stop.report import VerbReport, sorted_rows
from kmirror.ops.stop.steps import Checkpoint, Gate, StepRunner, no_gate
from kmirror.settings.parsing import stored_settings
from kmirror.state.waiting import boottime
from kmirror.work import Watch, unwatched


@dataclass(frozen=True, slots=True)
class FailbackPreview:
    """What is about to be done, for the operator to confirm; clusters in words."""

    new_primary: str
    old_source: str
    result: VerbResult


#: Called once before the first change; False changes nothing.
Agree = Callable[[FailbackPreview], bool]


def failback(
    destination: Destination,
    request: FailbackRequest,
    agree: Agree = lambda _: True,
    watch: Watch = unwatched,
    *,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
    gate: Gate = no_gate,
) -> VerbReport:
    """Make the old source, `destination`, a mirror of the cluster that the request's properties name.

    `watch` is shown the progress; nothing is in progress while `agree` is called, and then `gate`.

    Raises:
        UsageError: an invalid property or combination of flags.
        RefusedError: a precondition does not hold, or `agree` returned False; nothing was changed.
        UnreachableError: a cluster does not answer; the same command resumes.
    """
    if (request.strategy is Strategy.OFFLINE) != (request.plan is not None):
        raise UsageError("--offline and --plan FILE belong together", "give both, or neither")
    began_ms, began, name = now_ms(), boottime(), request.mirror
    check_name(name)
    source, settings = checked_properties(request.properties)
    require_usable_once_stored(source)
    require_supported(destination.client, "the old source", Role.DESTINATION)
    if request.strategy is Strategy.OFFLINE:
        require_topic_ids_in_logs(destination.client)
    cluster_id = source_cluster_id(destination, source)
    with ExitStack() as stack:
        client = stack.enter_context(source_client(source))
        state = destination.state()
        mirror = mirror_for(destination, state, name, source, settings, cluster_id)
        if prefix := stored_settings(mirror.settings).topic_prefix:
            raise RefusedError(
                f"mirror {name} has topic.prefix={prefix}: topics would not keep their own names",
                f"leave it out of the file; if mirror {name} has it here already, delete that mirror first",
            )
        primary = new_primary(client, source, cluster_id, name, destination.cluster_id)
        progress = Progress(destination, name)
        lanes = stored_settings(mirror.settings).copy_lanes
        bulk = stack.enter_context(Bulk(request.spark, FAILBACK, name, lanes, watch))
        plan = make_plan(destination, state, primary, mirror, request, progress, bulk, watch)
        seconds = {"looked": boottime() - began}

        run = FailbackRun(
            destination, mirror, plan, progress, StepRunner(checkpoint, seconds, acts=not dry_run), bulk, watch
        )

        def ended(result: VerbResult) -> VerbReport:
            result = replace(result, steps=run.runner.done)
            known = {"forks": plan.forks(), "archives": {} if dry_run else run.archives}
            return VerbReport(result, evidence_of(destination, mirror, result, began_ms, run.runner.seconds, **known))

        refusal, warnings = plan.refusal(), plan.warnings
        if dry_run:
            if refusal is not None:
                warnings = (*warnings, f"without further options it would stop here: {refusal.message}")
            else:
                carry_out_plan(run)
            warnings = (*warnings, *record_warnings(destination))
            failed = [row for row in run.rows if row.result not in (Outcome.DONE, Outcome.NOOP)]
            rows = sorted_rows([*plan.rows(), *failed])
            return ended(VerbResult.of(FAILBACK, name, rows, dry_run=True, warnings=warnings))
        if refusal is not None:
            refused = VerbResult.failed(FAILBACK, name, refusal)
            return ended(replace(refused, results=tuple(sorted_rows(plan.refused_rows())), warnings=warnings))
        preview = FailbackPreview(
            f"{cluster_id} at {source.get('bootstrap.servers', '-')}",
            f"{destination.cluster_id} at {destination.bootstrap_server}",
            VerbResult.of(FAILBACK, name, plan.rows(), dry_run=True, warnings=warnings),
        )
        if not agree(preview):
            raise RefusedError("not confirmed: nothing was changed")
        gate(mirror, sorted({row.topic for row in preview.result.results if row.topic is not None}))
        carry_out_plan(run)
        rows, warnings = sorted_rows(run.rows), (*warnings, *run.warnings)
        return ended(VerbResult.of(FAILBACK, name, rows, groups=run.groups, warnings=warnings))
