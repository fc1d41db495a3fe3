"""As many lanes as an operator says, or else as the machine can make use of."""

from __future__ import annotations

import os

import pytest

from kmirror.engine.executors import connections_of, lanes_of
from kmirror.settings.parsing import parse_settings

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("setting", "master", "lanes"),
    [
        ("auto", "local", 1),
        ("auto", "local[2]", 2),
        ("auto", "local[8]", 2),
        ("auto", "local[9, 3]", 3),
        ("auto", "local[16]", 4),
        ("auto", "local[*]", min(CORES, max(2, -(-CORES // 4)))),
        ("auto", "spark://h:7077", 2),
        ("auto", "local-cluster[8,1,512]", 2),
        ("auto", None, 2),
        ("7", "local[2]", 7),
        ("1", "yarn", 1),
    ],
)
def test_how_many_lanes_copy(setting: str, master: str | None, lanes: int) -> None:
    assert lanes_of(parse_settings({"copy.lanes": setting}).copy_lanes, master) == lanes


@pytest.mark.parametrize(
    ("setting", "master", "mirrors", "lanes"),
    [
        ("auto", "local[2]", 2, 2),
        ("auto", "local[2]", 3, 1),
        ("auto", "local[2]", 100, 1),
        ("auto", "local[16]", 8, 4),
        ("auto", "local[16]", 16, 2),
        ("auto", "local[16]", 17, 1),
        ("auto", "spark://h:7077", 100, 2),
        ("3", "local[2]", 100, 3),
    ],
)
def test_many_mirrors_on_one_machine_have_one_lane_each(setting: str, master: str, mirrors: int, lanes: int) -> None:
    assert lanes_of(parse_settings({"copy.lanes": setting}).copy_lanes, master, mirrors) == lanes


@pytest.mark.parametrize(
    ("setting", "lanes", "connections"),
    [("auto", 1, 64), ("auto", 2, 32), ("auto", 0, 64), ("1", 2, 1), ("7", 2, 3), ("2", 5, 1)],
)
def test_lanes_share_the_connections_of_their_mirror(setting: str, lanes: int, connections: int) -> None:
    assert connections_of(parse_settings({"copy.connections": setting}).copy_connections, lanes) == connections
