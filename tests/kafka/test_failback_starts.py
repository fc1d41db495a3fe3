"""What A has from before B's copy began is nowhere else: a failback archives it, or A keeps it.

Once, a failback took it for what B's retention had deleted: it was deleted with the topic, or trimmed an hour later.
"""

from __future__ import annotations

from kmirror.ops.add.add import add
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.stop.failover import failover
from kmirror.settings.value_types import StartFrom
from tests.support.archiving import assert_holds
from tests.support.clusters import unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, properties_of, selector
from tests.support.round_trip import Trip, archives_of, make_old_topic, trim
from tests.support.visible import bounds_of, shown
from tests.support.waiting import wait_until


def go_from_latest(trip: Trip, topic: str) -> None:
    """Mirror a topic of two partitions with five records, the last two of which are copied, and fail over."""
    make_old_topic(trip.a, topic, 2)
    produce(trip.a, topic, ["old"] * 3)
    produce(trip.a, topic, ["old"], 1)
    assert add(trip.at_b, trip.mirror, selector(topic), start_from=StartFrom("latest")).exit_code == 0
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        produce(trip.a, topic, ["common"] * 2)
        engine.catch_up()
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    assert bounds_of(trip.b, topic)[0] == 3


def test_it_is_archived_before_the_topic_is_recreated(trip: Trip) -> None:
    topic = unique_topic()
    go_from_latest(trip, topic)
    produce(trip.a, topic, ["lost"])
    held, whole = shown(trip.a, topic), shown(trip.a, topic, 1)
    drill = trip.back(strategy=Strategy.RECREATE, dry_run=True).result
    (warning,) = (one for one in drill.warnings if "only here" in one)
    assert f"{topic}-0 and 1 more partition: offsets 0 to 2 exist only here" in warning
    assert "--recreate archives them, too" in warning
    done = trip.back(strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert not any("retention" in one for one in done.result.warnings)
    kept = archives_of(done)[topic]
    assert kept["records"] == 5
    assert_holds(trip.a, kept["archive"], [*held[:3], *held[5:]])
    assert_holds(trip.a, kept["archive"], whole, partition=1)
    trip.copy_to_a()
    trip.assert_same(topic, 2)


def test_it_is_kept_until_the_new_primary_deletes_more(trip: Trip) -> None:
    topic, retained = unique_topic(), unique_topic()
    go_from_latest(trip, topic)
    trip.go(retained)
    trim(trip.b, retained, 2)
    settings = {"follow.log.start.delay.ms": "0", "refresh.interval.seconds": "1"}
    request = FailbackRequest(trip.mirror, {**properties_of(trip.b), **settings}, watch_s=0.1)
    drill = failback(trip.at_a, request, dry_run=True).result
    (warning,) = (one for one in drill.warnings if "only here" in one)
    assert "keeps them until the new primary deletes later ones" in warning
    assert "follow.log.start=false" in warning
    assert failback(trip.at_a, request).result.exit_code == 0
    with LocalEngine(trip.at_a, trip.mirror):
        wait_until(lambda: bounds_of(trip.a, retained)[0] == 2)
        assert bounds_of(trip.a, topic)[0] == 0
        assert [record.value for record in shown(trip.a, topic)][:3] == [b"old"] * 3
        trim(trip.b, topic, 4)
        wait_until(lambda: bounds_of(trip.a, topic)[0] == 4)
