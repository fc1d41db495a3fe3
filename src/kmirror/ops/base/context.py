"""The clusters of a verb: the destination with its stored state, and the source of a mirror.

Every verb is given a `Destination`. Opening one asks for the cluster id, so that a cluster that does not answer, or
that differs from `--expect-cluster-id`, ends the command before anything is read or changed.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import WrongClusterError
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.security.client_config import ClientConfig, ClusterAccess, client_config
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError
from kmirror.state.event_records import Event
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.lock import take_lock_ahead, transact
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.waiting import UNTIL_ABORTED_S
from kmirror.state.writer import Decide
from kmirror.words import address_of

#: A cluster that does not answer for this long counts as unreachable, unless a command waits for it on purpose.
REACH_TIMEOUT_S = 10.0


class Destination:
    """The destination of one command: `with Destination.open(properties) as destination`.

    `properties` are Java client properties as in `--command-config`, with `bootstrap.servers`; secret references in
    them stay references, `config` has them resolved. For one thread at a time.
    """

    def __init__(self, properties: Mapping[str, str], client: ClusterClient, found: ClusterMetadata) -> None:
        self.properties = properties
        self.config = client.config
        self.client = client
        self.cluster_id = _id_in(found)
        self.store, state = StateStore(self.config, client, found), found.topics.get(STATE_TOPIC)
        #: False if kmirror had never written to the destination when it was opened. An answer that says nothing of the
        #: topic is no proof of that.
        self._has_state = state is None or state.error_code != Code.UNKNOWN_TOPIC_OR_PARTITION
        #: Checked, under the lock, by each change.
        self.condition: Callable[[State], None] | None = None
        #: Checked likewise until a change is written: what a verb has begun, it finishes.
        self.first_condition: Callable[[State], None] | None = None
        self._rehearsed: State | None = None

    @classmethod
    def open(
        cls,
        properties: Mapping[str, str],
        expect_cluster_id: str | None = None,
        *,
        cluster_id: str | None = None,
    ) -> Destination:
        """Connect to the destination and read its cluster id; if that is known, brokers of others do not count.

        Raises:
            UsageError: a property is unknown or invalid.
            UnreachableError: it does not answer or refuses us (DESTINATION_UNREACHABLE, AUTHENTICATION_FAILED …), or
                another cluster answers than `cluster_id`.
            RefusedError: its id is not `expect_cluster_id`.
        """
        client = ClusterClient(client_config(properties).expecting(cluster_id))
        try:
            with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
                found = client.metadata([STATE_TOPIC, EVENTS_TOPIC], timeout=REACH_TIMEOUT_S)
                answers = _id_in(found)
            if expect_cluster_id is not None and answers != expect_cluster_id:
                raise RefusedError(
                    f"the destination is cluster {answers}, not {expect_cluster_id}",
                    "check --bootstrap-server, or correct --expect-cluster-id",
                )
        except BaseException:
            client.close()
            raise
        return cls(properties, client, found)

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.client.close()
        self.store.close()

    @property
    def access(self) -> ClusterAccess:
        """How workers connect to it."""
        return ClusterAccess(self.properties, self.cluster_id)

    def will_change(self, mirror: str) -> None:
        """Take the mirror's lock while the command still reads, and keep it until the end.

        A cluster without mirrors is left as it is: asked for a lock, its brokers would create `__transaction_state`.
        """
        if self._has_state:
            take_lock_ahead(self.store, mirror)

    def let_go(self, mirror: str) -> None:
        """Give up the mirror's lock, if it was kept."""
        if (kept := self.store.kept.pop(mirror, None)) is not None:
            kept.close()

    def rehearse(self, state: State | None) -> None:
        """Have `state` return this one, which a dry run would have led to; None: the stored one again."""
        self._rehearsed = state

    @property
    def is_rehearsed(self) -> bool:
        """Return whether `state` is what a dry run of several changes has led to."""
        return self._rehearsed is not None

    def require_condition(self, state: State | None = None) -> None:
        """Raise what the condition raises, before something else than the stored state is changed.

        `state` is the stored state, if just read.
        """
        if self.condition is not None:
            self.condition(self.state() if state is None else state)

    @contextmanager
    def requiring(self, condition: Callable[[State], None]) -> Iterator[None]:
        """Let all that is changed meanwhile require, under the lock, this condition too."""
        before = self.condition

        def both(state: State) -> None:
            if before is not None:
                before(state)
            condition(state)

        self.condition = both
        try:
            yield
        finally:
            self.condition = before

    def use_in_threads(self) -> None:
        """Give the store connections of its own, so that threads may share it while others use `client`."""
        self.store = StateStore(self.config)

    @property
    def bootstrap_server(self) -> str:
        """The addresses as given in the properties."""
        return self.properties.get("bootstrap.servers", "")

    def state(self, patience: float = UNTIL_ABORTED_S) -> State:
        """Read all stored state of this destination.

        Open transactions are waited for: by what they hide nothing must be decided. Raises UnreachableError.
        """
        if self._rehearsed is not None:
            return self._rehearsed
        try:
            return self.store.read(patience=patience)
        except UnreachableError as error:
            raise NamedClusterError(error.message, error.hint, error.reason) from error


def cluster_id_of(client: ClusterClient, timeout: float = REACH_TIMEOUT_S) -> str:
    """Return the id of a cluster.

    Raises:
        UnreachableError: no answer within `timeout` seconds.
    """
    return _id_in(client.metadata([], timeout=timeout))


def _id_in(found: ClusterMetadata) -> str:
    if not found.cluster_id:
        raise UnreachableError("the cluster has no id yet", "it may still be starting; try again")
    return found.cluster_id


def require_same_cluster(recorded: str | None, found: str | None) -> None:
    """Refuse a source that is not the cluster that the mirror was created from.

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
    """An error of not reaching a cluster that already names the cluster."""


@contextmanager
def naming_cluster(cluster: str, reason: Reason) -> Iterator[None]:
    """Add the cluster's name to errors of not reaching it, and `reason` if they have none.

    May be nested: the innermost names the cluster.

    Raises:
        NamedClusterError: for UnreachableError and OutcomeUnknown, which mean the same for a request that only reads.
    """
    try:
        yield
    except NamedClusterError:
        raise
    except UnreachableError as error:
        if isinstance(error, WrongClusterError) and reason is Reason.SOURCE_UNREACHABLE:
            reason = Reason.SOURCE_CLUSTER_CHANGED
        raise NamedClusterError(f"{cluster}: {error.message}", error.hint, error.reason or reason) from error
    except OutcomeUnknown as error:
        raise NamedClusterError(f"{cluster}: {error}", "check that it is up, and try again", reason) from error


@contextmanager
def source_client(properties: Mapping[str, str], cluster_id: str | None = None) -> Iterator[ClusterClient]:
    """Connect to a source by a mirror's stored properties; secret references in them are resolved here.

    With the `cluster_id` that the mirror was created from, addresses that lead to another cluster are passed over.

    Raises:
        RefusedError: reason SOURCE_CLUSTER_CHANGED; all of them do.
        UsageError: a property is unknown or invalid.
        PolicyError: reason SECRET_UNRESOLVED; this host's policy does not allow it.
        UnreachableError: SECRET_UNRESOLVED, SOURCE_UNREACHABLE, AUTHENTICATION_FAILED; also for what the body raises.
    """
    with naming_source(cluster_id), ClusterClient(source_config(properties, cluster_id)) as client:
        yield client


def source_config(properties: Mapping[str, str], cluster_id: str | None) -> ClientConfig:
    """Return how to connect to a source, for `source_client`."""
    return client_config(properties).expecting(cluster_id)


@contextmanager
def naming_source(cluster_id: str | None) -> Iterator[None]:
    """Name the source in errors, for `source_client`."""
    with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
        try:
            yield
        except WrongClusterError as error:
            if cluster_id is not None:
                require_same_cluster(cluster_id, error.found)
            raise


def require_own_brokers(source: ClusterClient, destination_cluster_id: str | None) -> None:
    """Refuse a source some of whose brokers are advertised at addresses of another cluster.

    Raises:
        RefusedError: reason LOOP if it is the destination.
    """
    for broker, found in source.foreign_brokers().items():
        is_destination = found == destination_cluster_id
        raise RefusedError(
            f"the source advertises its broker {broker.node_id} at {address_of(broker.host, broker.port)}, where"
            f" {'the destination' if is_destination else 'another cluster'} answers, {found}",
            "correct advertised.listeners of that broker, or what its name resolves to here",
            Reason.LOOP if is_destination else Reason.SOURCE_CLUSTER_CHANGED,
        )


def require_mirror(state: State, name: str) -> MirrorRecord:
    """Return the record of a mirror whose records are all readable.

    Raises:
        RefusedError: there is no such mirror, or a newer kmirror wrote records of it that this version cannot read.
    """
    state.require_readable(name)
    return known_mirror(state, name)


def known_mirror(state: State, name: str) -> MirrorRecord:
    """Return a mirror's record, for verbs that show whatever is readable.

    Raises:
        RefusedError: there is no such mirror; its hint names a similar one.
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


def change(destination: Destination, mirror: str, decide: Decide, timeout: float = DEFAULT_TIMEOUT_S) -> Changes:
    """Change the stored state of a mirror, under its lock and if the destination's conditions hold.

    Returns what was written.

    Raises: KmirrorError: as `decide`, the condition and `state.lock.transact`; if the outcome is unknown, an
        UnreachableError that says so.
    """
    conditions = [one for one in (destination.condition, destination.first_condition) if one is not None]

    def decide_if_met(state: State) -> Changes:
        for condition in conditions:
            condition(state)
        return decide(state)

    try:
        changes = transact(destination.store, mirror, decide_if_met, timeout)
    except UnreachableError as error:
        # it is not the source, whoever else is asked meanwhile
        raise NamedClusterError(error.message, error.hint, error.reason) from error
    except OutcomeUnknown as error:
        raise NamedClusterError(
            f"the destination stopped responding before it confirmed: {error}",
            "check with `kmirror describe`; run the same command again to finish",
            Reason.DESTINATION_UNREACHABLE,
        ) from error
    if changes:
        destination.first_condition = None
    return changes


def own_event(mirror: str, what: str, result: str, details: Mapping[str, Any]) -> Event:
    """Return the event that this process has just done something to a mirror."""
    return Event(now_ms(), mirror, what, actor(), result, details)


def record_event(destination: Destination, mirror: str, what: str, result: str, details: Mapping[str, Any]) -> None:
    """Record that this process has done something to a mirror; raises as `change`."""
    event = own_event(mirror, what, result, details)
    change(destination, mirror, lambda _: Changes((), (), (event,)))


def actor() -> str:
    """Return who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def now_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def as_kmirror_error(error: Exception) -> KmirrorError:
    """Return an error as one with a message and an exit code, for the row of a topic."""
    return error if isinstance(error, KmirrorError) else KmirrorError(str(error) or type(error).__name__)
