"""The versions of Kafka that tests run on: the sandbox's own in every run, the others in slow or long runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION

#: One of each kind: with ZooKeeper; with KRaft, before and after topics' limits for timestamps were two (KIP-937).
OLDER_VERSIONS = ("2.8.2", "3.3.2", "3.6.2", "3.9.2")
#: Later than the sandbox's own.
NEWER_VERSION = "4.4.0"
OTHER_VERSIONS = (*OLDER_VERSIONS, NEWER_VERSION)
#: Those of them that can be configured to check for expired producer ids more often than every ten minutes.
FORGETFUL_VERSIONS = ("3.6.2", "3.9.2")


def of_long(versions: Iterable[str]) -> list[Any]:
    """Return versions as parameters of long tests."""
    return [pytest.param(version, marks=pytest.mark.long) for version in versions]


EVERY_VERSION = [DEFAULT_KAFKA_VERSION, *of_long(OLDER_VERSIONS)]


def is_older(version: str, than: str) -> bool:
    """Return whether a version of Kafka comes before another one; both are numbers between dots."""
    return [int(part) for part in version.split(".")] < [int(part) for part in than.split(".")]
