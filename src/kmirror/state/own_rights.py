"""The rights that kmirror needs on its own topics and transactional ids at the destination. Pure."""

from __future__ import annotations

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.rights.acl_commands import Grant
from kmirror.commands import option
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS

#: Prefix of kmirror's own topics.
OWN_TOPICS = "__kmirror_"

OWN_TOPICS_GRANT = Grant(option("--topic", OWN_TOPICS), ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS"), prefixed=True)
OWN_IDS_GRANT = Grant(option("--transactional-id", OWN_TRANSACTIONAL_IDS), ("WRITE",), prefixed=True)


def lacking_grant(code: int) -> Grant:
    """Return the missing rights when a broker answers a request on kmirror's own resources with this code."""
    return OWN_IDS_GRANT if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else OWN_TOPICS_GRANT
