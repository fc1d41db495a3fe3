"""The campaign's oracle finds what is wrong with a copy, and its worlds are those of their seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from campaign.load import body
from campaign.nemesis import ACTS
from campaign.oracle import Record, Seen, compare
from campaign.world import Act, Ending, Kind, world_of


def record(number: int, key: bytes | None = None, whole: bool = True) -> Record:
    return Record(key, number, 0, (1, 1000 + number), whole)


def seen(start: int, end: int, *offsets: int) -> Seen:
    return Seen(start, end, {offset: record(offset) for offset in offsets or range(start, end)})


ACKS = {offset: {offset} for offset in range(10)}


def test_a_copy_like_its_source_is_right() -> None:
    assert compare(seen(0, 10), seen(0, 10), ACKS) == {}


def test_what_a_source_has_removed_at_its_begin_may_stay() -> None:
    assert compare(seen(4, 10), seen(0, 10), ACKS) == {}
    assert compare(seen(0, 10), seen(4, 10), ACKS) == {}


def test_gaps_that_nobody_sees_are_right() -> None:
    assert compare(seen(0, 10, 1, 2, 5), seen(0, 10, 1, 2, 5), {1: {1}}) == {}


def test_a_stopped_copy_ends_where_that_was_told_or_at_a_marker_behind() -> None:
    assert compare(seen(0, 10), seen(0, 7), ACKS, 7, 3) == {}
    assert compare(seen(0, 10), seen(0, 8, *range(7)), ACKS, 7, 3) == {}


@pytest.mark.parametrize(
    ("copy", "acks", "told", "lost", "found"),
    [
        (seen(0, 9), {}, None, None, {"ends elsewhere"}),
        (seen(0, 10, 0, 1, 2, 4, 5, 6, 7, 8, 9), {}, None, None, {"lacks"}),
        (Seen(0, 10, {**seen(0, 10).records, 3: record(4)}), {}, None, None, {"differs"}),
        (Seen(0, 10, {**seen(0, 10).records, 3: record(3, whole=False)}), {}, None, None, {"differs", "is damaged"}),
        (seen(0, 10), {3: {99}}, None, None, {"was acknowledged and is another one"}),
        (seen(0, 8), ACKS, 7, None, {"ends elsewhere"}),
        (seen(0, 7), ACKS, 8, None, {"ends elsewhere", "was acknowledged and is lost"}),
        (seen(0, 7), ACKS, 7, 4, {"fewer are lost than was told"}),
    ],
)
def test_what_is_wrong_is_found(
    copy: Seen, acks: dict[int, set[int]], told: int | None, lost: int | None, found: set[str]
) -> None:
    assert set(compare(seen(0, 10), copy, acks, told, lost)) == found


def test_a_record_that_was_invented_is_found() -> None:
    assert set(compare(seen(0, 10, 0, 1, 2), seen(0, 10, 0, 1, 2, 3), {})) == {"is not at the source"}


def test_what_both_lack_and_was_acknowledged_is_found() -> None:
    assert set(compare(seen(0, 10, 0, 1), seen(0, 10, 0, 1), {2: {2}})) == {"was acknowledged and is lost"}


def test_a_compacted_copy_may_lack_what_a_later_record_of_its_key_replaces() -> None:
    source = Seen(0, 3, {0: record(0, b"a"), 1: record(1, b"b"), 2: record(2, b"a")})
    cleaned = Seen(0, 3, {1: record(1, b"b"), 2: record(2, b"a")})
    assert compare(source, cleaned, {}, compacted=True) == {}
    assert compare(cleaned, source, {}, compacted=True) == {}
    assert set(compare(source, Seen(0, 3, {2: record(2, b"a")}), {}, compacted=True)) == {"lacks"}


def test_a_seed_is_a_world() -> None:
    assert world_of(7) == world_of(7)
    worlds = [world_of(seed) for seed in range(0, 3200, 4)]
    assert {fault.act for world in worlds for fault in world.faults} == set(Act)
    assert all(world.ground.allows(fault.act) for world in worlds for fault in world.faults)
    assert {len(world.mirrors) for world in worlds} == {1, 2, 3}
    assert {len(world.ground.brokers) for world in worlds} == {2, 3}
    assert {world.ending for world in worlds} == set(Ending)
    assert {topic.kind for world in worlds for topic in world.topics} == set(Kind)


def test_worlds_after_each_other_share_their_ground() -> None:
    assert len({str(world_of(seed).ground) for seed in range(16, 24)}) == 1
    assert world_of(7) != world_of(7, faults=5)
    assert all(8 <= len(world_of(seed, faults=10).faults) <= 10 for seed in range(50))


def test_each_act_is_one_that_a_mirror_survives_and_says_why() -> None:
    assert set(ACTS) == set(Act)
    assert all((act.__doc__ or "").startswith("Survived") for act in ACTS.values())


def test_each_topic_is_copied_by_one_mirror() -> None:
    for seed in range(50):
        world = world_of(seed)
        copied = [name for mirror in world.mirrors for name in world.names(mirror)]
        assert sorted(copied) == sorted(topic.name for topic in world.topics)


def test_a_value_says_what_it_is() -> None:
    assert body("orders", 3, b"x").startswith(b"orders|3|x|")


def test_the_oracle_knows_nothing_of_kmirror() -> None:
    program = "import sys, campaign.oracle; print(sorted(name for name in sys.modules if name.startswith('kmirror')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
