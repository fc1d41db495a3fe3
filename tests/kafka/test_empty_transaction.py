"""Offsets are filled by transactions without records where markers may not be written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.transactions import ADD_PARTITIONS, END
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.writing.empty_transaction import EmptyTransactions
from kmirror.engine.spec import filling_transactional_ids
from kmirror.errors import BrokerError, OutcomeUnknown, Reason, RefusedError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.filling import begin_transactions
from tests.support.late_wire import Fate, LateWire
from tests.support.leader import Leader, batch_of, create_topic
from tests.support.oracle import console_consumer, librdkafka_records
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.spawned import PROCESSES
from tests.support.waiting import wait_until
from tests.support.wire import Turns, Wire

BEGIN = 22
#: Longer than a broker and this process take between two turns, so that what is sent together counts as one.
DELAY_S = 0.05
#: Turns that a busy machine may add.
NOISE = 2


@pytest.fixture
def cluster(wired: tuple[SandboxCluster, LateWire]) -> SandboxCluster:
    return wired[0]


def places_of(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(partitions)]


def ends(client: ClusterClient, partitions: list[TopicPartition]) -> list[int | None]:
    found = client.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True)
    return [found[partition].offset for partition in partitions]


IDS = 5


def ids_of(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(IDS)]


@pytest.fixture
def ids() -> list[str]:
    return ids_of(unique_topic("mirror"))


@pytest.fixture
def transactions(client: ClusterClient, ids: list[str]) -> Iterator[EmptyTransactions]:
    with closing(EmptyTransactions(client, ids)) as made:
        made.settle()
        yield made


@pytest.mark.slow
def test_each_partition_gets_so_many_markers_that_consumers_never_see(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    topic = create_topic(cluster, partitions=3)
    first, second, third = partitions = places_of(topic, 3)
    with Leader(cluster, topic) as leader:
        assert leader.append(batch_of(2), 0) == (0, 0)
        for counts in ({first: 1, second: 1, third: 1}, {first: 2, second: 0, third: 300}, {second: 17}):
            before = ends(client, partitions)
            assert transactions.fill(counts) == counts
            assert ends(client, partitions) == [
                (end or 0) + counts.get(at, 0) for at, end in zip(partitions, before, strict=True)
            ]
        assert leader.append(batch_of(1), 2) == (0, 5)
    for isolation in ("read_committed", "read_uncommitted"):
        records = librdkafka_records(cluster.bootstrap_servers, topic, 0, isolation)
        assert [record.offset for record in records] == [0, 1, 5]
        assert console_consumer(cluster, topic, 0, isolation) == records
        assert librdkafka_records(cluster.bootstrap_servers, topic, 2, isolation) == []


def test_many_partitions_in_each_transaction(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    partitions = places_of(create_topic(cluster, partitions=50), 50)
    wanted = {partition: 4 + number for number, partition in enumerate(partitions)}
    assert transactions.fill(wanted) == wanted
    assert ends(client, partitions) == list(wanted.values())
    assert transactions.fill({}) == {}
    assert ends(client, partitions) == list(wanted.values())


def test_what_may_not_begin_is_not_counted_and_not_written(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    (partition,) = places_of(create_topic(cluster), 1)
    questions = 0

    def may_begin() -> bool:
        nonlocal questions
        questions += 1
        return questions <= 3 * IDS

    written = transactions.fill({partition: 1000}, may_begin)[partition]
    assert 0 < written <= 3 * IDS
    assert ends(client, [partition]) == [written]


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED, Fate.LATE])
@pytest.mark.parametrize("kind", [ADD_PARTITIONS, END])
def test_after_a_missing_answer_settling_leaves_nothing_that_could_still_write(
    cluster: SandboxCluster,
    client: ClusterClient,
    wire: LateWire,
    transactions: EmptyTransactions,
    kind: int,
    fate: Fate,
) -> None:
    partitions = places_of(create_topic(cluster, partitions=2), 2)
    wire.plan(*[Fate.ANSWERED] * 12, fate, api_key=kind)
    with pytest.raises(OutcomeUnknown):
        transactions.fill(dict.fromkeys(partitions, 100))
    transactions.settle()
    written, same = ends(client, partitions)
    assert written == same
    assert 0 < (written or 0) < 100
    wire.deliver()  # shut out by then: it begins and ends nothing
    assert transactions.fill(dict.fromkeys(partitions, 10)) == dict.fromkeys(partitions, 10)
    assert ends(client, partitions) == [(written or 0) + 10] * 2


def test_an_answer_that_names_no_partition_counts_for_nothing(forgetful: ForgetfulCluster, ids: list[str]) -> None:
    """The request was carried out all the same: settling ends it, and the log end says how many markers there are."""
    (partition,) = places_of(create_topic(forgetful.cluster, partitions=1), 1)
    config = client_config({"bootstrap.servers": forgetful.behind_wire.bootstrap_servers})
    with ClusterClient(config) as client, closing(EmptyTransactions(client, ids[:1])) as transactions:
        transactions.settle()
        # no throttle, no topic, no tag
        forgetful.wire.spoil(lambda frame: frame_of(frame[4:8] + bytes(5) + b"\x01" + bytes(1)), api_key=ADD_PARTITIONS)
        with pytest.raises(OutcomeUnknown, match="says nothing of some partitions"):
            transactions.fill({partition: 1})
        assert forgetful.wire.all_fired
        transactions.settle()
        (end,) = ends(client, [partition])
        assert transactions.fill({partition: 2}) == {partition: 2}
        assert ends(client, [partition]) == [(end or 0) + 2]


def frame_of(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def turns_of(wire: Wire, act: Callable[[], object]) -> Turns:
    """Return the turns that something takes over a distance."""
    wire.delay, wire.turns = DELAY_S, Turns()
    try:
        act()
    finally:
        wire.delay = 0.0
    return wire.turns


def test_over_a_distance_a_small_gap_takes_a_few_turns(forgetful: ForgetfulCluster) -> None:
    """Ids that it does not need take no request, and what the others ask for is asked for together."""
    (partition,) = places_of(create_topic(forgetful.cluster, partitions=1), 1)
    names = filling_transactional_ids(unique_topic("mirror"), 0)
    config = client_config({"bootstrap.servers": forgetful.behind_wire.bootstrap_servers})
    # the coordinators have loaded what they know, and open what they need
    with ClusterClient(config) as client, closing(EmptyTransactions(client, names)) as before:
        before.settle()
    with ClusterClient(config) as client, closing(EmptyTransactions(client, names)) as transactions:

        def fill() -> None:
            transactions.prepare(3)
            assert transactions.fill({partition: 3}) == {partition: 3}

        asked = turns_of(forgetful.wire, fill).requests
        assert [api_key for _, _, api_key in asked].count(BEGIN) == 3
        # two to open a connection, to find the coordinator and to begin; two to open the others
        assert min(turn for turn, _, api_key in asked if api_key == ADD_PARTITIONS) <= 7 + NOISE
        # a successor settles all of them
        settling = turns_of(forgetful.wire, transactions.settle)
        assert [api_key for _, _, api_key in settling.requests].count(BEGIN) >= len(names)
        assert settling.count <= 2 + NOISE, str(settling.requests)
        assert ends(client, [partition]) == [3]


def test_ids_that_are_not_ready_fill_nothing(client: ClusterClient, ids: list[str], cluster: SandboxCluster) -> None:
    (partition,) = places_of(create_topic(cluster), 1)
    with closing(EmptyTransactions(client, ids)) as transactions:
        with pytest.raises(RuntimeError, match="prepare"):
            transactions.fill({partition: 1})
        transactions.prepare(2)
        assert transactions.fill({partition: 7}) == {partition: 7}
        with pytest.raises(BrokerError):
            transactions.fill({TopicPartition(partition.topic, 7): 1})
        # what the failed one began may be open: all ids must be settled, not only those that are needed next
        for act in (lambda: transactions.prepare(1), lambda: transactions.fill({partition: 1})):
            with pytest.raises(RuntimeError, match="settle"):
                act()
        transactions.settle()
        assert transactions.fill({partition: 1}) == {partition: 1}
        assert ends(client, [partition]) == [8]


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED])
def test_settling_without_an_answer_is_asked_for_again(
    cluster: SandboxCluster, client: ClusterClient, wire: LateWire, ids: list[str], fate: Fate
) -> None:
    (partition,) = places_of(create_topic(cluster), 1)
    with closing(EmptyTransactions(client, ids)) as transactions:
        wire.plan(fate, api_key=BEGIN)
        transactions.settle()
        transactions.fill({partition: 1})
    assert ends(client, [partition]) == [1]


def test_what_a_predecessor_left_open_is_ended_by_settling_which_shuts_it_out(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions, ids: list[str]
) -> None:
    partitions = places_of(create_topic(cluster, partitions=2), 2)
    begin_transactions(client, transactions, partitions)
    with closing(EmptyTransactions(client, ids)) as successor:
        successor.settle()
        # each id had one open
        assert ends(client, partitions) == [IDS, IDS]
        with pytest.raises(RefusedError, match="another client uses") as caught:
            transactions.fill(dict.fromkeys(partitions, 1))
        assert caught.value.reason is Reason.FENCED
        assert ends(client, partitions) == [IDS, IDS]
        successor.fill(dict.fromkeys(partitions, 1))
        assert ends(client, partitions) == [IDS + 1, IDS + 1]


def fill_until_killed(properties: Mapping[str, str], ids: Sequence[str], partition: TopicPartition, many: int) -> None:
    """Fill more offsets than there is time for, in a process of its own."""
    with ClusterClient(client_config(properties)) as client:
        transactions = EmptyTransactions(client, ids)
        transactions.settle()
        transactions.fill({partition: many})


@pytest.mark.slow
def test_one_that_is_killed_leaves_nothing_that_its_successor_does_not_end(
    cluster: SandboxCluster, client: ClusterClient, ids: list[str]
) -> None:
    (partition,) = places_of(create_topic(cluster), 1)
    arguments = cluster.client_properties(), ids, partition, 1_000_000
    process = PROCESSES.Process(target=fill_until_killed, args=arguments, daemon=True)
    process.start()
    try:
        wait_until(lambda: (ends(client, [partition])[0] or 0) > 50)
    finally:
        process.kill()
        process.join()
    with closing(EmptyTransactions(client, ids)) as successor:
        successor.settle()
        (end,) = ends(client, [partition])
        assert end is not None
        assert successor.fill({partition: 20}) == {partition: 20}
        # nothing of the killed one's has come in between, or does later
        assert ends(client, [partition]) == [end + 20]
        successor.settle()
        assert ends(client, [partition]) == [end + 20]


def test_a_partition_that_is_not_there(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    (partition,) = places_of(create_topic(cluster), 1)
    with pytest.raises(BrokerError) as caught:
        transactions.fill({partition: 1, TopicPartition(partition.topic, 7): 1})
    assert caught.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION
    transactions.settle()
    assert ends(client, [partition]) == [0]


@pytest.mark.long
def test_brokers_that_find_one_coordinator_at_a_time(make_cluster: MakeCluster, ids: list[str]) -> None:
    old = make_cluster("old", kafka_version="2.8.2")
    (partition,) = places_of(create_topic(old), 1)
    with (
        ClusterClient(client_config(old.client_properties())) as client,
        closing(EmptyTransactions(client, ids)) as transactions,
    ):
        transactions.settle()
        assert transactions.fill({partition: 100}) == {partition: 100}
        assert ends(client, [partition]) == [100]
