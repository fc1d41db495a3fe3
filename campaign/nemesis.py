"""Inject a world's faults, each at its moment and in a thread, and undo each."""

from __future__ import annotations

import threading
import time

from campaign.acts import brokers, network, processes, rights, stores, topics, verbs
from campaign.acts.scene import Note, Scene
from campaign.world import Fault

ACTS = {
    **processes.ACTS,
    **brokers.ACTS,
    **network.ACTS,
    **topics.ACTS,
    **stores.ACTS,
    **rights.ACTS,
    **verbs.ACTS,
}


class Nemesis:
    """Injects the faults of a world; `done` records them, in the order of their moments."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._stop = threading.Event()
        self.done: list[Note] = []

    def run(self) -> None:
        """Inject all faults, undo them, heal what is still broken, and do what is scheduled for afterwards."""
        began = time.monotonic()
        threads = [threading.Thread(target=self._carry_out, args=(one, began)) for one in self._scene.world.faults]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:  # ending the campaign waits until everything is undone
            self._stop.set()
            for thread in threads:
                thread.join()
        for side in self._scene.sides():
            side.heal()
        for engine in self._scene.engines():
            engine.ensure()
        for act in self._scene.afterwards + self._scene.stops:
            act()

    def _carry_out(self, fault: Fault, began: float) -> None:
        if self._stop.wait(max(0.0, began + fault.at - time.monotonic())):
            return
        note: Note = {"at": fault.at, "act": fault.act, "seconds": fault.seconds}
        self.done.append(note)
        try:
            undo = ACTS[fault.act](self._scene, fault, note)
        except Exception as error:  # its victim may be gone, by another fault
            note["error"] = repr(error)
            return
        if undo is None:
            return
        self._stop.wait(fault.seconds)
        try:
            undo()
        except Exception as error:
            note["undo"] = repr(error)
