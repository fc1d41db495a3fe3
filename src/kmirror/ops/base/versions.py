"""Is a cluster new enough? Decided by the API versions its brokers offer. A source needs fewer than a destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kmirror.cluster.client import ClusterClient
from kmirror.errors import RefusedError
from kmirror.words import address_of


class Needed(NamedTuple):
    """A request that brokers must offer, in at least this version."""

    api_key: int
    version: int
    name: str


_PRODUCE = Needed(0, 9, "Produce")
_FETCH = Needed(1, 12, "Fetch")
_LIST_OFFSETS = Needed(2, 6, "ListOffsets")
#: Has topic ids from this version on.
_METADATA = Needed(3, 10, "Metadata")
_CREATE_TOPICS = Needed(19, 7, "CreateTopics")
_DELETE_TOPICS = Needed(20, 6, "DeleteTopics")
_WRITE_TXN_MARKERS = Needed(27, 1, "WriteTxnMarkers")
_INCREMENTAL_ALTER_CONFIGS = Needed(44, 1, "IncrementalAlterConfigs")
_DESCRIBE_PRODUCERS = Needed(61, 0, "DescribeProducers")


#: Offered by the first brokers that write `partition.metadata` for every log.
_IDS_IN_LOGS = _LIST_OFFSETS._replace(version=7)


class Role(Enum):
    """What a cluster is used as: the first version of Kafka that is new enough, and what its brokers must offer.

    A source needs topic ids (KIP-516): without them a recreated topic cannot be recognized.
    """

    SOURCE = "2.8", (_FETCH, _LIST_OFFSETS, _METADATA)
    DESTINATION = (
        "2.8",
        (
            *(_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _CREATE_TOPICS, _DELETE_TOPICS),
            *(_WRITE_TXN_MARKERS, _INCREMENTAL_ALTER_CONFIGS, _DESCRIBE_PRODUCERS),
        ),
    )

    def __init__(self, first_version: str, needed: Sequence[Needed]) -> None:
        self.first_version = first_version
        self.needed = needed


#: Releases, newest first, each with a request version that brokers offer from then on. Only used to show roughly which
#: Kafka a broker runs: nothing else depends on it.
_RELEASES = (
    ("4.1", _PRODUCE._replace(version=13)),
    ("4.0", _PRODUCE._replace(version=12)),
    ("3.9", _FETCH._replace(version=17)),
    ("3.7", _FETCH._replace(version=16)),
    ("3.5", _FETCH._replace(version=15)),
    ("3.1", _FETCH._replace(version=13)),
    ("3.0", _IDS_IN_LOGS),
    ("2.8", _METADATA._replace(version=11)),
)


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """The release of one broker, and what it lacks for its role."""

    node_id: int
    address: str
    release: str
    lacking: tuple[str, ...]

    @property
    def is_supported(self) -> bool:
        """Whether the broker is new enough."""
        return not self.lacking

    def __str__(self) -> str:
        return self.release if not self.lacking else f"{self.release}: it does not offer {', '.join(self.lacking)}"


def broker_version(client: ClusterClient, node_id: int, host: str, port: int, role: Role) -> BrokerVersion:
    """Ask one broker. Raises ConnectFailedError."""
    return judged(node_id, address_of(host, port), client.connect(node_id, host, port).api_versions, role)


def judged(node_id: int, address: str, api_versions: Mapping[int, tuple[int, int]], role: Role) -> BrokerVersion:
    """Return what a broker's API versions, lowest and highest by API key, mean for its role."""
    offered = {key: highest for key, (_, highest) in api_versions.items()}
    lacking = [f"{one.name} {one.version}" for one in role.needed if offered.get(one.api_key, -1) < one.version]
    at_least = (name for name, mark in _RELEASES if offered.get(mark.api_key, -1) >= mark.version)
    name = next(at_least, None)
    release = f"Kafka {name} or later" if name else f"older than Kafka {_RELEASES[-1][0]}"
    return BrokerVersion(node_id, address, release, tuple(lacking))


def too_old(role: Role) -> str:
    """Return the hint for a broker that is not supported."""
    return (
        f"kmirror copies from Kafka {Role.SOURCE.first_version} and later to Kafka "
        f"{Role.DESTINATION.first_version} and later: upgrade the {role.name.lower()} first"
    )


def require_supported(client: ClusterClient, cluster: str, role: Role) -> None:
    """Refuse a cluster that is too old, by the version of one broker (`check` asks all); `cluster` starts the message.

    Raises:
        RefusedError: the broker is too old for its role; names it.
        UnreachableError: it does not answer.
    """
    broker = next(iter(client.metadata([]).brokers.values()))
    found = broker_version(client, broker.node_id, broker.host, broker.port, role)
    if not found.is_supported:
        raise RefusedError(f"{cluster}: broker {found.node_id} at {found.address} is {found}", too_old(role))


def require_topic_ids_in_logs(client: ClusterClient) -> None:
    """Refuse brokers that do not keep a topic's id with its logs: nothing proves whose log `truncate-logs` would cut.

    Raises:
        RefusedError: a broker before Kafka 3.0, whose logs have no `partition.metadata`.
        UnreachableError: none answers.
    """
    if client.highest_version(_LIST_OFFSETS.api_key) < _IDS_IN_LOGS.version:
        raise RefusedError(
            "brokers before Kafka 3.0 do not keep the topic's id with its logs, so these cannot be truncated safely",
            "use --recreate, or upgrade the brokers first",
        )
