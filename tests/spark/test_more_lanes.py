"""`copy.lanes` raised while a mirror is copied: the lanes come, and leave room for a rebuild.

On this machine Spark once had a thread for each lane of the start, and one more. Of the lanes that came later one got
that thread. The others waited in Spark, were given up after a minute and started again, for ever; and what a rebuild
archives waited behind lanes, none of which ever ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.mirrored import Mirrored
from tests.support.mirrors import delete_topic
from tests.support.real_logs import write
from tests.support.still_logs import FOREVER

LANES = 8


@pytest.mark.slow
def test_lanes_that_a_running_mirror_is_given_copy_and_a_topic_is_rebuilt_beside_them(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    wide, recreated = unique_topic("wide"), unique_topic("recreated")
    create_topics(cluster_pair.source, {wide: FOREVER}, LANES)
    create_topics(cluster_pair.source, {recreated: FOREVER})
    topics = {wide: LANES, recreated: 1}
    with Mirrored(cluster_pair.source, cluster_pair.destination, tmp_path, topics, with_spark=True) as mirror:
        for topic in topics:
            write(mirror.source, topic, 100)
        mirror.create("refresh.interval.seconds=1")
        engine = mirror.engine("--master", "local[2]")
        mirror.wait_until_equal(engine)
        mirror.run("config", "--set", f"copy.lanes={LANES}")
        mirror.wait(engine, lambda: len({row["lane"] for row in mirror.rows().values()} - {None}) == LANES)

        delete_topic(mirror.source, recreated)
        create_topics(mirror.source, {recreated: FOREVER})
        write(mirror.source, recreated, 10)
        archive = f"{recreated}.kmirror-archive.1"
        mirror.wait(engine, lambda: mirror.rows()[recreated, 0]["archive"] == archive, topics=[wide])
        write(mirror.source, wide, 50)
        mirror.wait_until_equal(engine)
        mirror.wait(engine, lambda: len({row["lane"] for row in mirror.rows().values()} - {None}) == LANES)
        assert engine.stop() == 0
        mirror.compare()
