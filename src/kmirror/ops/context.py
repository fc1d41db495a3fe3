"""Where a verb works: the destination cluster with what is remembered on it, and the source a mirror names.

Every verb is given a `Destination`. Opening one asks the cluster who it is, so that a cluster that does not answer, or
is another than `--expect-cluster-id` says, ends the command at once and before anything is read or changed.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError
from kmirror.state.lock import transact
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror.state.writer import Decide

#: What a topic's `pending_operation` says when an `add` was begun and not finished.
PENDING_ADD = "add"

#: A cluster that says nothing for so long cannot be reached; used where nobody waits for it on purpose.
REACH_TIMEOUT_S = 10.0


class Destination:
    """Hold the destination of one command: `with Destination.open(properties) as destination`.

    `properties` are Java client properties as `--command-config` gives them, with `bootstrap.servers`; references in
    them stay references, `config` has them resolved. For one thread at a time.
    """

    def __init__(
        self, properties: Mapping[str, str], config: ClientConfig, client: ClusterClient, cluster_id: str
    ) -> None:
        self.properties = dict(properties)
        self.config = config
        self.client = client
        self.cluster_id = cluster_id
        self.store = StateStore(config)

    @classmethod
    def open(cls, properties: Mapping[str, str], expect_cluster_id: str | None = None) -> Destination:
        """Reach the destination and learn its cluster id.

        Raises:
            UsageError: a property is not understood.
            UnreachableError: it does not answer or refuses us (DESTINATION_UNREACHABLE, AUTHENTICATION_FAILED …).
            RefusedError: it is not the cluster of `expect_cluster_id`.
        """
        config = client_config(properties).as_destination()
        client = ClusterClient(config)
        try:
            with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
                cluster_id = cluster_id_of(client)
            if expect_cluster_id is not None and cluster_id != expect_cluster_id:
                raise RefusedError(
                    f"the destination is cluster {cluster_id}, not {expect_cluster_id}",
                    "check --bootstrap-server, or correct --expect-cluster-id",
                )
        except BaseException:
            client.close()
            raise
        return cls(properties, config, client, cluster_id)

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all connections."""
        self.client.close()
        self.store.close()

    @property
    def bootstrap_server(self) -> str:
        """The addresses as they were given."""
        return self.properties.get("bootstrap.servers", "")

    def state(self) -> State:
        """Read everything remembered on this destination. Raises UnreachableError."""
        return self.store.read()


def cluster_id_of(client: ClusterClient, timeout: float = REACH_TIMEOUT_S) -> str:
    """Ask a cluster who it is.

    Raises:
        UnreachableError: no answer within `timeout` seconds.
    """
    found = client.metadata([], timeout=timeout).cluster_id
    if not found:
        raise UnreachableError("the cluster has no id yet", "it may still be starting; try again")
    return found


def require_same_cluster(recorded: str | None, found: str | None) -> None:
    """Refuse a source that is another cluster than the mirror was made from.

    Raises:
        RefusedError: reason SOURCE_CLUSTER_CHANGED, naming both ids.
    """
    if recorded is not None and found != recorded:
        raise RefusedError(
            f"the source is now cluster {found}, but the mirror was created from {recorded}",
            "correct bootstrap.servers with `kmirror config`, or create another mirror for the other cluster",
            Reason.SOURCE_CLUSTER_CHANGED,
        )


class NamedClusterError(UnreachableError):
    """An error of not reaching a cluster that says already which one it is."""


@contextmanager
def naming_cluster(cluster: str, reason: Reason) -> Iterator[None]:
    """Make errors of not reaching a cluster say which one it is, and carry `reason` unless they know a better one.

    May be nested: the innermost names the cluster.

    Raises:
        NamedClusterError: for UnreachableError and OutcomeUnknown, which from a question is the same.
    """
    try:
        yield
    except NamedClusterError:
        raise
    except UnreachableError as error:
        raise NamedClusterError(f"{cluster}: {error.message}", error.hint, error.reason or reason) from error
    except OutcomeUnknown as error:
        raise NamedClusterError(f"{cluster}: {error}", "check that it is up, and try again", reason) from error


@contextmanager
def source_client(properties: Mapping[str, str]) -> Iterator[ClusterClient]:
    """Connect to the source that a mirror's stored properties name; references in them are resolved here.

    Raises:
        UsageError: a property is not understood.
        UnreachableError: SECRET_UNRESOLVED, SOURCE_UNREACHABLE, AUTHENTICATION_FAILED; also for what the body raises.
    """
    with naming_cluster("the source", Reason.SOURCE_UNREACHABLE), ClusterClient(client_config(properties)) as client:
        yield client


def require_mirror(state: State, name: str) -> MirrorRecord:
    """Return the record of a mirror of which all can be read.

    Raises:
        RefusedError: there is none of that name, or a newer kmirror keeps records of it that this one cannot read.
    """
    state.require_readable(name)
    return known_mirror(state, name)


def known_mirror(state: State, name: str) -> MirrorRecord:
    """Return a mirror's record, for verbs that show what they can read.

    Raises:
        RefusedError: there is none of that name; says which are near, or what to do.
    """
    found = state.mirror(name)
    if found is not None:
        return found
    state.require_readable(name)
    names = [mirror.name for mirror in state.mirrors]
    near = get_close_matches(name, names, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif names:
        hint = f"mirrors here: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
    else:
        hint = "`kmirror create` creates one; check that --bootstrap-server is the destination"
    raise RefusedError(f"there is no mirror {name} on this destination", hint)


def change(destination: Destination, mirror: str, decide: Decide) -> Changes:
    """Change what is remembered of a mirror, under its lock; return what was written.

    Raises:
        KmirrorError: what `decide` raises, and what `state.lock.transact` does; where nobody can tell whether the
            change was made, an UnreachableError that says so.
    """
    try:
        return transact(destination.store, mirror, decide)
    except OutcomeUnknown as error:
        raise UnreachableError(
            f"the destination stopped responding before it confirmed: {error}",
            "check with `kmirror describe`; run the same command again to finish",
            Reason.DESTINATION_UNREACHABLE,
        ) from error


def actor() -> str:
    """Return who is at work, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def now_ms() -> int:
    """Return the present time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def told(error: Exception) -> KmirrorError:
    """Return an error as one with a sentence and an exit code, for a row about the topic it struck."""
    return error if isinstance(error, KmirrorError) else KmirrorError(str(error) or type(error).__name__)
