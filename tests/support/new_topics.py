"""Topics that exist when the call returns: a broker may not know one yet that the controller has just created."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import wait_until


def create_and_wait(admin: AdminClient, *topics: NewTopic) -> None:
    """Create topics, and wait until a broker lists them with leaders."""
    for created in admin.create_topics(list(topics)).values():
        created.result(60)
    names = {new.topic for new in topics}

    def known() -> bool:
        listed = admin.list_topics(timeout=30).topics
        found = [listed[name] for name in names if name in listed]
        return len(found) == len(names) and all(
            topic.error is None and all(partition.leader >= 0 for partition in topic.partitions.values())
            for topic in found
        )

    wait_until(known)
