"""Two engines for one mirror: the second is refused, waits, or takes over; nothing is written twice."""

from __future__ import annotations

import random

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import catch_up, finish, under_way


@pytest.mark.slow
def test_second_engine_is_refused_and_take_over_ends_the_first(
    source_cluster: SandboxCluster, slow_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, slow_destination)
    pair.fill(60_000)
    pair.create()
    first = pair.engine(with_spark=False)
    under_way(pair, first, chance)

    second = pair.engine(with_spark=False)
    assert second.wait(90) == 3
    assert f"process {first.process.pid}" in second.output
    assert "--standby" in second.output
    assert "--take-over" in second.output
    assert first.process.poll() is None

    third = pair.engine("--take-over", with_spark=False)
    assert first.wait(90) == 3
    assert "took over" in first.output
    under_way(pair, third, chance)
    catch_up(pair, third)


@pytest.mark.long
def test_standby_continues_where_the_first_ends(
    source_cluster: SandboxCluster, slow_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, slow_destination)
    pair.fill(60_000)
    pair.create()
    first = pair.engine()
    under_way(pair, first, chance)
    second = pair.engine("--standby")
    assert first.stop() == 0
    under_way(pair, second, chance)
    catch_up(pair, second)


@pytest.mark.long
def test_ctrl_c_and_the_limits_of_time(
    source_cluster: SandboxCluster, slow_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, slow_destination)
    pair.fill(60_000)
    pair.create()
    interrupted = pair.engine()
    under_way(pair, interrupted, chance)
    workers = interrupted.tree().workers
    assert interrupted.interrupt() == 0
    assert not any(worker.alive for worker in workers)

    short = pair.engine("--until-caught-up", "--timeout", "4s")
    assert short.wait(90) == 5
    assert "caught up" in short.output

    timed = pair.engine("--for", "4s")
    assert timed.wait(90) == 0
    finish(pair)
