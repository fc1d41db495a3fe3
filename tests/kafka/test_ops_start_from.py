"""Where copies begin is looked up once, when a topic is added, and stays so whatever is said or happens later."""

from __future__ import annotations

import os
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror.errors import ExitCode
from kmirror.ops.add import add_steps
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.settings.value_types import parse_start_from
from kmirror.state.records import PartitionState
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector
from tests.support.spawned import exit_code_of
from tests.support.transactions import OpenTransaction

#: The time of a record follows from its length: these are of the first to fifth millisecond.
VALUES = ["a", "bb", "ccc", "dddd", "eeeee"]
TIME = 1_700_000_000_000


@pytest.fixture
def topic(cluster_pair: ClusterPair) -> str:
    """Return a source topic whose partitions 0 and 1 hold five and two records, and 2 none."""
    name = unique_topic()
    make_topic(cluster_pair.source, name, 3)
    produce(cluster_pair.source, name, VALUES)
    produce(cluster_pair.source, name, VALUES[:2], partition=1)
    return name


def first_offsets(destination: Destination, mirror: str, topic: str) -> dict[int, int | None]:
    """Return what is stored; it is in the partitions' records and nowhere else."""
    record = destination.state().topic(mirror, topic)
    assert record is not None
    assert (record.pending_operation, record.first_offsets) == (None, None)
    found = destination.state().partitions(mirror, topic)
    assert {partition.state for partition in found} <= {PartitionState.LOG_ALIGNMENT}
    return {partition.partition: partition.first_offset for partition in found}


def add_from(destination: Destination, mirror: str, topic: str, start: str, **options: Any) -> TopicResult:
    (row,) = add(destination, mirror, selector(topic), start_from=parse_start_from("x", start), **options).results
    return row


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {}),
        ("latest", {0: 5, 1: 2, 2: 0}),
        (f"timestamp:{TIME + 2}", {0: 1, 1: 1, 2: 0}),
        # nothing in partition 1 is that late, and nothing at all in partition 2
        (f"timestamp:{TIME + 3}", {0: 2, 1: 2, 2: 0}),
        (f"timestamp:{TIME}", {0: 0, 1: 0, 2: 0}),
        ("timestamp:2099-01-01", {0: 5, 1: 2, 2: 0}),
    ],
)
def test_each_partition_begins_where_its_log_was_at_that_moment(
    cluster_pair: ClusterPair, destination: Destination, topic: str, start: str, expected: dict[int, int]
) -> None:
    name = new_mirror(destination, cluster_pair.source)
    shown = ", ".join(f"{offset} (partition {index})" for index, offset in expected.items())
    dry = add_from(destination, name, topic, start, dry_run=True)
    assert (f"; begins at offset {shown}; " in (dry.message or "")) == bool(expected)
    assert destination.state().topics(name) == ()
    assert add_from(destination, name, topic, start).result is Outcome.DONE
    assert first_offsets(destination, name, topic) == expected


def test_the_mirrors_setting_decides_where_nothing_is_said(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    name = new_mirror(destination, cluster_pair.source, mirror_start_offset_spec="latest")
    assert add(destination, name, selector(topic)).exit_code == ExitCode.OK
    assert first_offsets(destination, name, topic) == {0: 5, 1: 2, 2: 0}
    other = unique_topic()
    make_topic(cluster_pair.source, other)
    add_from(destination, name, other, "earliest")
    assert first_offsets(destination, name, other) == {}


def test_what_an_open_transaction_holds_back_is_still_to_come(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    in_ten_minutes = now_ms() + 600_000
    with OpenTransaction(cluster_pair.source, topic):
        producer = Producer(properties_of(cluster_pair.source))
        producer.produce(topic, "behind it", partition=0, timestamp=2 * in_ten_minutes - now_ms())
        assert producer.flush(30) == 0
        for start in ("latest", f"timestamp:{in_ten_minutes}"):
            name = new_mirror(destination, cluster_pair.source, topic_prefix=f"{start[:2]}.")
            add_from(destination, name, topic, start)
            assert first_offsets(destination, name, f"{start[:2]}.{topic}") == {0: 5, 1: 2, 2: 0}


def test_adding_again_with_another_start_changes_nothing_and_says_so(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    name = new_mirror(destination, cluster_pair.source)
    add_from(destination, name, topic, "latest")
    before = destination.state().records
    produce(cluster_pair.source, topic, VALUES)
    for start in ("earliest", "latest"):
        row = add_from(destination, name, topic, start)
        assert row.result is Outcome.NOOP
        assert row.message == (
            f"{topic} is already a mirror topic; --start-from {start} does not change where it started"
        )
    assert destination.state().records == before


@pytest.mark.slow
@pytest.mark.parametrize("second", ["latest", "earliest"])
def test_an_add_that_was_interrupted_is_finished_with_the_offsets_it_had_found(
    cluster_pair: ClusterPair, destination: Destination, topic: str, second: str
) -> None:
    name = new_mirror(destination, cluster_pair.source)
    assert exit_code_of(add_and_die, destination.properties, name, topic) == 9
    produce(cluster_pair.source, topic, VALUES)
    admin = AdminClient(properties_of(cluster_pair.source))
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    delete_topic(cluster_pair.destination, topic)  # it had three partitions
    row = add_from(destination, name, topic, second)
    assert row.result is Outcome.DONE
    assert "begins at offset 5 (partition 0), 2 (partition 1), 0 (partition 2), as fixed when it" in (row.message or "")
    # the partition that came meanwhile begins at its start
    assert first_offsets(destination, name, topic) == {0: 5, 1: 2, 2: 0}


def add_and_die(properties: dict[str, str], name: str, topic: str) -> None:
    def die(*_: Any) -> None:
        os._exit(9)

    add_steps._complete = die  # type: ignore[assignment]
    with Destination.open(properties) as destination:
        add_from(destination, name, topic, "latest")


def test_a_topic_that_was_deleted_and_is_added_again_starts_over(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    name = new_mirror(destination, cluster_pair.source)
    add_from(destination, name, topic, "latest")
    produce(cluster_pair.source, topic, VALUES)
    delete_topic(cluster_pair.destination, topic)
    add_from(destination, name, topic, "latest")
    assert first_offsets(destination, name, topic) == {0: 10, 1: 2, 2: 0}
    delete_topic(cluster_pair.destination, topic)
    add_from(destination, name, topic, "earliest")
    assert set(first_offsets(destination, name, topic).values()) == {None}


def adoptable(pair: ClusterPair, topic: str, records: int) -> None:
    make_topic(pair.destination, topic, 3)
    produce(pair.destination, topic, VALUES[:records])


def test_what_an_adopted_topic_holds_decides_where_it_continues(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    adoptable(cluster_pair, topic, 2)
    name = new_mirror(destination, cluster_pair.source, start_from="latest")
    row = add_from(destination, name, topic, "latest", adopt=True)
    assert row.result is Outcome.REFUSED
    assert "already holds records" in (row.message or "")
    assert "omit --start-from latest" in (row.hint or "")
    done = add(destination, name, selector(topic), adopt=True)
    assert done.exit_code == ExitCode.OK
    assert any("start.from=latest does not apply to it" in warning for warning in done.warnings)
    assert first_offsets(destination, name, topic) == {0: None}
    (partition,) = destination.state().partitions(name, topic)
    assert partition.begun


def test_an_empty_topic_that_is_adopted_begins_at_the_given_offset(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    adoptable(cluster_pair, topic, 0)
    name = new_mirror(destination, cluster_pair.source)
    assert add_from(destination, name, topic, "latest", adopt=True).result is Outcome.DONE
    assert first_offsets(destination, name, topic) == {0: 5, 1: 2, 2: 0}


def test_a_source_that_does_not_say_where_is_refused(
    cluster_pair: ClusterPair, destination: Destination, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kmirror.cluster.client import ClusterClient, OffsetAnswer
    from kmirror.cluster.protocol.codes import Code

    ask = ClusterClient.list_offsets

    def without_leader(self: ClusterClient, wanted: Any, **options: Any) -> Any:
        answers = ask(self, wanted, **options)
        silent = OffsetAnswer(Code.LEADER_NOT_AVAILABLE, None, -1)
        return {p: silent if options.get("read_committed") and p.partition == 1 else a for p, a in answers.items()}

    monkeypatch.setattr(ClusterClient, "list_offsets", without_leader)
    name = new_mirror(destination, cluster_pair.source)
    row = add_from(destination, name, topic, "latest")
    assert row.result is Outcome.REFUSED
    assert f"cannot resolve start.from=latest for {topic}-1: LEADER_NOT_AVAILABLE" in (row.message or "")
    assert destination.state().topics(name) == ()
