"""A real HAProxy as a door to two clusters, with the configuration in deploy/: only names and addresses differ."""

from __future__ import annotations

import csv
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.debian import library_path, unpacked
from tests.support.ending import terminated
from tests.support.waiting import PATIENCE_S, wait_until

CONFIG = Path(__file__).parent.parent.parent / "deploy" / "kubernetes" / "door" / "haproxy.cfg"
#: HAProxy, with the libraries that it needs on top of a minimal Debian.
_PACKAGES = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
_SERVER = re.compile(r"    server (?P<site>[ab])\d+ \S+ check addr \S+ port \d+")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster behind a door: its name in kmirror.toml, and its brokers."""

    cluster: str
    bootstrap_servers: str


class Door:
    """A running HAProxy; clients take `address` for bootstrap.servers."""

    def __init__(self, address: str, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.address = address
        self.process = process
        self._folder = folder

    @property
    def log(self) -> str:
        """What it has logged: a line for each connection, and for each change of a server."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def open_to(self) -> set[str]:
        """Return the sites to which it leads: `a`, `b`, neither, or, which must never be, both."""
        up = {name for name, row in self._backends().items() if row["status"] == "UP"}
        return set() if "starting" in up else {name.removeprefix("site-") for name in up}

    def sessions(self, site: str) -> int:
        """Return how many connections to a site's brokers it holds."""
        return int(self._backends()[f"site-{site}"]["scur"])

    def has_started(self) -> bool:
        """Return whether the first checks have ended, so that it leads somewhere if a site is in charge."""
        assert self.process.poll() is None, self.log
        try:
            return self._backends()["starting"]["status"] == "DOWN"
        except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
            return False

    def _backends(self) -> dict[str, dict[str, str]]:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(PATIENCE_S)
            asked.connect(str(self._folder / "admin.sock"))
            asked.sendall(b"show stat\n")
            text = b"".join(iter(lambda: asked.recv(65_536), b"")).decode()
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        return {row["pxname"]: row for row in rows if row["svname"] == "BACKEND"}


@contextmanager
def haproxy(
    mirror: str, site_a: Site, site_b: Site, serve: Sequence[str], *, port: int | None = None, unsure_last: bool = False
) -> Iterator[Door]:
    """Run a door until the end of the block; `serve` has the addresses, HOST:PORT, of `kmirror serve` processes."""
    program, environment = _program()
    address = f"{LOOPBACK}:{port or free_ports(1)[0]}"
    with tempfile.TemporaryDirectory(prefix="door-") as name:  # the path of a socket may have 107 characters
        folder = Path(name)
        config = filled_in(mirror, {"a": site_a, "b": site_b}, serve, address, folder, unsure_last=unsure_last)
        (folder / "haproxy.cfg").write_text(config, encoding="utf-8")
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [program, "-db", "-f", folder / "haproxy.cfg"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
        door = Door(address, process, folder)
        try:
            wait_until(door.has_started)
            yield door
        finally:
            terminated(process)


def filled_in(
    mirror: str, sites: Mapping[str, Site], serve: Sequence[str], address: str, folder: Path, *, unsure_last: bool
) -> str:
    """Return the configuration in deploy/ with other names and addresses, and as many brokers as the clusters have."""
    replaced = {
        "bind :9092": f"bind {address}",
        "/run/haproxy/admin.sock mode 660": f"{folder}/admin.sock mode 600",
        "/orders-dr?": f"/{mirror}?",
        "server first-checks 127.0.0.1:8080": f"server first-checks {serve[0]}",
        **{f"?cluster={key}": f"?cluster={site.cluster}" for key, site in sites.items()},
    }
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, f"{new}&unsure=last" if unsure_last and old.startswith("?") else new)
    lines: list[str] = []
    seen: set[str] = set()
    for line in text.splitlines():
        found = _SERVER.fullmatch(line)
        if found is None:
            lines.append(line)
        elif found["site"] not in seen:
            seen.add(found["site"])
            lines += _servers(found["site"], sites[found["site"]], serve)
    assert seen == sites.keys()
    return "\n".join(lines) + "\n"


def _servers(name: str, site: Site, serve: Sequence[str]) -> Iterator[str]:
    brokers = site.bootstrap_servers.split(",")
    checks = cycle(serve)
    for number in range(1, max(len(brokers), len(serve)) + 1):
        host, _, port = next(checks).rpartition(":")
        yield f"    server {name}{number} {brokers[(number - 1) % len(brokers)]} check addr {host} port {port}"


def _program() -> tuple[str, Mapping[str, str]]:
    """Return the program and its environment: the installed one, or else Debian's."""
    installed = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if installed:
        return installed, {}
    root = unpacked("haproxy", "haproxy", _PACKAGES)
    return str(root / "usr/sbin/haproxy"), library_path(root)
