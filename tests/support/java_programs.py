"""Java programs of the tests (tests/apps/java) and of Kafka: compiled from sources, started, ended, read."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kmirror.java_properties import properties_text
from kmirror_sandbox.broker_config import logging_option, logging_properties
from kmirror_sandbox.jars import KafkaJars
from tests.support.class_archive import java
from tests.support.waiting import PATIENCE_S, wait_until

SOURCES = Path(__file__).parent.parent / "apps" / "java"
_JAVA_OPTIONS = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def compile_source(name: str, jars: KafkaJars, classes: Path) -> None:
    """Compile a source with the `javac` beside the machine's `java`, into this folder."""
    javac = java().resolve().with_name("javac")
    options = ["-d", str(classes), "-cp", jars.classpath, "-Xlint:all", "-Werror"]
    done = subprocess.run(
        [javac, *options, SOURCES / f"{name}.java"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def java_command(folder: Path, jars: KafkaJars, main_class: str) -> list[str]:
    """Return the command line of a program that takes a properties file as well; `folder` is for files of its own.

    The main class is one of ours if it has no dot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    classpath = jars.classpath
    if "." not in main_class:
        compile_source(main_class, jars, folder / "classes")
        classpath = f"{folder / 'classes'}:{classpath}"
    logging = folder / "logging.properties"
    logging.write_text(logging_properties(jars.major, folder / "log"), encoding="utf-8")
    options = [*_JAVA_OPTIONS, logging_option(jars.major, logging)]
    return [str(java()), *options, "-cp", classpath, main_class]


class JavaProgram:
    """A program that takes a properties file; it may be restarted after its end, in the same folder.

    Its main class is one of ours if `main_class` has no dot. In a `with` block nothing of it is left afterwards.
    """

    def __init__(self, folder: Path, jars: KafkaJars, main_class: str) -> None:
        self.folder = folder
        self._command = java_command(folder, jars, main_class)
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, settings: Mapping[str, str]) -> None:
        """Start it with these settings."""
        (self.folder / "properties").write_text(properties_text(dict(settings)), encoding="utf-8")
        with (self.folder / "console").open("ab") as console:
            self._begin = console.tell()
            self._process = subprocess.Popen(
                [*self._command, self.folder / "properties"], stdout=console, stderr=subprocess.STDOUT
            )

    @property
    def lines(self) -> list[str]:
        """What it has printed since its last start, in whole lines."""
        with (self.folder / "console").open("rb") as console:
            console.seek(self._begin)
            return console.read().decode(errors="replace").rpartition("\n")[0].splitlines()

    def wait_for(self, line: str, seconds: float = PATIENCE_S) -> None:
        """Return when it has printed this line since its last start."""

        def is_there() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"it has ended by itself:\n{self.tail}"
            return line in self.lines

        wait_until(is_there, seconds)

    @property
    def tail(self) -> str:
        """The last lines that it has printed and logged."""
        return "\n".join((self.folder / name).read_text(errors="replace")[-3000:] for name in ("console", "log"))

    def stop(self, seconds: float = PATIENCE_S) -> None:
        """End it with SIGTERM, which it must obey."""
        assert self._process is not None
        assert self._process.poll() is None, f"it has ended by itself:\n{self.tail}"
        self._process.terminate()
        self._process.wait(seconds)

    def kill(self) -> None:
        """Kill it with SIGKILL, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
