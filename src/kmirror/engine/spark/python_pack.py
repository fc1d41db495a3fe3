"""An archive with this Python, for workers of a cluster whose machines have none that fits.

It holds the interpreter, its standard library, and the shared libraries that these and the shipped libraries load,
except those of glibc. Python finds its library relative to its own program, so the folder works wherever it is
unpacked; `bin/python` is a script that shows it the shared libraries. What `run` ships is not in it, so that it stays
valid when kmirror is upgraded; botocore is, if it is installed here.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kmirror.engine.spark.shipping import distribution_files, worker_files
from kmirror.errors import RefusedError, UsageError

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
#: What no worker needs of the standard library; other people's packages are not part of it.
_OMITTED = shutil.ignore_patterns(
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages"),
    *("config-*", "_tkinter*", "_test*", "*.opt-[12].pyc"),
)
#: gzip's level: higher ones take much longer and save little.
_COMPRESSION = 6
#: The parts of glibc, which every machine has, and which must fit each other.
_GLIBC = re.compile(r"(ld-linux|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|mvec|thread_db))\b.*|linux-vdso.*")
_RESOLVED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
_SHARED = "shared"
_PROGRAM = f"""\
#!/bin/sh
here=${{0%/*}}/..
unset PYTHONHOME
LD_LIBRARY_PATH=$here/{_SHARED}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
export LD_LIBRARY_PATH
exec "$here/bin/{_VERSION}" "$@"
"""
#: Prints where the packed Python finds its library, once all that is compiled in it can be loaded.
_CHECK = "import bz2, ctypes, hashlib, lzma, select, socket, ssl, sys, zlib; print(sys.prefix)"


@dataclass(frozen=True, slots=True)
class PythonPack:
    """A written archive: its size in bytes, and what it runs on."""

    path: Path
    size_in_bytes: int
    python: str
    platform: str


def pack_python(target: Path) -> PythonPack:
    """Write the archive, a gzipped tar, and replace one that is there; it appears complete or not at all.

    The packed Python is started once, without an environment, to see that it works where it is unpacked.

    Raises:
        RefusedError: this machine's Python cannot be packed.
        UsageError: the file cannot be written.
    """
    libc, libc_version = platform.libc_ver()
    if sys.platform != "linux" or libc != "glibc":
        raise RefusedError("only a Python of Linux with glibc can be packed", "pack on a machine like the workers")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kmirror-pack-") as place:
            root = Path(place, "python")
            _fill(root)
            _check(root)
            unfinished = Path(place, "unfinished")
            with tarfile.open(unfinished, "w:gz", compresslevel=_COMPRESSION) as archive:
                archive.add(root, arcname=".", filter=_anonymous)
            unfinished.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}", "name another file") from None
    machine = f"Linux {platform.machine()} with glibc {libc_version} or later"
    return PythonPack(target, target.stat().st_size, platform.python_version(), machine)


def is_of_glibc(name: str) -> bool:
    """Return whether a shared library belongs to glibc, by its file name: every machine has its own."""
    return _GLIBC.fullmatch(name) is not None


def _fill(root: Path) -> None:
    standard = Path(sysconfig.get_path("stdlib"))
    base = Path(sys.base_prefix)
    if not standard.is_relative_to(base):
        raise RefusedError(f"the library of this Python is in {standard}, outside {base}: it cannot be moved")
    library, program = root / standard.relative_to(base), root / "bin" / _VERSION
    shutil.copytree(standard, library, ignore=_OMITTED)
    program.parent.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), program)
    for name, path in _botocore():
        copied = library / "site-packages" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied)
    (root / _SHARED).mkdir()
    compiled = (path for path in worker_files().values() if ".so" in path.name)
    for loaded in _loaded_by([program, *library.rglob("*.so"), *compiled]):
        shutil.copy2(loaded, root / _SHARED / loaded.name)
    starter = root / "bin" / "python"
    starter.write_text(_PROGRAM)
    starter.chmod(0o755)


def _loaded_by(files: Iterable[Path]) -> Iterator[Path]:
    """Yield the libraries of this machine that these files load when they run, under the names they ask for."""
    try:
        listed = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise RefusedError(
            "this machine has no ldd, which says what a program loads", "install it (libc-bin)"
        ) from None
    yield from {name: Path(path) for name, path in _RESOLVED.findall(listed) if not is_of_glibc(name)}.values()


def _botocore() -> Iterator[tuple[str, Path]]:
    """Yield the files of botocore and all that it requires, if it is installed: for logins to Amazon MSK."""
    wanted, seen = ["botocore"], set[str]()
    while wanted:
        name = wanted.pop()
        with suppress(importlib.metadata.PackageNotFoundError):
            needs = importlib.metadata.distribution(name).requires or []
            yield from distribution_files(name).items()
            seen.add(name)
            plain = [re.split(r"[^\w.-]", need)[0] for need in needs if "extra ==" not in need]
            wanted += [one for one in plain if one not in seen]


def _check(root: Path) -> None:
    """Start the packed Python as a worker would. Raises RefusedError: it does not start, or uses another library."""
    command = [str(root / "bin" / "python"), "-c", _CHECK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, cwd="/")
    found = done.stdout.strip()
    if done.returncode or Path(found or os.devnull).resolve() != root.resolve():
        said = done.stderr.strip().splitlines()[-1:] or [f"its library is in {found}"]
        raise RefusedError(
            f"this Python ({sys.base_prefix}) does not work once it is copied: {said[0]}",
            "run kmirror with another Python, such as one of `uv python install`",
        )


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed it, and what only this user could read."""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
