"""The machine that the numbers were measured on: they mean nothing without it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kmirror import __version__
from kmirror.java import find_java, java_major_version


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, and the versions of what ran on it. `load_average` covers the five minutes before: what else ran."""

    cpu: str
    cores: int
    memory_gigabytes: int
    system: str
    java: int | None
    python: str
    kafka: str
    kmirror: str
    measured_at: str
    load_average: float

    @property
    def title(self) -> str:
        """Return it as one line."""
        return (
            f"{self.cores} cores of {self.cpu} for both brokers and the copier, {self.memory_gigabytes} GB, "
            f"{self.system}; "
            f"Kafka {self.kafka}, Java {self.java}, Python {self.python}"
        )


def describe_machine(kafka_version: str) -> Machine:
    """Describe this machine."""
    java = subprocess.run([find_java(os.environ), "-version"], capture_output=True, text=True, check=True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        _cpu(),
        len(os.sched_getaffinity(0)),
        round(memory / 2**30),
        f"{platform.system()} {platform.release().split('-')[0]}",
        java_major_version(java.stderr + java.stdout),
        platform.python_version(),
        kafka_version,
        __version__,
        datetime.now(UTC).isoformat(timespec="seconds"),
        round(os.getloadavg()[1], 1),
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
