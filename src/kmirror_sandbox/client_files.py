"""Clients of a sandbox cluster: Java client properties for users, and admin clients on the brokers' own listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kmirror.errors import UsageError
from kmirror_sandbox.broker_config import jaas_quoted, token_issuer
from kmirror_sandbox.cluster_spec import CERTIFICATE
from kmirror_sandbox.node import Node
from kmirror_sandbox.ports import LOOPBACK

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

OAUTHBEARER = "OAUTHBEARER"

#: Asks once; False means not yet.
Probe = Callable[[], bool]


def login_properties(node: Node, user: str, password: str, mechanism: str) -> dict[str, str]:
    """Return the Java client properties with which a user logs in to a secured cluster."""
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(node.tls / "ca.pem")}
    if mechanism == CERTIFICATE:
        store = {"type": "PKCS12", "location": str(node.tls / f"{user}.p12"), "password": password}
        return {"security.protocol": "SSL", **{f"ssl.keystore.{key}": value for key, value in store.items()}, **trust}
    if mechanism == OAUTHBEARER:
        return {"security.protocol": "SASL_SSL", **_token_login(node, user, password), **trust}
    login = f"username={jaas_quoted(user)} password={jaas_quoted(password)}"
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN_MODULES[mechanism]} required {login};",
        **trust,
    }


def _token_login(node: Node, user: str, password: str) -> dict[str, str]:
    security = node.cluster.security
    if security is None or security.tokens is None:
        raise UsageError(f"cluster {node.cluster.name} does not accept tokens", "create it with --secured=oauth")
    package = "org.apache.kafka.common.security.oauthbearer"
    handler = (
        "OAuthBearerLoginCallbackHandler"
        if node.cluster.kafka_major >= 4
        else "secured.OAuthBearerLoginCallbackHandler"
    )
    client = f"clientId={jaas_quoted(user)} clientSecret={jaas_quoted(password)}"
    return {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.login.callback.handler.class": f"{package}.{handler}",
        "sasl.oauthbearer.token.endpoint.url": f"{token_issuer(security.tokens)}/token",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required {client};",
    }


def metadata_probe(node: Node, brokers: int) -> Probe:
    """Return a probe of whether this broker knows `brokers` brokers of its own cluster."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(_admin_config(node))

    def complete() -> bool:
        try:
            metadata = admin.list_topics(timeout=1.0)
        except KafkaException:
            return False
        is_ours = metadata.cluster_id == (node.cluster.cluster_id or metadata.cluster_id)
        return len(metadata.brokers) >= brokers and is_ours

    return complete


def create_scram_users(node: Node, users: Mapping[str, str]) -> None:
    """Give every user a SCRAM-SHA-256 and a SCRAM-SHA-512 password (KIP-554), over the brokers' own listener."""
    from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    admin = AdminClient(_admin_config(node))
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # one per user and request
        credential = ScramCredentialInfo(mechanism, 4096)
        wanted = [UserScramCredentialUpsertion(user, credential, users[user].encode()) for user in users]
        for altered in admin.alter_user_scram_credentials(wanted).values():
            altered.result(timeout=30)


def login_probe(node: Node, user: str, password: str) -> Probe:
    """Return a probe of whether this broker knows the user's SCRAM password."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    settings = {
        "bootstrap.servers": node.spec.address,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(node.tls / "ca.pem"),
        **_QUIET,
    }
    admin = AdminClient(settings)

    def logged_in() -> bool:
        try:
            admin.list_topics(timeout=1.0)
        except KafkaException:
            return False
        return True

    return logged_in


#: librdkafka prints refused connections; here they are expected.
_QUIET: Mapping[str, Any] = {"log_level": 0, "reconnect.backoff.max.ms": 200, "error_cb": lambda error: None}


def _admin_config(node: Node) -> dict[str, Any]:
    if node.cluster.security is None:
        return {"bootstrap.servers": node.spec.address, **_QUIET}
    return {
        "bootstrap.servers": f"{LOOPBACK}:{node.spec.internal_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(node.tls / "ca.pem"),
        "ssl.keystore.location": str(node.tls / "node.p12"),
        "ssl.keystore.password": node.cluster.security.store_password,
        **_QUIET,
    }
