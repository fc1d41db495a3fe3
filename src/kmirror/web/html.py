"""HTML that is safe by construction: text is escaped unless it was created here, control characters too. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from kmirror.words import visible_lines

_VOID = frozenset({"br", "meta", "rect", "path", "line", "input"})


class Html(str):
    """Markup; any other text is escaped when it becomes part of markup."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"


def tag(name: str, *content: Content, **attributes: str | float | None) -> Html:
    """Return an element, without attributes that are None; `_` in their names becomes `-`, and `class_` is `class`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible_lines(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>") if name in ("br", "meta", "input") else Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """Return the concatenated parts."""
    written: list[str] = []
    for part in content:
        if isinstance(part, Html):
            written.append(part)
        elif isinstance(part, str):
            written.append(escape(visible_lines(part), quote=False))
        elif part is not None:
            written.append(join(*part))
    return Html("".join(written))
