"""The start of one mirror's engine, step by step: check the source, take the lease, add new topics, create the engine.

Each step may be retried after an error. `side_jobs_of` lists the jobs that an engine runs beside the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress

from kmirror.beside import beside
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.commands import on_mirror
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.driver.side_jobs import JobEvent, JobView, SideJob
from kmirror.engine.lanes.lane_jobs import LaneRunner
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.worker_logins import Logins, require_logins
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.ops.base.context import Destination, actor, cluster_id_of, require_mirror, source_client
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.jobs.rebuild import TopicRebuilder
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror.ops.rights.acl_sync import RightsJob
from kmirror.ops.rights.client_sync import ClientsJob
from kmirror.ops.stop.stop import is_being_stopped, require_not_failed_over
from kmirror.settings.parsing import stored_settings
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.records import EngineRecord, MirrorRecord
from kmirror.state.waiting import BRIEFLY_S

#: How long a lane may write after it last read that no other engine has taken over.
LEASE_TTL_MS = 5_000
_HEARTBEAT_TIMEOUT_S = 5.0


def check_source(record: MirrorRecord, *, must_answer: bool) -> None:
    """Refuse a source that refuses us, and one that does not answer or is another cluster only if it `must_answer`.

    Both may pass: an engine reports them, and waits.
    """
    try:
        with source_client(record.source, record.source_cluster_id) as client:
            cluster_id_of(client, timeout=5)
    except KmirrorError as error:
        is_another = error.reason is Reason.SOURCE_CLUSTER_CHANGED
        if is_another and must_answer:
            raise RefusedError(
                f"another cluster answers for mirror {record.name}: {error.message}",
                "correct the source's bootstrap.servers; nothing was copied",
                error.reason,
            ) from None
        if must_answer or not (is_another or is_transient(error)):
            raise


class EngineStart:
    """Create the engine of one mirror; for one thread at a time.

    `again`: this process may hold its lease already. `silent`: as `Lease.acquire` takes it.
    """

    def __init__(
        self,
        destination: Destination,
        record: MirrorRecord,
        request: RunRequest,
        stop: threading.Event,
        *,
        again: bool = False,
        silent: EngineRecord | None = None,
    ) -> None:
        self.mirror = record.name
        self._destination, self._record, self._request, self._stop = destination, record, request, stop
        self._identity = EngineIdentity.of_this_process(master=request.master)
        self._again, self._silent = again, silent
        self._lease: Lease | None = None

    def take_lease(self) -> bool:
        """Take the lease; return False if stopped while standing by.

        Raises RefusedError, besides what `Lease.acquire` raises, for a mirror that is being stopped as a whole, or was:
        a stop stores that before it takes the lease from an engine, so it is certain only for one that has the lease.
        """
        store, mirror, again = self._destination.store, self.mirror, self._again
        self._again = True
        if self._request.standby:
            self._lease = Lease.standby(store, mirror, self._identity, LEASE_TTL_MS, should_stop=self._stop.is_set)
        else:
            take_over = self._request.take_over
            self._lease = Lease.acquire(
                store, mirror, self._identity, LEASE_TTL_MS, take_over, again=again, silent=self._silent
            )
        if self._lease is None:
            return False
        state = self._destination.state(BRIEFLY_S)  # all that was stored before the lease has been read with it
        try:
            require_not_failed_over(state, require_mirror(state, mirror))
            if is_being_stopped(state, mirror):
                raise RefusedError(
                    f"mirror {mirror} is being stopped as a whole",
                    f"if that was interrupted, `{on_mirror('failover', mirror)}` completes it",
                )
        except RefusedError:
            self._lease.release()
            raise
        return True

    def keep(self) -> None:
        """Renew the lease while the start waits for something else; if that fails, using it will report the error."""
        if self._lease is not None:
            with suppress(KmirrorError, OutcomeUnknown):
                self._lease.heartbeat({}, timeout=_HEARTBEAT_TIMEOUT_S)

    def discover(self) -> Iterator[str]:
        """Add the source topics that the mirror's filters match now; yield notes."""
        lease = self._held_lease()
        state, record = self._destination.state(BRIEFLY_S), self._record
        view = JobView(
            record,
            stored_settings(record.settings),
            state.topics(record.name),
            {
                TopicPartition(one.topic, one.partition): one
                for topic in state.topics(record.name)
                for one in state.partitions(record.name, topic.topic)
            },
            {},
        )
        with closing(DiscoveryJob(record.name, self._destination.properties, self._destination.cluster_id)) as job:
            for event in job.run(view):
                lease.heartbeat({}, timeout=_HEARTBEAT_TIMEOUT_S)
                if isinstance(event, JobEvent) and event.note is not None:
                    yield event.note
                if self._stop.is_set():
                    return

    def check_workers(self, runtime: SparkRuntime, seconds: float) -> None:
        """Refuse Spark workers on other machines that lack files or variables that the clusters' properties name.

        Workers that are busy for `seconds`, or join later, are not asked: lanes that start there report the same.
        """
        logins = Logins(self.mirror, self._record.source, self._destination.properties)
        for error in runtime.failures_of_executors(f"logins of {self.mirror}", require_logins, logins, seconds):
            if isinstance(error, RefusedError):
                raise error

    def engine(self, runtime: SparkRuntime, lanes: LaneRunner) -> MirrorEngine:
        """Create the engine, which then owns the lease; `lanes` runs its lanes."""
        mirror, properties, cluster_id = self.mirror, self._destination.properties, self._destination.cluster_id
        return MirrorEngine(
            mirror,
            self._destination.state(BRIEFLY_S),
            self._held_lease(),
            properties,
            lanes,
            actor(),
            TopicRebuilder(properties, mirror, runtime, cluster_id),
            side_jobs_of(mirror, properties, cluster_id),
            cluster_id,
        )

    def _held_lease(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("the lease was not taken")
        return self._lease

    def close(self) -> None:
        """Close the lease's connections without ending it: it expires."""
        if self._lease is not None:
            self._lease.close()


def side_jobs_of(
    mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None
) -> list[SideJob]:
    """Return the jobs of one mirror, whose destination is this cluster.

    Each opens connections of its own when it first runs, and closes them.
    """
    return [
        RightsJob(mirror, destination_properties, cluster_id),
        ClientsJob(mirror, destination_properties, cluster_id),
        GroupSyncJob(mirror, destination_properties, cluster_id),
        SettingsSyncJob(mirror, destination_properties, cluster_id),
        DiscoveryJob(mirror, destination_properties, cluster_id),
        *beside("mirrormaker_jobs")(mirror, destination_properties, cluster_id),
    ]
