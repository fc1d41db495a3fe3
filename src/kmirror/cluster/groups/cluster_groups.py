"""Consumer groups and share groups of one cluster: list them, read their committed offsets, commit for them.

Every broker answers ListGroups for the groups that it coordinates, with their state and type (version 4 and 5, KIP-518,
KIP-848); a group that we may not see is silently left out, and so are those whose coordinator is moving or has no
broker: it leads their partition of `__consumer_offsets`. Everything else goes to a group's coordinator. Committing
for a group that does not exist creates it; with live members the broker refuses (UNKNOWN_MEMBER_ID for consumer groups,
NON_EMPTY_GROUP for share groups). Brokers accept any offset, even one outside of the log.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import LEAST_S, ClusterClient, seconds_left
from kmirror.cluster.connection import Connection, exchange_of
from kmirror.cluster.coordinators import KeyType, find_coordinators
from kmirror.cluster.groups import group_members, share_offsets, streams_groups
from kmirror.cluster.groups.group_members import DescribedGroup
from kmirror.cluster.protocol import metadata as metadata_codec
from kmirror.cluster.protocol.codes import NOT_COORDINATOR, Code, code_name
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind, ListedGroup, Offsets
from kmirror.cluster.protocol.metadata import Broker, TopicPartition, by_topic
from kmirror.cluster.protocol.wire import Api, Exchange
from kmirror.cluster.reaching import EACH_SECONDS
from kmirror.cluster.threaded_calls import call_each
from kmirror.errors import BrokerError, OutcomeUnknown, UnreachableError

#: Error codes of these requests that `Code` does not name.
UNKNOWN_MEMBER_ID = 25
UNSUPPORTED_VERSION = 35
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69

OFFSETS_TOPIC = "__consumer_offsets"
_LIST_GROUPS_WITH_STATE = 4
#: The first versions of OffsetFetch for all topics of a group, and for several groups.
_OFFSET_FETCH_OF_ALL_TOPICS = 2
_OFFSET_FETCH_OF_MANY = 8
#: The last version of OffsetFetch and OffsetCommit with topic names; later ones have ids.
_BY_NAME = 9
#: One answer holds every partition of this many groups.
_GROUPS_AT_ONCE = 50
#: How many commits to send before the first is answered: at first, and at most, if that takes less than these seconds.
_LEAST_COMMITS, _MOST_COMMITS, _PART_SECONDS = 8, 64, 0.5
#: How many offsets of several groups to commit at once: answers that are not read yet must fit into buffers.
_MOST_OFFSETS = 1000
#: The state of a group without members; every other state means members.
_EMPTY_STATES = {"Empty", "Dead"}
#: The codes for a commit that does not fit into a batch of `__consumer_offsets`; brokers since 4.0 have only the first.
TOO_LARGE = frozenset(
    {
        Code.UNKNOWN_SERVER_ERROR,
        Code.MESSAGE_TOO_LARGE,
        Code.RECORD_LIST_TOO_LARGE,
        Code.INVALID_COMMIT_OFFSET_SIZE,
    }
)
COORDINATOR_MOVED = NOT_COORDINATOR | {Code.BROKER_NOT_AVAILABLE}


class ClusterGroups:
    """Read and change the groups of one cluster, over its client's connections; for one thread at a time."""

    def __init__(self, client: ClusterClient, timeout: float | None = None) -> None:
        self.client = client
        self._timeout = timeout or client.config.request_timeout_ms / 1000
        self._coordinators: dict[str, int] = {}
        self._brokers: Mapping[int, Broker] = {}

    def listed(self, *, whole: bool = True, passes_silent: bool = False) -> dict[str, ListedGroup]:
        """Return all groups that we may see, by name.

        No broker lists the groups of a coordinator that is moving, or that has no broker. With `whole` it is waited
        for; without, those groups are missing, and with `passes_silent` those of brokers that do not answer, too. Who
        may not see `__consumer_offsets` cannot tell.

        Raises:
            UnreachableError: a broker does not answer, or is missing, so that groups would be missing; with
                `passes_silent`, none answers.
            BrokerError: a broker refuses.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            code, found, coordinated, absent, silent = 0, {}, set[int](), set[int](), 0
            self._brokers = self.client.metadata([], timeout=self._timeout).brokers
            for asked, broker in enumerate(self._brokers.values()):
                left = _share_of_time(deadline, len(self._brokers) - asked if passes_silent else 1)
                try:
                    address = broker.node_id, broker.host, broker.port
                    connection = self.client.connect(*address, timeout=left, skips_silent=passes_silent)
                    if whole:
                        led, others = _coordinated(connection, broker.node_id, left)
                        coordinated |= led
                        absent |= others
                    request = kafka.ListGroupsRequest(states_filter=[], types_filter=[])
                    answer = connection.request(request, lowest=_LIST_GROUPS_WITH_STATE, timeout=left)
                except (OutcomeUnknown, UnreachableError) as error:
                    silent += 1
                    if passes_silent and silent < len(self._brokers):
                        continue
                    if isinstance(error, UnreachableError):
                        raise
                    raise UnreachableError(str(error), "check that all brokers are up") from None
                code = code or answer.error_code
                for group in answer.groups:
                    found[group.group_id] = _listed(group)
                    self._coordinators[group.group_id] = broker.node_id
            absent -= coordinated
            if not code and not absent:
                return found
            is_late = time.monotonic() > deadline
            if code and (is_late or code not in COORDINATOR_MOVED):
                raise BrokerError(code, code_name(code), "listing groups")
            if is_late:
                raise UnreachableError(
                    f"not all groups are known: no broker coordinates those of partition {min(absent)} of "
                    f"{OFFSETS_TOPIC}",
                    "check that all brokers are up, and that each partition of it has a leader",
                )
            self.client.pause(0)

    def committed(
        self, groups: Mapping[str, GroupKind], topics: Collection[str] | None = None
    ) -> dict[str, dict[TopicPartition, Committed] | int]:
        """Return the committed offsets of groups, for all topics that we may see; or the error code of a group.

        Offsets of other topics than `topics` may be missing; default: of none.

        A group that does not exist has committed nothing.

        Raises:
            UnreachableError: no broker answers.
        """

        def ask(connection: Connection, some: Sequence[str], timeout: float) -> dict[str, Any]:
            shared = [group for group in some if groups[group] is GroupKind.SHARE]
            found: dict[str, Any] = {}
            if shared and share_offsets.are_supported(connection):
                for group, (code, offsets) in share_offsets.describe(connection, shared, timeout, topics).items():
                    known = {partition: Committed(offset) for partition, offset in offsets.items()}
                    found[group] = known if code in (0, GROUP_ID_NOT_FOUND) else code
            elif shared:
                found |= dict.fromkeys(shared, UNSUPPORTED_VERSION)
            others = [group for group in some if groups[group] is not GroupKind.SHARE]
            return found | (_fetch(connection, others, timeout) if others else {})

        found: dict[str, dict[TopicPartition, Committed] | int] = {}
        names, patience_s = sorted(groups), math.inf
        for start in range(0, len(names), _GROUPS_AT_ONCE):
            some = names[start : start + _GROUPS_AT_ONCE]
            answers = self._per_coordinator(some, ask, self._timeout, patience_s)
            if any(answer in COORDINATOR_MOVED for answer in answers.values() if isinstance(answer, int)):
                patience_s = EACH_SECONDS  # a coordinator that does not answer is waited for once
            found |= answers
        return found

    def commit(
        self, group: str, kind: GroupKind, offsets: Offsets, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Commit offsets for one group, as `commit_all`; COORDINATOR_NOT_AVAILABLE if they were not sent."""
        found = self.commit_all({group: (kind, offsets)}, timeout)
        return found.get(group) or dict.fromkeys(offsets, int(Code.COORDINATOR_NOT_AVAILABLE))

    def commit_all(
        self, wanted: Mapping[str, tuple[GroupKind, Offsets]], timeout: float | None = None
    ) -> dict[str, dict[TopicPartition, int]]:
        """Commit offsets for groups, and return an error code for each; 0 for success.

        All coordinators are asked at once, for several groups at a time, so that the distance counts once for many.
        Groups for which nothing was sent in time are missing.

        What the brokers refuse at once is committed in parts: one commit is one batch of `__consumer_offsets`, of at
        most its `max.message.bytes`. A request without an answer is repeated: the same offsets may be committed twice.
        With codes for which that may help, it is unknown whether they were committed.

        Raises:
            UnreachableError: no broker answers.
        """

        def ask(connection: Connection, some: Sequence[str], timeout: float) -> dict[str, Any]:
            knows_shares = share_offsets.are_supported(connection)
            requests = {
                group: _committing(group, *wanted[group])
                for group in some
                if knows_shares or wanted[group][0] is not GroupKind.SHARE
            }
            unsupported = dict.fromkeys(set(some) - requests.keys(), UNSUPPORTED_VERSION)
            answers = _asked_in_parts(connection, requests, sizes, timeout, slowest)
            sent.update(answers)
            return unsupported | answers

        seconds, sent, slowest = timeout or self._timeout, set[str](), dict[str, float]()
        sizes = {group: len(offsets) for group, (_, offsets) in wanted.items()}
        deadline = time.monotonic() + seconds
        found: dict[str, dict[TopicPartition, int]] = {}
        for group, answer in self._per_coordinator(sorted(wanted), ask, seconds).items():
            if group not in sent and isinstance(answer, int) and answer in COORDINATOR_MOVED:
                continue
            kind, offsets = wanted[group]
            found[group] = dict.fromkeys(offsets, answer) if isinstance(answer, int) else answer
            if len(offsets) > 1 and TOO_LARGE.issuperset(found[group].values()):
                partitions = sorted(offsets)
                for part in partitions[: len(partitions) // 2], partitions[len(partitions) // 2 :]:
                    if (left := deadline - time.monotonic()) > 0:
                        found[group] |= self.commit(group, kind, {at: offsets[at] for at in part}, left)
        return found

    def described(self, groups: Mapping[str, ListedGroup]) -> dict[str, DescribedGroup | int]:
        """Return groups with their members and the topics that these read, or the error code of a group.

        Applications with group.protocol=streams are described by their topics only.

        Raises:
            UnreachableError: no broker answers.
        """

        def ask(connection: Connection, some: Sequence[str], timeout: float) -> dict[str, Any]:
            by_protocol: defaultdict[str, list[str]] = defaultdict(list)
            for group in some:
                by_protocol[groups[group].protocol].append(group)
            found: dict[str, Any] = dict.fromkeys(some, UNSUPPORTED_VERSION)
            for protocol, names in by_protocol.items():
                if protocol == "streams":
                    if streams_groups.are_described(connection):
                        found |= {group: streams_groups.describe(connection, group, timeout) for group in names}
                elif protocol == "consumer":
                    found |= group_members.describe_consumer(connection, names, timeout)
                else:
                    found |= group_members.describe_classic(connection, names, timeout)
            return found

        return self._per_coordinator(sorted(groups), ask, self._timeout) if groups else {}

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Delete committed offsets of a consumer group; return an error code for each, 0 if there is none any more.

        Brokers refuse it where a member of the group subscribes to the topic (GROUP_SUBSCRIBED_TO_TOPIC).

        Raises:
            UnreachableError: no broker answers.
        """

        def ask(connection: Connection, some: Sequence[str], timeout: float) -> dict[str, Any]:
            return {group: _delete(connection, group, partitions, timeout)}

        answer = self._per_coordinator([group], ask, self._timeout)[group]
        return dict.fromkeys(partitions, answer) if isinstance(answer, int) else answer

    def delete(self, groups: Collection[str]) -> dict[str, int]:
        """Delete groups that have no members; return an error code for each, 0 if it does not exist any more.

        Raises:
            UnreachableError: no broker answers.
        """

        def ask(connection: Connection, some: Sequence[str], timeout: float) -> dict[str, Any]:
            answer = connection.request(kafka.DeleteGroupsRequest(groups_names=list(some)), timeout=timeout)
            return {one.group_id: one.error_code for one in answer.results}

        found = self._per_coordinator(sorted(groups), ask, self._timeout) if groups else {}
        return {group: 0 if code == GROUP_ID_NOT_FOUND else int(code) for group, code in found.items()}

    def _per_coordinator(
        self,
        groups: Sequence[str],
        ask: Callable[[Connection, Sequence[str], float], dict[str, Any]],
        timeout: float,
        patience_s: float = math.inf,
    ) -> dict[str, Any]:
        """Ask each group's coordinator; an answer that is an int is an error code, and retried if it is transient.

        All coordinators are asked at once. None is waited for longer than `patience_s`, nor asked again after that.
        """
        began = time.monotonic()
        deadline = began + timeout
        found: dict[str, Any] = dict.fromkeys(groups, int(Code.COORDINATOR_NOT_AVAILABLE))
        missing, attempt = list(groups), 0
        while True:
            if attempt or not self._brokers:
                self._brokers = self.client.metadata([], timeout=seconds_left(deadline)).brokers
            found |= self._find([group for group in missing if group not in self._coordinators], deadline)
            by_node: defaultdict[int, list[str]] = defaultdict(list)
            for group in missing:
                node_id = self._coordinators.get(group, -1)
                if node_id in self._brokers:
                    by_node[node_id].append(group)
            left = min(_share_of_time(deadline, 2 if len(by_node) > 1 else 1), patience_s)
            for answers in call_each(partial(self._ask, ask, left), by_node.items(), "kmirror-coordinators"):
                found |= answers
            missing = [
                group for group in missing if isinstance(found[group], int) and found[group] in COORDINATOR_MOVED
            ]
            if not missing or time.monotonic() > min(deadline, began + patience_s):
                return found
            for group in missing:
                self._coordinators.pop(group, None)
            self.client.pause(attempt)
            attempt += 1

    def _ask(
        self,
        ask: Callable[[Connection, Sequence[str], float], dict[str, Any]],
        timeout: float,
        coordinated: tuple[int, Sequence[str]],
    ) -> dict[str, Any]:
        node_id, some = coordinated
        broker, until = self._brokers[node_id], time.monotonic() + timeout
        try:
            connection = self.client.connect(node_id, broker.host, broker.port, timeout=timeout)
            return ask(connection, some, seconds_left(until))
        except (OutcomeUnknown, UnreachableError):
            return dict.fromkeys(some, int(Code.BROKER_NOT_AVAILABLE))

    def _find(self, groups: Iterable[str], deadline: float) -> dict[str, int]:
        """Look up the coordinators of groups; return an error code for each that has none now."""
        left = seconds_left(deadline)
        found = find_coordinators(self.client, KeyType.GROUP, groups, left)
        self._coordinators |= {group: one[0] for group, one in found.items() if not isinstance(one, int)}
        return {group: one for group, one in found.items() if isinstance(one, int)}


def _share_of_time(deadline: float, count: int) -> float:
    """Return the seconds for one of `count` questions: if it is not answered, there is time left for the others."""
    return max(LEAST_S, seconds_left(deadline) / count)


def _coordinated(connection: Connection, node_id: int, timeout: float) -> tuple[set[int], set[int]]:
    """Return the partitions of `__consumer_offsets` that a broker knows itself to lead, and all others."""
    found = connection.request(metadata_codec.exchange([OFFSETS_TOPIC]), timeout=timeout).topics.get(OFFSETS_TOPIC)
    partitions = found.partitions.values() if found else ()
    led = {one.partition for one in partitions if one.leader_id == node_id}
    return led, {one.partition for one in partitions} - led


def _listed(group: Any) -> ListedGroup:
    kind = GroupKind.CONSUMER
    group_type = (group.group_type or "classic").lower()
    if group_type == "share":
        kind = GroupKind.SHARE
    elif group_type == "classic" and group.protocol_type not in ("", "consumer"):
        kind = GroupKind.OTHER
    return ListedGroup(group.group_id, kind, group.group_state not in _EMPTY_STATES, group_type)


def _fetch(connection: Connection, groups: Sequence[str], timeout: float) -> dict[str, Any]:
    api = Api(kafka.OffsetFetchRequest.API_KEY, kafka.OffsetFetchRequest.name, _OFFSET_FETCH_OF_ALL_TOPICS, _BY_NAME)
    version = connection.version_for(api)
    answers: list[tuple[str, Any]] = []
    if version >= _OFFSET_FETCH_OF_MANY:
        group_type = kafka.OffsetFetchRequest.OffsetFetchRequestGroup
        wanted = [group_type(group_id=group, member_id=None, member_epoch=-1, topics=None) for group in groups]
        request = kafka.OffsetFetchRequest(groups=wanted, require_stable=False)
        answer = connection.request(request, highest=version, timeout=timeout)
        answers = [(group.group_id, group) for group in answer.groups]
    else:
        for name in groups:
            request = kafka.OffsetFetchRequest(group_id=name, topics=None, require_stable=False)
            answers.append((name, connection.request(request, highest=version, timeout=timeout)))
    found: dict[str, Any] = {}
    for name, group in answers:
        if group.error_code not in (0, GROUP_ID_NOT_FOUND):
            found[name] = group.error_code
            continue
        found[name] = {
            TopicPartition(topic.name, one.partition_index): Committed(one.committed_offset, one.metadata or "")
            for topic in group.topics
            for one in topic.partitions
            if one.error_code == 0 and one.committed_offset >= 0
        }
    return found


def _asked_in_parts(
    connection: Connection,
    requests: Mapping[str, Exchange],
    sizes: Mapping[str, int],
    timeout: float,
    slowest: dict[str, float],
) -> dict[str, Any]:
    """Send requests, more at a time while they are answered soon; return what is known of those sent in time.

    `slowest` has how long the last part took at each address: no other is begun with less time left.
    """
    deadline, left = time.monotonic() + timeout, list(requests)
    found: dict[str, Any] = {}
    size, took = _LEAST_COMMITS, slowest.get(connection.address, 0.0)
    while left and (seconds := deadline - time.monotonic()) > took:
        some = _first_of(left, sizes, size)
        left = left[len(some) :]
        try:
            answers = connection.request_all([requests[group] for group in some], timeout=seconds)
        except OutcomeUnknown:
            return found | dict.fromkeys(some, int(Code.BROKER_NOT_AVAILABLE))
        found |= {group: _worst_of(codes) for group, codes in zip(some, answers, strict=True)}
        took = slowest[connection.address] = seconds - (deadline - time.monotonic())
        size = min(2 * size, _MOST_COMMITS) if took < _PART_SECONDS else max(size // 2, 1)
    return found


def _first_of(groups: Sequence[str], sizes: Mapping[str, int], most: int) -> list[str]:
    """Return the first groups, `most` at most, and with several no more than `_MOST_OFFSETS` offsets."""
    some, offsets = [groups[0]], sizes[groups[0]]
    for group in groups[1:most]:
        offsets += sizes[group]
        if offsets > _MOST_OFFSETS:
            break
        some.append(group)
    return some


def _committing(group: str, kind: GroupKind, offsets: Offsets) -> Exchange:
    """Return the request that commits offsets; its answer is an error code for each."""
    if kind is GroupKind.SHARE:
        return share_offsets.altering(group, {at: committed.offset for at, committed in offsets.items()})
    topic_type = kafka.OffsetCommitRequest.OffsetCommitRequestTopic
    partition_type = topic_type.OffsetCommitRequestPartition
    wanted: defaultdict[str, list[Any]] = defaultdict(list)
    for partition, committed in sorted(offsets.items()):
        wanted[partition.topic].append(
            # no epoch: it would be the source's, and the destination's leaders count their own
            partition_type(
                partition_index=partition.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=-1,
                committed_metadata=committed.metadata,
            )
        )
    topics = [topic_type(name=name, partitions=partitions) for name, partitions in wanted.items()]
    request = kafka.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics
    )
    sent = exchange_of(request, highest=_BY_NAME)

    def decode(frame: memoryview, version: int) -> tuple[dict[TopicPartition, int], int]:
        answer, throttle_time_ms = sent.decode(frame, version)
        return _codes_in(answer), throttle_time_ms

    return replace(sent, decode=decode)


def _delete(
    connection: Connection, group: str, partitions: Collection[TopicPartition], timeout: float
) -> dict[TopicPartition, int] | int:
    topic_type = kafka.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition_type = topic_type.OffsetDeleteRequestPartition
    topics = [
        topic_type(name=name, partitions=[partition_type(partition_index=index) for index in indexes])
        for name, indexes in by_topic(sorted(partitions)).items()
    ]
    answer = connection.request(kafka.OffsetDeleteRequest(group_id=group, topics=topics), timeout=timeout)
    if answer.error_code:
        return 0 if answer.error_code == GROUP_ID_NOT_FOUND else int(answer.error_code)
    return _codes_in(answer)


def _codes_in(answer: Any) -> dict[TopicPartition, int]:
    places = ((topic.name, one) for topic in answer.topics for one in topic.partitions)
    return {TopicPartition(name, one.partition_index): one.error_code for name, one in places}


def _worst_of(codes: dict[TopicPartition, int]) -> dict[TopicPartition, int] | int:
    """Return one code for all if the coordinator has moved, which brokers report for each partition; else `codes`."""
    moved = [code for code in codes.values() if code in COORDINATOR_MOVED]
    return moved[0] if moved else codes
