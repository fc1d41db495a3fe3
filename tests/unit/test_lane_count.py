"""As many lanes as an operator says, or else as the machine can make use of."""

from __future__ import annotations

import os

import pytest

from kmirror.engine.lane_count import lanes_of
from kmirror.settings.table import parse_settings

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
