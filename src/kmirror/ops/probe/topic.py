"""The topic of a probe: created like a mirror topic, and deleted again whatever happens.

Its name begins with `__`, so no filter, `add` or discovery takes it. The rest of the name says which process made it
(`process_mark`): a later probe deletes what a killed one left, and refuses to run beside a living one. Brokers learn of
topics in one order, and a probe looks for others only after a broker has shown it its own topic. So of two probes that
begin at once, at least one sees the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Self

from kmirror.cluster.client import LATEST, ClusterClient, require
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acl_commands import PREFIXED, admin_options, grant_line
from kmirror.cluster.rights.authorized import may_delete, missing_rights
from kmirror.cluster.rights.principal_probe import is_abandoned, process_mark
from kmirror.cluster.topics.policies import create_settled
from kmirror.cluster.topics.topic_requests import CreatedTopic, NewTopic, create_topics, delete_topics
from kmirror.commands import command_line, option
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError
from kmirror.ops.probe.guarantees import is_denied
from kmirror.state.internal_topics import OWN_TOPICS
from kmirror.sync.setting_changes import MIRROR_VALUES

PROBE_TOPICS = f"{OWN_TOPICS}probe_"
PARTITIONS = 6
_NEEDED = ("CREATE", "READ", "WRITE", "DELETE")
#: Older topics of processes elsewhere were left by one that died: no probe takes this long, however the clocks differ.
_STALE_S = 1800.0
#: How long brokers may take to show that a topic was created or deleted.
_VISIBLE_WITHIN_S = 15.0
_STEP_S = 0.05


class ProbeTopic:
    """Create the topic on entering, and delete it on leaving."""

    def __init__(self, client: ClusterClient, replication_factor: int) -> None:
        self._client = client
        self._replication_factor = replication_factor
        self.name = PROBE_TOPICS + process_mark()
        #: What the cluster takes instead of some settings of a mirror topic; None: left out.
        self.settled: Mapping[str, str | None] = {}
        self._is_being_created = False

    def __enter__(self) -> Self:
        """Create the topic.

        Raises:
            RefusedError: another probe is running, or a right is missing (NOT_AUTHORIZED); no topic is left.
            BrokerError: the topic is refused.
            UnreachableError, OutcomeUnknown: no answer.
        """
        if not may_delete(self._client, self.name):
            raise self._lacking(["DELETE"])
        try:
            self._remove_abandoned()
            self.create()
            if lacking := missing_rights(self._client, [self.name], _NEEDED[1:]).get(self.name):
                raise self._lacking(lacking)
            self._refuse_others()
        except BaseException as error:
            self._remove_after(error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._remove()
        else:
            self._remove_after(error)

    @property
    def largest_batch(self) -> int | None:
        """The largest batch in bytes that the cluster lets the topic have; None if kmirror's own limit is accepted."""
        value = self.settled.get("max.message.bytes")
        return None if value is None else int(value)

    def partition(self, index: int) -> TopicPartition:
        """Return one of the topic's partitions."""
        return TopicPartition(self.name, index)

    def create(self) -> None:
        """Create the topic, which must not exist, and wait until its leaders answer. Raises as `__enter__`."""
        self._is_being_created = True
        try:
            settings = {**self._mirror_values(), "cleanup.policy": "delete"}
            self.settled = create_settled(self._client, self.name, PARTITIONS, self._replication_factor, settings)
        except KmirrorError as error:
            self._is_being_created = False
            if is_denied(error):
                raise self._lacking(["CREATE"]) from error
            raise
        self._is_being_created = False
        ends = self._client.list_offsets({self.partition(index): LATEST for index in range(PARTITIONS)})
        for partition, end in ends.items():
            require(end.error_code, f"looking up the end of {partition}")

    def topic_id(self) -> bytes | None:
        """Return the topic's id of 16 bytes; None if no broker knows the topic. Raises UnreachableError."""
        found = self._client.metadata([self.name]).topics[self.name]
        if found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        require(found.error_code, f"looking up topic {self.name}")
        return found.topic_id

    def create_again(self) -> bool:
        """Create the topic after it was deleted; False if some broker still knows the old one. Raises as `create`."""
        deadline = time.monotonic() + _VISIBLE_WITHIN_S
        while self.topic_id() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_STEP_S)
        while True:
            try:
                self.create()
                return True
            except BrokerError as error:
                # controllers before KRaft delete the last of it later than brokers show
                if error.code != Code.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
            time.sleep(_STEP_S)

    def _mirror_values(self) -> dict[str, str]:
        """Return the settings of mirror topics that this cluster's brokers know; all, if they do not show theirs."""
        empty = NewTopic(self.name, 1, self._replication_factor, {})
        found = create_topics(self._client, [empty], validate_only=True)[self.name]
        known = found.settings if isinstance(found, CreatedTopic) else {}
        return {key: value for key, value in MIRROR_VALUES.items() if key in known or not known}

    def _remove_abandoned(self) -> None:
        found = [name for name in self._client.metadata().topics if _is_abandoned(name)]
        if found:
            delete_topics(self._client, found)

    def _refuse_others(self) -> None:
        """Raise RefusedError if another probe is running."""
        deadline = time.monotonic() + _VISIBLE_WITHIN_S
        while self.name not in (topics := self._client.metadata().topics):
            if time.monotonic() > deadline:
                raise UnreachableError(f"the brokers do not show topic {self.name}", "try again")
            time.sleep(_STEP_S)
        others = (name for name in topics if name.startswith(PROBE_TOPICS) and name != self.name)
        other = next((name for name in others if not _is_abandoned(name)), None)
        if other is not None:
            raise RefusedError(f"another probe of this cluster is running (topic {other})", "wait until it has ended")

    def _lacking(self, operations: list[str]) -> RefusedError:
        hint = grant_line(self._client.config, _NEEDED, *option("--topic", PROBE_TOPICS), *PREFIXED)
        message = f"nothing was probed: we lack {', '.join(operations)} on topics {PROBE_TOPICS}*"
        return RefusedError(message, hint, Reason.NOT_AUTHORIZED)

    def _remove_after(self, error: BaseException) -> None:
        """Delete the topic after an error; what goes wrong then is noted in the error, and never hides it."""
        try:
            self._remove()
        except (KmirrorError, OutcomeUnknown) as second:
            error.add_note(str(second))

    def _remove(self) -> None:
        """Delete the topic, over connections on which nothing else is under way.

        Raises:
            KmirrorError: it may be left; the message says so.
        """
        deadline = time.monotonic() + _VISIBLE_WITHIN_S
        try:
            with ClusterClient(self._client.config) as client:
                delete_topics(client, [self.name])
                # brokers see it one after the other; an interrupted request may still create the topic
                while time.monotonic() < deadline:
                    code = client.metadata([self.name]).topics[self.name].error_code
                    if code == Code.UNKNOWN_TOPIC_OR_PARTITION and not self._is_being_created:
                        break
                    if not code and self._is_being_created:
                        delete_topics(client, [self.name])
                        self._is_being_created = False
                    time.sleep(_STEP_S)
        except (KmirrorError, OutcomeUnknown) as error:
            topic = option("--topic", self.name)
            hint = command_line("kafka-topics", *admin_options(self._client.config), "--delete", *topic)
            raise UnreachableError(f"topic {self.name} may be left: {error}", hint) from error


def _is_abandoned(name: str) -> bool:
    return name.startswith(PROBE_TOPICS) and is_abandoned(name.removeprefix(PROBE_TOPICS), _STALE_S)
