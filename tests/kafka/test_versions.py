"""Older versions of Kafka as source, and as destination: what a mirror does, it does between them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.clusters import NO_RETENTION, ClusterPair, MakeCluster
from tests.support.kafka_versions import OLDER_VERSIONS, of_long
from tests.support.version_scenario import VersionScenario

OLDEST, *NEWER = OLDER_VERSIONS


@pytest.fixture(params=[pytest.param(OLDEST, marks=pytest.mark.slow), *of_long(NEWER)])
def from_older(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, cluster_pair: ClusterPair
) -> Iterator[VersionScenario]:
    """Return an older source before the destination that all tests share."""
    older = make_cluster("older", kafka_version=request.param, heap="256m", properties=NO_RETENTION)
    with closing(VersionScenario(older, cluster_pair.destination)) as scenario:
        yield scenario


@pytest.fixture(params=of_long(OLDER_VERSIONS))
def to_older(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, cluster_pair: ClusterPair
) -> Iterator[VersionScenario]:
    """Return an older destination of a source of its own, which is restarted, and is of the newest version."""
    older = make_cluster("older", kafka_version=request.param, heap="256m", properties=NO_RETENTION)
    with closing(VersionScenario(make_cluster("newest", properties=NO_RETENTION), older)) as scenario:
        yield scenario


def test_a_mirror_of_an_older_source(from_older: VersionScenario) -> None:
    from_older.copies()
    from_older.forks()
    from_older.resets()
    from_older.loses_a_topic()


@pytest.mark.long
def test_an_older_source_becomes_the_destination(from_older: VersionScenario) -> None:
    from_older.returns()


def test_a_mirror_on_an_older_destination(to_older: VersionScenario) -> None:
    to_older.copies()
    to_older.forks()
    to_older.resets()
    to_older.returns()
