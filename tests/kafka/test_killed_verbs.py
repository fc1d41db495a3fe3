"""Every verb, as a process of its own, gets SIGKILL; run again, it ends right.

It is killed right before or after a record that it writes, or after a step of its table. A dry run in between says what
the second run will do. Records and steps are counted from 1; `tests/support/killed_verbs.py` says what each verb finds
and what has to hold.
"""

from __future__ import annotations

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.ops.base.context import change
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.mirrors.pause import pause
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.records import DesiredState, PartitionState
from kmirror.state.snapshot import Changes
from kmirror.state.store import StateStore
from tests.support import killed_verbs
from tests.support.clusters import ClusterPair
from tests.support.engine import run_to_its_end
from tests.support.killed import Moment, run_killed
from tests.support.killed_verbs import Scenario
from tests.support.mirrors import selector
from tests.support.waiting import PATIENCE_S, wait_until

IDENTITY = EngineIdentity.of_this_process()


def killed_and_run_again(kind: type[Scenario], pair: ClusterPair, folder: Path, moment: Moment) -> bool:
    """Tell one scenario; return False when the command had ended before the moment came."""
    with kind(pair, folder) as scenario:
        was_killed, killed = run_killed(moment, scenario.command)
        print(f"{kind.__name__} {moment}:\n{killed.stderr}{killed.stdout}")  # noqa: T201 - shown with a failure
        if was_killed:
            assert scenario.is_whole()
            rehearsed = run_to_its_end([*scenario.command, "--dry-run", "--json"])
            again = run_to_its_end([*scenario.command, "--json"])
            print(f"again: {again.returncode}\n{again.stderr}{again.stdout}")  # noqa: T201 - shown with a failure
            assert again.returncode == 0
            if kind.has_steps:
                announced, done = (json.loads(one.stdout)["steps"] for one in (rehearsed, again))
                # what a promote waits for, and what comes after it, is not rehearsed before it is there
                assert announced == done if kind.announces_all else set(announced) <= set(done)
        scenario.check()
    return was_killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        pytest.param(kind, moment, id=f"{kind.__name__} {moment}", marks=marks)
        for kind, moment, marks in (
            (killed_verbs.FailingOver, Moment("before", 4), ()),
            (killed_verbs.FailingOver, Moment("step", 5), ()),
            (killed_verbs.Applying, Moment("before", 4), ()),
            (killed_verbs.Applying, Moment("after", 7), ()),
            (killed_verbs.Promoting, Moment("after", 3), pytest.mark.slow),
        )
    ],
)
def test_killed_at_a_record_and_run_again(
    cluster_pair: ClusterPair, tmp_path: Path, kind: type[Scenario], moment: Moment
) -> None:
    assert killed_and_run_again(kind, cluster_pair, tmp_path, moment)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "when"),
    [
        pytest.param(kind, when, id=f"{kind.__name__} {when}")
        for kind in killed_verbs.ALL
        for when in ("after", "before", *(["step"] if kind.has_steps else []))
        # it waits much, and has a promote and a failback in it
        if (kind, when) != (killed_verbs.SwitchingOver, "before")
    ],
)
def test_killed_at_every_record_and_run_again(
    cluster_pair: ClusterPair, tmp_path: Path, kind: type[Scenario], when: str
) -> None:
    moments = (Moment(when, number) for number in itertools.count(1))
    reached = sum(
        1 for _ in itertools.takewhile(lambda m: killed_and_run_again(kind, cluster_pair, tmp_path, m), moments)
    )
    assert reached >= (kind.least_steps if when == "step" else kind.least_records)


def test_a_pause_recorded_by_a_killed_command_is_waited_for(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    """The engine in charge is slow: it is this test, and gives the topic up when it likes."""
    with (
        killed_verbs.PromotingAlone(cluster_pair, tmp_path) as scenario,
        ThreadPoolExecutor(1) as operator,
        closing(StateStore(scenario.at_b.config)) as store,
    ):
        scenario.copy(scenario.at_b)
        topic = scenario.topics[0]
        record, mirrored = scenario.at_b.state().topic(scenario.mirror, topic), scenario.partition(topic)
        assert record is not None
        assert mirrored.state is PartitionState.MIRRORING
        engine = Lease.acquire(store, scenario.mirror, IDENTITY, ttl_ms=10_000)
        paused = replace(record, desired=DesiredState.PAUSED, pause_id="theirs")
        change(scenario.at_b, scenario.mirror, lambda _: Changes((paused,)))
        done = operator.submit(pause, scenario.at_b, scenario.mirror, selector(topic))
        for _ in range(4):
            engine.heartbeat({})
            assert wait([done], 0.5).not_done, "it is not paused yet"
        engine.heartbeat({}, (replace(mirrored, state=PartitionState.PAUSED, pause_id="one before"),))
        assert wait([done], 1).not_done, "it is not paused yet"
        engine.heartbeat({}, (replace(mirrored, state=PartitionState.PAUSED, pause_id="theirs"),))
        assert [row.result for row in done.result(PATIENCE_S).results] == [Outcome.NOOP]
        engine.release()


@pytest.mark.long
def test_the_engine_of_a_promote_that_is_killed_ends_and_leaves_nothing(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with killed_verbs.PromotingAlone(cluster_pair, tmp_path) as scenario:
        # it says that it lives every three seconds
        was_killed, killed = run_killed(Moment("after", 3), scenario.command, environ)
        assert was_killed, killed.stderr
        wait_until(lambda: scenario.processes() == [])
        # in it is how the destination is logged in to
        assert list((tmp_path / "tmp").glob("kmirror-*")) == []
        again = run_to_its_end(scenario.command, 240)
        assert again.returncode == 0, again.stderr
        scenario.check()
        wait_until(lambda: scenario.processes() == [])
