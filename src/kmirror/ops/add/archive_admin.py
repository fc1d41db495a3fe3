"""Create archives, and look whether they hold what was archived, and for how long.

It is looked at right before anything is deleted: minutes or weeks may have passed since the archive was verified.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kmirror.cluster.client import ClusterClient, require
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.topics.log_dirs import stored_sizes
from kmirror.cluster.topics.policies import settled_to_create
from kmirror.cluster.topics.settling import set_to, with_settled
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import option
from kmirror.engine.archive.archive_topic import archive_name, archive_settings
from kmirror.engine.archive.archiving import still_valid
from kmirror.engine.clock import now_ms
from kmirror.errors import BrokerError, Reason, RefusedError, UnreachableError
from kmirror.ops.add.topic_admin import CREATION_S, await_topics
from kmirror.ops.base.gone import not_described
from kmirror.state.archive_proofs import Proof
from kmirror.state.waiting import Deadline, refused

_POLICY, _TIME, _BYTES, _CLOCK = "cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type"
#: Records are as old as they have been in the topic.
_SINCE_APPENDED = "LogAppendTime"
#: An archive that may begin to delete records sooner is of no use.
_SHORTEST_MS = 3_600_000


def next_archive(client: ClusterClient, topic: str) -> str:
    """Return the name of the next archive of a topic, which no broker knows: a stale one does not know earlier ones.

    Raises KmirrorError: a broker does not answer.
    """
    names = set(client.metadata(None).topics)
    while True:
        found = client.metadata([name := archive_name(topic, names)]).topics[name]
        if found.error_code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.TOPIC_AUTHORIZATION_FAILED):
            return name
        if found.error_code:
            raise not_described(found)
        names.add(name)


def create_archive(
    client: ClusterClient, topic: str, archive: str, partitions: int, replication_factor: int
) -> int | None:
    """Create the archive of a topic, unless it exists, and wait for it; return how long it keeps records, as `kept_ms`.

    With a `replication_factor` of -1 it gets as many replicas as the topic has.

    Raises:
        RefusedError: it may delete records at once, because they are old.
        BrokerError: the cluster refuses to create it.
    """
    if replication_factor < 0:
        replication_factor = client.metadata([topic]).topics[topic].replication_factor
    asked = archive_settings(topic_settings(client, [topic])[topic])
    holding: Collection[int] = ()
    try:
        settled = settled_to_create(client, archive, partitions, replication_factor, asked)
        if _TIME in settled:
            asked |= {_CLOCK: _SINCE_APPENDED}
        create_topic(client, archive, partitions, replication_factor, set_to(with_settled(asked, settled)))
    except BrokerError as error:
        if error.code != Code.TOPIC_ALREADY_EXISTS:
            raise
        holding = range(partitions)
    await_topics(client, [archive], Deadline(CREATION_S))
    return kept_ms(client, archive, holding)


def kept_ms(client: ClusterClient, archive: str, partitions: Collection[int]) -> int | None:
    """Return how long an archive keeps records from their archiving on, in ms; None: for ever.

    `partitions` are those that have records.

    Raises:
        RefusedError: it may delete them at any time, or whether it does is unknown without DESCRIBE on the cluster.
        KmirrorError: its settings or sizes are not returned.
    """
    found = topic_settings(client, [archive], [_POLICY, _TIME, _BYTES, _CLOCK])[archive]
    if isinstance(found, int):
        grant = grant_line(client.config, ("DESCRIBE_CONFIGS",), *option("--topic", archive))
        raise refused(found, code_name(found), f"reading the settings of {archive}", None, grant)
    values = {key: setting.value for key, setting in found.items()}
    time_ms, size = (int(values.get(key) or -1) for key in (_TIME, _BYTES))
    needed = {
        f"{_POLICY}=delete": values.get(_POLICY) == "delete",
        f"{_TIME}=-1": time_ms < 0 or values.get(_CLOCK) == _SINCE_APPENDED,
        f"{_BYTES}=-1": size < 0 or _is_below(client, archive, partitions, size),
    }
    if missing := next((setting for setting, is_met in needed.items() if not is_met), None):
        key = missing.partition("=")[0]
        raise RefusedError(
            f"archive {archive} may delete records at any time: it has {key}={values.get(key)}",
            f"nothing was deleted; set {missing} on it, or delete it: the next attempt creates it again",
        )
    return None if time_ms < 0 else time_ms


def kept_until_ms(client: ClusterClient, archive: str, partitions: Collection[int]) -> int | None:
    """Return when an archive may begin to delete what it has, in epoch ms; None: never. Raises as `kept_ms`."""
    kept = kept_ms(client, archive, partitions)
    return None if kept is None else _first_append_ms(client, archive, partitions) + kept


def is_kept_for_now(client: ClusterClient, archive: str, partitions: Collection[int]) -> bool:
    """Return whether it takes a while until an archive may begin to delete what it has. Raises as `kept_ms`."""
    kept = kept_ms(client, archive, partitions)
    if kept is None:
        return True
    left_ms = _first_append_ms(client, archive, partitions) + kept - now_ms()
    return left_ms > min(_SHORTEST_MS, kept // 2)


def _first_append_ms(client: ClusterClient, archive: str, partitions: Collection[int]) -> int:
    """Return when the oldest record of an archive was appended, now if it has none. Raises KmirrorError."""
    found = client.list_offsets({TopicPartition(archive, partition): 0 for partition in partitions})
    for partition, answer in found.items():
        require(answer.error_code, f"looking up the first record of {partition}")
    return min((one.timestamp for one in found.values() if one.timestamp is not None), default=now_ms())


def _is_below(client: ClusterClient, archive: str, partitions: Collection[int], size: int) -> bool:
    """Return whether no partition is larger than this. Raises RefusedError, UnreachableError: a size is unknown."""
    found = stored_sizes(client, [TopicPartition(archive, partition) for partition in partitions])
    for partition, (code, stored) in found.items():
        unknown = f"archive {archive} has {_BYTES}={size}, and the size of {partition} is unknown"
        if code == Code.CLUSTER_AUTHORIZATION_FAILED:
            grant = grant_line(client.config, ("DESCRIBE",), "--cluster")
            raise RefusedError(f"{unknown}: we lack DESCRIBE on the cluster", grant, Reason.NOT_AUTHORIZED)
        if stored is None:
            why = f": {code_name(code)}" if code else ""
            raise UnreachableError(f"{unknown}{why}", "nothing was deleted; try again once its leader answers")
        if stored > size:
            return False
    return True


def is_kept(client: ClusterClient, archive: str, partitions: Collection[int], proved: Mapping[int, Proof]) -> bool:
    """Return whether partitions of an archive are proved, unchanged since and kept for now. Raises as `kept_ms`."""
    is_proved = still_valid(client, archive, proved).keys() >= set(partitions)
    return is_proved and is_kept_for_now(client, archive, partitions)
