"""The engine of a world as its operators start it, the verbs they type, and the load: separate processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.world import Host, World

#: Over a distance, from a store under a quota, a failback archives for minutes; what hangs takes longer.
_VERB_S = 400.0
_GRACE_S = 20.0
_LOAD_S = 90.0
#: A folder on the Python path that makes a process believe it runs on another host.
_ELSEWHERE = Path(__file__).parent / "elsewhere"
_OF_ALL = frozenset({"describe", "list"})
_VERBS_LOG = "verbs.log"
#: How a verb's line there ends if it failed unexpectedly.
_UNEXPECTED = " -> 1"
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Typed:
    """A running verb."""

    process: subprocess.Popen[str]
    log: Path
    words: str
    began: float

    def kill(self) -> bool:
        """Kill it; return whether it was still running."""
        was_there = self.process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()
        return was_there

    def end(self, timeout: float = _VERB_S) -> tuple[int, str]:
        """Wait until it ends; return its exit code, −1 if it had to be killed, and its output."""
        try:
            output, errors = self.process.communicate(timeout=timeout)
            code = self.process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            output, errors = self.process.communicate()
            code = -1
        clock = [time.strftime("%H:%M:%S", time.localtime(at)) for at in (self.began, time.time())]
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{'-'.join(clock)} {self.words} -> {code}\n{output}{errors}\n")
        return code, output


def unexpected_failures(folder: Path) -> list[str]:
    """Return where in the logs of a world a verb ended with 1, or a verb or an engine with a traceback."""
    return [
        f"{log.name}:{number}: {line[:200].rstrip()}"
        for log in sorted({folder / _VERBS_LOG, *folder.glob("engine-*.log")})
        if log.exists()
        for number, line in enumerate(log.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if _TRACEBACK in line or (log.name == _VERBS_LOG and line.endswith(_UNEXPECTED))
    ]


class Load:
    """The applications of a world, in their own process (`campaign.load`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, servers: str, acks: Path, topics: Sequence[str] = ()) -> None:
        """Start writing to all topics of the world, or to these, and reading them."""
        words = [str(self._folder / "world.json"), servers, str(acks), *topics]
        with (self._folder / "load.log").open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "campaign.load", *words], stdout=log, stderr=log)

    def end(self) -> None:
        """Let it finish what it has begun."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_LOAD_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class Engine:
    """`kmirror run` for some mirrors of a destination; what kills it starts it again."""

    def __init__(self, mirrors: Sequence[str], login: Path, folder: Path, world: World) -> None:
        """Take the mirrors' names, and the file with the destination's address and login."""
        self.mirrors, self._folder, self._world = tuple(mirrors), folder, world
        servers = next(line for line in login.read_text(encoding="utf-8").splitlines() if line.startswith("bootstrap"))
        self._destination = ("--bootstrap-server", servers.partition("=")[2], "--command-config", str(login))
        self.name = self.mirrors[0]
        self._log = folder / f"engine-{self.name}.log"
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []

    def command(self, verb: str, *arguments: str, mirrors: Sequence[str]) -> list[str]:
        """Return the command line of a verb."""
        here = [word for mirror in mirrors for word in ("--mirror", mirror)]
        return [sys.executable, "-m", "kmirror", verb, *here, *self._destination, *arguments]

    def type(self, verb: str, *arguments: str, mirror: str | None = None) -> Typed:
        """Start a verb, for the first mirror unless another one is named; some are for all."""
        mirrors = () if verb in _OF_ALL and mirror is None else (mirror or self.name,)
        command = self.command(verb, *arguments, mirrors=mirrors)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=_environ(self._world.operator_host, self._folder),
        )
        words = " ".join((verb, *mirrors, *arguments))
        return Typed(process, self._folder / _VERBS_LOG, words, time.time())

    def verb(self, verb: str, *arguments: str, mirror: str | None = None, timeout: float = _VERB_S) -> tuple[int, str]:
        """Run a verb; return its exit code, −1 if it had to be killed, and its output."""
        return self.type(verb, *arguments, mirror=mirror).end(timeout)

    def start(self) -> None:
        """Start the engine."""
        with self._lock:
            self._running.append(self._run(self._world.engine_host))

    def _run(self, host: Host) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            log.write(f"--- started at {time.strftime('%H:%M:%S')}\n".encode())
            command = self.command("run", mirrors=self.mirrors)
            return subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=_environ(host, self._folder)
            )

    def start_second(self) -> Callable[[], None]:
        """Start another engine beside it, which must be refused or wait; return what ends it."""
        second = self._run(self._world.operator_host)

        def undo() -> None:
            second.terminate()
            try:
                second.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                _kill_group(second)

        return undo

    def ensure(self) -> None:
        """Start the engine again if it has ended."""
        if not self.drivers():
            self.start()

    def _taken(self) -> list[subprocess.Popen[bytes]]:
        with self._lock:
            running, self._running = self._running, []
        return running

    def kill(self) -> None:
        """Kill it with all its processes."""
        for one in self._taken():
            _kill_group(one)

    def kill_driver(self) -> None:
        """Kill only its first process."""
        for one in self._taken():
            one.kill()
            one.wait(_GRACE_S)

    def drivers(self) -> list[int]:
        """Return the process of the engine itself."""
        with self._lock:
            return [one.pid for one in self._running if one.poll() is None]

    def jvms(self) -> list[int]:
        """Return Spark's process."""
        return [pid for driver in self.drivers() for pid, name in _descendants(driver) if name == "java"]

    def lanes(self) -> list[int]:
        """Return the processes that copy: Python workers forked by Spark's daemon."""
        found = []
        for jvm in self.jvms():
            for daemon, name in _children(jvm):
                if name.startswith("python"):
                    found += [pid for pid, _ in _children(daemon)]
        return found


def _environ(host: Host, folder: Path) -> dict[str, str]:
    """Return the environment of a command on a host, whose policy lets mirrors use the passwords of its clusters.

    Their folders are beside that of the world.
    """
    environ = {**os.environ, "KMIRROR_TRUST_PATHS": str(folder.parent)}
    if not host.name:
        return environ
    path = os.pathsep.join(filter(None, (str(_ELSEWHERE), os.environ.get("PYTHONPATH"))))
    return {**environ, "PYTHONPATH": path, "CAMPAIGN_HOST": host.name, "CAMPAIGN_CLOCK_S": str(host.clock_s)}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_GRACE_S)


def _children(pid: int) -> list[tuple[int, str]]:
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                with contextlib.suppress(OSError):
                    found.append((int(child), os.path.basename(os.readlink(f"/proc/{child}/exe"))))
    return found


def _descendants(pid: int) -> list[tuple[int, str]]:
    found = _children(pid)
    for child, _ in list(found):
        found += _descendants(child)
    return found
