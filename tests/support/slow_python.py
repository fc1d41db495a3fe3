"""A Python that receives slowly, for one worker of a Spark cluster whose workers share a machine."""

from __future__ import annotations

import sys
from pathlib import Path

_SITE = """\
import socket, time

class SlowSocket(socket.socket):
    def recv_into(self, buffer, nbytes=0, flags=0):
        count = super().recv_into(buffer, min(nbytes or len(buffer), {piece}), flags)
        time.sleep(count / {rate})
        return count

socket.socket = SlowSocket
"""
#: How many pieces a second's bytes arrive in.
_PIECES = 20


def slow_python(folder: Path, bytes_per_second: int) -> Path:
    """Create a folder for the front of a worker's PATH, where it finds such a Python of this version."""
    site, programs = folder / "site", folder / "bin"
    site.mkdir(parents=True)
    programs.mkdir()
    piece = max(1, bytes_per_second // _PIECES)
    (site / "sitecustomize.py").write_text(_SITE.format(piece=piece, rate=bytes_per_second))
    program = programs / f"python{sys.version_info.major}.{sys.version_info.minor}"
    real = Path(sys.base_prefix) / "bin" / program.name
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec {real} "$@"\n')
    program.chmod(0o755)
    return programs
