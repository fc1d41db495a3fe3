"""What is shown of mirrors between two real clusters: live numbers, last known ones, and why nothing moves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import ExitCode, Reason, RefusedError, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.show import open_transactions
from kmirror.ops.show.describe import describe, read_status
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.wait import Condition, wait
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    DesiredState,
    Incarnation,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
)
from kmirror.state.snapshot import Changes
from kmirror.status.mirror_status import MIRRORS, MirrorRow
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import delete_topic, make_topic, new_mirror, outcomes, produce, properties_of, selector
from tests.support.transactions import OpenTransaction
from tests.support.waiting import wait_until


@pytest.fixture
def topic(cluster_pair: ClusterPair) -> str:
    """Return a source topic of two partitions, with 5 records in partition 1."""
    name = unique_topic()
    make_topic(cluster_pair.source, name, 2)
    produce(cluster_pair.source, name, [f"value {i}" for i in range(5)], partition=1)
    return name


@pytest.fixture
def mirror(cluster_pair: ClusterPair, destination: Destination, topic: str) -> str:
    """Return a mirror of the topic; no engine copies it."""
    name = new_mirror(destination, cluster_pair.source)
    assert add(destination, name, selector(topic)).exit_code == ExitCode.OK
    return name


def remember(destination: Destination, mirror: str, *records: Record) -> None:
    change(destination, mirror, lambda _: Changes(records))


def row_of(destination: Destination, mirror: str, partition: int = 1) -> PartitionRow:
    return describe(destination, mirror)[partition]


def list_row(destination: Destination, mirror: str) -> MirrorRow:
    return next(row for row in list_mirrors(destination) if row.mirror == mirror)


def progress(mirror: str, topic: str, at_ms: int, lease_id: str = "gone") -> ProgressRecord:
    row = ProgressRow(topic, 1, 4, 4, 0, 3, 1_700_000_000_000, PartitionState.MIRRORING)
    return ProgressRecord(mirror, 0, lease_id, 1, 0, "h", 1, at_ms, (row,))


def test_offsets_are_read_live_on_both_sides(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    before = now_ms()
    empty, filled = describe(destination, mirror)
    assert (empty.source_offset, empty.destination_offset, empty.lag) == (0, 0, 0)
    assert (filled.source_offset, filled.source_high_watermark, filled.source_log_start) == (5, 5, 0)
    assert (filled.destination_offset, filled.destination_log_start, filled.lag) == (0, 0, 5)
    assert (filled.state, filled.topic_state) == (PartitionState.LOG_ALIGNMENT, TopicState.PENDING_MIRROR)
    assert filled.reason is Reason.NO_ENGINE
    assert filled.as_of_ms is not None
    assert filled.as_of_ms >= before
    produce(cluster_pair.destination, topic, ["not ours"], partition=1)
    assert row_of(destination, mirror).lag == 4


def test_a_topic_with_an_open_transaction_counts_to_its_last_stable_offset(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    from confluent_kafka import Producer

    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": f"x-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "undecided", partition=1)
    producer.flush(30)
    row = row_of(destination, mirror)
    assert (row.source_offset, row.source_high_watermark, row.lag) == (5, 6, 5)
    producer.abort_transaction(30)


@pytest.mark.slow
def test_a_transaction_that_holds_a_copy_back_for_long_is_named(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    remember(destination, mirror, *(aligned(mirror, topic, index) for index in range(2)))
    produce(cluster_pair.destination, topic, [f"value {i}" for i in range(4)], partition=1)
    with OpenTransaction(cluster_pair.source, topic, partitions=2) as transaction:
        lagging, blocked = describe(destination, mirror, transactions_after_ms=0)[::-1]
        assert (lagging.reason, lagging.lag) == (Reason.NO_ENGINE, 1)
        assert (blocked.reason, blocked.source_offset, blocked.source_high_watermark) == (Reason.NO_ENGINE, 0, 10)
        assert "by an open transaction of producer id" in (blocked.error_message or "")
        assert exit_code_of_describe(cluster_pair, mirror) == 0

        produce(cluster_pair.destination, topic, ["value 4"], partition=1)
        row = describe(destination, mirror, transactions_after_ms=0)[1]
        assert (row.state, row.topic_state, row.lag) == (PartitionState.MIRRORING, TopicState.LINK_FAILED, 0)
        assert row.reason is Reason.NO_ENGINE
        producer_id = open_producer(cluster_pair.source, TopicPartition(topic, 1))
        message = row.error_message or ""
        assert f"blocked at offset 5 by an open transaction of producer id {producer_id} (transactional id " in message
        assert ", Ongoing), begun " in message
        assert "ago at offset 5; let its application end it, or run: kafka-transactions.sh " in message
        assert f"abort --topic {topic} --partition 1 --start-offset 5" in message
        assert message.startswith(
            f"no engine copies mirror {mirror}; `kmirror run --mirror {mirror}` starts one; it is also"
        )
        # an application at work is neither reported nor a failure
        assert row_of(destination, mirror).reason is Reason.NO_ENGINE
        assert describe(destination, mirror, failed=True, transactions_after_ms=0) == ()
        assert wait(destination, mirror, Condition.CAUGHT_UP, 100).exit_code == ExitCode.OK
        transaction.commit()
    # the coordinator has answered before its markers are written (KIP-98)
    wait_until(lambda: describe(destination, mirror, transactions_after_ms=0)[1].source_offset == 16)
    row = describe(destination, mirror, transactions_after_ms=0)[1]
    assert (row.reason, row.lag) == (Reason.NO_ENGINE, 11)


def open_producer(source: SandboxCluster, partition: TopicPartition) -> int:
    with ClusterClient(client_config(properties_of(source))) as client:
        found = describe_producers(client, [partition])[partition].producers
    (producer_id,) = [one.producer_id for one in found if one.current_txn_start_offset is not None]
    return producer_id


def exit_code_of_describe(pair: ClusterPair, mirror: str) -> int:
    return main(["describe", "--mirror", mirror, "--bootstrap-server", pair.destination.bootstrap_servers])


def test_a_look_for_transactions_that_fails_spoils_nothing(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(destination, mirror, *(aligned(mirror, topic, index) for index in range(2)))
    with OpenTransaction(cluster_pair.source, topic):

        def refuse(*_: object, **__: object) -> NoReturn:
            raise UnreachableError("no broker answers")

        monkeypatch.setattr(open_transactions, "describe_producers", refuse)
        row = describe(destination, mirror, transactions_after_ms=0)[0]
        assert (row.reason, row.source_high_watermark, row.topic_state) == (
            Reason.NO_ENGINE,
            10,
            TopicState.LINK_FAILED,
        )


def test_failed_and_stopped_partitions_are_shown_wide(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, state, reason in (
        (0, PartitionState.STOPPED, Reason.FAILED_OVER),
        (1, PartitionState.FAILED, Reason.SOURCE_DIVERGED),
    ):
        remember(destination, mirror, PartitionRecord(mirror, topic, index, state, now_ms(), reason, "at 3"))
    wide = "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG"
    for flag, more, partition, end in (
        ("--stopped", "LAST-MIRRORED-OFFSET LAST-MIRRORED-EPOCH STOPPED REASON", "0", "FAILED_OVER"),
        ("--failed", "TIME-LAG RETRY REASON ERROR", "1", "at 3"),
    ):
        words = ["describe", "--mirror", mirror, flag, "--wide"]
        assert main([*words, "--bootstrap-server", cluster_pair.destination.bootstrap_servers]) == 0
        header, row = capsys.readouterr().out.splitlines()
        assert header.split() == f"{wide} {more}".split()
        assert row.split()[:3] == [mirror, topic, partition]
        assert end in row


def test_rows_are_sorted_and_filtered_by_destination_name(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    name = new_mirror(destination, cluster_pair.source, topic_prefix="z.")
    other = unique_topic("a")
    make_topic(cluster_pair.source, other)
    add(destination, name, selector(topic, other))
    rows = describe(destination, name)
    assert [(row.topic, row.partition) for row in rows] == [(f"z.{other}", 0), (f"z.{topic}", 0), (f"z.{topic}", 1)]
    assert {row.source_topic for row in describe(destination, name, selector(f"z.{other}"))} == {other}
    assert describe(destination, name, failed=True) == ()
    with pytest.raises(RefusedError, match="no such mirror topic"):
        describe(destination, name, selector(other))
    with pytest.raises(RefusedError, match=f"no mirror topic of mirror {name} matches"):
        describe(destination, name, selector("nothing.*"))
    with pytest.raises(RefusedError, match="there is no mirror"):
        describe(destination, f"{name}-not")


def test_with_an_engine_in_charge_whose_lane_reports_there_is_no_reason(
    destination: Destination, mirror: str, topic: str
) -> None:
    remember(destination, mirror, progress(mirror, topic, now_ms()))
    assert list_row(destination, mirror).engine is None
    lease = Lease.acquire(destination.store, mirror, EngineIdentity.of_this_process("app-7", "local[2]"))
    try:
        assert row_of(destination, mirror).reason is Reason.NO_WORKERS
        lease.heartbeat({0: Incarnation(1, 0)})
        remember(destination, mirror, progress(mirror, topic, now_ms(), lease.lease_id))
        row = row_of(destination, mirror)
        assert (row.state, row.reason, row.error_message) == (PartitionState.MIRRORING, None, None)
        assert (list_row(destination, mirror).engine or "").endswith("/app-7")
        with pytest.raises(RefusedError, match="an engine is in charge"):
            delete(destination, mirror)
    finally:
        lease.release()
    assert row_of(destination, mirror).reason is Reason.NO_ENGINE


def move_source(destination: Destination, mirror: str, bootstrap_server: str, **more: str) -> None:
    """Store another address without the checks of `config`, as if the source had gone away."""
    found = destination.state().mirror(mirror)
    assert found is not None
    moved = {**found.source, "bootstrap.servers": bootstrap_server, **{k.replace("_", "."): v for k, v in more.items()}}
    remember(destination, mirror, replace(found, source=moved))


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Return the address of something that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    connections.append(server.accept()[0])
            except OSError:
                return

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("how", ["refusing", "silent"])
def test_a_source_that_is_down_leaves_last_known_values(
    destination: Destination, mirror: str, topic: str, silent_server: str, how: str
) -> None:
    seen_at = now_ms() - 60_000
    remember(destination, mirror, progress(mirror, topic, seen_at))
    move_source(destination, mirror, silent_server if how == "silent" else "127.0.0.1:1")
    row = row_of(destination, mirror)
    assert (row.source_offset, row.lag, row.last_known_lag, row.as_of_ms) == (4, None, 1, seen_at - 2000)
    assert row.destination_offset == 0
    assert row.topic_state is TopicState.SOURCE_UNAVAILABLE


def test_without_the_sources_secrets_describe_still_works(destination: Destination, mirror: str) -> None:
    found = destination.state().mirror(mirror)
    assert found is not None
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": "${env:KM_NOT_HERE}"}
    move_source(destination, mirror, found.source["bootstrap.servers"], **login)
    row = row_of(destination, mirror)
    assert (row.source_offset, row.lag, row.destination_offset) == (None, None, 0)
    assert row.topic_state is TopicState.PENDING_MIRROR


def test_another_cluster_behind_the_address_is_a_failed_link(destination: Destination, mirror: str) -> None:
    found = destination.state().mirror(mirror)
    assert found is not None
    remember(destination, mirror, replace(found, source_cluster_id="another"))
    row = row_of(destination, mirror)
    assert (row.topic_state, row.lag) == (TopicState.LINK_FAILED, None)


def test_wait_ends_when_the_source_end_seen_first_is_reached(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    remember(destination, mirror, aligned(mirror, topic, 0))
    missing = wait(destination, mirror, Condition.CAUGHT_UP, 300)
    assert missing.exit_code == ExitCode.TIMED_OUT
    assert missing.results[0].message is not None
    assert f"{topic}-1 is not caught-up: 5 offsets behind" in missing.results[0].message

    checks = 0

    def catch_up(rows: object) -> None:
        nonlocal checks
        checks += 1
        if checks == 1:  # the source grows, and what was there at first is copied
            produce(cluster_pair.source, topic, ["more"], partition=1)
            produce(cluster_pair.destination, topic, [f"value {i}" for i in range(5)], partition=1)
        if checks == 2:  # as long as a log is being aligned, what it holds may be filler
            remember(destination, mirror, aligned(mirror, topic, 1))

    reached = wait(destination, mirror, Condition.CAUGHT_UP, 60_000, on_check=catch_up)
    assert (reached.exit_code, outcomes(reached), checks) == (0, {topic: "DONE"}, 3)
    assert reached.results[0].lag == 1


def test_wait_outlasts_a_destination_that_does_not_answer_for_a_while(
    destination: Destination, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers are restarted while migrations wait; one that never answered is another matter."""
    seen: list[str] = []

    def read(*given: Any) -> Any:
        if len(seen) == 1:
            raise UnreachableError("no response from b:9092", "check", Reason.DESTINATION_UNREACHABLE)
        return read_status(*given)

    monkeypatch.setattr("kmirror.ops.show.wait.read_status", read)
    result = wait(destination, mirror, Condition.STOPPED, 3_000, on_check=seen.append)
    assert result.exit_code == ExitCode.TIMED_OUT
    assert seen[1] == "unknown now: no response from b:9092"
    assert len(seen) > 2
    seen[:] = ["one"]
    with pytest.raises(UnreachableError):
        wait(destination, mirror, Condition.STOPPED, 60_000)


def aligned(mirror: str, topic: str, partition: int) -> PartitionRecord:
    return PartitionRecord(mirror, topic, partition, PartitionState.MIRRORING, now_ms(), aligned=True)


def test_wait_says_at_once_that_the_source_it_needs_is_down(destination: Destination, mirror: str) -> None:
    move_source(destination, mirror, "127.0.0.1:1")
    with pytest.raises(UnreachableError) as caught:
        wait(destination, mirror, Condition.CAUGHT_UP, 600_000)
    assert caught.value.reason is Reason.SOURCE_UNREACHABLE


def test_wait_does_not_wait_for_what_failed(destination: Destination, mirror: str, topic: str) -> None:
    failed = PartitionRecord(mirror, topic, 1, PartitionState.FAILED, now_ms(), Reason.SOURCE_DIVERGED, "at 3")
    remember(destination, mirror, failed)
    result = wait(destination, mirror, Condition.CAUGHT_UP, 600_000)
    assert result.exit_code == ExitCode.HISTORIES_DIFFER
    assert wait(destination, mirror, Condition.STOPPED, 100).exit_code == ExitCode.TIMED_OUT


def test_wait_refuses_topics_that_are_not_there(cluster_pair: ClusterPair, destination: Destination) -> None:
    name = new_mirror(destination, cluster_pair.source)
    with pytest.raises(RefusedError, match="has no topics yet"):
        wait(destination, name, Condition.STOPPED, 100)
    with pytest.raises(RefusedError, match="there is no mirror"):
        wait(destination, f"{name}-not", Condition.STOPPED, 100)


def stop(destination: Destination, mirror: str, topic: str) -> None:
    """Record what a failover leaves behind."""
    record = destination.state().topic(mirror, topic)
    assert record is not None
    partitions = [
        PartitionRecord(mirror, topic, i, PartitionState.STOPPED, now_ms(), Reason.FAILED_OVER, last_mirrored_offset=7)
        for i in range(record.partitions)
    ]
    remember(destination, mirror, replace(record, desired=DesiredState.STOPPED), *partitions)


def test_delete_forgets_a_mirror_whose_topics_are_stopped_or_gone(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    gone = unique_topic("gone")
    make_topic(cluster_pair.source, gone)
    add(destination, mirror, selector(gone))
    with pytest.raises(RefusedError, match=f"2 topics that are neither stopped nor gone: {gone}, {topic}"):
        delete(destination, mirror)
    stop(destination, mirror, topic)
    with pytest.raises(RefusedError, match=f"neither stopped nor gone: {gone}$"):
        delete(destination, mirror)
    delete_topic(cluster_pair.destination, gone)
    assert row_of(destination, mirror, 2).state is PartitionState.STOPPED
    before = destination.state().records
    rehearsed = delete(destination, mirror, dry_run=True)
    assert rehearsed.exit_code == ExitCode.OK
    (row,) = rehearsed.results
    assert row.message == f"would delete mirror {mirror}; 1 topic is kept, with all records"
    assert destination.state().records == before
    assert delete(destination, mirror).exit_code == ExitCode.OK
    assert destination.state().keys_of(mirror) == ()
    assert topic in destination.client.metadata().topics
    recorded = destination.store.read_events(mirror)
    assert recorded[-1].what == "delete"
    for dry_run in (True, False):
        (row,) = delete(destination, mirror, dry_run=dry_run).results
        assert row.result is Outcome.NOOP
        assert str(row.message).startswith(f"mirror {mirror} was already deleted by ")
    assert destination.store.read_events(mirror) == recorded
    with pytest.raises(RefusedError, match="there is no mirror nobody-knows-it"):
        delete(destination, "nobody-knows-it")


def test_list_shows_every_mirror_once(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    empty = new_mirror(destination, cluster_pair.source)
    rows = {row.mirror: row for row in list_mirrors(destination)}
    assert MIRRORS.document(rows[mirror]) == {
        "mirror": mirror,
        "topics": 1,
        "stoppedTopics": 0,
        "partitions": 2,
        "sourceClusterId": cluster_pair.source.cluster_id,
        "sourceBootstrapServer": cluster_pair.source.bootstrap_servers,
        "state": "PENDING_MIRROR",
        "engine": None,
        "maxLag": 5,
        "reason": "NO_ENGINE",
        "engineLastSeenMs": None,
        "engineAgeMs": None,
        "throttleBytesPerSecond": None,
        "maxTimeLagMs": None,
        "bytesPerSecond": None,
        "etaMs": None,
        "lagUnknown": 0,
        "objectivesWithin": 0,
        "objectivesBreached": 0,
        "objectivesUnknown": 0,
        "notAdded": None,
        "failingJobs": None,
    }
    assert (rows[empty].topics, rows[empty].state, rows[empty].max_lag) == (0, None, None)
    assert [row.mirror for row in list_mirrors(destination)] == sorted(rows)


def test_a_destination_without_mirrors_shows_nothing_and_one_that_is_down_is_an_error(
    mortal_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = mortal_cluster
    with Destination.open(properties_of(own)) as destination:
        assert describe(destination) == ()
        assert list_mirrors(destination) == ()
        assert [t for t in destination.client.metadata().topics if t.startswith("__kmirror")] == []
        own.stop()
        monkeypatch.setattr(destination, "state", lambda: destination.store.read(2))  # a verb gives it half a minute
        with pytest.raises(UnreachableError) as caught:
            describe(destination)
    assert caught.value.reason is Reason.DESTINATION_UNREACHABLE
