"""Topics whose settings cannot be synced: one sentence for all that fail alike, and an event for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kmirror.engine.driver.side_jobs import JobEvent
from kmirror.errors import KmirrorError
from kmirror.ops.jobs.settings_sync import joined_failures

DONE = JobEvent("retention.ms of a is 5", "settings", "CHANGED", {"topic": "a"})


def failed(topic: str, message: str) -> JobEvent:
    return JobEvent(None, "settings", "FAILED", {"topic": topic, "message": message})


def test_topics_that_fail_alike_share_a_sentence_and_each_has_an_event() -> None:
    alike = [failed(f"t{number}", "refused") for number in range(800)]
    found = list(joined_failures([*alike[:2], DONE, failed("u", "too large"), *alike[2:]]))
    assert found[0] == DONE
    assert sorted(str(one.details["topic"]) for one in found[1:]) == sorted(["u", *(f"t{n}" for n in range(800))])
    assert [one.note for one in found if one.note is not None] == [
        DONE.note,
        "the settings of t0, t1, t2, t3, t4 and 795 more cannot be synced from their source: refused",
        "the settings of u cannot be synced from its source: too large",
    ]


def test_failures_are_reported_although_the_job_breaks_off() -> None:
    def events() -> Iterator[JobEvent]:
        yield failed("t", "refused")
        raise KmirrorError("the destination is gone")

    found: list[JobEvent] = []
    with pytest.raises(KmirrorError):
        found.extend(joined_failures(events()))
    assert [one.details["topic"] for one in found] == ["t"]
