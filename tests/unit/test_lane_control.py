"""Until when a lane may write, by the claims that it reads: records in, a deadline out. No sockets, our own clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.reports import control
from kmirror.engine.lane.reports.control import LaneControl
from kmirror.engine.lane.reports.row_reports import RowChanges
from kmirror.engine.lane.reports.state_log import StateLog
from kmirror.engine.spec import LaneSpec
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.record_kinds import encode
from kmirror.state.records import EngineRecord, EngineState, Incarnation, ProgressRecord

TTL_MS = 5_000
SPEC = LaneSpec("m", 3, 7, "ours", {}, {}, (), TTL_MS, False, 1_000)
OWNER = EngineRecord(
    "m", "ours", EngineState.RUNNING, "h", "b", 1, 1, None, None, 0, 0, TTL_MS, lanes={3: Incarnation(7, 0)}
)


class Claims:
    """A lane's control that is given what it reads; each poll takes `took` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.took = 100.0, 0.0
        monkeypatch.setattr(control, "now", lambda: self.now)
        self.lane = LaneControl(
            SPEC,
            0,
            StateLog(client_config({"bootstrap.servers": "a:1"})),
            lambda: RowChanges({}, frozenset()),
            lambda _: None,
        )

    def meets(self, *records: EngineRecord | LaneChangeRecord | ProgressRecord) -> str | None:
        """Read these; return how the lane has ended, None while it continues."""
        asked_at = self.now
        self.now += self.took
        read = [Record(0, 0, *encode(record)) for record in records]
        self.lane.take_claims([one for one in read if one.key in self.lane.keys], asked_at, reached_end=True)
        return self.lane.ended[0] if self.lane.ended else None

    @property
    def seconds_left(self) -> float:
        return self.lane.deadline - self.now


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    return Claims(monkeypatch)


def test_a_lane_may_write_from_when_it_asked_and_not_from_when_it_was_answered(claims: Claims) -> None:
    assert claims.seconds_left < 0
    claims.took = 2.0
    assert claims.meets(OWNER) is None
    assert claims.seconds_left == 3.0
    assert claims.meets() is None
    assert claims.seconds_left == 3.0


@pytest.mark.parametrize(
    ("claim", "ended"),
    [
        (replace(OWNER, lease_id="theirs"), "FENCED"),
        (replace(OWNER, state=EngineState.STOPPING), "STOPPED"),
        (replace(OWNER, lanes={}), "STOPPED"),
        (replace(OWNER, lanes={3: Incarnation(8, 0)}), "SUPERSEDED"),
        (replace(OWNER, lanes={3: Incarnation(7, 1)}), "SUPERSEDED"),
        (ProgressRecord("m", 3, "ours", 7, 1, "h", 1, 0, ()), "SUPERSEDED"),
        (ProgressRecord("m", 4, "ours", 9, 9, "h", 1, 0, ()), None),
    ],
)
def test_a_newer_claim_ends_a_lane_at_once(
    claims: Claims, claim: EngineRecord | ProgressRecord, ended: str | None
) -> None:
    claims.meets(OWNER)
    assert claims.meets(claim) == ended
    assert (claims.seconds_left > 0) == (ended is None)


def test_a_lane_that_misses_a_change_does_not_write_and_ends_when_that_lasts(claims: Claims) -> None:
    first, second = (LaneChangeRecord("m", 3, "ours", 7, number, (), (), False) for number in (1, 2))
    assert claims.meets(replace(OWNER, revisions={3: 1}), first) is None
    assert claims.seconds_left == TTL_MS / 1000
    before = claims.lane.deadline
    claims.now += 1
    assert claims.meets(replace(OWNER, revisions={3: 2})) is None
    assert claims.lane.deadline == before
    assert claims.meets(second) is None
    assert claims.seconds_left == TTL_MS / 1000
    claims.meets(replace(OWNER, revisions={3: 4}))
    claims.now += 3.1
    assert claims.meets() == "OUTDATED"
    assert claims.seconds_left < 0
