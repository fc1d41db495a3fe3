"""Deny other clients write access to mirror topics (`read.only=enforce`), and say where that is not possible.

Each principal that the destination's ACLs allow to write is denied it on the mirror topic, except where

* there is no authorizer, or we may not read or change ACLs;
* `allow.everyone.if.no.acl.found` is true: one ACL on a topic would lock out its readers;
* an ACL lets everyone (`User:*`) write, and kmirror is not a super user: denying everyone would also deny kmirror.

There, foreign writes are only detected afterwards. Denials are recorded before they are made, and checked once they are
in force: a denial that also affects kmirror is reverted immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol.acl_binding import EVERYONE, AclBinding, AclPermission
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import ProducerState
from kmirror.cluster.rights.acl_commands import admin_options, grant_line, login_principal
from kmirror.cluster.rights.acls import (
    NoAuthorizerError,
    await_acls,
    create_acls,
    delete_acls,
    describe_acls,
    kafka_acls_line,
)
from kmirror.cluster.rights.authorized import cluster_operations, missing_operations, missing_rights
from kmirror.cluster.rights.principal_probe import PrincipalProbe, probe_principal, remove_abandoned
from kmirror.commands import Arguments
from kmirror.errors import KmirrorError, Reason, RefusedError
from kmirror.ops.base.context import Destination, change
from kmirror.state.records import PENDING_STOP, DesiredState, TopicRecord
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.acl_changes import OwnPrincipals, enforcement, producers_of
from kmirror.sync.acl_index import AclIndex
from kmirror.words import visible

_PAUSE_S = 0.2
NO_AUTHORIZER = "the destination has no authorizer"
OPEN_BY_DEFAULT = "allow.everyone.if.no.acl.found is (or may be) true"


@dataclass(frozen=True, slots=True)
class AclSurvey:
    """The ACLs of a cluster, and our own principals.

    `detected_only` says why the cluster permits no protection at all, if so; `hint` what to do about it.
    """

    acls: frozenset[AclBinding] = frozenset()
    writing: AclIndex = field(default_factory=lambda: AclIndex(()))
    own: OwnPrincipals = field(default_factory=lambda: OwnPrincipals(frozenset()))
    detected_only: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Protection:
    """The protection of one mirror topic: other clients are denied writes, or `detected_only` says why not."""

    topic: str
    #: kmirror's denials; none are needed if no one else may write anyway.
    denied: tuple[AclBinding, ...] = ()
    detected_only: str | None = None
    hint: str | None = None
    #: True if ACLs were created or deleted for it just now.
    changed: bool = False


@dataclass(slots=True)
class ProbeCache:
    """The result of the last principal probe, which takes a moment and seldom changes; one for each job or command."""

    standing: PrincipalProbe | None = None
    asked: frozenset[str] = frozenset()


def survey(
    client: ClusterClient, topics: Collection[str], known: ProbeCache | None = None, cluster: str = "the destination"
) -> AclSurvey:
    """Read a cluster's ACLs and find out our own principals; changes nothing permanently.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    known = known or ProbeCache()
    to_alter = grant_line(client.config, ("ALTER", "DESCRIBE"), "--cluster")
    try:
        acls = describe_acls(client)
        if "ALTER" in missing_operations(cluster_operations(client), ("ALTER",)):
            login = login_principal(client.config)
            own = OwnPrincipals(frozenset({login} if login else ()))
            return AclSurvey(
                acls, AclIndex(acls), own, "kmirror may not change ACLs: it lacks ALTER on the cluster", to_alter
            )
        remove_abandoned(client, acls)
        login = login_principal(client.config)
        candidates = producers_of(acls, topics) - {EVERYONE} if login is None else frozenset[str]()
        if known.standing is None or not candidates <= known.asked:
            known.standing, known.asked = probe_principal(client, acls, candidates), candidates
    except NoAuthorizerError:
        return AclSurvey(detected_only=f"{cluster} has no authorizer", hint="set authorizer.class.name on its brokers")
    except KmirrorError as error:
        if error.reason is not Reason.NOT_AUTHORIZED:
            raise
        return AclSurvey(detected_only=f"kmirror may not read or change ACLs: {error.message}", hint=to_alter)
    principals = known.standing.principals | ({login} if login else set())
    own = OwnPrincipals(frozenset(principals), known.standing.is_super_user)
    if known.standing.everyone_may:
        return AclSurvey(
            acls,
            AclIndex(acls),
            own,
            f"{OPEN_BY_DEFAULT} on {cluster}: an ACL on a topic would lock out its readers",
            "set it to false once every client has the ACLs it needs; kmirror then protects topics automatically",
        )
    return AclSurvey(acls, AclIndex(acls), own)


def decide_protection(
    surveyed: AclSurvey,
    topic: str,
    ours: Collection[AclBinding],
    cluster: Arguments = ("--bootstrap-server", "DESTINATION"),
) -> Protection:
    """Return how to protect a topic; `ours` are the ACLs that kmirror made for it before. Changes nothing."""
    if surveyed.detected_only is not None:
        return Protection(topic, (), surveyed.detected_only, surveyed.hint)
    found = enforcement(surveyed.writing, topic, surveyed.own, ours)
    denied = tuple(sorted(found.denied))
    if not found.open_by:
        return Protection(topic, denied)
    lines = "\n".join(kafka_acls_line(one, cluster, remove=True) for one in found.open_by)
    why = f"all principals may write ({found.open_by[0]}), and denying it would also deny kmirror"
    return Protection(topic, denied, why, f"make kmirror a super user, or grant rights by name instead:\n{lines}")


def is_mirrored(topic: TopicRecord | None) -> bool:
    """Return whether a topic is a mirror topic that is not being stopped."""
    return topic is not None and topic.desired is not DesiredState.STOPPED and topic.pending_operation != PENDING_STOP


def protect(
    destination: Destination, mirror: str, topics: Collection[str], known: ProbeCache | None = None
) -> tuple[dict[str, Protection], State, State]:
    """Deny other clients write access to these mirror topics, which need not exist yet.

    Only topics with a record are protected. Returns their protection when the denials are in force on every broker, and
    what was stored before and after that. Use `settle` for transactions that were open before. Idempotent.

    Raises:
        UnreachableError: the destination does not answer.
        KmirrorError: a denial could not be made; what was made stays recorded.
    """
    surveyed = survey(destination.client, topics, known)
    state, found = destination.state(), dict[str, Protection]()
    copied = {one for one in state.rights(mirror, SHARED).made if one.permission is AclPermission.DENY}
    for topic in topics:
        if is_mirrored(state.topic(mirror, topic)):
            ours = copied.union(state.rights(mirror, topic).denied, state.rights(mirror, topic).made)
            found[topic] = decide_protection(surveyed, topic, ours, admin_options(destination.config))
    if surveyed.detected_only is None:
        found = _carry_out(destination, mirror, surveyed, state, found)
    is_stored = _store(destination, mirror, state, surveyed.detected_only, found)
    has_changed = is_stored or any(one.changed for one in found.values())
    return found, state, destination.state() if has_changed else state


def unprotect(destination: Destination, mirror: str, topics: Collection[str]) -> dict[str, tuple[AclBinding, ...]]:
    """Delete the denials made for mirror topics, and return them; for `read.only=detect`. Idempotent.

    Raises:
        KmirrorError: one could not be deleted; it stays recorded.
    """
    state = destination.state()
    ours = {topic: denied for topic in topics if (denied := state.rights(mirror, topic).denied)}
    if ours:
        raise_first(delete_acls(destination.client, _all(ours.values())))
    recorded = [topic for topic in topics if topic in ours or state.rights(mirror, topic).detected_only is not None]
    if recorded or state.rights(mirror, SHARED).detected_only is not None:

        def clear(one: RightsRecord) -> RightsRecord:
            return replace(one, denied=_without(one.denied, ours.get(one.topic, ())), detected_only=None)

        write_rights(destination, mirror, [*recorded, SHARED], clear)
    return ours


def write_rights(
    destination: Destination, mirror: str, topics: Collection[str], update: Callable[[RightsRecord], RightsRecord]
) -> None:
    """Update the rights records of these topics, as they are under the lock; write empty ones as tombstones."""

    def decide(state: State) -> Changes:
        before = [state.rights(mirror, topic) for topic in topics]
        changed = [after for one in before if (after := update(one)) != one]
        return Changes(tuple(one for one in changed if one), tuple(one.key for one in changed if not one))

    change(destination, mirror, decide)


def settle(
    destination: Destination, partitions: Collection[TopicPartition], timeout_s: float
) -> dict[TopicPartition, tuple[ProducerState, ...] | None]:
    """Wait up to `timeout_s` until no transaction is open in partitions; return the producers of those still open.

    None for a partition whose leader does not say.

    A denial does not end an open transaction: its producer can still commit it. Call this after `protect`.

    Raises:
        UnreachableError: the destination does not answer.
    """
    deadline = time.monotonic() + timeout_s
    waiting = set(partitions)
    while True:
        answers = describe_producers(destination.client, waiting, timeout=timeout_s)
        found = {
            partition: None
            if answer.error_code
            else tuple(one for one in answer.producers if one.current_txn_start_offset is not None)
            for partition, answer in answers.items()
        }
        still_open = {partition: producers for partition, producers in found.items() if producers != ()}
        waiting = set(still_open)
        if not waiting or time.monotonic() > deadline:
            return still_open
        time.sleep(_PAUSE_S)


def _carry_out(
    destination: Destination, mirror: str, surveyed: AclSurvey, state: State, found: Mapping[str, Protection]
) -> dict[str, Protection]:
    """Create the missing denials, delete those no longer needed."""
    before = {topic: frozenset(state.rights(mirror, topic).denied) for topic in found}
    new = {topic: set(one.denied) - surveyed.acls for topic, one in found.items()}
    old = {topic: before[topic] - set(one.denied) for topic, one in found.items()}
    # an ACL that exists and is not on record as ours belongs to others
    ours = {topic: (before[topic] & set(one.denied)) | new[topic] for topic, one in found.items()}
    concerned = [topic for topic in found if new[topic] or old[topic]]
    if not concerned:
        return dict(found)
    existing = destination.client.metadata(concerned).topics
    there = [topic for topic in concerned if topic in existing and not existing[topic].error_code]
    could_not = missing_rights(destination.client, there, ("WRITE",))

    def decide(present: State) -> Changes:
        gone = [topic for topic in concerned if not is_mirrored(present.topic(mirror, topic))]
        if gone:
            raise RefusedError(f"{', '.join(gone)}: stopped in the meantime", "check with `kmirror describe`")
        rights = {topic: present.rights(mirror, topic) for topic in concerned}
        return Changes(tuple(replace(one, denied=_sorted({*one.denied, *new[t]})) for t, one in rights.items()))

    change(destination, mirror, decide)
    raise_first(create_acls(destination.client, _all(new.values())))
    raise_first(delete_acls(destination.client, _all(old.values())))
    await_acls(destination.client, _all(new.values()), _all(old.values()))
    denied_us = [t for t in missing_rights(destination.client, there, ("WRITE",)) if t not in could_not and new[t]]
    present = destination.state()
    stopped = [topic for topic in concerned if not is_mirrored(present.topic(mirror, topic))]
    if reverted := {*denied_us, *stopped}:
        raise_first(delete_acls(destination.client, _all(ours[topic] for topic in reverted)))
    kept = {topic: () if topic in reverted else _sorted(ours[topic]) for topic in concerned}
    gone = {topic: old[topic] | (ours[topic] if topic in reverted else set()) for topic in concerned}
    write_rights(destination, mirror, concerned, lambda one: replace(one, denied=_without(one.denied, gone[one.topic])))
    if denied_us:
        names = ", ".join(sorted({visible(one.principal) for topic in denied_us for one in new[topic]}))
        raise KmirrorError(
            f"denying {names} WRITE on {', '.join(sorted(denied_us))} also denied kmirror and was reverted",
            "give kmirror a principal of its own",
        )
    return {
        topic: replace(one, denied=kept.get(topic, one.denied), changed=topic in concerned)
        for topic, one in found.items()
        if topic not in stopped
    }


def _store(
    destination: Destination, mirror: str, before: State, cluster_wide: str | None, found: Mapping[str, Protection]
) -> bool:
    """Store why foreign writes are only detected: once for the cluster, or by topic. Return whether that is new."""
    reasons = {topic: None if cluster_wide is not None else one.detected_only for topic, one in found.items()}
    reasons[SHARED] = cluster_wide
    is_new = any(before.rights(mirror, topic).detected_only != why for topic, why in reasons.items())
    if is_new:
        write_rights(destination, mirror, reasons, lambda one: replace(one, detected_only=reasons[one.topic]))
    return is_new


def _all(groups: Iterable[Iterable[AclBinding]]) -> list[AclBinding]:
    return [one for group in groups for one in group]


def _sorted(bindings: Iterable[AclBinding]) -> tuple[AclBinding, ...]:
    return tuple(sorted(bindings))


def _without(bindings: Iterable[AclBinding], gone: Collection[AclBinding]) -> tuple[AclBinding, ...]:
    return tuple(one for one in bindings if one not in gone)


def raise_first(outcomes: Mapping[AclBinding, KmirrorError | None]) -> None:
    """Raise the first error, if any."""
    for error in outcomes.values():
        if error is not None:
            raise error
