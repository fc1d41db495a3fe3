"""How long one partition's copy bears trouble that may pass before it fails. No sockets, no clock."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.engine.histories.judge import Facts, Fail, Trouble, Wait
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.errors import Reason
from tests.support.partition_shell import DAY_MS, Shell, facts, stored

AWAY = Trouble(Reason.SOURCE_UNREACHABLE, "no one answers")
GONE = Trouble(Reason.SOURCE_TOPIC_DELETED, "no such topic", permanent_after_retries=True)


def pauses(shell: Shell, trouble: Trouble, times: int) -> list[float]:
    """Inspect again and again, in vain; return how long each pause was."""
    found = []
    for _ in range(times):
        shell.inspect(Facts(trouble=trouble), Wait(trouble))
        found.append(round(shell.copy.retry.wake_at - shell.now, 3))
        shell.now = shell.copy.retry.wake_at
    return found


def test_pauses_grow_to_five_seconds(shell: Shell) -> None:
    assert pauses(shell, AWAY, 9) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert shell.copy.retry.attempt == 9


def test_a_success_makes_pauses_short_again(copying: Shell) -> None:
    pauses(copying, AWAY, 5)
    copying.inspect(facts(10))
    copying.fetch(stored(10))
    copying.send()
    copying.answer()
    assert copying.copy.retry.attempt == 0
    assert pauses(copying, AWAY, 2) == [0.1, 0.2]


def test_silence_is_waited_for_without_end(shell: Shell) -> None:
    pauses(shell, AWAY, 500)
    assert shell.status == "waiting"
    assert row_of(shell.copy).reason is Reason.SOURCE_UNREACHABLE


def test_an_answer_that_stays_a_refusal_fails_after_the_retry_time(shell: Shell) -> None:
    began = shell.now
    while shell.status != "failed":
        assert shell.now - began <= 306
        pauses(shell, GONE, 1)
    assert shell.copy.retry.failure == Fail(Reason.SOURCE_TOPIC_DELETED, "no such topic", 0)


def test_the_retry_time_begins_with_the_refusal_not_with_the_silence_before_it(shell: Shell) -> None:
    pauses(shell, AWAY, 500)
    began = shell.now
    pauses(shell, GONE, 1)
    assert shell.status == "waiting"
    while shell.status != "failed":
        pauses(shell, GONE, 1)
    assert 300 <= shell.now - began <= 306


def test_the_retry_time_starts_again_after_a_success(copying: Shell) -> None:
    pauses(copying, GONE, 50)
    copying.inspect(facts(10))
    copying.fetch(stored(10))
    copying.send()
    copying.answer()
    pauses(copying, GONE, 50)
    assert copying.status == "waiting"


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_missing_right_found_only_in_use_fails_after_the_retry_time(copying: Shell, side: str) -> None:
    """Looking is allowed, reading or writing is not: every inspection succeeds, and nothing is ever copied."""
    began = copying.now
    while copying.status != "failed":
        assert copying.now - began <= 320
        if side == "source":
            copying.fetch(error_code=Code.TOPIC_AUTHORIZATION_FAILED)
        else:
            copying.fetch(stored(10))
            copying.send()
            copying.answer(Code.TOPIC_AUTHORIZATION_FAILED)
        if copying.status == "waiting":
            copying.now = copying.copy.retry.wake_at
            copying.inspect(facts(10))
    assert copying.now - began > 290
    assert copying.copy.retry.failure is not None
    assert copying.copy.retry.failure.reason is Reason.NOT_AUTHORIZED


def test_an_idle_partition_forgets_old_troubles(copying: Shell) -> None:
    pauses(copying, GONE, 3)
    copying.inspect(facts(10, last_stable_offset=10, high_watermark=10))
    copying.fetch(high_watermark=10, last_stable_offset=10)
    copying.now += 10 * DAY_MS / 1000
    pauses(copying, GONE, 3)
    assert copying.status == "waiting"
