"""`top` and `describe --watch` on a real terminal, of a real mirror."""

from __future__ import annotations

import json

import pytest

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.live_terminal import LiveTerminal
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, selector


@pytest.fixture
def mirror(cluster_pair: ClusterPair, destination: Destination) -> str:
    """Return a mirror of two topics; no engine copies it."""
    topics = [unique_topic("clicks"), unique_topic("orders")]
    for number, topic in enumerate(topics):
        make_topic(cluster_pair.source, topic, 2)
        produce(cluster_pair.source, topic, ["value"] * (number + 1))
    name = new_mirror(destination, cluster_pair.source)
    assert add(destination, name, selector(*topics)).exit_code == 0
    return name


def rows_of(frame: list[str]) -> dict[str, list[str]]:
    """Return the cells of topics, by the first part of their name."""
    rows = [line.split() for line in frame if line.startswith(("clicks-", "orders-"))]
    return {row[0].partition("-")[0]: row[1:] for row in rows}


@pytest.mark.slow
def test_top_shows_what_moves_and_takes_keys(cluster_pair: ClusterPair, destination: Destination, mirror: str) -> None:
    with LiveTerminal(cluster_pair.destination, 100, 24, "top", "--mirror", mirror) as top:
        idle = rows_of(top.until(lambda frame: "TOPIC" in " ".join(frame)))
        assert list(idle) == ["orders", "clicks"], "the larger lag first"
        assert idle["orders"] == ["-", "2", "-", "-", "NO_ENGINE"]
        with LocalEngine(destination, mirror) as engine:
            engine.catch_up()
            top.until(lambda frame: rows_of(frame).get("orders", [])[1:] == ["0", "0s", "0s", "ACTIVE"])
            row = json.loads(typed(cluster_pair.destination, "describe", "--mirror", mirror, "--json").stdout)[-1]
            assert (row["lag"], row["timeLagMs"], row["etaMs"], row["bytesPerSecond"]) == (0, 0, 0, 0)
            top.press("/ORD")
            found = top.until(lambda frame: frame[-1].startswith("/ORD_"))
            assert list(rows_of(found)) == ["orders"]
            top.press("\x1b")
            top.until(lambda frame: list(rows_of(frame)) == ["clicks", "orders"])
            top.press("ss")
            top.until(lambda frame: "sort: name" in frame[-1])
            top.resize(60, 12)
            small = top.until(lambda frame: len(frame) == 12)
            assert {len(line) for line in small} == {60}
        top.until(lambda frame: rows_of(frame)["orders"][0] == "-" and "NO_ENGINE" in " ".join(frame))
        top.press("\x03")
        assert top.ends() == 0


@pytest.mark.slow
def test_describe_is_watched_until_q(cluster_pair: ClusterPair, destination: Destination, mirror: str) -> None:
    arguments = ("describe", "--wide", "--watch", "--mirror", mirror)
    with LiveTerminal(cluster_pair.destination, 140, 20, *arguments) as watched:
        watched.until(lambda frame: "4 rows" in frame[-1] and "NO_ENGINE" in frame[4])
        produce(cluster_pair.source, destination.state().topics(mirror)[0].topic, ["more"] * 4)
        watched.until(lambda frame: frame[4].split()[5] == "5")
        watched.press("q")
        assert watched.ends() == 0


def test_a_mirror_that_is_not_there_leaves_the_terminal_with_the_reason(cluster_pair: ClusterPair) -> None:
    with LiveTerminal(cluster_pair.destination, 80, 24, "top", "--mirror", "nobody-has-this") as top:
        assert top.ends() == 3
        assert b"there is no mirror nobody-has-this" in top.written.rpartition(b"\x1b[?1049l")[2]
