"""Two clusters, a mirror between them, clients on it, and how commands reach them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.clusters import Pair
from bench.measure import CopyFailedError
from bench.processes import REPOSITORY, Running, carry_out, kmirror, start
from bench.redirect.clients import Client
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission, Operation, PatternType, ResourceType
from kmirror.cluster.rights.acls import await_acls, create_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.java_properties import properties_text
from kmirror_sandbox.cluster import SandboxCluster

MIRROR = "redirect"
USERS = {"app": "app-secret"}
OLD, NEW = "source", "destination"
_LOGIN = "KMIRROR_REDIRECT_LOGIN"
_TIMEOUT = "300s"
_START_S = 300.0


class RedirectSite:
    """The clusters `source` and `destination`, with logins and ACLs, and a mirror of the clients' topics."""

    def __init__(self, pair: Pair, folder: Path, clients: Sequence[Client]) -> None:
        self.folder = folder
        self.clusters: dict[str, SandboxCluster] = {OLD: pair.source.sandbox, NEW: pair.destination.sandbox}
        self.clients = clients
        os.environ["KMIRROR_TRUST_PATHS"], os.environ["KMIRROR_TRUST_ENV"] = str(folder), _LOGIN
        trusted = [one.directory / "tls" / "ca.pem" for one in self.clusters.values()]
        self._trust = folder / "both.pem"
        self._trust.write_text("".join(file.read_text(encoding="utf-8") for file in trusted), encoding="utf-8")
        for name, cluster in self.clusters.items():
            properties = cluster.client_properties()
            os.environ[_LOGIN] = properties["sasl.jaas.config"]
            for file, found in (
                ("admin", properties),
                ("link", {**properties, "sasl.jaas.config": f"${{env:{_LOGIN}}}"}),
            ):
                self._file(name, file).write_text(properties_text(found), encoding="utf-8")
            with ClusterClient(client_config(properties)) as admin:
                _grant(admin)

    def brokers(self, name: str) -> str:
        """Return the addresses of a cluster's brokers."""
        return self.clusters[name].bootstrap_servers

    def connection(self, name: str) -> str:
        """Return the lines about a cluster in a kmirror.toml."""
        return f'bootstrap-server = "{self.brokers(name)}"\ncommand-config = "{self._file(name, "admin")}"\n'

    def start_clients(self, doors: Sequence[str], rate: int) -> None:
        """Start the clients, each at its door, and return when all of them write and read."""
        for client, door in zip(self.clients, doors, strict=True):
            client.start(self._app(door), rate)
        self._await_all(2 * rate, 0, time.monotonic() + _START_S)

    def leave_out(self, keys: Collection[str]) -> None:
        """Stop the clients of these kinds, and do not move them from now on."""
        for client in self.clients:
            if client.kind.key in keys:
                client.close()
        self.clients = [client for client in self.clients if client.kind.key not in keys]

    def mirror(self) -> Running:
        """Create the topics, and mirror them; return the running engine when it has copied everything."""
        with ClusterClient(client_config(self.clusters[OLD].client_properties())) as admin:
            for client in self.clients:
                create_topic(admin, client.topic, client.partitions, 1, {"retention.ms": "-1"})
        carry_out(self.command(NEW, "create", "--mirror-config", self.link(OLD)))
        carry_out(self.command(NEW, "add", "--topics", "numbered-.*"))
        return self.run_engine(NEW)

    def run_engine(self, at: str) -> Running:
        """Start an engine at a cluster; return when everything is copied."""
        log = self.folder / f"run-{at}.log"
        running = Running([start(self.command(at, "run"), log)], log, False)
        try:
            carry_out(self.command(at, "wait", "--for", "healthy", "--timeout", _TIMEOUT))
        except BaseException:
            running.kill()
            raise
        return running

    def command(self, at: str, verb: str, *arguments: str) -> list[str]:
        """Return a command line for a verb at one of the clusters."""
        here = ("--bootstrap-server", self.brokers(at), "--command-config", str(self._file(at, "admin")))
        return kmirror(verb, "--mirror", MIRROR, *here, *arguments)

    def document(self, at: str, verb: str, *arguments: str) -> dict[str, Any]:
        """Run a verb with `--json` and return what it printed. Raises CopyFailedError if it fails."""
        argv = self.command(at, verb, *arguments, "--json")
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CopyFailedError(f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def link(self, to: str) -> str:
        """Return the properties file with which a mirror connects to a cluster."""
        return str(self._file(to, "link"))

    def settle(self, seconds: float, records: int) -> int:
        """Wait until all clients have written and read so many records from now on, at most so long.

        Returns when that was, in epoch milliseconds.
        """
        deadline = time.monotonic() + seconds
        with suppress(TimeoutError):
            self._await_all(records, time.time_ns() // 1_000_000, deadline)
        return time.time_ns() // 1_000_000

    def _app(self, door: str) -> dict[str, str]:
        properties = self.clusters[OLD].client_properties("app")
        return {**properties, "bootstrap.servers": door, "ssl.truststore.location": str(self._trust)}

    def _file(self, cluster: str, name: str) -> Path:
        return self.folder / f"{cluster}-{name}.properties"

    def _await_all(self, records: int, since_ms: int, deadline: float) -> None:
        while lacking := [one.kind.key for one in self.clients if _least(one, since_ms) < records]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{', '.join(lacking)} did not write and read {records} records")
            time.sleep(1)


def _least(client: Client, since_ms: int) -> int:
    new = [event.what for event in client.events() if event.at >= since_ms]
    return min(new.count("acknowledged"), new.count("read"))


def _grant(admin: ClusterClient) -> None:
    """Let the applications write, read and commit."""
    wanted: Iterable[tuple[ResourceType, Operation]] = (
        (ResourceType.TOPIC, Operation.WRITE),
        (ResourceType.TOPIC, Operation.READ),
        (ResourceType.GROUP, Operation.READ),
    )
    rule = (PatternType.LITERAL, "User:app", "*")
    may = [AclBinding(kind, "*", *rule, operation, AclPermission.ALLOW) for kind, operation in wanted]
    if set(create_acls(admin, may).values()) != {None} or not await_acls(admin, may):
        raise CopyFailedError("cannot grant the applications' rights")
