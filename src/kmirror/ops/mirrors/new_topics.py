"""What is weaker about the topics that kmirror would create, found out by requests that are only validated."""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.topics.policies import settled_to_create
from kmirror.cluster.protocol.codes import Code
from kmirror.errors import BrokerError
from kmirror.ops.base.context import now_ms
from kmirror.settings.table import Settings
from kmirror.sync.setting_changes import MIRROR_VALUES, SettingsPlan, settled_notes

#: The name of a topic that is never created, after the mirror's prefix.
NEVER_CREATED = "kmirror-check"
#: Known to brokers of all versions.
_KNOWN = {key: value for key, value in MIRROR_VALUES.items() if not key.endswith(".max.ms")}
#: Said by other lines of a check, or nothing about new topics.
_NOT_ASKED = (
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.TOPIC_ALREADY_EXISTS,
)


def weaker_topics(client: ClusterClient, settings: Settings) -> list[str]:
    """Return which settings of mirror topics the destination does not take, and what that means.

    Raises:
        BrokerError: it would create none.
        UnreachableError, OutcomeUnknown: no answer.
    """
    topic = settings.topic_prefix + NEVER_CREATED
    try:
        settled = settled_to_create(client, topic, 1, settings.replication_factor, _KNOWN)
    except BrokerError as error:
        if error.code in _NOT_ASKED:
            return []
        raise
    plan = SettingsPlan(_KNOWN, {}).settling(settled)
    return settled_notes({"new mirror topics": plan}, now_ms())
