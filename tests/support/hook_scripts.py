"""Commands for hooks: small shell scripts, and whether their processes still run."""

from __future__ import annotations

from pathlib import Path


def script(path: Path, body: str) -> Path:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
