"""The sentences with which Kafka's own tools report success, for scripts that look for them. Pure.

Those of Apache Kafka's `kafka-cluster-mirrors.sh` (KIP-1279), and of Confluent's `kafka-mirrors` where only that has
the action.
"""

from __future__ import annotations

from kmirror.ops.base.results import VerbResult

#: By action, with the topics' number and names.
_ON_TOPICS = {
    "--add": "Started {count} topic(s) in mirror {mirror}: {topics}",
    "--start": "Started {count} topic(s) in mirror {mirror}: {topics}",
    "--pause": "Paused {count} topic(s) in mirror {mirror}: {topics}",
    "--resume": "Resumed {count} topic(s) in mirror {mirror}: {topics}",
    "--unpause": "Resumed {count} topic(s) in mirror {mirror}: {topics}",
    "--recover": "Recovered {count} topic(s) in mirror {mirror}: {topics}",
    "--stop": "Stopped {topics} topic(s) in mirror {mirror}",
    "--remove": "Stopped {topics} topic(s) in mirror {mirror}",
}
#: By action, a line for each topic.
_PER_TOPIC = {
    "--create": "Created topic {topic}.",
    "--promote": "Request for stopping topic {topic}'s mirror was successfully scheduled.",
    "--failover": "Request for stopping topic {topic}'s mirror was successfully scheduled.",
}


def success_of(action: str, done: VerbResult) -> str | None:
    """Return what Kafka's tool says when an action has succeeded, None if it has no sentence for it."""
    names = sorted({row.topic for row in done.results if row.topic is not None})
    if done.verb == "create":
        return f"Created mirror {done.mirror}"
    if done.verb == "delete":
        return f"Deleted mirror {done.mirror}"
    if done.verb == "add" and not names:
        return f"No matching topics found yet. Patterns saved to mirror {done.mirror} for auto-discovery."
    if action in _ON_TOPICS:
        return _ON_TOPICS[action].format(count=len(names), mirror=done.mirror, topics=f"[{', '.join(names)}]")
    if action in _PER_TOPIC and names:
        return "\n".join(_PER_TOPIC[action].format(topic=name) for name in names)
    return None
