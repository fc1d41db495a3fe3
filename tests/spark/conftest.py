"""What the engine's tests share: mirrored topics that clean up after themselves, random moments, slow destinations."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, forgotten_mirrors, unique_topic
from tests.support.engine import Engine, Pair, limit_writes

__all__ = ["forgotten_mirrors"]

BYTES_PER_SECOND = 2 << 20

MakePair = Callable[..., Pair]


@pytest.fixture
def make_pair(tmp_path: Path) -> Iterator[MakePair]:
    """Make topics that keep old records, and end whatever engines are left of a test."""
    with ExitStack() as stack:

        def make(source: SandboxCluster, destination: SandboxCluster, **settings: int) -> Pair:
            config = {"retention.ms": "-1"}
            pair = Pair(source, destination, tmp_path, unique_topic("copy"), source_config=config, **settings)
            stack.callback(pair.close)
            return pair

        yield make


@pytest.fixture
def chance() -> random.Random:
    """Return random moments; the seed is printed when a test fails, and KMIRROR_SEED repeats it."""
    seed = int(os.environ.get("KMIRROR_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"KMIRROR_SEED={seed}")  # noqa: T201 - shown by pytest with a failure
    return random.Random(seed)


@pytest.fixture
def slow_destination(destination_cluster: SandboxCluster) -> Iterator[SandboxCluster]:
    """Return a destination that takes a few megabytes a second."""
    limit_writes(destination_cluster, BYTES_PER_SECOND)
    yield destination_cluster
    limit_writes(destination_cluster, None)


@pytest.fixture
def forgetful_destination(make_cluster: MakeCluster) -> SandboxCluster:
    """Return a slow destination that forgets producer ids whose last record is older than a few seconds."""
    expiration = {"producer.id.expiration.ms": "3000", "producer.id.expiration.check.interval.ms": "500"}
    cluster = make_cluster("forgetful", properties=expiration)
    limit_writes(cluster, BYTES_PER_SECOND)
    return cluster


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Return a list for the engines that a test starts; they are destroyed when it ends."""
    started: list[Engine] = []
    yield started
    for engine in started:
        engine.destroy()
