"""How often a command waits for brokers: over a distance each turn costs a round trip, and partitions cost none.

A wire to a real broker counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import typed
from tests.support.installed_logs import create_topics
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.wire import API_VERSIONS, Turns, Wire

#: Longer than a broker and this process take between two turns, so that what is sent together counts as one.
DELAY_S = 0.05
#: To open the connection (two), for the cluster's id and kmirror's topics, and for what is in them.
READ = 4
#: The lock is taken in four turns while the state is read; it is read again, and written in three.
CHANGE = READ + 9
#: Beside what it reads: three changes of the state, and the fence, of which each step waits for the one before.
FAILOVER = 32
#: What a busy machine may add.
NOISE = 2
PARTITIONS = 5


@dataclass(frozen=True, slots=True)
class Far:
    """Mirrors of 10 and of 200 partitions, with a destination that is reached through a wire."""

    wire: Wire
    few: str
    many: str

    def turns(self, verb: str, mirror: str, *arguments: str) -> Turns:
        """Return the turns of a command."""
        self.wire.delay, self.wire.turns = DELAY_S, Turns()
        try:
            done = typed(f"{self.wire.host}:{self.wire.port}", verb, "--mirror", mirror, *arguments)
        finally:
            self.wire.delay = 0.0
        assert done.returncode == 0, done.stderr
        return self.wire.turns


@pytest.fixture(scope="module")
def far(
    forgetful: ForgetfulCluster, source_cluster: SandboxCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Far]:
    """Make the mirrors."""
    wire, names = forgetful.wire, (unique_topic("few"), unique_topic("many"))
    server, folder = f"{wire.host}:{wire.port}", tmp_path_factory.mktemp("far")
    config = source_cluster.write_client_properties(Path(folder) / "source.properties")
    with ExitStack() as stack:
        for name, topics in zip(names, (10 // PARTITIONS, 200 // PARTITIONS), strict=True):
            create_topics(source_cluster, {f"{name}-{number}": {} for number in range(topics)}, PARTITIONS)
            assert typed(server, "create", "--mirror", name, "--mirror-config", str(config)).returncode == 0
            stack.callback(typed, server, "delete", "--mirror", name, "--yes")
            assert typed(server, "add", "--mirror", name, "--topics", f"{name}-.*").returncode == 0
            # it waits until the leaders of new partitions know where their logs end
            assert typed(server, "describe", "--mirror", name).returncode == 0
        yield Far(wire, *names)


@pytest.mark.parametrize(
    ("verb", "arguments", "bound"),
    [
        ("config", (), READ),
        ("events", (), READ),
        # the topics, where they start and end, and twice whether the state has changed
        ("describe", (), READ + 5),
        # beside that what we may do there, what each step of a stop reads, and whether settings are accepted
        ("failover", ("--dry-run",), READ + 12),
    ],
)
def test_reading_takes_a_few_turns_over_one_connection(
    far: Far, verb: str, arguments: tuple[str, ...], bound: int
) -> None:
    for mirror in (far.few, far.many):
        turns = far.turns(verb, mirror, *arguments)
        assert turns.count <= bound + NOISE, str(turns.requests)
        assert turns.connections == 1
        assert [api_key for _, _, api_key in turns.requests].count(API_VERSIONS) == 1


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_changing_the_state_takes_the_lock_while_it_is_read(far: Far, verb: str) -> None:
    assert far.turns(verb, far.few).count <= CHANGE + NOISE
    assert far.turns(verb, far.many).count <= CHANGE + NOISE


@pytest.mark.slow
def test_a_failover_takes_no_more_turns_for_more_partitions(far: Far) -> None:
    assert far.turns("failover", far.few, "--yes").count <= FAILOVER + NOISE
    assert far.turns("failover", far.many, "--yes").count <= FAILOVER + NOISE
