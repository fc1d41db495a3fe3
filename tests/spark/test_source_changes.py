"""What becomes of a mirror whose source changes: nothing is skipped, spliced or repaired without a report.

Each case has a mirror of its own, worked through the command line.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import limit_writes, typed
from tests.support.installed_logs import create_topics
from tests.support.log_batches import VisibleRecord
from tests.support.mirrored import Mirrored, only_topic, recover
from tests.support.real_logs import delete_records, write
from tests.support.still_logs import FOREVER
from tests.support.visible import Bounds, bounds_of, shown


@pytest.fixture
def mirror(cluster_pair: ClusterPair, tmp_path: Path) -> Iterator[Mirrored]:
    """Return a mirror of one topic whose 1,000 records are copied; no engine runs."""
    topic = unique_topic("changing")
    create_topics(cluster_pair.source, {topic: FOREVER})
    write(cluster_pair.source, topic, 1000)
    with Mirrored(cluster_pair.source, cluster_pair.destination, tmp_path, {topic: 1}) as made:
        made.create("refresh.interval.seconds=1", "follow.log.start.delay.ms=0")
        made.copy()
        yield made


def lose_records(mirror: Mirrored) -> None:
    """Write 200 more records at the source, and delete all below 1,150."""
    write(mirror.source, only_topic(mirror), 200)
    delete_records(mirror.source, only_topic(mirror), 1150)


def large_records(count: int) -> list[VisibleRecord]:
    """Return records of 1 KB that do not compress, so that a quota holds their copy up."""
    now, chance = int(time.time() * 1000), random.Random(count)
    return [VisibleRecord(0, now, b"%d" % number, chance.randbytes(1000)) for number in range(count)]


LOST = "its 150 offsets 1000 to 1149 were deleted before they were copied"


def assert_truncated(mirror: Mirrored) -> None:
    """Check what is reported of the loss, word for word."""
    topic = only_topic(mirror)
    row = mirror.rows()[topic, 0]
    assert (row["state"], row["topicState"], row["reason"]) == ("FAILED", "FAILED", "SOURCE_TRUNCATED")
    since = re.search("FAILED since ([0-9-]+T[0-9:]+Z)", row["errorMessage"])
    assert since
    # behind it is what the mirror keeps that the source has deleted
    assert row["errorMessage"].startswith(
        f"source log truncation detected at position 1000: the source starts at offset 1150 and ends at 1200; {LOST}; "
        f"FAILED since {since[1]}; "
        f"to continue without them: kmirror recover --mirror {mirror.name} --topics {topic} --accept-loss"
    )


def assert_went_past_the_loss(mirror: Mirrored, start: int = 0, end: int = 1200) -> None:
    topic = only_topic(mirror)
    assert bounds_of(mirror.destination, topic) == Bounds(start, end)
    offsets = [record.offset for record in shown(mirror.destination, topic)]
    assert offsets == [*range(start, 1000), *range(1150, end)]
    copied = [record for record in shown(mirror.destination, topic) if record.offset >= 1150]
    assert copied == shown(mirror.source, topic)


@pytest.mark.long
def test_records_lost_while_no_engine_ran(mirror: Mirrored) -> None:
    lose_records(mirror)
    engine = mirror.copy(exit_codes=(7,))
    assert LOST in engine.output
    assert_truncated(mirror)
    assert bounds_of(mirror.destination, only_topic(mirror)) == Bounds(0, 1000)
    # what no one accepted is not done
    refused = recover(mirror, code=3)
    assert refused["results"][0]["result"] == "REFUSED"
    assert "--accept-loss" in refused["error"]["hint"]
    asked = typed(mirror.destination, "recover", "--mirror", mirror.name, "--accept-loss")
    assert (asked.returncode, "150 offsets, 1000 to 1149" in asked.stderr) == (3, True), asked.stderr
    reported = recover(mirror, "--accept-loss", "--dry-run")
    assert "would be retried and continues without 150 offsets, 1000 to 1149" in reported["results"][0]["message"]
    mirror.copy(exit_codes=(7,))
    recover(mirror, "--accept-loss", "--yes")
    engine = mirror.copy()
    assert "continues without 150 offsets that its source had lost: 1000 to 1149" in engine.output
    assert_went_past_the_loss(mirror)
    mirror.verify()
    # the consent was for that loss; what is kept stays, although the source starts behind it
    write(mirror.source, only_topic(mirror), 100)
    delete_records(mirror.source, only_topic(mirror), 1250)
    mirror.copy(exit_codes=(7,))
    assert bounds_of(mirror.destination, only_topic(mirror)) == Bounds(0, 1200)


@pytest.mark.slow
def test_records_lost_while_an_engine_runs(mirror: Mirrored) -> None:
    topic, other = only_topic(mirror), unique_topic("other")
    create_topics(mirror.source, {other: FOREVER})
    mirror.add(other)
    engine = mirror.engine()
    # a client may borrow eleven seconds' worth; the rest takes so long that a busy machine deletes in time
    limit_writes(mirror.destination, 100_000)
    try:
        write(mirror.source, topic, large_records(8000))
        mirror.wait(engine, lambda: bounds_of(mirror.destination, topic).end > 1000, topics=[topic])
        delete_records(mirror.source, topic, 8990)
    finally:
        limit_writes(mirror.destination, None)
    mirror.wait(engine, lambda: mirror.rows()[topic, 0]["state"] == "FAILED", topics=[other])
    end = bounds_of(mirror.destination, topic).end
    assert 1000 < end < 8990
    reported = mirror.rows()[topic, 0]["errorMessage"]
    assert f"its {8990 - end:,} offsets {end} to 8989 were deleted before they were copied" in reported
    # the other topic does not notice
    write(mirror.source, other, 50)
    mirror.wait_until_equal(engine, [other])
    done = recover(mirror, "--accept-loss", "--trim", "--yes")
    assert [row["result"] for row in done["results"]] == ["DONE"], done
    mirror.wait_until_equal(engine, [topic])
    mirror.wait(engine, lambda: bounds_of(mirror.destination, topic).start == 8990)
    write(mirror.source, topic, 50)
    mirror.wait_until_equal(engine, [topic])
    assert engine.stop() == 0
    mirror.compare()
    mirror.verify()
    assert bounds_of(mirror.destination, topic) == Bounds(8990, 9050)


@pytest.mark.long
def test_losses_are_followed_where_the_policy_says_so(mirror: Mirrored) -> None:
    mirror.run("config", "--set", "source.truncation.policy=follow")
    lose_records(mirror)
    engine = mirror.copy()
    assert "continues without 150 offsets that its source had lost: 1000 to 1149" in engine.output
    assert_went_past_the_loss(mirror)


def test_nothing_is_failed_and_nothing_to_recover(mirror: Mirrored) -> None:
    done = recover(mirror)
    assert [(row["topic"], row["result"]) for row in done["results"]] == [(None, "NOOP")]
