"""Find the source topics that a mirror's filters select and that are no mirror topics: a stop leaves them behind.

A new topic may not have been discovered yet, or its copy is refused. A thread asks the source while a stop or a
verification is at work. None of this can fail them; if the source does not answer, nothing is said of its topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Self

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.commands import on_topics
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import require_same_cluster
from kmirror.ops.show.cluster_view import SOURCE_REQUEST_S, SOURCE_TIMEOUT_S, BackgroundQuery
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.sync.discovery import new_source_topics
from kmirror.words import counted, listed

_MOST_NAMED = 5


class LeftBehind:
    """Asks the source of one mirror which topics it has, in the background."""

    def __init__(self, mirror: MirrorRecord, *, whole: bool) -> None:
        """Start asking, if it is about the whole mirror and topics of its source are mirrored by filters."""
        self._mirror = mirror
        self._settings = stored_settings(mirror.settings)
        self._until = time.monotonic() + SOURCE_TIMEOUT_S
        self._query = BackgroundQuery(mirror.source, mirror.source_cluster_id)
        if whole and self._settings.discovers and not mirror.discovery_ended:
            self._query.start(self._ask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.close()

    def _ask(self, source: ClusterClient) -> Mapping[str, TopicMetadata]:
        found = source.metadata(timeout=SOURCE_REQUEST_S)
        require_same_cluster(self._mirror.source_cluster_id, found.cluster_id)
        return found.topics

    def warnings(self, read: Callable[[], State], so: str = "left behind") -> list[str]:
        """Return a warning that names these topics and says what they are, if there are any; `read` the state."""
        found = self._query.answer(self._until)
        if not isinstance(found, Mapping):
            return []
        try:
            names = new_source_topics(self._settings, found, read().topics(self._mirror.name)).topics
        except (KmirrorError, OutcomeUnknown):
            return []
        if not names:
            return []
        what = counted(len(names), "source topic matches", "source topics match")
        add = on_topics("add", self._mirror.name, names[:1])
        return [
            f"{what} the mirror's filters and {'is' if len(names) == 1 else 'are'} not mirrored, so {so}: "
            f"{listed(names, _MOST_NAMED)}; `{add}` mirrors it, or says why not"
        ]
