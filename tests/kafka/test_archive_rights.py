"""Whether an archive keeps its records is unknown where its size is: the missing right is named, not the archive."""

from __future__ import annotations

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import Reason, RefusedError, UnreachableError
from kmirror.ops.add import archive_admin
from kmirror.ops.add.archive_admin import kept_ms
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.leader import create_topic


def test_a_limited_size_needs_a_right(guarded_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"retention.ms": "-1", "retention.bytes": "10000000"}
    archive = create_topic(guarded_cluster, settings=limited)
    properties = guarded_cluster.client_properties("kmirror")
    with (
        ClusterClient(client_config(guarded_cluster.client_properties())) as admin,
        ClusterClient(client_config(properties)) as client,
    ):
        give(admin, acls("topic", archive, "kmirror", "DESCRIBE", "DESCRIBE_CONFIGS"))
        # a new one holds nothing
        assert kept_ms(client, archive, ()) is None
        with pytest.raises(RefusedError, match=f"{archive}-0 is unknown: we lack DESCRIBE on the cluster") as refused:
            kept_ms(client, archive, [0])
        assert refused.value.reason is Reason.NOT_AUTHORIZED
        assert "--operation Describe --cluster" in str(refused.value.hint)
        give(admin, acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE"))
        assert kept_ms(client, archive, [0]) is None
        silent = {TopicPartition(archive, 0): (int(Code.BROKER_NOT_AVAILABLE), None)}
        monkeypatch.setattr(archive_admin, "stored_sizes", lambda *_: silent)
        with pytest.raises(UnreachableError, match=f"the size of {archive}-0 is unknown: BROKER_NOT_AVAILABLE"):
            kept_ms(client, archive, [0])
