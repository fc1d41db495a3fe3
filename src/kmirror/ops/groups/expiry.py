"""How long the destination keeps committed offsets, when to commit them again, and which the source has dropped.

A group without members loses its offsets `offsets.retention.minutes` after they were committed (KIP-496; KIP-211: after
its last member left, if it had one since its first offset was committed). Only our commits renew them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.group_records import GroupRecord

OFFSETS_RETENTION = "offsets.retention.minutes"
#: Assumed where brokers do not report it: the default before Kafka 2.0, a seventh of today's.
_ASSUMED_S = 86_400.0
#: Offsets are committed again when a tenth of their time is over: nine tenths are left should the engine stop.
_PART = 10
#: How long to use what brokers have reported.
_READ_AGAIN_S = 3600.0
#: The source has dropped an offset if it lacks it for this long: a new coordinator may know less for a moment.
ABSENT_S = 60.0
#: The source has forgotten a group if it lacks all of its offsets for this long.
FORGOTTEN_MS = 86_400_000

GroupPartition = tuple[str, TopicPartition]


@dataclass(frozen=True, slots=True)
class OffsetsRetention:
    """How long brokers keep offsets of a group without members; `is_known` is false if that is an assumption."""

    seconds: float
    is_known: bool

    @property
    def refresh_s(self) -> float:
        """After which time offsets are committed again."""
        return self.seconds / _PART


def offsets_retention(client: ClusterClient) -> OffsetsRetention:
    """Return the shortest time that a broker reports.

    Raises:
        UnreachableError: no broker answers.
    """
    brokers = client.metadata([]).brokers
    found = [
        int(own[OFFSETS_RETENTION])
        for own in client.broker_configs(brokers, [OFFSETS_RETENTION]).values()
        if OFFSETS_RETENTION in own
    ]
    return OffsetsRetention(min(found) * 60.0, True) if found else OffsetsRetention(_ASSUMED_S, False)


def is_forgotten(record: GroupRecord, now_ms: int) -> bool:
    """Return whether the source has forgotten a group: it is on record as having none of its offsets for long."""
    is_absent = all(set(known) <= set(record.absent.get(topic, ())) for topic, known in record.offsets.items())
    return is_absent and now_ms - record.time_ms >= FORGOTTEN_MS


class Renewals:
    """When all offsets of each group at the destination were last committed; times in seconds of one clock."""

    def __init__(self, retention: OffsetsRetention | None = None) -> None:
        self._retention = retention
        self._read_at = 0.0
        self._at: dict[str, float] = {}

    def read(self, client: ClusterClient, now: float) -> None:
        """Read the brokers' setting, unless that was done a while ago only. Raises UnreachableError."""
        if self._retention is None or now - self._read_at >= _READ_AGAIN_S:
            self._retention, self._read_at = offsets_retention(client), now

    def is_due(self, group: str, now: float) -> bool:
        """Return whether a group's offsets are to be committed again."""
        if self._retention is None:
            raise RuntimeError("the brokers' setting was not read")
        last = self._at.get(group)
        return last is None or now - last >= self._retention.refresh_s

    def note(self, groups: Iterable[str], known: Set[str], now: float) -> None:
        """Note that these groups' offsets were all committed; forget groups that are not `known` any more."""
        self._at = {group: at for group, at in self._at.items() if group in known}
        self._at |= dict.fromkeys(groups, now)


class Absences:
    """Offsets that were synced and that the source lacks now, and since when."""

    def __init__(self) -> None:
        self._since: dict[GroupPartition, float] = {}
        #: What the source was seen to have: by group, the partitions of the destination.
        self._seen: dict[str, frozenset[TopicPartition]] = {}

    def dropped(
        self, present: Mapping[str, frozenset[TopicPartition]], absent: Set[GroupPartition], now: float
    ) -> dict[GroupPartition, bool]:
        """Take one look at the source; return what it has dropped, and whether it was seen to have it before.

        `present` and `absent` name destination partitions; what is in neither is not known now.
        """
        for group, partitions in present.items():
            self._seen[group] = self._seen.get(group, frozenset()) | partitions
        self._since = {key: self._since.get(key, now) for key in absent}
        over = [key for key, since in self._since.items() if now - since >= ABSENT_S]
        return {(group, at): at in self._seen.get(group, ()) for group, at in over}

    def forget(self, dropped: Iterable[GroupPartition]) -> None:
        """Forget offsets that are dropped at the destination, too."""
        for group, at in dropped:
            self._since.pop((group, at), None)
            left = self._seen.get(group, frozenset()) - {at}
            self._seen[group] = left
            if not left:
                del self._seen[group]
