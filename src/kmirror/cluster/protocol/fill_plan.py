"""Fill a hole with markers exactly, whatever becomes of the requests. Pure: events in, the next step out; no time.

A request for markers has no guard of its own: sent twice, it writes twice, and an unanswered one may still be carried
out, in part or whole, at any later time. What brokers do check is this. The leader remembers of each producer the pair
(producer epoch p, coordinator epoch c) of its last marker, and

    takes a marker (p', c') only if p' >= p and c' >= c; then it remembers (p', c').

So markers of one request share a pair, and a later marker with a higher pair fences whatever is left of it. Of two
pairs of which neither is at least the other in both, only one is ever taken: whichever comes first fences its rival.

A hole of N offsets is filled in rounds. Between rounds nothing is on its way and the log end is known.

    body       N − 1 offsets at (p, c), in as many requests as it takes
    last       1 offset at (p, c + 1)

If all are answered the log end is compared, and the hole is filled. After a request without an answer:

1. Look: read the leader's memory of the producer, the log end, the high watermark, in this order, and again until the
   log is replicated up to its end. If that is where all that was sent would bring it, all was carried out. If not:
2. Send the last marker, unless it was sent. It has room: the body never takes the hole's last offset. Answered, it has
   fenced what was left of the body. Look, and begin another round for what lacks.
3. If it was the last marker that got no answer, send its rival (p + 1, c). One of the two is written, never both, and
   either fences the body. The leader's memory says which. If the rival was the one, data goes on under p + 1.
4. If the rival gets no answer either, and the leader remembers neither, asking decides nothing more: UNDECIDED.
   Wait until no request of ours can be on its way, then begin again from a fresh look, with `unused_coordinator_epoch`.

A producer's sequence continues across its markers. It begins again at 0 where the leader knew nothing of the producer
before the marker, and under a new producer epoch. (All this is checked on brokers 3.9 and 4.3.)

Coordinator epochs grow by one per hole. When they run out, after 2^31 of them, holes are still filled; step 2 then
leads straight to UNDECIDED.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.markers import MAX_MARKERS, RESERVED_OFFSETS, TRANSACTION_COORDINATOR_FENCED
from kmirror.cluster.protocol.producer_state import ProducerState

MAX_COORDINATOR_EPOCH = 2**31 - 1
MAX_PRODUCER_EPOCH = 2**15 - 1

_UNAUTHORIZED = {Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED}


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request for `count` markers; tell `answered` or `unanswered`."""

    count: int
    producer_epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class Look:
    """Read the leader's memory of the producer (DescribeProducers), its log end, its high watermark; tell `looked`.

    In this order. After anything but success pause before: a leader may have to be found, or a request takes its time.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The hole is filled, and nothing is on its way. Begin the next plan with these epochs; data has this one."""

    producer_epoch: int
    coordinator_epoch: int


class Obstacle(Enum):
    """Say why a plan ended early."""

    #: Neither ALTER nor CLUSTER_ACTION on the cluster is granted.
    NOT_AUTHORIZED = "not authorized"
    #: Another client uses our producer id, with higher epochs.
    FENCED = "fenced"
    #: The log ends after the hole: another client writes to it.
    OVERSHOT = "overshot"
    #: The log ends below the hole: it lost records that it had.
    TRUNCATED = "truncated"
    #: Requests of ours may still be under way.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Failed:
    """The plan ended early. `log_end` is where the log ended when last seen."""

    obstacle: Obstacle
    message: str
    log_end: int


Step = Ask | Look | Done | Failed


class _Part(Enum):
    BODY = "body"
    LAST = "last"
    RIVAL = "rival"


class FillPlan:
    """Bring a log from `log_end` to `end`. `step` is what to do next; each event returns the step after it.

    `log_end` is the true one, replicated, with nothing of ours on its way.
    `producer_epoch` is the one that data has. `coordinator_epoch` begins one above what the leader remembers
    (DescribeProducers; −1 where it remembers none), so that stale requests of a predecessor are fenced, and goes on
    from one plan's `Done` to the next.
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
        #: Where the log ends as far as answers say.
        self._log_end = log_end
        #: False when answers covered requests, not every marker in them.
        self._exact = True
        #: No request sent so far can bring the log above this.
        self._reach = log_end
        #: True while a request without an answer may still be carried out.
        self.in_doubt = False
        #: Of this round: parts that were sent, and those of them without an answer.
        self._sent: set[_Part] = set()
        self._unanswered: set[_Part] = set()
        self._asked: _Part | None = None
        self.step: Step = self._go_on()

    def __repr__(self) -> str:
        return f"<FillPlan {self.begin}–{self.end} at {self._log_end}, next {self.step}>"

    def answered(self, code: int) -> Step:
        """Take the answer to what was asked."""
        asked, ask = self._take()
        if code in _UNAUTHORIZED:
            return self._fail(Obstacle.NOT_AUTHORIZED, "no right to write markers (ALTER on the cluster)")
        if code == Code.INVALID_PRODUCER_EPOCH:
            return self._fail(Obstacle.FENCED, "the leader has seen a higher epoch of our producer id")
        if code == TRANSACTION_COORDINATOR_FENCED and asked is not _Part.RIVAL:
            return self._fail(Obstacle.FENCED, "the leader has seen a higher coordinator epoch of our producer id")
        if code:
            # nothing of this request is left, but how much of it was carried out is not known
            self._exact = False
            return self._set(Look())
        was_in_doubt = self.in_doubt
        self._log_end += ask.count
        self._exact = self._exact and ask.count == 1
        if asked is not _Part.BODY:
            self._adopt(ask.producer_epoch, ask.coordinator_epoch)
        return self._set(Look() if was_in_doubt else self._go_on())

    def unanswered(self) -> Step:
        """Take the loss of the connection, or the end of patience, before the answer came."""
        asked, _ = self._take()
        self._unanswered.add(asked)
        self.in_doubt = True
        return self._set(Look())

    def looked(self, producer: ProducerState | None, log_end: int, high_watermark: int) -> Step:
        """Take what a look showed; `producer` is None where the leader knows nothing of ours."""
        assert isinstance(self.step, Look), f"nobody asked for a look: {self!r}"
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
            return self._set(Look())  # what is not replicated yet may be lost with the leader
        if self._can_tell and remembered in votes.values():
            self._adopt(*remembered)
        elif self.in_doubt and log_end >= self._reach and _Part.RIVAL not in self._sent:
            self._adopt(*votes.get(_Part.LAST, base))
        if self.in_doubt:
            return self._set(self._decide(log_end))
        self._log_end = self._reach = log_end
        self._exact = True
        self._sent.clear()
        return self._set(self._go_on())

    @property
    def unused_coordinator_epoch(self) -> int:
        """A coordinator epoch above all that were sent: a plan that begins with it fences them with its first."""
        return min(self.coordinator_epoch + 2, MAX_COORDINATOR_EPOCH)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _go_on(self) -> Step:
        """Say what comes next while nothing is on its way."""
        left = self.end - self._log_end
        if left < 0:
            return Failed(Obstacle.OVERSHOT, f"the log ends after offset {self.end}", self._log_end)
        if left > RESERVED_OFFSETS:
            return self._ask(_Part.BODY, min(left - RESERVED_OFFSETS, self._max_count))
        if left:
            return self._ask(_Part.LAST)
        return Done(self.producer_epoch, self.coordinator_epoch) if self._exact else Look()

    def _decide(self, log_end: int) -> Step:
        """Say how to fence what may be on its way."""
        if self._can_tell:
            if _Part.LAST not in self._unanswered:
                return self._ask(_Part.LAST)
            if _Part.RIVAL not in self._unanswered and self.producer_epoch < MAX_PRODUCER_EPOCH:
                return self._ask(_Part.RIVAL)
            if log_end >= self._reach:
                return Look()  # one of the two was written just after the leader was asked for its memory
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

    def _ask(self, part: _Part, count: int = 1) -> Ask:
        self._asked = part
        if part is not _Part.RIVAL:
            self._reach += count
        self._sent.add(part)
        return Ask(count, *self._pair(part))

    def _take(self) -> tuple[_Part, Ask]:
        assert isinstance(self.step, Ask), f"nothing was asked: {self!r}"
        assert self._asked is not None
        asked, self._asked = self._asked, None
        return asked, self.step

    def _adopt(self, producer_epoch: int, coordinator_epoch: int) -> None:
        """Go on from the pair that the leader took last: it fenced everything else that was on its way."""
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
