"""The clusters of a rehearsal: a stand-in for the source, which can be cut off, and an empty destination.

Both are real Kafka clusters on this machine, unless the destination is one that is named; what the rehearsal made there
is removed again.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acls import NoAuthorizerError, create_acls, delete_acls, describe_acls
from kmirror.cluster.security.jaas import parse_jaas
from kmirror.cluster.security.properties import is_reference, literal_secrets, resolve_value
from kmirror.cluster.security.property_reader import PropertyReader
from kmirror.cluster.security.tls_material import STORE_LOCATIONS
from kmirror.cluster.security.trust import host_policy
from kmirror.cluster.topics.topic_requests import delete_topics
from kmirror.errors import KmirrorError, OutcomeUnknown, RefusedError
from kmirror.java_properties import write_properties
from kmirror.ops.base.context import Destination
from kmirror.state.internal_topics import OWN_TOPICS
from kmirror.state.rights_records import SHARED
from kmirror.words import counted, listed
from kmirror_rehearse.rehearsal_findings import Finding, Kind, bad, made_by_others
from kmirror_sandbox.broker_config import jaas_quoted
from kmirror_sandbox.cluster import DEFAULT_USERS, SandboxCluster, start_together
from kmirror_sandbox.ports import LOOPBACK

#: Rehearsals that were killed leave folders with this name, and the id of their process.
_FOLDER = "kmirror-rehearsal-"
_OWN_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata"})


@contextmanager
def rehearsal_folder() -> Iterator[Path]:
    """Make a folder for the block; what a rehearsal that was killed has left is removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = left.name.removeprefix(_FOLDER).partition("-")[0]
        if owner.isdigit() and not _lives(int(owner)) and left.stat().st_uid == os.getuid():
            for cluster in left.glob("cluster-*"):
                with suppress(KmirrorError, OSError):
                    SandboxCluster(cluster.name, cluster).destroy()
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def started(folder: Path, names: list[str], report: Callable[[str], None]) -> Iterator[list[SandboxCluster]]:
    """Start clusters for the block, each with one broker and ACLs.

    They hold records of production on this machine: only who knows a password of this rehearsal may log in.
    """
    clusters = [
        SandboxCluster(
            name,
            folder / f"cluster-{name}",
            secured=True,
            authorizer=True,
            users={user: secrets.token_urlsafe(18) for user in DEFAULT_USERS},
            report=report,
        )
        for name in names
    ]
    try:
        for cluster in clusters:
            cluster.fetch()
        start_together(clusters)
        yield clusters
    finally:
        for cluster in clusters:
            cluster.destroy()


def freeze(cluster: SandboxCluster) -> None:
    """Cut a cluster off: its brokers answer nothing from now on, and close no connection."""
    for broker in cluster.brokers:
        cluster.signal(broker.node_id, signal.SIGSTOP)


def thaw(cluster: SandboxCluster) -> None:
    """Let a cluster that was cut off go on."""
    for broker in cluster.brokers:
        cluster.signal(broker.node_id, signal.SIGCONT)


def ends_on_disk(cluster: SandboxCluster, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where the logs of a frozen cluster end, by the files of its only broker."""
    (broker,) = cluster.brokers
    found = {}
    for at in partitions:
        if segments := sorted((broker.log_dir / f"{at.topic}-{at.partition}").glob("*.log")):
            found[at] = _end_of(segments[-1])
    return found


def _end_of(segment: Path) -> int:
    """Return the offset after the last whole batch of a log's last segment."""
    end = int(segment.stem)
    if segment.stat().st_size:
        with (
            segment.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            for header in batch_headers(view):
                end = header.next_offset
    return end


def copy_acls(source: ClusterClient, there: ClusterClient) -> str | None:
    """Create the source's ACLs in the stand-in; return why they could not be read, None if they were."""
    try:
        bindings = describe_acls(source)
    except NoAuthorizerError:
        return None
    except (KmirrorError, OutcomeUnknown) as error:
        return str(error)
    refusals = [refusal for refusal in create_acls(there, bindings).values() if refusal is not None]
    return refusals[0].message if refusals else None


class NamedDestination:
    """A destination that was named: it must be empty, and is again afterwards."""

    def __init__(self, destination: Destination) -> None:
        """Refuse a cluster that is not empty. Raises RefusedError, UnreachableError."""
        self._destination, self._client = destination, destination.client
        if topics := self._foreign_topics():
            raise RefusedError(
                f"the destination is not empty: it has {counted(len(topics), 'topic')} ({listed(topics, 5)})",
                "name an empty cluster, or none, not in KMIRROR_BOOTSTRAP_SERVER either: one is started then",
            )
        self._acls = self._known_acls()
        self._groups = frozenset(ClusterGroups(self._client).listed())

    def _known_acls(self) -> frozenset[AclBinding]:
        try:
            return describe_acls(self._client)
        except NoAuthorizerError:
            return frozenset()

    def clear(self, mirror: str) -> Iterator[Finding]:
        """Remove what the mirror has made, and yield what stays: all that others have made since then.

        What is ours is known by the mirror's state alone: a cluster whose topics we may not see looks empty.

        Raises:
            KmirrorError: something cannot be removed.
            OutcomeUnknown: it is not known whether it was.
        """
        state, groups = self._destination.state(), ClusterGroups(self._client)
        made = {one.topic: one.destination_topic_id for one in state.topics(mirror)}
        rights = [state.rights(mirror, topic) for topic in (*made, SHARED)]
        synced = {one.destination_group for one in state.groups(mirror) if one.offsets} - self._groups
        found_groups, found_acls = groups.listed().keys(), self._known_acls() - self._acls
        our_acls = found_acls.intersection(one for known in rights for one in (*known.made, *known.denied))
        for group, code in groups.delete(synced & found_groups).items():
            if code:
                yield bad(Kind.NOT_REMOVED, group, f"the group cannot be deleted: {code_name(code)}", "end its members")
        for one, error in delete_acls(self._client, our_acls).items() if our_acls else ():
            if error is not None:
                yield bad(Kind.NOT_REMOVED, "ACLs", f"{one} cannot be deleted: {error}", error.hint)
        found, found_topics = self._client.metadata(made).topics, self._foreign_topics()
        ours = {one for one, known in made.items() if known is not None and found[one].printed_topic_id == known}
        ours |= {one for one in found_topics if one.startswith(OWN_TOPICS)}
        delete_topics(self._client, ours)
        theirs = found_groups - synced - self._groups
        yield from made_by_others({*found_topics} - ours, theirs, map(str, found_acls - our_acls))

    def _foreign_topics(self) -> list[str]:
        return sorted(one for one in self._client.metadata(None).topics if one not in _OWN_TOPICS)


@contextmanager
def trusting(folder: Path, destination: Mapping[str, str]) -> Iterator[None]:
    """Let the records of this process and its children name files of the folder and brokers of this machine.

    They may also name the stores of the properties that an operator has given for the `destination`. What the host's
    policy allows besides stays so; it is the environment that is changed, until the block ends.
    """
    policy, environ = host_policy(), dict[str, str]()
    known = policy.default_paths if policy.paths.entries is None else policy.paths.entries
    reader = PropertyReader.of(destination, None)
    stores = (path for key in STORE_LOCATIONS if (path := reader.text(key)) is not None)
    environ["KMIRROR_TRUST_PATHS"] = ",".join((*known, str(folder), *stores))
    if policy.sources.entries is not None:
        environ["KMIRROR_TRUST_SOURCES"] = ",".join((*policy.sources.entries, LOOPBACK))
    before = {name: os.environ.get(name) for name in environ}
    os.environ |= environ
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def for_a_record(properties: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return properties for a record, which holds no secrets: they are written to a file that only we can read."""
    reader, literal = PropertyReader.of(properties, None), literal_secrets(properties)
    hidden = [key for key, value in properties.items() if key in literal or "${" in value]
    write_properties(file, {key: _as_text(reader, key) for key in hidden})
    return {**properties, **{key: f"${{file:{file}:{key}}}" for key in hidden}}


def _as_text(reader: PropertyReader, key: str) -> str:
    """Return a value without references: what they stand for; in a JAAS line it has to be quoted."""
    value = reader.properties[key]
    if key != "sasl.jaas.config" or is_reference(value):
        return reader.text(key) or ""
    modules = []
    for entry in parse_jaas(value):
        options = (f"{name}={jaas_quoted(resolve_value(key, text))}" for name, text in entry.options.items())
        modules.append(f"{entry.login_module} required {' '.join(options)};")
    return " ".join(modules)
