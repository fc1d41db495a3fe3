"""The campaign's oracle finds what is wrong with a copy, and its worlds are those of their seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from campaign.__main__ import again, run_worlds
from campaign.batches import Made, encode_batch
from campaign.contents import content_of
from campaign.engine import unexpected_failures
from campaign.histories import History, LogKind
from campaign.load import body
from campaign.nemesis import ACTS
from campaign.oracle import compare, compare_isolation
from campaign.reading import LOG_APPEND_TIME, Record, Seen, is_whole
from campaign.results import BEGIN, END, PAGE, Results, stored_tables, tables, was_done
from campaign.running import NOT_RUN
from campaign.watching import ends
from campaign.world import HOUSE_ACTS, STORE_ACTS, Act, Condition, Ending, Kind, World, with_acts, world_of
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.batch_records import read_records


def record(number: int, key: bytes | None = None, whole: bool = True) -> Record:
    return Record(key, number, 1000 + number, is_whole=whole)


def seen(start: int, end: int, *offsets: int) -> Seen:
    return Seen(start, end, {offset: record(offset) for offset in offsets or range(start, end)})


ACKS = {offset: {offset} for offset in range(10)}


def test_a_copy_like_its_source_is_right() -> None:
    assert compare(seen(0, 10), seen(0, 10), ACKS) == {}


def test_what_a_source_has_removed_at_its_begin_may_stay() -> None:
    assert compare(seen(4, 10), seen(0, 10), ACKS) == {}
    assert compare(seen(0, 10), seen(4, 10), ACKS) == {}


def test_gaps_that_no_consumer_sees_are_right() -> None:
    assert compare(seen(0, 10, 1, 2, 5), seen(0, 10, 1, 2, 5), {1: {1}}) == {}


def test_a_stopped_copy_ends_at_the_reported_offset_or_at_a_marker_behind() -> None:
    assert compare(seen(0, 10), seen(0, 7), ACKS, 7, 3) == {}
    assert compare(seen(0, 10), seen(0, 8, *range(7)), ACKS, 7, 3) == {}


@pytest.mark.parametrize(
    ("copy", "acks", "reported", "lost", "found"),
    [
        (seen(0, 9), {}, None, None, {"ends elsewhere"}),
        (seen(0, 10, 0, 1, 2, 4, 5, 6, 7, 8, 9), {}, None, None, {"lacks"}),
        (Seen(0, 10, {**seen(0, 10).records, 3: record(4)}), {}, None, None, {"differs"}),
        (Seen(0, 10, {**seen(0, 10).records, 3: record(3, whole=False)}), {}, None, None, {"differs", "is damaged"}),
        (Seen(0, 10, {**seen(0, 10).records, 3: record(3)._replace(timestamp=7)}), {}, None, None, {"differs"}),
        (Seen(0, 10, {**seen(0, 10).records, 3: record(3)._replace(key=b"")}), {}, None, None, {"differs"}),
        (seen(0, 10), {3: {99}}, None, None, {"was acknowledged and is another one"}),
        (seen(0, 8), ACKS, 7, None, {"ends elsewhere"}),
        (seen(0, 7), ACKS, 8, None, {"ends elsewhere", "was acknowledged and is lost"}),
        (seen(0, 7), ACKS, 7, 4, {"fewer are lost than was reported"}),
    ],
)
def test_what_is_wrong_is_found(
    copy: Seen, acks: dict[int, set[int]], reported: int | None, lost: int | None, found: set[str]
) -> None:
    assert set(compare(seen(0, 10), copy, acks, reported, lost)) == found


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


def test_what_replaces_a_record_has_to_be_there() -> None:
    source = Seen(0, 3, {0: record(0, b"a"), 2: record(2, b"b")})
    cleaned = Seen(0, 3, {0: record(0, b"a"), 1: record(1, b"a"), 2: record(2, b"b")})
    assert set(compare(source, cleaned, {}, compacted=True)) == {"is not at the source"}


def test_an_invented_record_is_found_also_where_the_source_has_deleted() -> None:
    source = seen(5, 10)
    assert compare(source, seen(0, 10), ACKS, all_acknowledged=True) == {}
    known = {offset: values for offset, values in ACKS.items() if offset != 2}
    assert set(compare(source, seen(0, 10), known, all_acknowledged=True)) == {"was never acknowledged"}
    assert set(compare(source, seen(0, 10), ACKS | {2: {99}})) == {"was acknowledged and is another one"}


def test_times_that_the_source_s_broker_set_are_kept_as_any_other() -> None:
    stamped = record(0)._replace(timestamp_type=LOG_APPEND_TIME)
    assert compare(Seen(0, 1, {0: stamped}), seen(0, 1), {}) == {}
    assert set(compare(seen(0, 1), Seen(0, 1, {0: stamped}), {})) == {"differs"}


def test_consumers_of_both_isolation_levels_see_the_same_of_a_copy() -> None:
    assert compare_isolation(seen(0, 3), seen(0, 3)) == {}
    assert set(compare_isolation(seen(0, 3), seen(0, 3, 0, 1))) == {"isolation levels differ"}
    assert set(compare_isolation(seen(0, 3), seen(0, 2))) == {"last stable offset is elsewhere"}


def test_a_record_is_named_by_all_that_it_holds() -> None:
    contents = [
        content_of(b"k", b"v", ()),
        content_of(b"k", None, ()),
        content_of(b"k", b"", ()),
        content_of(None, b"v", ()),
        content_of(b"", b"v", ()),
        content_of(b"k", b"v", (("h", b"1"),)),
        content_of(b"k", b"v", (("h", None),)),
        content_of(b"k", b"w", ()),
    ]
    assert len(set(contents)) == len(contents)
    assert content_of(b"k", b"v", None) == content_of(b"k", b"v", []) == contents[0]


def test_a_value_of_one_wrong_byte_is_found() -> None:
    value = body("orders", 3, b"xyz")
    assert is_whole("orders", value)
    assert not is_whole("orders", value.replace(b"y", b"Y"))
    assert not is_whole("other", value)


def test_a_seed_is_a_log() -> None:
    def written(seed: str) -> list[bytes]:
        history = History(seed, LogKind.PLAIN)
        return [step.batch for step in (history.step() for _ in range(40)) if step is not None]

    assert written("1/0") == written("1/0") != written("1/1")


def test_what_a_transaction_has_written_is_owed_once_it_is_committed() -> None:
    history, ends, committed = History("3", LogKind.PLAIN), 0, 0
    while not {"committed", "aborted"} <= history.features:
        before = len(history.acknowledged)
        if (step := history.step()) is None or step.transaction is None:
            continue
        history.took(step, ends)
        ends += len(step.contents)
        assert len(history.acknowledged) == before
        outcomes = [commit for _, _, commit in history.endings()]
        assert (len(history.acknowledged) > before) == any(outcomes)
        committed += any(outcomes)
    assert committed


def test_batches_are_those_that_kmirror_reads() -> None:
    """Two encoders that were written apart from each other agree."""
    records = [Made(1000 + n, b"k" if n % 2 else None, b"v" * n, (("h", None),)) for n in range(5)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        data = memoryview(bytearray(encode_batch(records, codec, 7, 1, 42, is_transactional=True)))
        (header,) = batch_headers(data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 42)
        assert [
            Made(one.timestamp, one.key, one.value, tuple(one.headers)) for one in read_records(data, header)
        ] == records


def test_a_seed_is_a_world() -> None:
    assert world_of(7) == world_of(7)
    worlds = [world_of(seed) for seed in range(0, 3200, 4)]
    assert {fault.act for world in worlds for fault in world.faults} == set(Act)
    assert all(world.ground.allows(fault.act) for world in worlds for fault in world.faults)
    assert {len(world.mirrors) for world in worlds} == {1, 2, 3}
    assert {len(world.ground.brokers) for world in worlds} == {2, 3}
    assert {world.ending for world in worlds} == set(Ending)
    assert {topic.kind for world in worlds for topic in world.topics} == set(Kind)


def test_some_clusters_are_far_away() -> None:
    worlds = [world_of(seed) for seed in range(100)]
    assert {world.round_trip_s for world in worlds} == {0.0, 0.02, 0.05, 0.1}
    assert {world.is_destination_far for world in worlds if world.round_trip_s} == {True, False}


def test_some_destinations_have_rules_of_their_own_and_some_addresses_lead_elsewhere() -> None:
    worlds = [world_of(seed) for seed in range(0, 800, 4)]
    for rule in ("has_policy", "forgets_groups", "has_decoy"):
        share = sum(getattr(world.ground, rule) for world in worlds) / len(worlds)
        assert 0.2 < share < 0.7, rule
    faults = [fault for world in worlds for fault in world.faults]
    assert 0.1 < sum(fault.act in HOUSE_ACTS for fault in faults) / len(faults) < 0.25
    without_decoy = {fault.act for world in worlds if not world.ground.has_decoy for fault in world.faults}
    assert Act.WRONG_CLUSTER not in without_decoy
    assert Act.MUTATION_QUOTA in without_decoy
    assert all(fault.seconds >= 3 for fault in faults if fault.act is Act.WRONG_CLUSTER)


def test_tiered_topics_are_on_either_side_and_their_stores_have_faults() -> None:
    worlds = [world_of(seed) for seed in range(0, 400, 4)]
    tiered = [world for world in worlds if world.ground.tiered]
    assert 0.5 < len(tiered) / len(worlds) < 0.8
    topics = [topic for world in tiered for topic in world.topics]
    assert len({(topic.tiered, topic.mirror_tiered) for topic in topics}) == 4
    others = [topic for world in worlds if world not in tiered for topic in world.topics]
    others += [topic for topic in topics if topic.kind is Kind.COMPACTED]
    assert not any(topic.tiered or topic.mirror_tiered for topic in others)
    assert {world.slow_start_s for world in worlds} == {0.0, 6.0, 15.0}
    acts = [fault.act for world in tiered for fault in world.faults]
    assert 0.25 < sum(act in STORE_ACTS for act in acts) / len(acts) < 0.4
    assert not {fault.act for world in worlds if world not in tiered for fault in world.faults} & set(STORE_ACTS)


def test_worlds_after_each_other_share_their_ground() -> None:
    assert len({str(world_of(seed).ground) for seed in range(16, 24)}) == 1
    assert world_of(7) != world_of(7, faults=5)
    assert all(8 <= len(world_of(seed, faults=10).faults) <= 10 for seed in range(50))


def test_each_act_is_one_that_a_mirror_survives_and_says_why() -> None:
    assert set(ACTS) == set(Act)
    assert all((act.__doc__ or "").startswith("Survived") for act in ACTS.values())


def test_a_fault_that_had_no_victim_is_not_counted() -> None:
    assert was_done({"act": Act.HOLE, "links": 1})
    assert not was_done({"act": Condition.TOPIC_POLICY, "nothing": "it had no effect"})
    assert not was_done({"act": Act.KILL_LANE, "nothing": "no such process"})
    assert not was_done({"act": Act.QUOTA, "error": "no answer"})


def test_a_world_can_be_had_with_some_acts_alone() -> None:
    acts = [Act.HOLE, Act.UNCLEAN_ELECTION]
    worlds = [with_acts(world_of(seed), acts) for seed in range(0, 200, 8)]
    assert {fault.act for world in worlds for fault in world.faults} == set(acts)
    assert all(world.ground.allows(fault.act) for world in worlds for fault in world.faults)


def test_a_world_with_a_violation_runs_a_second_time() -> None:
    results: list[dict[str, Any]] = []
    seeds = []
    for world in again([world_of(1, 15, 3), world_of(2, 15, 3), world_of(3, 15, 3)], results):
        seeds.append(world.seed)
        results.append({"seed": world.seed, "violations": [{}] if seeds == [1] or world.seed == 3 else []})
    assert seeds == [1, 1, 2, 3, 3]


def test_a_world_that_runs_again_and_one_after_a_broken_world_have_other_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []

    class NoClusters:
        sides = ()

        def __init__(self, _: Path) -> None:
            """Have no clusters."""

        def start(self, _: object) -> None:
            started.append(len(ran))

        def versions(self) -> list[str]:
            return []

        def close(self) -> None:
            """Have nothing to close."""

    ran: list[int] = []
    monkeypatch.setattr("campaign.__main__.Clusters", NoClusters)

    def run_world(world: World, *_: object) -> dict[str, Any]:
        ran.append(world.seed)
        return {"violations": [{"what": NOT_RUN}] if world.seed == 17 else []}

    monkeypatch.setattr("campaign.__main__.run_world", run_world)
    list(run_worlds([world_of(seed, 15, 3) for seed in (8, 9, 9, 10, 16, 17, 18, 19)], tmp_path, 3))
    assert (ran, started) == ([8, 9, 9, 10, 16, 17, 18, 19], [0, 2, 4, 6])


def test_each_topic_is_copied_by_one_mirror() -> None:
    for seed in range(50):
        world = world_of(seed)
        copied = [name for mirror in world.mirrors for name in world.names(mirror)]
        assert sorted(copied) == sorted(topic.name for topic in world.topics)


def test_a_value_says_what_it_is() -> None:
    assert body("orders", 3, b"x").startswith(b"orders|3|x|")


def test_what_may_explain_a_violation_is_stored_without_paths(tmp_path: Path) -> None:
    row = {"topic": "t", "partition": 0, "state": "FAILED", "lag": None, "engine": "host/1"}
    stopped = {"what": "not caught up", "rows": [row] * 9, "partitions lacking": ["u"]}
    failed = {"what": "the world could not be run", "error": "a verb ended with 5: see /tmp/a/b.log", "notes": []}
    file = tmp_path / "results.json"
    Results(file).add_world({"seed": 1, "faults": [], "violations": [stopped, failed]})
    (world,) = json.loads(file.read_text())["worlds"]
    short = {"topic": "t", "partition": 0, "state": "FAILED"}
    assert world["violations"] == [
        {"what": "not caught up", "partitions lacking": ["u"], "rows": [short] * 3},
        {"what": "the world could not be run", "error": "a verb ended with 5: see …/b.log"},
    ]


def test_results_are_added_up(tmp_path: Path) -> None:
    file = tmp_path / "campaign.json"
    found = {"seed": "7/0", "logs": 3, "violations": [{"what": "lacks", "count": 2, "offsets": [1, 2]}]}
    Results(file).add_logs(found)
    Results(file).add_world({"seed": 1, "faults": [{"act": "pause"}, {"act": "pause"}], "violations": []})
    stored = json.loads(file.read_text())
    assert stored["logs"][0]["violations"] == found["violations"]
    assert stored["worlds"][0]["faults"] == {"pause": 2}
    assert Results(file).known_logs == {"7/0"}


def test_the_tables_add_up_worlds_and_logs() -> None:
    run = {"commit": "abc", "date": "2026-01-01", "seconds": 1800.0, "violations": []}
    world = {**run, "ground": {"versions": ["3.9.2", "4.3.1"]}, "ending": "promote", "faults": {"pause": 2}}
    seen = {"records": 9, "hiddenOffsets": 3, "cleanedOffsets": 1}
    logs = {**run, **seen, "versions": ["4.3.1", "4.3.1"], "logs": 500, "faults": {"lane killed": 2}, "features": {}}
    text = tables({"worlds": [world, world], "logs": [logs, {**logs, "violations": [{"what": "lacks"}]}]})
    assert "| runs | 2 | 1,000 |" in text
    assert "| faults | 4 | 4 |" in text
    assert "| hours | 1.0 | 1.0 |" in text
    assert "| runs with a violation | 0 | 1 |" in text
    assert "generated logs held 18 records" in text
    assert "3.9.2 to 4.3.1, 4.3.1 to 4.3.1" in text


def test_the_page_says_what_was_found() -> None:
    """`python -m campaign.results` writes it."""
    assert BEGIN + stored_tables() + END in PAGE.read_text(encoding="utf-8")


def test_the_oracle_knows_nothing_of_kmirror() -> None:
    modules = "campaign.oracle, campaign.claims, campaign.watching"
    program = f"import sys, {modules}; print(sorted(name for name in sys.modules if name.startswith('kmirror')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_answer_without_an_offset_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaderless:
        def __init__(self, _: object) -> None:
            """Connect to nothing."""

        def list_offsets(self, asked: Mapping[TopicPartition, object], **_: object) -> dict[TopicPartition, Any]:
            answer: Future[Any] = Future()
            answer.set_result(SimpleNamespace(offset=-1001))
            return dict.fromkeys(asked, answer)

    monkeypatch.setattr("campaign.reading.AdminClient", Leaderless)
    assert ends("", [("t", 0)]) is None


def test_commands_never_end_unexpectedly(tmp_path: Path) -> None:
    verbs, engine = tmp_path / "verbs.log", tmp_path / "engine-m1.log"
    verbs.write_text("10:00:00-10:00:01 pause m1 -> 0\nb -> 1 more\n10:00:02-10:00:03 promote m1 --yes -> 10\n")
    engine.write_text("copying: 1 topic, offset 0 -> 1\n")
    assert unexpected_failures(tmp_path) == []
    verbs.write_text("10:00:00-10:00:01 add m1 --topics .* -> 1\n\n")
    engine.write_text("started\nTraceback (most recent call last):\n")
    assert unexpected_failures(tmp_path) == [
        "engine-m1.log:2: Traceback (most recent call last):",
        "verbs.log:1: 10:00:00-10:00:01 add m1 --topics .* -> 1",
    ]
