"""Find out what clients of a mirror's source will lack at the destination once they move there.

A separate thread asks the source in parallel to a stop, until `SOURCE_TIMEOUT_S` after the stop began. If it does not
answer, what the engine last read is used, with its time. None of this can fail a stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.questions import answers_of
from kmirror.cluster.rights.acl_commands import admin_options, login_principal
from kmirror.cluster.rights.acls import ACLS, NoAuthorizerError, describe_acls, kafka_acls_line
from kmirror.cluster.rights.client_quotas import QUOTAS, SCRAM_USERS
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.client_gaps import ClientGaps, grant_command
from kmirror.ops.base.context import Destination, as_kmirror_error, cluster_id_of, now_ms, require_same_cluster
from kmirror.ops.rights.client_sync import clients_record, quotas_to_sync, users_of_clients
from kmirror.ops.rights.lift import deferred_acls, plan_lift
from kmirror.ops.rights.protection import OPEN_BY_DEFAULT, is_mirrored
from kmirror.ops.rights.source_acls import stored_source_acls
from kmirror.ops.show.cluster_view import SOURCE_REQUEST_S, SOURCE_TIMEOUT_S, BackgroundQuery
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.rights_records import SHARED
from kmirror.state.snapshot import State
from kmirror.sync.client_rights import LackingRight, Scope, lacking_rights
from kmirror.words import counted

T = TypeVar("T")
_SHORTEST_S = 0.1
_DESTINATION_S = 3.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The source's answers at `time_ms`; an error instead of each one that is missing."""

    time_ms: int
    acls: frozenset[AclBinding] | KmirrorError
    quotas: frozenset[Quota] | KmirrorError
    scram_users: frozenset[str] | KmirrorError


class ClientComparison:
    """Compare what clients of one mirror's source have there and here; starts asking the source at once."""

    def __init__(self, destination: Destination, mirror: MirrorRecord) -> None:
        self._destination = destination
        self._mirror = mirror
        self._asker = BackgroundQuery(mirror.source, mirror.source_cluster_id)
        self._until = time.monotonic() + SOURCE_TIMEOUT_S
        self._asker.start(partial(_ask, destination=destination.client, cluster_id=mirror.source_cluster_id))

    def gaps(self, topics: Sequence[TopicRecord], state: State | None = None) -> ClientGaps:
        """Return what clients of these topics lack, or for topics still mirrored will lack once they are stopped.

        `state` is the stored state, if just read.
        """
        answer = self._asker.answer(self._until)
        if not isinstance(answer, _Answer):
            why = answer or KmirrorError(f"the source does not answer within {SOURCE_TIMEOUT_S:g} s")
            answer = _Answer(now_ms(), why, why, why)
        try:
            state = self._destination.state() if state is None else state
            return _GapFinder(self._destination, self._mirror, topics, answer, state).gaps()
        except (KmirrorError, OutcomeUnknown) as error:
            unknown = f"what clients of the source lack here is unknown: {as_kmirror_error(error).message}"
            return ClientGaps(found_ms=now_ms(), unknown=(unknown,), warned=(unknown,))

    def close(self) -> None:
        """Close the connection to the source."""
        self._asker.close()


class _GapFinder:
    def __init__(
        self,
        destination: Destination,
        mirror: MirrorRecord,
        topics: Sequence[TopicRecord],
        answer: _Answer,
        state: State,
    ) -> None:
        self._destination = destination
        self._client = destination.client
        self._mirror = mirror
        self._topics = topics
        self._answer = answer
        self._settings = stored_settings(mirror.settings)
        self._state = state
        self._acls, self._quotas, self._scram_users = answers_of(
            self._client, (ACLS, QUOTAS, SCRAM_USERS), _DESTINATION_S
        )
        self._unknown: list[str] = []
        self._warned: list[str] = []
        own = self._state.topics(mirror.name)
        names = {topic.topic for topic in topics}
        #: The ACL changes that stopping will make, for topics that are not stopped yet.
        self._plan = plan_lift(self._state, mirror.name, [t.topic for t in own if t.topic in names and is_mirrored(t)])
        self._mirroring_continues = any(is_mirrored(t) and t.topic not in names for t in own)

    def gaps(self) -> ClientGaps:
        """Compare rights, quotas and SCRAM users."""
        at = now_ms()
        rights, rights_ms = self._rights(at)
        known = clients_record(self._state, self._mirror.name)
        quotas, quotas_ms = self._missing(
            "quotas", self._answer.quotas, known.quotas, known.quotas_ms,
            self._quotas, self._settings.sync_quotas_enabled,
        )  # fmt: skip
        users, users_ms = self._missing(
            "SCRAM users", self._answer.scram_users, known.scram_users, known.scram_users_ms,
            self._scram_users, self._settings.compare_scram_users_enabled,
        )  # fmt: skip
        cluster = admin_options(self._destination.config)
        deferred = deferred_acls(self._state, self._mirror.name) - self._plan.shared
        if deferred and not self._mirroring_continues:
            self._warned.append(
                "because topics that are still mirrored are concerned too, "
                f"{counted(len(deferred), 'ACL of the source is', 'ACLs of the source are')} not created here; "
                "`--json` has the commands"
            )
        return ClientGaps(
            found_ms=at,
            rights=rights,
            rights_as_of_ms=rights_ms,
            quotas=quotas,
            quotas_as_of_ms=quotas_ms,
            scram_users=users,
            scram_users_as_of_ms=users_ms,
            commands=tuple(grant_command(one, cluster) for one in rights or ()),
            deferred=tuple(kafka_acls_line(one, cluster) for one in sorted(deferred)),
            unknown=tuple(self._unknown),
            warned=tuple(self._warned),
        )

    def _rights(self, at: int) -> tuple[tuple[LackingRight, ...] | None, int | None]:
        what = "which clients of the source lack rights here is unknown"
        here = self._acls
        if isinstance(here, NoAuthorizerError):
            return (), at  # without an authorizer everyone may do everything
        if isinstance(here, KmirrorError):
            return self._not_known(f"{what}: {here.message}", is_warned=True)
        if OPEN_BY_DEFAULT in (self._state.rights(self._mirror.name, SHARED).detected_only or ""):
            return self._not_known(f"{what}: {OPEN_BY_DEFAULT} on the destination", is_warned=False)
        theirs, seen_ms = self._answer.acls, self._answer.time_ms
        if isinstance(theirs, NoAuthorizerError):
            return self._not_known(f"{what}: the source has no authorizer, so its clients had no ACLs", is_warned=True)
        if isinstance(theirs, KmirrorError):
            seen = stored_source_acls(self._state, self._mirror.name)
            if seen is None:
                return self._not_known(f"{what}: {theirs.message}; its ACLs were never seen", is_warned=True)
            theirs, seen_ms = seen
        # our own denials of WRITE at the source, for the time of the move only
        theirs -= {one for t in self._topics for one in self._state.rights(self._mirror.name, t.topic).blocked}
        removed = {one for group in self._plan.remove.values() for one in group}
        given = {one for group in self._plan.give.values() for one in group}
        return lacking_rights(theirs, (here - removed) | given | self._plan.shared, self._scope()), seen_ms

    def _scope(self) -> Scope:
        logins = {login_principal(self._destination.config)}
        with suppress(KmirrorError):  # a secret may have no value here
            logins.add(login_principal(client_config(self._mirror.source)))
        settings = self._settings
        return Scope(
            {one.source_topic: one.topic for one in self._topics},
            {one.group: one.destination_group for one in self._state.groups(self._mirror.name)},
            settings.selects_group,
            lambda group: settings.group_prefix + group,
            {one for one in logins if one},
        )

    def _missing(
        self,
        what: str,
        live: frozenset[T] | KmirrorError,
        stored: tuple[T, ...] | None,
        stored_ms: int | None,
        here: frozenset[T] | KmirrorError,
        is_warned: bool,
    ) -> tuple[tuple[T, ...] | None, int | None]:
        theirs: Collection[T]
        if not isinstance(live, KmirrorError):
            theirs, seen_ms = live, self._answer.time_ms
        elif stored is not None and stored_ms is not None:
            theirs, seen_ms = stored, stored_ms
        else:
            return self._not_known(f"which {what} of the source are missing is unknown: {live.message}", is_warned)
        if isinstance(here, KmirrorError):
            return self._not_known(f"which {what} of the source are missing is unknown: {here.message}", is_warned)
        return tuple(sorted(set(theirs) - here)), seen_ms  # type: ignore[type-var]

    def _not_known(self, why: str, is_warned: bool) -> tuple[None, None]:
        self._unknown.append(why)
        if is_warned:
            self._warned.append(why)
        return None, None


def _ask(source: ClusterClient, *, destination: ClusterClient, cluster_id: str | None) -> _Answer:
    until = time.monotonic() + SOURCE_REQUEST_S

    def left() -> float:
        return max(_SHORTEST_S, until - time.monotonic())

    require_same_cluster(cluster_id, cluster_id_of(source, left()))
    at = now_ms()
    return _Answer(
        at,
        _asked(lambda: describe_acls(source, left())),
        _asked(lambda: quotas_to_sync(source, destination, left())),
        _asked(lambda: users_of_clients(source, destination, left())),
    )


def _asked(question: Callable[[], T]) -> T | KmirrorError:
    try:
        return question()
    except (KmirrorError, OutcomeUnknown) as error:
        return as_kmirror_error(error)
