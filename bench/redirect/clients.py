"""Unmodified clients that write and read numbered records: which there are, how they run, what they printed.

Each program takes a properties file like those of Java clients, and prints the lines that `numbered` describes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import CopyFailedError
from bench.processes import REPOSITORY
from kmirror.cluster.security.client_config import client_config
from kmirror.java_properties import properties_text
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import cache_directory, kafka_jars
from tests.support.java_programs import java_command
from tests.support.librdkafka import librdkafka
from tests.support.oracle import console_consumer, librdkafka_records

JAVA_PROGRAM = "NumberedRecords"
_FRANZ = Path(__file__).parent / "franz"
_GO = ("go", "/usr/local/go/bin/go")
_GRACE_S = 20.0
#: The scenario of clients that give up brokers that do not answer.
IMPATIENT = "impatient"


@dataclass(frozen=True, slots=True)
class Event:
    """A line of a client program; `at` in epoch milliseconds.

    `what` is acknowledged or read, with a record's number, partition and offset, or error or started, with a text and
    the side (writer or reader) that it is about.
    """

    at: int
    what: str
    number: int = -1
    partition: int = -1
    offset: int = -1
    side: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A record in a cluster's log."""

    number: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A client: its library with the version, the settings that it needs, and how its program is run.

    `command` takes a folder for files of its own; it raises LookupError with the cause where the client cannot run.
    It takes part in all scenarios but `impatient`, or in that `only`.
    """

    key: str
    title: str
    command: Callable[[Path], list[str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    only: str | None = None

    def is_in(self, scenario: str) -> bool:
        """Return whether it takes part in a scenario."""
        return self.only == scenario or (self.only is None and scenario != IMPATIENT)


def java_client(version: str) -> Callable[[Path], list[str]]:
    """Return how the client of a version of Kafka is run."""

    def command(folder: Path) -> list[str]:
        return java_command(folder, kafka_jars(version, os.environ, print), JAVA_PROGRAM)

    return command


def python_client(module: str) -> Callable[[Path], list[str]]:
    """Return how a program in this package is run."""
    return lambda _: [sys.executable, "-m", f"bench.redirect.{module}"]


def _franz_go(_: Path) -> list[str]:
    go = next((found for name in _GO if (found := shutil.which(name))), None)
    if go is None:
        raise LookupError("there is no `go` on this machine")
    program = cache_directory(os.environ).with_name("redirect") / "franz"
    built = subprocess.run([go, "build", "-o", program, "."], cwd=_FRANZ, capture_output=True, text=True, check=False)
    if built.returncode:
        raise LookupError(f"go cannot build it: {built.stderr.strip()}")
    return [str(program)]


_REBOOTSTRAP = {"metadata.recovery.strategy": "rebootstrap"}
#: Settings with which a client gives up brokers that do not answer (docs/apps/redirect.md).
_IMPATIENT = {
    "request.timeout.ms": "10000",
    "socket.connection.setup.timeout.ms": "3000",
    "socket.connection.setup.timeout.max.ms": "5000",
}
_TRIGGER = {"metadata.recovery.rebootstrap.trigger.ms": "10000"}
_LIBRDKAFKA = {
    "librdkafka.metadata.recovery.strategy": "rebootstrap",
    "librdkafka.metadata.recovery.rebootstrap.trigger.ms": "10000",
    "librdkafka.socket.timeout.ms": "10000",
    "librdkafka.socket.connection.setup.timeout.ms": "10000",
}
KINDS = (
    Kind(
        "java-3.9",
        "Java 3.9.2, `metadata.recovery.strategy=rebootstrap`",
        java_client("3.9.2"),
        _REBOOTSTRAP,
    ),
    Kind("java-4.0", "Java 4.0.2", java_client("4.0.2")),
    Kind("java-4.4", "Java 4.4.0", java_client("4.4.0")),
    Kind("librdkafka", "librdkafka", python_client("librdkafka_client")),
    Kind("kafka-python", "kafka-python", python_client("kafka_python_client")),
    Kind("franz-go", "franz-go", _franz_go),
    Kind(
        "java-3.9-impatient",
        "Java 3.9.2, impatient",
        java_client("3.9.2"),
        {**_REBOOTSTRAP, **_IMPATIENT},
        IMPATIENT,
    ),
    Kind(
        "java-4.0-impatient",
        "Java 4.0.2, impatient",
        java_client("4.0.2"),
        {**_TRIGGER, **_IMPATIENT},
        IMPATIENT,
    ),
    Kind(
        "java-4.4-impatient",
        "Java 4.4.0, impatient",
        java_client("4.4.0"),
        {**_TRIGGER, **_IMPATIENT},
        IMPATIENT,
    ),
    Kind("librdkafka-impatient", "librdkafka, impatient", python_client("librdkafka_client"), _LIBRDKAFKA, IMPATIENT),
)


class Client:
    """One client program with a topic and a group of its own, until it is closed."""

    def __init__(self, kind: Kind, folder: Path, partitions: int) -> None:
        self.kind = kind
        self.topic = f"numbered-{kind.key}"
        self.group = f"readers-{kind.key}"
        self.partitions = partitions
        self._folder = folder / kind.key
        self._folder.mkdir()
        self._command = kind.command(self._folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, properties: Mapping[str, str], rate: int) -> None:
        """Start to write so many records a second, and to read them."""
        numbered = {"topic": self.topic, "partitions": self.partitions, "rate": rate, "group": self.group}
        settings = {**properties, **self.kind.settings, **{f"numbered.{key}": str(it) for key, it in numbered.items()}}
        file = self._folder / "client.properties"
        file.write_text(properties_text(settings), encoding="utf-8")
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            self._process = subprocess.Popen([*self._command, str(file)], cwd=REPOSITORY, stdout=out, stderr=err)

    def events(self) -> list[Event]:
        """Return what it has printed so far."""
        text = (self._folder / "out").read_text(encoding="utf-8", errors="replace")
        return [Event(**_fields(line)) for line in text.rpartition("\n")[0].splitlines()]

    def printed(self) -> str:
        """Return the beginning of what it has printed, to standard output and to standard error."""
        return "".join((self._folder / name).read_text(encoding="utf-8")[:4000] for name in ("out", "err"))

    def kept(self, cluster: SandboxCluster) -> list[Kept]:
        """Return its records at a cluster, as Kafka's console consumer reads them.

        Raises:
            CopyFailedError: librdkafka does not find the same ones first.
        """
        found = []
        config = librdkafka(client_config(cluster.client_properties()))
        for partition in range(self.partitions):
            others = librdkafka_records(cluster.bootstrap_servers, self.topic, partition, config=config)
            records = console_consumer(cluster, self.topic, partition, max_messages=len(others))
            if records != others:
                raise CopyFailedError(f"two readers find different records in {self.topic}-{partition}")
            found += [Kept(int(one.value or b"-1"), partition, one.offset) for one in records]
        return found

    def close(self) -> None:
        """End it with SIGTERM, or, if it does not obey, with SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_GRACE_S)


def _fields(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return found
