"""Faults of kmirror's own processes. The destination's log end is the position, where the next process continues."""

from __future__ import annotations

import contextlib
import os
import signal

from campaign.acts.scene import Note, Scene, Undo
from campaign.engine import Engine
from campaign.world import Act, Fault


def _engine(scene: Scene, fault: Fault, note: Note) -> Engine:
    engines = scene.engines()
    engine = engines[(fault.draw >> 9) % len(engines)]
    note["engine"] = engine.name
    return engine


def kill_engine(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: the engine stores nothing that only it knows."""
    engine = _engine(scene, fault, note)
    engine.kill()
    return engine.start


def kill_driver(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: lanes without a driver lose their right to write, and the next driver fences them."""
    engine = _engine(scene, fault, note)
    engine.kill_driver()
    return engine.start


def _frozen(pids: list[int], fault: Fault, note: Note) -> Undo | None:
    if not pids:
        note["nothing"] = "no such process"
        return None
    pid = note["pid"] = pids[fault.draw % len(pids)]
    os.kill(pid, signal.SIGSTOP)

    def undo() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return undo


def freeze_driver(scene: Scene, fault: Fault, note: Note) -> Undo | None:
    """Survived: its lease expires, and when it wakes up it may not write."""
    return _frozen(_engine(scene, fault, note).drivers(), fault, note)


def freeze_jvm(scene: Scene, fault: Fault, note: Note) -> Undo | None:
    """Survived: Spark only starts lanes."""
    return _frozen(_engine(scene, fault, note).jvms(), fault, note)


def freeze_lane(scene: Scene, fault: Fault, note: Note) -> Undo | None:
    """Survived: a lane that is overruled while it sleeps may not write afterwards."""
    return _frozen(_engine(scene, fault, note).lanes(), fault, note)


def kill_lane(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: the next lane continues at the log end."""
    lanes = _engine(scene, fault, note).lanes()
    if not lanes:
        note["nothing"] = "no such process"
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(lanes[fault.draw % len(lanes)], signal.SIGKILL)


def second_engine(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: it is refused while the lease is fresh, and otherwise becomes the engine."""
    return _engine(scene, fault, note).start_second()


ACTS = {
    Act.KILL_ENGINE: kill_engine,
    Act.KILL_DRIVER: kill_driver,
    Act.FREEZE_DRIVER: freeze_driver,
    Act.KILL_LANE: kill_lane,
    Act.FREEZE_LANE: freeze_lane,
    Act.FREEZE_JVM: freeze_jvm,
    Act.SECOND_ENGINE: second_engine,
}
