"""The pair of clusters, `a` and `b`, behind `kmirror sandbox up | down | status`.

Both live in one folder. From the base port P on: the brokers of a at P, P+1, …, those of b at P+10, P+11, …; the
controllers at P+20 and P+30; where the brokers are secured, their listeners for each other at P+40 and P+50, and where
clients log in with tokens, their endpoints at P+60 and P+70. A plan is made first; it is what a dry run prints and what
is then carried out.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kmirror.columns import COUNT, TEXT, Column, Table, document, list_of, one_of
from kmirror.errors import RefusedError, UsageError
from kmirror.sandbox.broker_config import properties_text
from kmirror.sandbox.cluster import SandboxCluster, start_together
from kmirror.sandbox.jars import check_kafka_version
from kmirror.sandbox.ports import is_free
from kmirror.sandbox.readiness import listens
from kmirror.sandbox.spec import ADMIN_USER, CERTIFICATE, controller_count, has_spec
from kmirror.work import Watch, unwatched

CLUSTERS = ("a", "b")
DEFAULT_BASE_PORT = 19_092
DEFAULT_BROKERS = 1
#: The kinds of a secured sandbox, and how its users log in.
LOGINS = {"scram": "SCRAM-SHA-512", "plain": "PLAIN", "mtls": CERTIFICATE, "oauth": "OAUTHBEARER"}
#: The users of a secured sandbox: one who may do everything, and one who may do what ACLs allow.
KMIRROR_USER = "kmirror"
USERS = (ADMIN_USER, KMIRROR_USER)
#: The connection to a secured cluster as `kmirror create --mirror-config` takes it: the login is a reference.
MIRROR_FILE = "mirror.properties"

_SECRETS = ("sasl.jaas.config", "ssl.keystore.password")
_PORTS_EACH = 10
_CONTROLLERS_FROM = len(CLUSTERS) * _PORTS_EACH
_INTERNAL_FROM = 2 * _CONTROLLERS_FROM
_TOKENS_FROM = 3 * _CONTROLLERS_FROM
_HIGHEST_BASE_PORT = 65_535 - 4 * len(CLUSTERS) * _PORTS_EACH
#: Short enough that tokens are seen to be replaced.
_TOKEN_SECONDS = 300


class BrokerState(StrEnum):
    """Name how a broker is: it runs and listens, it runs but does not listen (yet), it does not run."""

    RUNNING = "RUNNING"
    STARTING = "STARTING"
    DOWN = "DOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A broker of the sandbox as it is now."""

    cluster: str
    cluster_id: str
    node_id: int
    address: str
    pid: int | None
    state: BrokerState
    kafka_version: str
    log_file: Path


BROKERS: Table[BrokerStatus] = Table(
    (
        Column("cluster", TEXT, "a or b", lambda broker: broker.cluster, "CLUSTER"),
        Column("clusterId", TEXT, "id of the cluster", lambda broker: broker.cluster_id),
        Column("nodeId", COUNT, "id of the broker", lambda broker: broker.node_id, "BROKER", is_number=True),
        Column("address", TEXT, "host:port", lambda broker: broker.address, "ADDRESS"),
        Column(
            "state", one_of("broker state", BrokerState), "state of its process", lambda broker: broker.state, "STATE"
        ),
        Column(
            "pid",
            COUNT.null_when("it does not run"),
            "its process id",
            lambda broker: broker.pid,
            "PID",
            is_number=True,
        ),
        Column("kafkaVersion", TEXT, "version of Kafka", lambda broker: broker.kafka_version, "KAFKA"),
        Column("logFile", TEXT, "file with what it writes", lambda broker: str(broker.log_file), "LOG"),
    ),
    "CLUSTER BROKER ADDRESS STATE PID KAFKA LOG",
)


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """All brokers of the sandbox, by cluster and node id; none when there is no sandbox in the folder."""

    directory: Path
    brokers: tuple[BrokerStatus, ...]
    #: Of a secured sandbox: the files with client properties, readable by their owner only.
    client_files: tuple[Path, ...] = ()

    def bootstrap_servers(self, cluster: str) -> str:
        """Return a cluster's addresses, comma-separated; empty when it does not exist."""
        return ",".join(broker.address for broker in self.brokers if broker.cluster == cluster)

    def to_json(self) -> dict[str, Any]:
        """Return the status as `--json` prints it."""
        return document(STATUS, self)


STATUS: tuple[Column[SandboxStatus], ...] = (
    Column("directory", TEXT, "the sandbox's folder", lambda status: str(status.directory)),
    Column(
        "clientFiles",
        list_of(TEXT),
        "files with client properties; none unless it is secured",
        lambda status: [str(file) for file in status.client_files],
    ),
    Column(
        "brokers",
        BROKERS.type,
        "its brokers; none where there is no sandbox",
        lambda status: [BROKERS.document(broker) for broker in status.brokers],
    ),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that `up` or `down` does to one cluster, in words."""

    cluster: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done (no step: nothing had to be), and how the sandbox is now."""

    steps: tuple[Step, ...]
    status: SandboxStatus


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return the user's folder for the sandbox: XDG_STATE_HOME, or ~/.local/state, and below it kmirror/sandbox."""
    base = environ.get("XDG_STATE_HOME")
    state = Path(base) if base else Path(environ.get("HOME", "~")).expanduser() / ".local" / "state"
    return state / "kmirror" / "sandbox"


def status(directory: Path) -> SandboxStatus:
    """Look at every broker of the sandbox in this folder."""
    brokers = []
    files: list[Path] = []
    for cluster in _existing(directory):
        if cluster.spec.security is not None:
            files += [file for file in _client_files(cluster) if file.is_file()]
        for broker in cluster.brokers:
            address = f"{broker.host}:{broker.port}"
            state = BrokerState.DOWN
            if broker.pid is not None:
                state = BrokerState.RUNNING if listens(broker.port) else BrokerState.STARTING
            brokers.append(
                BrokerStatus(
                    cluster=cluster.name,
                    cluster_id=cluster.cluster_id,
                    node_id=broker.node_id,
                    address=address,
                    pid=broker.pid,
                    state=state,
                    kafka_version=cluster.kafka_version,
                    log_file=broker.log_file,
                )
            )
    return SandboxStatus(directory, tuple(brokers), tuple(files))


def plan_up(
    directory: Path,
    *,
    brokers: int | None = None,
    kafka_version: str | None = None,
    base_port: int | None = None,
    secured: str | None = None,
) -> tuple[Step, ...]:
    """Return what `up` would do; nothing when both clusters run.

    None stands for the default, or for what an existing sandbox has. Raises UsageError on
    impossible values, RefusedError when a port is taken or an existing sandbox is another one than asked for.
    """
    if kafka_version is not None:
        check_kafka_version(kafka_version)
    steps = []
    for name in CLUSTERS:
        cluster = _cluster(directory, name, brokers, kafka_version, base_port, secured=secured)
        if cluster.exists:
            _refuse_another(cluster, brokers, kafka_version, base_port, secured=secured)
            down = [broker.node_id for broker in cluster.brokers if broker.pid is None]
            steps += [Step(name, f"start broker {node_id} of cluster {name}") for node_id in down]
        else:
            ports = _ports(name, brokers, base_port, secured=secured)
            count = brokers or DEFAULT_BROKERS
            for wanted in ports:
                _refuse_busy(wanted)
            many = f"{count} {'secured ' if secured else ''}broker{'s'[: count - 1]}"
            steps.append(Step(name, f"create cluster {name} with {many} from port {ports[0]} on"))
    return tuple(steps)


def up(
    directory: Path,
    *,
    brokers: int | None = None,
    kafka_version: str | None = None,
    base_port: int | None = None,
    secured: str | None = None,
    report: Callable[[str], None] = lambda line: None,
    watch: Watch = unwatched,
) -> Outcome:
    """Have both clusters run: create what is not there, start what is down, leave what runs.

    `secured`, a kind of `LOGINS`, gives them TLS, logins and ACLs, with secrets that nobody is shown: they stand in
    `client_files`.

    `report` receives a line for each step as it begins, `watch` is shown how slow ones go. Raises what `plan_up` raises
    before anything is changed, and the errors of fetching Kafka and of starting brokers.
    """

    def plan() -> tuple[Step, ...]:
        return plan_up(directory, brokers=brokers, kafka_version=kafka_version, base_port=base_port, secured=secured)

    plan()
    with _locked(directory, create=True):
        steps = plan()
        concerned = sorted({step.cluster for step in steps})
        clusters = [
            _cluster(directory, name, brokers, kafka_version, base_port, report, watch, secured=secured)
            for name in concerned
        ]
        for cluster in clusters:
            cluster.fetch()
        for step in steps:
            report(step.text)
        if clusters:
            start_together(clusters, watch)
        for cluster in clusters:
            _write_client_files(cluster)
        return Outcome(steps, status(directory))


def plan_down(directory: Path) -> tuple[Step, ...]:
    """Return what `down` would do; nothing when there is no sandbox."""
    there = [name for name in CLUSTERS if has_spec(directory / name)]
    return tuple(Step(name, f"stop cluster {name} and remove its data in {directory / name}") for name in there)


def down(directory: Path, report: Callable[[str], None] = lambda line: None) -> Outcome:
    """Stop both clusters and remove them with their data; a sandbox is for trying, the next `up` begins empty."""
    if not directory.is_dir():
        return Outcome((), status(directory))
    with _locked(directory, create=False):
        steps = plan_down(directory)
        for step in steps:
            report(step.text)
            cluster = _cluster(directory, step.cluster)
            cluster.stop()
            cluster.destroy()
        with suppress(OSError):  # somebody else's files are in it
            directory.rmdir()
        return Outcome(steps, status(directory))


def _cluster(
    directory: Path,
    name: str,
    brokers: int | None = None,
    kafka_version: str | None = None,
    base_port: int | None = None,
    report: Callable[[str], None] = lambda line: None,
    watch: Watch = unwatched,
    *,
    secured: str | None = None,
) -> SandboxCluster:
    return SandboxCluster(
        name,
        directory / name,
        brokers=DEFAULT_BROKERS if brokers is None else brokers,
        kafka_version=kafka_version,
        ports=_ports(name, brokers, base_port, secured=secured),
        secured=secured is not None,
        authorizer=secured is not None,
        token_seconds=_TOKEN_SECONDS if secured == "oauth" else None,
        mechanism=LOGINS[secured or "scram"],
        users={user: secrets.token_urlsafe(16) for user in USERS},
        report=report,
        watch=watch,
    )


def _kind(cluster: SandboxCluster) -> str | None:
    """Return the kind of `LOGINS` that a cluster is, None where it is not secured."""
    if cluster.spec.security is None:
        return None
    mechanism = cluster.spec.security.mechanism
    return next(kind for kind in LOGINS if LOGINS[kind] == mechanism)


def _existing(directory: Path) -> list[SandboxCluster]:
    found = [_cluster(directory, name) for name in CLUSTERS]
    return [cluster for cluster in found if cluster.exists]


def _client_files(cluster: SandboxCluster) -> list[Path]:
    return [*(cluster.directory / f"{user}.properties" for user in USERS), cluster.directory / MIRROR_FILE]


def _write_client_files(cluster: SandboxCluster) -> None:
    """Write, for a secured cluster, what its users need to log in, and what a mirror of it is created from."""
    if cluster.spec.security is None:
        return
    for user in USERS:
        cluster.write_client_properties(cluster.directory / f"{user}.properties", user)
    login = cluster.directory / f"{KMIRROR_USER}.properties"
    properties = cluster.client_properties(KMIRROR_USER)
    mirror = {**properties, **{key: f"${{file:{login}:{key}}}" for key in _SECRETS if key in properties}}
    file = cluster.directory / MIRROR_FILE
    file.touch(mode=0o600)
    file.write_text(properties_text(mirror), encoding="utf-8")


def _ports(name: str, brokers: int | None, base_port: int | None, *, secured: str | None = None) -> list[int]:
    base = DEFAULT_BASE_PORT if base_port is None else base_port
    if not 1024 <= base <= _HIGHEST_BASE_PORT:
        raise UsageError(f"{base} cannot be the base port", f"Choose one between 1024 and {_HIGHEST_BASE_PORT}.")
    count = DEFAULT_BROKERS if brokers is None else brokers
    own = base + CLUSTERS.index(name) * _PORTS_EACH
    return [
        *range(own, own + count),
        *range(own + _CONTROLLERS_FROM, own + _CONTROLLERS_FROM + controller_count(count)),
        *(range(own + _INTERNAL_FROM, own + _INTERNAL_FROM + count) if secured else ()),
        *((own + _TOKENS_FROM,) if secured == "oauth" else ()),
    ]


def _refuse_another(
    cluster: SandboxCluster,
    brokers: int | None,
    kafka_version: str | None,
    base_port: int | None,
    *,
    secured: str | None,
) -> None:
    """Refuse to take an existing cluster for one with other properties."""
    kind = _kind(cluster)
    if secured is not None and secured != kind:
        raise RefusedError(
            f"Cluster {cluster.name} is there already, and is {f'secured with {kind}' if kind else 'not secured'}",
            "Run `kmirror sandbox down` first, which removes its data, or name another folder with --dir.",
        )
    there = cluster.brokers
    for name, wanted, has in (
        ("--brokers", brokers, len(there)),
        ("--kafka-version", kafka_version, cluster.kafka_version),
        ("--base-port", base_port, there[0].port - CLUSTERS.index(cluster.name) * _PORTS_EACH),
    ):
        if wanted is not None and wanted != has:
            raise RefusedError(
                f"Cluster {cluster.name} is there already, with {name} {has} instead of {wanted}",
                "Run `kmirror sandbox down` first, which removes its data, or name another folder with --dir.",
            )


def _refuse_busy(port: int) -> None:
    if not is_free(port):
        raise RefusedError(
            f"Port {port} is taken by another process", "Stop it, or choose other ports with --base-port."
        )


@contextmanager
def _locked(directory: Path, *, create: bool) -> Iterator[None]:
    """Let one command at a time change the sandbox. The lock is on the folder itself, so that nothing is left of it."""
    while True:
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same(descriptor, directory):
                yield
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, directory: Path) -> bool:
    """Tell whether the open folder is still the one at this path, not one removed while we waited."""
    return directory.is_dir() and os.path.samestat(os.fstat(descriptor), directory.stat())
