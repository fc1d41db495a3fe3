"""What watchers of work must be shown, whatever the work is."""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.work import WorkView


def assert_grows(views: Sequence[WorkView], *whats: str) -> None:
    """All work is shown to its end, what is done grows up to a total that was right from the beginning.

    Something was to be done of each of `whats`, which begin the work's name, and all of it was.
    """
    works: dict[tuple[str, float], list[WorkView]] = {}
    for view in views:
        works.setdefault((view.what, view.since), []).append(view)
    assert works
    for mine in works.values():
        assert [view.is_over for view in mine] == [False] * (len(mine) - 1) + [True]
        done, totals = [view.done for view in mine], [view.total or 0 for view in mine]
        assert done == sorted(done), mine
        # work may be found to be needless, never to be more
        assert totals == sorted(totals, reverse=True), mine
        assert None in {view.total for view in mine} or done[-1] <= totals[-1]
    for what in whats:
        last = [mine[-1] for (name, _), mine in works.items() if name.startswith(what)]
        assert any(view.done for view in last), (what, sorted(name for name, _ in works))
        assert [view.done for view in last] == [view.total for view in last]
