"""`top`: rate, lag and time left of each topic, live on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kmirror.cli.options import ALL_MIRRORS, Call, mirror_option, verb

if TYPE_CHECKING:
    from kmirror.ops.base.context import Destination
    from kmirror.ops.show.listing import Overview


@verb(
    "top",
    "Show rate, lag and time left of each topic, live.\n\nKeys: q quits, s sorts by lag, rate or name, / filters by"
    " topic name, Esc clears the filter. Works with the source down and without a running engine. Unknown numbers are"
    " shown as -.",
    mirror_option(ALL_MIRRORS, required=False),
    examples=(
        "kmirror top --bootstrap-server b:9092",
        "kmirror top --mirror dr --bootstrap-server b:9092",
    ),
    documents=False,
)
def top_verb(call: Call, mirror: str | None) -> int:
    from kmirror.cli.terminal.live_screen import require_terminal, show_live
    from kmirror.cli.terminal.top_view import TopView

    require_terminal(
        call.output.screen, "top", "use `kmirror describe --wide` to print the same once, with --json for scripts"
    )
    destination = call.destination()
    show_live(call.output.screen, _opened(destination, mirror), TopView(destination.bootstrap_server))
    return 0


@contextmanager
def _opened(destination: Destination, mirror: str | None) -> Iterator[Callable[[], Overview]]:
    from kmirror.ops.show.cluster_view import Prober
    from kmirror.ops.show.listing import read_overview

    with destination, Prober(destination) as prober:
        yield lambda: read_overview(destination, prober, mirror)
