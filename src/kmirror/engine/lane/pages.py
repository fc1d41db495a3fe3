"""Which rows a lane's next report names, and which are kept in pages that are stored already. No I/O, no clock.

A report is written every second or two, and most partitions of a wide mirror stand still. Their rows are put into
pages, each a record of its own; a report names only the rows that differ from those. Rows that change all the time are
named by each report, as they would have to be written anyway. A lane of few partitions has no pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import ProgressRow

#: Rows of a page: some 15 KB.
PAGE_ROWS = 100
#: A row that has not changed for so long is better kept in a page, where there are as many of them as fill one.
COLD_SECONDS = 10.0
#: A report names no more rows than these: some 150 KB, and far less than brokers take where each has a long message.
MOST_LOOSE = 1000

Rows = Mapping[TopicPartition, ProgressRow]


@dataclass(slots=True)
class _Page:
    """The partitions that have their place in a page, and the rows that it holds."""

    places: set[TopicPartition] = field(default_factory=set)
    rows: dict[TopicPartition, ProgressRow] = field(default_factory=dict)
    #: True while the log may hold other rows.
    is_unsaid: bool = False


class Pages:
    """Keep the rows of one lane; for one thread."""

    def __init__(self) -> None:
        self._pages: list[_Page] = []
        self._page_of: dict[TopicPartition, _Page] = {}
        #: The rows that each report names, and since when each is as it is.
        self.loose: dict[TopicPartition, ProgressRow] = {}
        self._since: dict[TopicPartition, float] = {}

    @property
    def count(self) -> int:
        """How many pages belong to the next report: up to the last one that holds rows."""
        return max((number for number, page in enumerate(self._pages, 1) if page.rows), default=0)

    def take(self, changed: Rows, gone: Iterable[TopicPartition], at: float) -> None:
        """Take the rows that have changed, and the partitions that the lane has no more."""
        for place in gone:
            self._take_out(place)
            page = self._page_of.pop(place)
            page.places.remove(place)
            if page.rows.pop(place, None) is not None:
                page.is_unsaid = True
        for place, row in changed.items():
            page = self._page_of.get(place) or self._settle(place)
            if page.rows.get(place) == row:
                self._take_out(place)
            else:
                self.loose[place], self._since[place] = row, at
        cold = [place for place, since in self._since.items() if at - since >= COLD_SECONDS]
        if len(cold) > PAGE_ROWS:
            self._keep(cold, len(cold))
        if len(self.loose) > MOST_LOOSE:
            self._keep(self.loose, len(self.loose) - MOST_LOOSE // 2)

    def unsaid(self) -> dict[int, Rows]:
        """Return the pages that are to be stored before the next report."""
        return {number: page.rows.copy() for number, page in enumerate(self._pages) if page.is_unsaid}

    def said(self, pages: Mapping[int, Rows]) -> None:
        """Note that these are stored."""
        for number, rows in pages.items():
            page = self._pages[number]
            page.is_unsaid = page.is_unsaid and page.rows != rows

    def say_again(self) -> None:
        """Have all pages stored again: another run of the lane may have written over them."""
        for page in self._pages:
            page.is_unsaid = bool(page.rows)

    def _settle(self, place: TopicPartition) -> _Page:
        """Give a partition its place in a page."""
        page = next((page for page in reversed(self._pages) if len(page.places) < PAGE_ROWS), None)
        if page is None:
            page = _Page()
            self._pages.append(page)
        page.places.add(place)
        self._page_of[place] = page
        return page

    def _keep(self, places: Iterable[TopicPartition], least: int) -> None:
        """Put at least so many of these rows into their pages, first into those that take most of them."""
        wanted = Counter(id(self._page_of[place]) for place in places)
        for page in sorted(self._pages, key=lambda page: -wanted[id(page)]):
            if least <= 0:
                return
            least -= wanted[id(page)]
            page.is_unsaid = True
            for place in page.places & self.loose.keys():
                page.rows[place] = self.loose[place]
                self._take_out(place)

    def _take_out(self, place: TopicPartition) -> None:
        self.loose.pop(place, None)
        self._since.pop(place, None)
