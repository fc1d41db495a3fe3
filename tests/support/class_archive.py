"""Java's class-data archives for brokers: the classes they load, kept in a file.

With an archive a broker starts in two thirds of the time and CPU time, which is what tests have least of. The first
broker that ends writes the archive (which takes some seconds, once per Java and set of jars) to the cache folder of the
jars. Java checks an archive against itself and every jar, and ignores one that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kmirror.java import find_java
from kmirror_sandbox.jars import KafkaJars, cache_directory

#: Otherwise Java would print about archives among a tool's output.
_IN_SILENCE = "-Xlog:disable"


@cache
def java() -> Path:
    """Return the Java that brokers and tools run on; finding it takes a while."""
    return find_java(os.environ)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The path of one program's archive."""

    path: Path

    @classmethod
    def of(cls, program: str, jars: KafkaJars) -> ClassArchive:
        """Return the archive of a program that is run with these jars."""
        stamps = [(str(path), path.stat().st_mtime_ns) for path in (java().resolve(), jars.directory)]
        key = hashlib.sha256(repr(stamps).encode()).hexdigest()[:12]
        return cls(cache_directory(os.environ) / f"{program}-{jars.version}-{key}.jsa")

    @property
    def options(self) -> tuple[str, ...]:
        """Java's options to use it; none while it does not exist."""
        return (f"-XX:SharedArchiveFile={self.path}", _IN_SILENCE) if self.path.exists() else ()

    @contextmanager
    def used(self) -> Iterator[tuple[str, ...]]:
        """Yield the options to use it; if it does not exist, what runs with them in the block creates it at its end.

        It appears whole or not at all, however many processes create it at once.
        """
        if self.path.exists():
            yield self.options
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="archiving-", dir=self.path.parent) as folder:
            made = Path(folder) / "classes.jsa"
            yield (f"-XX:ArchiveClassesAtExit={made}", _IN_SILENCE)
            with contextlib.suppress(FileNotFoundError):
                made.replace(self.path)
