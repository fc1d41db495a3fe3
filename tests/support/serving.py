"""Real `kmirror serve` processes, which say which cluster is in charge."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support import forked
from tests.support.waiting import PATIENCE_S


def kmirror_toml(folder: Path, clusters: Mapping[str, SandboxCluster]) -> Path:
    """Write a kmirror.toml that names these clusters; return its path."""
    file = folder / "kmirror.toml"
    tables = (f'[clusters.{name}]\nbootstrap-server = "{one.bootstrap_servers}"\n' for name, one in clusters.items())
    file.write_text("\n".join(tables), encoding="utf-8")
    return file


class Serving:
    """One `kmirror serve` that watches all clusters of a kmirror.toml, until the end of the block."""

    def __init__(self, config: Path, name: str) -> None:
        self.address = f"{LOOPBACK}:{free_ports(1)[0]}"
        self._config = config
        self._output = config.with_name(f"{name}.out")

    def __enter__(self) -> Self:
        line = [sys.executable, "-m", "kmirror", "serve", "--http", self.address]
        with self._output.open("ab") as file:
            environ = {**os.environ, "KMIRROR_CONFIG": str(self._config), "PYTHONUNBUFFERED": "1"}
            self._process = forked.Forked(line, stdout=file, stderr=subprocess.STDOUT, env=environ)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
