"""Which rows a lane's next report contains, and which are in pages that are already stored. No I/O, no clock.

A report is written every second or two, and most partitions of a wide mirror are idle. Their rows are moved to pages,
each a separate record; a report contains only the rows that differ from those. Rows that change all the time are in
each report, since they would have to be written anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import ProgressRow

#: Rows of a page: about 15 KB.
PAGE_ROWS = 100
#: Rows that have not changed for this long are moved to pages: if there are enough to fill one, or most are like that.
COLD_SECONDS = 10.0
#: The most rows of a report: about 150 KB, and far below the broker's limit even if each has a long message.
MOST_LOOSE = 1000

Rows = Mapping[TopicPartition, ProgressRow]


@dataclass(slots=True)
class _Page:
    """The partitions that belong to a page, and the rows that it holds."""

    partitions: set[TopicPartition] = field(default_factory=set)
    rows: dict[TopicPartition, ProgressRow] = field(default_factory=dict)
    #: True while the stored page may differ.
    is_unstored: bool = False


class Pages:
    """Distribute the rows of one lane over reports and pages; for one thread."""

    def __init__(self) -> None:
        self._pages: list[_Page] = []
        self._page_of: dict[TopicPartition, _Page] = {}
        #: The rows in each report, and when each last changed.
        self.loose: dict[TopicPartition, ProgressRow] = {}
        self._since: dict[TopicPartition, float] = {}

    @property
    def count(self) -> int:
        """The number of pages that belong to the next report: up to the last one with rows."""
        return max((number for number, page in enumerate(self._pages, 1) if page.rows), default=0)

    def take(self, changed: Rows, gone: Iterable[TopicPartition], at: float) -> None:
        """Take the rows that have changed, and the partitions that the lane no longer has."""
        for partition in gone:
            self._take_out(partition)
            page = self._page_of.pop(partition)
            page.partitions.remove(partition)
            if page.rows.pop(partition, None) is not None:
                page.is_unstored = True
        for partition, row in changed.items():
            page = self._page_of.get(partition) or self._assign_page(partition)
            if page.rows.get(partition) == row:
                self._take_out(partition)
            else:
                self.loose[partition], self._since[partition] = row, at
        cold = [partition for partition, since in self._since.items() if at - since >= COLD_SECONDS]
        if len(cold) > PAGE_ROWS or 2 * len(cold) > len(self._page_of):
            self._move_to_pages(cold, len(cold))
        if len(self.loose) > MOST_LOOSE:
            self._move_to_pages(self.loose, len(self.loose) - MOST_LOOSE // 2)

    def unstored(self) -> dict[int, Rows]:
        """Return the pages to store before the next report."""
        return {number: page.rows.copy() for number, page in enumerate(self._pages) if page.is_unstored}

    def stored(self, pages: Mapping[int, Rows]) -> None:
        """Note that these pages are stored."""
        for number, rows in pages.items():
            page = self._pages[number]
            page.is_unstored = page.is_unstored and page.rows != rows

    def store_again(self) -> None:
        """Have all pages stored again, because another run of the lane may have overwritten them."""
        for page in self._pages:
            page.is_unstored = bool(page.rows)

    def _assign_page(self, partition: TopicPartition) -> _Page:
        """Assign a partition to a page."""
        page = next((page for page in reversed(self._pages) if len(page.partitions) < PAGE_ROWS), None)
        if page is None:
            page = _Page()
            self._pages.append(page)
        page.partitions.add(partition)
        self._page_of[partition] = page
        return page

    def _move_to_pages(self, partitions: Iterable[TopicPartition], least: int) -> None:
        """Move at least `least` of these rows to their pages, first to those that take most of them."""
        wanted = Counter(id(self._page_of[partition]) for partition in partitions)
        for page in sorted(self._pages, key=lambda page: -wanted[id(page)]):
            if least <= 0:
                return
            least -= wanted[id(page)]
            page.is_unstored = True
            for partition in page.partitions & self.loose.keys():
                page.rows[partition] = self.loose[partition]
                self._take_out(partition)

    def _take_out(self, partition: TopicPartition) -> None:
        self.loose.pop(partition, None)
        self._since.pop(partition, None)
