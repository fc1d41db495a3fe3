"""Calls at once, in threads that hold up no one: a process that ends does not wait for brokers that are silent.

`run` took ten seconds more to end while its source was dark: Python waited for the threads that tried to connect.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kmirror.cluster.threaded_calls import begin_each, call_each
from tests.support.waiting import PATIENCE_S, wait_until

#: What waits for two silent addresses for an hour, each in a thread of a process that ends then.
WAITS = {
    "any": "open_any(addresses, config, 3600.0, {})",
    "each": "ClusterClient(config).connect_each(brokers, 3600.0)",
    "leaders": "ClusterClient(config).list_offsets(dict.fromkeys(leaders, -1), metadata=known, timeout=3600.0)",
}
ENDS = """
import sys, threading, time
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.reaching import SILENT_ADDRESSES, open_any
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import UnreachableError

addresses = [("127.0.0.1", int(port)) for port in sys.argv[2:]]
if sys.argv[1] == "any":
    for address in addresses:  # so that they are tried at once
        SILENT_ADDRESSES.note(address, UnreachableError("silent"))
config = client_config({
    "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in addresses),
    "socket.connection.setup.timeout.ms": "3600000",
    "request.timeout.ms": "3600000",
})
brokers = [Broker(node, *address) for node, address in enumerate(addresses)]
leaders = [TopicPartition("t", broker.node_id) for broker in brokers]
partitions = {one.partition: PartitionMetadata(one.partition, 0, one.partition, 0, (), ()) for one in leaders}
topic = TopicMetadata("t", 0, bytes(16), False, partitions)
known = ClusterMetadata("A", 0, {broker.node_id: broker for broker in brokers}, {"t": topic})
threading.Thread(target=lambda: WAIT, name="waits", daemon=True).start()
while sum(one.name.startswith("kmirror-") for one in threading.enumerate()) < 2:
    time.sleep(0.02)
"""


@pytest.fixture
def silent() -> Iterator[list[int]]:
    """Return two ports at which connections are made and nothing is answered."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        yield [server.getsockname()[1] for server in servers]


@pytest.mark.parametrize("kind", WAITS)
def test_a_process_that_ends_does_not_wait_for_silent_brokers(silent: list[int], kind: str) -> None:
    command = [sys.executable, "-c", ENDS.replace("WAIT", WAITS[kind]), kind, *map(str, silent)]
    assert subprocess.run(command, timeout=PATIENCE_S, check=False).returncode == 0


def test_so_many_are_called_at_once_and_what_is_cancelled_is_not() -> None:
    begun, may_end = list[int](), threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        may_end.wait(PATIENCE_S)
        if number == 1:
            raise ValueError("one")
        return 10 * number

    futures = begin_each(work, range(5), "kmirror-test", 2)
    wait_until(lambda: len(begun) == 2)
    assert futures[4].cancel()
    may_end.set()
    assert [future.result() for future in (futures[0], *futures[2:4])] == [0, 20, 30]
    assert str(futures[1].exception()) == "one"
    assert sorted(begun) == [0, 1, 2, 3]


def test_a_call_that_fails_does_not_leave_others_running() -> None:
    ended = list[int]()
    has_failed = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            has_failed.set()
            raise ValueError("none")
        has_failed.wait(PATIENCE_S)
        ended.append(number)

    with pytest.raises(ValueError, match="none"):
        call_each(work, range(3), "kmirror-test")
    assert sorted(ended) == [1, 2]


def test_one_call_needs_no_thread() -> None:
    assert call_each(lambda _: threading.current_thread(), [1], "kmirror-test") == [threading.current_thread()]
    assert call_each(str, list[int](), "kmirror-test") == []
