"""What the nemesis does to a world that runs, and takes back: to processes, brokers, topics, and by verbs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from campaign.engine import Engine
from campaign.world import Act, Fault, Kind, World
from kmirror.sandbox.cluster import SandboxCluster

Undo = Callable[[], None]


class Nemesis:
    """Carry out faults one after another, each undone after its time; what was done is in `done`."""

    def __init__(self, world: World, source: SandboxCluster, destination: SandboxCluster, engine: Engine) -> None:
        self._world = world
        self._source, self._destination = source, destination
        self._engine = engine
        self.done: list[dict[str, Any]] = []
        #: By topic, the acts that were done to it.
        self.marks: dict[str, set[Act]] = {}
        #: Partitions of topics that grew.
        self.partitions = {topic.name: topic.partitions for topic in world.topics}

    def run(self, stop: threading.Event) -> None:
        """Do all faults at their moments, and undo every one before returning."""
        began = time.monotonic()
        pending: list[tuple[float, Fault, Undo]] = []
        queue = list(self._world.faults)
        while (queue or pending) and not stop.is_set():
            at = time.monotonic() - began
            for due, fault, undo in [one for one in pending if one[0] <= at]:
                self._undo(fault, undo)
                pending.remove((due, fault, undo))
            if queue and queue[0].at <= at:
                fault = queue.pop(0)
                back = self._do(fault)
                if back is not None:
                    pending.append((at + fault.seconds, fault, back))
            stop.wait(0.05)
        for _, fault, undo in pending:
            self._undo(fault, undo)

    def _do(self, fault: Fault) -> Undo | None:
        note: dict[str, Any] = {"at": fault.at, "act": fault.act, "seconds": fault.seconds}
        self.done.append(note)
        try:
            return getattr(self, "_" + fault.act.replace("-", "_"))(fault, note)  # type: ignore[no-any-return]
        except Exception as error:
            note["error"] = repr(error)
            return None

    def _undo(self, fault: Fault, undo: Undo) -> None:
        try:
            undo()
        except Exception as error:
            self.done.append({"act": fault.act, "undo failed": repr(error)})
            raise

    # -- processes -----------------------------------------------------------------------------------------------------

    def _kill_engine(self, fault: Fault, note: dict[str, Any]) -> Undo:
        self._engine.kill()
        return self._engine.start

    def _kill_driver(self, fault: Fault, note: dict[str, Any]) -> Undo:
        self._engine.kill_driver()
        return self._engine.start

    def _frozen(self, pids: list[int], fault: Fault, note: dict[str, Any]) -> Undo | None:
        if not pids:
            note["nothing"] = "no such process"
            return None
        pid = note["pid"] = pids[fault.draw % len(pids)]
        os.kill(pid, signal.SIGSTOP)

        def undo() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return undo

    def _freeze_driver(self, fault: Fault, note: dict[str, Any]) -> Undo | None:
        return self._frozen(self._engine.drivers(), fault, note)

    def _freeze_jvm(self, fault: Fault, note: dict[str, Any]) -> Undo | None:
        return self._frozen(self._engine.jvms(), fault, note)

    def _freeze_lane(self, fault: Fault, note: dict[str, Any]) -> Undo | None:
        return self._frozen(self._engine.lanes(), fault, note)

    def _kill_lane(self, fault: Fault, note: dict[str, Any]) -> None:
        lanes = self._engine.lanes()
        if lanes:
            os.kill(lanes[fault.draw % len(lanes)], signal.SIGKILL)

    def _second_engine(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._engine.start_second()

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _broker(self, cluster: SandboxCluster, fault: Fault, end: Callable[[SandboxCluster, int], object]) -> Undo:
        node = cluster.brokers[fault.draw % len(cluster.brokers)].node_id
        end(cluster, node)
        return lambda: cluster.start_broker(node)

    def _freeze_broker(self, cluster: SandboxCluster, fault: Fault) -> Undo:
        node = cluster.brokers[fault.draw % len(cluster.brokers)].node_id
        cluster.signal(node, signal.SIGSTOP)

        def undo() -> None:
            with contextlib.suppress(Exception):
                cluster.signal(node, signal.SIGCONT)

        return undo

    def _kill_source_broker(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._broker(self._source, fault, SandboxCluster.kill)

    def _kill_destination_broker(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._broker(self._destination, fault, SandboxCluster.kill)

    def _stop_source_broker(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._broker(self._source, fault, SandboxCluster.stop_broker)

    def _stop_destination_broker(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._broker(self._destination, fault, SandboxCluster.stop_broker)

    def _freeze_source_broker(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._freeze_broker(self._source, fault)

    def _freeze_destination_broker(self, fault: Fault, note: dict[str, Any]) -> Undo:
        return self._freeze_broker(self._destination, fault)

    # -- topics --------------------------------------------------------------------------------------------------------

    def _victim(self, fault: Fault, note: dict[str, Any]) -> str:
        topic = self._world.topics[fault.draw % len(self._world.topics)].name
        note["topic"] = topic
        return topic

    def _mark(self, topic: str, act: Act) -> None:
        self.marks.setdefault(topic, set()).add(act)

    def _delete_records(self, fault: Fault, note: dict[str, Any]) -> None:
        topic = self._victim(fault, note)
        if next(one for one in self._world.topics if one.name == topic).kind is Kind.COMPACTED:
            note["nothing"] = "brokers delete no records of compacted topics"
            return
        admin = _admin(self._source)
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(topic, 0)
        end = admin.list_offsets({place: OffsetSpec.latest()})[place].result(10).offset
        place.offset = note["before"] = end * (fault.draw % 100) // 100
        for done in admin.delete_records([place]).values():
            done.result(10)

    def _grow_topic(self, fault: Fault, note: dict[str, Any]) -> None:
        topic = self._victim(fault, note)
        wanted = note["partitions"] = self.partitions[topic] + 1
        for done in _admin(self._source).create_partitions([NewPartitions(topic, wanted)]).values():
            done.result(10)
        self.partitions[topic] = wanted

    def _recreate_topic(self, fault: Fault, note: dict[str, Any]) -> None:
        topic = self._victim(fault, note)
        self._mark(topic, Act.RECREATE_TOPIC)
        admin = _admin(self._source)
        for done in admin.delete_topics([topic], operation_timeout=10).values():
            done.result(15)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                for made in admin.create_topics([NewTopic(topic, self.partitions[topic], 1)]).values():
                    made.result(10)
                return
            except Exception:
                time.sleep(0.3)

    def _foreign_write(self, fault: Fault, note: dict[str, Any]) -> None:
        topic = self._victim(fault, note)
        self._mark(topic, Act.FOREIGN_WRITE)
        producer = Producer({"bootstrap.servers": self._destination.bootstrap_servers, "message.timeout.ms": 5000})
        producer.produce(topic, b"foreign", partition=0)
        note["left"] = producer.flush(6)

    # -- operators -----------------------------------------------------------------------------------------------------

    def _pause(self, fault: Fault, note: dict[str, Any]) -> Undo:
        note["code"] = self._engine.verb("pause", "--topics", ".*")[0]

        def undo() -> None:
            deadline = time.monotonic() + 60
            while self._engine.verb("resume", "--topics", ".*")[0] and time.monotonic() < deadline:
                time.sleep(1)

        return undo

    def _look(self, fault: Fault, note: dict[str, Any]) -> None:
        note["code"] = self._engine.verb("describe", "--json")[0]

    def _verify(self, fault: Fault, note: dict[str, Any]) -> None:
        note["code"] = self._engine.verb("verify", "--json")[0]


def _admin(cluster: SandboxCluster) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
