"""The pair of clusters, `a` and `b`, behind `kmirror sandbox up | down | status`.

Both are in one directory. Ports, from the base port P: the brokers of a at P, P+1, …, those of b at P+10, P+11, …;
controllers at P+20 and P+30; in secured clusters the internal listeners at P+40 and P+50; with tokens, their endpoints
at P+60 and P+70. A plan is made first, which a dry run prints and a real run carries out.
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

from kmirror.bounded_files import expanded
from kmirror.columns import COUNT, TEXT, Column, Table, columns_of, document, list_of, one_of, shown, table_row
from kmirror.errors import RefusedError, UsageError
from kmirror.java_properties import write_properties
from kmirror.words import counted
from kmirror.work import Watch, unwatched
from kmirror_sandbox.cluster import SandboxCluster, start_together
from kmirror_sandbox.cluster_spec import ADMIN_USER, CERTIFICATE, controller_count, has_spec
from kmirror_sandbox.jars import check_kafka_version
from kmirror_sandbox.ports import is_free
from kmirror_sandbox.readiness import listens
from kmirror_sandbox.tiered_store import check_tiered

CLUSTERS = ("a", "b")
DEFAULT_BASE_PORT = 19_092
DEFAULT_BROKERS = 1
#: The values of `--secured`, and the mechanism with which users log in.
LOGINS = {"scram": "SCRAM-SHA-512", "plain": "PLAIN", "mtls": CERTIFICATE, "oauth": "OAUTHBEARER"}
#: The users of a secured sandbox: a super user, and one limited by ACLs.
KMIRROR_USER = "kmirror"
USERS = (ADMIN_USER, KMIRROR_USER)
#: The connection to a secured cluster for `kmirror create --mirror-config`, with secrets as references.
MIRROR_FILE = "mirror.properties"

_SECRETS = ("sasl.jaas.config", "ssl.keystore.password")
_PORTS_EACH = 10
_CONTROLLERS_FROM = len(CLUSTERS) * _PORTS_EACH
_INTERNAL_FROM = 2 * _CONTROLLERS_FROM
_TOKENS_FROM = 3 * _CONTROLLERS_FROM
_HIGHEST_BASE_PORT = 65_535 - 4 * len(CLUSTERS) * _PORTS_EACH
#: Short enough to see tokens replaced.
_TOKEN_SECONDS = 300


class BrokerState(StrEnum):
    """A broker listens, runs but does not listen (yet), or does not run."""

    RUNNING = "RUNNING"
    STARTING = "STARTING"
    DOWN = "DOWN"


@table_row
class BrokerStatus:
    """The current state of a broker."""

    cluster: str = shown(TEXT, "a or b", "CLUSTER")
    cluster_id: str = shown(TEXT, "id of the cluster")
    node_id: int = shown(COUNT, "id of the broker", "BROKER")
    address: str = shown(TEXT, "host:port", "ADDRESS")
    state: BrokerState = shown(one_of("broker state", BrokerState), "state of its process", "STATE")
    pid: int | None = shown(COUNT.null_when("it is not running"), "its process id", "PID")
    kafka_version: str = shown(TEXT, "version of Kafka", "KAFKA")
    log_file: str = shown(TEXT, "its log file", "LOG")


BROKERS: Table[BrokerStatus] = Table(
    columns_of(BrokerStatus),
    "CLUSTER BROKER ADDRESS STATE PID KAFKA LOG",
)


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """All brokers of the sandbox, by cluster and node id; none if there is no sandbox in the directory."""

    directory: Path
    brokers: tuple[BrokerStatus, ...]
    #: The files with client properties of a secured sandbox, readable by their owner only.
    client_files: tuple[Path, ...] = ()
    #: The files that say how the stores of a tiered sandbox behave.
    control_files: tuple[Path, ...] = ()

    def bootstrap_servers(self, cluster: str) -> str:
        """Return a cluster's addresses, comma-separated; empty if it does not exist."""
        return ",".join(broker.address for broker in self.brokers if broker.cluster == cluster)

    def to_json(self) -> dict[str, Any]:
        """Return the status as `--json` prints it."""
        return document(STATUS, self)


STATUS: tuple[Column[SandboxStatus], ...] = (
    Column("directory", TEXT, "the sandbox's directory", lambda status: str(status.directory)),
    Column(
        "clientFiles",
        list_of(TEXT),
        "files with client properties; none unless it is secured",
        lambda status: [str(file) for file in status.client_files],
    ),
    Column(
        "controlFiles",
        list_of(TEXT),
        "files that say how the stores of tiered topics behave; none unless it has tiered storage",
        lambda status: [str(file) for file in status.control_files],
    ),
    Column("brokers", BROKERS.type, "its brokers; none if there is no sandbox", lambda status: status.brokers),
)


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What `up` is asked for; None means the default, or the value of an existing sandbox.

    `secured`, a key of `LOGINS`, is for TLS, logins and ACLs, with secrets that are only in `client_files`; `tiered` is
    for tiered storage.
    """

    brokers: int | None = None
    kafka_version: str | None = None
    base_port: int | None = None
    secured: str | None = None
    tiered: bool = False

    def ports(self, name: str) -> list[int]:
        """Return the ports of a cluster. Raises UsageError."""
        base = DEFAULT_BASE_PORT if self.base_port is None else self.base_port
        if not 1024 <= base <= _HIGHEST_BASE_PORT:
            raise UsageError(f"invalid base port: {base}", f"give one between 1024 and {_HIGHEST_BASE_PORT}")
        count = DEFAULT_BROKERS if self.brokers is None else self.brokers
        own = base + CLUSTERS.index(name) * _PORTS_EACH
        return [
            *range(own, own + count),
            *range(own + _CONTROLLERS_FROM, own + _CONTROLLERS_FROM + controller_count(count)),
            *(range(own + _INTERNAL_FROM, own + _INTERNAL_FROM + count) if self.secured else ()),
            *((own + _TOKENS_FROM,) if self.secured == "oauth" else ()),
        ]


#: The defaults, or an existing sandbox as it is.
AS_IT_IS = SandboxOptions()


@dataclass(frozen=True, slots=True)
class SandboxStep:
    """One thing that `up` or `down` does to one cluster, as text."""

    cluster: str
    text: str


@dataclass(frozen=True, slots=True)
class SandboxChange:
    """What was done (no steps if nothing was needed), and the status after it."""

    steps: tuple[SandboxStep, ...]
    status: SandboxStatus


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return the default directory: kmirror/sandbox below XDG_STATE_HOME or ~/.local/state."""
    base = environ.get("XDG_STATE_HOME")
    state = Path(base) if base else expanded(environ.get("HOME", "~"), "HOME") / ".local" / "state"
    return state / "kmirror" / "sandbox"


def status(directory: Path) -> SandboxStatus:
    """Return the status of the sandbox in this directory."""
    brokers = []
    files: list[Path] = []
    controls: list[Path] = []
    for cluster in _existing(directory):
        if cluster.spec.security is not None:
            files += [file for file in _client_files(cluster) if file.is_file()]
        if cluster.spec.tiered:
            controls.append(cluster.store.control_file)
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
                    log_file=str(broker.log_file),
                )
            )
    return SandboxStatus(directory, tuple(brokers), tuple(files), tuple(controls))


def plan_up(directory: Path, options: SandboxOptions = AS_IT_IS) -> tuple[SandboxStep, ...]:
    """Return what `up` would do; nothing if both clusters run.

    Raises:
        UsageError: a value is invalid.
        RefusedError: a port is in use, or an existing sandbox has other values.
    """
    if options.kafka_version is not None:
        check_kafka_version(options.kafka_version)
        if options.tiered:
            check_tiered(options.kafka_version)
    steps = []
    for name in CLUSTERS:
        cluster = _cluster(directory, name, options)
        if cluster.exists:
            _refuse_another(cluster, options)
            down = [broker.node_id for broker in cluster.brokers if broker.pid is None]
            steps += [SandboxStep(name, f"start broker {node_id} of cluster {name}") for node_id in down]
        else:
            ports = options.ports(name)
            for port in ports:
                if not is_free(port):
                    raise RefusedError(
                        f"port {port} is in use by another process", "stop it, or choose other ports with --base-port"
                    )
            many = counted(options.brokers or DEFAULT_BROKERS, "secured broker" if options.secured else "broker")
            steps.append(SandboxStep(name, f"create cluster {name} with {many}, ports from {ports[0]}"))
    return tuple(steps)


def up(
    directory: Path,
    options: SandboxOptions = AS_IT_IS,
    report: Callable[[str], None] = lambda line: None,
    watch: Watch = unwatched,
) -> SandboxChange:
    """Start both clusters, creating them if needed.

    `report` gets a line for each step as it begins, `watch` the progress of slow ones. Raises as `plan_up`, before
    anything is changed, and the errors of fetching Kafka and starting brokers.
    """
    plan_up(directory, options)
    with _locked(directory, create=True):
        steps = plan_up(directory, options)
        clusters = [
            _cluster(directory, name, options, report, watch) for name in sorted({step.cluster for step in steps})
        ]
        for cluster in clusters:
            cluster.fetch()
        for step in steps:
            report(step.text)
        if clusters:
            start_together(clusters, watch)
        for cluster in clusters:
            _write_client_files(cluster)
        return SandboxChange(steps, status(directory))


def plan_down(directory: Path) -> tuple[SandboxStep, ...]:
    """Return what `down` would do; nothing if there is no sandbox."""
    there = [name for name in CLUSTERS if has_spec(directory / name)]
    return tuple(SandboxStep(name, f"stop cluster {name} and remove its data in {directory / name}") for name in there)


def down(directory: Path, report: Callable[[str], None] = lambda line: None) -> SandboxChange:
    """Stop both clusters and remove them with their data; the next `up` starts with empty ones."""
    if not directory.is_dir():
        return SandboxChange((), status(directory))
    with _locked(directory, create=False):
        steps = plan_down(directory)
        for step in steps:
            report(step.text)
            cluster = _cluster(directory, step.cluster)
            cluster.stop()
            cluster.destroy()
        with suppress(OSError):  # it has other files
            directory.rmdir()
        return SandboxChange(steps, status(directory))


def _cluster(
    directory: Path,
    name: str,
    options: SandboxOptions = AS_IT_IS,
    report: Callable[[str], None] = lambda line: None,
    watch: Watch = unwatched,
) -> SandboxCluster:
    secured = options.secured is not None
    return SandboxCluster(
        name,
        directory / name,
        brokers=DEFAULT_BROKERS if options.brokers is None else options.brokers,
        kafka_version=options.kafka_version,
        ports=options.ports(name),
        secured=secured,
        authorizer=secured,
        token_seconds=_TOKEN_SECONDS if options.secured == "oauth" else None,
        mechanism=LOGINS[options.secured or "scram"],
        tiered=options.tiered,
        users={user: secrets.token_urlsafe(16) for user in USERS},
        report=report,
        watch=watch,
    )


def _kind(cluster: SandboxCluster) -> str | None:
    """Return the key of `LOGINS` for a cluster, None if it is not secured."""
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
    """Write the client properties of a secured cluster's users, and the file to create a mirror of it."""
    if cluster.spec.security is None:
        return
    for user in USERS:
        cluster.write_client_properties(cluster.directory / f"{user}.properties", user)
    login = cluster.directory / f"{KMIRROR_USER}.properties"
    properties = cluster.client_properties(KMIRROR_USER)
    mirror = {**properties, **{key: f"${{file:{login}:{key}}}" for key in _SECRETS if key in properties}}
    write_properties(cluster.directory / MIRROR_FILE, mirror)


def _refuse_another(cluster: SandboxCluster, options: SandboxOptions) -> None:
    """Raise RefusedError if an existing cluster has other properties."""
    hint = "run `kmirror sandbox down` first, which removes its data, or name another directory with --dir"
    kind = _kind(cluster)
    if options.secured not in {None, kind}:
        raise RefusedError(
            f"cluster {cluster.name} already exists and is {f'secured with {kind}' if kind else 'not secured'}", hint
        )
    if options.tiered and not cluster.spec.tiered:
        raise RefusedError(f"cluster {cluster.name} already exists, without tiered storage", hint)
    present = cluster.brokers
    for name, wanted, has in (
        ("--brokers", options.brokers, len(present)),
        ("--kafka-version", options.kafka_version, cluster.kafka_version),
        ("--base-port", options.base_port, present[0].port - CLUSTERS.index(cluster.name) * _PORTS_EACH),
    ):
        if wanted is not None and wanted != has:
            raise RefusedError(f"cluster {cluster.name} already exists, with {name} {has} instead of {wanted}", hint)


@contextmanager
def _locked(directory: Path, *, create: bool) -> Iterator[None]:
    """Let one command at a time change the sandbox. The lock is on the directory itself, so no lock file remains."""
    while True:
        try:
            if create:
                directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageError(f"--dir: cannot use {directory}: {error.strerror}", "name another directory") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same(descriptor, directory):
                yield
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, directory: Path) -> bool:
    """Return whether the open directory is still the one at this path, not one that was removed meanwhile."""
    return directory.is_dir() and os.path.samestat(os.fstat(descriptor), directory.stat())
