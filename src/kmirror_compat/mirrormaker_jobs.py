"""The jobs that write MirrorMaker 2's own topics at the destination, for programs that read them.

`RemoteClusterUtils.translateOffsets` reads checkpoints; monitoring of MirrorMaker 2 reads heartbeats. Both are off by
default, and never written into a topic that is itself a mirror topic. A heartbeat is written only when the source has
just answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import NO_TOPIC_ID
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.commands import option
from kmirror.engine.driver.side_jobs import JobEvent, JobView, SideJob
from kmirror.errors import BrokerError, Reason, RefusedError
from kmirror.ops.base.context import Destination, cluster_id_of, naming_cluster, now_ms, require_same_cluster
from kmirror.ops.base.destination_job import DestinationJob
from kmirror.ops.groups.group_facts import log_bounds, mirrored_topics, read_source_groups
from kmirror.settings.table import Settings
from kmirror.state.records import DesiredState
from kmirror.state.waiting import refused
from kmirror_compat.mirrormaker_records import (
    HEARTBEATS_TOPIC,
    checkpoints,
    checkpoints_topic,
    heartbeat,
    offset_syncs,
    offset_syncs_topic,
)

_TIMEOUT_S = 30.0
#: Entries have some hundred bytes: so many fit into a batch.
_AT_ONCE = 500
_COMPACTED = {"cleanup.policy": "compact"}


class _Job(DestinationJob):
    """What both jobs need: connections, and a way to write records that have changed."""

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        super().__init__(mirror, destination_properties, cluster_id)
        self._source_properties: Mapping[str, str] | None = None
        self._source: ClusterClient | None = None
        #: By topic its id, and what was last written into it, by key.
        self._written: dict[str, tuple[bytes, dict[bytes, bytes]]] = {}

    def close(self) -> None:
        """Close connections."""
        if self._source is not None:
            self._source.close()
        self._source = None
        self._written.clear()
        super().close()

    def _open(self, source: Mapping[str, str], cluster_id: str | None) -> tuple[ClusterClient, Destination]:
        if self._source_properties != source:
            self.close()
        if self._source is None:
            self._source = ClusterClient(client_config(source).expecting(cluster_id))
            self._source_properties = dict(source)
        return self._source, self._destination

    def _write(self, destination: Destination, settings: Settings, topic: str, entries: Mapping[bytes, bytes]) -> None:
        """Write the entries that have changed; create the topic if needed. Raises KmirrorError."""
        topic_id = _find(destination.client, topic)
        known_id, written = self._written.pop(topic, (None, {}))  # forgotten if an error follows
        if topic_id is None or topic_id != known_id:
            self._require_free(destination, [topic])
            topic_id = topic_id or _create(destination.client, topic, settings.replication_factor)
            written = {}
        changed = iter([(key, value) for key, value in entries.items() if written.get(key) != value])
        while some := dict(islice(changed, _AT_ONCE)):
            _append(destination, topic, some)
            written |= some
        self._written[topic] = topic_id, written

    def _require_free(self, destination: Destination, topics: Iterable[str]) -> None:
        """Raise RefusedError if one of these is a mirror topic, which only its mirror may write."""
        state = destination.state()
        for topic in topics:
            for mirror in state.mirrors:
                record = state.topic(mirror.name, topic)
                if record is not None and record.desired is not DesiredState.STOPPED:
                    raise RefusedError(
                        f"{topic} is a topic of mirror {mirror.name}: nothing is written into it for MirrorMaker 2"
                    )


class CheckpointsJob(_Job):
    """Write offset syncs and checkpoints; see `engine.driver.side_jobs.SideJob`."""

    name = "checkpoints"

    def interval_s(self, settings: Settings) -> float:
        """Return the time between two runs, in seconds."""
        return self._pace.interval_s(settings.emit_checkpoints_interval_seconds)

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        return settings.emit_offset_syncs_enabled or settings.emit_checkpoints_enabled

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Write what has changed. Raises KmirrorError; what was not written is written by the next run."""
        settings = view.settings
        syncs, marks = offset_syncs_topic(settings), checkpoints_topic(settings)
        wanted = {syncs: settings.emit_offset_syncs_enabled, marks: settings.emit_checkpoints_enabled}
        if not any(wanted.values()):
            self.close()
            return ()
        source, destination = self._open(view.mirror.source, view.mirror.source_cluster_id)
        self._require_free(destination, [topic for topic in wanted if wanted[topic]])
        with self._pace.measured():
            state = destination.state()
            topics = mirrored_topics(state, self._mirror)
            if wanted[syncs]:
                self._write(destination, settings, syncs, offset_syncs(topics, view.ends))
            if wanted[marks]:
                found = read_source_groups(ClusterGroups(source), state, view.mirror, settings, topics, whole=False)
                asked: set[TopicPartition] = set()
                for group in found.groups.values():
                    asked |= {
                        partition for at in group.committed if (partition := topics.destination_of(at)) is not None
                    }
                with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
                    bounds = log_bounds(destination.client, asked)
                self._write(destination, settings, marks, checkpoints(found.groups, found.topics, bounds))
        return ()


class HeartbeatsJob(_Job):
    """Write heartbeats while the source answers; see `engine.driver.side_jobs.SideJob`."""

    name = "heartbeats"

    def interval_s(self, settings: Settings) -> float:
        """Return the seconds between two heartbeats, or until the setting is read again while they are off."""
        seconds = settings.emit_heartbeats_interval_seconds
        return float(seconds if settings.emit_heartbeats_enabled else settings.refresh_interval_seconds)

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        return settings.emit_heartbeats_enabled

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Write one heartbeat. Raises KmirrorError if a cluster does not answer."""
        if not view.settings.emit_heartbeats_enabled:
            self.close()
            return ()
        source, destination = self._open(view.mirror.source, view.mirror.source_cluster_id)
        with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
            require_same_cluster(view.mirror.source_cluster_id, cluster_id_of(source))
        self._write(destination, view.settings, HEARTBEATS_TOPIC, dict([heartbeat(view.settings, now_ms())]))
        return ()


def jobs_of(mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None) -> list[SideJob]:
    """Return both jobs of one mirror."""
    return [job(mirror, destination_properties, cluster_id) for job in (CheckpointsJob, HeartbeatsJob)]


def _find(cluster: ClusterClient, topic: str) -> bytes | None:
    """Return a topic's id, None if there is none."""
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        found = cluster.metadata([topic]).topics.get(topic)
    return None if found is None or found.error_code else found.topic_id


def _create(cluster: ClusterClient, topic: str, replication_factor: int) -> bytes:
    """Create a topic and return its id, zeros if another client was faster."""
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        try:
            return create_topic(cluster, topic, 1, replication_factor, _COMPACTED, quota_wait_s=0)
        except BrokerError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise
            return NO_TOPIC_ID


def _append(destination: Destination, topic: str, entries: Mapping[bytes, bytes]) -> None:
    """Append one batch of records. Raises KmirrorError: it is not there, or may be there."""
    partition, time_ms = TopicPartition(topic, 0), now_ms()
    batch = bytes(make_batch(Record(offset, time_ms, *entry) for offset, entry in enumerate(entries.items())))
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        code = destination.client.send_batches([partition], lambda _: batch, timeout=_TIMEOUT_S)[partition]
    if code:
        grant = grant_line(destination.config, ("CREATE", "WRITE"), *option("--topic", topic))
        raise refused(code, code_name(code), f"writing to {topic}", None, grant)
