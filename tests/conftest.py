"""Fixtures known to all tests, and the order of the files. Nothing is started before a test asks for it."""

from __future__ import annotations

import pytest

from tests.support.clusters import (
    cluster_pair,
    clusters_directory,
    destination_cluster,
    make_cluster,
    make_module_cluster,
    source_cluster,
)
from tests.support.spark_standalone import standalone_spark

__all__ = [
    "cluster_pair",
    "clusters_directory",
    "destination_cluster",
    "make_cluster",
    "make_module_cluster",
    "source_cluster",
    "standalone_spark",
]

#: What takes longest, longest first. The rest follows by folder, what starts Spark before what starts brokers.
LONGEST = (
    "spark/test_log_cases",
    "spark/test_mm2_ported",
    "kafka/test_failback",
    "spark/test_least_rights",
    "kafka/test_killed_verbs",
    "spark/test_engine_kill",
    "spark/test_source_histories",
    "spark/test_source_resets",
    "kafka/test_archive",
    "spark/test_source_changes",
    "spark/test_link_troubles",
    "spark/test_groups",
    "spark/test_disaster",
    "spark/test_runbooks",
    "kafka/test_groups",
    "kafka/test_stop",
    "kafka/test_acl_sync",
    "spark/test_engine_clusters",
    "kafka/test_sandbox",
    "kafka/test_append_at_offset",
    "spark/test_engine_leaders",
    "spark/test_engine_lease",
    "kafka/test_pieces_of_real_logs",
)
FOLDERS = ("spark", "kafka", "cli", "unit")


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist give out files in the order below, not those with the most tests first, as it has it."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: else one process would be left alone with them when the others have ended."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, int]:
    folder = item.path.parent.name
    name = f"{folder}/{item.path.stem}"
    return LONGEST.index(name) if name in LONGEST else len(LONGEST), FOLDERS.index(folder)
