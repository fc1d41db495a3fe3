"""What a rehearsal finds that would lack after a real failover. Pure: no I/O, no clock.

Each function compares what was seen on both sides, and yields what is wrong. A finding that is `bad` makes the
rehearsal fail; a warning does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.columns import TEXT, Table, columns_of, one_of, shown, table_row
from kmirror.errors import UNMET_REASONS, Reason
from kmirror.settings.durations import format_duration
from kmirror.settings.table import Settings
from kmirror.status.partition_row import PartitionRow
from kmirror.words import counted, listed
from kmirror_plan.inventory import streams_application

#: How far a clock may be off, and how much a reported loss, before it is worth a finding.
CLOCK_TOLERANCE_MS = 5_000
_LOSS_FACTOR = 2
#: Settings of the brokers' side of a topic: a topic there may well have others.
_OF_THE_CLUSTER = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
_OF_THE_CLUSTER_PREFIXES = ("leader.replication.", "follower.replication.", "remote.", "local.retention.")
#: Settings that decide which records are kept and taken; a difference in others is a warning.
_DECIDING = frozenset({"cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes"})
_ENDLESS = -1


#: Groups that no mirror syncs unless it is told to: those of console consumers and of Connect's workers.
_NEVER_SYNCED = Settings().groups_exclude


class FindingLevel(StrEnum):
    """How bad a finding is."""

    BAD = "bad"
    WARN = "warn"


class Kind(StrEnum):
    """What is wrong."""

    RIGHT_MISSING = "RIGHT_MISSING"
    NOT_COPIED = "NOT_COPIED"
    SLOWED_BY_QUOTA = "SLOWED_BY_QUOTA"
    OPEN_TRANSACTION = "OPEN_TRANSACTION"
    SETTING_DIFFERS = "SETTING_DIFFERS"
    GROUP_NOT_SYNCED = "GROUP_NOT_SYNCED"
    GROUP_AHEAD = "GROUP_AHEAD"
    GROUP_READS_MORE = "GROUP_READS_MORE"
    STREAMS_TOPIC_LEFT_OUT = "STREAMS_TOPIC_LEFT_OUT"
    SCHEMAS_LEFT_OUT = "SCHEMAS_LEFT_OUT"
    CLIENTS_LACK = "CLIENTS_LACK"
    FAILOVER_INCOMPLETE = "FAILOVER_INCOMPLETE"
    WRITE_REFUSED = "WRITE_REFUSED"
    NOT_READ_BACK = "NOT_READ_BACK"
    CLOCK_OFF = "CLOCK_OFF"
    CHECK_FAILED = "CHECK_FAILED"
    LOSS_MISREPORTED = "LOSS_MISREPORTED"
    TOO_SLOW = "TOO_SLOW"
    CONTENTS_DIFFER = "CONTENTS_DIFFER"
    FAILBACK_FAILED = "FAILBACK_FAILED"
    PHASE_FAILED = "PHASE_FAILED"
    NOT_REMOVED = "NOT_REMOVED"
    UNKNOWN = "UNKNOWN"


@table_row
class Finding:
    """Something that would lack, or that did not work."""

    level: FindingLevel = shown(one_of("level", FindingLevel), "bad: the rehearsal failed; warn: look at it", "LEVEL")
    kind: Kind = shown(one_of("kind of finding", Kind), "what is wrong, as a code", "KIND", key="finding")
    subject: str = shown(TEXT, "the topic, group or command that it is about", "SUBJECT")
    message: str = shown(TEXT, "what is wrong", "MESSAGE")
    hint: str | None = shown(TEXT.null_when("there is nothing to type"), "what to do about it", default=None)


FINDINGS: Table[Finding] = Table(columns_of(Finding), "LEVEL KIND SUBJECT MESSAGE", "nothing found")


def bad(kind: Kind, subject: str, message: str, hint: str | None = None) -> Finding:
    """Return a finding that makes the rehearsal fail."""
    return Finding(level=FindingLevel.BAD, kind=kind, subject=subject, message=message, hint=hint)


def warn(kind: Kind, subject: str, message: str, hint: str | None = None) -> Finding:
    """Return a finding that does not."""
    return Finding(level=FindingLevel.WARN, kind=kind, subject=subject, message=message, hint=hint)


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """A group and where it is: the next offset by partition. `reads` are all topics that it has committed for."""

    kind: GroupKind
    offsets: Mapping[TopicPartition, int]
    reads: frozenset[str]


@dataclass(frozen=True, slots=True)
class Side:
    """What was seen of one cluster; groups by name there, topics by their names at the source."""

    settings: Mapping[str, TopicSettings | int] = field(default_factory=dict)
    groups: Mapping[str, GroupPositions] = field(default_factory=dict)
    #: All topics that we may see.
    topics: frozenset[str] = frozenset()
    #: Why the groups could not be read.
    groups_trouble: str | None = None


def not_copied(rows: Iterable[PartitionRow], where: str) -> Iterator[Finding]:
    """Yield what keeps partitions from being copied; a row for each topic and reason."""
    found: dict[tuple[str, Reason], list[PartitionRow]] = defaultdict(list)
    for row in rows:
        if row.reason is not None:
            found[row.source_topic, row.reason].append(row)
    for (topic, reason), some in found.items():
        kind = Kind.RIGHT_MISSING if reason in UNMET_REASONS else Kind.NOT_COPIED
        if reason is Reason.OPEN_TRANSACTION:
            kind = Kind.OPEN_TRANSACTION
        many = counted(len(some), "partition")
        yield bad(kind, topic, f"{where}: {many} {reason}: {some[0].error_message or 'no further message'}")


def settings_that_differ(source: Side, there: Side, *, is_sandbox: bool) -> Iterator[Finding]:
    """Yield settings of topics that have another value at the destination after the failover."""
    for topic, ours in source.settings.items():
        theirs = there.settings.get(topic)
        if isinstance(ours, int) or not isinstance(theirs, Mapping):
            code = ours if isinstance(ours, int) else theirs if isinstance(theirs, int) else None
            why = code_name(code) if code is not None else "it does not exist there"
            yield bad(Kind.UNKNOWN, topic, f"its settings could not be compared: {why}")
            continue
        for key, setting in sorted(ours.items()):
            other = theirs.get(key)
            if setting.value is None or (other is not None and other.value == setting.value):
                continue
            of_cluster = key in _OF_THE_CLUSTER or key.startswith(_OF_THE_CLUSTER_PREFIXES)
            if of_cluster and (is_sandbox or not setting.is_override):
                continue
            if key not in _DECIDING and not setting.is_override:
                continue  # a default of the brokers
            value = other.value if other is not None else None
            message = f"{key} is {setting.value} at the source and {value or 'unknown'} at the destination"
            is_less = key in _DECIDING and _is_less(key, setting.value, value)
            yield (bad if is_less else warn)(Kind.SETTING_DIFFERS, topic, message)


def _is_less(key: str, ours: str, theirs: str | None) -> bool:
    """Return whether the destination keeps or takes less than the source."""
    if key == "cleanup.policy" or theirs is None:
        return True
    try:
        wanted, found = int(ours), int(theirs)
    except ValueError:
        return True
    if found in (_ENDLESS, wanted):
        return False
    return wanted == _ENDLESS or found < wanted


def groups_that_lack(
    source: Side, there: Side, here_of: Mapping[str, str], group_there: Mapping[str, str], ends: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield what groups will miss. `here_of` are topics by source name, `group_there` groups' names at the destination;
    `ends` are log ends of the destination by `topic-partition`, with the source's names.
    """
    for side, where in ((source, "source"), (there, "destination")):
        if side.groups_trouble is not None:
            yield bad(Kind.UNKNOWN, "groups", f"the groups of the {where} could not be read: {side.groups_trouble}")
            return
    for group, known in sorted(source.groups.items()):
        ours = {at: offset for at, offset in known.offsets.items() if at.topic in here_of}
        if not ours or _NEVER_SYNCED.matches(group):
            continue
        if more := sorted(known.reads - here_of.keys()):
            yield warn(
                Kind.GROUP_READS_MORE,
                group,
                f"it also reads {listed(more, 5)}, which {'is' if len(more) == 1 else 'are'} not in the rehearsal",
            )
        found = there.groups.get(group_there.get(group, group))
        theirs = found.offsets if found is not None else {}
        missing = [at for at in sorted(ours) if TopicPartition(here_of[at.topic], at.partition) not in theirs]
        if missing:
            of = f"{counted(len(missing), 'partition')} of {listed(sorted({at.topic for at in missing}), 5)}"
            yield bad(
                Kind.GROUP_NOT_SYNCED,
                group,
                f"it has no position for {of} at the destination: its consumers begin at auto.offset.reset",
            )
        ahead = [
            at
            for at, offset in ours.items()
            if theirs.get(TopicPartition(here_of[at.topic], at.partition), -1)
            > max(offset, ends.get(f"{at.topic}-{at.partition}", offset))
        ]
        if ahead:
            yield bad(
                Kind.GROUP_AHEAD, group, f"its position is after its log's end in {listed(list(map(str, ahead)), 5)}"
            )


def streams_topics_left_out(source: Side, topics: Collection[str]) -> Iterator[Finding]:
    """Yield changelogs and repartition topics of Streams applications whose other topics are rehearsed."""
    groups = {name for name, one in source.groups.items() if any(at.topic in topics for at in one.offsets)}
    left: dict[str, list[str]] = defaultdict(list)
    for topic in sorted(source.topics - set(topics)):
        if (application := streams_application(topic, groups)) is not None:
            left[application].append(topic)
    for application, names in left.items():
        yield bad(
            Kind.STREAMS_TOPIC_LEFT_OUT,
            application,
            f"its internal topics {listed(names, 5)} are not copied: its state is lost, or built again from its inputs",
            "add them to --topics, and to the mirror",
        )


def schemas_left_out(
    used: Mapping[str, Collection[int]], copied: Collection[int], *, is_copied: bool
) -> Iterator[Finding]:
    """Yield topics whose records name schemas (by id) that the destination will not know."""
    for topic, ids in sorted(used.items()):
        lacking = sorted(set(ids) - set(copied))
        if lacking:
            shown_ids = listed([str(one) for one in lacking], 5)
            where = "the copied _schemas lacks them" if is_copied else "_schemas is not copied"
            yield bad(
                Kind.SCHEMAS_LEFT_OUT,
                topic,
                f"records name the schemas {shown_ids}, and {where}",
                "add _schemas to --topics, and to the mirror",
            )


def clocks_off(ahead_ms: Mapping[str, int]) -> Iterator[Finding]:
    """Yield clocks that are off; `ahead_ms` says by how much whose clock is ahead of this host's."""
    for whose, difference in sorted(ahead_ms.items()):
        if abs(difference) > CLOCK_TOLERANCE_MS:
            way = "ahead of" if difference > 0 else "behind"
            yield bad(
                Kind.CLOCK_OFF,
                whose,
                f"its clock is {format_duration(abs(difference))} {way} this host's: lag in time, retention and the"
                " reported RPO are wrong by as much",
                "synchronize the clocks (NTP)",
            )


def loss_misreported(least: int | None, most: int | None, lost: int | None) -> Iterator[Finding]:
    """Yield where the failover reported another loss than was counted, a lower bound that was none or far too few, or
    where it could not be counted.
    """
    if lost is None:
        yield warn(Kind.UNKNOWN, "loss", "it could not be counted")
        return
    if least is None or most is None:
        said = "did not know how many records were lost"
    elif least > lost:
        said = f"reported at least {least:,} lost offsets"
    elif most * _LOSS_FACTOR < lost:
        said = f"reported at most {most:,} lost offsets"
    else:
        return
    yield bad(Kind.LOSS_MISREPORTED, "loss", f"the failover {said}; counted were {lost:,}")


def made_by_others(topics: Iterable[str], groups: Iterable[str], acls: Iterable[str]) -> Iterator[Finding]:
    """Yield what others, such as the check, have made at a named destination during the rehearsal, and which stays."""
    for level, subject, names in ((bad, "topics", topics), (warn, "groups", groups), (warn, "ACLs", acls)):
        if left := sorted(names):
            hint = f"remove the {subject} if nobody needs them"
            yield level(
                Kind.NOT_REMOVED, subject, f"others made them meanwhile, and they stay: {listed(left, 5)}", hint
            )
