"""The file of a truncation plan: written, read, and refused when it is not one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import UsageError
from kmirror.offline.survey import PlannedCut
from kmirror.ops.failback.truncation_plan import TruncationPlan, parse_plan, read_plan, write_plan
from tests.support.json_documents import check
from tests.support.log_dirs import CLUSTER_ID, TOPIC_ID

PLAN = TruncationPlan(
    CLUSTER_ID,
    "m",
    1_700_000_000_000,
    (PlannedCut("orders", TOPIC_ID, 0, 120, 130), PlannedCut("orders", TOPIC_ID, 1, 7)),
)
DOCUMENT = {
    "version": 1,
    "clusterId": CLUSTER_ID,
    "mirror": "m",
    "createdAt": 1_700_000_000_000,
    "partitions": [
        {"topic": "orders", "topicId": TOPIC_ID, "partition": 0, "cutOffset": 120, "expectedLogEnd": 130},
        {"topic": "orders", "topicId": TOPIC_ID, "partition": 1, "cutOffset": 7},
    ],
}


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_plan(PLAN, tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text()) == DOCUMENT
    check("plan", DOCUMENT)
    assert read_plan(tmp_path / "plan.json") == PLAN
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_says_until_when_what_it_cuts_off_is_archived(tmp_path: Path) -> None:
    limited = replace(PLAN, archives_kept_until_ms=1_700_000_000_001)
    write_plan(limited, tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written == {**DOCUMENT, "archivesKeptUntil": 1_700_000_000_001}
    check("plan", written)
    assert read_plan(tmp_path / "plan.json") == limited


def test_plans_are_the_same_when_they_cut_the_same() -> None:
    later = {**DOCUMENT, "createdAt": 5, "partitions": list(reversed(DOCUMENT["partitions"]))}  # type: ignore[call-overload]
    assert parse_plan(later).digest == PLAN.digest
    other: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    other["partitions"][1]["cutOffset"] = 8
    assert parse_plan(other).digest != PLAN.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "its version is 2, not 1"),
        ({"clusterId": ""}, "clusterId of the plan is not a string"),
        ({"createdAt": "now"}, "createdAt of the plan is not a number"),
        ({"partitions": []}, "partitions is not a list with at least one"),
        ({"partitions": [DOCUMENT["partitions"][0]] * 2}, "it names orders-0 twice"),  # type: ignore[index]
        ({"partitions": [7]}, r"partitions\[0\] is not a JSON object"),
        ({"topic": "a/b"}, r"partitions\[0\].topic is not a topic's name"),
        ({"topic": "__cluster_metadata"}, "never truncated"),
        ({"topicId": "orders"}, r"partitions\[0\].topicId is not a topic id"),
        ({"cutOffset": -1}, r"cutOffset of partitions\[0\] is not a number"),
        ({"cutOffset": True}, r"cutOffset of partitions\[0\] is not a number"),
        ({"expectedLogEnd": "x"}, r"expectedLogEnd of partitions\[0\] is not a number"),
        ({"leaderEpoch": -1}, r"leaderEpoch of partitions\[0\] is not a number"),
    ],
)
def test_an_invalid_plan_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    part = document if change.keys() <= document.keys() else document["partitions"][0]
    part.update(change)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=message):
        read_plan(tmp_path / "plan.json")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        read_plan(tmp_path / "plan.json")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        write_plan(PLAN, tmp_path / "none" / "plan.json")
