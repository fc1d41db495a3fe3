"""Deny everyone WRITE on source topics during a promote (`--block-producers`), so that their log ends stop moving.

One ACL for each topic does it: WRITE is denied to `User:*`. kmirror only reads there; super users are exempt, as from
any ACL. The denial is recorded on the destination before it is made. It stays where the topic was stopped, which keeps
producers on the destination, and is deleted where the topic stays mirrored. A failback makes it the protection of the
new mirror topic (`hand_over_denials`), so that no one can write to the old source in between.

A denial does not end open transactions, and a request in flight may still be appended: so the log ends are read after
it, and `unsettled` says which may still grow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol.acl_binding import EVERYONE, AclBinding
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acl_commands import admin_options, grant_line
from kmirror.cluster.rights.acls import await_acls, create_acls, delete_acls, describe_acls, kafka_acls_line
from kmirror.cluster.rights.authorized import missing_rights
from kmirror.commands import Arguments
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, TimedOutError
from kmirror.ops.base.context import Destination, change, naming_cluster, now_ms, own_event, source_client
from kmirror.ops.rights.protection import is_mirrored, raise_first, survey, write_rights
from kmirror.state.event_records import Event
from kmirror.state.records import TopicRecord
from kmirror.state.rights_records import RightsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.acl_changes import denial
from kmirror.words import counted

_MOST_NAMES = 100
_LINES_IN_HINT = 40
_NEEDED = ("READ", "DESCRIBE")
#: To see and change ACLs, and what brokers let clients do where there are none.
_NEEDED_ON_CLUSTER = ("ALTER", "DESCRIBE", "DESCRIBE_CONFIGS")


class ProducerBlock:
    """Deny everyone WRITE on source topics of one mirror; not thread-safe."""

    def __init__(
        self, destination: Destination, mirror: str, source: ClusterClient, state: State, topics: Collection[str]
    ) -> None:
        self._destination = destination
        self._mirror = mirror
        self._source = source
        #: Mirror topics whose producers are known to be blocked.
        self.in_force: set[str] = set()
        #: By mirror topic, since when the block is recorded; None if others made it. Starts with the stored records.
        self.since_ms: dict[str, int | None] = {
            topic: rights.blocked_ms for topic in topics if (rights := state.rights(mirror, topic)).blocked
        }
        #: Those that were blocked before, by what is recorded.
        self.recorded = frozenset(self.since_ms)
        #: When blocked topics were proved to be writable at the destination.
        self.writable_ms: dict[str, int] = {
            topic: at for topic in self.since_ms if (at := state.rights(mirror, topic).writable_ms) is not None
        }
        #: When the block was lifted, by mirror topic.
        self.lifted_ms: dict[str, int] = {}

    def require_possible(self) -> None:
        """Refuse if producers cannot be blocked, or readers would be locked out with them.

        Raises:
            RefusedError: says why, and what to do; nothing was changed.
            UnreachableError: the source does not answer.
        """
        with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
            surveyed = survey(self._source, (), cluster="the source")
        if surveyed.detected_only is not None:
            rights = grant_line(self._source.config, _NEEDED_ON_CLUSTER, "--cluster")
            remedy = "grant it" if (surveyed.hint or "").startswith("kafka-acls") else surveyed.hint
            hint = f"{remedy}; or stop the producers yourself and omit --block-producers"
            raise RefusedError(
                f"--block-producers is not possible: {surveyed.detected_only}",
                hint if "authorizer" in hint else f"{hint}\nkmirror needs these rights on the source for it:\n{rights}",
            )

    def block(self, topics: Collection[TopicRecord]) -> None:
        """Deny everyone WRITE on the sources of these topics, and return when every broker there enforces it.

        Idempotent. If it fails, what was made stays recorded; `lift` reverts it.

        Raises:
            RefusedError: it also denied kmirror reading.
            TimedOutError: a broker does not enforce it in time.
            KmirrorError: the source refuses it, or a cluster does not answer.
        """
        wanted = {topic.topic: denial(topic.source_topic, EVERYONE) for topic in topics}
        with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
            names = [topic.source_topic for topic in topics]
            present = describe_acls(self._source)
            could_not = missing_rights(self._source, names, _NEEDED)
            self._record(wanted, present)
            state = self._destination.state()
            self._destination.require_condition(state)
            self.since_ms |= {topic: state.rights(self._mirror, topic).blocked_ms for topic in wanted}
            new = {topic: one for topic, one in wanted.items() if one not in present}
            raise_first(create_acls(self._source, new.values()))
            if not await_acls(self._source, wanted.values()):
                raise TimedOutError(
                    "a broker of the source did not enforce in time that producers are denied WRITE",
                    "check that all brokers of the source are up; then run the same command again",
                )
            denied_us = missing_rights(self._source, names, _NEEDED).keys() - could_not.keys()
        if denied_us:
            raise RefusedError(
                f"denying producers WRITE also denied kmirror reading {', '.join(sorted(denied_us))}",
                "stop the producers yourself and omit --block-producers",
            )
        self.in_force |= wanted.keys()

    def _record(self, wanted: Mapping[str, AclBinding], present: Collection[AclBinding]) -> None:
        at = now_ms()

        def decide(state: State) -> Changes:
            # a denial that exists is ours if it is on record, otherwise it belongs to others
            records = [
                replace(state.rights(self._mirror, topic), blocked=(one,), blocked_ms=at, writable_ms=None)
                for topic, one in wanted.items()
                if one not in present
            ]
            event = self._event("BLOCKED", [record.topic for record in records])
            return Changes(tuple(records), (), (event,)) if records else Changes()

        change(self._destination, self._mirror, decide)

    def note_writable(self, writable_ms: Mapping[str, int]) -> None:
        """Store when blocked topics were proved to be writable at the destination.

        Raises:
            UnreachableError: the destination does not answer.
        """
        state = self._destination.state()
        cut = [topic for topic in writable_ms if state.rights(self._mirror, topic).blocked]
        if cut:
            write_rights(
                self._destination,
                self._mirror,
                cut,
                lambda one: replace(one, writable_ms=writable_ms[one.topic]) if one.blocked else one,
            )
        self.writable_ms |= writable_ms

    def lift(self, topics: Collection[str]) -> str | None:
        """Unblock producers of topics that stay mirrored; return what went wrong.

        Topics that are stopped, or being stopped, keep their denial. Asks the source only if a denial is on record.
        """
        try:
            state = self._destination.state()
            ours = {
                name: rights
                for name in topics
                if (rights := state.rights(self._mirror, name)).blocked and not _is_cut_off(state, rights)
            }
            if not ours:
                return None
            bindings = [one for rights in ours.values() for one in rights.blocked]
        except (KmirrorError, OutcomeUnknown) as error:
            return f"whether producers are still denied WRITE on the source is unknown: {error}"
        try:
            raise_first(delete_acls(self._source, bindings))
            await_acls(self._source, (), bindings)
            at = now_ms()
            write_rights(self._destination, self._mirror, ours, RightsRecord.unblocked)
            event = self._event("UNBLOCKED", list(ours))
            change(self._destination, self._mirror, lambda _: Changes((), (), (event,)))
        except (KmirrorError, OutcomeUnknown) as error:
            lines = unblocking_lines(bindings, admin_options(self._source.config))
            return (
                f"producers are still denied WRITE on the source: {error}; an administrator can lift it with:\n{lines}"
            )
        self.in_force -= ours.keys()
        self.lifted_ms |= dict.fromkeys(ours, at)
        return None

    def unsettled(
        self, topics: Iterable[TopicRecord], ends: Callable[[TopicRecord], list[int | None]]
    ) -> dict[str, str]:
        """Return by topic why its source may still grow although producers are denied WRITE there.

        `ends` are the last known high watermarks. A transaction may be open, or records not yet replicated.

        Raises:
            UnreachableError: the source does not answer.
        """
        asked = {topic.topic: topic for topic in topics}
        partitions = [TopicPartition(one.source_topic, p) for one in asked.values() for p in range(len(ends(one)))]
        producers = describe_producers(self._source, partitions)
        log_ends = self._source.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True)
        found = {}
        for name, topic in asked.items():
            for p, end in enumerate(ends(topic)):
                partition = TopicPartition(topic.source_topic, p)
                answer = producers[partition]
                if answer.error_code:
                    found[name] = (
                        f"whether a transaction is open in {partition} is unknown: {code_name(answer.error_code)}"
                    )
                elif any(one.current_txn_start_offset is not None for one in answer.producers):
                    found[name] = f"a transaction is open in {partition}"
                elif end is None or log_ends[partition].offset != end:
                    found[name] = f"{partition} has records that are not yet replicated, or were added a moment ago"
        return found

    def unblocking(self, state: State, topics: Iterable[str]) -> str:
        """Return the commands with which an administrator unblocks the producers of these mirror topics."""
        bindings = [one for topic in topics for one in state.rights(self._mirror, topic).blocked]
        return unblocking_lines(bindings, admin_options(self._source.config))

    def _event(self, result: str, topics: Collection[str]) -> Event:
        details: dict[str, Any] = {"topics": sorted(topics)[:_MOST_NAMES], "count": len(topics)}
        return own_event(self._mirror, "block-producers", result, details)


def unblocking_lines(bindings: Collection[AclBinding], cluster: Arguments) -> str:
    """Return the commands with which an administrator unblocks producers; `cluster` as from `admin_options`."""
    lines = [kafka_acls_line(one, cluster, remove=True) for one in sorted(bindings)]
    more = [f"and {counted(len(lines) - _LINES_IN_HINT, 'more topic')}"] if len(lines) > _LINES_IN_HINT else []
    return "\n".join([*lines[:_LINES_IN_HINT], *more])


def unblock_mirrored(destination: Destination, mirror: str, topics: Collection[str]) -> str | None:
    """Unblock the producers of topics that are mirrored again; return what went wrong.

    Asks the source only if a denial is on record.
    """
    state = destination.state()
    record = state.mirror(mirror)
    if record is None or not any(state.rights(mirror, topic).blocked for topic in topics):
        return None
    with source_client(record.source, record.source_cluster_id) as source:
        return ProducerBlock(destination, mirror, source, state, topics).lift(topics)


def hand_over_denials(here: Destination, there: State, mirror: str, topics: Collection[str]) -> list[str]:
    """Make denials that block producers of these topics the protection of the mirror topics that they become `here`.

    `there` is the state of the new primary. They are recorded here as kmirror's own: the engine replaces them with what
    the mirror topic needs, and a stop here lifts them. No other ACL is taken over, whatever the state `there` contains:
    recorded ACLs are deleted here. Returns the topics concerned.
    """
    cut = [topic for topic in topics if denial(topic, EVERYONE) in there.rights(mirror, topic).blocked]

    def add(one: RightsRecord) -> RightsRecord:
        return replace(one, denied=tuple(sorted({*one.denied, denial(one.topic, EVERYONE)})))

    if cut:
        write_rights(here, mirror, cut, add)
    return cut


def forget_handed_over(
    there: Mapping[str, str], cluster_id: str | None, here: State, mirror: str, topics: Collection[str]
) -> str | None:
    """Delete from the new primary's records the denials that now protect mirror topics `here`; return what went wrong.

    `there` are the client properties of the new primary.
    """
    taken = [topic for topic in topics if is_mirrored(here.topic(mirror, topic))]
    if not taken:
        return None
    try:
        with Destination.open(there, cluster_id) as primary:
            write_rights(primary, mirror, taken, RightsRecord.unblocked)
    except (KmirrorError, OutcomeUnknown) as error:
        return f"the new primary still has on record that producers are denied WRITE here, which is harmless: {error}"
    return None


def _is_cut_off(state: State, rights: RightsRecord) -> bool:
    topic = state.topic(rights.mirror, rights.topic)
    return topic is not None and not is_mirrored(topic)
