"""What `serve` knows of a cluster by reading its state again and again, also while a transaction hides some of it."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from kmirror.engine.clock import now
from kmirror.errors import Reason
from kmirror.state.internal_topics import unfinished
from kmirror.state.records import EngineRecord, EngineState, MirrorRecord
from kmirror.state.snapshot import State
from kmirror.web import watched_cluster
from kmirror.web.offset_looks import OffsetLooks
from kmirror.web.watched_cluster import WatchedCluster


class HidingStore:
    """A destination whose state cannot be read as a whole: that gives up after five seconds, which it adds up."""

    wants_reports = False
    cluster_id, bootstrap_server, properties = "c", "b:1", MappingProxyType({"bootstrap.servers": "b:1"})

    def __init__(self) -> None:
        self.store, self.is_hiding, self.waited = self, True, 0.0

    def read_certain(self, _: object) -> State:
        """Wait in vain while something is hidden."""
        if self.is_hiding:
            self.waited += 5.0
            raise unfinished(7, 5.0)
        return State()

    def read(self, _: float) -> State:
        """Return what is not hidden."""
        self.waited += 0.5
        return State()


def test_a_cluster_with_an_open_transaction_is_read_and_says_since_when_something_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read counted as begun five seconds earlier: until the next one it was too old, and all metrics were gone."""
    store = HidingStore()
    monkeypatch.setattr(watched_cluster, "now", lambda: now() + store.waited)
    monkeypatch.setattr(watched_cluster, "now_ms", lambda: int(store.waited * 1000))
    monkeypatch.setattr(WatchedCluster, "_open", lambda _: store)
    monkeypatch.setattr(OffsetLooks, "ask", lambda *_: None)
    watched = WatchedCluster("b", lambda: store.properties)
    for _ in range(3):
        watched._turn()
        store.waited += 6.0  # until the next one has read
        found = watched.status
        assert (found.is_fresh, found.missing) == (True, None)
        assert (found.as_of_ms, found.error_since_ms) == (0, 0)
        assert str(found.error).startswith("__kmirror_state has an unfinished transaction at offset 7, and it did not")
        assert "; try again: brokers abort a killed process's transaction" in str(found.error)
    store.is_hiding = False
    watched._turn()
    found = watched.status
    assert (found.error, found.error_since_ms, found.as_of_ms) == (None, None, int(store.waited * 1000))


class BeatingStore(HidingStore):
    """A destination whose engine sends a heartbeat before each read, by a clock that is an hour behind."""

    def read_certain(self, _: object) -> State:
        """Return the mirror with the last heartbeat."""
        self.waited += 1.0
        beat_ms = int(self.waited * 1000) - 3_600_000
        engine = EngineRecord("m", "l", EngineState.RUNNING, "h", "b", 1, 1, None, "local", 0, beat_ms, 5_000)
        return State.of([MirrorRecord("m", {}, {}, None, "eve@ops", 0), engine])


def test_an_engine_whose_heartbeats_arrive_is_alive_whatever_its_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    store = BeatingStore()
    monkeypatch.setattr(watched_cluster, "now_ms", lambda: int(store.waited * 1000))
    monkeypatch.setattr(WatchedCluster, "_open", lambda _: store)
    monkeypatch.setattr(OffsetLooks, "ask", lambda *_: None)
    watched, reasons = WatchedCluster("b", lambda: store.properties), []
    for _ in range(3):
        watched._turn()
        (found,) = watched.mirrors(lambda _: True, now())
        assert found.status is not None
        reasons.append(found.status.health.reason)
    assert reasons == [Reason.NO_ENGINE, None, None]
