"""Faults of links between kmirror and brokers. The log shows the outcome of an append without an answer."""

from __future__ import annotations

from campaign.acts.scene import Note, Scene, Undo
from campaign.clusters import Links, Side
from campaign.proxy import BACK, THERE, Trouble
from campaign.world import Act, Fault


def _spoil(
    scene: Scene, fault: Fault, note: Note, trouble: Trouble, amount: float, ways: tuple[str, ...] = (THERE, BACK)
) -> Undo:
    """Disturb the link to one broker, or to all brokers of a cluster."""
    links, fronts = _links(scene.side(fault, note), fault, note)
    note["amount"] = amount
    note["connections"] = sum([links.change(port, trouble, amount, ways) for port in fronts])

    def undo() -> None:
        for port in fronts:
            links.change(port, trouble, 0, ways)

    return undo


def _links(side: Side, fault: Fault, note: Note) -> tuple[Links, list[int]]:
    """Draw the link to one broker, or to all brokers of a cluster: return the proxy and the ports."""
    assert side.links is not None
    fronts = list(side.fronts.values())
    if fault.draw >> 10 & 1:
        fronts = [fronts[fault.draw % len(fronts)]]
    note["links"] = len(fronts)
    return side.links, fronts


def cut_link(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: connections are opened again, and what was in flight is looked up in the log."""
    return _spoil(scene, fault, note, Trouble.CUT, 1)


def hole(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: requests time out; what arrives late has a sequence number that fits or is refused."""
    return _spoil(scene, fault, note, Trouble.HOLE, 1)


def hole_one_way(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: an append that is done but never answered is found in the log."""
    way = (THERE, BACK)[fault.draw >> 11 & 1]
    note["way"] = way
    return _spoil(scene, fault, note, Trouble.HOLE, 1, (way,))


def delay(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a slow answer is an answer."""
    return _spoil(scene, fault, note, Trouble.DELAY, (0.02, 0.2, 1.0, 3.0)[fault.draw % 4])


def throttle(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: what takes longer than a time-out is requested again, over a new connection."""
    return _spoil(scene, fault, note, Trouble.THROTTLE, (2_000, 20_000, 200_000)[fault.draw % 3])


def cut_in_frame(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a partial frame is no frame."""
    return _spoil(scene, fault, note, Trouble.CUT_AFTER, 1 + fault.draw * 37 % (100, 5_000, 300_000)[fault.draw % 3])


def wrong_cluster(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a broker is used once it has said whose it is, and what leads to another cluster is tried again.

    Brokers of a decoy answer at the addresses of a cluster, or the destination's at those of the source.
    """
    side = scene.side(fault, note)
    links, fronts = _links(side, fault, note)
    is_crossed = side is scene.source and fault.draw >> 12 & 1
    other = scene.destination if is_crossed else scene.decoy
    assert other is not None
    note["answers"] = other.name
    port = other.behind[fault.draw % len(other.behind)]
    note["connections"] = sum([links.change(front, Trouble.ELSEWHERE, port) for front in fronts])

    def undo() -> None:
        note["led there"] = sum([links.change(front, Trouble.ELSEWHERE, 0) for front in fronts])
        if not note["led there"]:
            note["nothing"] = "no one has connected meanwhile"

    return undo


ACTS = {
    Act.CUT_LINK: cut_link,
    Act.HOLE: hole,
    Act.HOLE_ONE_WAY: hole_one_way,
    Act.DELAY: delay,
    Act.THROTTLE: throttle,
    Act.CUT_IN_FRAME: cut_in_frame,
    Act.WRONG_CLUSTER: wrong_cluster,
}
