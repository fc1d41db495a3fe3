"""Select a mirror's topics for a command: `--topics` matched against destination names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from kmirror.errors import RefusedError
from kmirror.ops.base.context import known_mirror
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import State


def select_topics(
    topics: Iterable[TopicRecord],
    selector: TopicSelector | None,
    where: str,
    exclude: TopicSelector | None = None,
    *,
    each: bool = True,
) -> list[TopicRecord]:
    """Return the selected mirror topics without the excluded ones, by name; without a selector, all of them.

    `where` completes the error message. `each` regular expression must match a topic; if not, one of them.

    Raises:
        RefusedError: a plain name is none of these topics, or an expression matches none.
    """
    known = sorted(topics, key=lambda topic: (topic.mirror, topic.topic))
    names = {topic.topic for topic in known}
    if selector is not None:
        _require_matches(selector, names, where, each=each)
    if exclude is not None:
        _require_matches(exclude, names, f"{where} to exclude", each=True)
    return [
        topic
        for topic in known
        if (selector is None or selector.matches(topic.topic)) and not (exclude and exclude.matches(topic.topic))
    ]


def _require_matches(selector: TopicSelector, names: Collection[str], where: str, *, each: bool) -> None:
    if missing := selector.missing_names(names):
        near = get_close_matches(missing[0], names, n=1)
        raise RefusedError(
            f"{', '.join(missing)}: no such mirror topic {where}",
            f"did you mean {near[0]}?" if near else "`kmirror describe` lists the mirror topics",
        )
    unmatched = selector.unmatched(names)
    if unmatched and (each or not any(map(selector.matches, names))):
        comment = "in a file, comments are lines of their own; " if any(" #" in one for one in unmatched) else ""
        raise RefusedError(
            f"no mirror topic {where} matches {', '.join(unmatched)}",
            f"{comment}each pattern must match a whole destination name; `kmirror describe` lists them",
        )


def select_stored_topics(state: State, mirror: str | None, selector: TopicSelector | None) -> list[TopicRecord]:
    """Return the mirror topics of one mirror, or of all mirrors of the destination, for a view of them.

    Raises:
        RefusedError: as `select_topics` (one expression must match), or there is no such mirror.
    """
    if mirror is not None:
        known_mirror(state, mirror)
        return select_topics(state.topics(mirror), selector, f"of mirror {mirror}", each=False)
    topics = [topic for record in state.mirrors for topic in state.topics(record.name)]
    return select_topics(topics, selector, "on this destination", each=False)
