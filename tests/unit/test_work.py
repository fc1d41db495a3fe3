"""Work that takes long: what is counted, and what is said of how fast it goes and for how long still."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kmirror.work import Meter, Speed, WorkIsOverError, WorkView
from tests.support.watching import assert_grows


def speed_of(*steps: tuple[float, int]) -> Speed:
    speed = Speed(0.0)
    for at, done in steps:
        speed.take(view(done, at=at))
    return speed


def view(done: int, total: int | None = 1000, at: float = 0.0) -> WorkView:
    return WorkView("copying", 0.0, at, "offset", done, total)


def steadily(until: float, per_second: int = 10) -> list[tuple[float, int]]:
    return [(tenths / 10, tenths * per_second // 10) for tenths in range(1, round(until * 10) + 1)]


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    fast_then_slow = [*steadily(20, per_second=1000), *((20 + second, 20_000 + 10 * second) for second in range(1, 16))]
    assert speed_of(*steadily(20, per_second=1000)).rate(20.0) == pytest.approx(1000)
    assert speed_of(*fast_then_slow).rate(35.0) == pytest.approx(10)
    assert speed_of(*fast_then_slow).seconds_left(view(20_150, 20_250), 35.0) == pytest.approx(10)


@pytest.mark.parametrize(
    ("steps", "at"),
    [((), 0.0), ((), 9.0), ([(1.0, 100), (1.5, 200)], 2.0)],
    ids=["nothing begun", "nothing moved", "only two pieces came"],
)
def test_before_it_is_known_nothing_is_said(steps: list[tuple[float, int]], at: float) -> None:
    speed = speed_of(*steps)
    assert speed.rate(at) is None
    assert speed.seconds_left(view(100), at) is None
    assert speed.silence(at) is None


def test_without_a_total_and_at_the_end_there_is_no_time_left_to_tell() -> None:
    speed = speed_of(*steadily(5))
    assert speed.rate(5.0) == pytest.approx(10)
    assert speed.seconds_left(view(50, total=None), 5.0) is None
    assert speed.seconds_left(view(50, total=50), 5.0) is None


def test_while_nothing_comes_the_rate_falls_and_after_ten_seconds_it_has_stalled() -> None:
    speed = speed_of(*steadily(20))
    assert speed.rate(29.0) == pytest.approx(1)
    assert speed.silence(29.0) is None
    assert speed.rate(31.0) is speed.seconds_left(view(200), 31.0) is None
    assert speed.silence(31.0) == pytest.approx(11)


def test_nothing_at_all_for_ten_seconds_is_a_stall_too() -> None:
    assert Speed(5.0).silence(16.0) == pytest.approx(11)


def test_large_pieces_that_come_seldom_are_no_stall() -> None:
    speed = speed_of((40.0, 400), (80.0, 800), (120.0, 1200))
    assert speed.rate(155.0) == pytest.approx(800 / 115)
    assert speed.silence(155.0) is None
    assert speed.silence(241.0) == pytest.approx(121)


def test_the_time_before_anything_was_done_does_not_count() -> None:
    late = speed_of((30.0, 10), (31.0, 20), (32.0, 30))
    assert late.rate(32.0) == pytest.approx(10)


def test_only_what_the_window_needs_is_kept() -> None:
    speed = speed_of(*steadily(1000))
    assert len(speed._steps) < 150


def test_threads_add_and_views_come_in_order() -> None:
    views: list[WorkView] = []
    with Meter(views.append, "copying", "offset", 4000) as meter, ThreadPoolExecutor(4) as threads:
        list(threads.map(meter.add, [1] * 4000))
    assert_grows(views, "copying")
    assert (views[-1].done, views[-1].total) == (4000, 4000)


def test_a_total_that_was_too_low_grows_and_what_needs_no_work_leaves_it() -> None:
    views: list[WorkView] = []
    with Meter(views.append, "copying", "offset", 100) as meter:
        meter.shrink_total(60)
        meter.add(50)
        meter.reach(45)
        meter.reach(55)
    assert [(one.done, one.total) for one in views] == [(0, 100), (0, 40), (55, 55)]


def test_threads_that_no_one_waits_for_end() -> None:
    with Meter(lambda _: None, "copying") as meter:
        meter.add(1)
    with pytest.raises(WorkIsOverError):
        meter.add(1)


def test_it_is_over_for_who_watches_also_when_it_fails() -> None:
    views: list[WorkView] = []
    with pytest.raises(KeyboardInterrupt), Meter(views.append, "copying"):
        raise KeyboardInterrupt
    assert [one.is_over for one in views] == [False, True]
