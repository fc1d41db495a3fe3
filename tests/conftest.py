"""Fixtures known to all tests. Nothing is started before a test asks for it."""

from __future__ import annotations

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
