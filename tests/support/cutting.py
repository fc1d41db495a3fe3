"""Log directories made by hand, and commands that cut them or are killed half-way."""

from __future__ import annotations

from pathlib import Path

from kmirror.offline.survey import PlannedCut
from kmirror.ops.base.results import VerbResult
from kmirror.ops.failback.truncate_logs import truncate_logs
from kmirror.ops.failback.truncation_plan import TruncationPlan
from kmirror.work import WorkView
from tests.support.log_dirs import CLUSTER_ID, TOPIC_ID, batch
from tests.support.watching import assert_grows

#: Three segments of three batches of ten records; `orders-0` ends at 90.
SEGMENTS = {base: [batch(base + start, 10) for start in (0, 10, 20)] for base in (0, 30, 60)}


class Killed(BaseException):
    """The process ended here."""


class KillAfter:
    """Kills the command after this many steps; `steps` are those that it reached."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) > self.count:
            raise Killed(step)


def plan(
    *cuts: tuple[str, int, int], expected: int | None = None, topic_id: str = TOPIC_ID, epoch: int | None = None
) -> TruncationPlan:
    planned = tuple(
        PlannedCut(topic, topic_id, partition, offset, expected, epoch) for topic, partition, offset in cuts
    )
    return TruncationPlan(CLUSTER_ID, "m", 1, planned)


def cut(asked: TruncationPlan, *dirs: Path, dry_run: bool = False, kill: KillAfter | None = None) -> VerbResult:
    views: list[WorkView] = []
    done = truncate_logs(
        asked, dirs, lambda _: True, views.append, dry_run=dry_run, checkpoint=kill or (lambda step: None)
    )
    assert_grows(views)
    return done


def outcomes(result: VerbResult) -> list[tuple[str | None, int | None, str]]:
    return [(row.topic, row.partition, row.result.value) for row in result.results if row.topic]


CUT_AT_40 = plan(("orders", 0, 40))
