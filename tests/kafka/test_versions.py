"""Other versions of Kafka as source, and as destination: what a mirror does, it does between them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.clusters import NO_RETENTION, ClusterPair, MakeCluster
from tests.support.kafka_versions import NEWER_VERSION, OLDER_VERSIONS, of_long
from tests.support.version_scenario import VersionScenario


def of_slow(*versions: str) -> list[Any]:
    """Return versions as parameters of slow tests."""
    return [pytest.param(version, marks=pytest.mark.slow) for version in versions]


OLDEST, *LATER = OLDER_VERSIONS


@pytest.fixture(params=[*of_slow(OLDEST, NEWER_VERSION), *of_long(LATER)])
def from_other(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, cluster_pair: ClusterPair
) -> Iterator[VersionScenario]:
    """Return a source of another version before the destination that all tests share."""
    other = make_cluster("other", kafka_version=request.param, heap="256m", properties=NO_RETENTION)
    with closing(VersionScenario(other, cluster_pair.destination)) as scenario:
        yield scenario


@pytest.fixture(params=[*of_slow(NEWER_VERSION), *of_long(OLDER_VERSIONS)])
def to_other(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, cluster_pair: ClusterPair
) -> Iterator[VersionScenario]:
    """Return a destination of another version, of a source of its own, which is restarted and of the sandbox's own."""
    other = make_cluster("other", kafka_version=request.param, heap="256m", properties=NO_RETENTION)
    with closing(VersionScenario(make_cluster("own", properties=NO_RETENTION), other)) as scenario:
        yield scenario


def test_a_mirror_of_another_source(from_other: VersionScenario) -> None:
    from_other.copies()
    from_other.forks()
    from_other.resets()
    from_other.loses_a_topic()


@pytest.mark.long
def test_another_source_becomes_the_destination(from_other: VersionScenario) -> None:
    from_other.returns()


def test_a_mirror_on_another_destination(to_other: VersionScenario) -> None:
    to_other.copies()
    to_other.forks()
    to_other.resets()
    to_other.returns()
