"""The text of a broker's files: server.properties and its logging configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kmirror.java_properties import properties_text
from kmirror_sandbox.cluster_spec import ADMIN_USER, BROKER_PRINCIPAL, ClusterSpec, NodeSpec, SecuritySpec, TokenSpec
from kmirror_sandbox.ports import LOOPBACK
from kmirror_sandbox.tiered_store import STORE_CLASS

#: The listener for clients is named after its protocol.
PLAIN_LISTENER = "PLAINTEXT"
SECURED_LISTENER = "SASL_SSL"
CERTIFICATE_LISTENER = "SSL"

#: Claims in the tokens of a cluster whose clients log in with OAUTHBEARER.
TOKEN_ISSUER, TOKEN_AUDIENCE = "sandbox", "kafka"

_LOG4J2 = """\
status = error
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""

_RELOAD4J = """\
log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.RollingFileAppender
log4j.appender.file.File={log}
log4j.appender.file.MaxFileSize=10MB
log4j.appender.file.MaxBackupIndex=2
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def logging_properties(kafka_major: int, log_file: Path) -> str:
    """Return the logging configuration: log4j2's for Kafka 4, reload4j's for older ones."""
    return (_LOG4J2 if kafka_major >= 4 else _RELOAD4J).format(log=log_file)


def logging_option(kafka_major: int, configuration: Path) -> str:
    """Return the JVM option that names the logging configuration."""
    key = "log4j2.configurationFile" if kafka_major >= 4 else "log4j.configuration"
    return f"-D{key}={configuration.as_uri()}"


def server_properties(spec: ClusterSpec, node: NodeSpec, data: Path, tls: Path, store: Path) -> str:
    """Return a node's server.properties; the spec's `properties` override the rest, its `node_properties` those.

    `data` is the node's log directory, `tls` the directory with the certificates of a secured cluster, `store` that of
    a cluster with tiered storage.
    """
    settings = {
        **(_with_zookeeper(spec, node) if spec.needs_zookeeper else _with_kraft(spec, node)),
        "broker.rack": f"rack-{node.node_id}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        **_internal_topics(len(spec.nodes)),
        **(_secured(spec.security, node, tls) if spec.security else _plain(spec, node)),
        **(_with_tokens(spec, spec.security.tokens) if spec.security and spec.security.tokens else {}),
        **(_tiered(spec, tls, store) if spec.tiered else {}),
        **spec.properties,
        **spec.node_properties.get(str(node.node_id), {}),
    }
    return properties_text(settings)


def zookeeper_properties(port: int, data: Path) -> str:
    """Return ZooKeeper's properties file."""
    settings = {
        "dataDir": str(data),
        "clientPort": str(port),
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "tickTime": "500",
    }
    return properties_text(settings)


def jaas_quoted(value: str) -> str:
    """Return a value as a quoted string of a JAAS configuration."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _with_kraft(spec: ClusterSpec, node: NodeSpec) -> dict[str, str]:
    return {
        "process.roles": "broker,controller" if node.controller_port else "broker",
        "node.id": str(node.node_id),
        "controller.quorum.voters": spec.voters,
        "controller.listener.names": "CONTROLLER",
        # a killed broker can register again, and its partitions get new leaders, only after this time
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
    }


def _with_zookeeper(spec: ClusterSpec, node: NodeSpec) -> dict[str, str]:
    return {
        "broker.id": str(node.node_id),
        "zookeeper.connect": f"{LOOPBACK}:{spec.zookeeper_port}",
        "zookeeper.session.timeout.ms": "4000",
    }


def _internal_topics(brokers: int) -> dict[str, str]:
    replicas = min(3, brokers)
    return {
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min(2, replicas)),
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(min(2, replicas)),
        "share.coordinator.state.topic.num.partitions": "4",
    }


def _listeners(node: NodeSpec, client_listener: str) -> dict[str, str]:
    advertised = [f"{client_listener}://{node.address}"]
    if node.internal_port:
        advertised.append(f"INTERNAL://{LOOPBACK}:{node.internal_port}")
    own = [*advertised, f"CONTROLLER://{LOOPBACK}:{node.controller_port}"] if node.controller_port else advertised
    return {"listeners": ",".join(own), "advertised.listeners": ",".join(advertised)}


def _plain(spec: ClusterSpec, node: NodeSpec) -> dict[str, str]:
    if spec.needs_zookeeper:
        return _listeners(replace(node, controller_port=None), PLAIN_LISTENER)
    return {
        **_listeners(node, PLAIN_LISTENER),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def _secured(security: SecuritySpec, node: NodeSpec, tls: Path) -> dict[str, str]:
    listener = CERTIFICATE_LISTENER if security.wants_certificates else SECURED_LISTENER
    settings = {
        **_listeners(node, listener),
        "listener.security.protocol.map": f"{listener}:{listener},INTERNAL:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        **_stores(security, tls, ""),
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
        "super.users": f"User:{BROKER_PRINCIPAL};User:{ADMIN_USER}",
        **({"listener.name.ssl.ssl.client.auth": "required"} if security.wants_certificates else _passwords(security)),
    }
    if security.authorizer:
        settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    return settings


def _tiered(spec: ClusterSpec, tls: Path, store: Path) -> dict[str, str]:
    """Return the settings of tiered storage (KIP-405), with checks often enough to see segments move."""
    metadata = "rlmm.config.remote.log.metadata"
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": STORE_CLASS,
        "remote.log.storage.manager.class.path": str(store / "classes"),
        "rsm.config.folder": str(store),
        "remote.log.metadata.manager.listener.name": "INTERNAL" if spec.security else PLAIN_LISTENER,
        f"{metadata}.topic.replication.factor": str(min(3, len(spec.nodes))),
        f"{metadata}.topic.num.partitions": "4",
        **(_as_broker(spec.security, tls, f"{metadata}.common.client.") if spec.security else {}),
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "1000",
    }


def _as_broker(security: SecuritySpec, tls: Path, prefix: str) -> dict[str, str]:
    """Return the settings with which a client of the internal listener connects as a broker."""
    return {f"{prefix}security.protocol": "SSL", **_stores(security, tls, prefix)}


def _stores(security: SecuritySpec, tls: Path, prefix: str) -> dict[str, str]:
    return {
        f"{prefix}ssl.keystore.type": "PKCS12",
        f"{prefix}ssl.keystore.location": str(tls / "node.p12"),
        f"{prefix}ssl.keystore.password": security.store_password,
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": str(tls / "ca.pem"),
    }


def _passwords(security: SecuritySpec) -> dict[str, str]:
    login = f"listener.name.{SECURED_LISTENER.lower()}"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    users = " ".join(f"user_{user}={jaas_quoted(password)}" for user, password in sorted(security.users.items()))
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{login}.plain.sasl.jaas.config": f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};",
        f"{login}.scram-sha-256.sasl.jaas.config": scram,
        f"{login}.scram-sha-512.sasl.jaas.config": scram,
    }


def token_issuer(tokens: TokenSpec) -> str:
    """Return the issuer in a cluster's tokens, which is also the base URL of its token endpoint."""
    return f"http://{LOOPBACK}:{tokens.port}/{TOKEN_ISSUER}"


def keys_option(tokens: TokenSpec) -> str:
    """Return the JVM option that lets a broker of Kafka 4 fetch the keys with which tokens are signed."""
    return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={_keys_url(tokens)}"


def _keys_url(tokens: TokenSpec) -> str:
    return f"{token_issuer(tokens)}/jwks"


def _with_tokens(spec: ClusterSpec, tokens: TokenSpec) -> dict[str, str]:
    login = f"listener.name.{SECURED_LISTENER.lower()}.oauthbearer"
    package = "org.apache.kafka.common.security.oauthbearer"
    handler = (
        "OAuthBearerValidatorCallbackHandler"
        if spec.kafka_major >= 4
        else "secured.OAuthBearerValidatorCallbackHandler"
    )
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{login}.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        f"{login}.sasl.server.callback.handler.class": f"{package}.{handler}",
        "sasl.oauthbearer.jwks.endpoint.url": _keys_url(tokens),
        "sasl.oauthbearer.expected.issuer": token_issuer(tokens),
        "sasl.oauthbearer.expected.audience": TOKEN_AUDIENCE,
    }
