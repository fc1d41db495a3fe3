"""Rights when mirroring stops: what kmirror denied is allowed again, what it held back is given.

All that is needed stands in the records of rights: the source may be dead. Idempotent, topic by topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.acl_commands import admin_options
from kmirror.cluster.acls import NoAuthorizerError, await_acls, create_acls, delete_acls, kafka_acls_line
from kmirror.cluster.protocol.acl_binding import AclBinding, ResourceType
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.writable import probe_writable as probe
from kmirror.errors import KmirrorError, PartlyDoneError, Reason
from kmirror.ops.context import Destination
from kmirror.ops.rights.protection import is_mirrored, write_rights
from kmirror.settings.table import stored_settings
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.state.snapshot import State
from kmirror.sync.acls import grantable

#: How long brokers may take to hear of changed ACLs; the probe says what holds then.
_IN_FORCE_S = 5.0
_LINES_IN_HINT = 40


@dataclass(frozen=True, slots=True)
class LiftedRights:
    """What became of one topic's rights: ACLs of kmirror's that were deleted, those given, and why not all were.

    `error` has `kafka-acls` lines in its hint that do the rest.
    """

    topic: str
    removed: tuple[AclBinding, ...] = ()
    given: tuple[AclBinding, ...] = ()
    error: KmirrorError | None = None


@dataclass(frozen=True, slots=True)
class LiftPlan:
    """What is to be deleted and given, by topic; what is about several topics stands with each that it covers."""

    remove: Mapping[str, frozenset[AclBinding]]
    give: Mapping[str, frozenset[AclBinding]]
    shared: frozenset[AclBinding]

    def __bool__(self) -> bool:
        return bool(self.shared or any(self.remove.values()) or any(self.give.values()))


def plan_lift(state: State, mirror: str, topics: Collection[str]) -> LiftPlan:
    """Return what lifting the rights of these topics takes, as everything else stands; changes nothing."""
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
    return LiftPlan(
        {topic: frozenset(one.denied) for topic, one in records.items()},
        {topic: frozenset(one.held_back) for topic, one in records.items()},
        shared,
    )


def deferred_acls(state: State, mirror: str) -> frozenset[AclBinding]:
    """Return a mirror's deferred shared ACLs; power over the cluster only where the settings say so now."""
    held, record = state.rights(mirror, SHARED).held_back, state.mirror(mirror)
    takes_cluster = record is not None and stored_settings(record.settings).sync_cluster_acls_enabled
    return frozenset(one for one in held if takes_cluster or one.resource_type is not ResourceType.CLUSTER)


def lift_rights(destination: Destination, mirror: str, topics: Collection[str]) -> dict[str, LiftedRights]:
    """Delete the denials made for these topics, give what was held back, and return what became of each topic.

    To be called when nobody mirrors to them any more, as `topics` say by being given. Needs no source.

    Raises:
        UnreachableError: the destination does not answer; the same again goes on from there.
    """
    state = destination.state()
    plan = plan_lift(state, mirror, topics)
    done = {topic: LiftedRights(topic) for topic in topics}
    if not plan:
        return done
    give = frozenset(one for group in (*plan.give.values(), plan.shared) for one in group)
    remove = frozenset(one for group in plan.remove.values() for one in group)
    records = {topic: state.rights(mirror, topic) for topic in (*topics, SHARED)}
    given_by = {**plan.give, SHARED: plan.shared}
    if give:  # recorded before they are created
        write_rights(
            destination,
            mirror,
            {topic: replace(one, made=_merged(one.made, given_by[topic])) for topic, one in records.items()},
        )
    try:
        # first what forbids: an ACL that is given would not help before
        outcomes = {**delete_acls(destination.client, remove), **create_acls(destination.client, give)}
    except NoAuthorizerError:
        outcomes = dict.fromkeys((*give, *remove))
    failed = {binding: error for binding, error in outcomes.items() if error is not None}
    failed = {b: e for b, e in failed.items() if not isinstance(e, NoAuthorizerError)}
    if not failed and (give or remove):
        _await(destination, give, remove)
    kept: dict[str, RightsRecord] = {}
    for topic, one in records.items():
        gone = given_by[topic] - failed.keys()
        kept[topic] = replace(
            one,
            made=_merged(one.made, given_by[topic]),
            denied=tuple(b for b in one.denied if b in failed),
            held_back=tuple(b for b in one.held_back if b not in gone),
            detected_only=one.detected_only if topic == SHARED else None,
        )
    write_rights(destination, mirror, kept)
    for topic in topics:
        concerned = plan.remove[topic] | plan.give[topic] | plan.shared
        error = _error(
            topic, {b: e for b, e in failed.items() if b in concerned}, give, admin_options(destination.config)
        )
        removed = tuple(sorted(plan.remove[topic] - failed.keys()))
        done[topic] = LiftedRights(
            topic, removed, tuple(sorted((plan.give[topic] | plan.shared) - failed.keys())), error
        )
    return done


def probe_writable(
    destination: Destination, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, KmirrorError | None]:
    """Tell of each partition whether kmirror itself may write to it: None, or why not. Writes nothing.

    Raises:
        UnreachableError: the destination does not answer.
    """
    return probe(destination.client, partitions)


def _await(destination: Destination, present: Collection[AclBinding], absent: Collection[AclBinding]) -> None:
    try:
        await_acls(destination.client, present, absent, _IN_FORCE_S)
    except KmirrorError as error:
        if error.reason is not Reason.NOT_AUTHORIZED and not isinstance(error, NoAuthorizerError):
            raise


def _error(
    topic: str, failed: Mapping[AclBinding, KmirrorError], give: Collection[AclBinding], cluster: str
) -> KmirrorError | None:
    if not failed:
        return None
    lines = [kafka_acls_line(one, cluster, remove=one not in give) for one in sorted(failed)]
    more = [f"and {len(lines) - _LINES_IN_HINT} more"] if len(lines) > _LINES_IN_HINT else []
    first = next(iter(failed.values()))
    return PartlyDoneError(
        f"the write protection of {topic} could not be removed: {first.message}",
        "\n".join(["have an administrator run:", *lines[:_LINES_IN_HINT], *more]),
        first.reason,
    )


def _merged(one: Iterable[AclBinding], other: Iterable[AclBinding]) -> tuple[AclBinding, ...]:
    return tuple(sorted({*one, *other}))
