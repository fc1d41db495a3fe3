"""Settings of topics, changed as an operator would, and in force when the call returns."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.librdkafka import librdkafka
from tests.support.waiting import wait_until


def alter_topic(cluster: SandboxCluster, topic: str, **settings: str | None) -> None:
    """Set settings of a topic, with `_` for `.`; None removes one."""
    set_topic(cluster, topic, {key.replace("_", "."): value for key, value in settings.items()})


def set_topic(cluster: SandboxCluster, topic: str, settings: Mapping[str, str | None]) -> None:
    """Set settings of a topic, or remove them (None), and wait until a broker shows that: it may lag behind."""
    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)
    asked = ConfigResource(ResourceType.TOPIC, topic)

    def is_shown() -> bool:
        found = admin.describe_configs([asked])[asked].result(30).values()
        own = {one.name: one.value for one in found if one.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
        return all(own.get(key) == value for key, value in settings.items())

    wait_until(is_shown)
