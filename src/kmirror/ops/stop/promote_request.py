"""What `promote` is asked to do, and what it shows while it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kmirror.ops.stop.promote_readiness import Missing
from kmirror.settings.patterns import TopicSelector
from kmirror.work import WorkView

IDLE_MS = 10_000


@dataclass(frozen=True, slots=True)
class PromoteRequest:
    """What to promote; `timeout_ms` None: wait forever, `idle_ms` None: producers may continue (--allow-producers)."""

    mirror: str
    topics: TopicSelector | None = None
    exclude: TopicSelector | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = IDLE_MS
    verify: bool = False
    master: str = "local[*]"
    #: Stop all of the topics at once, or none.
    together: bool = False
    #: Deny everyone WRITE on the source's topics, instead of waiting until their ends have not moved for a while.
    block_producers: bool = False


@dataclass(frozen=True, slots=True)
class PromoteView:
    """What a watcher is shown: what each topic lacks, the smallest lag first, and new `lines` of text.

    `work` is the progress of a comparison of contents.
    """

    elapsed_seconds: float
    missing: tuple[Missing, ...] = ()
    lines: tuple[str, ...] = ()
    work: WorkView | None = None


Watcher = Callable[[PromoteView], None]
