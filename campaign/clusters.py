"""The clusters of a ground: real brokers with two listeners. Load and oracle connect directly, kmirror by a proxy.

Each broker has a listener LINK whose advertised address is a port of `campaign.proxy`. If the ground is secured,
kmirror must log in there as a user with limited rights; direct clients may do everything.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import ResourceType

from campaign.logins import MECHANISM, SCRAM, USER, allow_all, change_settings, set_password
from campaign.proxy import BACK, LOOPBACK, THERE, Trouble
from campaign.world import NEW, Ground
from kmirror.errors import RefusedError
from kmirror.java_properties import properties_text
from kmirror_sandbox.cluster import SandboxCluster, start_together
from kmirror_sandbox.cluster_spec import controller_count, save_spec
from kmirror_sandbox.ports import free_ports
from tests.support.clusters import IDLE, QUICK_JAVA_OPTIONS, archive_options
from tests.support.policies import LONGEST_RETENTION_MS, POLICY, policy_option

_ATTEMPTS = 3
_ANSWER_S = 20.0
#: An ApiVersions request, version 0, which a broker also answers before a login.
_WHICH_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_TIERED_SIDES = ("source", "destination")
#: Brokers with a policy ask for a topic for the metadata of tiers, too, by default with an endless retention.
_BROKERS_OWN = {"rlmm.config.remote.log.metadata.topic.retention.ms": str(LONGEST_RETENTION_MS)}
#: A destination that forgets the offsets of groups without members.
_FORGETFUL = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
#: The cluster that has nothing to do with any mirror.
DECOY = "decoy"
#: A broker that is killed before it has stored a log's start says that a tiered log starts where nothing can be read.
_TIERED = {"log.flush.start.offset.checkpoint.interval.ms": "500"}
_STORE_READS = "remote.log.manager.fetch.max.bytes.per.second"
_CLUSTER = {
    **IDLE,
    # a killed broker may come back, and its partitions get another leader, in half the usual time
    "broker.session.timeout.ms": "4500",
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "100",
    # if one broker of two is gone, transactions continue
    "transaction.state.log.min.isr": "1",
}


class Links:
    """The proxy's process, and the commands to it."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        self._lock = threading.Lock()
        words = [f"{port}:{target}" for port, target in targets.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "campaign.proxy", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        output = self._process.stdout.readline()
        if not output:
            raise RuntimeError("the proxy has ended")
        return int(output)

    def change(self, port: int, trouble: Trouble, amount: float, ways: Collection[str] = (THERE, BACK)) -> int:
        """Start a disturbance of a link, or end it with 0; return the number of affected connections."""
        assert self._process.stdin is not None
        with self._lock:
            order = {"port": port, "trouble": trouble, "amount": amount, "ways": list(ways)}
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def close(self) -> None:
        """End the proxy."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Side:
    """One cluster of a world, with the links that lead to it."""

    def __init__(self, name: str, folder: Path, ground: Ground, version: str, brokers: int) -> None:
        self.name, self._folder, self.is_secured = name, folder, ground.secured
        self.is_tiered = ground.tiered and name in _TIERED_SIDES
        controllers = controller_count(brokers)
        ports = free_ports(3 * brokers + controllers)
        direct, control = ports[:brokers], ports[brokers : brokers + controllers]
        behind, front = ports[-2 * brokers : -brokers], ports[-brokers:]
        #: By node, the proxy's port for it.
        self.fronts = {node + 1: port for node, port in enumerate(front)}
        own = {}
        for node in range(brokers):
            listeners = [f"PLAINTEXT://{LOOPBACK}:{direct[node]}", f"LINK://{LOOPBACK}:{behind[node]}"]
            advertised = [listeners[0], f"LINK://{LOOPBACK}:{front[node]}"]
            if node < controllers:
                listeners.append(f"CONTROLLER://{LOOPBACK}:{control[node]}")
            own[node + 1] = {"listeners": ",".join(listeners), "advertised.listeners": ",".join(advertised)}
        self._passwords = folder / f"{name}-passwords.properties"
        self._password = "first"
        self._starting = {node + 1: threading.Lock() for node in range(brokers)}
        #: Where kmirror's connections lead.
        self.behind = behind
        self._targets = dict(zip(front, behind, strict=True))
        self.has_policy = ground.has_policy and name == "destination"
        self.forgets_groups = ground.forgets_groups and name == "destination"
        self._policy = (policy_option(folder / "policy"),) if self.has_policy else ()
        self.cluster = SandboxCluster(
            name,
            folder / name,
            brokers=brokers,
            kafka_version=version,
            ports=[*direct, *control],
            properties={
                **_CLUSTER,
                **_link_settings(ground),
                **(_TIERED if self.is_tiered else {}),
                **({**POLICY, **_BROKERS_OWN} if self.has_policy else {}),
                **(_FORGETFUL if self.forgets_groups else {}),
                "default.replication.factor": str(ground.replicas(brokers)),
            },
            node_properties=own,
            java_options=self._java_options(version),
            heap="320m",
            tiered=self.is_tiered,
        )
        self.links: Links | None = None

    @property
    def direct(self) -> str:
        """Return the brokers' own addresses."""
        return self.cluster.bootstrap_servers

    @property
    def through_links(self) -> str:
        """Return the addresses that lead through the proxy."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.fronts.values())

    def open(self) -> None:
        """Create kmirror's login and rights, once the brokers run."""
        self.links = Links(self._targets)
        if self.is_secured:
            self._let_in()

    def _let_in(self) -> None:
        set_password(self.direct, self._password)
        self.write_password(self._password)
        allow_all(self.direct)

    def write_password(self, password: str) -> None:
        """Write the password to kmirror's file."""
        self._password = password
        self._passwords.write_text(f"password={password}\n", encoding="utf-8")
        self._passwords.chmod(0o600)

    def client_properties(self) -> dict[str, str]:
        """Return kmirror's login properties; the password is a reference."""
        properties = {"bootstrap.servers": self.through_links}
        if self.is_secured:
            password = f"${{file:{self._passwords}:password}}"
            properties |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": MECHANISM,
                "sasl.jaas.config": f'{SCRAM} username="{USER}" password="{password}";',
            }
        return properties

    def write_client_properties(self, path: Path, more: Mapping[str, str]) -> Path:
        """Write them and more to a file, and return its path."""
        path.write_text(properties_text({**self.client_properties(), **more}), encoding="utf-8")
        return path

    def move_away(self, round_trip_s: float) -> None:
        """Let the brokers be so far away for kmirror."""
        for port in self.fronts.values():
            if self.links is not None:
                self.links.change(port, Trouble.DISTANCE, round_trip_s / 2)

    def round_trip_s(self) -> float:
        """Return how long the first broker takes to answer kmirror."""
        with socket.create_connection((LOOPBACK, next(iter(self.fronts.values()))), _ANSWER_S) as connection:
            began = time.monotonic()
            connection.sendall(_WHICH_VERSIONS)
            if not connection.recv(4):
                raise ConnectionError("the broker hung up")
            return time.monotonic() - began

    def heal(self) -> None:
        """Undo everything that may still be wrong: restore links, brokers, and kmirror's login and rights.

        How far away the brokers are remains.
        """
        for port in self.fronts.values():
            for trouble in Trouble:
                if self.links is not None and trouble is not Trouble.DISTANCE:
                    self.links.change(port, trouble, 0)
        for broker in self.cluster.brokers:
            with contextlib.suppress(RefusedError):
                self.cluster.signal(broker.node_id, signal.SIGCONT)
        self.cluster.start()  # together: a broker does not answer without a quorum of controllers
        if self.is_tiered:
            self.cluster.store.well()
            self.limit_store_reads(None)
        if self.is_secured:
            self._let_in()

    def limit_store_reads(self, bytes_per_second: int | None) -> None:
        """Let each broker read this many bytes a second from the store, or any number."""
        limit = None if bytes_per_second is None else str(bytes_per_second)
        for broker in self.cluster.brokers:
            change_settings(self.direct, ResourceType.BROKER, str(broker.node_id), {_STORE_READS: limit})

    def start_broker(self, node: int) -> None:
        """Start a broker that does not run, and wait until it answers."""
        with self._starting[node]:
            self.cluster.start_broker(node)

    def use_version(self, version: str) -> None:
        """Start brokers with this version from now on; running ones keep theirs."""
        spec = replace(self.cluster.spec, kafka_version=version, java_options=self._java_options(version))
        save_spec(spec, self.cluster.directory)
        self.cluster = SandboxCluster(self.name, self.cluster.directory)

    def _java_options(self, version: str) -> tuple[str, ...]:
        return (*QUICK_JAVA_OPTIONS, *(self._policy or archive_options(version)))

    def close(self) -> None:
        """End brokers and proxy."""
        if self.links is not None:
            self.links.close()
        self.cluster.destroy()


def _link_settings(ground: Ground) -> dict[str, str]:
    if not ground.secured:
        return {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LINK:PLAINTEXT"}
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LINK:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.link.{MECHANISM.lower()}.sasl.jaas.config": f"{SCRAM};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


class Clusters:
    """The clusters of a ground: a source and a destination, in a chain a third one, and perhaps a decoy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = 0
        self.sides: list[Side] = []

    def start(self, ground: Ground) -> None:
        """Start those of a ground instead of the previous ones."""
        for attempt in range(_ATTEMPTS):
            self.close()
            self._started += 1
            folder = self._folder / f"ground-{self._started}"
            folder.mkdir()
            self.sides = [
                Side(name, folder, ground, version, brokers)
                for name, version, brokers in zip(
                    ("source", "destination", "third"), ground.versions, ground.brokers, strict=False
                )
            ]
            if ground.has_decoy:
                self.sides.append(Side(DECOY, folder, ground, NEW, 1))
            try:
                start_together([side.cluster for side in self.sides])
                for side in self.sides:
                    side.open()
                return
            except Exception:  # a port was taken meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise

    def versions(self) -> list[Any]:
        """Return the current versions of the mirrors' clusters: an upgrade stays."""
        return [side.cluster.kafka_version for side in self.sides if side.name != DECOY]

    def close(self) -> None:
        """End all of them."""
        for side in self.sides:
            side.close()
        self.sides = []
