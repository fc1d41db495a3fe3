"""Settle for other settings of a topic where the cluster refuses those asked for, as managed services do by policy.

What it accepts is found out by requests that are only validated (`settling`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from kmirror.cluster.client import ClusterClient, require
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.topics.settling import NEEDED, Settings, set_to, settled_for, with_settled
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.cluster.topics.topic_settings import alteration
from kmirror.errors import BrokerError

#: Error codes of a cluster that refuses a topic's settings.
_REFUSES_SETTINGS = (Code.POLICY_VIOLATION, Code.INVALID_CONFIG)


def refuses_settings(error: BaseException | None) -> bool:
    """Return whether a cluster refused a topic because of its settings."""
    return isinstance(error, BrokerError) and error.code in _REFUSES_SETTINGS


def settled_to_create(
    client: ClusterClient,
    topic: str,
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
    kept: Collection[str] = (),
) -> dict[str, str | None]:
    """Return what to set otherwise, so that the cluster would create this topic; empty if it would as it is.

    The settings `kept` stay as they are, and what a copy needs.

    Raises:
        BrokerError: it is refused, whatever its settings.
        UnreachableError, OutcomeUnknown: no answer.
    """

    def create(count: int, tried: Settings) -> None:
        create_topic(client, topic, count, replication_factor, set_to(tried), validate_only=True)

    # of one partition, because quotas count partitions even if a request is only validated
    return _settled(settings, partial(create, partitions), partial(create, 1), {*NEEDED, *kept})


def settled_to_change(
    client: ClusterClient, topic: str, settings: Settings, kept: Collection[str] = NEEDED
) -> dict[str, str | None]:
    """Return what to set otherwise, so that the cluster would change a topic's settings; empty if it would as it is.

    The settings `kept` stay as they are.

    Raises:
        BrokerError: it is refused, whatever the settings.
        UnreachableError: no answer.
    """
    change = partial(_validate_change, client, topic)
    return _settled(settings, change, change, kept)


def create_settled(
    client: ClusterClient, topic: str, partitions: int, replication_factor: int, settings: Mapping[str, str]
) -> dict[str, str | None]:
    """Create a topic, if need be with other settings; return what was set otherwise.

    Raises:
        BrokerError, OutcomeUnknown, UnreachableError: as `create_topic`.
    """
    try:
        create_topic(client, topic, partitions, replication_factor, settings)
    except BrokerError as error:
        if not refuses_settings(error):
            raise
    else:
        return {}
    settled = settled_to_create(client, topic, partitions, replication_factor, settings)
    create_topic(client, topic, partitions, replication_factor, set_to(with_settled(settings, settled)))
    return settled


def _settled(
    settings: Settings,
    attempt: Callable[[Settings], None],
    cheaply: Callable[[Settings], None],
    kept: Collection[str],
) -> dict[str, str | None]:
    def accepts(tried: Settings) -> bool:
        try:
            cheaply(tried)
        except BrokerError as error:
            if refuses_settings(error):
                return False
            raise
        return True

    try:
        attempt(settings)
    except BrokerError as error:
        found = settled_for(settings, accepts, kept) if refuses_settings(error) else None
        if found is None:
            raise
        attempt(with_settled(settings, found))
        return found
    return {}


def _validate_change(client: ClusterClient, topic: str, settings: Settings) -> None:
    if not settings:
        return
    answer = client.ask_any(alteration({topic: settings}, validate_only=True))
    for result in answer.responses:
        require(result.error_code, f"changing the settings of {topic}", result.error_message)
