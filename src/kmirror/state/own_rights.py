"""The rights that kmirror needs on what is its own at the destination: its topics, and its transactional ids. Pure."""

from __future__ import annotations

from kmirror.cluster.acl_commands import Grant
from kmirror.cluster.protocol.codes import Code
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS

#: What kmirror's own topics begin with.
OWN_TOPICS = "__kmirror_"

#: The rights to read and write what kmirror stores.
OWN_MEMORY = Grant(f"--topic {OWN_TOPICS}", ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS"), prefixed=True)
OWN_LOCKS = Grant(f"--transactional-id {OWN_TRANSACTIONAL_IDS}", ("WRITE",), prefixed=True)


def lacking_grant(code: int) -> Grant:
    """Return the rights that are missing when a broker answers a request on kmirror's own resources with this code."""
    return OWN_LOCKS if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else OWN_MEMORY
