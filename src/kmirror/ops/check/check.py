"""`check`: would mirroring work? Reachability, cluster ids, versions and rights of both clusters, line by line.

A problem is a line with a hint, never an exception: one problem must not hide the next. A line that is ok but has a
hint is a warning: it works, but not as well as it might, or not for every topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.rights.acl_commands import PREFIXED, Grant, admin_options, grant_line
from kmirror.cluster.rights.acls import describe_acls
from kmirror.cluster.rights.authorized import (
    OPERATIONS,
    cluster_operations,
    marker_operations,
    missing_operations,
    missing_rights,
)
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.exposure import cleartext_logins
from kmirror.cluster.socket_buffers import buffers_here
from kmirror.commands import Arguments, command_line, option, options
from kmirror.engine.spec import filling_prefix
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.base.context import REACH_TIMEOUT_S, now_ms, require_mirror, require_own_brokers, require_same_cluster
from kmirror.ops.base.trust_checks import refusal_once_stored, unlimited_sources
from kmirror.ops.base.upstream import stored_state_on
from kmirror.ops.base.versions import Role, broker_version, too_old
from kmirror.ops.check.blocked import blocked_views
from kmirror.ops.check.client_checks import check_clients, check_powers
from kmirror.ops.check.findings import AllFindings, CheckLine, CheckReport, Findings
from kmirror.ops.check.group_checks import (
    KEEPING,
    check_dropping_offsets,
    check_groups,
    check_offsets_retention,
    check_source_groups,
)
from kmirror.ops.check.rights import (
    destination_grants,
    grant_lines,
    has_authorizer,
    protection_view,
    source_grants,
)
from kmirror.ops.check.topic_checks import check_deletion, check_formats, check_in_sync, check_memory, check_partitions
from kmirror.ops.mirrors.create import checked_properties
from kmirror.ops.mirrors.replication import replication_of, weak_replication, weaker_topics
from kmirror.ops.probe.probe import probe_destination
from kmirror.ops.rights.own_rights import lacking_on_own
from kmirror.settings.parsing import parse_settings, stored_settings
from kmirror.settings.table import Settings
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.state.snapshot import State
from kmirror.state.store import StateStore
from kmirror.words import address_of, counted, visible

#: Needed to create topics, unless it is granted topic by topic.
_NEEDED_ON_CLUSTER = ("CREATE",)
_NEEDED_TO_READ = ("READ", "DESCRIBE_CONFIGS")
_NEEDED_TO_WRITE = ("READ", "WRITE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
#: For DeleteRecords; compact-only topics need ALTER_CONFIGS too, which every mirror topic needs anyway.
_NEEDED_TO_TRIM = ("DELETE",)
#: Where schema registries store schemas, unless configured otherwise (kafkastore.topic).
_SCHEMAS = "_schemas"
#: The most topics that a hint names one by one.
_TOPICS_IN_HINT = 20


def check(
    destination_properties: Mapping[str, str],
    *,
    mirror: str | None = None,
    properties: Mapping[str, str] | None = None,
    expect_cluster_id: str | None = None,
    probe: bool = False,
    on_line: Callable[[CheckLine], None] | None = None,
) -> CheckReport:
    """Check the destination and, if a mirror or its file (`properties`) is named, the source.

    Problems with a cluster are lines, not exceptions; `on_line` is called with each line at once. The exit code is 0;
    6 if a cluster does not answer or refuses us; 3 if something else would be refused. With `probe`, what the copy
    relies on is tried at the destination, on a topic that is created and deleted.

    Raises:
        UsageError: an invalid property.
        RefusedError: `properties` contain a plaintext secret.
        UnreachableError: a secret of the destination's properties has no value here.
    """
    findings = AllFindings(on_line)
    here, there = findings.destination, findings.source
    given: Mapping[str, str] | None = None
    settings = Settings()
    if properties is not None:
        given, changed = checked_properties(properties)
        settings = parse_settings(changed)
    config = client_config(destination_properties)
    _check_cleartext(here, destination_properties)
    _check_buffers(here, config)
    with ClusterClient(config) as client:
        found = _reach(here, client)
        if found is not None:
            _check_cluster(here, client, found, Role.DESTINATION)
            if expect_cluster_id is not None:
                same = found.cluster_id == expect_cluster_id
                verdict = "as expected" if same else f"expected {expect_cluster_id} (--expect-cluster-id)"
                message = f"{found.cluster_id}: {verdict}"
                here.add("expected cluster", same, message, "check the address")
                if not same:
                    return findings.report()  # its record names sources that our secrets are not meant for
            operations = _check_rights(here, client)
            record, topics, state = _stored_state(here, client, mirror)
            with here.catching("kmirror's memory"):
                check_memory(here, client)
            with here.catching("in-sync replicas"):
                check_in_sync(here, client, [STATE_TOPIC, EVENTS_TOPIC, *(topic.topic for topic in topics)])
            with here.catching("deleting topics"):
                check_deletion(here, client)
            with here.catching("message format"):
                check_formats(here, client, [topic.topic for topic in topics])
            if operations is not None:
                _check_filling(here, client.config, operations, marker_operations(client), record, topics)
            if state.mirrors:
                check_powers(here, client, state, mirror)
            if record is not None:
                settings = stored_settings(record.settings)
            if record is not None or given is not None:
                _check_own_rights(here, client, settings, topics)
                _check_new_topics(here, client, settings)
                _check_replication(here, client, settings, topics, len(found.brokers))
        else:
            record, topics = None, ()
        source = given if given is not None else record.source if record is not None else None
        destination_id = found.cluster_id if found is not None else None
        if source is not None:
            groups = _check_source(findings, source, record, destination_id, topics, settings, client)
            if settings.sync_group_offsets_enabled and found is not None:
                with here.catching("rights on groups"):
                    check_groups(here, client, groups, "READ")
                    check_dropping_offsets(here, client, groups)
                with here.catching(KEEPING):
                    check_offsets_retention(here, client, settings)
        if record is not None:
            with there.catching("blocked producers"), closing(StateStore(client.config)) as store:
                _check_blocked(there, store, record)
            with here.catching("rights on topics"):
                _check_topics(here, client, [topic.topic for topic in topics], _NEEDED_TO_WRITE)
            with here.catching("trimming logs"):
                _check_trimming(here, client, [topic.topic for topic in topics])
        if probe and found is not None:
            with here.catching("probe"):
                probe_destination(client, settings.replication_factor, findings.tried)
    return findings.report()


def _reach(findings: Findings, client: ClusterClient) -> ClusterMetadata | None:
    found = None
    with findings.catching("reachable"):
        found = client.metadata([], timeout=REACH_TIMEOUT_S)
        brokers = ", ".join(visible(address_of(broker.host, broker.port)) for broker in found.brokers.values())
        findings.ok("reachable", f"cluster {found.cluster_id}, brokers {brokers}")
    return found


def _check_cluster(findings: Findings, client: ClusterClient, found: ClusterMetadata, role: Role) -> None:
    for broker in found.brokers.values():
        what = f"broker {broker.node_id}"
        with findings.catching(what):
            version = broker_version(client, broker.node_id, broker.host, broker.port, role)
            findings.add(what, version.is_supported, f"{version.address}: {version}", too_old(role))


def _check_rights(findings: Findings, client: ClusterClient) -> frozenset[int] | None:
    """Return our authorized operations on the destination, empty if they are unknown, None if there is no answer."""
    operations: frozenset[int] | None = None
    with findings.catching("rights on cluster"):
        operations = cluster_operations(client)
        missing = missing_operations(operations, _NEEDED_ON_CLUSTER)
        if missing:
            message = f"we lack {', '.join(missing)}; having it on the topics to be created is enough"
            findings.warn("rights on cluster", message, grant_line(client.config, ("CREATE",), "--cluster"))
        else:
            message = f"we have {', '.join(_NEEDED_ON_CLUSTER)}"
            if not operations:
                message = "unknown without DESCRIBE on the cluster; rights on topics may be enough"
            findings.ok("rights on cluster", message)
    return operations


def _check_own_rights(
    findings: Findings, client: ClusterClient, settings: Settings, topics: tuple[TopicRecord, ...]
) -> None:
    """Check rights on kmirror's own topics and ids, the protection of mirror topics, and list the least rights."""
    with findings.catching("kmirror's own"):
        for name, missing in lacking_on_own(client).items():
            ids = name == OWN_TRANSACTIONAL_IDS
            resource = (*option("--transactional-id", name), *PREFIXED) if ids else option("--topic", name)
            findings.fail(
                f"rights on transactional ids {name}*" if ids else f"rights on topic {name}",
                f"we lack {', '.join(missing)}",
                grant_line(client.config, missing, *resource),
                Reason.NOT_AUTHORIZED,
            )
    names = [topic.topic for topic in topics]
    with findings.catching("protection"):
        with closing(StateStore(client.config)) as store:
            state = store.read()
        denied = {topic.topic: state.rights(topic.mirror, topic.topic).denied for topic in topics}
        view = protection_view(client, settings, denied)
        findings.ok("protection", view.message, view.hint)
    with findings.catching("least rights"):
        prefixed = [settings.topic_prefix + name for name in settings.topics_include.names]
        _least_rights(findings, client, destination_grants(settings, names or prefixed, marker_operations(client)))


def _check_new_topics(findings: Findings, client: ClusterClient, settings: Settings) -> None:
    """Check which settings of mirror topics the destination takes."""
    with findings.catching("new topics"):
        notes = weaker_topics(client, settings)
        for note in notes:
            findings.warn("new topics", note, "ask who runs the destination to allow it (a topic policy)")
        if not notes:
            findings.ok("new topics", "the destination takes the settings of mirror topics")


def _check_replication(
    findings: Findings, client: ClusterClient, settings: Settings, topics: tuple[TopicRecord, ...], brokers: int
) -> None:
    """Check whether kmirror's own topics and mirror topics have enough replicas."""
    with findings.catching("replication"):
        known = replication_of(client, settings, [topic.topic for topic in topics])
        notes = weak_replication(known, brokers)
        for message, hint in notes:
            findings.warn("replication", message, hint)
        if not notes:
            findings.ok("replication", "kmirror's own topics and mirror topics have enough replicas")


def _least_rights(findings: Findings, client: ClusterClient, grants: tuple[Grant, ...]) -> None:
    lines = grant_lines(client, grants)
    if lines:
        message = "\n".join(["rights that kmirror needs here (commands for an administrator):", *lines])
        findings.ok("least rights", message)


def _check_filling(
    findings: Findings,
    config: ClientConfig,
    operations: frozenset[int],
    to_mark: tuple[str, ...],
    record: MirrorRecord | None,
    topics: tuple[TopicRecord, ...],
) -> None:
    """Check how lanes can fill offsets at which the source shows nothing."""
    if any(OPERATIONS[name] in operations for name in to_mark):
        findings.ok("filling offsets", "by markers")
        return
    known = (
        f"{' and '.join(to_mark)} on the cluster {'are' if len(to_mark) > 1 else 'is'} not granted"
        if operations
        else f"unless {' or '.join(to_mark)} on the cluster is granted, which is unknown without DESCRIBE on it"
    )
    ids = filling_prefix(record.name if record is not None else "MIRROR")
    findings.warn(
        "filling offsets",
        f"by empty transactions (slower: about 3,000 offsets a second per partition) ({known}); whether WRITE on "
        f"the transactional ids {ids}* is granted cannot be known from here",
        "\n".join(
            (
                "to fill by markers:",
                grant_line(config, to_mark[:1], "--cluster"),
                "to fill by empty transactions:",
                grant_line(config, ("WRITE", "DESCRIBE"), *option("--transactional-id", ids), *PREFIXED),
                grant_line(config, ("WRITE",), *_topic_options([topic.topic for topic in topics])),
            )
        ),
    )


def _check_trimming(findings: Findings, client: ClusterClient, topics: list[str]) -> None:
    lacking = sorted(missing_rights(client, topics, _NEEDED_TO_TRIM))
    needed = ", ".join(_NEEDED_TO_TRIM)
    if lacking:
        findings.warn(
            "trimming logs",
            f"we lack {needed} on {len(lacking)} of {counted(len(topics), 'topic')}: it is needed where the log is to "
            "begin above 0, now or later; for compact-only topics ALTER_CONFIGS too",
            grant_line(client.config, ("DELETE",), *_topic_options(lacking)),
        )
    elif topics:
        findings.ok("trimming logs", f"we have {needed} on {counted(len(topics), 'topic')}")


def _topic_options(topics: list[str]) -> Arguments:
    """Return topics as options of kafka-acls; with too many, or none yet, a placeholder."""
    if not 0 < len(topics) <= _TOPICS_IN_HINT:
        return option("--topic", "TOPIC")
    return options("--topic", topics)


def _stored_state(
    findings: Findings, client: ClusterClient, mirror: str | None
) -> tuple[MirrorRecord | None, tuple[TopicRecord, ...], State]:
    record: MirrorRecord | None = None
    topics: tuple[TopicRecord, ...] = ()
    state = State()
    with closing(StateStore(client.config)) as store, findings.catching("kmirror's memory"):
        state = store.read()
        if mirror is not None:
            record = require_mirror(state, mirror)
            topics = tuple(one for one in state.topics(mirror) if one.desired is not DesiredState.STOPPED)
        names = ", ".join(visible(known.name) for known in state.mirrors) or "none"
        findings.ok("kmirror's memory", f"mirrors stored here: {names}")
    return record, topics, state


def _check_source(
    both: AllFindings,
    properties: Mapping[str, str],
    record: MirrorRecord | None,
    destination_id: str | None,
    topics: tuple[TopicRecord, ...],
    settings: Settings,
    destination: ClusterClient,
) -> list[str]:
    """Check the source, and return the visible groups there whose offsets are synced."""
    findings, groups = both.source, list[str]()
    with findings.catching("reachable"):
        config = client_config(properties)
        with ClusterClient(config) as client:
            _check_trust(findings, properties, config)
            _check_cleartext(findings, properties)
            _check_buffers(findings, config)
            found = _reach(findings, client)
            if found is None:
                return groups
            _check_cluster(findings, client, found, Role.SOURCE)
            if settings.sync_group_offsets_enabled:
                with findings.catching("rights on groups"):
                    groups = check_source_groups(findings, client, settings)
            another = found.cluster_id != destination_id
            findings.add(
                "another cluster",
                another,
                "it is not the destination"
                if another
                else f"source and destination are the same cluster, {found.cluster_id}",
                "bootstrap.servers in the mirror's file names the source, --bootstrap-server the destination",
                Reason.LOOP,
            )
            with findings.catching("advertised addresses"):
                require_own_brokers(client, destination_id)
                findings.ok("advertised addresses", "each that answers leads to a broker of it")
            if record is not None:
                with findings.catching("same cluster as before"):
                    require_same_cluster(record.source_cluster_id, found.cluster_id)
                    findings.ok("same cluster as before", f"{found.cluster_id}, as recorded")
            with findings.catching("rights on topics"):
                _check_topics(findings, client, [topic.source_topic for topic in topics], _NEEDED_TO_READ)
            if destination_id is not None and topics:
                with findings.catching("partitions"):
                    check_partitions(both, client, destination, topics)
            if settings.sync_topic_acls_enabled:
                with findings.catching("ACLs"):
                    has = len(describe_acls(client)) if has_authorizer(client) else 0
                    findings.ok("ACLs", f"{counted(has, 'ACL')} to sync from (sync.topic.acls.enabled)")
            if destination_id is not None:
                check_clients(both, client, destination, settings)
            with findings.catching("least rights"):
                names = [topic.source_topic for topic in topics] or list(settings.topics_include.names)
                stored = client.metadata([STATE_TOPIC]).topics.get(STATE_TOPIC)
                has_mirrors = stored is None or stored.error_code != Code.UNKNOWN_TOPIC_OR_PARTITION
                _least_rights(findings, client, source_grants(settings, names, has_mirrors=has_mirrors))
            with findings.catching("kmirror's memory"):
                _check_mirrors_there(findings, properties, client)
            with findings.catching("schemas"):
                _check_schemas(findings, client, {topic.source_topic for topic in topics})

    return groups


def _check_mirrors_there(findings: Findings, properties: Mapping[str, str], client: ClusterClient) -> None:
    """Check whether it can be seen which of the source's topics are mirror topics, or were."""
    try:
        stored_state_on(properties, connected=client)
    except KmirrorError as error:
        findings.warn(
            "kmirror's memory",
            f"{error.message}; until then loops are not noticed, and after a stop it may not be certain which cluster"
            " is in charge",
            error.hint or "try again",
        )


def _check_trust(findings: Findings, properties: Mapping[str, str], config: ClientConfig) -> None:
    """Check what this host's policy lets the mirror's record do."""
    with findings.catching("trust"):
        if refused := refusal_once_stored(properties):
            raise refused
        if advice := unlimited_sources(config):
            findings.warn("trust", *advice)


def _check_cleartext(findings: Findings, properties: Mapping[str, str]) -> None:
    for warning, hint in cleartext_logins(properties):
        findings.warn("encryption", warning, hint)


def _check_buffers(findings: Findings, config: ClientConfig) -> None:
    """Check whether this machine gives connections buffers of the size that the client properties ask for."""
    for buffer in buffers_here(config):
        if buffer.is_capped:
            findings.warn(
                buffer.key,
                f"{buffer.asked} is more than this machine gives: a connection gets {buffer.given} bytes, and the "
                "system does not adapt them to the path",
                f"remove {buffer.key}, or raise the limit on every machine with lanes: "
                + command_line("sysctl", "-w", f"{buffer.limit}={buffer.asked}"),
            )
        else:
            findings.ok(buffer.key, f"{buffer.asked} bytes, as asked")


def _check_blocked(findings: Findings, store: StateStore, record: MirrorRecord) -> None:
    """Report topics on which the source denies everyone WRITE since a promote or switchover."""
    config = client_config(record.source)

    def source_acls() -> Collection[AclBinding]:
        with ClusterClient(config) as source:
            return describe_acls(source)

    for found in blocked_views(store.read(), record.name, admin_options(config), source_acls, now_ms()):
        if found.is_wanted:
            findings.warn("blocked producers", found.message, found.hint)
        else:
            findings.fail("blocked producers", found.message, found.hint)


def _check_schemas(findings: Findings, client: ClusterClient, mirrored: Collection[str]) -> None:
    """Warn of a schema registry whose topic is not mirrored: schema ids in records are copied unchanged."""
    found = client.metadata([_SCHEMAS]).topics.get(_SCHEMAS)
    if found is None or found.error_code or _SCHEMAS in mirrored:
        return
    findings.warn(
        "schemas",
        f"the source has a topic {_SCHEMAS}, used by schema registries, and it is not mirrored: schema ids in"
        " records are copied unchanged, so consumers of the mirror need a registry that has them",
        f"mirror it too ({command_line('kmirror', 'add', '--topics', _SCHEMAS)}) for a registry at the destination, or"
        " let consumers there use the source's registry",
    )


def _check_topics(findings: Findings, client: ClusterClient, topics: list[str], needed: tuple[str, ...]) -> None:
    lacking = missing_rights(client, topics, needed)
    for topic, missing in sorted(lacking.items()):
        findings.fail(
            f"rights on topic {topic}",
            f"we lack {', '.join(missing)}",
            grant_line(client.config, missing, *option("--topic", topic)),
            Reason.NOT_AUTHORIZED,
        )
    if topics and not lacking:
        findings.ok("rights on topics", f"we have {', '.join(needed)} on {counted(len(topics), 'topic')}")
