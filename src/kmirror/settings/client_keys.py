"""The configuration keys of Kafka's own clients, to recognise misspelt ones.

They are those of the consumer, the producer and the admin client (`ConsumerConfig`, `ProducerConfig` and
`AdminClientConfig` of Kafka 4.3, and those that only 3.9 had).
"""

from __future__ import annotations

from difflib import get_close_matches

CLIENT_KEYS = frozenset(
    """
    acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size
    bootstrap.controllers bootstrap.servers buffer.memory check.crcs client.dns.lookup client.id client.rack
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level config.providers
    connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.auto.commit enable.idempotence
    enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level
    key.deserializer key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
    retries retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
    sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes session.timeout.ms
    share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
    ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
    ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type transaction.timeout.ms transaction.two.phase.commit.enable
    transactional.id value.deserializer value.serializer
    """.split()  # noqa: SIM905 - 140 quoted names would be harder to read
)

#: Consumer keys that have no effect on a mirror, why, and what to do instead. They are refused, not ignored: users
#: would rely on them.
_REFUSED = {
    "auto.offset.reset": (
        "a mirror never resets: it begins where start.from says, and resumes where the destination's log ends",
        "remove it; start.from=earliest, latest or timestamp:T says where a topic begins",
    ),
    "fetch.max.bytes": ("the size of a fetch is chosen for the copy", "remove it"),
    "fetch.max.wait.ms": ("how long a fetch waits is chosen for the copy", "remove it"),
    "fetch.min.bytes": ("how long a fetch waits is chosen for the copy", "remove it"),
    "max.partition.fetch.bytes": ("the size of a fetch is chosen for the copy", "remove it"),
}

#: Prefixes of keys that Kafka does not list: providers of references, and plug-ins' own keys.
_FAMILIES = ("config.providers.", "metrics.context.")

#: librdkafka's keys, and Kafka's.
_LIBRDKAFKA = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.password": "sasl.jaas.config",
    "sasl.username": "sasl.jaas.config",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.location",
    "ssl.key.pem": "ssl.keystore.key",
}


def is_client_key(key: str) -> bool:
    """Return whether a key is a Kafka client's."""
    return key in CLIENT_KEYS or key.startswith(_FAMILIES)


def refusal_of(key: str, value: str) -> tuple[str, str] | None:
    """Return why a mirror's source cannot have this client property and what to do, None if it can."""
    if key == "isolation.level" and value.strip() != "read_committed":
        return "a mirror copies committed records only", "remove it, or write isolation.level=read_committed"
    return _REFUSED.get(key)


def closest_client_key(key: str) -> str | None:
    """Return the client key that was probably meant by an unknown one, None if none is close."""
    if key in _LIBRDKAFKA:
        return _LIBRDKAFKA[key]
    near = get_close_matches(key.lower().replace("_", ".").replace("-", "."), CLIENT_KEYS, n=1, cutoff=0.85)
    return near[0] if near else None
