"""Fetch from the source: one connection per broker, with a fetch session (KIP-227) and one request in flight.

For every request a broker goes through all partitions of its session. So if there are many, those without records for a
while are fetched over a second connection, with longer waits; the first record moves its partition back.

A broker may return nothing of a partition although it has more: its remote storage is slow, or a quota is used up. Such
a partition would hold up the others of its session. It is fetched over a connection of its own kind, by itself, with
growing waits and pauses, until the broker returns its records as promptly as usual.

With `client.rack` a leader may name a nearer replica (KIP-392). Records are then fetched from that follower for a
while; after trouble with a follower, from the leaders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import inf

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchKey
from kmirror.cluster.protocol.read_ahead import Covered, covered
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now
from kmirror.engine.histories.judge import Facts, Trouble
from kmirror.engine.lane.ahead import Ahead
from kmirror.engine.lane.brokers.links import AheadLink, SourceLink, next_quiet_wait_ms
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.pace.throttle import Throttle
from kmirror.engine.lane.partition.intake import LITTLE_BYTES, Frame, what_goes_on
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import SourceRole, Status
from kmirror.errors import Reason

#: How much one fetch may return, in total and of one partition. Small enough to stay in the CPU cache while it is
#: processed: larger responses are slower, here and at both brokers.
FETCH_BYTES = 2 << 20
PARTITION_BYTES = 1 << 20
FETCH_WAIT_MS = 200
#: Partitions on a connection from which on the quiet ones are moved to another, after this time without records.
MANY_PARTITIONS = 50
QUIET_SECONDS = 10.0
#: A partition that has more but brought nothing for this long is fetched by itself, until it is this prompt again.
SILENT_SECONDS = 1.0
PROMPT_SECONDS = 0.1
#: After this long on a follower the leader is asked again: a follower that lags is not preferred.
FOLLOWER_SECONDS = 10.0
#: How long to fetch from leaders only, after trouble with a follower.
LEADERS_ONLY_SECONDS = 30.0
#: Batches of one size differ by a record: this part of a batch is requested in addition.
_SPREAD = 32
#: How long a fetch may wait while partitions are paused, that is, left out because their batches are not sent yet.
FETCH_WAIT_PAUSED_MS = 5
#: The most received bytes a lane may hold; it does not fetch while it has more.
LANE_BYTES = 16 << 20


def whole_batches(limit: int, batch_bytes: int | None) -> int:
    """Return a fetch size near `limit` with which a response ends at the end of a batch, if all are about that large.

    Brokers cut a response at the size limit, and what is cut off is fetched again.
    """
    if batch_bytes is None:
        return limit
    return max(1, round(limit / batch_bytes)) * batch_bytes + batch_bytes // _SPREAD


class Fetching:
    """Fetch for one lane; for its sending thread, except `seen_at`, `answered_at` and `usage`."""

    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._links = lane.sources
        self._links.owner = self
        self._timeout = lane.source_config.request_timeout_ms / 1000
        #: The keys of the partitions that are in a fetch session.
        self._keys: dict[PartitionCopy, FetchKey] = {}
        self._held_bytes = 0
        self._throttle = Throttle(now())
        self.ahead = Ahead(lane, self._throttle, self._keys.__getitem__, self._return_to_session, self._polled)
        #: The topics that are fetched before all others; empty: no priority.
        self._first_topics: tuple[str, ...] = ()
        #: When to look for quiet partitions next, and for silent ones.
        self._sort_at = self._look_at = 0.0
        #: Until then no rack is sent to leaders, because a follower has failed.
        self._leaders_only_until = 0.0

    def attach(self, partition: PartitionCopy, facts: Facts) -> None:
        """Add a partition to the fetch session of its source leader."""
        topic, index = partition.assignment.source
        self._keys[partition] = FetchKey(facts.source_topic_id or b"", index, topic)
        self._fetch_from(partition, facts.source_leader[0])

    def continue_fetching(self, partition: PartitionCopy) -> None:
        """Continue fetching at the end of the partition's queue, which has moved."""
        key = self._keys.get(partition)
        for link in self._links.opened:
            if key and link.partitions.get(key) is partition:
                self._join(link, partition)
        self._lane.make_ready(partition)

    def make_room(self, waiting: Iterable[PartitionCopy]) -> None:
        """Keep little of what partitions hold that wait for a gap to be filled, if others could not be fetched."""
        for partition in waiting:
            if self._held_bytes <= LANE_BYTES and not self.ahead.lacks_room:
                return
            if partition.keep_little():
                self.ahead.leave({partition}.__contains__)
                self.continue_fetching(partition)
                self.collect()

    def detach(self, partition: PartitionCopy) -> None:
        """Remove a partition from its fetch session."""
        key = self._keys.pop(partition, None)
        if key is None:
            return
        self.ahead.forget(partition)
        for link in self._links.opened:
            if link.partitions.get(key) is partition:
                del link.partitions[key]
                link.paused.discard(key)
                link.session.forget(key)

    def release(self, partitions: list[PartitionCopy]) -> None:
        """Stop fetching partitions, and recycle the frames they held."""
        for partition in partitions:
            self.detach(partition)
        self.collect()

    def collect(self) -> None:
        """Recycle the frames whose last batch is answered."""
        while self._lane.released:
            frame = self._lane.released.pop()
            link = frame.owner
            if isinstance(link, AheadLink):
                self.ahead.recycle(frame)
                continue
            self._held_bytes -= len(frame.view)
            if isinstance(link, SourceLink):
                link.stream.recycle(frame.view)

    def seen_at(self, partition: PartitionCopy) -> float | None:
        """Return when the source was last fetched for a partition with a response, None if never."""
        link = self._links.get((partition.source.node_id or 0, partition.source.role))
        return partition.source.seen_at if link is None else self._seen_over(link, partition)

    def _seen_over(self, link: SourceLink, partition: PartitionCopy) -> float | None:
        source, key = partition.source, self._keys.get(partition)
        seen = source.seen_at
        if key is None or seen is None or key not in link.partitions or link.role == "silent":
            return seen
        is_asked_for = key not in link.paused and not source.is_deferred
        return max(seen, link.seen_at) if is_asked_for else seen

    def answered_at(self) -> float:
        """Return the earliest `seen_at` of the source brokers; minus infinity if one is not connected, or none is."""
        links = [x for (_, role), x in self._links.items() if role != "silent" and (not x or x.partitions)]
        ahead_at = self.ahead.answered_at()
        return min(
            (*(link.seen_at if link else -inf for link in links), *(() if ahead_at is None else (ahead_at,))),
            default=-inf,
        )

    def usage(self) -> tuple[int, float]:
        """Return the bytes fetched so far, and the seconds for which the throttle stopped fetching."""
        return self._throttle.fetched_bytes, self._throttle.waited(now())

    def on_tick(self, at: float) -> None:
        """Do what is due: limits, time-outs, priorities, and returning from followers to leaders."""
        self._throttle.set_limit(self._lane.control.bytes_per_second, at)
        self.collect()
        self._links.on_tick(at)
        if self._first_topics != self._lane.control.first_topics:
            self._first_topics = self._lane.control.first_topics
            self.ahead.leave(self._must_defer)
            for link in self._links.opened:
                self._apply_priority(link)
        if at >= self._sort_at:
            self._sort_at = at + QUIET_SECONDS / 2
            for link in self._links.opened:
                if link.role == "main" and len(link.partitions) > MANY_PARTITIONS:
                    self._set_aside_quiet(link, at)
        self.ahead.on_tick(at)
        if at >= self._look_at:
            self._look_at = at + SILENT_SECONDS / 4
            self._sort_silent(at)
        for partition in self._lane.partitions if self._lane.source_config.rack else ():
            until, facts = partition.source.follower_until, partition.facts
            is_due = until is not None and at >= until and partition.source.role != "ahead"
            if facts is not None and is_due and partition.wants_records:
                self._move_fetch(partition, facts.source_leader[0], None)

    def _set_aside_quiet(self, link: SourceLink, at: float) -> None:
        """Fetch the partitions of a connection that have brought nothing for a while over the other one."""
        quiet = [
            partition
            for key, partition in link.partitions.items()
            if key not in link.paused
            and partition.is_at_rest
            and not partition.source.is_deferred
            and partition.source.follower_until is None
            and at - partition.source.records_at > QUIET_SECONDS
        ]
        self._move_all(quiet, link.node_id, "quiet")

    def _sort_silent(self, at: float) -> None:
        """Fetch partitions by themselves whose broker does not return what it has, as long as that lasts."""
        silent: dict[int, list[PartitionCopy]] = defaultdict(list)
        for partition in self._lane.active:
            source, key = partition.source, self._keys.get(partition)
            if key is None or source.node_id is None:
                continue
            if source.role == "silent":
                if partition.caught_up:
                    self._move_fetch(partition, source.node_id, source.follower_until)
            elif (
                source.nothing_since is not None
                and at - source.nothing_since > SILENT_SECONDS
                and self.is_passed_over(partition)
            ):
                link = self._links.get((source.node_id, source.role))
                if link and source.batch_bytes is None and link.first_bytes < PARTITION_BYTES:
                    self._ask_first_for(link, PARTITION_BYTES, at)  # its first batch may be larger than what was asked
                else:
                    silent[source.node_id].append(partition)
        for node_id, partitions in silent.items():
            self._move_all(partitions, node_id, "silent")

    def is_passed_over(self, partition: PartitionCopy) -> bool:
        """Return True if since fetches return nothing of a partition a response had room for its records.

        Others may be fetched before it, and a quota may keep responses empty.
        """
        source = partition.source
        if source.role == "silent":
            return source.empty_fetches > 0
        link, key, since = (
            self._links.get((source.node_id or 0, source.role)),
            self._keys.get(partition),
            source.nothing_since,
        )
        if not link or key not in link.partitions or key in link.paused or since is None:
            return False
        return link.had_room_at >= max(since, link.first_bytes_at)

    def _move_all(self, partitions: list[PartitionCopy], node_id: int, role: SourceRole) -> None:
        """Fetch partitions over another connection, once it is open."""
        if partitions:
            self._links.open((node_id, role))
        if joined := self._links.get((node_id, role)):
            for partition in partitions:
                self._move(partition, joined)

    def _move(self, partition: PartitionCopy, link: SourceLink) -> None:
        """Fetch a partition over another connection to the same broker from now on."""
        key = self._keys[partition]
        self.detach(partition)
        self._keys[partition] = key
        self._join(link, partition)

    def _apply_priority(self, link: SourceLink) -> None:
        """Apply a change of the topics that are fetched first to a connection."""
        for key, partition in link.partitions.items():
            if key not in link.paused and partition.source.is_deferred is not self._must_defer(partition):
                self._want(link, key, partition)

    def _must_defer(self, partition: PartitionCopy) -> bool:
        return bool(self._first_topics) and partition.assignment.topic not in self._first_topics

    def opened(self, key: tuple[int, SourceRole], stream: Stream, versions: tuple[int, ...]) -> SourceLink:
        """Take a new connection into use."""
        node_id, role = key
        link = SourceLink(node_id, stream, self._lane.source_config.client_id, versions[0], role)
        self.ahead.path_opened(node_id, stream.connection.round_trip)
        for partition in self._lane.partitions if role == "main" else ():
            source = partition.source
            if partition in self._keys and source.node_id == node_id and source.role == "main":
                self._join(link, partition)
        return link

    def refused(self, key: tuple[int, SourceRole], message: str, reason: Reason | None, at: float) -> None:
        """Note that a connection could not be opened."""
        node_id, role = key
        for partition in self._lane.all if role == "main" else ():
            if partition.source.node_id == node_id and partition.source.role == "main":
                partition.source.lost(at)
                self._avoid_followers(partition, at)
                partition.interrupted(Trouble(reason or Reason.SOURCE_UNREACHABLE, message), at)

    def _fetch_from(self, partition: PartitionCopy, node_id: int) -> None:
        partition.source.fetched_from(node_id, now())
        self._links.open((node_id, "main"))
        if link := self._links.get((node_id, "main")):
            self._join(link, partition)

    def _move_fetch(self, partition: PartitionCopy, node_id: int, follower_until: float | None) -> None:
        """Fetch a partition from another replica from now on; log ends are still read from the leader."""
        key = self._keys[partition]
        self.detach(partition)
        self._keys[partition] = key
        partition.source.served_by_follower(follower_until)
        self._fetch_from(partition, node_id)

    def _return_to_session(self, partition: PartitionCopy) -> None:
        """Fetch a partition in the session of its broker again."""
        if partition.source.node_id is not None and partition.status is Status.COPYING:
            self._fetch_from(partition, partition.source.node_id)

    def _polled(self, partition: PartitionCopy) -> None:
        """Continue a partition's session behind records that came by another fetch."""
        key, node_id = self._keys[partition], partition.source.node_id or 0
        link = self._links.get((node_id, "main"))
        if link and key in link.partitions:
            link.overtaken.add(key)
            self._want(link, key, partition)
        if partition.blocked_by:
            partition.advance(now())
        if partition.queue:
            self._lane.make_ready(partition)

    def _begin_ahead(self, link: SourceLink, partition: PartitionCopy, found: Covered | None, at: float) -> bool:
        """Read a partition ahead from now on if it is far behind and the path is long."""
        fetched_with = len(link.session)
        if link.role != "main" or found is None or not self.ahead.begins(partition, found, fetched_with, at):
            return False
        key = self._keys[partition]
        del link.partitions[key]
        link.paused.discard(key)
        link.session.forget(key)
        return True

    def _join(self, link: SourceLink, partition: PartitionCopy) -> None:
        key = self._keys[partition]
        link.partitions[key] = partition
        link.paused.discard(key)
        link.busy_at = now()
        partition.source.joined(link.role, link.serial + 1)
        self._want(link, key, partition)

    def _want(self, link: SourceLink, key: FetchKey, partition: PartitionCopy) -> None:
        """Include a partition in the next request, unless other topics come first or it has enough for now."""
        partition.defer(is_deferred=self._must_defer(partition))
        if link.role == "silent":
            return
        if partition.source.is_deferred:
            link.session.forget(key)
            return
        if not partition.wants_records:
            link.session.forget(key)
            link.paused.add(key)
            return
        link.batch_bytes = partition.source.batch_bytes or link.batch_bytes
        first = partition.source.batch_bytes is None and self.ahead.is_possible(link.node_id)
        limit = LITTLE_BYTES if partition.intake.holds_little else link.first_bytes if first else PARTITION_BYTES
        link.session.want(key, partition.fetch_position(whole_batches(limit, partition.source.batch_bytes)))

    def _ask_first_for(self, link: SourceLink, size: int, at: float) -> None:
        """Ask for more of the partitions that have brought nothing yet: brokers return no part of a first batch."""
        link.first_bytes, link.first_bytes_at = min(size, PARTITION_BYTES), at
        for key, partition in link.partitions.items():
            if partition.source.batch_bytes is None and key not in link.paused:
                self._want(link, key, partition)

    def _answer_bytes(self, link: SourceLink, allowed: int | None) -> int:
        """Return the maximum size of the next response: as many whole partition parts as fit."""
        limit = FETCH_BYTES if allowed is None else min(allowed, FETCH_BYTES)
        part = whole_batches(PARTITION_BYTES, link.batch_bytes)
        return round(limit / part) * part if limit >= part else whole_batches(limit, link.batch_bytes)

    def pump(self, link: SourceLink) -> None:
        """Send the next request if none is in flight and there is room for its response."""
        for key in list(link.paused):
            partition = link.partitions[key]
            if partition.wants_records:
                link.paused.discard(key)
                self._want(link, key, partition)
        if link.asked_at is not None or self._held_bytes > LANE_BYTES:
            return
        connection = link.stream.connection
        if connection.is_throttled:
            return
        if connection.must_be_replaced:
            self._renew(link)
            return
        at = now()
        alone = link.next_silent(at) if link.role == "silent" else None
        if alone is None and not len(link.session):
            return
        allowed = self._throttle.allowance(at)
        if allowed == 0:
            return
        is_quiet = link.role == "quiet" or at - link.busy_at > QUIET_SECONDS
        wait = link.quiet_wait_ms if is_quiet else FETCH_WAIT_MS
        wait = FETCH_WAIT_PAUSED_MS if link.paused else wait
        max_bytes = self._answer_bytes(link, allowed)
        if alone is not None:
            wait = min(alone.source.fetch_wait_ms, int(self._timeout * 500))
            link.session.want(self._keys[alone], alone.fetch_position(max_bytes))
        link.serial += 1
        link.asked_at, link.max_bytes = at, max_bytes
        link.overtaken.clear()
        rack = self._lane.source_config.rack if link.asked_at >= self._leaders_only_until else ""
        self._links.send(link, link.next_request(max_wait_ms=wait, max_bytes=max_bytes, rack=rack))

    def _renew(self, link: SourceLink) -> None:
        """Fetch over a new connection what is fetched over one whose session expires, with nothing in flight."""
        self._links.close(link)
        for partition in link.partitions.values():
            partition.source.answered(self._seen_over(link, partition))
            self._return_to_session(partition)

    def answered(self, link: SourceLink, view: memoryview) -> None:
        """Take the next frame of a connection. Raises OutcomeUnknown, FrameError."""
        answered = link.answered(view)
        if answered is None:
            return
        answer, view = answered
        asked_at, link.asked_at = link.asked_at, None
        link.stream.connection.note_throttle(answer.throttle_time_ms)
        if answer.error_code:
            if answer.error_code not in {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH}:
                self._links.lose(link, link.stream.connection.message(code_name(answer.error_code)))
            return
        frame = Frame(view, link)
        self._held_bytes += len(view)
        self._throttle.received(len(view))
        at = now()
        if asked_at is not None and any(len(part.records) for part in answer.partitions):
            link.busy_at = at
            self._lane.counts.fetches.took(at - asked_at)
        elif asked_at is not None and link.role == "quiet" and not link.paused:
            seconds_there = at - asked_at - link.stream.connection.round_trip
            link.quiet_wait_ms = next_quiet_wait_ms(link.quiet_wait_ms, seconds_there)
        link.seen_at = asked_at or link.seen_at
        if len(view) + PARTITION_BYTES <= link.max_bytes and not answer.throttle_time_ms:
            link.had_room_at = link.seen_at  # a throttled response is empty, whatever there is
        largest = 0
        for part in answer.partitions:
            partition = link.partitions.get(part.key)
            if partition is None or partition.source.valid_from_serial > link.serial:
                continue
            if part.preferred_read_replica is not None and part.preferred_read_replica != link.node_id:
                partition.ends_seen(part)
                self._move_fetch(partition, part.preferred_read_replica, at + FOLLOWER_SECONDS)
                continue
            if part.error_code or part.diverging_epoch:
                self._avoid_followers(partition, at)
            is_overtaken = part.key in link.overtaken
            of_use = what_goes_on(part, partition.intake) if is_overtaken else part
            # before it is taken in, which changes the batches
            found = covered(part.records) if self.ahead.is_possible(link.node_id) else None
            partition.fetched(of_use, frame, at, may_overlap=is_overtaken)
            partition.source.answered(link.seen_at)
            if link.role == "silent":
                link.session.forget(part.key)
                if not len(part.records):
                    partition.source.brought_nothing(at)
            if partition.status is not Status.COPYING:
                self.detach(partition)
            elif partition.blocked_by:
                link.session.forget(part.key)
                partition.advance(at)
            elif len(part.records):
                partition.source.got_records(at)
                largest = max(largest, partition.source.batch_bytes or 0)
                self.ahead.brought(partition, len(part.records), at)
                is_prompt = asked_at is not None and at - asked_at < PROMPT_SECONDS
                if link.role == "quiet" or (link.role == "silent" and is_prompt):
                    self._move_fetch(partition, link.node_id, partition.source.follower_until)
                elif link.role == "silent" or self._begin_ahead(link, partition, found, at):
                    pass
                else:
                    self._want(link, part.key, partition)
            if partition.queue:
                self._lane.make_ready(partition)
        if largest > link.first_bytes and self.ahead.is_possible(link.node_id):
            self._ask_first_for(link, whole_batches(1, largest), at)
        if frame.release():
            self._lane.released.append(frame)
        self.collect()

    def lost(self, link: SourceLink, message: str, at: float) -> None:
        """Note that a connection is closed."""
        for partition in link.partitions.values():
            partition.source.answered(self._seen_over(link, partition))
            partition.source.lost(at)
        for partition in list(link.partitions.values()):
            self._avoid_followers(partition, at)
            partition.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, message), at)
            self._keys.pop(partition, None)
        self.collect()

    def _avoid_followers(self, partition: PartitionCopy, at: float) -> None:
        """Fetch from leaders only for a while if a follower failed: they might send us there again."""
        if partition.source.follower_until is not None:
            self._leaders_only_until = at + LEADERS_ONLY_SECONDS
