"""Run something enclosed: in namespaces of its own for processes, mounts and the network, of which nothing remains.

Whatever ends it (its end, a signal, also SIGKILL), the kernel kills every process in it and removes its network; a
process outside, the keeper, removes its folder and restores the machine's settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kmirror.errors import RefusedError

_NEW_MOUNTS, _NEW_PROCESSES, _NEW_NETWORK = 0x00020000, 0x20000000, 0x40000000
_SET_PARENT_DEATH_SIGNAL = 1
#: In an enclosure, the descriptor of the machine's own network.
_HOST_NETWORK = 100
#: Only one enclosure at a time may change the machine's settings. The name ends with its holder.
_LOCK = "\0kmirror-far"
_ALLOWED_CONGESTION_CONTROL = "net.ipv4.tcp_allowed_congestion_control"
_SETTINGS = ("net.core.rmem_max", "net.core.wmem_max", _ALLOWED_CONGESTION_CONTROL)
_NEEDED_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}
_NEEDED_COMMANDS = ("ip", "tc", "mount")
_REMOVAL_TIMEOUT_S = 30.0
_libc = ctypes.CDLL(None, use_errno=True)


def refuse_unless_possible() -> None:
    """Raise RefusedError with what is missing if this process cannot make namespaces and devices."""
    missing = []
    if sys.platform != "linux":
        missing.append("Linux")
    elif names := [name for bit, name in _NEEDED_CAPABILITIES.items() if not _capabilities() >> bit & 1]:
        missing.append(f"root's capabilities {' and '.join(names)}")
    if not Path("/dev/net/tun").exists():
        missing.append("/dev/net/tun (`modprobe tun`; in a container `--device /dev/net/tun`)")
    missing += [f"the command `{name}`" for name in _NEEDED_COMMANDS if shutil.which(name) is None]
    if missing:
        raise RefusedError(
            f"cannot make a network with a delay: missing {', '.join(missing)}",
            "run `sudo .venv/bin/python -m bench.far` on a Linux machine that is yours, or a virtual one",
        )


def _capabilities() -> int:
    """Return this process's effective capabilities, by bit: capabilities(7)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))


def run_enclosed(work: Callable[[Path], int]) -> int:
    """Run `work` enclosed, with a folder of its own, and return its exit code once nothing of it remains."""
    refuse_unless_possible()
    lock = _locked()
    folder = Path(tempfile.mkdtemp(prefix="kmirror-far-"))
    before = {name: read_setting(name) for name in _SETTINGS}
    held, holds = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(holds)
        _keep(held, folder, before)
    os.close(held)
    init = 0
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        host = os.open("/proc/self/ns/net", os.O_RDONLY)
        os.dup2(host, _HOST_NETWORK, inheritable=False)
        _call(_libc.unshare, _NEW_PROCESSES)
        init = os.fork()
        if init == 0:
            _begin(work, folder)
        return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if init:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(init, signal.SIGKILL)
                os.waitpid(init, 0)
        os.close(holds)
        os.waitpid(keeper, 0)
        lock.close()


def _locked() -> socket.socket:
    """Return a socket that bears the lock's name, also while only the keeper is left."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(_LOCK)
    except OSError as error:
        lock.close()
        raise RefusedError(
            "another link with a delay is up, and both would change settings of this machine", "wait until it is gone"
        ) from error
    return lock


def _keep(held: int, folder: Path, before: Mapping[str, str]) -> None:
    """Wait until the processes that hold the pipe's other end are gone, and clean up after them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.read(held, 1)
    for name, value in before.items():
        if read_setting(name) != value:
            write_setting(name, value)
    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline:  # processes in it may not be quite dead
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
    os._exit(0)


def _begin(work: Callable[[Path], int], folder: Path) -> None:
    """Be the first process of the enclosure: start `work` in the second, and reap what is orphaned until that ends."""
    code = 1
    try:
        _call(_libc.prctl, _SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        _call(_libc.unshare, _NEW_MOUNTS | _NEW_NETWORK)
        Path("/run/netns").mkdir(parents=True, exist_ok=True)
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "proc", "proc", "/proc")
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        second = os.fork()
        if second == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                code = work(folder)
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        while True:
            pid, status = os.wait()
            if pid == second:
                code = os.waitstatus_to_exitcode(status)
                break
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code if code >= 0 else 128 - code)


def make_namespace(name: str) -> Path:
    """Make another network within the enclosure; `ip netns exec NAME` runs commands in it."""
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    return Path("/run/netns", name)


@contextlib.contextmanager
def inside(network: Path | int) -> Iterator[None]:
    """Move this thread into a network for a while, with the processes and threads that it starts there."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(network, os.O_RDONLY | os.O_CLOEXEC) if isinstance(network, Path) else network
    try:
        _call(_libc.setns, target, _NEW_NETWORK)
        try:
            yield
        finally:
            _call(_libc.setns, own, _NEW_NETWORK)
    finally:
        os.close(own)
        if isinstance(network, Path):
            os.close(target)


def read_setting(name: str) -> str:
    """Return a kernel setting of the network that this thread is in."""
    return Path("/proc/sys", *name.split(".")).read_text(encoding="ascii").strip()


def write_setting(name: str, value: str) -> None:
    """Change a kernel setting of the network that this thread is in."""
    Path("/proc/sys", *name.split(".")).write_text(value, encoding="ascii")


def write_machine_setting(name: str, value: str) -> None:
    """Change, from the enclosure, one of the settings that networks share; they are restored after it."""
    assert name in _SETTINGS
    with inside(_HOST_NETWORK):
        write_setting(name, value)


def read_machine_setting(name: str) -> str:
    """Return, from the enclosure, one of the settings that networks share."""
    with inside(_HOST_NETWORK):
        return read_setting(name)


def allow_congestion_control(name: str) -> None:
    """Allow, from the enclosure, a congestion control that otherwise only the machine's own network may choose."""
    with inside(_HOST_NETWORK):
        allowed = read_setting(_ALLOWED_CONGESTION_CONTROL)
        if name not in allowed.split():
            write_setting(_ALLOWED_CONGESTION_CONTROL, f"{allowed} {name}")


def run(*command: str) -> None:
    """Run a command to its end. Raises CalledProcessError after its message."""
    subprocess.run(command, check=True)


def _call(function: Callable[..., int], *arguments: int) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")
