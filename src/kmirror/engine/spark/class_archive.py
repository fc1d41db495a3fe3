"""Java's class-data archive for Spark: the loaded classes kept in a file, which halves the time to start.

The first run has Java write down which classes it loads (0.15 s dearer). When it has ended well, a process of its own
turns the list into an archive: 80 MB, some ten seconds of a core, at the lowest priority. Later runs name the archive.
Java checks it against its own build and against every jar, and goes on without where it does not fit; a JVM that does
not start with an archive is started again without it (`launch`). Nothing here can make a run fail.
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

_UNUSED_SECONDS = 30 * 24 * 3600
_BUILD_SECONDS = 600
_RECORD = "-XX:DumpLoadedClassList="

#: $1 the class list, $2 the unfinished archive, $3 the finished one; the command follows. The outer shell ends at once,
#: so that the builder is not our child; the rename makes the archive appear whole or not at all.
_BUILD = """
list=$1 unfinished=$2 finished=$3; shift 3
(nice -n 19 "$@" && mv -f "$unfinished" "$finished"; rm -f "$list" "$unfinished") >/dev/null 2>&1 </dev/null &
"""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where the archive for one Java and one Spark is, or will be."""

    path: Path

    @classmethod
    def locate(cls, java: Path, home: Path, folder: Path) -> ClassArchive | None:
        """Return the archive for this Java and this Spark; None where `folder` cannot be written."""
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
        """Return Java's options to write the names of loaded classes to `class_list`, from which `build` works."""
        return [f"{_RECORD}{class_list}"]

    def use(self) -> list[str]:
        """Return Java's options to use the archive, if its checksums are right: they cost 0.05 s."""
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return ["-Xshare:auto", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={self.path}"]

    def discard(self) -> None:
        """Remove the archive; the next run begins a new one."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def build(self, command: Sequence[str], class_list: Path) -> None:
        """Start making the archive from `class_list` in the background; `command` is the one that wrote the list.

        Does nothing when there is no list, or when another process is at it.
        """
        building = self.path.with_suffix(".building")
        with contextlib.suppress(OSError):
            _remove_older(self.path.parent, "*.jsa", _UNUSED_SECONDS)
            _remove_older(self.path.parent, "*.building", _BUILD_SECONDS)
            _remove_older(self.path.parent, "*.unfinished", _BUILD_SECONDS)
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


def _remove_older(folder: Path, pattern: str, seconds: float) -> None:
    for path in folder.glob(pattern):
        if path.stat().st_mtime < time.time() - seconds:
            path.unlink()
