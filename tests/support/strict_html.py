"""HTML that is read strictly: every element that begins ends, in order, and nothing is fetched from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset({"br", "meta", "input", "link", "img"})


class StrictHtml(HTMLParser):
    """Read a whole document; `texts` are the words in it by element, `found` its start tags with their attributes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def count(self, name: str, kind: str | None = None) -> int:
        """Return how many elements of a name, and of a class, there are."""
        return sum(tag == name and kind in (None, attributes.get("class")) for tag, attributes in self.found)

    def text(self) -> str:
        """Return all words that are shown."""
        return "".join(text for tag, text in self.texts if tag not in ("style", "script"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> ends nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> is there twice"
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}>"
            assert name not in ("src", "srcset"), value
            assert not (value or "").startswith(("http:", "https:", "//")), value
        self.found.append((tag, dict(attrs)))
