"""Programs of Debian's packages, for tests: downloaded to the cache folder and unpacked there.

That needs neither root nor an installation.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kmirror.engine.spark.shipping import cache_folder


def unpacked(
    folder: str, program: str, packages: Sequence[str], finish: Callable[[Path], None] = lambda root: None
) -> Path:
    """Return a folder of the cache with these packages unpacked; downloaded once, and then changed by `finish`.

    Without apt-get the test fails and says to install the program.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.fail(f"this test needs {program}: install it, so that it is found in PATH")
    base = cache_folder(os.environ) / folder
    root = base / "fetched"
    base.mkdir(parents=True, exist_ok=True)
    with (base / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
        unfinished = base / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        for below in ("lists/partial", "archives/partial"):
            (unfinished / "apt" / below).mkdir(parents=True)
        options = [
            *("-o", f"Dir::State::lists={unfinished / 'apt/lists'}"),
            *("-o", f"Dir::Cache={unfinished / 'apt'}"),
            *("-o", "APT::Sandbox::User="),
            *("-o", "Debug::NoLocking=1"),
        ]
        for command in (["update"], ["download", *packages]):
            _run(["apt-get", "-q", *options, *command], unfinished)
        for package in unfinished.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(unfinished / "root")], unfinished)
        finish(unfinished / "root")
        (unfinished / "root").rename(root)
        shutil.rmtree(unfinished)
    return root


def library_path(root: Path) -> dict[str, str]:
    """Return what the environment of an unpacked program needs."""
    (library,) = {path.parent for path in root.glob("usr/lib/*-linux-gnu/*")}
    return {"LD_LIBRARY_PATH": str(library)}


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
