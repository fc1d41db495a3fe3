"""Rights on kmirror's own topics and transactional ids, without which no command can record what it does."""

from __future__ import annotations

import uuid

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.rights.authorized import may_write_transactions, missing_rights
from kmirror.cluster.topics.leaders import require_leaders
from kmirror.errors import Reason, RefusedError
from kmirror.ops.base.context import Destination
from kmirror.state.internal_topics import EVENTS_TOPIC, OWN_IDS_GRANT, OWN_TOPICS_GRANT, STATE_TOPIC
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.state.store import DEFAULT_TIMEOUT_S


def lacking_on_own(client: ClusterClient) -> dict[str, list[str]]:
    """Return which rights we lack on kmirror's own topics and transactional ids, as far as brokers report them.

    Raises UnreachableError: the cluster does not answer.
    """
    lacking = dict(missing_rights(client, [STATE_TOPIC, EVENTS_TOPIC], ("READ", "WRITE", "DESCRIBE_CONFIGS")))
    if not may_write_transactions(client, f"{OWN_TRANSACTIONAL_IDS}check-{uuid.uuid4().hex}"):
        lacking[OWN_TRANSACTIONAL_IDS] = ["WRITE"]
    return lacking


def refusal_of_records(destination: Destination, cluster: str = "the destination") -> RefusedError | None:
    """Return why nothing can be recorded, with the command that grants the first missing right; None if it can.

    `cluster` is what the destination is called in the message. Raises UnreachableError: it does not answer, or has no
    leader of one of kmirror's topics.
    """
    client, own = destination.client, (STATE_TOPIC, EVENTS_TOPIC)
    require_leaders(client, own, destination.store.found or client.metadata(own), DEFAULT_TIMEOUT_S)
    for name, rights in lacking_on_own(destination.client).items():
        is_ids = name == OWN_TRANSACTIONAL_IDS
        what = f"transactional ids {name}*" if is_ids else f"topic {name}"
        return RefusedError(
            f"{cluster} does not grant us {' and '.join(rights)} on {what}: nothing could be recorded",
            (OWN_IDS_GRANT if is_ids else OWN_TOPICS_GRANT).line(destination.config),
            Reason.NOT_AUTHORIZED,
        )
    return None


def require_own_rights(destination: Destination) -> None:
    """Refuse what could not be recorded: for a dry run, which records nothing.

    The parts of a plan are not refused: who plans may have fewer rights than who carries it out.

    Raises:
        RefusedError: NOT_AUTHORIZED.
        UnreachableError: the destination does not answer, or has no leader of one of kmirror's topics.
    """
    if not destination.is_rehearsed and (refusal := refusal_of_records(destination)) is not None:
        raise refusal


def record_warnings(destination: Destination) -> tuple[str, ...]:
    """Return that the real run would be refused, for a dry run that is not. Raises UnreachableError."""
    refusal = refusal_of_records(destination)
    return () if refusal is None else (f"the real run would be refused: {refusal.message}; {refusal.hint}",)
