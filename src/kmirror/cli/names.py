"""The names that completion offers: mirrors and mirror topics of the destinations this user looked at last.

Pressing Tab asks no cluster: the names come from files that verbs leave behind. One per destination, named after its
cluster id, in `kmirror/names` below XDG_CACHE_HOME or ~/.cache; a line is `MIRROR TOPIC`, or `MIRROR` and a space.
Nothing but names stands there, and only the user can read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmirror.errors import KmirrorError

if TYPE_CHECKING:
    from kmirror.ops.context import Destination

#: More than anyone looks through; read in a few milliseconds.
MOST_LINES = 5_000
#: The destinations looked at last; the others are forgotten.
MOST_DESTINATIONS = 5

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def remember_names(destination: Destination) -> None:
    """Write down which mirrors and mirror topics the destination has now.

    It is a convenience: whatever stands in its way is passed over.
    """
    with suppress(KmirrorError, OSError):
        state = destination.state()
        topics = [(mirror.name, topic.topic) for mirror in state.mirrors for topic in state.topics(mirror.name)]
        text = lines_of((mirror.name for mirror in state.mirrors), topics)
        write_names(names_folder(os.environ), destination.cluster_id, text)


def names_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the files."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kmirror" / "names"


def lines_of(mirrors: Iterable[str], topics: Iterable[tuple[str, str]]) -> str:
    """Return what a file holds: the mirrors first, then as many topics as fit; what is no name is left out."""
    lines = [f"{name} " for name in mirrors if _NAME.fullmatch(name)]
    lines += [f"{mirror} {topic}" for mirror, topic in topics if _NAME.fullmatch(mirror) and _NAME.fullmatch(topic)]
    return "".join(f"{line}\n" for line in lines[:MOST_LINES])


def write_names(folder: Path, cluster_id: str, text: str) -> None:
    """Put a destination's file in place, whole, unless it says that already. Raises OSError."""
    import tempfile

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / (re.sub("[^A-Za-z0-9_-]", "_", cluster_id) or "_")
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        path.touch()
        return
    handle, unfinished = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
    kept = [one for one in folder.iterdir() if not one.name.startswith(".")]
    for old in sorted(kept, key=lambda one: one.stat().st_mtime_ns)[:-MOST_DESTINATIONS]:
        old.unlink()


def remembered_mirrors(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the mirrors whose names begin like this; names before a comma stay."""
    return _going_on(incomplete, (mirror for mirror, _ in _remembered()))


def remembered_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return topics to go on with after a comma: of the mirrors on the line, of all where none is named there."""
    given = [ctx.params.get(name) or () for name in ("mirror", "link", "links")]
    mirrors = {
        name for value in given for one in ([value] if isinstance(value, str) else value) for name in one.split(",")
    }
    return _going_on(incomplete, (topic for mirror, topic in _remembered() if not mirrors or mirror in mirrors))


def _going_on(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in dict.fromkeys(names) if name and name.startswith(begun)]


def _remembered() -> Iterator[tuple[str, str]]:
    """Yield mirrors and their topics; an empty topic stands for the mirror itself."""
    for path in sorted(names_folder(os.environ).glob("[!.]*")):
        with suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                mirror, _, topic = line.partition(" ")
                yield mirror, topic
