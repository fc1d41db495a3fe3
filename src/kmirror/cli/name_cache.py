"""The names that completion offers: mirrors and mirror topics of the destinations this user used last.

Pressing Tab asks no cluster: the names come from files that verbs write, one per destination, named after its cluster
id, in `kmirror/names` below XDG_CACHE_HOME or ~/.cache. A line is `MIRROR TOPIC`, or `MIRROR` and a space. The files
hold nothing but names, and only the user can read them.
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
    from kmirror.ops.base.context import Destination

#: More than a user will read; parsed in a few milliseconds.
MOST_LINES = 5_000
#: How many destinations are kept, the latest.
MOST_DESTINATIONS = 5

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def cache_names(destination: Destination) -> None:
    """Cache the names of the destination's mirrors and mirror topics. Ignores errors: this is only a convenience."""
    # RuntimeError: this user has no home folder
    from kmirror.state.waiting import BRIEFLY_S

    with suppress(KmirrorError, OSError, RuntimeError):
        state = destination.state(BRIEFLY_S)
        topics = [(mirror.name, topic.topic) for mirror in state.mirrors for topic in state.topics(mirror.name)]
        text = lines_of((mirror.name for mirror in state.mirrors), topics)
        write_names(names_folder(os.environ), destination.cluster_id, text)


def names_folder(environ: Mapping[str, str]) -> Path:
    """Return the directory of the files."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kmirror" / "names"


def lines_of(mirrors: Iterable[str], topics: Iterable[tuple[str, str]]) -> str:
    """Return the text of a file: the mirrors first, then as many topics as fit; invalid names are left out."""
    lines = [f"{name} " for name in mirrors if _NAME.fullmatch(name)]
    lines += [f"{mirror} {topic}" for mirror, topic in topics if _NAME.fullmatch(mirror) and _NAME.fullmatch(topic)]
    return "".join(f"{line}\n" for line in lines[:MOST_LINES])


def write_names(folder: Path, cluster_id: str, text: str) -> None:
    """Replace a destination's file atomically, unless it has this text already. Raises OSError."""
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


def cached_mirrors(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last mirror name of a comma-separated list."""
    return _completions(incomplete, (mirror for mirror, _ in _cached_names()))


def cached_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last topic of a comma-separated list: of the mirrors on the command line, or of all if none is."""
    given = [ctx.params.get(name) or () for name in ("mirror", "link", "links")]
    mirrors = {
        name for value in given for one in ([value] if isinstance(value, str) else value) for name in one.split(",")
    }
    return _completions(incomplete, (topic for mirror, topic in _cached_names() if not mirrors or mirror in mirrors))


def _completions(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in dict.fromkeys(names) if name and name.startswith(begun)]


def _cached_names() -> Iterator[tuple[str, str]]:
    """Yield mirrors with each of their topics, and once with an empty topic."""
    with suppress(RuntimeError):
        yield from _names_in(names_folder(os.environ))


def _names_in(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("[!.]*")):
        with suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                mirror, _, topic = line.partition(" ")
                yield mirror, topic
