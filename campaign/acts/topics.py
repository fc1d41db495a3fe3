"""Change topics as their owners do, and as no one should."""

from __future__ import annotations

import time

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from campaign.acts.scene import Note, Scene
from campaign.logins import admin
from campaign.world import Act, Fault, Kind

_TOPIC_S = 15.0


def delete_records(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived if the copy is far enough; otherwise what was never copied is reported as lost."""
    topic = scene.topic(fault, note)
    if topic.kind is Kind.COMPACTED:
        note["nothing"] = "brokers delete no records of compacted topics"
        return
    client, place = admin(scene.source.direct), TopicPartition(topic.name, 0)
    end = client.list_offsets({place: OffsetSpec.latest()})[place].result(10).offset
    place.offset = note["before"] = end * (fault.draw % 100) // 100
    for done in client.delete_records([place]).values():
        done.result(10)
    scene.deleted[topic.name] = max(place.offset, scene.deleted.get(topic.name, 0))


def grow_topic(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: the engine finds new partitions, and copies them from their start."""
    topic = scene.topic(fault, note).name
    wanted = note["partitions"] = scene.partitions[topic] + 1
    client = admin(scene.source.direct)
    for done in client.create_partitions([NewPartitions(topic, wanted)]).values():
        done.result(10)
    scene.partitions[topic] = wanted


def delete_topic(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: the copy stays unchanged."""
    topic = scene.topic(fault, note, Act.DELETE_TOPIC).name
    client = admin(scene.source.direct)
    for done in client.delete_topics([topic], operation_timeout=10).values():
        done.result(_TOPIC_S)


def recreate_topic(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: the old records are archived, and the topic is rebuilt."""
    topic = scene.topic(fault, note, Act.RECREATE_TOPIC).name
    client = admin(scene.source.direct)
    for done in client.delete_topics([topic], operation_timeout=10).values():
        done.result(_TOPIC_S)
    deadline = time.monotonic() + _TOPIC_S
    while time.monotonic() < deadline:
        try:
            for made in client.create_topics([NewTopic(topic, scene.partitions[topic], 1)]).values():
                made.result(10)
            return
        except Exception:
            time.sleep(0.3)


def foreign_write(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: the broker refuses what does not fit after it, and the FAILED partition says so."""
    topic = scene.topic(fault, note, Act.FOREIGN_WRITE).name
    producer = Producer({"bootstrap.servers": scene.destination.direct, "message.timeout.ms": 5000, "log_level": 0})
    producer.produce(topic, b"foreign", partition=0)
    note["left"] = producer.flush(6)


ACTS = {
    Act.DELETE_RECORDS: delete_records,
    Act.GROW_TOPIC: grow_topic,
    Act.RECREATE_TOPIC: recreate_topic,
    Act.DELETE_TOPIC: delete_topic,
    Act.FOREIGN_WRITE: foreign_write,
}
