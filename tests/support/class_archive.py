"""Java's class-data archives for brokers: the classes they load, kept in a file.

With one a broker starts in two thirds of the time, at as much less of the processor, which is what the tests have least
of. The first broker that ends leaves the archive (some seconds, once for each Java and each set of jars), in the cache
folder where the jars are. Java checks an archive against itself and every jar, and goes on without one that does not
fit.
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
from kmirror.sandbox.jars import KafkaJars, cache_directory

#: Else Java would tell about archives where a tool prints what it was asked for.
_IN_SILENCE = "-Xlog:disable"


@cache
def java() -> Path:
    """Return the Java that brokers and tools run on; looking for it takes a while."""
    return find_java(os.environ)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where the archive of one program is, or will be."""

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
        """Give the options to use it; where it does not exist, what is run with them in the block to its end makes it.

        It appears whole or not at all, however many processes make it at once.
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
