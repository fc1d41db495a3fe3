"""The engine's job that denies other clients write access to mirror topics, and syncs the source's ACLs.

A failure is reported once, when it begins and when it ends; it never stops the copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.acl_binding import AclBinding, Operation, PatternType, ResourceType
from kmirror.cluster.rights.acl_commands import login_principal
from kmirror.cluster.rights.acls import NoAuthorizerError, await_acls, create_acls, delete_acls, describe_acls
from kmirror.engine.driver.side_jobs import JobEvent, JobView
from kmirror.engine.status.journal import Level
from kmirror.errors import KmirrorError, OutcomeUnknown, RefusedError
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.destination_job import DestinationJob
from kmirror.ops.rights.protection import (
    NO_AUTHORIZER,
    AclSurvey,
    ProbeCache,
    Protection,
    is_mirrored,
    protect,
    survey,
    unprotect,
    write_rights,
)
from kmirror.ops.rights.source_acls import store_source_acls
from kmirror.settings.table import Settings
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.acl_changes import SyncPlan, Wanted, joined, locks_out, producers_of, sync_plan, wanted_acls
from kmirror.sync.client_acls import on_cluster, on_transactional_ids
from kmirror.sync.client_rights import is_of_clients
from kmirror.words import counted, listed

_MOST_NAMES = 100
_WHAT = "rights"


class RightsJob(DestinationJob):
    """Keep a mirror's rights as its settings say; see `engine.side_jobs.SideJob`."""

    name = "rights"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        super().__init__(mirror, destination_properties, cluster_id)
        self._known = ProbeCache()
        self._reported: str | None = None

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Run once. Raises KmirrorError if a change of ACLs failed."""
        yield from self._protect(self._destination, view)
        if view.settings.sync_topic_acls_enabled:
            yield from self._sync(self._destination, view)

    def _protect(self, destination: Destination, view: JobView) -> Iterator[JobEvent]:
        topics = [one.topic for one in view.topics if is_mirrored(one)]
        if view.settings.read_only == "detect":
            for topic, denied in unprotect(destination, self._mirror, topics).items():
                yield _event(f"{topic} is no longer protected: read.only=detect", "OK", removed=_names(denied))
            return
        found, before, after = protect(destination, self._mirror, topics, self._known)
        yield from events_of(before, after, self._mirror, found)

    def _sync(self, destination: Destination, view: JobView) -> Iterator[JobEvent]:
        surveyed = survey(destination.client, [one.topic for one in view.topics], self._known)
        refused = sync_refusal(surveyed)
        if refused is not None:
            if self._reported != refused.message:
                self._reported = refused.message
                yield _event(refused.message, "REFUSED", hint=refused.hint)
            raise refused
        with self._source_of(view.mirror) as source:
            plan = self._plan(destination, source, view, surveyed)
            if plan is None:
                if self._reported is None:
                    self._reported = "the source has no authorizer: there are no ACLs to sync"
                    yield _event(self._reported, "OK")
                return
        self._reported = None
        failed = carry_out(destination, self._mirror, plan)
        created, deleted = plan.create - failed.keys(), plan.delete - failed.keys()
        if created or deleted:
            note = f"{counted(len(created), 'ACL')} created, {len(deleted)} deleted"
            yield _event(note, "OK", created=_names(created), deleted=_names(deleted))
        for error in failed.values():
            raise error

    def _blocked(self, destination: Destination, view: JobView) -> frozenset[AclBinding]:
        """Return the denials of `--block-producers` at the source, which are only for a promote."""
        state = destination.state()
        return frozenset(acl for one in view.topics for acl in state.rights(self._mirror, one.topic).blocked)

    def _plan(
        self, destination: Destination, source: ClusterClient, view: JobView, surveyed: AclSurvey
    ) -> SyncPlan | None:
        settings = view.settings
        blocked = self._blocked(destination, view)
        try:
            everything = describe_acls(source)
        except NoAuthorizerError:
            return None
        everything -= blocked | self._blocked(destination, view)
        names = frozenset(one.source_topic for one in view.topics)
        store_source_acls(destination, self._mirror, [one for one in everything if is_of_clients(one, names)])
        theirs = [one for one in everything if settings.acls_include.matches(one)]
        topics = [one.topic for one in view.topics if is_mirrored(one) and one.pending_operation is None]
        # while an operation on a topic is pending, its rights stay as they are: nothing new, and nothing is lost
        pending = [one.topic for one in view.topics if one.pending_operation is not None]
        kept = {one.topic for one in view.topics} - set(topics)
        here, state = describe_acls(destination.client), destination.state()
        groups = self._groups(source, state, settings)
        login = login_principal(source.config)
        own = replace(surveyed.own, principals=surveyed.own.principals | ({login} if login else set()))
        wanted = wanted_acls(theirs, topics, groups, settings.selects_group, own)
        records = [state.rights(self._mirror, name) for name in wanted]
        made = {one.topic: one.made for one in records}
        if not everything and any(made.values()):
            raise RefusedError(
                "the source returns no ACLs at all, where it had some: those copied from there are kept",
                "if they were deleted on purpose, delete the copies here too, and set sync.topic.acls.enabled=false",
            )
        # ACLs that another mirror made are kmirror's too
        ours = {one for known in state.mirrors for one in state.rights(known.name, SHARED).made}
        producers = producers_of(everything, names)
        further = [on_transactional_ids(theirs, producers, here - ours, own)]
        if settings.sync_cluster_acls_enabled:
            further.append(on_cluster(theirs, own))
        held_back = state.rights(self._mirror, SHARED).held_back
        still = (one for one in held_back if any(one.covers(ResourceType.TOPIC, topic) for topic in pending))
        further.append(Wanted(deferred=frozenset(still)))
        shared = joined(wanted[SHARED], *further)
        deferred = frozenset(one for one in shared.deferred if one in held_back or not locks_out(one, kept))
        wanted[SHARED] = replace(shared, deferred=deferred)
        # a denial that protects a topic is removed by a stop: one that the source has too becomes the copy of that
        return sync_plan(wanted, here - {acl for one in records for acl in one.denied}, made, kept)

    def _groups(self, source: ClusterClient, state: State, settings: Settings) -> set[str]:
        """Return the mirrored groups: those that brokers list, and those that have ACLs here already.

        A group is listed by no broker while its coordinator is moving or away: it must not lose its rights here.
        """
        copied = state.rights(self._mirror, SHARED).made
        known = {one.resource_name for one in copied if one.resource_type is ResourceType.GROUP}
        listed = ClusterGroups(source).listed(whole=False, passes_silent=True)
        return {group for group in {*listed, *known} if settings.selects_group(group)}


def sync_refusal(surveyed: AclSurvey) -> KmirrorError | None:
    """Return why the source's ACLs cannot be synced to a destination, None if they can."""
    if surveyed.detected_only is None:
        return None
    return RefusedError(
        f"sync.topic.acls.enabled: {surveyed.detected_only}",
        f"{surveyed.hint}; or set sync.topic.acls.enabled=false",
    )


def require_possible(destination: Destination, settings: Settings) -> None:
    """Refuse to sync ACLs to a destination where that is not possible, or would lock others out.

    Raises:
        RefusedError: says why, and what to do.
        UnreachableError: the destination does not answer.
    """
    if settings.sync_topic_acls_enabled and (refused := sync_refusal(survey(destination.client, []))) is not None:
        raise refused


def protect_claimed(destination: Destination, mirror: str, settings: Settings, topics: Collection[str]) -> list[str]:
    """Protect topics that `add` has claimed, before it creates them; return warnings about unprotected ones.

    No warning is given if the destination has no authorizer. Errors are warnings too: the engine retries.
    """
    if settings.read_only == "detect" or not topics:
        return []
    try:
        found, _, _ = protect(destination, mirror, topics)
    except (KmirrorError, OutcomeUnknown) as error:
        return [f"cannot deny other clients write access to {_listed(topics)}; the engine retries: {error}"]
    by_reason: dict[str, list[str]] = {}
    for topic, one in found.items():
        if one.detected_only not in (None, NO_AUTHORIZER):
            by_reason.setdefault(f"{one.detected_only}", []).append(topic)
    return [f"foreign writes to {_listed(names)} are only detected: {why}" for why, names in by_reason.items()]


def carry_out(destination: Destination, mirror: str, plan: SyncPlan) -> dict[AclBinding, KmirrorError]:
    """Record, create and delete ACLs; return what was refused. An ACL to delete stays on record until it is deleted.

    One whose replacement is refused is not deleted: a client that has its right by it keeps it.

    Raises:
        RefusedError: a topic was stopped meanwhile; nothing was changed.
    """

    def decide(state: State) -> Changes:
        gone = [t for t in plan.wanted if t != SHARED and not is_mirrored(state.topic(mirror, t))]
        if gone:
            raise RefusedError(f"{', '.join(gone)}: stopped in the meantime", "nothing was changed")
        records = []
        for name, one in plan.wanted.items():
            before = state.rights(mirror, name)
            made, released = {*before.made, *plan.made[name]}, plan.released[name]
            after = replace(
                before,
                made=tuple(sorted(made - released)),
                denied=tuple(sorted(released.union(before.denied) - plan.made[name])),
                held_back=tuple(sorted(one.deferred)),
            )
            if after != before:
                records.append(after)
        return Changes(tuple(records))

    change(destination, mirror, decide)
    failed = {new: error for new, error in create_acls(destination.client, plan.create).items() if error is not None}
    failed |= {old: error for old in plan.delete for new, error in failed.items() if _replaces(new, old)}
    deleted = delete_acls(destination.client, plan.delete - failed.keys())
    failed |= {old: error for old, error in deleted.items() if error is not None}
    if not failed:
        await_acls(destination.client, plan.create, plan.delete)

    def without_obsolete(one: RightsRecord) -> RightsRecord:
        gone = plan.obsolete[one.topic] - failed.keys()
        return replace(one, made=tuple(binding for binding in one.made if binding not in gone))

    write_rights(destination, mirror, plan.obsolete, without_obsolete)
    return failed


def _replaces(new: AclBinding, old: AclBinding) -> bool:
    """Return whether an ACL may be there in place of another: it is wider, or differs in its host only."""
    return (
        (new.principal, new.permission) == (old.principal, old.permission)
        and new.operation in (old.operation, Operation.ALL)
        and new.covers(old.resource_type, old.resource_name)
        and (old.pattern_type is not PatternType.PREFIXED or new.pattern_type is PatternType.PREFIXED)
    )


def events_of(before: State, after: State, mirror: str, found: Mapping[str, Protection]) -> Iterator[JobEvent]:
    """Yield one event for each change in the protection of mirror topics."""
    cluster_wide = after.rights(mirror, SHARED).detected_only
    was = before.rights(mirror, SHARED).detected_only
    if cluster_wide != was:
        if cluster_wide is not None:
            hint = next((one.hint for one in found.values()), None)
            yield _event(f"foreign writes to mirror topics are only detected: {cluster_wide}", "DETECTED", hint=hint)
        else:
            yield _event("other clients are again denied write access to mirror topics", "ENFORCED")
    denied = sorted(topic for topic, one in found.items() if one.changed)
    if denied:
        made = _names(binding for topic in denied for binding in found[topic].denied)
        note = f"other clients are denied write access to {_listed(denied)}"
        yield _event(note, "ENFORCED", topics=denied[:_MOST_NAMES], acls=made)
    by_reason: dict[str, list[str]] = {}
    for topic, one in found.items():
        now = after.rights(mirror, topic).detected_only
        if now is not None and now != before.rights(mirror, topic).detected_only and one.detected_only is not None:
            by_reason.setdefault(one.detected_only, []).append(topic)
    for why, topics in by_reason.items():
        names = sorted(topics)
        note = f"foreign writes to {_listed(names)} are only detected: {why}"
        yield _event(note, "DETECTED", topics=names[:_MOST_NAMES], hint=found[names[0]].hint)


def _event(note: str, result: str, **details: Any) -> JobEvent:
    known = {key: value for key, value in details.items() if value is not None}
    level = Level.WARNING if result in {"DETECTED", "REFUSED"} else Level.INFO
    return JobEvent(note, _WHAT, result, {"message": note, **known}, level)


def _names(bindings: Iterable[AclBinding]) -> list[str]:
    return [str(one) for one in sorted(bindings)][:_MOST_NAMES]


def _listed(topics: Collection[str]) -> str:
    return listed(sorted(topics), 5)
