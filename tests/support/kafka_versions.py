"""The versions of Kafka that tests run on: the sandbox's own in every run, the older ones in the long campaign."""

from __future__ import annotations

import pytest

from kmirror.sandbox.jars import DEFAULT_KAFKA_VERSION

#: One of each kind: with ZooKeeper, with the first KRaft, before and with KIP-890's first part.
OLDER_VERSIONS = ("2.8.2", "3.3.2", "3.6.2", "3.9.2")
EVERY_VERSION = [DEFAULT_KAFKA_VERSION, *(pytest.param(version, marks=pytest.mark.long) for version in OLDER_VERSIONS)]


def is_older(version: str, than: str) -> bool:
    """Tell whether a version of Kafka comes before another one; both are numbers between dots."""
    return [int(part) for part in version.split(".")] < [int(part) for part in than.split(".")]
