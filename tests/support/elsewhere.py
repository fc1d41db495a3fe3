"""A Spark worker for which a folder of this machine does not exist, as on another machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

#: A mount namespace of its own, as root or as any user, in which an empty folder covers the folder.
_NAMESPACES = (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user"))
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
#: Where namespaces are not permitted, Python itself does not find the folder.
_SITE = """\
import errno, os, sys

def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith({folder!r}):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])

sys.addaudithook(refuse)
"""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How to start a process that lacks a folder: what its command begins with, and the programs of its PATH."""

    command: tuple[str, ...] = ()
    programs: Path | None = field(default=None)


def without_folder(folder: Path, made: Path) -> Elsewhere:
    """Return how to start a process that does not find what is in a folder; `made` is a new folder for its programs."""
    for namespace in _NAMESPACES:
        if subprocess.run([*namespace, "sh", "-c", _HIDE, folder, "true"], capture_output=True, check=False).returncode:
            continue
        return Elsewhere((*namespace, "sh", "-c", _HIDE, str(folder)))
    return Elsewhere(programs=python_without_folder(folder, made))


def python_without_folder(folder: Path, made: Path) -> Path:
    """Create a folder for the front of a worker's PATH, with a Python of this version that does not find a folder."""
    site, programs = made / "site", made / "bin"
    site.mkdir(parents=True)
    programs.mkdir()
    (site / "sitecustomize.py").write_text(_SITE.format(folder=f"{folder}/"))
    program = programs / f"python{sys.version_info.major}.{sys.version_info.minor}"
    real = Path(sys.base_prefix) / "bin" / program.name
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec {real} "$@"\n')
    program.chmod(0o755)
    return programs
