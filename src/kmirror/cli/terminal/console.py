"""A rich console that shows escapes instead of characters that a terminal obeys, unless rich itself made them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kmirror.words import visible_lines


class VisibleConsole(Console):
    """Whatever is shown passes `render`; what rich adds to move the cursor is marked as control."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to show."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible_lines(segment.text))
