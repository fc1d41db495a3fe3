"""A mirror from A to B before each verb that can be killed, the command line, and what must hold when it has ended.

Every scenario creates its own topics and mirror. `check` asks librdkafka for records and offsets.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kmirror.errors import Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.truncation_plan import read_plan
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.mirrors.pause import pause
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.state.records import DesiredState, PartitionRecord, PartitionState
from kmirror.state.workflow_records import WorkflowRecord
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import command, run_to_its_end
from tests.support.groups import commit, committed
from tests.support.local_engine import LocalEngine
from tests.support.log_batches import VisibleRecord
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.visible import assert_intact, assert_mirrored, bounds_of, shown
from tests.support.waiting import wait_until

RECORDS = ["one", "two", "three"]
END = len(RECORDS)


class Scenario(ABC):
    """Two topics with three records each, mirrored from A to B, and a group that has read two of the first one's."""

    #: How many records the verb writes at least, and how many steps it has; otherwise nothing would be proved.
    least_records: int
    least_steps: int = 0
    #: Whether a dry run announces all steps, whatever is still to be waited for.
    announces_all = True
    has_steps = True

    def __init__(self, pair: ClusterPair, folder: Path) -> None:
        self.a, self.b, self.folder = pair.source, pair.destination, folder
        self.topics = (unique_topic("first"), unique_topic("second"))
        self.group = unique_topic("g")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.at_a, self.at_b = (
                stack.enter_context(Destination.open(properties_of(one))) for one in (self.a, self.b)
            )
            self._stack = stack
            self.mirror = new_mirror(self.at_b, self.a)
            for topic in self.topics:
                # the records are old: brokers would delete them
                make_topic(self.a, topic, retention_ms="-1")
                produce(self.a, topic, RECORDS)
            commit(self.a, self.group, self.topics[0], {0: 2})
            assert add(self.at_b, self.mirror, selector(*self.topics)).exit_code == 0
            self.prepare()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The command line."""

    @abstractmethod
    def prepare(self) -> None:
        """Set up what the command finds."""

    @abstractmethod
    def check(self) -> None:
        """Fail if something is wrong when the command has ended."""

    def is_whole(self) -> bool:
        """Return whether a killed command may leave things as they are."""
        return True

    # -- helpers of scenarios -----------------------------------------------------------------------------------------

    def engine(self, at: Destination, *, groups: bool = False) -> LocalEngine:
        """Let an engine copy until the scenario is over, and wait until everything is copied."""
        jobs = [GroupSyncJob(self.mirror, at.properties)] if groups else []
        engine = self._stack.enter_context(LocalEngine(at, self.mirror, jobs))
        engine.catch_up()
        return engine

    def copy(self, at: Destination) -> None:
        """Copy everything."""
        with LocalEngine(at, self.mirror) as engine:
            engine.catch_up()

    def fail_over(self) -> None:
        """Put B in charge, with a record of its own in the first topic."""
        self.copy(self.at_b)
        assert failover(self.at_b, self.mirror).result.exit_code == 0
        produce(self.b, self.topics[0], ["local"])

    def properties_file(self, cluster: SandboxCluster) -> str:
        """Write the properties file to connect to a cluster."""
        file = self.folder / f"{cluster.name}.properties"
        file.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\n")
        return str(file)

    def assert_stopped(self, reason: Reason, *, end: int) -> None:
        """Check that B's topics are stopped at their last record, end where reported, and accept another record."""
        rows = describe(self.at_b, self.mirror)
        assert {(r.topic, r.state, r.reason, r.last_mirrored_offset) for r in rows} == {
            (topic, PartitionState.STOPPED, reason, END) for topic in self.topics
        }
        for topic in self.topics:
            assert shown(self.b, topic) == shown(self.a, topic)
            assert bounds_of(self.b, topic) == (0, end)
            assert_intact(self.b, topic)
        produce(self.b, self.topics[0], ["written since"])
        assert shown(self.b, self.topics[0])[-1].offset == end

    def partition(self, topic: str) -> PartitionRecord:
        """Return what B stores about a topic's partition."""
        found = self.at_b.state().partition(self.mirror, topic, 0)
        assert found is not None
        return found

    def under_way(self, at: Destination) -> list[str]:
        """Return what is stored of unfinished work."""
        records = at.state().records.values()
        return [one.name for one in records if isinstance(one, WorkflowRecord) and one.mirror == self.mirror]


class FailingOver(Scenario):
    """With a running engine, which must be fenced."""

    least_records = 4
    least_steps = 8

    def prepare(self) -> None:
        self.engine(self.at_b)

    @property
    def command(self) -> list[str]:
        return command(self.b, "failover", "--mirror", self.mirror, "--yes")

    def check(self) -> None:
        # one marker in each partition, however often it was begun
        self.assert_stopped(Reason.FAILED_OVER, end=END + 1)
        record = self.at_b.state().mirror(self.mirror)
        assert record is not None
        assert record.discovery_ended


class Removing(Scenario):
    """One of two topics, while the engine continues with the other."""

    least_records = 3
    least_steps = 7

    def prepare(self) -> None:
        self._engine = self.engine(self.at_b)

    @property
    def command(self) -> list[str]:
        return command(self.b, "remove", "--mirror", self.mirror, "--topics", self.topics[0], "--yes")

    def check(self) -> None:
        removed, kept = self.topics
        for topic in self.topics:
            produce(self.a, topic, ["four"])
        self._engine.catch_up()
        assert_mirrored(self.a, self.b, kept)
        # the engine had released it, no one had to be fenced
        assert bounds_of(self.b, removed) == (0, END)
        assert shown(self.b, removed) == shown(self.a, removed)[:END]
        rows = {row.topic: row for row in describe(self.at_b, self.mirror)}
        assert (rows[removed].state, rows[removed].reason) == (PartitionState.STOPPED, Reason.REMOVED)
        assert rows[removed].last_mirrored_offset == END
        assert rows[kept].state is PartitionState.MIRRORING
        record = self.at_b.state().mirror(self.mirror)
        assert record is not None
        assert record.settings["topics.exclude"] == removed


class Promoting(Scenario):
    """With a running engine, and a synced group: all topics together."""

    least_records = 5
    least_steps = 9
    announces_all = False

    def prepare(self) -> None:
        self.engine(self.at_b)

    @property
    def command(self) -> list[str]:
        words = ("--mirror", self.mirror, "--allow-producers", "--together", "--timeout", "90s")
        return command(self.b, "promote", *words)

    def is_whole(self) -> bool:
        """Never half of the topics."""
        return len({(one.desired, one.pending_operation) for one in self.at_b.state().topics(self.mirror)}) == 1

    def check(self) -> None:
        assert committed(self.b, self.group, self.topics[0]) == {0: 2}
        self.assert_stopped(Reason.PROMOTED, end=END)


class PromotingAlone(Promoting):
    """Without an engine: it starts one itself, which ends with it."""

    def prepare(self) -> None:
        """Leave all copying to the command."""

    def processes(self) -> list[int]:
        """Return the pids of all processes whose command line names the mirror."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if self.mirror.encode() in entry.read_bytes():
                    found.append(int(entry.parent.name))
        return found


class Pausing(Scenario):
    """One of two topics; the other is still copied."""

    least_records = 1
    has_steps = False

    def prepare(self) -> None:
        self._engine = self.engine(self.at_b)

    @property
    def command(self) -> list[str]:
        return command(self.b, "pause", "--mirror", self.mirror, "--topics", self.topics[0])

    def check(self) -> None:
        paused, going = self.topics
        rows = {row.topic: row for row in describe(self.at_b, self.mirror)}
        assert (rows[paused].state, rows[paused].topic_state) == (PartitionState.PAUSED, TopicState.PAUSED)
        for topic in self.topics:
            produce(self.a, topic, ["four"])
        self._engine.catch_up()
        assert_mirrored(self.a, self.b, going)
        assert bounds_of(self.b, paused) == (0, END)


class Resuming(Scenario):
    """A mirror that was paused as a whole."""

    least_records = 1
    has_steps = False

    def prepare(self) -> None:
        self._engine = self.engine(self.at_b)
        assert pause(self.at_b, self.mirror).exit_code == 0
        for topic in self.topics:
            produce(self.a, topic, ["four"])

    @property
    def command(self) -> list[str]:
        return command(self.b, "resume", "--mirror", self.mirror)

    def check(self) -> None:
        record = self.at_b.state().mirror(self.mirror)
        assert record is not None
        assert not record.paused
        wait_until(lambda: all(bounds_of(self.b, topic).end == END + 1 for topic in self.topics))
        for topic in self.topics:
            assert_mirrored(self.a, self.b, topic)


class Deleting(Scenario):
    """A mirror whose topics are stopped."""

    least_records = 1
    has_steps = False

    def prepare(self) -> None:
        self.fail_over()
        self._before = {topic: shown(self.b, topic) for topic in self.topics}

    @property
    def command(self) -> list[str]:
        return command(self.b, "delete", "--mirror", self.mirror, "--yes")

    def check(self) -> None:
        state = self.at_b.state()
        assert state.mirror(self.mirror) is None
        assert state.keys_of(self.mirror) == ()
        assert {topic: shown(self.b, topic) for topic in self.topics} == self._before


class Applying(Scenario):
    """A file with a new mirror, a changed one, and without one of its topics, which is named to be removed."""

    least_records = 9
    has_steps = False

    def prepare(self) -> None:
        self.new = unique_topic("new")
        self._file = self.folder / f"{self.mirror}.toml"
        source = f'source = {{ "bootstrap.servers" = "{self.a.bootstrap_servers}" }}'
        first, second = self.topics
        self._file.write_text(
            f"""
            [mirrors.{self.new}]
            topics = ["{first}", "{second}"]
            paused-topics = ["{self.new}.{second}"]
            {source}
            settings = {{ "topic.prefix" = "{self.new}." }}
            [mirrors.{self.mirror}]
            topics = ["{first}"]
            paused = true
            {source}
            settings = {{ "retry.timeout.ms" = 60000 }}
            """
        )

    @property
    def command(self) -> list[str]:
        return command(self.b, "apply", "-f", str(self._file), "--prune-topics", self.topics[1], "--yes")

    def check(self) -> None:
        again = run_to_its_end([*self.command, "--json"])
        assert again.returncode == 0
        assert json.loads(again.stdout)["changes"] == []
        state = self.at_b.state()
        first, second = self.topics
        new = {one.topic: (one.desired, one.pending_operation) for one in state.topics(self.new)}
        assert new == {
            f"{self.new}.{first}": (DesiredState.ACTIVE, None),
            f"{self.new}.{second}": (DesiredState.PAUSED, None),
        }
        record = state.mirror(self.mirror)
        assert record is not None
        assert (record.paused, record.settings["retry.timeout.ms"]) == (True, "60000")
        changed = {one.topic: (one.desired, one.pending_operation) for one in state.topics(self.mirror)}
        assert changed == {first: (DesiredState.PAUSED, None), second: (DesiredState.STOPPED, None)}
        produce(self.b, second, ["local"])


class _Returning(Scenario):
    """A becomes the mirror of B."""

    @property
    def command(self) -> list[str]:
        words = ("--mirror", self.mirror, "--mirror-config", self.properties_file(self.b), "--yes", *self.how)
        return command(self.a, "failback", *words)

    how: tuple[str, ...] = ()

    def check(self) -> None:
        assert self.under_way(self.at_a) == []
        self.copy(self.at_a)
        for topic in self.topics:
            assert_mirrored(self.b, self.a, topic)
            assert_intact(self.a, topic)
        assert shown(self.a, self.topics[0])[-1].value == b"local"
        assert committed(self.a, self.group, self.topics[0]) == {0: 2}
        record = self.at_a.state().group(self.mirror, self.group)
        assert record is not None
        assert record.ours(self.topics[0], 0)[0] == 2


class FailingBack(_Returning):
    """A has no records after the fork: its log is the beginning of B's."""

    least_records = 4
    least_steps = 5

    def prepare(self) -> None:
        self.fail_over()

    def check(self) -> None:
        super().check()
        assert not any(".kmirror-archive." in name for name in self._own_topics())

    def _own_topics(self) -> list[str]:
        return [name for name in self.at_a.client.metadata(None).topics if name.startswith(self.topics)]


class FailingBackByRecreating(_Returning):
    """Both topics of A have records after the fork."""

    least_records = 8
    least_steps = 14
    how = ("--recreate",)

    def prepare(self) -> None:
        self.fail_over()
        self._lost: dict[str, list[VisibleRecord]] = {}
        for topic in self.topics:
            produce(self.a, topic, ["lost-1", "lost-2"])
            self._lost[topic] = shown(self.a, topic)[END:]

    def check(self) -> None:
        super().check()
        for topic, records in self._lost.items():
            assert_holds(self.a, f"{topic}.kmirror-archive.1", records)
            assert f"{topic}.kmirror-archive.2" not in self.at_a.client.metadata(None).topics


class PlanningCuts(Scenario):
    """The first half of an offline failback of topics with records after the fork: save them and write the plan."""

    least_records = 6
    least_steps = 9

    def prepare(self) -> None:
        self.fail_over()
        self._plan = self.folder / f"{self.mirror}.plan"
        for topic in self.topics:
            produce(self.a, topic, ["lost-1", "lost-2"])

    @property
    def command(self) -> list[str]:
        words = ("--mirror", self.mirror, "--mirror-config", self.properties_file(self.b), "--yes")
        return command(self.a, "failback", *words, "--offline", "--plan", str(self._plan))

    def check(self) -> None:
        cuts = read_plan(self._plan).partitions
        assert {(cut.topic, cut.cut_offset, cut.expected_log_end) for cut in cuts} == {
            (topic, END, END + 2) for topic in self.topics
        }
        assert set(self.under_way(self.at_a)) == {"failback", *(f"failback {topic}" for topic in self.topics)}
        for topic in self.topics:
            assert_holds(self.a, f"{topic}.kmirror-archive.1", shown(self.a, topic)[END:])
            assert f"{topic}.kmirror-archive.2" not in self.at_a.client.metadata(None).topics
            assert len(shown(self.a, topic)) == END + 2


class SwitchingOver(_Returning):
    """With a running engine at B."""

    least_records = 10
    least_steps = 15
    announces_all = False

    def prepare(self) -> None:
        self.engine(self.at_b)

    @property
    def command(self) -> list[str]:
        words = ("--mirror", self.mirror, "--mirror-config", self.properties_file(self.b), "--timeout", "90s")
        return command(self.b, "switchover", *words)

    def check(self) -> None:
        assert self.under_way(self.at_b) in ([], ["promote"])
        assert committed(self.b, self.group, self.topics[0]) == {0: 2}
        rows = describe(self.at_b, self.mirror)
        assert {(row.state, row.last_mirrored_offset) for row in rows} == {(PartitionState.STOPPED, END)}
        produce(self.b, self.topics[0], ["local"])
        super().check()


class TurningRound(SwitchingOver):
    """The second half of a switchover: everything is promoted already."""

    least_records = 6
    least_steps = 9
    announces_all = False

    def prepare(self) -> None:
        with LocalEngine(self.at_b, self.mirror) as engine:
            engine.catch_up()
            done = promote(self.at_b, PromoteRequest(self.mirror, idle_ms=0, timeout_ms=120_000))
            assert done.result.exit_code == 0, done.result


ALL: tuple[type[Scenario], ...] = (
    FailingOver,
    Removing,
    Promoting,
    Pausing,
    Resuming,
    Deleting,
    Applying,
    FailingBack,
    FailingBackByRecreating,
    PlanningCuts,
    SwitchingOver,
    TurningRound,
)
