"""An engine for a command that needs one while none runs: `kmirror run` in a process of its own.

A process, since the command may need Spark for itself too. It ends with the command, even if that is killed; then it
also removes their folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kmirror.java_properties import write_properties
from kmirror.words import one_line

_END_S = 15.0
_DOCUMENT, _LOG = "document.json", "log"
_START = """
import os, shutil, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    from kmirror.engine.lifeline import die_with_parent
    die_with_parent({parent}, signal.SIGTERM)
    from kmirror.cli.main import entry_point
    entry_point()
finally:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the death of a parent with several threads signals several times
    if os.getppid() != {parent}:
        shutil.rmtree({folder!r}, ignore_errors=True)
"""


class OwnEngine:
    """Copy one mirror until the `with` block ends. `properties` are the destination's, with `bootstrap.servers`."""

    def __init__(self, mirror: str, properties: Mapping[str, str], master: str = "local[*]") -> None:
        self._mirror = mirror
        self._properties = dict(properties)
        self._master = master
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> OwnEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """True while its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; `error_text` returns the error of the JSON document with which it ends."""
        self.stop()
        self._folder = tempfile.TemporaryDirectory(prefix="kmirror-")
        folder = Path(self._folder.name)
        config = write_properties(folder / "destination.properties", self._properties)
        with (folder / _DOCUMENT).open("wb") as document, (folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _START.format(parent=os.getpid(), folder=str(folder))),
                    *("run", "--json", "--mirror", self._mirror, "--master", self._master),
                    *("--command-config", str(config)),
                    *("--bootstrap-server", self._properties["bootstrap.servers"]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=document,
                stderr=log,
                start_new_session=True,
            )

    def error_text(self) -> str:
        """Return the error it ended with; without a document, the last line of its log."""
        if self._folder is None:
            return ""
        folder = Path(self._folder.name)
        with contextlib.suppress(OSError, ValueError):
            error = json.loads((folder / _DOCUMENT).read_bytes())["error"]
            return f"kmirror: {one_line(error['message'])}" if error else ""
        with contextlib.suppress(OSError):
            return (folder / _LOG).read_text(errors="replace").rstrip().rpartition("\n")[2]
        return ""

    def stop(self) -> None:
        """End it cleanly."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
