"""The archive that carries kmirror to workers which have Python and Spark, and nothing else of ours.

It is put together from what this interpreter itself runs: kmirror's own files and the installed files of the libraries
that a worker imports. No network, no pip. It holds compiled modules, so workers need the same Python minor version and
platform. Spark unpacks it beside each executor (`spark.archives`), where the workers' PYTHONPATH names it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import kmirror
from kmirror.errors import RefusedError

#: What modules that run in workers import. The command line's own libraries stay at home.
WORKER_DISTRIBUTIONS = ("cffi", "cramjam", "crc32c", "cryptography", "kafka-python")
WORKER_MODULES = ("cramjam", "crc32c", "kafka", "kmirror.engine")
#: The folder that Spark unpacks the archive to, beside each executor.
UNPACKED = "kmdeps"

_UNUSED_SECONDS = 30 * 24 * 3600


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for what can be made again: kmirror's, below XDG_CACHE_HOME or ~/.cache."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kmirror"


def worker_archive(folder: Path, distributions: Sequence[str] = WORKER_DISTRIBUTIONS) -> Path:
    """Return the archive for workers, made in `folder` unless one with the same content is there already.

    Raises RefusedError when a library is not installed in a way that tells its files, OSError when `folder` cannot be
    written.
    """
    content = {name: path.read_bytes() for name, path in sorted(_files(distributions).items())}
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"workers-{digest.hexdigest()[:16]}.zip"
    if archive.exists():
        os.utime(archive)
        return archive
    _remove_unused(folder)
    descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix="workers-", suffix=".unfinished")
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in content.items():
            bundle.writestr(name, data)
    Path(unfinished).replace(archive)
    return archive


def _files(distributions: Sequence[str]) -> dict[str, Path]:
    """Map each name in the archive to the file it is made from."""
    package = Path(kmirror.__file__).parent
    files = {
        str(Path(package.name, path.relative_to(package))): path
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for distribution in distributions:
        files.update(_distribution_files(distribution))
    return files


def _distribution_files(name: str) -> dict[str, Path]:
    hint = f"install it from a wheel: pip install --force-reinstall {name}"
    try:
        listed = importlib.metadata.distribution(name).files
    except importlib.metadata.PackageNotFoundError:
        raise RefusedError(f"{name} is not installed here, but workers need it", hint) from None
    files = {
        str(entry): Path(str(entry.locate()))
        for entry in listed or ()
        if ".." not in entry.parts and "__pycache__" not in entry.parts
    }
    if not any(entry.endswith((".py", ".so")) for entry in files):
        raise RefusedError(f"the installation of {name} does not list its files", hint)
    return files


def _remove_unused(folder: Path) -> None:
    for path in folder.glob("workers-*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                path.unlink()
