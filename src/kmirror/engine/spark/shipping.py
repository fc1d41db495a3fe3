"""The archive that carries kmirror to workers that have Python and Spark, but not kmirror.

It holds the files that this interpreter runs: kmirror's own and those of the installed libraries that a worker imports.
No network, no pip. Some are compiled, so workers need the same Python minor version and platform. Spark unpacks the
archive beside each executor (`spark.archives`), and the workers' PYTHONPATH names it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import kmirror
from kmirror.engine.spark.class_archive import UNUSED_SECONDS, remove_older
from kmirror.errors import RefusedError

#: What modules that run in workers import; the libraries of the command line are not shipped.
WORKER_DISTRIBUTIONS = ("cffi", "cramjam", "crc32c", "cryptography", "kafka-python")
WORKER_MODULES = ("cramjam", "crc32c", "kafka", "kmirror.engine")
#: The folder into which Spark unpacks the archive, beside each executor.
UNPACKED = "kmdeps"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return kmirror's folder for files that can be made again, in XDG_CACHE_HOME or ~/.cache; made if there is none.

    Java takes classes from there, so it must be this user's own, or one that root made for it, such as a volume.

    Raises OSError: it cannot be made, or belongs to another user.
    """
    base = environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "kmirror"
    except RuntimeError:
        raise FileNotFoundError("this user has no home folder") from None
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid not in {0, os.geteuid()}:
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def worker_archive(folder: Path, distributions: Sequence[str] = WORKER_DISTRIBUTIONS) -> Path:
    """Return the archive for workers, made in `folder` unless one with the same content exists.

    Raises RefusedError if a library's installation does not list its files, OSError if `folder` is not writable.
    """
    content = {name: path.read_bytes() for name, path in sorted(worker_files(distributions).items())}
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"workers-{digest.hexdigest()[:16]}.zip"
    if archive.exists():
        os.utime(archive)
        return archive
    remove_older(folder, "workers-*", UNUSED_SECONDS)
    descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix="workers-", suffix=".unfinished")
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in content.items():
            bundle.writestr(name, data)
    Path(unfinished).replace(archive)
    return archive


def worker_files(distributions: Sequence[str] = WORKER_DISTRIBUTIONS) -> dict[str, Path]:
    """Return the file to pack for each name in the archive."""
    package = Path(kmirror.__file__).parent
    files = {
        str(Path(package.name, path.relative_to(package))): path
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for distribution in distributions:
        files.update(distribution_files(distribution))
    return files


def distribution_files(name: str) -> dict[str, Path]:
    """Return the file of an installed library for each name below its folder. Raises RefusedError: it lists none."""
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
