"""A real Spark standalone cluster from the pip package: a master and workers, whose processes tests may harm.

Its processes run without PYTHONPATH, as on machines that know nothing of kmirror.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kmirror.engine.spark.class_archive import ClassArchive
from kmirror.engine.spark.gateway import scala_version
from kmirror.engine.spark.shipping import cache_folder
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.class_archive import java

_START_TIMEOUT_S = 150.0
_EXECUTOR = b"CoarseGrainedExecutorBackend"

#: What master and workers get besides their command line.
_SETTINGS = "spark.properties"


@dataclass(frozen=True, slots=True)
class StandaloneSpark:
    """A running cluster: `master_url` for `--master`, and the JVMs of master and workers."""

    master_url: str
    directory: Path
    master: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]
    web_port: int = field(repr=False)
    cores: int = 2
    memory: str = "700m"

    def executor_pids(self) -> list[int]:
        """Return the pids of all executor JVMs."""
        return [pid for worker in self.workers for pid in _session(worker.pid) if _EXECUTOR in _command_line(pid)]

    def worker_of(self, executor_pid: int) -> subprocess.Popen[bytes]:
        """Return the worker under which an executor runs."""
        return next(worker for worker in self.workers if executor_pid in _session(worker.pid))

    def python_pids(self) -> list[int]:
        """Return the pids of Spark's Python daemons and workers on all machines of the cluster."""
        pids = [pid for worker in self.workers for pid in _session(worker.pid)]
        return [pid for pid in pids if b"python" in _command_line(pid).split(b"\0")[0]]

    def start_worker(self, programs: Path | None = None, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one more worker; the master registers it soon.

        It looks for Python in `programs` first; `within` is a command that runs its words as another command.
        """
        number, (web_port,) = len(self.workers) + 1, free_ports(1)
        options = [
            "-h",
            LOOPBACK,
            "-c",
            str(self.cores),
            "-m",
            self.memory,
            "-d",
            str(self.directory / f"worker-{number}"),
        ]
        options += ["--webui-port", str(web_port), self.master_url]
        self.workers.append(
            _start(
                self.directory,
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                options,
                programs,
                within,
            )
        )
        return self.workers[-1]

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker and everything below it, as if its machine were gone."""
        _kill_sessions([worker])

    def alive_workers(self) -> int:
        """Return how many workers the master has registered."""
        return int(self._status()["aliveworkers"])

    def running_applications(self) -> list[str]:
        """Return the names of the applications that the master runs now."""
        return [str(application["name"]) for application in self._status()["activeapps"]]

    def processes(self) -> list[int]:
        """Return the pids of everything that runs in this cluster."""
        return [pid for jvm in (self.master, *self.workers) for pid in _session(jvm.pid)]

    def _status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.web_port}/json/", timeout=60) as answer:
            status: dict[str, Any] = json.load(answer)
        return status


@contextmanager
def running_standalone_spark(
    directory: Path, workers: int = 2, cores: int = 2, memory: str = "700m", secret: str | None = None
) -> Iterator[StandaloneSpark]:
    """Run a cluster in a folder; at the end everything that ran in it is killed, frozen processes too.

    With a `secret` it serves only those who know it.
    """
    directory.mkdir(parents=True)
    if secret is not None:
        (directory / _SETTINGS).write_text(f"spark.authenticate true\nspark.authenticate.secret {secret}\n")
    port, web_port = free_ports(2)
    master_url = f"spark://{LOOPBACK}:{port}"
    master_options = ["-h", LOOPBACK, "-p", str(port), "--webui-port", str(web_port)]
    master = _start(directory, "master", "org.apache.spark.deploy.master.Master", master_options)
    cluster = StandaloneSpark(master_url, directory, master, [], web_port, cores, memory)
    try:
        _wait(lambda: _answers(web_port), [master], directory)
        for _ in range(workers):
            cluster.start_worker()
        _wait(lambda: cluster.alive_workers() == workers, [master, *cluster.workers], directory)
        yield cluster
    finally:
        _kill_sessions([master, *cluster.workers])
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def standalone_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    """Run a standalone cluster with two workers for the tests of one module."""
    with running_standalone_spark(tmp_path_factory.mktemp("spark") / "cluster") as cluster:
        yield cluster
    assert cluster.processes() == []


def _start(
    directory: Path,
    name: str,
    main_class: str,
    options: list[str],
    programs: Path | None = None,
    within: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    spark_home = Path(package.origin).parent
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environ |= {"SPARK_HOME": str(spark_home), "SPARK_LOCAL_IP": LOOPBACK}
    if programs is not None:
        environ["PATH"] = f"{programs}:{environ['PATH']}"
    # as its script would do it, which takes another start of Java to find out how
    environ |= {"SPARK_SCALA_VERSION": scala_version(spark_home)}
    command = [str(java()), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    archive = ClassArchive.locate(java(), spark_home, cache_folder(environ) / "java")
    if archive and archive.exists:
        command += archive.use()
    if (directory / _SETTINGS).exists():
        options = ["--properties-file", str(directory / _SETTINGS), *options]
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [*within, *command, "-cp", f"{spark_home / 'jars'}/*", main_class, *options],
            env=environ,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _answers(web_port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{LOOPBACK}:{web_port}/json/", timeout=60).close()
    except OSError:
        return False
    return True


def _wait(holds: Callable[[], bool], jvms: list[subprocess.Popen[bytes]], directory: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not holds():
        logs = {log.name: log.read_text(errors="replace")[-2000:] for log in directory.glob("*.log")}
        assert all(jvm.poll() is None for jvm in jvms), f"a Spark process ended: {logs}"
        assert time.monotonic() < deadline, f"Spark does not start: {logs}"
        time.sleep(0.1)


def _kill_sessions(jvms: list[subprocess.Popen[bytes]]) -> None:
    """End everything in the sessions of these processes, whatever was forked or frozen there."""
    for jvm in jvms:
        while pids := _session(jvm.pid):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            jvm.wait()
            time.sleep(0.02)
        jvm.wait()


def _session(leader: int) -> list[int]:
    """Return the pids of a session's processes that run or are frozen.

    After the name, a line of /proc/PID/stat continues with state, parent, process group, session (proc_pid_stat(5)).
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = entry.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state not in {"Z", "X"}:
            found.append(int(entry.parent.name))
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
