"""A few hundred generated logs at a time: written to a real broker, copied by a lane that is killed, and judged."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from campaign.copying import Copying
from campaign.histories import SETTINGS, TIERED, History, LogKind, Write
from campaign.installing import install
from campaign.reading import COMMITTED, Place, bounds
from campaign.wire import Marker, Wire
from kmirror_sandbox.cluster import SandboxCluster

_ROUNDS = 25
#: How much of the topics that can be tiered are at the source, and at the destination.
_TIERED_SHARES = (0.8, 0.4)
_STORED_S, _UNCHANGED_S = 90.0, 4.0
_STORE_TROUBLES = (None, "store slow", "store too slow", "store too slow", "store failing")
#: A read of the store takes this long; brokers wait for half a second.
_SLOW_MS, _TOO_SLOW_MS = 300, 1500
_COPIED_S = 120.0
_STATE_TOPIC = "__kmirror_state"
_NOTED_S = 1.5
#: From a restarted broker: it does not know the partition, there is no leader, or it is not the leader.
_NO_LEADER_YET = {3, 5, 6}
_LEADERS_S = 60.0
#: From a restarted broker that forgot old records of a producer but not its last marker.
_OUT_OF_ORDER = 45
#: Why a log may FAIL, by what was done to it.
_DESERVED = {"deleted before it was copied": "SOURCE_TRUNCATED", "old format": "UNSUPPORTED_MESSAGE_FORMAT"}


class Batch:
    """A few hundred logs, written, copied and judged together."""

    def __init__(self, name: str, logs: int, pair: tuple[SandboxCluster, SandboxCluster], folder: Path) -> None:
        self._chance = random.Random(name)
        self._source, self._destination = pair
        self._folder = folder / name.replace("/", "-")
        self._folder.mkdir()
        self._prefix = f"l{name.replace('/', '-')}"
        self._kinds: dict[str, LogKind] = {}
        self._histories: dict[Place, History] = {}
        while (left := logs - len(self._histories)) > 0:
            kind = self._chance.choice(list(LogKind))
            topic = f"{self._prefix}-{len(self._kinds)}-{kind}"
            self._kinds[topic] = kind
            for index in range(min(left, self._chance.choice((10, 30, 60)))):
                self._histories[topic, index] = History(f"{name}/{topic}/{index}", kind)
        counts = Counter(topic for topic, _ in self._histories)
        self._counts = dict(counts)
        # tiers have their own draws: a batch without them is the one that it always was
        self._tiers = random.Random(f"tiers {name}")
        eligible = [topic for topic, kind in self._kinds.items() if kind.can_be_tiered and pair[0].spec.tiered]
        #: The topics whose older segments are in the store, of the source and of the destination.
        self._tiered = tuple({one for one in eligible if self._tiers.random() < share} for share in _TIERED_SHARES)
        follows = {topic for topic in self._kinds if self._chance.random() < 0.5}
        self._follows = follows
        source, destination = self._source.bootstrap_servers, self._destination.bootstrap_servers
        self._admins = _admin(source), _admin(destination)
        self._create()
        self._copying = Copying(self._prefix, source, destination, counts, follows, self._folder / "lane.log")
        self._deleted: set[Place] = set()
        #: What was done, in order.
        self.done: list[str] = []
        #: The moments when stores are well again.
        self._healed: list[threading.Timer] = []

    def run(self) -> dict[str, Any]:
        """Do everything; return the result."""
        began = time.monotonic()
        tiered = [cluster for cluster in (self._source, self._destination) if cluster.spec.tiered]
        for cluster in tiered:
            cluster.store.record_operations()
        try:
            violations = self._run()
            file = self._folder / "seen"
            seen = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            failures = dict(self._copying.failures)
        finally:
            self._copying.close()
            self._delete()
        features = Counter(one for history in self._histories.values() for one in history.features)
        features.update({"records deleted": len(self._deleted)})
        features.update(f"topic {history.kind}" for history in self._histories.values())
        for topics, what in zip(self._tiered, ("topic tiered", "mirror topic tiered"), strict=True):
            features.update({what: sum(self._counts[topic] for topic in topics)})
        features = +features  # without what did not occur
        if not violations:
            shutil.rmtree(self._folder)
        return {
            "logs": len(self._histories),
            "records": sum(records for _, records in seen.values()),
            "hiddenOffsets": sum(offsets - records for offsets, records in seen.values()),
            "cleanedOffsets": sum(o - r for topic, (o, r) in seen.items() if self._kinds[topic].is_compacted),
            "faults": Counter(self.done),
            "features": dict(sorted(features.items())),
            "storeReads": {cluster.name: len(cluster.store.operations("READ")) for cluster in tiered},
            "failed": Counter(reason for reason, _ in failures.values()),
            "seconds": round(time.monotonic() - began, 1),
            "violations": violations,
        }

    # -- topics --------------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        for admin, is_copy, tiered in zip(self._admins, (False, True), self._tiered, strict=True):
            new = []
            for topic, kind in self._kinds.items():
                settings = dict(SETTINGS[kind])
                if is_copy:
                    policy = {key: settings[key] for key in ("cleanup.policy",) if key in settings}
                    settings = {**SETTINGS[LogKind.PLAIN], **policy}
                if topic in tiered:
                    settings |= TIERED
                new.append(NewTopic(topic, self._counts[topic], 1, config=settings))
            if is_copy and _STATE_TOPIC not in admin.list_topics(timeout=30).topics:
                new.append(NewTopic(_STATE_TOPIC, 1, 1, config={"cleanup.policy": "compact"}))
            for made in admin.create_topics(new).values():
                made.result(60)
        for cluster in (self._source, self._destination):
            bounds(cluster.bootstrap_servers, list(self._histories))

    def _delete(self) -> None:
        for admin in self._admins:
            for done in admin.delete_topics(list(self._kinds)).values():
                done.result(60)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self, rounds: int, *, without: LogKind | None = None, last: bool = False) -> None:
        """Write some rounds, with at most one batch to each log per round."""
        live = {place: one for place, one in self._histories.items() if one.kind is not without}
        wire = Wire(self._source.bootstrap_servers)
        try:
            for number in range(rounds):
                steps = {place: step for place, one in live.items() if (step := one.step()) is not None}
                by_transaction: dict[tuple[int, int] | None, dict[Place, Write]] = {}
                for place, step in steps.items():
                    by_transaction.setdefault(step.transaction, {})[place] = step
                for transaction, some in by_transaction.items():
                    self._append(wire, None if transaction is None else f"writer-{transaction[0]}", some)
                self._end_transactions(wire, live, last=last and number == rounds - 1)
        finally:
            wire.close()

    def _append(self, wire: Wire, transactional_id: str | None, steps: Mapping[Place, Write]) -> None:
        left, deadline = dict(steps), time.monotonic() + _LEADERS_S
        while left:
            answers = wire.produce({place: step.batch for place, step in left.items()}, transactional_id)
            for place, (error, base_offset) in answers.items():
                if error == _OUT_OF_ORDER:
                    self._histories[place].forgotten(left.pop(place))
                elif error and (error not in _NO_LEADER_YET or time.monotonic() > deadline):
                    raise RuntimeError(f"{place} does not take a batch: error {error}")
                elif not error:
                    self._histories[place].took(left.pop(place), base_offset)

    @staticmethod
    def _end_transactions(wire: Wire, live: Mapping[Place, History], *, last: bool) -> None:
        ended: dict[tuple[int, int, bool], list[Place]] = {}
        for place, history in live.items():
            for end in history.endings(last=last):
                ended.setdefault(end, []).append(place)
        if ended:
            wire.end_transactions(Marker(*end, tuple(places)) for end, places in ended.items())

    def _switch_times(self) -> None:
        """Have the broker stamp records from now on, in topics that do so half of their time."""
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
                ],
            )
            for topic, kind in self._kinds.items()
            if kind is LogKind.SWITCHED
        ]
        for done in self._admins[0].incremental_alter_configs(resources).values() if resources else ():
            done.result(30)

    def _delete_records(self, share: float, *, before_copying: bool = False) -> None:
        chance = self._chance
        places = [
            place
            for place, history in self._histories.items()
            if history.kind is not LogKind.COMPACTED and chance.random() < share
        ]
        if not places:
            return
        starts, ends = bounds(self._source.bootstrap_servers, places, COMMITTED)
        wanted = [TopicPartition(*place, chance.randint(starts[place], ends[place])) for place in places]
        for one in self._admins[0].delete_records(wanted).values():
            one.result(60)
        if not before_copying:
            self._deleted |= set(places)
        self.done.append("records deleted")

    # -- the run -------------------------------------------------------------------------------------------------------

    def _run(self) -> list[dict[str, Any]]:
        chance = self._chance
        self._write(_ROUNDS, without=LogKind.OLD)
        self._switch_times()
        self._delete_records(0.15, before_copying=True)
        self._wait_stored()
        old = {place: one.old_beginning() for place, one in self._histories.items() if one.kind is LogKind.OLD}
        ends = {place: len(self._histories[place].acknowledged) for place in old}
        install(self._source, old, ends)
        bounds(self._source.bootstrap_servers, list(self._histories))
        self.done.append("source restarted")
        self._trouble_stores()
        self._copying.start(is_first=True)
        if self._healed:  # logs that rest are easily taken for copied
            time.sleep(self._tiers.uniform(0, 15))
        writer = _Thread(self._write_on)
        for _ in range(chance.choice((1, 2, 2, 3))):
            self._trouble_stores()
            self._wait_moving(chance.choice((0.0, 0.2, 1.0, 3.0)) * chance.random())
            self._copying.kill()
            self.done.append("lane killed")
            if chance.random() < 0.25:
                self._destination.kill(1)
                self._destination.start_broker(1)
                self.done.append("destination killed")
            self._copying.start()
        self._trouble_stores()  # of a lane that is not killed
        writer.join()
        for healed in self._healed:
            healed.join()
        if chance.random() < 0.25:
            time.sleep(_NOTED_S)
            self._source.kill(1)
            self._source.start_broker(1)
            self.done.append("source killed")
        found = self._wait_copied()
        code = self._copying.stop()
        if code:
            found.append({"what": f"the lane ended with {code}", "log": str(self._folder / "lane.log")})
        return found + self._undeserved() + self._judge()

    def _write_on(self) -> None:
        self._write(_ROUNDS // 2)
        self._delete_records(0.1)
        self._write(_ROUNDS // 2, last=True)

    def _wait_stored(self) -> None:
        """Wait until no more segments go to the store: what an open transaction holds back stays with the broker."""
        (broker,) = self._source.brokers
        folders = [
            broker.log_dir / f"{topic}-{index}" for topic in self._tiered[0] for index in range(self._counts[topic])
        ]
        deadline, before, since = time.monotonic() + _STORED_S, -1, time.monotonic()
        while folders and time.monotonic() < deadline and time.monotonic() - since < _UNCHANGED_S:
            now = sum(len(list(folder.glob("*.log"))) for folder in folders)
            if now != before:
                before, since = now, time.monotonic()
            time.sleep(0.5)

    def _trouble_stores(self) -> None:
        """Let a store be slow or fail for some seconds."""
        for cluster, tiered in zip((self._source, self._destination), self._tiered, strict=True):
            if not tiered or (what := self._tiers.choice(_STORE_TROUBLES)) is None:
                continue
            if what == "store failing":
                cluster.store.fail()
            else:
                cluster.store.slow(_SLOW_MS if what == "store slow" else _TOO_SLOW_MS)
            self._healed.append(threading.Timer(self._tiers.uniform(2, 15), cluster.store.well))
            self._healed[-1].start()
            self.done.append(f"{cluster.name}: {what}")

    def _wait_moving(self, seconds: float) -> None:
        """Wait until the lane copies, and for the same time again."""
        places = list(self._histories)
        before = bounds(self._destination.bootstrap_servers, places)[1]
        deadline = time.monotonic() + _COPIED_S
        while time.monotonic() < deadline:
            now = bounds(self._destination.bootstrap_servers, places)[1]
            if now != before or now == bounds(self._source.bootstrap_servers, places, COMMITTED)[1]:
                break
            time.sleep(0.05)
        time.sleep(seconds)

    def _wait_copied(self) -> list[dict[str, Any]]:
        places = list(self._histories)
        wanted = bounds(self._source.bootstrap_servers, places, COMMITTED)[1]
        deadline = time.monotonic() + _COPIED_S
        while True:
            ends = bounds(self._destination.bootstrap_servers, places)[1]
            failed = self._copying.failures
            left = [place for place in places if ends[place] != wanted[place] and place not in failed]
            # a killed broker forgets recent trims; the next lane trims again
            if not left and self._copying.unready == 0:
                return []
            if time.monotonic() > deadline or not self._copying.is_alive:
                missing = [[*place, ends[place], wanted[place]] for place in left[:10]]
                unready = self._copying.unready
                return [{"what": "not copied", "count": len(left), "places": missing, "unready": unready}]
            time.sleep(0.3)

    def _undeserved(self) -> list[dict[str, Any]]:
        found = []
        for place, (reason, message) in self._copying.failures.items():
            deserved = {_DESERVED["old format"]} if self._kinds[place[0]] is LogKind.OLD else set()
            if place in self._deleted and place[0] not in self._follows:
                deserved.add(_DESERVED["deleted before it was copied"])
            if reason not in deserved:
                found.append({"what": "FAILED without a cause", "place": place, "reason": reason, "message": message})
        return found

    def _judge(self) -> list[dict[str, Any]]:
        acks = self._folder / "acks"
        with acks.open("w", encoding="utf-8") as file:
            for (topic, index), history in self._histories.items():
                file.writelines(
                    f"{topic} {index} {offset} {content:08x}\n" for offset, content in history.acknowledged.items()
                )
        failed: dict[str, list[int]] = {}
        for topic, index in self._copying.failures:
            failed.setdefault(topic, []).append(index)
        question = {
            "source": self._source.bootstrap_servers,
            "destination": self._destination.bootstrap_servers,
            "acks": str(acks),
            "selfTold": False,
            "allAcknowledged": True,
            "seen": str(self._folder / "seen"),
            "topics": [
                {
                    "topic": topic,
                    "partitions": self._counts[topic],
                    "compacted": kind.is_compacted,
                    "tiered": any(topic in tiered for tiered in self._tiered),
                    "failed": failed.get(topic, []),
                }
                for topic, kind in self._kinds.items()
            ],
        }
        path = self._folder / "question.json"
        path.write_text(json.dumps(question), encoding="utf-8")
        command = [sys.executable, "-m", "campaign.oracle", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.strip():
            return [{"what": "the oracle could not judge", "error": done.stderr[-2000:]}]
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found


def _admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


class _Thread(threading.Thread):
    """A running thread whose error its `join` raises."""

    def __init__(self, work: Any) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Work."""
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        super().join(timeout)
        if self._error is not None:
            raise self._error
