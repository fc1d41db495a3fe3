"""The engine's job that syncs client quotas, and reports SCRAM users that are missing on the destination.

Brokers reveal only the names of SCRAM users, so users can be compared but not copied. What the source has is stored on
the destination, so that a failover can report what its clients will lack when the source is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.acl_commands import login_principal
from kmirror.cluster.rights.client_quotas import alter_quotas, describe_quotas, scram_users
from kmirror.engine.driver.side_jobs import JobEvent, JobView
from kmirror.engine.status.journal import Level
from kmirror.ops.base.context import Destination, change, cluster_id_of, now_ms, require_same_cluster
from kmirror.ops.base.destination_job import DestinationJob
from kmirror.ops.rights.protection import is_mirrored
from kmirror.settings.table import Settings
from kmirror.state.client_records import ClientsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.quotas import copied_quotas, quota_plan
from kmirror.words import counted

_WHAT = "rights"
_MOST_NAMES = 100
#: How often to store that the source was read, if nothing has changed.
RECORDED_EVERY_MS = 60_000


class ClientsJob(DestinationJob):
    """Sync quotas and compare users; see `engine.driver.side_jobs.SideJob`."""

    name = "clients"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        super().__init__(mirror, destination_properties, cluster_id)
        self._reported: dict[str, Collection[object]] = {}

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        return settings.sync_quotas_enabled or settings.compare_scram_users_enabled

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Run once. Raises KmirrorError if quotas could not be read or changed."""
        settings = view.settings
        if not self.has_work(settings) or not any(is_mirrored(topic) for topic in view.topics):
            return
        with self._source_of(view.mirror) as source:
            require_same_cluster(view.mirror.source_cluster_id, cluster_id_of(source))
            if settings.sync_quotas_enabled:
                yield from self._sync_quotas(self._destination, source, view)
            if settings.compare_scram_users_enabled:
                yield from self._compare_users(self._destination, source)

    def _sync_quotas(self, destination: Destination, source: ClusterClient, view: JobView) -> Iterator[JobEvent]:
        theirs = quotas_to_sync(source, destination.client)
        here = describe_quotas(destination.client)
        known = clients_record(destination.state(), self._mirror)
        plan = quota_plan(theirs, here, known.made, deletes=all(is_mirrored(topic) for topic in view.topics))
        _store(destination, self._mirror, made=plan.ours, quotas=theirs)
        failed = alter_quotas(destination.client, plan.wanted, plan.unwanted)
        # a refused change may have been made all the same: it stays on record
        kept = plan.ours if failed else plan.kept
        _store(destination, self._mirror, made=kept)
        done, gone = plan.wanted - failed.keys(), plan.unwanted - failed.keys()
        if done or gone:
            note = f"{counted(len(done), 'quota')} set, {len(gone)} removed"
            yield JobEvent(note, _WHAT, "OK", {"message": note, "set": _names(done), "removed": _names(gone)})
        if plan.differing and plan.differing != self._reported.get("quotas"):
            note = f"{counted(len(plan.differing), 'quota')} of the source set differently here by others: unchanged"
            yield JobEvent(note, _WHAT, "DETECTED", {"message": note, "quotas": _names(plan.differing)}, Level.WARNING)
        self._reported["quotas"] = plan.differing
        for error in failed.values():
            raise error

    def _compare_users(self, destination: Destination, source: ClusterClient) -> Iterator[JobEvent]:
        users = users_of_clients(source, destination.client)
        _store(destination, self._mirror, scram_users=users)
        missing = users - scram_users(destination.client)
        if missing and missing != self._reported.get("users"):
            note = (
                f"{counted(len(missing), 'SCRAM user')} of the source cannot log in here: brokers do not reveal"
                " passwords, so users are never copied"
            )
            details = {"message": note, "users": sorted(missing)[:_MOST_NAMES], "hint": "create them here"}
            yield JobEvent(note, _WHAT, "DETECTED", details, Level.WARNING)
        self._reported["users"] = missing


def quotas_to_sync(source: ClusterClient, destination: ClusterClient, timeout: float | None = None) -> frozenset[Quota]:
    """Return the source's quotas that can be synced. Raises UnreachableError."""
    logins = _logins(source, destination)
    client_ids = {one.config.client_id for one in (source, destination)}

    def is_own(kind: str, name: str) -> bool:
        return f"User:{name}" in logins if kind == "user" else name in client_ids

    return copied_quotas(describe_quotas(source, timeout), is_own)


def users_of_clients(source: ClusterClient, destination: ClusterClient, timeout: float | None = None) -> frozenset[str]:
    """Return the source's SCRAM users except kmirror's own. Raises UnreachableError."""
    logins = _logins(source, destination)
    return frozenset(user for user in scram_users(source, timeout) if f"User:{user}" not in logins)


def _logins(*clients: ClusterClient) -> frozenset[str | None]:
    return frozenset(login_principal(one.config) for one in clients)


def clients_record(state: State, mirror: str) -> ClientsRecord:
    """Return the stored record of a source's clients, an empty one if there is none."""
    found = state.records.get(("clients", mirror))
    return found if isinstance(found, ClientsRecord) else ClientsRecord(mirror)


def _store(
    destination: Destination,
    mirror: str,
    *,
    made: Collection[Quota] | None = None,
    quotas: Collection[Quota] | None = None,
    scram_users: Collection[str] | None = None,
) -> None:
    """Store what is given if it has changed; otherwise now and then that it is unchanged."""
    at = now_ms()

    def decide(state: State) -> Changes:
        before = clients_record(state, mirror)
        after = before if made is None else replace(before, made=tuple(sorted(made)))
        if quotas is not None:
            seen = tuple(sorted(quotas))
            if seen != before.quotas or _is_old(before.quotas_ms, at):
                after = replace(after, quotas=seen, quotas_ms=at)
        if scram_users is not None:
            users = tuple(sorted(scram_users))
            if users != before.scram_users or _is_old(before.scram_users_ms, at):
                after = replace(after, scram_users=users, scram_users_ms=at)
        return Changes() if after == before else Changes((after,))

    if decide(destination.state()) != Changes():
        change(destination, mirror, decide)


def _is_old(recorded_ms: int | None, at: int) -> bool:
    return recorded_ms is None or at - recorded_ms > RECORDED_EVERY_MS


def _names(quotas: Iterable[Quota]) -> list[str]:
    return [str(one) for one in sorted(quotas)][:_MOST_NAMES]
