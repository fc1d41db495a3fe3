"""A real YARN on this machine: a ResourceManager, and NodeManagers on addresses of their own, which tests may harm.

Each NodeManager is a process with room for two containers, and its containers are processes with folders of its own, so
that a machine can be lost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from kmirror_sandbox.jars import artifact_jars
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.class_archive import java
from tests.support.waiting import wait_until

#: YARN's servers, and what their published jar needs on top of its dependencies: organisation, name, version, size.
_ARTIFACTS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0", 110),
    ("org.slf4j", "slf4j-reload4j", "1.7.36", 1),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82", 10),
)
_SERVERS = "org.apache.hadoop.yarn.server"
_JAVA_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
_MASTER = b"org.apache.spark.deploy.yarn.ExecutorLauncher"
#: Room for two containers of Spark's least size: an application master and an executor, or two executors.
_NODE_MB = "1800"
_START_TIMEOUT_S = 300.0
_LOGGING = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A NodeManager: its address, the folder of it and its containers, and its process."""

    host: str
    folder: Path
    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """Return the pids of everything on this machine: its manager, and its containers by their environment."""
        folder = os.fsencode(f"{self.folder}/")
        found = [pid for pid in _all_pids() if folder in _read(pid, "environ") or folder in _read(pid, "cmdline")]
        return [*([self.process.pid] if self.process.poll() is None else []), *found]

    def kill(self) -> None:
        """Kill everything on it at once, as if the machine were gone."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.02)
        self.process.wait()


@dataclass(slots=True)
class Yarn:
    """A running cluster: `conf` is for HADOOP_CONF_DIR, `nodes` are those that run."""

    folder: Path
    conf: Path
    manager: subprocess.Popen[bytes]
    site: Mapping[str, str] = field(repr=False)
    nodes: list[Node] = field(default_factory=list)
    _started: int = 0

    def start_node(self, programs: Path | None = None) -> Node:
        """Start one more NodeManager and wait until it is registered.

        With `programs`, its containers find programs in this folder alone.
        """
        self._started += 1
        # a host of its own: the loopback network has sixteen million
        host, folder = f"127.0.1.{self._started}", self.folder / f"node-{self._started}"
        names = ("address", "localizer.address", "collector-service.address", "webapp.address")
        site = {
            **self.site,
            **{f"yarn.nodemanager.{name}": f"{host}:0" for name in names},
            "yarn.nodemanager.hostname": host,
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": _NODE_MB,
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            # a disk that others have filled is no reason to use none
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }
        if programs is not None:
            site["yarn.nodemanager.admin-env"] = f"PATH={programs}"
        process = _start(folder, site, f"{_SERVERS}.nodemanager.NodeManager")
        node = Node(host, folder, process)
        self.nodes.append(node)
        self._wait(node.process, lambda: host in self.running())
        return node

    def kill_node(self, node: Node) -> None:
        """Kill a machine, and wait until the ResourceManager has noticed."""
        self.nodes.remove(node)
        node.kill()
        wait_until(lambda: node.host not in self.running())

    def running(self) -> list[str]:
        """Return the hosts that the ResourceManager counts as running."""
        nodes = (self.ask("nodes")["nodes"] or {}).get("node", [])
        return [node["nodeHostName"] for node in nodes if node["state"] == "RUNNING"]

    def node_addresses(self) -> list[str]:
        """Return where the NodeManagers that run answer HTTP."""
        return [node["nodeHTTPAddress"] for node in self.ask("nodes")["nodes"]["node"] if node["state"] == "RUNNING"]

    def application(self, name: str) -> dict[str, Any]:
        """Return what the ResourceManager says of the newest application whose name holds this."""
        found = [one for one in (self.ask("apps")["apps"] or {}).get("app", []) if name in one["name"]]
        newest: dict[str, Any] = max(found, key=lambda one: int(one["id"].rpartition("_")[2]))
        return newest

    def ask(self, path: str) -> dict[str, Any]:
        """Return what the ResourceManager answers to everyone."""
        return json.loads(self.text(path)) or {}

    def text(self, path: str) -> bytes:
        """Return the same, as text."""
        with urllib.request.urlopen(f"{self._web}/{path}", timeout=60) as answer:
            text: bytes = answer.read()
        return text

    def master(self, but: int | None = None) -> tuple[int, Node]:
        """Wait for an application master, another one than this; return its pid, and the node on which it runs."""
        found: list[tuple[int, Node]] = []

        def is_there() -> bool:
            found[:] = [(pid, node) for node in self.nodes for pid in node.pids() if pid != but and _is_master(pid)]
            return bool(found)

        wait_until(is_there)
        return found[0]

    def pids(self) -> list[int]:
        """Return the pids of everything that runs in this cluster."""
        return [self.manager.pid, *(pid for node in self.nodes for pid in node.pids())]

    @property
    def _web(self) -> str:
        return f"http://{self.site['yarn.resourcemanager.webapp.address']}/ws/v1/cluster"

    def _wait(self, process: subprocess.Popen[bytes], holds: Any) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                if holds():
                    return
            logs = {log.parent.name: log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*/log")}
            assert process.poll() is None, f"a process of YARN ended: {logs}"
            assert time.monotonic() < deadline, f"YARN does not start: {logs}"
            time.sleep(0.1)


@contextmanager
def running_yarn(folder: Path, nodes: int = 2) -> Iterator[Yarn]:
    """Run a cluster in a folder; at the end everything that ran in it is killed."""
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    site = {
        **{f"yarn.resourcemanager.{name}": f"{LOOPBACK}:{port}" for name, port in ports.items()},
        "yarn.resourcemanager.hostname": LOOPBACK,
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.resourcemanager.scheduler.class": f"{_SERVERS}.resourcemanager.scheduler.capacity.CapacityScheduler",
        # a lost machine is noticed within seconds instead of ten minutes
        "yarn.nm.liveness-monitor.expiry-interval-ms": "8000",
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": "500",
    }
    manager = _start(folder / "manager", site, f"{_SERVERS}.resourcemanager.ResourceManager")
    _configure(folder / "client", site)
    yarn = Yarn(folder, folder / "client", manager, site)
    try:
        yarn._wait(manager, lambda: yarn.ask("info"))
        for _ in range(nodes):
            yarn.start_node()
        yield yarn
    finally:
        for node in yarn.nodes:
            node.kill()
        manager.kill()
        manager.wait()
        shutil.rmtree(folder, ignore_errors=True)


def spark_jars() -> str:
    """Return the Spark setting by which nodes take Spark from this machine, instead of a copy of 400 MB each."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return f"spark.yarn.jars=local:{Path(package.origin).parent}/jars/*"


def _start(folder: Path, site: Mapping[str, str], main_class: str) -> subprocess.Popen[bytes]:
    _configure(folder, site)
    jars: Sequence[str] = [artifact_jars(*artifact, os.environ).classpath for artifact in _ARTIFACTS]
    home = java().resolve().parent.parent
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [
                str(java()),
                *_JAVA_OPTIONS,
                f"-Dhadoop.log.dir={folder}",
                "-cp",
                ":".join([str(folder), *jars]),
                main_class,
            ],
            env={**os.environ, "JAVA_HOME": str(home)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _configure(folder: Path, site: Mapping[str, str]) -> None:
    """Write the files of a Hadoop configuration; the only file system is this machine's."""
    folder.mkdir(parents=True)
    queues = {"queues": "default", "default.capacity": "100", "default.maximum-am-resource-percent": "1"}
    files = {
        "core-site": {"fs.defaultFS": "file:///"},
        "yarn-site": site,
        "capacity-scheduler": {f"yarn.scheduler.capacity.root.{key}": value for key, value in queues.items()},
    }
    for name, properties in files.items():
        rows = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in properties.items()
        )
        (folder / f"{name}.xml").write_text(f"<configuration>{rows}</configuration>")
    (folder / "log4j.properties").write_text(_LOGGING)


def _is_master(pid: int) -> bool:
    program, *words = _read(pid, "cmdline").split(b"\0")
    return program.endswith(b"/java") and _MASTER in words


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
