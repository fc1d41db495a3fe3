"""Watch which cluster counts as in charge, from two places at once: never may there be two.

One place is beside the source and sees the destination over the links that faults strike, the other one the reverse.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign.clusters import Side
from kmirror.cluster.security.properties import read_properties
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.web.watched_cluster import WatchedCluster

_EVERY_S = 0.25


class Doors:
    """Ask both places about mirrors until asked to stop."""

    def __init__(self, mirrors: Sequence[str], near: Sequence[Side], links: Sequence[Path]) -> None:
        self._mirrors = mirrors
        names = [side.name for side in near]
        self._keepers = {name: ChargeKeeper(names) for name in names}
        self._clusters = []
        for place, keeper in self._keepers.items():
            for side, link in zip(near, links, strict=True):
                own = {"bootstrap.servers": side.direct} if side.name == place else None
                self._clusters.append(_watched(side.name, own, link, keeper))
        #: How often which cluster was in charge.
        self.seen: Counter[str] = Counter()
        self.violations: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        for cluster in self._clusters:
            cluster.start()
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for cluster in self._clusters:
            cluster.close()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            for mirror in self._mirrors:
                self._ask(mirror)

    def _ask(self, mirror: str) -> None:
        answers = [
            (place, keeper.answer(mirror, name)) for place, keeper in self._keepers.items() for name in keeper.names
        ]
        found = {one.cluster for _, one in answers if one.in_charge}
        self.seen.update(found)
        if len(found) > 1 and not self.violations:
            said = {f"{one.cluster}, seen from {place}": [one.in_charge, one.reason] for place, one in answers}
            self.violations.append({"what": "two clusters are in charge", "mirror": mirror, "said": said})


def _watched(name: str, own: dict[str, str] | None, link: Path, keeper: ChargeKeeper) -> WatchedCluster:
    return WatchedCluster(name, lambda: own or read_properties(link), taken=keeper.take)
