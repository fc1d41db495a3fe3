"""Addresses that lead elsewhere for a while: another cluster's broker answers there, or nothing that is a broker."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, TypeVar
from uuid import UUID

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest

from kmirror.cluster import client as cluster_client
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.connection import Connection, WrongClusterError, exchange_of
from kmirror.cluster.log_ahead import SpareConnections
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import INT32, Exchange
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.seen_brokers import SeenBrokers
from kmirror.engine.clock import now, now_ms
from kmirror.engine.driver.driver import RunView
from kmirror.engine.spark import application
from kmirror.errors import ExitCode, Reason, RefusedError, TimedOutError, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base import spark as spark_of_a_run
from kmirror.ops.base.context import Destination
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.check.check import check
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.run.engine_start import side_jobs_of
from kmirror.ops.run.run import run
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.engine import typed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.shared_clusters import BehindWire, ForgetfulCluster
from tests.support.side_jobs import view_of
from tests.support.stores import state_store
from tests.support.waiting import wait_until
from tests.support.wire import METADATA, Wire, closed_port, cut_to, listener
from tests.support.without_spark import ThreadRuntime

T = TypeVar("T")

#: What side jobs do only if it is wanted.
SWITCHES = (
    "sync_group_offsets_enabled",
    "sync_quotas_enabled",
    "emit_heartbeats_enabled",
    "emit_checkpoints_enabled",
)


@pytest.fixture(scope="module")
def fresh(make_module_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster that has never had a topic, nor a group."""
    return make_module_cluster("fresh")


@pytest.fixture
def led(forgetful: ForgetfulCluster) -> Iterator[ForgetfulCluster]:
    """Return a cluster that advertises the address of a wire, which a test may lead to another cluster."""
    yield forgetful
    lead(forgetful, forgetful.behind_wire)
    forgetful.wire.cut()


def lead(led: ForgetfulCluster, cluster: SandboxCluster) -> None:
    """Lead new connections to the address that the cluster advertises to another one."""
    host, port = cluster.bootstrap_servers.split(":")
    led.wire.lead_to(host, int(port))


def reasons(local: LocalEngine) -> set[Reason | None]:
    """Return what an engine and its lanes say of the source."""
    trouble = local.engine.source.trouble
    return {row.reason for row in local.engine.partitions.rows.values()} | {trouble.reason if trouble else None}


@pytest.mark.parametrize("bootstrap", ["led elsewhere too", "right"])
def test_a_source_is_copied_again_when_its_address_leads_back_to_it(
    led: ForgetfulCluster, source_cluster: SandboxCluster, destination: Destination, bootstrap: str
) -> None:
    """The connections to the other cluster stay open: it lives, and the address was only put right."""
    source = led.behind_wire if bootstrap == "right" else BehindWire(led.cluster, led.wire.port)
    topic = unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one"])
    mirror = new_mirror(destination, source, copy_lanes="1")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    make_topic(source_cluster, topic)
    produce(source_cluster, topic, ["another", "cluster's"])
    with LocalEngine(destination, mirror) as local:
        local.catch_up()
        lead(led, source_cluster)
        led.wire.cut()
        wait_until(lambda: reasons(local) == {Reason.SOURCE_CLUSTER_CHANGED}, 60)
        lead(led, led.behind_wire)
        produce(source, topic, ["two"])
        local.catch_up()
        wait_until(lambda: reasons(local) == {None}, 60)
        (row,) = local.engine.partitions.rows.values()
        assert row.destination_offset == 2
    assert any(
        f"cannot be mirrored: another cluster answers at {led.wire.host}:{led.wire.port}: its id is "
        f"{source_cluster.cluster_id}, not {led.cluster.cluster_id}" in note
        for note in local.notes
    )


def chatter(sock: socket.socket) -> None:
    """Talk, but not as a broker."""
    with suppress(OSError):
        sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_a_list_of_addresses_is_tried_to_its_end(cluster_pair: ClusterPair, destination: Destination) -> None:
    """Each that does not lead to the source costs a line in the log."""
    source, topic = cluster_pair.source, unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one"])
    mirror = new_mirror(destination, source, copy_lanes="1")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    host, port = source.bootstrap_servers.split(":")
    with (
        listener(socket.socket.close) as closing_port,
        listener(chatter) as talking,
        closing(Wire(host, int(port))) as wire,
    ):
        wire.lie(METADATA, cut_to(30))
        stale = {
            cluster_pair.destination.bootstrap_servers: "another cluster answers",
            f"127.0.0.1:{closed_port()}": "connection refused",
            f"127.0.0.1:{closing_port}": "handshake",
            f"127.0.0.1:{talking}": "handshake",
            f"127.0.0.1:{wire.port}": "cannot be read",
            "no-such-host.invalid:9092": "cannot connect",
        }
        servers = ",".join([*stale, source.bootstrap_servers])
        assert change_config(destination, mirror, {"bootstrap.servers": servers}).exit_code == 0
        with LocalEngine(destination, mirror) as local:
            local.catch_up()
            wait_until(lambda: sum("is of no use" in note for note in local.notes) >= len(stale))
    for address, why in stale.items():
        (line,) = [note for note in local.notes if note.startswith(f"{address} in the bootstrap.servers")]
        assert why in line


def test_a_cluster_is_found_by_the_brokers_it_reported_once_the_list_is_dead(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    host, port = source_cluster.bootstrap_servers.split(":")
    with closing(Wire(host, int(port))) as wire:
        properties = {"bootstrap.servers": f"{wire.host}:{wire.port}"}
        config = client_config(properties).expecting(source_cluster.cluster_id)
        with ClusterClient(config) as client:
            client.metadata([])
    with ClusterClient(config) as client:
        assert client.metadata([]).cluster_id == source_cluster.cluster_id
    # another cluster, or a login that does not expect this one, is not led there
    for other in (client_config(properties), config.expecting(destination_cluster.cluster_id)):
        with ClusterClient(other) as client, pytest.raises(UnreachableError, match="connection refused"):
            client.metadata([])


def answer_of(ask: Callable[[], T]) -> T:
    """Ask until the source answers in time: on a busy machine it may need longer than a command waits for it."""
    found = list[T]()

    def is_answered() -> bool:
        with suppress(UnreachableError):
            found.append(ask())
        return bool(found)

    wait_until(is_answered)
    return found[0]


@pytest.mark.slow
def test_a_leader_whose_advertised_address_leads_nowhere_is_named_with_the_cause(
    source_cluster: SandboxCluster, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(source_cluster, topic)
    mirror = new_mirror(destination, source_cluster)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    host, port = source_cluster.bootstrap_servers.split(":")
    gone = closed_port()
    why = f"broker 1 does not answer: cannot connect to 127.0.0.1:{gone}: connection refused"
    with closing(Wire(host, int(port))) as wire:
        assert change_config(destination, mirror, {"bootstrap.servers": f"{wire.host}:{wire.port}"}).exit_code == 0
        wire.lie(METADATA, lambda frame: frame.replace(INT32.pack(int(port)), INT32.pack(gone)))
        with LocalEngine(destination, mirror) as local:
            wait_until(lambda: any(why in str(row.message) for row in local.engine.partitions.rows.values()), 60)
            waited = answer_of(lambda: wait(destination, mirror, Condition.CAUGHT_UP, 1000))
        assert f"kmirror check --mirror {mirror}" in str(waited.results[0].hint)
        (row,) = answer_of(lambda: verify(destination, VerifyRequest(mirror))).rows
        report = check(destination.properties, mirror=mirror)
    assert row.message.startswith(f"could not be compared: broker 1 of the source, which leads {topic}-0, does not ")
    assert f"kmirror check --mirror {mirror}" in str(row.hint)
    (line,) = [line for line in report.lines if line.what == "broker 1" and not line.ok]
    assert f"cannot connect to 127.0.0.1:{gone}" in line.message
    assert "advertised.listeners" in str(line.hint)


def test_a_source_that_advertises_the_destination_is_refused(
    led: ForgetfulCluster, destination_cluster: SandboxCluster, destination: Destination
) -> None:
    source, topic, name = led.behind_wire, unique_topic(), unique_topic("m")
    make_topic(source, topic)
    mirror = new_mirror(destination, source)
    lead(led, destination_cluster)
    led.wire.cut()
    told = f"advertises its broker 1 at {led.wire.host}:{led.wire.port}, where the destination answers, "
    with pytest.raises(RefusedError, match=told) as refused:
        create(destination, name, properties_of(source))
    assert refused.value.reason is Reason.LOOP
    with pytest.raises(RefusedError, match=told):
        add(destination, mirror, selector(topic))
    report = check(properties_of(destination_cluster), properties=properties_of(source))
    (line,) = [line for line in report.lines if line.what == "advertised addresses"]
    assert (line.ok, line.reason, told in line.message) == (False, Reason.LOOP, True)
    assert report.exit_code != 0


@pytest.mark.slow
def test_a_destination_that_is_another_cluster_now_is_called_that(
    led: ForgetfulCluster, cluster_pair: ClusterPair
) -> None:
    source, topic = cluster_pair.source, unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one"])
    behind = BehindWire(led.cluster, led.wire.port)
    with Destination.open(properties_of(behind)) as destination:
        mirror = new_mirror(destination, source, copy_lanes="1")
        assert add(destination, mirror, selector(topic)).exit_code == 0
        with LocalEngine(destination, mirror) as local:
            local.catch_up()
            lead(led, cluster_pair.destination)
            led.wire.cut()
            told = f"another cluster answers at {led.wire.host}:{led.wire.port}: its id is"
            wait_until(lambda: any(told in note for note in local.notes), 60)
            wait_until(
                lambda: told in str([one.error_message for one in local.engine.live.current(now(), now_ms())]), 60
            )
            produce(source, topic, ["two"])
            lead(led, led.behind_wire)
            local.catch_up()
    assert not any("no worker" in note for note in local.notes), local.notes
    with ClusterClient(client_config(properties_of(cluster_pair.destination))) as client:
        assert client.metadata([topic]).topics[topic].error_code
    with Destination.open(properties_of(cluster_pair.destination)) as other:
        state = other.state()
        assert (state.engine(mirror), list(state.progress(mirror))) == (None, [])


class Names:
    """What resolves in this process: host names that lead to this machine, once they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._resolve = socket.getaddrinfo
        self.do_resolve = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def vanish(self) -> None:
        """Resolve no more; nor is anything remembered of brokers, as after a restart."""
        self.do_resolve.clear()
        self._monkeypatch.setattr(cluster_client, "SEEN_BROKERS", SeenBrokers())

    def _answer(self, host: str, *others: Any, **more: Any) -> Any:
        if not host.endswith(".invalid"):
            return self._resolve(host, *others, **more)
        if not self.do_resolve.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._resolve("127.0.0.1", *others, **more)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    for module in (application, spark_of_a_run):
        monkeypatch.setattr(module, "SparkRuntime", ThreadRuntime)
    return Names(monkeypatch)


def named(cluster: SandboxCluster) -> str:
    return cluster.bootstrap_servers.replace("127.0.0.1", "a-broker.invalid")


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["cannot connect to a-broker.invalid", "another cluster answers"])
def test_a_daemon_waits_for_its_source(
    names: Names, led: ForgetfulCluster, cluster_pair: ClusterPair, destination: Destination, trouble: str
) -> None:
    source, topic = BehindWire(led.cluster, led.wire.port), unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one"])
    mirror = new_mirror(destination, source, copy_lanes="1")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    names.do_resolve.set()
    assert change_config(destination, mirror, {"bootstrap.servers": named(source)}).exit_code == 0
    names.vanish()
    if trouble == "another cluster answers":
        names.do_resolve.set()
        lead(led, cluster_pair.source)
    notes: list[str] = []
    partition = TopicPartition(topic, 0)
    with ClusterClient(client_config(destination.properties)) as client:

        def watch(view: RunView) -> None:
            notes.extend(note.text for note in view.notes)
            if any(trouble in note for note in notes):
                names.do_resolve.set()
                lead(led, led.behind_wire)
            if client.list_offsets({partition: LATEST})[partition].offset == 1:
                signal.raise_signal(signal.SIGTERM)

        ended = run(lambda: Destination.open(destination.properties), RunRequest((mirror,), for_ms=60_000), watch)
        assert client.list_offsets({partition: LATEST})[partition].offset == 1, notes
    assert ended.exit_code == 0
    assert any(trouble in note for note in notes)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_run_that_must_end_waits_for_a_name_until_its_time_is_over(
    names: Names, cluster_pair: ClusterPair, destination: Destination, side: str
) -> None:
    mirror, properties = new_mirror(destination, cluster_pair.source), dict(destination.properties)
    if side == "source":
        names.do_resolve.set()
        servers = named(cluster_pair.source)
        assert change_config(destination, mirror, {"bootstrap.servers": servers}).exit_code == 0
        names.vanish()
    else:
        properties["bootstrap.servers"] = named(cluster_pair.destination)
    request = RunRequest((mirror,), until_caught_up=True, timeout_ms=2_000)
    with pytest.raises(TimedOutError, match=rf"waited 2 s for the clusters: the {side}: cannot connect to a-broker"):
        run(lambda: Destination.open(properties), request, lambda _: None)


def question_about(topic: str) -> Exchange:
    """Return a request that changes nothing."""
    return exchange_of(DescribeTransactionsRequest(transactional_ids=[topic]))


@pytest.mark.parametrize("after_a_question", [False, True])
def test_nothing_is_changed_on_another_cluster_before_it_has_said_that_it_is_one(
    cluster_pair: ClusterPair, after_a_question: bool
) -> None:
    from kafka.protocol.admin import DeleteTopicsRequest

    cluster = cluster_pair.destination
    config = client_config(properties_of(cluster)).expecting("another")
    (host, port), *_ = config.bootstrap_servers
    topics = [unique_topic() for _ in range(5)]
    for topic in topics:
        make_topic(cluster, topic)
        connection = Connection.open(host, port, config)
        state = DeleteTopicsRequest.DeleteTopicState(name=topic, topic_id=UUID(int=0))
        requests = [exchange_of(DeleteTopicsRequest(topics=[state], timeout_ms=10_000))]
        if after_a_question:
            requests.insert(0, question_about(topic))
        with closing(connection), pytest.raises(WrongClusterError, match=r"its id is .*, not another"):
            connection.request_all(requests)
    # what a broker has received it may carry out a moment later
    time.sleep(1)
    with ClusterClient(client_config(properties_of(cluster))) as client:
        assert {topic: client.metadata(topics).topics[topic].error_code for topic in topics} == dict.fromkeys(topics, 0)


def test_another_cluster_creates_no_topics_because_it_was_asked_for_coordinators(fresh: SandboxCluster) -> None:
    from kafka.protocol.metadata import FindCoordinatorRequest

    config = client_config(properties_of(fresh)).expecting("another")
    (host, port), *_ = config.bootstrap_servers
    for kind, key in enumerate(("a-group", "a-transactional-id")):
        connection = Connection.open(host, port, config)
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        with closing(connection), pytest.raises(WrongClusterError, match=r"its id is .*, not another"):
            connection.request(request)
    assert topics_once_asked(fresh) == set()


def test_the_state_is_written_to_no_other_cluster_than_it_was_read_from(
    led: ForgetfulCluster, fresh: SandboxCluster
) -> None:
    store = state_store(properties_of(BehindWire(led.cluster, led.wire.port)))
    store.ensure_topics()
    store.read()
    lead(led, fresh)
    led.wire.cut()
    for writer in (StateWriter(store, "engine", "a-mirror"), StateWriter(store, "operator", "a-mirror")):
        with closing(writer), pytest.raises(UnreachableError, match="another cluster answers"):
            writer.open(Deadline(30))
    assert topics_once_asked(fresh) == set()


def test_jobs_of_an_engine_go_to_no_other_cluster_than_the_engine(
    led: ForgetfulCluster, cluster_pair: ClusterPair
) -> None:
    """The other one may have a mirror of that name too, whose groups, rights and settings must stay as they are."""
    on = dict.fromkeys(SWITCHES, "true")
    with Destination.open(properties_of(BehindWire(led.cluster, led.wire.port))) as destination:
        topic = unique_topic()
        mirror = new_mirror(destination, cluster_pair.source, topics_include=f"{topic}-.*", **on)
        make_topic(cluster_pair.source, f"{topic}-1")
        assert add(destination, mirror, selector(f"{topic}-1")).exit_code == 0
        make_topic(cluster_pair.source, f"{topic}-2")
        view = view_of(destination, mirror)
        jobs = side_jobs_of(mirror, destination.properties, destination.cluster_id)
    lead(led, cluster_pair.destination)
    led.wire.cut()
    refused = set()
    for job in jobs:
        with closing(job), suppress(UnreachableError):
            list(job.run(view))
            continue
        refused.add(job.name)
    assert refused == {job.name for job in jobs}


def test_a_command_leaves_a_cluster_without_mirrors_as_it_was(fresh: SandboxCluster) -> None:
    for verb in (["pause"], ["resume"], ["failover", "--yes"], ["add", "--topics", "a"]):
        done = typed(fresh, *verb, "--mirror", "a-mirror")
        assert (done.returncode, "a-mirror" in done.stderr) == (ExitCode.REFUSED, True), done.stderr
        assert topics_once_asked(fresh) == set(), verb


def topics_once_asked(cluster: SandboxCluster) -> set[str]:
    """Return a cluster's topics, with all that were being created."""
    make_topic(cluster, unique_topic("later"))
    with ClusterClient(client_config(properties_of(cluster))) as client:
        return {topic for topic in client.metadata(None).topics if not topic.startswith("later-")}


def test_no_log_is_read_ahead_from_another_cluster(cluster_pair: ClusterPair) -> None:
    config = client_config(properties_of(cluster_pair.source)).expecting("another")
    (host, port), *_ = config.bootstrap_servers
    with (
        closing(SpareConnections(config)) as spare,
        pytest.raises(WrongClusterError, match=r"its id is .*, not another"),
    ):
        spare.take(host, port)
