"""Keeping everybody else from writing to mirror topics (`read.only=enforce`), and telling where that is not possible.

The ACLs of the destination say who may write; each of these principals is denied it on the mirror topic. Not so where

* there is no authorizer, or we may not see or change ACLs;
* `allow.everyone.if.no.acl.found` is true: one ACL on a topic would shut its readers out;
* an ACL lets everybody (`User:*`) write, and kmirror is no super user: nobody can be denied that without kmirror.

There, what others write is detected afterwards only. What is made is recorded first, and once more looked at when it is
in force: a denial that strikes kmirror itself is taken back at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.acl_commands import admin_options, grant_line, login_principal
from kmirror.cluster.acls import NoAuthorizerError, await_acls, create_acls, delete_acls, describe_acls, kafka_acls_line
from kmirror.cluster.authorized import cluster_operations, missing_operations, missing_rights
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.principal_probe import PrincipalProbe, probe_principal
from kmirror.cluster.protocol.acl_binding import EVERYONE, AclBinding
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.producer_state import ProducerState
from kmirror.errors import KmirrorError, Reason, RefusedError
from kmirror.ops.context import Destination, change
from kmirror.state.records import PENDING_STOP, DesiredState, TopicRecord
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.acl_index import AclIndex
from kmirror.sync.acls import OwnPrincipals, enforcement, producers_of

_PAUSE_S = 0.2
NO_AUTHORIZER = "the destination has no authorizer"
OPEN_BY_DEFAULT = "allow.everyone.if.no.acl.found is (or may be) true"


@dataclass(frozen=True, slots=True)
class AclSurvey:
    """What protection stands on: the ACLs, and who we are.

    `detected_only` says why the whole cluster permits none, None where it does; `hint` what to do about it.
    """

    acls: frozenset[AclBinding] = frozenset()
    writing: AclIndex = field(default_factory=lambda: AclIndex(()))
    own: OwnPrincipals = field(default_factory=lambda: OwnPrincipals(frozenset()))
    detected_only: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Protection:
    """How one mirror topic is protected: everybody else is kept from writing, or `detected_only` says why not."""

    topic: str
    #: The denials of kmirror's that do it; none are needed where nobody else may write anyway.
    denied: tuple[AclBinding, ...] = ()
    detected_only: str | None = None
    hint: str | None = None
    #: What was created or deleted for it just now.
    changed: bool = False


@dataclass(slots=True)
class Known:
    """Remember how we stand, which takes a moment to find out and seldom changes; one for each job or command."""

    standing: PrincipalProbe | None = None
    asked: frozenset[str] = frozenset()


def survey(
    client: ClusterClient, topics: Collection[str], known: Known | None = None, cluster: str = "the destination"
) -> AclSurvey:
    """Look at a cluster's ACLs and find out how we stand there; changes nothing that lasts.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    known = known or Known()
    to_alter = grant_line(client.config, ("ALTER", "DESCRIBE"), "--cluster")
    try:
        acls = describe_acls(client)
        if "ALTER" in missing_operations(cluster_operations(client), ("ALTER",)):
            login = login_principal(client.config)
            own = OwnPrincipals(frozenset({login} if login else ()))
            return AclSurvey(
                acls, AclIndex(acls), own, "kmirror may not change ACLs: it lacks ALTER on the cluster", to_alter
            )
        login = login_principal(client.config)
        candidates = producers_of(acls, topics) - {EVERYONE} if login is None else frozenset[str]()
        if known.standing is None or not candidates <= known.asked:
            known.standing, known.asked = probe_principal(client, acls, candidates), candidates
    except NoAuthorizerError:
        return AclSurvey(detected_only=f"{cluster} has no authorizer", hint="set authorizer.class.name on its brokers")
    except KmirrorError as error:
        if error.reason is not Reason.NOT_AUTHORIZED:
            raise
        return AclSurvey(detected_only=f"kmirror may not see or change ACLs: {error.message}", hint=to_alter)
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


def judge(
    ground: AclSurvey, topic: str, ours: Collection[AclBinding], cluster: str = "--bootstrap-server DESTINATION"
) -> Protection:
    """Return how a topic is to be protected; `ours` are the denials made for it before. Changes nothing."""
    if ground.detected_only is not None:
        return Protection(topic, (), ground.detected_only, ground.hint)
    found = enforcement(ground.writing, topic, ground.own, ours)
    denied = tuple(sorted(found.denied))
    if not found.open_by:
        return Protection(topic, denied)
    lines = "\n".join(kafka_acls_line(one, cluster, remove=True) for one in found.open_by)
    why = f"all principals may write ({found.open_by[0]}), and denying it would also deny kmirror"
    return Protection(topic, denied, why, f"make kmirror a super user, or grant rights by name instead:\n{lines}")


def is_mirrored(topic: TopicRecord | None) -> bool:
    """Tell whether a topic is a mirror topic that nobody stops."""
    return topic is not None and topic.desired is not DesiredState.STOPPED and topic.pending_operation != PENDING_STOP


def protect(
    destination: Destination, mirror: str, topics: Collection[str], known: Known | None = None
) -> dict[str, Protection]:
    """Keep everybody else from writing to these mirror topics, which need not exist yet; return how it stands.

    They must have been claimed (their records say so). Returns when the denials are in force on every broker. Whether
    transactions that were open before are still going on is `settle`'s question. Idempotent.

    Raises:
        UnreachableError: the destination does not answer.
        KmirrorError: a denial could not be made; what was made stays recorded.
    """
    ground = survey(destination.client, topics, known)
    state = destination.state()
    found = {
        topic: judge(ground, topic, state.rights(mirror, topic).denied, admin_options(destination.config))
        for topic in topics
        if is_mirrored(state.topic(mirror, topic))
    }
    if ground.detected_only is None:
        found = _carry_out(destination, mirror, ground, state, found)
    _remember(destination, mirror, state, ground.detected_only, found)
    return found


def unprotect(destination: Destination, mirror: str, topics: Collection[str]) -> dict[str, tuple[AclBinding, ...]]:
    """Take back the denials made for mirror topics, and return them; for `read.only=detect`. Idempotent.

    Raises:
        KmirrorError: one could not be deleted; it stays recorded.
    """
    state = destination.state()
    ours = {topic: denied for topic in topics if (denied := state.rights(mirror, topic).denied)}
    if ours:
        _raise_first(delete_acls(destination.client, _all(ours.values())))
    untold = [topic for topic in topics if topic in ours or state.rights(mirror, topic).detected_only is not None]
    if untold or state.rights(mirror, SHARED).detected_only is not None:
        forgotten = {topic: replace(state.rights(mirror, topic), denied=(), detected_only=None) for topic in untold}
        shared = replace(state.rights(mirror, SHARED), detected_only=None)
        write_rights(destination, mirror, {**forgotten, SHARED: shared})
    return ours


def write_rights(destination: Destination, mirror: str, records: Mapping[str, RightsRecord]) -> None:
    """Write records of rights, those that hold nothing as tombstones; what is there already is not written again."""

    def decide(state: State) -> Changes:
        changed = [one for topic, one in records.items() if one != state.rights(mirror, topic)]
        return Changes(tuple(one for one in changed if one), tuple(one.key for one in changed if not one))

    change(destination, mirror, decide)


def settle(
    destination: Destination, partitions: Collection[TopicPartition], timeout_s: float
) -> dict[TopicPartition, tuple[ProducerState, ...]]:
    """Wait until no transaction is open in partitions, `timeout_s` at most; return those that still are.

    A denial does not end a transaction that is open: its producer may commit it. Call it after `protect`.

    Raises:
        UnreachableError: the destination does not answer.
    """
    deadline = time.monotonic() + timeout_s
    waiting = set(partitions)
    while True:
        found = {
            partition: tuple(one for one in answer.producers if one.current_txn_start_offset is not None)
            for partition, answer in destination.client.describe_producers(waiting).items()
        }
        still_open = {partition: producers for partition, producers in found.items() if producers}
        waiting = set(still_open)
        if not waiting or time.monotonic() > deadline:
            return still_open
        time.sleep(_PAUSE_S)


def _carry_out(
    destination: Destination, mirror: str, ground: AclSurvey, state: State, found: Mapping[str, Protection]
) -> dict[str, Protection]:
    """Make the denials that are lacking, delete those that are needed no more."""
    before = {topic: frozenset(state.rights(mirror, topic).denied) for topic in found}
    new = {topic: set(one.denied) - ground.acls for topic, one in found.items()}
    old = {topic: before[topic] - set(one.denied) for topic, one in found.items()}
    # an ACL that is here and not on record as ours is somebody else's
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
        return Changes(tuple(replace(one, denied=_sorted(ours[t] | old[t])) for t, one in rights.items()))

    change(destination, mirror, decide)
    _raise_first(create_acls(destination.client, _all(new.values())))
    _raise_first(delete_acls(destination.client, _all(old.values())))
    await_acls(destination.client, _all(new.values()), _all(old.values()))
    struck = [t for t in missing_rights(destination.client, there, ("WRITE",)) if t not in could_not and new[t]]
    present = destination.state()
    stopped = [topic for topic in concerned if not is_mirrored(present.topic(mirror, topic))]
    if taken_back := {*struck, *stopped}:
        _raise_first(delete_acls(destination.client, _all(ours[topic] for topic in taken_back)))
    kept = {topic: () if topic in taken_back else _sorted(ours[topic]) for topic in concerned}
    write_rights(destination, mirror, {t: replace(present.rights(mirror, t), denied=kept[t]) for t in concerned})
    if struck:
        names = ", ".join(sorted({one.principal for topic in struck for one in new[topic]}))
        raise KmirrorError(
            f"denying {names} WRITE on {', '.join(sorted(struck))} also denied kmirror and was reverted",
            "give kmirror a principal of its own",
        )
    return {
        topic: replace(one, denied=kept.get(topic, one.denied), changed=topic in concerned)
        for topic, one in found.items()
        if topic not in stopped
    }


def _remember(
    destination: Destination, mirror: str, before: State, cluster_wide: str | None, found: Mapping[str, Protection]
) -> None:
    """Keep why nobody is kept from writing: once for the cluster, or by topic."""
    why = {topic: None if cluster_wide is not None else one.detected_only for topic, one in found.items()}
    why[SHARED] = cluster_wide
    if any(before.rights(mirror, topic).detected_only != said for topic, said in why.items()):
        present = destination.state()
        records = {topic: replace(present.rights(mirror, topic), detected_only=said) for topic, said in why.items()}
        write_rights(destination, mirror, records)


def _all(groups: Iterable[Iterable[AclBinding]]) -> list[AclBinding]:
    return [one for group in groups for one in group]


def _sorted(bindings: Iterable[AclBinding]) -> tuple[AclBinding, ...]:
    return tuple(sorted(bindings))


def _raise_first(outcomes: Mapping[AclBinding, KmirrorError | None]) -> None:
    for error in outcomes.values():
        if error is not None:
            raise error
