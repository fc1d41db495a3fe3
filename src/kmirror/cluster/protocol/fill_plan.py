"""Fill a hole with exactly the right number of markers, even if requests are lost. Pure: events in, the next step out.

A request for markers is not idempotent: sent twice, it writes twice, and an unanswered one may still be executed, in
part or whole, at any later time. What brokers do check is this. For each producer the leader remembers the pair
(producer epoch p, coordinator epoch c) of its last marker, and

    accepts a marker (p', c') only if p' >= p and c' >= c; then it remembers (p', c').

So markers of one request share a pair, and a later marker with a higher pair fences whatever is left of it. Of two
pairs of which neither is at least the other in both, only one is ever accepted: the first to arrive fences its rival.

A hole of N offsets is filled in rounds. Between rounds nothing is in flight and the log end is known.

    body       N − 1 offsets at (p, c), in as many requests as it takes
    last       1 offset at (p, c + 1)

If all are answered, the log end is compared, and the hole is filled. After a request without an answer:

1. Read the leader's state of the producer, the log end, the high watermark, in this order, until the log is replicated
   up to its end. If the log ends where everything sent would bring it, everything was executed. If not:
2. Send the last marker, unless it was sent. There is room: the body never takes the hole's last offset. Once answered,
   it has fenced what was left of the body. Read again, and begin another round for what is missing.
3. If it was the last marker that got no answer, send its rival (p + 1, c). One of the two is written, never both, and
   either fences the body. The leader's state says which. If it was the rival, data continues under p + 1.
4. If the rival gets no answer either, and the leader remembers neither, more requests cannot decide it: UNDECIDED.
   Wait until no request of ours can be in flight, then read and begin again, with `unused_coordinator_epoch`.

A producer's sequence continues across its markers. It restarts at 0 if the leader did not know the producer before the
marker, and under a new producer epoch. (All this is checked on brokers 3.9 and 4.3.)

Coordinator epochs grow by one per hole. When they run out, after 2^31 of them, holes are still filled; step 2 then
leads straight to UNDECIDED.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kmirror.cluster.protocol.codes import UNAUTHORIZED, Code
from kmirror.cluster.protocol.markers import MAX_MARKERS, RESERVED_OFFSETS
from kmirror.cluster.protocol.produce import ProducerState

MAX_COORDINATOR_EPOCH = 2**31 - 1
MAX_PRODUCER_EPOCH = 2**15 - 1


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Send a request for `count` markers, then call `answered` or `unanswered`."""

    count: int
    producer_epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class ReadLeader:
    """Read the leader's state of the producer (DescribeProducers), its log end and its high watermark, in this order.

    Then call `leader_read`. Pause before it, except after a success: a leader may have to be found, or a request may be
    slow.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The hole is filled, and nothing is in flight. The next plan begins with these epochs; data has this one."""

    producer_epoch: int
    coordinator_epoch: int


class Obstacle(Enum):
    """Why a plan ended early."""

    #: Neither ALTER nor CLUSTER_ACTION on the cluster is granted.
    NOT_AUTHORIZED = "not authorized"
    #: Another client uses our producer id, with higher epochs.
    FENCED = "fenced"
    #: The log ends after the hole: another client writes to it.
    OVERSHOT = "overshot"
    #: The log ends below the hole: it lost records that it had.
    TRUNCATED = "truncated"
    #: Requests of ours may still be in flight.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Failed:
    """The plan ended early. `log_end` is where the log ended when last read."""

    obstacle: Obstacle
    message: str
    log_end: int


Step = WriteMarkers | ReadLeader | Done | Failed


class _Part(Enum):
    BODY = "body"
    LAST = "last"
    RIVAL = "rival"


class FillPlan:
    """Bring a log from `log_end` to `end`. `step` is what to do next; each event returns the step after it.

    `log_end` is the true one, replicated, with nothing of ours in flight.
    `producer_epoch` is the one that data has. `coordinator_epoch` begins one above the one that the leader remembers
    (DescribeProducers; −1 for none), so that stale requests of a predecessor are fenced, and continues from one plan's
    `Done` to the next.
    """

    def __init__(
        self, log_end: int, end: int, *, producer_epoch: int, coordinator_epoch: int, max_count: int = MAX_MARKERS
    ) -> None:
        self.begin = log_end
        self.end = end
        #: The pair of this round's body.
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self._max_count = max_count
        #: Where the log ends according to answers.
        self._log_end = log_end
        #: False when answers were for whole requests, not for every marker in them.
        self._exact = True
        #: No request sent so far can bring the log above this.
        self._reach = log_end
        #: True while a request without an answer may still be executed.
        self.in_doubt = False
        #: Of this round: parts that were sent, and those of them without an answer.
        self._sent: set[_Part] = set()
        self._unanswered: set[_Part] = set()
        self._asked: _Part | None = None
        self.step: Step = self._next_part()

    def __repr__(self) -> str:
        return f"<FillPlan {self.begin}–{self.end} at {self._log_end}, next {self.step}>"

    def answered(self, code: int) -> Step:
        """Handle the answer to the request for markers."""
        asked, request = self._take()
        if code in UNAUTHORIZED:
            return self._fail(Obstacle.NOT_AUTHORIZED, "no right to write markers (ALTER on the cluster)")
        if code == Code.INVALID_PRODUCER_EPOCH:
            return self._fail(Obstacle.FENCED, "the leader has seen a higher epoch of our producer id")
        if code == Code.TRANSACTION_COORDINATOR_FENCED and asked is not _Part.RIVAL:
            return self._fail(Obstacle.FENCED, "the leader has seen a higher coordinator epoch of our producer id")
        if code:
            # nothing of this request is in flight any more, but how much of it was executed is not known
            self._exact = False
            return self._set(ReadLeader())
        was_in_doubt = self.in_doubt
        self._log_end += request.count
        self._exact = self._exact and request.count == 1
        if asked is not _Part.BODY:
            self._adopt(request.producer_epoch, request.coordinator_epoch)
        return self._set(ReadLeader() if was_in_doubt else self._next_part())

    def unanswered(self) -> Step:
        """Handle the loss of the connection, or a time-out, before the answer came."""
        asked, _ = self._take()
        self._unanswered.add(asked)
        self.in_doubt = True
        return self._set(ReadLeader())

    def leader_read(self, producer: ProducerState | None, log_end: int, high_watermark: int) -> Step:
        """Handle what was read; `producer` is None if the leader does not know ours."""
        if not isinstance(self.step, ReadLeader):
            raise RuntimeError(f"the leader was not to be read: {self!r}")
        remembered = (producer.producer_epoch, producer.coordinator_epoch) if producer else (-1, -1)
        base = (self.producer_epoch, self.coordinator_epoch)
        votes = {part: self._pair(part) for part in (_Part.LAST, _Part.RIVAL) if part in self._sent}
        if remembered not in votes.values() and (remembered[0] > base[0] or remembered[1] > base[1]):
            message = f"the leader remembers epochs {remembered} of our producer id, ours are {base}"
            return self._fail(Obstacle.FENCED, message, log_end)
        if log_end > self.end:
            return self._fail(
                Obstacle.OVERSHOT, f"the log ends after offset {self.end}: another client wrote to it", log_end
            )
        if log_end < self.begin:
            return self._fail(Obstacle.TRUNCATED, f"the log has lost offsets from {log_end} on", log_end)
        if high_watermark < log_end:
            return self._set(ReadLeader())  # records that are not replicated yet may be lost with the leader
        if self._can_tell and remembered in votes.values():
            self._adopt(*remembered)
        elif self.in_doubt and log_end >= self._reach and _Part.RIVAL not in self._sent:
            self._adopt(*votes.get(_Part.LAST, base))
        if self.in_doubt:
            return self._set(self._decide(log_end))
        self._log_end = self._reach = log_end
        self._exact = True
        self._sent.clear()
        return self._set(self._next_part())

    @property
    def filled_to(self) -> int:
        """Where the log ends, as far as is known."""
        return self._log_end

    @property
    def unused_coordinator_epoch(self) -> int:
        """A coordinator epoch above all that were sent: the first marker of a plan that begins with it fences them."""
        return min(self.coordinator_epoch + 2, MAX_COORDINATOR_EPOCH)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _next_part(self) -> Step:
        """Return the next step while nothing is in flight."""
        left = self.end - self._log_end
        if left < 0:
            return Failed(Obstacle.OVERSHOT, f"the log ends after offset {self.end}", self._log_end)
        if left > RESERVED_OFFSETS:
            return self._ask(_Part.BODY, min(left - RESERVED_OFFSETS, self._max_count))
        if left:
            return self._ask(_Part.LAST)
        return Done(self.producer_epoch, self.coordinator_epoch) if self._exact else ReadLeader()

    def _decide(self, log_end: int) -> Step:
        """Return how to fence what may be in flight."""
        if self._can_tell:
            if _Part.LAST not in self._unanswered:
                return self._ask(_Part.LAST)
            if _Part.RIVAL not in self._unanswered and self.producer_epoch < MAX_PRODUCER_EPOCH:
                return self._ask(_Part.RIVAL)
            if log_end >= self._reach:
                return ReadLeader()  # one of the two was written just after the leader's state was read
        return Failed(Obstacle.UNDECIDED, "whether the last marker will still be written is not known", log_end)

    @property
    def _can_tell(self) -> bool:
        """True while there is a coordinator epoch left for the last marker to differ by."""
        return self.coordinator_epoch < MAX_COORDINATOR_EPOCH

    def _pair(self, part: _Part) -> tuple[int, int]:
        match part:
            case _Part.BODY:
                return self.producer_epoch, self.coordinator_epoch
            case _Part.LAST:
                return self.producer_epoch, min(self.coordinator_epoch + 1, MAX_COORDINATOR_EPOCH)
            case _Part.RIVAL:
                return self.producer_epoch + 1, self.coordinator_epoch

    # -- moves ----------------------------------------------------------------------------------------------------

    def _ask(self, part: _Part, count: int = 1) -> WriteMarkers:
        self._asked = part
        if part is not _Part.RIVAL:
            self._reach += count
        self._sent.add(part)
        return WriteMarkers(count, *self._pair(part))

    def _take(self) -> tuple[_Part, WriteMarkers]:
        if not isinstance(self.step, WriteMarkers) or self._asked is None:
            raise RuntimeError(f"nothing was asked: {self!r}")
        asked, self._asked = self._asked, None
        return asked, self.step

    def _adopt(self, producer_epoch: int, coordinator_epoch: int) -> None:
        """Continue from the pair that the leader accepted last: it fenced everything else that was in flight."""
        self.producer_epoch, self.coordinator_epoch = producer_epoch, coordinator_epoch
        self.in_doubt = False
        self._sent.clear()
        self._unanswered.clear()

    def _set(self, step: Step) -> Step:
        self.step = step
        return step

    def _fail(self, obstacle: Obstacle, message: str, log_end: int | None = None) -> Failed:
        self.step = failed = Failed(obstacle, message, self._log_end if log_end is None else log_end)
        return failed
