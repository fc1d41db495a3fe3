"""What watchers of any work must be shown."""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.work import WorkView


def assert_grows(views: Sequence[WorkView], *whats: str) -> None:
    """Check that all work is shown to its end, and that progress grows to a total that was right from the beginning.

    Each of `whats`, which begin the work's name, had something to do, and all of it was done.
    """
    works: dict[tuple[str, float], list[WorkView]] = {}
    for view in views:
        works.setdefault((view.what, view.since), []).append(view)
    assert works
    for mine in works.values():
        assert [view.is_over for view in mine] == [False] * (len(mine) - 1) + [True]
        done, totals = [view.done for view in mine], [view.total or 0 for view in mine]
        assert done == sorted(done), mine
        # work may turn out to be needless, never to be more
        assert totals == sorted(totals, reverse=True), mine
        assert None in {view.total for view in mine} or done[-1] <= totals[-1]
    for what in whats:
        last = [mine[-1] for (name, _), mine in works.items() if name.startswith(what)]
        assert any(view.done for view in last), (what, sorted(name for name, _ in works))
        assert [view.done for view in last] == [view.total for view in last]
