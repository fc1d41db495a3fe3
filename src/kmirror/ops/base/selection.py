"""Select a mirror's topics for a command: `--topics` matched against destination names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from kmirror.errors import RefusedError
from kmirror.ops.base.context import known_mirror
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import State


def select_topics(topics: Iterable[TopicRecord], selector: TopicSelector | None, where: str) -> list[TopicRecord]:
    """Return the selected mirror topics, by name; all of them without a selector. `where` completes the error message.

    Raises:
        RefusedError: a plain name is none of these topics, or no pattern matches one.
    """
    known = sorted(topics, key=lambda topic: (topic.mirror, topic.topic))
    if selector is None:
        return known
    names = {topic.topic for topic in known}
    missing = selector.missing_names(names)
    if missing:
        near = get_close_matches(missing[0], names, n=1)
        raise RefusedError(
            f"{', '.join(missing)}: no such mirror topic {where}",
            f"did you mean {near[0]}?" if near else "`kmirror describe` lists the mirror topics",
        )
    chosen = [topic for topic in known if selector.matches(topic.topic)]
    if not chosen:
        raise RefusedError(
            f"no mirror topic {where} matches {selector}",
            "patterns must match whole destination names; `kmirror describe` lists them",
        )
    return chosen


def select_stored_topics(state: State, mirror: str | None, selector: TopicSelector | None) -> list[TopicRecord]:
    """Return the selected mirror topics of one mirror, or of all mirrors of the destination.

    Raises:
        RefusedError: as `select_topics`, or there is no such mirror.
    """
    if mirror is not None:
        known_mirror(state, mirror)
        return select_topics(state.topics(mirror), selector, f"of mirror {mirror}")
    topics = [topic for record in state.mirrors for topic in state.topics(record.name)]
    return select_topics(topics, selector, "on this destination")
