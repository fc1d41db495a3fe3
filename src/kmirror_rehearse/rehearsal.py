"""`rehearse`: a failover and the way back, for real, without touching production.

The source is only read. A stand-in for it, a Kafka cluster on this machine, mirrors the chosen topics of the source,
and the destination mirrors the stand-in, with the settings of the operator's file (`rehearser`). Whatever happens,
everything that was made is removed.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import KmirrorError, Reason, RefusedError
from kmirror.ops.base.context import Destination, actor, cluster_id_of, naming_cluster, now_ms
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.trust_checks import require_usable_once_stored
from kmirror.ops.mirrors.create import checked_properties
from kmirror.settings.parsing import parse_settings
from kmirror.words import counted, listed
from kmirror_plan.inventory import choice_of
from kmirror_rehearse.clusters import (
    NamedDestination,
    rehearsal_folder,
    started,
    thaw,
    trusting,
)
from kmirror_rehearse.rehearsal_evidence import (
    ClusterUsed,
    PhaseName,
    Rehearsal,
    RehearsedTopic,
    sum_if_known,
)
from kmirror_rehearse.rehearsal_findings import Kind
from kmirror_rehearse.rehearsal_run import (
    PhaseError,
    Progress,
    RehearsalRequest,
    RehearsalRun,
    Source,
)
from kmirror_rehearse.rehearser import MIRROR, Rehearser

_STAND_IN = "stand-in"


def rehearse(request: RehearsalRequest, progress: Progress) -> Rehearsal:
    """Carry out a rehearsal and return its evidence.

    Raises:
        UsageError: a property or pattern is invalid.
        RefusedError: there is no topic to rehearse, or the destination is not empty.
        UnreachableError: the source or the destination does not answer or refuses us.
    """
    with ExitStack() as stack:
        source = _read_source(request, stack)
        run = RehearsalRun(request, source, progress)
        folder = stack.enter_context(rehearsal_folder())
        stack.enter_context(trusting(folder, request.destination or {}))
        named, here = _named_destination(request, source, stack)
        clusters = stack.enter_context(ExitStack())
        with run.phase(PhaseName.START, "start Kafka on this machine", catches=False):
            names = [_STAND_IN] if here is not None else [_STAND_IN, "destination"]
            stand_in, *others = clusters.enter_context(started(folder, names, progress))
            here = here or clusters.enter_context(Destination.open(others[0].client_properties()))

        def remove() -> None:
            with suppress(KmirrorError):
                thaw(stand_in)
            clusters.close()
            for left in named.clear(MIRROR) if named is not None else ():
                run.findings.append(left)
                progress(f"{left.subject}: {left.message}")

        try:
            Rehearser(run, stand_in, here, folder, clusters).play()
        except PhaseError:
            pass
        except BaseException:
            remove()
            raise
        try:
            with run.phase(PhaseName.REMOVE, "remove everything"):
                remove()
        except PhaseError:
            run.findings[-1] = replace(run.findings[-1], kind=Kind.NOT_REMOVED)
        run.skip_rest()
        return _evidence(run, here, is_sandbox=named is None)


def preview(request: RehearsalRequest) -> VerbResult:
    """Return what a rehearsal would copy, and where; start and change nothing. Raises as `rehearse` does."""
    with ExitStack() as stack:
        source = _read_source(request, stack)
        _, here = _named_destination(request, source, stack)
        where = "two clusters on this machine" if here is None else f"one on this machine and {here.cluster_id}"
        rows = [TopicResult(None, None, Outcome.DONE, f"would copy to {where}, fail over and fail back")]
        for topic, partitions in source.topics.items():
            rows.append(TopicResult(topic, None, Outcome.DONE, f"would copy {counted(partitions, 'partition')}"))
    return VerbResult.of("rehearse", "", rows, dry_run=True)


def _named_destination(
    request: RehearsalRequest, source: Source, stack: ExitStack
) -> tuple[NamedDestination, Destination] | tuple[None, None]:
    """Open the destination if one is named. Raises RefusedError: it is the source, or is not empty."""
    if request.destination is None:
        return None, None
    here = stack.enter_context(Destination.open(request.destination, request.expect_cluster_id))
    if here.cluster_id == source.cluster_id:
        raise RefusedError("the destination is the source itself", "name another cluster, or none", Reason.LOOP)
    return NamedDestination(here), here


def _read_source(request: RehearsalRequest, stack: ExitStack) -> Source:
    properties, changed = checked_properties(request.mirror_config)
    require_usable_once_stored(properties)
    settings = parse_settings(changed)
    selector = request.topics
    if selector is None and settings.topics_include.patterns:
        selector = settings.topics_include
    with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
        client = stack.enter_context(ClusterClient(client_config(properties)))
        cluster_id = cluster_id_of(client)
        found = client.metadata(None).topics
    if selector is not None and (missing := selector.missing_names(list(found))):
        raise RefusedError(f"the source has no topic {listed(missing)}", "check --topics, and DESCRIBE on the topics")
    is_chosen = choice_of(settings, selector)
    chosen = {
        name: len(one.partitions) for name, one in sorted(found.items()) if not one.error_code and is_chosen(name)
    }
    if not chosen:
        raise RefusedError("no topic of the source is to be rehearsed", "check --topics, and DESCRIBE on the topics")
    return Source(client, cluster_id, properties, chosen)


def _evidence(run: RehearsalRun, here: Destination, *, is_sandbox: bool) -> Rehearsal:
    topics = []
    for topic, partitions in run.source.topics.items():
        places = [TopicPartition(topic, one) for one in range(partitions)]
        topics.append(
            RehearsedTopic(
                topic=topic,
                partitions=partitions,
                offsets=sum_if_known(run.offsets, places),
                reported=sum_if_known(run.reported, places),
                lost=sum_if_known(run.lost, places),
                written=run.written.get(topic),
                read=run.read.get(topic),
            )
        )
    source = ClusterUsed(
        cluster_id=run.source.cluster_id, bootstrap_server=run.source.properties.get("bootstrap.servers", "")
    )
    return Rehearsal(
        began_ms=run.began_ms,
        ended_ms=now_ms(),
        operator=actor(),
        source=source,
        destination=ClusterUsed(
            cluster_id=here.cluster_id, bootstrap_server=here.bootstrap_server, is_sandbox=is_sandbox
        ),
        window_ms=run.request.window_ms,
        phases=tuple(run.phases),
        recovery=run.recovery,
        loss=run.loss,
        topics=tuple(topics),
        findings=tuple(dict.fromkeys(run.findings)),
        checks=tuple(run.checks),
    )
