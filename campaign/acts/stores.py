"""Faults of the stores in which tiered topics keep their older segments; each ends after a while."""

from __future__ import annotations

from campaign.acts.scene import Note, Scene, Undo
from campaign.world import Act, Fault

#: Brokers wait half a second for a read, so most of these are answered without a record and without an error.
_READ_MS = (300, 700, 1500, 5000)
#: Less than most segments have: one read uses up the quota of several seconds.
_BYTES_PER_SECOND = (1_000, 10_000, 50_000)


def slow_store(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: what a fetch does not bring is not known to be missing, and is fetched again."""
    side = scene.side(fault, note)
    note["milliseconds"] = _READ_MS[fault.draw % len(_READ_MS)]
    side.cluster.store.slow(note["milliseconds"])
    return side.cluster.store.well


def failing_store(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a fetch that is answered with an error is sent again."""
    side = scene.side(fault, note)
    side.cluster.store.fail()
    return side.cluster.store.well


def store_away(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: the same, and what the store does not take stays with the brokers."""
    side = scene.side(fault, note)
    side.cluster.store.away()
    return side.cluster.store.well


def remote_quota(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a broker answers without a record while the quota is used up, and with records later."""
    side = scene.side(fault, note)
    note["bytes"] = _BYTES_PER_SECOND[fault.draw % len(_BYTES_PER_SECOND)]
    side.limit_store_reads(note["bytes"])
    return lambda: side.limit_store_reads(None)


ACTS = {
    Act.SLOW_STORE: slow_store,
    Act.FAILING_STORE: failing_store,
    Act.STORE_AWAY: store_away,
    Act.REMOTE_QUOTA: remote_quota,
}
