"""Java's class-data archive for Spark: the loaded classes, kept in a file, which halves the start-up time.

The first run has Java list the classes it loads (this costs 0.15 s). When it has ended well, a separate process turns
the list into an archive: 80 MB, some ten seconds of a core, at the lowest priority. Later runs use the archive. Java
checks it against its own build and every jar, and ignores one that does not fit; a JVM that does not start with an
archive is started again without it (`launch`). Nothing here can make a run fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UNUSED_SECONDS = 30 * 24 * 3600
_BUILD_SECONDS = 600
_RECORD = "-XX:DumpLoadedClassList="

#: $1 the class list, $2 the unfinished archive, $3 the finished one; the command follows. The outer shell ends at once,
#: so that the builder is not our child; the rename makes the archive appear complete or not at all.
_BUILD = """
list=$1 unfinished=$2 finished=$3; shift 3
(nice -n 19 "$@" && mv -f "$unfinished" "$finished"; rm -f "$list" "$unfinished") >/dev/null 2>&1 </dev/null &
"""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The path of the archive for one Java and one Spark, whether it exists yet or not."""

    path: Path

    @classmethod
    def locate(cls, java: Path, home: Path, folder: Path) -> ClassArchive | None:
        """Return the archive for this Java and this Spark; None if `folder` is not writable."""
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                binary, jars = java.resolve(), (home / "jars").resolve()
                stamps = [binary.stat().st_mtime_ns, jars.stat().st_mtime_ns]
                key = hashlib.sha256(repr((str(binary), str(jars), stamps)).encode()).hexdigest()[:16]
                return cls(folder / f"spark-{key}.jsa")
        return None

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def record(self, class_list: Path) -> list[str]:
        """Return the Java options that write the names of loaded classes to `class_list`, for `build`."""
        return [f"{_RECORD}{class_list}"]

    def use(self) -> list[str]:
        """Return the Java options that use the archive if its checksums are right: checking costs 0.05 s."""
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return ["-Xshare:auto", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={self.path}"]

    def discard(self) -> None:
        """Remove the archive; the next run builds a new one."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def build(self, command: Sequence[str], class_list: Path) -> None:
        """Build the archive from `class_list` in the background; `command` is the one that wrote the list.

        Does nothing if there is no list, or if another process is building the archive.
        """
        building = self.path.with_suffix(".building")
        with contextlib.suppress(OSError):
            remove_older(self.path.parent, "*.jsa", UNUSED_SECONDS)
            remove_older(self.path.parent, "*.building", _BUILD_SECONDS)
            remove_older(self.path.parent, "*.unfinished", _BUILD_SECONDS)
            if self.exists:
                return
            names = class_list.read_bytes()
            with building.open("xb") as file:
                file.write(names)
            unfinished = self.path.with_suffix(".unfinished")
            options = [word for word in command[:-1] if not word.startswith((_RECORD, "-D"))]
            options += ["-Xshare:dump", f"-XX:SharedClassListFile={building}", f"-XX:SharedArchiveFile={unfinished}"]
            files = [str(building), str(unfinished), str(self.path)]
            subprocess.run(["/bin/sh", "-c", _BUILD, "sh", *files, *options], start_new_session=True, check=False)


def remove_older(folder: Path, pattern: str, seconds: float) -> None:
    """Remove the matching files in `folder` that were not touched for this long."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - seconds:
                path.unlink()
