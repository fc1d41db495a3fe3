"""A mirror of a mirror, on real brokers: when it stops, its topics get the settings of the first source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.show.describe_settings import describe_settings
from kmirror.ops.stop.failover import failover
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.side_jobs import run_once
from tests.support.topics import alter_topic


class Link:
    """One mirror of the chain: to `cluster`, from the one before."""

    def __init__(self, cluster: SandboxCluster, destination: Destination, mirror: str, job: SettingsSyncJob) -> None:
        self.cluster, self.destination, self.mirror, self.job = cluster, destination, mirror, job

    def sync(self) -> None:
        run_once(self.job, self.destination, self.mirror)

    def overrides(self, topic: str) -> dict[str, str | None]:
        return overrides_on(self.destination, topic)


def overrides_on(destination: Destination, topic: str) -> dict[str, str | None]:
    found = topic_settings(destination.client, [topic])[topic]
    assert not isinstance(found, int)
    return {key: one.value for key, one in found.items() if one.is_override}


@contextmanager
def link(source: SandboxCluster, cluster: SandboxCluster, topics: list[str]) -> Iterator[Link]:
    with Destination.open(properties_of(cluster)) as destination:
        mirror = new_mirror(destination, source)
        assert add(destination, mirror, selector(*topics)).exit_code == 0
        with closing(SettingsSyncJob(mirror, properties_of(cluster))) as job:
            yield Link(cluster, destination, mirror, job)


@pytest.mark.slow
def test_a_mirror_of_a_mirror_stops_with_the_settings_of_the_first_source(
    cluster_pair: ClusterPair, passing_destination: SandboxCluster
) -> None:
    middle = passing_destination
    first, last = cluster_pair.source, cluster_pair.destination
    asked, silent = unique_topic("asked"), unique_topic("silent")
    for topic in (asked, silent):
        make_topic(first, topic, retention_ms="60000", retention_bytes="5000000", compression_type="zstd")
    with link(first, middle, [asked, silent]) as upper, link(middle, last, [asked, silent]) as lower:
        assert upper.overrides(asked)["retention.ms"] == "-1"
        for topic in (asked, silent):
            alter_topic(first, topic, retention_ms="70000", max_message_bytes="2000000")
        upper.sync()
        lower.sync()
        rows = {row.key: row for row in describe_settings(lower.destination, lower.mirror, selector(asked))}
        assert (rows["retention.ms"].source_value, rows["retention.ms"].destination_value) == ("70000", "-1")

        rehearsed = failover(lower.destination, lower.mirror, selector(asked), dry_run=True).result
        assert [one for one in rehearsed.warnings if "mirror too" in one] == []
        # what has changed since the last sync is asked for at the stop
        alter_topic(first, asked, retention_ms="80000")
        upper.sync()
        done = failover(lower.destination, lower.mirror, selector(asked)).result
        assert (done.exit_code, [one for one in done.warnings if "mirror too" in one]) == (0, [])
        with Destination.open(properties_of(first)) as there:
            assert lower.overrides(asked) == overrides_on(there, asked)
        assert lower.overrides(asked)["retention.ms"] == "80000"

        # and where the cluster in between is gone, the last known settings it is
        middle.stop()
        before = lower.overrides(silent)
        for dry_run in (True, False):
            done = failover(lower.destination, lower.mirror, selector(silent), dry_run=dry_run).result
            assert done.exit_code == 0
            (warning,) = (one for one in done.warnings if "mirror too" in one)
            assert silent in warning
            assert "last known ones, as read at 2" in warning
            assert (lower.overrides(silent) == before) is dry_run
        assert lower.overrides(silent) == {
            "retention.ms": "70000",
            "retention.bytes": "5000000",
            "compression.type": "zstd",
            "max.message.bytes": "2000000",
        }
