"""What a lane knows of one source partition: where to fetch it, and where its log starts and ends."""

from __future__ import annotations

from kmirror.cluster.protocol.batch import LOG_OVERHEAD, PREFIX
from kmirror.cluster.protocol.fetch import FetchedPartition
from kmirror.cluster.protocol.read_up_to import FIRST_SILENT_PAUSE, LONGEST_SILENT_PAUSE
from kmirror.engine.histories.judge import Facts, Trouble
from kmirror.engine.lane.partition.states import SourceRole

#: A batch larger than this is returned alone, whatever the fetch size.
_LARGE = 2 << 20
#: After fetches below the last stable offset have returned nothing for this long, the end of the log is probed, and
#: again after such pauses.
_NOTHING_SECONDS = 3.0
_PROBE_PAUSE = 5.0


class SourceView:
    """The last known state of one source partition."""

    def __init__(self) -> None:
        #: The broker to fetch from: the leader, or a follower that the leader named, and until when to use it.
        self.node_id: int | None = None
        self.follower_until: float | None = None
        #: Over which connection to that broker it is fetched; and when it last brought records.
        self.role: SourceRole = "main"
        self.records_at = 0.0
        #: When fetching from that broker began: what was asked for before, of whatever broker, belongs to the past.
        self.attached_at = 0.0
        #: Responses to fetches with a lower serial number belong to an earlier position.
        self.valid_from_serial = 0
        self.log_start: int | None = None
        self.last_stable_offset: int | None = None
        self.high_watermark: int | None = None
        #: True while other topics are fetched first, and this partition is not.
        self.is_deferred = False
        #: The size of its batches: that of the first one in the last response.
        self.batch_bytes: int | None = None
        #: When the request was sent that returned these values; None before the first.
        self.seen_at: float | None = None
        #: When a connection to the source broke for the first time since then.
        self.lost_at: float | None = None
        #: Since when fetches return nothing although the source has more; and how many by itself have since.
        self.nothing_since: float | None = None
        self.empty_fetches = 0
        #: When it may be fetched by itself again, and the end of its log probed again.
        self.fetch_again_at = self.probe_at = 0.0
        #: Until then it is not read ahead.
        self.session_until = 0.0
        #: Why it is known that the source does not return what it has; None while it is not.
        self.silence: Trouble | None = None

    def led_by(self, node_id: int | None) -> None:
        """Take the leader that an inspection found, and fetch from it; None if that is unknown."""
        self.node_id, self.follower_until = node_id, None
        self.brought_something()

    def fetched_from(self, node_id: int, at: float) -> None:
        """Note that it is fetched in the session with this broker from now on."""
        self.node_id, self.role, self.attached_at = node_id, "main", at

    def served_by_follower(self, until: float | None) -> None:
        """Note until when a follower serves it; None: the leader does."""
        self.follower_until = until

    def joined(self, role: SourceRole, serial: int) -> None:
        """Note over which connection it is fetched, from the request with this serial number on."""
        self.role, self.valid_from_serial = role, serial

    def reads_ahead(self) -> None:
        """Note that it is read ahead."""
        self.role = "ahead"

    def not_ahead_until(self, until: float) -> None:
        """Note that it is not read ahead for a while."""
        self.session_until = until

    def answered(self, asked_at: float | None) -> None:
        """Note when what is known of it was asked for."""
        self.seen_at = asked_at

    def got_records(self, at: float) -> None:
        """Note that it brought records."""
        self.records_at = at

    def inspected(self, facts: Facts, now: float) -> None:
        """Take the facts of an inspection."""
        self.last_stable_offset = facts.last_stable_offset
        self.high_watermark = facts.high_watermark
        self.log_start = facts.source_log_start
        self.seen_at = now

    def lost(self, at: float) -> None:
        """Note that a connection over which it is fetched broke, or could not be opened."""
        if self.lost_at is None or self.lost_at < (self.seen_at or 0.0):
            self.lost_at = at

    def brought_something(self) -> None:
        """Note that fetches return what the source has, or that nothing is left to fetch."""
        self.nothing_since = self.silence = None
        self.empty_fetches = 0

    def is_to_be_probed(self, now: float) -> bool:
        """Return True if fetches have returned nothing for so long that the end of the log must be probed."""
        if self.nothing_since is None:
            self.nothing_since, self.probe_at = now, now + _NOTHING_SECONDS
        return now > self.probe_at

    def probed(self, now: float) -> None:
        """Note that the end of the log was probed."""
        self.probe_at = now + _PROBE_PAUSE

    def fell_silent(self, silence: Trouble) -> None:
        """Note that the source does not return what it has."""
        self.silence = silence

    def brought_nothing(self, at: float) -> None:
        """Note that a fetch by itself returned nothing; the pause before the next one doubles."""
        self.fetch_again_at = at + self._pause
        self.empty_fetches += 1

    @property
    def fetch_wait_ms(self) -> int:
        """How long a fetch by itself may wait at the broker: the longer, the more have returned nothing."""
        return int(1000 * self._pause)

    @property
    def _pause(self) -> float:
        return min(FIRST_SILENT_PAUSE * float(1 << min(self.empty_fetches, 10)), LONGEST_SILENT_PAUSE)

    def batches_seen(self, records: memoryview) -> None:
        """Take the batches of a response, the last of which may be cut off."""
        size = LOG_OVERHEAD + PREFIX.unpack_from(records)[1] if len(records) >= PREFIX.size else 0
        self.batch_bytes = size if LOG_OVERHEAD < size <= _LARGE else None

    def ends_seen(self, answer: FetchedPartition) -> None:
        """Take the offsets of a response; the ends of a follower are never newer than those of its leader."""
        if answer.log_start_offset is not None:
            self.log_start = answer.log_start_offset
        if answer.high_watermark is None:
            return  # some brokers do not know them while they wait for a slow store
        if self.follower_until is None or self.high_watermark is None or self.last_stable_offset is None:
            self.high_watermark, self.last_stable_offset = answer.high_watermark, answer.last_stable_offset
        else:
            self.high_watermark = max(self.high_watermark, answer.high_watermark)
            self.last_stable_offset = max(self.last_stable_offset, answer.last_stable_offset or 0)
