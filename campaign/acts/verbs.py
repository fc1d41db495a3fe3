"""Operators type verbs: at any moment, two at once, killed before their end, and then once more."""

from __future__ import annotations

import json
import time

from campaign.acts.scene import Note, Scene, Undo
from campaign.world import Act, Fault

#: For a promote: not ready, or a producer was still writing.
_NOT_READY = frozenset({4, 5})


def _mirror(scene: Scene, fault: Fault, note: Note) -> str:
    mirrors = scene.world.mirrors
    mirror = note["mirror"] = mirrors[(fault.draw >> 7) % len(mirrors)]
    return mirror


def pause(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: nothing is copied until it is resumed."""
    mirror = _mirror(scene, fault, note)
    note["code"] = scene.engine.verb("pause", "--topics", ".*", mirror=mirror)[0]
    scene.afterwards.append(lambda: _resume(scene, mirror))
    return lambda: note.update(resumed=scene.engine.verb("resume", "--topics", ".*", mirror=mirror)[0])


def _resume(scene: Scene, mirror: str) -> None:
    scene.until_calm("resume", "--topics", ".*", mirror=mirror)


def look(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: reading changes nothing."""
    verb = note["verb"] = ("describe", "list", "events", "describe --groups", "check")[fault.draw % 5]
    mirror = None if verb == "list" else _mirror(scene, fault, note)
    note["code"] = scene.engine.verb(*verb.split(), "--json", mirror=mirror)[0]


def verify(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: it compares what both have."""
    note["code"] = scene.engine.verb("verify", "--json", mirror=_mirror(scene, fault, note))[0]


def _any_verb(scene: Scene, draw: int, mirror: str) -> tuple[str, ...]:
    """Draw a verb that leaves a mirror unchanged when it is typed again at the end."""
    topics = ",".join(scene.world.names(mirror))
    return (
        ("add", "--topics", topics, "--adopt", "--allow-missing"),
        ("config", "--set", f"retry.timeout.ms={300_000 + draw}"),
        ("resume", "--topics", ".*"),
        ("describe", "--json"),
        ("recover",),
        ("pause", "--topics", topics.split(",")[0]),
    )[draw % 6]


def two_verbs(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: verbs write under a lock, and each finds what the other has recorded."""
    mirror = _mirror(scene, fault, note)
    verbs = [_any_verb(scene, fault.draw, mirror), _any_verb(scene, fault.draw // 6, mirror)]
    note["verbs"] = [verb[0] for verb in verbs]
    typed = [scene.engine.type(*verb, mirror=mirror) for verb in verbs]

    def undo() -> None:
        note["codes"] = [one.end() for one in typed]

    scene.afterwards.append(lambda: _resume(scene, mirror))
    return undo


def kill_verb(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: a verb that is typed again finishes the rest."""
    mirror = _mirror(scene, fault, note)
    verb = _any_verb(scene, fault.draw, mirror)
    _kill(scene, fault, note, verb, mirror)
    scene.afterwards += [lambda: note.update(again=_again(scene, verb, mirror)), lambda: _resume(scene, mirror)]


def _again(scene: Scene, verb: tuple[str, ...], mirror: str) -> bool:
    return scene.until_calm(*verb, mirror=mirror) is not None


def _kill(scene: Scene, fault: Fault, note: Note, verb: tuple[str, ...], mirror: str) -> None:
    """Type a verb and kill it: at once, half-way, or when it may have ended."""
    note["verb"], note["after"] = verb[0], (fault.draw >> 5) % 40 / 10
    typed = scene.engine.type(*verb, mirror=mirror)
    time.sleep(note["after"])
    note["killed"] = typed.kill()


def kill_stop(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: a stop is a table of recorded steps; a topic stays mirrored, or ends where reported.

    A topic is failed over, promoted, or removed and added again; the verb is killed and typed once more.
    """
    mirror = _mirror(scene, fault, note)
    names = scene.world.names(mirror)
    topic = note["topic"] = names[fault.draw % len(names)]
    if topic in scene.ends:
        note["nothing"] = "it is stopped"
        return
    scene.halted.add(topic)
    verb = ("failover", "promote", "remove")[fault.draw % 3]
    patience = ("--timeout", "5s", "--idle", "1s") if verb == "promote" else ()
    words: tuple[str, ...] = (verb, "--topics", topic, "--yes", "--json", *patience)
    _kill(scene, fault, note, words, mirror)
    scene.stops.append(lambda: _settle(scene, note, words, mirror, topic))


def _settle(scene: Scene, note: Note, words: tuple[str, ...], mirror: str, topic: str) -> None:
    """Type a stop once more. Its reported end is believed, unless the topic is added again."""
    done = scene.until_calm(*words, mirror=mirror, also=_NOT_READY if words[0] == "promote" else frozenset())
    if done is None:
        return
    if scene.marks.get(topic):
        if done[0] == 0:
            scene.ends.setdefault(topic, {})  # stopped: it is not copied further, and its end says nothing
        return
    if words[0] == "remove":
        # refused if a fence has used up an offset
        added = scene.until_calm("add", "--topics", topic, "--adopt", mirror=mirror)
        note["added again"] = added and added[0]
        if added is None or added[0] == 0:
            scene.ends.pop(topic, None)  # it is copied on, also if another verb had stopped it before
            return
    note["stopped"] = _stopped(done[1])
    if note["stopped"]:
        scene.store_ends(done[1])


def _stopped(output: str) -> bool:
    return any(row["lastMirroredOffset"] is not None for row in json.loads(output)["results"])


ACTS = {
    Act.PAUSE: pause,
    Act.LOOK: look,
    Act.VERIFY: verify,
    Act.TWO_VERBS: two_verbs,
    Act.KILL_VERB: kill_verb,
    Act.KILL_STOP: kill_stop,
}
