"""A broker that returns no settings of a topic, and no error: that is unknown, not a topic without settings."""

from __future__ import annotations

import struct

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import topic_configs
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.wire import NO_TAGS, compact_string, unsigned_varint
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_settings import topic_settings
from tests.support.leader import create_topic
from tests.support.shared_clusters import ForgetfulCluster


def without_settings(frame: bytes) -> bytes:
    """Return the answer with the same topics and none of their settings."""
    found, _ = topic_configs.answer(memoryview(frame)[4:], topic_configs.VERSION)
    out = frame[4:8] + NO_TAGS + bytes(4) + unsigned_varint(len(found) + 1)
    for one in found:
        out += bytes(2) + b"\x00" + bytes([topic_configs.TOPIC]) + compact_string(one.topic) + b"\x01" + NO_TAGS
    out += NO_TAGS
    return struct.pack(">i", len(out)) + out


def test_a_topic_whose_settings_a_broker_does_not_return_has_unknown_ones(forgetful: ForgetfulCluster) -> None:
    topic = create_topic(forgetful.cluster)
    wire = forgetful.wire
    with ClusterClient(client_config({"bootstrap.servers": f"{wire.host}:{wire.port}"})) as client:
        assert not isinstance(topic_settings(client, [topic])[topic], int)
        wire.lie(topic_configs.API_KEY, without_settings)
        try:
            for keys in (None, ["cleanup.policy"]):
                assert topic_settings(client, [topic], keys) == {topic: Code.UNKNOWN_SERVER_ERROR}
        finally:
            wire.lie(topic_configs.API_KEY, None)
