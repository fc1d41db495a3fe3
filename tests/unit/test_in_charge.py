"""Two clusters never both count as in charge, however they are changed and read; in the end the right one does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import pytest

from kmirror.errors import Reason
from kmirror.state.records import PENDING_ADD, PENDING_STOP, DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.in_charge import (
    FIRST_TERM,
    SETTLED_S,
    ChargeVerdict,
    SeenCluster,
    ends_of,
    holdings_in,
    next_term,
    who_is_in_charge,
)

MIRROR, TOPIC = "m", "orders"
SIDES = ("a", "b")
OTHER = {"a": "b", "b": "a"}


def cluster_id(side: str) -> str:
    return f"id-{side}"


@dataclass
class World:
    """Two clusters, what they have stored of one topic or more, and two processes that read that now and then."""

    now: float = 0.0
    stored: dict[str, dict[str, TopicRecord]] = field(default_factory=lambda: {"a": {}, "b": {}})
    seen: dict[str, dict[str, SeenCluster]] = field(
        default_factory=lambda: {by: {side: SeenCluster(side) for side in SIDES} for by in SIDES}
    )
    #: Reads under way: by whom, of which cluster, when it asked, and the state once the cluster has answered.
    reads: list[tuple[str, str, float, State | None]] = field(default_factory=list)
    #: Of which topics a side has found nothing stored at their source.
    found_nothing: set[tuple[str, str]] = field(default_factory=set)

    def state(self, side: str) -> State:
        records = self.stored[side]
        if not records:
            return State()
        mirror = MirrorRecord(MIRROR, {}, {}, cluster_id(OTHER[side]), "ops@host", 0)
        return State.of([mirror, *records.values()])

    # what operators do; each step is one transaction

    def claim(self, side: str, topic: str = TOPIC, *, knows_source: bool = True) -> None:
        """Begin to mirror the topic to this side; its source's state may be out of reach."""
        former = self.stored[side].get(topic)
        if former is not None and (former.desired is not DesiredState.STOPPED or former.pending_operation):
            return
        source = self.state(OTHER[side]) if knows_source else None
        theirs = self.stored[OTHER[side]].get(topic)
        if source is not None and theirs is not None and theirs.desired is not DesiredState.STOPPED:
            return  # refused: a loop
        self.found_nothing.discard((side, topic))
        self.stored[side][topic] = TopicRecord(
            MIRROR,
            topic,
            topic,
            None,
            None,
            DesiredState.ACTIVE,
            1,
            TopicOrigin.ADOPTED,
            pending_operation=PENDING_ADD,
            term=next_term(
                holdings_in(self.state(side)).get(topic),
                None if source is None else holdings_in(source).get(topic),
                is_source_known=source is not None,
            ),
        )

    def announce(self, side: str, topic: str = TOPIC) -> None:
        """Put it on record at the source that this side may take over, with a term that is higher than the source's."""
        record, theirs = self.stored[side].get(topic), self.stored[OTHER[side]].get(topic)
        if record is None or record.desired is DesiredState.STOPPED or record.announced:
            return
        assert record.term is not None
        if theirs is None:
            self.found_nothing.add((side, topic))
            return
        term = max(record.term, (theirs.term or FIRST_TERM) + 1)
        self.stored[side][topic] = replace(record, term=term)
        if theirs.desired is DesiredState.STOPPED:
            self.stored[OTHER[side]][topic] = replace(theirs, standbys={cluster_id(side): term})

    def complete(self, side: str, topic: str = TOPIC) -> None:
        """Finish the add; what was announced is known from the source's record alone."""
        record, theirs = self.stored[side].get(topic), self.stored[OTHER[side]].get(topic)
        if record is not None and record.desired is not DesiredState.STOPPED:
            standbys = (theirs.standbys or {}) if theirs is not None else {}
            is_announced = standbys.get(cluster_id(side)) == record.term or (side, topic) in self.found_nothing
            self.stored[side][topic] = replace(record, pending_operation=None, announced=is_announced or None)

    def add(self, side: str, topic: str = TOPIC) -> None:
        for step in (self.claim, self.announce, self.complete):
            step(side, topic)

    def begin_stop(self, side: str, topic: str = TOPIC) -> None:
        record = self.stored[side].get(topic)
        if record is not None and record.desired is not DesiredState.STOPPED:
            stopping = replace(record, desired=DesiredState.STOPPED, pending_operation=PENDING_STOP)
            self.stored[side][topic] = replace(stopping, stop_reason=Reason.FAILED_OVER)

    def end_stop(self, side: str, topic: str = TOPIC) -> None:
        record = self.stored[side].get(topic)
        if record is not None and record.pending_operation == PENDING_STOP:
            self.stored[side][topic] = replace(record, pending_operation=None)

    def stop(self, side: str, topic: str = TOPIC) -> None:
        self.begin_stop(side, topic)
        self.end_stop(side, topic)

    def delete(self, side: str, topic: str = TOPIC) -> None:
        """Delete the mirror, which takes topics that are stopped."""
        record = self.stored[side].get(topic)
        if record is not None and record.desired is DesiredState.STOPPED and record.pending_operation is None:
            del self.stored[side][topic]

    # what processes see

    def ask(self, by: str, side: str) -> None:
        self.reads.append((by, side, self.now, None))

    def answer(self, index: int) -> None:
        by, side, asked_at, _ = self.reads[index]
        self.reads[index] = (by, side, asked_at, self.state(side))

    def arrive(self, index: int) -> None:
        by, side, asked_at, state = self.reads.pop(index)
        before = self.seen[by][side]
        if state is not None and (before.asked_at is None or asked_at > before.asked_at):
            self.seen[by][side] = before.after(cluster_id(side), f"{side}:9092", state, asked_at, self.now)

    def pass_time(self, seconds: float, seen: dict[str, str]) -> None:
        """Let time pass; `seen` has which sides each process sees meanwhile."""
        for _ in range(round(seconds / 0.5)):
            self.now += 0.5
            for by, sides in seen.items():
                for side in sides:
                    self.ask(by, side)
                    self.answer(len(self.reads) - 1)
                    self.arrive(len(self.reads) - 1)

    def verdict(self, by: str, side: str, topic: str | None = None) -> ChargeVerdict:
        return who_is_in_charge(list(self.seen[by].values()), MIRROR, side, self.now, topic)

    def those_in_charge(self, topic: str | None = None) -> set[str]:
        return {side for by in SIDES for side in SIDES if self.verdict(by, side, topic).in_charge}


ALL = {"a": "ab", "b": "ab"}


def act(world: World, dice: random.Random, topics: Sequence[str], *, deletes: bool) -> None:
    """Do something that an operator may do, finish something that was begun, or leave it unfinished for a while."""
    side, topic = dice.choice(SIDES), dice.choice(topics)
    deeds: list[Callable[[], None]] = [
        lambda: world.claim(side, topic, knows_source=dice.random() < 0.8),
        lambda: world.announce(side, topic),
        lambda: world.complete(side, topic),
        lambda: world.add(side, topic),
        lambda: world.begin_stop(side, topic),
        lambda: world.end_stop(side, topic),
        lambda: world.stop(side, topic),
    ]
    if deletes:
        deeds.append(lambda: world.delete(side, topic))
    dice.choice(deeds)()


def read(world: World, dice: random.Random, seen: Collection[tuple[str, str]], speed: float) -> None:
    """Let reads begin, be answered and arrive; some take long or are lost."""
    for by, side in seen:
        if dice.random() < 0.8:
            world.ask(by, side)
    world.reads = [one for one in world.reads if dice.random() > 0.02]
    for index in range(len(world.reads)):
        if world.reads[index][3] is None and dice.random() < speed:
            world.answer(index)
    for index in reversed(range(len(world.reads))):
        if world.reads[index][3] is not None and dice.random() < speed:
            world.arrive(index)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_two_clusters_are_never_both_in_charge(seed: int) -> None:
    ways = [(by, side) for by in SIDES for side in SIDES]
    held: Counter[str] = Counter()
    for number in range(40):
        dice, world, path = random.Random(f"{seed}/{number}"), World(), list[str]()
        topics = (TOPIC, "clicks")[: dice.choice((1, 1, 2))]
        for topic in topics:
            world.add("b", topic)
        # a mirror is deleted only where each side sees the other's state when it begins a new one
        deletes, seen = dice.random() < 0.2, list(ways)
        busy, speed = dice.choice((0.02, 0.1, 0.3)), dice.choice((0.7, 0.7, 0.3))
        for _ in range(200):
            world.now += dice.choice((0.1, 0.4, 0.7))
            if dice.random() < 0.05:
                seen = [one for one in ways if dice.random() < 0.7]
            if dice.random() < busy:
                act(world, dice, topics, deletes=deletes)
            read(world, dice, seen, speed)
            found = world.those_in_charge()
            held.update(found)
            path.append(f"{world.now:.1f} {sorted(found)} {seen} {world.stored}")
            at_once = [found, *(world.those_in_charge(topic) for topic in topics)]
            assert all(len(one) <= 1 for one in at_once), f"{seed}/{number}:\n" + "\n".join(path[-8:])
    assert min(held[side] for side in SIDES) > 300, f"hardly anything was in charge: {held}"


def test_the_source_is_in_charge_while_its_topics_are_copied() -> None:
    world = World()
    world.add("b")
    world.pass_time(SETTLED_S - 0.5, ALL)
    assert world.those_in_charge() == set(), "a process that has just started does not know what was before"
    world.pass_time(1, ALL)
    assert world.those_in_charge() == {"a"}
    assert ends_of(list(world.seen["a"].values()), MIRROR) == ["a", "b"]


def test_neither_end_is_in_charge_during_a_stop_and_the_destination_soon_after_it() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    world.begin_stop("b")
    world.pass_time(10, ALL)
    assert [world.verdict("a", side).in_charge for side in SIDES] == [False, False]
    world.end_stop("b")
    world.pass_time(SETTLED_S, ALL)
    assert world.those_in_charge() == set()
    world.pass_time(0.5, ALL)
    assert world.those_in_charge() == {"b"}
    assert world.verdict("a", "a").in_charge is False


def test_after_a_disaster_the_destination_is_in_charge_without_seeing_its_source() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    world.stop("b")
    world.pass_time(5, {"a": "a", "b": "b"})
    assert world.verdict("b", "b").in_charge is True
    assert world.verdict("a", "a").in_charge is None, "the old source sees no other cluster: it does not know"


def test_a_source_that_does_not_see_its_destination_is_not_certain() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    world.pass_time(5, {"a": "a", "b": "ab"})
    assert world.verdict("a", "a").in_charge is None
    assert "b has not been read" in world.verdict("a", "a").why
    assert world.verdict("b", "a").in_charge is True


def test_a_topic_moves_there_and_back_as_often_as_wanted() -> None:
    world = World()
    for target in ("b", "a") * 3:
        world.add(target)
        world.pass_time(5, ALL)
        assert world.those_in_charge() == {OTHER[target]}
        world.stop(target)
        world.pass_time(5, ALL)
        assert world.those_in_charge() == {target}
        assert world.verdict(target, OTHER[target]).in_charge is False
    assert world.stored["a"][TOPIC].term == 6


def test_a_disaster_after_a_topic_has_moved_back_is_survived_without_the_other_cluster() -> None:
    world = World()
    for target in ("b", "a", "b"):
        world.add(target)
        world.stop(target)
    world.pass_time(5, {"b": "b"})
    assert world.verdict("b", "b").in_charge is True


def test_a_cluster_with_a_standby_on_record_must_see_it() -> None:
    world = World()
    for target in ("b", "a"):
        world.add(target)
        world.begin_stop(target)
        if target == "b":
            world.end_stop(target)
    world.pass_time(5, {"a": "ab", "b": "b"})
    assert world.verdict("b", "b").in_charge is None
    assert "a may have taken over" in world.verdict("b", "b").why
    world.end_stop("a")
    world.pass_time(5, {"a": "a", "b": "b"})
    assert world.verdict("a", "a").in_charge is True


def test_a_cluster_that_its_source_has_not_on_record_is_not_certain() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.claim("a")
    world.complete("a")
    world.stop("a")
    world.pass_time(5, ALL)
    assert world.verdict("a", "a").in_charge is None
    assert "on record that this one may take over" in world.verdict("a", "a").why
    world.pass_time(5, {"a": "", "b": "b"})
    assert world.verdict("b", "b").in_charge is True, "it cannot know"


def test_a_stop_that_the_source_has_not_on_record_is_not_believed() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.add("a")
    world.stop("a")
    planted = replace(world.stored["a"][TOPIC], term=99)
    world.stored["a"][TOPIC] = planted
    world.pass_time(5, ALL)
    assert planted.announced is True
    assert world.those_in_charge() == set()


def test_what_the_source_has_on_record_counts_if_it_is_seen() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.claim("a")
    world.announce("a")
    world.stop("a")
    assert world.stored["a"][TOPIC].announced is None
    world.pass_time(5, ALL)
    assert world.those_in_charge() == {"a"}
    world.pass_time(5, {"a": "a", "b": "b"})
    assert world.those_in_charge() == set()


def test_a_standby_that_has_lost_its_record_leaves_it_open_who_is_in_charge() -> None:
    world = World()
    for target in ("b", "a"):
        world.add(target)
        world.stop(target)
    world.delete("a")
    world.pass_time(5, ALL)
    assert world.those_in_charge() == set()
    assert world.verdict("b", "b").in_charge is None
    assert world.verdict("a", "a").in_charge is False


def test_a_mirror_that_has_moved_in_part_has_no_end_in_charge_but_its_topics_have() -> None:
    world = World()
    for topic in ("orders", "clicks"):
        world.add("b", topic)
    world.stop("b", "clicks")
    world.pass_time(5, ALL)
    assert world.those_in_charge() == set()
    assert "1 of 2 topics" in world.verdict("a", "b").why
    assert world.verdict("a", "b", "clicks").in_charge is True
    assert world.verdict("a", "a", "clicks").in_charge is False
    assert world.verdict("a", "a", "orders").in_charge is True


def test_a_topic_that_is_late_does_not_keep_the_clients_of_others_out() -> None:
    world = World()
    for topic in ("orders", "clicks", "users"):
        world.add("b", topic)
        world.begin_stop("b", topic)
    for topic in ("clicks", "users"):
        world.end_stop("b", topic)
    world.pass_time(5, ALL)
    assert world.those_in_charge() == {"b"}
    assert "not of 1 topic yet" in world.verdict("b", "b").why
    assert world.verdict("b", "b", "orders").in_charge is False
    world.end_stop("b", "orders")
    world.pass_time(0.5, ALL)
    assert world.those_in_charge() == {"b"}


def test_a_few_topics_do_not_speak_for_the_many_that_are_being_stopped() -> None:
    world = World()
    for topic in ("orders", "clicks", "users", "views"):
        world.add("b", topic)
        world.begin_stop("b", topic)
    for topic in ("orders", "clicks"):
        world.end_stop("b", topic)
        world.pass_time(5, ALL)
        assert world.those_in_charge() == set()
    assert "2 of 4 topics" in world.verdict("b", "b").why
    assert world.verdict("b", "b", "orders").in_charge is True
    world.end_stop("b", "users")
    world.pass_time(5, ALL)
    assert world.those_in_charge() == {"b"}


def test_a_late_topic_that_was_mirrored_back_counts() -> None:
    world = World()
    for topic in ("orders", "clicks", "users"):
        world.add("b", topic)
        world.begin_stop("b", topic)
    for topic in ("clicks", "users"):
        world.end_stop("b", topic)
    world.add("a", "orders")
    world.stop("a", "orders")
    world.pass_time(5, ALL)
    assert world.verdict("a", "a", "orders").in_charge is True
    assert world.those_in_charge() == set()


def test_a_cluster_that_is_about_to_be_in_charge_of_one_topic_only_is_not_certain() -> None:
    world = World()
    for topic in ("orders", "clicks"):
        world.add("b", topic)
    world.stop("b", "orders")
    world.pass_time(1, ALL)
    assert [world.verdict("a", side).in_charge for side in SIDES] == [None, None]


def test_a_new_topic_does_not_keep_the_clients_of_others_out() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    world.add("b", "clicks")
    world.pass_time(0.5, ALL)
    assert world.those_in_charge() == {"a"}
    assert world.verdict("a", "a", "clicks").in_charge is None


def test_a_topic_that_was_removed_from_its_mirror_does_not_count() -> None:
    world = World()
    for topic in ("orders", "clicks"):
        world.add("b", topic)
    world.stop("b", "clicks")
    world.stored["b"]["clicks"] = replace(world.stored["b"]["clicks"], stop_reason=Reason.REMOVED)
    world.pass_time(5, ALL)
    assert world.those_in_charge() == {"a"}
    assert world.verdict("a", "b", "clicks").in_charge is None


def test_an_answer_of_another_cluster_is_no_continuation() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    seen = world.seen["a"]["b"].after("id-x", "b:9092", State(), world.now, world.now)
    assert seen.first_seen_at == world.now
    assert not seen.holdings


def test_after_a_gap_nothing_counts_as_seen_before() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    world.pass_time(4, {"a": "a"})
    world.pass_time(0.5, ALL)
    assert world.verdict("a", "a").in_charge is None
    world.pass_time(SETTLED_S, ALL)
    assert world.verdict("a", "a").in_charge is True


def test_an_answer_that_takes_long_shows_what_was_stored_after_it_was_asked_for() -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)
    world.now += 0.1
    world.ask("b", "b")
    world.now += 2
    world.pass_time(0.5, {"a": "ab"})
    world.stop("b")
    world.answer(0)
    world.arrive(0)
    for _ in range(8):
        world.pass_time(0.5, {"b": "b"})
        assert len(world.those_in_charge()) <= 1
    assert world.those_in_charge() == {"b"}


def test_a_source_that_has_just_begun_to_copy_must_be_seen_doing_so_for_a_while() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.claim("a")
    world.complete("a")
    world.stop("a")
    world.pass_time(5, ALL)
    world.claim("b")
    world.pass_time(1, ALL)
    assert world.verdict("a", "a").in_charge is None
    world.pass_time(SETTLED_S, ALL)
    assert world.verdict("a", "a").in_charge is True


def test_a_cluster_that_is_not_watched_is_not_certain() -> None:
    world = World()
    assert world.verdict("a", "c").in_charge is None
    world.pass_time(5, ALL)
    assert "not known as an end of mirror m" in world.verdict("a", "a").why


def test_a_topic_of_the_same_name_in_another_mirror_says_nothing() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.pass_time(5, {"b": "b"})
    mirror = MirrorRecord("other", {}, {}, "id-z", "ops@host", 0)
    later = replace(world.stored["b"][TOPIC], mirror="other", term=9)
    stranger = SeenCluster("c").after("id-c", "c:9092", State.of([mirror, later]), world.now, world.now)
    clusters = [*world.seen["b"].values(), stranger]
    assert who_is_in_charge(clusters, MIRROR, "b", world.now).in_charge is True


def test_two_copies_stopped_by_different_operators_are_both_not_certain() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.pass_time(5, {"b": "b"})
    mirror = MirrorRecord(MIRROR, {}, {}, "id-a", "ops@host", 0)
    third = SeenCluster("c").after("id-c", "c:9092", State.of([mirror, world.stored["b"][TOPIC]]), world.now, world.now)
    clusters = [*world.seen["b"].values(), third]
    assert who_is_in_charge(clusters, MIRROR, "b", world.now).in_charge is None


def test_a_way_back_that_was_begun_without_seeing_the_source_has_never_two_in_charge() -> None:
    world = World()
    world.add("b")
    world.stop("b")
    world.claim("a", knows_source=False)
    world.complete("a")
    world.stop("a")
    world.pass_time(5, {"a": "a", "b": "b"})
    assert world.those_in_charge() == {"b"}, "each process sees its own cluster only"
    assert "on record that this one may take over" in world.verdict("a", "a").why


def test_a_mirror_that_was_begun_without_seeing_its_source_leads_to_a_yes_once_the_source_is_seen() -> None:
    world = World()
    world.claim("b", knows_source=False)
    world.complete("b")
    world.stop("b")
    world.pass_time(5, ALL)
    assert world.those_in_charge() == {"b"}, "nothing is stored at its source"
    world.pass_time(5, {"a": "a", "b": "b"})
    assert world.those_in_charge() == set()


def test_what_an_add_without_the_source_has_left_open_another_one_settles() -> None:
    world = World()
    for target in ("b", "a", "b"):
        world.add(target)
        world.stop(target)
    del world.stored["a"][TOPIC]
    world.claim("a", knows_source=False)
    world.complete("a")
    assert world.stored["a"][TOPIC].term == 2
    world.announce("a")
    world.complete("a")
    world.stop("a")
    assert world.stored["a"][TOPIC].term == 4
    world.pass_time(5, {"a": "a", "b": "b"})
    assert world.those_in_charge() == {"a"}


def test_terms_grow_whatever_is_known() -> None:
    world = World()
    assert next_term(None, None, is_source_known=True) == FIRST_TERM
    assert next_term(None, None, is_source_known=False) > FIRST_TERM
    world.claim("b")
    begun = holdings_in(world.state("b"))[TOPIC]
    assert next_term(begun, None, is_source_known=True) == FIRST_TERM, "an interrupted add is finished as it was begun"
    world.stop("b")
    former = holdings_in(world.state("b"))[TOPIC]
    assert next_term(former, None, is_source_known=False) == 3
    assert next_term(former, None, is_source_known=True) == 2
    assert next_term(None, former, is_source_known=True) == 2


def named_again(world: World, side: str, *, is_read: bool = True) -> list[SeenCluster]:
    """Return what is seen by process a, and a cluster under a second name, by which it can be read or not."""
    (another,) = (one for one in world.seen["a"].values() if one.name == side)
    again = replace(another, name=f"{side}-again")
    return [*world.seen["a"].values(), again if is_read else replace(again, asked_at=world.now - 60)]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_cluster_under_two_names_is_one_cluster(is_read: bool) -> None:
    world = World()
    world.add("b")
    world.pass_time(5, ALL)

    def yes(clusters: Sequence[SeenCluster]) -> set[str]:
        names = {one.name for one in clusters}
        return {name for name in names if who_is_in_charge(clusters, MIRROR, name, world.now).in_charge}

    for target in ("b", "a", "b"):
        other = OTHER[target]
        world.add(target)
        world.pass_time(5, ALL)
        assert yes(named_again(world, target, is_read=is_read)) == {other}
        assert yes(named_again(world, other, is_read=is_read)) == {other} | ({f"{other}-again"} if is_read else set())
        world.stop(target)
        world.pass_time(5, ALL)
        assert yes(named_again(world, other, is_read=is_read)) == {target}
        both = named_again(world, target, is_read=is_read)
        for clusters in (both, both[::-1]):
            assert yes(clusters) == {target} | ({f"{target}-again"} if is_read else set())
