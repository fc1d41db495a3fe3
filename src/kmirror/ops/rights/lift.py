"""Rights when mirroring stops: remove kmirror's denials, and create the ACLs that it deferred.

Everything needed is in the rights records: the source may be dead. Idempotent, topic by topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.acl_binding import AclBinding, ResourceType
from kmirror.cluster.rights.acl_commands import admin_options
from kmirror.cluster.rights.acls import (
    NoAuthorizerError,
    create_acls,
    delete_acls,
    describe_acls,
    kafka_acls_line,
    lagging_brokers,
)
from kmirror.commands import Arguments
from kmirror.errors import KmirrorError, PartlyDoneError, Reason
from kmirror.ops.base.context import Destination
from kmirror.ops.rights.protection import is_mirrored, write_rights
from kmirror.settings.parsing import stored_settings
from kmirror.settings.table import Settings
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.state.snapshot import State
from kmirror.sync.acl_changes import grantable

#: How long brokers may take to apply changed ACLs.
_IN_FORCE_S = 5.0
_LINES_IN_HINT = 40


@dataclass(frozen=True, slots=True)
class LiftedRights:
    """The result for one topic: kmirror's ACLs that were deleted, deferred ACLs that were created, and any failure.

    The hint of `error` has the `kafka-acls` commands that do the rest. `lagging` are the brokers on which the changes
    were not seen to be in force.
    """

    topic: str
    removed: tuple[AclBinding, ...] = ()
    given: tuple[AclBinding, ...] = ()
    error: KmirrorError | None = None
    lagging: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LiftPlan:
    """The ACLs to delete and to create, by topic; `shared` are those that are not about a single topic."""

    remove: Mapping[str, frozenset[AclBinding]]
    give: Mapping[str, frozenset[AclBinding]]
    shared: frozenset[AclBinding]

    def __bool__(self) -> bool:
        return bool(self.shared or any(self.remove.values()) or any(self.give.values()))


def plan_lift(state: State, mirror: str, topics: Collection[str]) -> LiftPlan:
    """Return the changes that lift the protection of these topics while all others keep theirs; changes nothing.

    What was deferred may have been revoked since: it is created only while ACLs are synced.
    """
    records = {topic: state.rights(mirror, topic) for topic in topics}
    left = {
        one.topic
        for known in state.mirrors
        for one in state.topics(known.name)
        if is_mirrored(one) and not (known.name == mirror and one.topic in records)
    }
    goes_on = any(is_mirrored(one) and one.topic not in records for one in state.topics(mirror))
    shared = (
        grantable(deferred_acls(state, mirror), left, mirror_has_topics=goes_on) if topics else frozenset[AclBinding]()
    )
    gives = _settings(state, mirror).sync_topic_acls_enabled
    return LiftPlan(
        {topic: frozenset(one.denied) for topic, one in records.items()},
        {topic: frozenset(one.held_back if gives else ()) for topic, one in records.items()},
        shared,
    )


def deferred_acls(state: State, mirror: str) -> frozenset[AclBinding]:
    """Return a mirror's deferred shared ACLs, as far as the current settings sync them."""
    settings = _settings(state, mirror)
    held = state.rights(mirror, SHARED).held_back if settings.sync_topic_acls_enabled else ()
    takes_cluster = settings.sync_cluster_acls_enabled
    return frozenset(one for one in held if takes_cluster or one.resource_type is not ResourceType.CLUSTER)


def _settings(state: State, mirror: str) -> Settings:
    record = state.mirror(mirror)
    return stored_settings(record.settings if record is not None else {})


def lift_rights(destination: Destination, mirror: str, topics: Collection[str]) -> dict[str, LiftedRights]:
    """Delete the denials for these topics and create their deferred ACLs; return the result for each topic.

    Call it when the topics are no longer mirrored, and if the destination's condition holds. Needs no source.

    Raises:
        UnreachableError: the destination does not answer; the same call continues from there.
    """
    state = destination.state()
    destination.require_condition(state)
    plan = plan_lift(state, mirror, topics)
    done = {topic: LiftedRights(topic) for topic in topics}
    if not plan:
        return done
    give = frozenset(one for group in (*plan.give.values(), plan.shared) for one in group)
    remove = frozenset(one for group in plan.remove.values() for one in group)
    given_by = {**plan.give, SHARED: plan.shared}
    if give:  # recorded before they are created
        write_rights(
            destination, mirror, given_by, lambda one: replace(one, made=_merged(one.made, given_by[one.topic]))
        )
    try:
        # denials first: they override the ACLs that are created
        outcomes = {**delete_acls(destination.client, remove), **create_acls(destination.client, give)}
    except NoAuthorizerError:
        outcomes = dict.fromkeys((*give, *remove))
    failed = {binding: error for binding, error in outcomes.items() if error is not None}
    failed = {b: e for b, e in failed.items() if not isinstance(e, NoAuthorizerError)}
    unseen: KmirrorError | None = None
    if any(error.reason is Reason.NOT_AUTHORIZED for error in failed.values()):
        # brokers refuse such a change even if an administrator has made it already
        try:
            present = describe_acls(destination.client)
            failed = {b: e for b, e in failed.items() if (b in present) != (b in give)}
        except KmirrorError as refused:
            if refused.reason is not Reason.NOT_AUTHORIZED:
                raise
            unseen = refused
    lagging: frozenset[int] = frozenset()
    if not failed and (give or remove):
        lagging = _lagging(destination, give, remove)

    def lifted(one: RightsRecord) -> RightsRecord:
        given, removed = given_by[one.topic] - failed.keys(), plan.remove.get(one.topic, frozenset()) - failed.keys()
        return replace(
            one,
            denied=tuple(b for b in one.denied if b not in removed),
            held_back=tuple(b for b in one.held_back if b not in given),
            detected_only=one.detected_only if one.topic == SHARED else None,
        )

    write_rights(destination, mirror, given_by, lifted)
    for topic in topics:
        concerned = plan.remove[topic] | plan.give[topic] | plan.shared
        error = _error(
            topic, {b: e for b, e in failed.items() if b in concerned}, give, admin_options(destination.config), unseen
        )
        removed = tuple(sorted(plan.remove[topic] - failed.keys()))
        given = tuple(sorted((plan.give[topic] | plan.shared) - failed.keys()))
        done[topic] = LiftedRights(topic, removed, given, error, lagging if concerned else frozenset())
    return done


def _lagging(
    destination: Destination, present: Collection[AclBinding], absent: Collection[AclBinding]
) -> frozenset[int]:
    try:
        return lagging_brokers(destination.client, present, absent, _IN_FORCE_S)
    except KmirrorError as error:
        if error.reason is not Reason.NOT_AUTHORIZED and not isinstance(error, NoAuthorizerError):
            raise
        return frozenset()


def _error(
    topic: str,
    failed: Mapping[AclBinding, KmirrorError],
    give: Collection[AclBinding],
    cluster: Arguments,
    unseen: KmirrorError | None,
) -> KmirrorError | None:
    if not failed:
        return None
    lines = [kafka_acls_line(one, cluster, remove=one not in give) for one in sorted(failed)]
    more = [f"and {len(lines) - _LINES_IN_HINT} more"] if len(lines) > _LINES_IN_HINT else []
    first = next(iter(failed.values()))
    why = first.message
    if unseen is not None:
        why += f"; whether an administrator has done it is unknown: {unseen.message}"
        more += [unseen.hint] if unseen.hint else []
    return PartlyDoneError(
        f"the write protection of {topic} could not be removed: {why}",
        "\n".join(["have an administrator run:", *lines[:_LINES_IN_HINT], *more]),
        first.reason,
    )


def _merged(one: Iterable[AclBinding], other: Iterable[AclBinding]) -> tuple[AclBinding, ...]:
    return tuple(sorted({*one, *other}))
