"""Run one world: create topics and mirrors, load them, inject faults, wait for calm, have it judged, end it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic, ResourceType

from campaign.acts.scene import Ends, Note, Scene
from campaign.clusters import DECOY, Side
from campaign.decoy import Decoy
from campaign.doors import Doors
from campaign.engine import Engine, Load, Typed, unexpected_failures
from campaign.finale import TOO_SLOW_MS, Finale
from campaign.logins import admin, change_settings, settings_of
from campaign.nemesis import Nemesis
from campaign.overseer import Overseer
from campaign.world import DESERVED, Act, Condition, Ending, Kind, World
from tests.support.new_topics import create_and_wait

#: A finding of the campaign, not of the product; its clusters are not used again.
NOT_RUN = "the world could not be run"
_CAUGHT_UP_S = 180.0
#: How much longer if a cluster is far away: each transaction takes two round trips to where it is copied.
_FAR_S = 300.0
_LANES_S = 30.0
#: One world of this many has its first faults while its engine starts.
_AT_ONCE = 4
#: Segments are closed soon, and those of tiered topics are only in the store some seconds later.
_MANY_SEGMENTS = {"segment.ms": "2000"}
_TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
_TO_THE_STORE_S = 9.0
_OFTEN = {"refresh.interval.seconds": "1", "sync.group.offsets.interval.seconds": "1"}
#: Such a topic is no longer compared with its source.
_LEFT_ALONE = frozenset({Act.FOREIGN_WRITE, Act.DELETE_TOPIC})
#: The source may have lost what it acknowledged to such a topic.
_LOSSY = frozenset({Act.UNCLEAN_ELECTION, Act.RECREATE_TOPIC})
#: What an operator consents to.
_CONSENTS = {
    "SOURCE_DIVERGED": "--accept-divergence",
    "SOURCE_TOPIC_RECREATED": "--accept-reset",
    "PARTITIONS_DECREASED": "--accept-reset",
    "SOURCE_TRUNCATED": "--accept-loss",
}

Violations = list[dict[str, Any]]


def run_world(world: World, base: Path, sides: Sequence[Side], most_faults: int) -> dict[str, Any]:
    """Run a world; return what was done and found. Its folder is kept if something was found."""
    earlier = len(list(base.glob(f"world-{world.seed}*")))
    folder = base / (f"world-{world.seed}-{earlier + 1}" if earlier else f"world-{world.seed}")
    folder.mkdir()
    stored = {"seed": world.seed, "seconds": world.seconds, "most_faults": most_faults}
    (folder / "world.json").write_text(json.dumps({**asdict(world), **stored}, indent=1), encoding="utf-8")
    tiered = [side for side in sides if side.is_tiered]
    for side in tiered:
        side.cluster.store.record_operations()
    run = _WorldRun(world, folder, sides)
    began = time.monotonic()
    found: Violations = []
    try:
        with run:
            found = run.violations()
    except Exception as error:  # also a broker that does not come back at the end
        found = [*found, {"what": NOT_RUN, "error": repr(error), "notes": getattr(error, "__notes__", [])}]
    found += [{"what": "an unexpected failure", "error": where} for where in unexpected_failures(folder)]
    result = {
        "seed": world.seed,
        "ending": world.ending,
        "mirrors": len(world.mirrors),
        "topics": [topic.kind for topic in world.topics],
        "clocks": [world.engine_host.clock_s, world.operator_host.clock_s],
        "faults": [*run.conditions, *run.nemesis.done],
        "seconds": round(time.monotonic() - began, 1),
        "phases": run.phases,
        "restarted": run.restarted,
        "storeReads": {side.name: len(side.cluster.store.operations("READ")) for side in tiered},
        "inCharge": dict(run.doors.seen),
        "violations": found,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    if found:
        for side in sides:
            for broker in side.cluster.brokers:
                shutil.copy(broker.log_file, folder / f"{side.name}-{broker.node_id}.log")
    else:
        shutil.rmtree(folder)
    return result


class _WorldRun:
    def __init__(self, world: World, folder: Path, sides: Sequence[Side]) -> None:
        self._world, self._folder = world, folder
        by_name = {side.name: side for side in sides}
        source, destination, third = by_name["source"], by_name["destination"], by_name.get("third")
        login = destination.write_client_properties(folder / "destination.properties", world.client)
        engine = Engine(world.mirrors, login, folder, world)
        behind = None
        if third:
            login = third.write_client_properties(folder / "third.properties", world.client)
            behind = Engine([f"behind{world.seed}"], login, folder, world)
        both, file = (source, destination), "link.properties"
        links = [side.write_client_properties(folder / f"{side.name}-{file}", world.client) for side in both]
        self.doors = Doors(world.mirrors, both, links)
        decoy = by_name.get(DECOY)
        self._scene = Scene(world, source, destination, engine, behind, third, decoy)
        self._decoy = Decoy(world, decoy.direct) if decoy else None
        #: What held for the whole world.
        self.conditions: list[Note] = []
        self.nemesis = Nemesis(self._scene)
        self._overseer = Overseer(self._scene)
        self._load = Load(folder)
        self._acks, self._no_acks = folder / "acks", folder / "no-acks"
        self._finale = Finale(self._scene, self._overseer, self._load, folder, self._judge, self._wait_caught_up)
        self._agreed: set[tuple[str, str]] = set()
        #: Mirrors whose engine an operator had to start again after a stop.
        self._restarted: list[Engine] = []
        #: The seconds of each phase.
        self.phases: dict[str, float] = {}
        self._phase_began = time.monotonic()

    @property
    def restarted(self) -> list[str]:
        """Return the mirrors whose engine an operator had to start again after a stop."""
        return [engine.name for engine in self._restarted]

    def _phase(self, name: str) -> None:
        self.phases[name] = round(time.monotonic() - self._phase_began, 1)
        self._phase_began = time.monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        """End what runs, and delete the mirrors' topics."""
        self._overseer.stop()
        self.doors.stop()
        self._load.end()
        for engine in self._scene.engines():
            engine.kill()
        for side in self._scene.sides():
            side.move_away(0)
            side.heal()
        for engine in self._scene.engines():
            typed = [engine.type("remove", "--topics", ".*", "--yes", mirror=mirror) for mirror in engine.mirrors]
            for one in typed:
                one.end()

    def violations(self) -> Violations:
        """Run it; return the violations."""
        self._create()
        for engine in self._scene.engines():
            engine.start()
        if self._world.seed % _AT_ONCE:
            self._wait_for_lanes()
        self._overseer.put_to_sleep()
        self._phase("created")
        if self._world.slow_start_s:
            time.sleep(self._world.slow_start_s)
            self._scene.source.cluster.store.well()
        self._overseer.start()
        self.doors.start()
        self.nemesis.run()
        self._phase("faults")
        self._load.end()
        for engine in self._scene.engines():
            engine.ensure()
        scene = self._scene
        found = scene.found or self._wait_caught_up(scene.engine, self._copied(lossy=True))
        self._overseer.stop()
        found = found + self._overseer.judge_reports()
        self._phase("caught up")
        found = found or self._judge(self._copied(lossy=False), {})
        lossy = sorted(set(self._copied(lossy=True)) - set(self._copied(lossy=False)))
        found = found or self._judge(lossy, {}, acks=self._no_acks)
        found = found or self._judge([name for name in scene.ends if not self._marks(name)], scene.ends)
        whole = [name for name in self._copied(lossy=False) if not self._marks(name) and name not in scene.halted]
        found = found or self._overseer.judge_groups(whole, quiet=True)
        if not found:
            note, found = self._overseer.judge_forgotten(whole)
            self.conditions += [note] if note else []
        self._phase("judged")
        found = found or self._judge_chain()
        for mirror in self._world.mirrors:
            names = [name for name in self._copied(lossy=False) if name in self._world.names(mirror)]
            if names and not found:
                found = self._finale.play(mirror, names)
        if self._decoy is not None and (changed := self._decoy.differences()):
            found = [*found, {"what": "another cluster was written to", "error": str(changed)}]
        self._phase("ended")
        return [*found, *self.doors.violations]

    def _create(self) -> None:
        scene, world = self._scene, self._world
        brokers = len(scene.source.fronts)
        new = []
        for topic in world.topics:
            config = {"segment.bytes": "1048576", "max.message.bytes": "2000000"}
            if topic.kind is Kind.COMPACTED:
                config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3000"}
            if topic.kind is Kind.TRIMMED:
                config |= {"retention.bytes": "1048576"}
            if topic.tiered or topic.mirror_tiered:
                config |= _MANY_SEGMENTS
            if topic.tiered:
                config |= _TIERED
            new.append(NewTopic(topic.name, topic.partitions, world.ground.replicas(brokers), config=config))
        create_and_wait(admin(scene.source.direct), *new)
        self._acks.touch()
        self._no_acks.touch()
        self._load.begin(scene.source.direct, self._acks)
        if any(topic.tiered for topic in world.topics):
            time.sleep(_TO_THE_STORE_S)
        if world.slow_start_s:
            scene.source.cluster.store.slow(TOO_SLOW_MS)
        if self._decoy is not None:
            self._decoy.fill()
        if world.round_trip_s:
            far = scene.destination if world.is_destination_far else scene.source
            far.move_away(world.round_trip_s)
            took = far.round_trip_s()
            note = {"act": Condition.DISTANCE, "side": far.name, "seconds": round(took, 3)}
            self._hold(note, is_so=took >= world.round_trip_s)
        properties = scene.source.write_client_properties(self._folder / "source.properties", world.client)
        self._mirror(scene.engine, properties, {mirror: world.names(mirror) for mirror in world.mirrors})
        for topic in world.topics:
            if topic.mirror_tiered:
                change_settings(scene.destination.direct, ResourceType.TOPIC, topic.name, _TIERED)
        if scene.destination.has_policy:
            kept = settings_of(scene.destination.direct, [topic.name for topic in world.topics])
            # without a policy kmirror has the destination keep everything
            is_so = all(int(own["retention.ms"]) >= 0 for own in kept.values())
            self._hold({"act": Condition.TOPIC_POLICY}, is_so=is_so)
        if scene.behind is not None:
            properties = scene.destination.write_client_properties(
                self._folder / "source-behind.properties", self._world.client
            )
            self._mirror(scene.behind, properties, {scene.behind.name: [topic.name for topic in world.topics]})

    def _hold(self, note: Note, *, is_so: bool) -> None:
        """Record a condition; `is_so`: it has its effect."""
        self.conditions.append(note if is_so else {**note, "nothing": "it had no effect"})

    def _mirror(self, engine: Engine, properties: Path, mirrors: Mapping[str, Sequence[str]]) -> None:
        """Create mirrors in parallel, and add their topics."""
        settings = {**_OFTEN, **self._world.settings}
        words = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
        created = [engine.type("create", "--mirror-config", str(properties), *words, mirror=one) for one in mirrors]
        self._expect(created)
        self._expect([engine.type("add", "--topics", ",".join(names), mirror=one) for one, names in mirrors.items()])

    @staticmethod
    def _expect(typed: Sequence[Typed]) -> None:
        for code, output in [one.end() for one in typed]:
            if code:
                raise RuntimeError(f"a verb ended with {code}: {output}")

    def _wait_for_lanes(self) -> None:
        """Wait until something is copied, so that faults do not hit an engine that is still starting."""
        deadline = time.monotonic() + _LANES_S
        while not all(engine.lanes() for engine in self._scene.engines()) and time.monotonic() < deadline:
            time.sleep(0.2)

    def _marks(self, name: str) -> set[Act]:
        return self._scene.marks.get(name, set())

    def _copied(self, *, lossy: bool) -> list[str]:
        """Return the topics that are copied to the end; on request also those that lost records at their source."""
        without = _LEFT_ALONE if lossy else _LEFT_ALONE | _LOSSY
        names = [topic.name for topic in self._world.topics]
        return [name for name in names if name not in self._scene.ends and not self._marks(name) & without]

    def _wait_caught_up(self, engine: Engine, names: Sequence[str]) -> Violations:
        """Wait until everything is copied; return false statements of `describe`."""
        deadline = time.monotonic() + _CAUGHT_UP_S + (_FAR_S if self._world.round_trip_s else 0.0)
        while True:
            rows = self._describe(engine)
            if self._scene.halted and engine not in self._restarted and not engine.drivers():
                # a stop of some topics takes the lease of a starting engine: its supervisor restarts it
                engine.start()
                self._restarted.append(engine)
            failed = [row for row in rows if row["state"] == "FAILED"]
            undeserved = [row for row in failed if not self._is_deserved(row)]
            if undeserved:
                return [{"what": "FAILED without a cause", "rows": undeserved}]
            for row in failed:
                self._agree(engine, row)
            waiting = [
                row for row in rows if row["topic"] in names and (row["state"] != "MIRRORING" or row["lag"] != 0)
            ]
            known = Counter(row["topic"] for row in rows)
            lacking = [name for name in names if known[name] < self._scene.partitions[name]]
            if not waiting and not lacking:
                return []
            if time.monotonic() > deadline:
                return [{"what": "not caught up", "rows": waiting, "partitions lacking": lacking}]
            time.sleep(0.3)

    @staticmethod
    def _describe(engine: Engine) -> list[dict[str, Any]]:
        code, output = engine.verb("describe", "--json")
        rows = json.loads(output) if code in {0, 4} and output.strip() else []
        return [row for row in rows if row["mirror"] in engine.mirrors]

    def _is_deserved(self, row: dict[str, Any]) -> bool:
        if row["reason"] == "SOURCE_TRUNCATED":
            start, end = row["sourceLogStart"], row["destinationOffset"]
            return start is not None and end is not None and start > end
        return any(row["reason"] in DESERVED.get(mark, ()) for mark in self._marks(row["topic"]))

    def _agree(self, engine: Engine, row: dict[str, Any]) -> None:
        consent, what = _CONSENTS.get(row["reason"]), (row["topic"], row["reason"])
        if consent is not None and what not in self._agreed and not self._marks(row["topic"]) & _LEFT_ALONE:
            code, _ = engine.verb("recover", "--topics", row["topic"], consent, "--yes", mirror=row["mirror"])
            if code == 0:
                self._agreed.add(what)

    def _judge(
        self,
        names: Sequence[str],
        ends: Ends,
        acks: Path | None = None,
        between: tuple[Side, Side] | None = None,
    ) -> Violations:
        if not names:
            return []
        kinds = {topic.name: topic.kind for topic in self._world.topics}
        tiered = {topic.name for topic in self._world.topics if topic.tiered or topic.mirror_tiered}
        if between is None:
            self._scene.delete_again()
        source, destination = between or (self._scene.source, self._scene.destination)
        question = {
            "source": source.direct,
            "destination": destination.direct,
            "acks": str(acks or self._acks),
            # after a switchover the first source holds the copy, a log that applications wrote
            "wasASource": destination is self._scene.source and self._world.ending is Ending.SWITCHOVER,
            "topics": [
                {
                    "topic": name,
                    "partitions": len(ends.get(name, ())) or self._scene.partitions[name],
                    "compacted": kinds[name] is Kind.COMPACTED,
                    "tiered": name in tiered,
                    "ends": {partition: end for partition, (end, _) in ends.get(name, {}).items()},
                    "lost": {partition: lost for partition, (_, lost) in ends.get(name, {}).items()},
                }
                for name in names
            ],
        }
        path = self._folder / "question.json"
        path.write_text(json.dumps(question), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "campaign.oracle", str(path)], capture_output=True, text=True, check=False
        )
        if not done.stdout.strip():
            return [{"what": "the oracle could not judge", "error": done.stderr[-2000:]}]
        found: Violations = json.loads(done.stdout)
        return found

    def _judge_chain(self) -> Violations:
        scene = self._scene
        if scene.behind is None or scene.third is None:
            return []
        names = [topic.name for topic in self._world.topics if not self._marks(topic.name)]
        names = [name for name in names if name not in scene.halted]  # partitions that its source does not have
        found = self._wait_caught_up(scene.behind, names)
        return found or self._judge(names, {}, self._no_acks, (scene.destination, scene.third))
