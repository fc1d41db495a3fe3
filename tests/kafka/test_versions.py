"""Older versions of Kafka as source, and as destination: what a mirror does, it does between them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kmirror.sandbox.cluster import SandboxCluster
from tests.support.clusters import NO_RETENTION, MakeCluster
from tests.support.kafka_versions import OLDER_VERSIONS
from tests.support.shared_clusters import quick_logs
from tests.support.version_story import VersionStory

OLDEST, *NEWER = OLDER_VERSIONS
SOURCES = [OLDEST, *(pytest.param(version, marks=pytest.mark.long) for version in NEWER)]


@pytest.fixture(params=SOURCES)
def from_older(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, destination_cluster: SandboxCluster
) -> Iterator[VersionStory]:
    """Return an older source before the destination that all tests share."""
    source = make_cluster("older", kafka_version=request.param, heap="256m", properties=NO_RETENTION)
    with closing(VersionStory(source, destination_cluster)) as story:
        yield story


def test_a_mirror_of_an_older_source(from_older: VersionStory) -> None:
    from_older.copies(quick_logs())
    from_older.forks()
    from_older.resets()
