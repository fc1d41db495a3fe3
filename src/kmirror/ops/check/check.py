"""`check`: would it work? Reachability, cluster ids, versions and rights of both sides, line by line.

Trouble is a line with a hint, never an exception: one thing that is wrong must not hide the next. A line that is well
and has a hint all the same is a warning: it works, but not as well as it might, or not for every topic.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from kmirror.cluster.acl_commands import Grant, admin_options, grant_line
from kmirror.cluster.acls import describe_acls
from kmirror.cluster.authorized import (
    OPERATIONS,
    cluster_operations,
    groups_lacking,
    missing_operations,
    missing_rights,
)
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups import visible_groups
from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.engine.spec import filling_transactional_id
from kmirror.errors import Reason
from kmirror.ops.check.blocked import blocked_views
from kmirror.ops.check.clients import check_clients, check_powers
from kmirror.ops.check.findings import CheckLine, CheckReport
from kmirror.ops.check.rights import (
    destination_grants,
    grant_lines,
    has_authorizer,
    lacking_on_own,
    protection_view,
    source_grants,
)
from kmirror.ops.check.sheet import DESTINATION, SOURCE, Sheet
from kmirror.ops.check.versions import Role, broker_version, too_old
from kmirror.ops.context import REACH_TIMEOUT_S, require_mirror, require_same_cluster
from kmirror.ops.mirrors.create import checked_properties
from kmirror.settings.table import Settings, parse_settings, stored_settings
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.state.snapshot import State
from kmirror.state.store import STATE_TOPIC, StateStore
from kmirror.words import counted

#: What creating topics takes, unless it is granted topic by topic.
_NEEDED_ON_CLUSTER = ("CREATE",)
_NEEDED_TO_READ = ("READ", "DESCRIBE_CONFIGS")
_NEEDED_TO_WRITE = ("READ", "WRITE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
#: Any of them lets us write transaction markers (WriteTxnMarkers).
_EITHER_FOR_MARKERS = ("ALTER", "CLUSTER_ACTION")
#: DeleteRecords; compact-only topics take ALTER_CONFIGS too, which every mirror topic needs anyway.
_NEEDED_TO_TRIM = ("DELETE",)
#: Where schema registries keep what they know, unless told otherwise (kafkastore.topic).
_SCHEMAS = "_schemas"
#: The most topics that a hint names one by one.
_TOPICS_IN_HINT = 20
#: The most groups of which rights are asked one by one.
_GROUPS_ASKED = 200


def check(
    destination_properties: Mapping[str, str],
    *,
    mirror: str | None = None,
    properties: Mapping[str, str] | None = None,
    expect_cluster_id: str | None = None,
    on_line: Callable[[CheckLine], None] | None = None,
) -> CheckReport:
    """Look at the destination and, where a mirror or its file (`properties`) is named, at the source.

    Trouble with a cluster is a line, not an exception; `on_line` hears of each line as it is known. The exit code is
    0, 6 when a cluster does not answer or refuses us, 3 when something else would be refused.

    Raises:
        UsageError: a property is not understood.
        RefusedError: `properties` hold a secret in clear.
        UnreachableError: a secret of the destination's properties has no value here.
    """
    sheet = Sheet(on_line)
    given, settings = (None, Settings()) if properties is None else _given(properties)
    with ClusterClient(client_config(destination_properties).as_destination()) as client:
        found = _reach(sheet, DESTINATION, client)
        if found is not None:
            _check_cluster(sheet, DESTINATION, client, found, Role.DESTINATION)
            if expect_cluster_id is not None:
                same = found.cluster_id == expect_cluster_id
                said = "as expected" if same else f"expected {expect_cluster_id} (--expect-cluster-id)"
                sheet.add(DESTINATION, "expected cluster", same, f"{found.cluster_id}: {said}", "check the address")
            operations = _check_rights(sheet, client)
            record, topics, state = _remembered(sheet, client, mirror)
            if operations is not None:
                _check_filling(sheet, client.config, operations, record, topics)
            if state.mirrors:
                check_powers(sheet, client, state, mirror)
            if record is not None:
                settings = stored_settings(record.settings)
            if record is not None or given is not None:
                _check_own_rights(sheet, client, settings, topics, destination_properties)
        else:
            record, topics = None, ()
        source = given if given is not None else record.source if record is not None else None
        destination_id = found.cluster_id if found is not None else None
        if source is not None:
            groups = _check_source(sheet, source, record, destination_id, topics, settings, client)
            if settings.sync_group_offsets_enabled and found is not None:
                with sheet.catching(DESTINATION, "rights on groups"):
                    _check_groups(sheet, DESTINATION, client, groups, "READ")
        if record is not None:
            with sheet.catching(SOURCE, "blocked producers"), closing(StateStore(client.config)) as store:
                _check_blocked(sheet, store, record)
            with sheet.catching(DESTINATION, "rights on topics"):
                _check_topics(sheet, DESTINATION, client, [topic.topic for topic in topics], _NEEDED_TO_WRITE)
            with sheet.catching(DESTINATION, "trimming logs"):
                _check_trimming(sheet, client, [topic.topic for topic in topics])
    return sheet.report()


def _reach(sheet: Sheet, cluster: str, client: ClusterClient) -> ClusterMetadata | None:
    found = None
    with sheet.catching(cluster, "reachable"):
        found = client.metadata([], timeout=REACH_TIMEOUT_S)
        brokers = ", ".join(f"{broker.host}:{broker.port}" for broker in found.brokers.values())
        sheet.add(cluster, "reachable", True, f"cluster {found.cluster_id}, brokers {brokers}", "")
    return found


def _check_cluster(sheet: Sheet, cluster: str, client: ClusterClient, found: ClusterMetadata, role: Role) -> None:
    for broker in found.brokers.values():
        what = f"broker {broker.node_id}"
        with sheet.catching(cluster, what):
            version = broker_version(client, broker.node_id, broker.host, broker.port, role)
            sheet.add(cluster, what, version.is_supported, f"{version.address}: {version}", too_old(role))


def _check_rights(sheet: Sheet, client: ClusterClient) -> frozenset[int] | None:
    """Return what we may do on the destination, empty when it is not told, None when there is no answer."""
    operations: frozenset[int] | None = None
    with sheet.catching(DESTINATION, "rights on cluster"):
        operations = cluster_operations(client)
        missing = missing_operations(operations, _NEEDED_ON_CLUSTER)
        if missing:
            said = f"we lack {', '.join(missing)}; it is enough to have it on the topics that are to be created"
            sheet.warn(DESTINATION, "rights on cluster", said, grant_line(client.config, ("CREATE",), "--cluster"))
        else:
            said = f"we have {', '.join(_NEEDED_ON_CLUSTER)}"
            if not operations:
                said = "unknown without DESCRIBE on the cluster; rights on topics may be enough"
            sheet.add(DESTINATION, "rights on cluster", True, said, "")
    return operations


def _given(properties: Mapping[str, str]) -> tuple[dict[str, str], Settings]:
    source, settings = checked_properties(properties)
    return source, parse_settings(settings)


def _check_own_rights(
    sheet: Sheet,
    client: ClusterClient,
    settings: Settings,
    topics: tuple[TopicRecord, ...],
    properties: Mapping[str, str],
) -> None:
    """Tell what kmirror lacks on what is its own, how mirror topics are protected, and what is needed at least."""
    with sheet.catching(DESTINATION, "kmirror's own"):
        for name, missing in lacking_on_own(client).items():
            ids = name == OWN_TRANSACTIONAL_IDS
            resource = f"--transactional-id {name} --resource-pattern-type prefixed" if ids else f"--topic {name}"
            sheet.add(
                DESTINATION,
                f"rights on transactional ids {name}*" if ids else f"rights on topic {name}",
                False,
                f"we lack {', '.join(missing)}",
                grant_line(client.config, missing, resource),
                Reason.NOT_AUTHORIZED,
            )
    names = [topic.topic for topic in topics]
    with sheet.catching(DESTINATION, "protection"):
        store = StateStore(client.config)
        try:
            state = store.read()
        finally:
            store.close()
        denied = {topic.topic: state.rights(topic.mirror, topic.topic).denied for topic in topics}
        view = protection_view(client, settings, denied)
        if view.hint:
            sheet.warn(DESTINATION, "protection", view.message, view.hint)
        else:
            sheet.add(DESTINATION, "protection", True, view.message, "")
    with sheet.catching(DESTINATION, "least rights"):
        prefixed = [settings.topic_prefix + name for name in settings.topics_include.names]
        _least_rights(sheet, DESTINATION, client, destination_grants(settings, names or prefixed))


def _least_rights(sheet: Sheet, cluster: str, client: ClusterClient, grants: tuple[Grant, ...]) -> None:
    lines = grant_lines(client, grants)
    if lines:
        said = "\n".join(["rights that kmirror needs here (commands for an administrator):", *lines])
        sheet.add(cluster, "least rights", True, said, "")


def _check_filling(
    sheet: Sheet,
    config: ClientConfig,
    operations: frozenset[int],
    record: MirrorRecord | None,
    topics: tuple[TopicRecord, ...],
) -> None:
    """Tell how the lanes will fill offsets at which the source shows nothing."""
    if any(OPERATIONS[name] in operations for name in _EITHER_FOR_MARKERS):
        sheet.add(DESTINATION, "filling offsets", True, "by markers", "")
        return
    known = (
        "neither ALTER nor CLUSTER_ACTION on the cluster is granted"
        if operations
        else "unless ALTER or CLUSTER_ACTION on the cluster is granted, which is unknown without DESCRIBE on it"
    )
    ids = _filling_ids(record.name if record is not None else "MIRROR")
    sheet.warn(
        DESTINATION,
        "filling offsets",
        f"by empty transactions (slow: about 100 offsets a second per partition) ({known}); whether WRITE on "
        f"the transactional ids {ids}* is granted cannot be known from here",
        "\n".join(
            (
                "to fill by markers:",
                grant_line(config, ("ALTER",), "--cluster"),
                "to fill by empty transactions:",
                grant_line(config, ("WRITE", "DESCRIBE"), f"--transactional-id {ids} --resource-pattern-type prefixed"),
                grant_line(config, ("WRITE",), _topic_options([topic.topic for topic in topics])),
            )
        ),
    )


def _filling_ids(mirror: str) -> str:
    """Return what the transactional ids of all of a mirror's lanes begin with."""
    return filling_transactional_id(mirror, 0).removesuffix("0")


def _check_trimming(sheet: Sheet, client: ClusterClient, topics: list[str]) -> None:
    lacking = sorted(missing_rights(client, topics, _NEEDED_TO_TRIM))
    needed = ", ".join(_NEEDED_TO_TRIM)
    if lacking:
        sheet.warn(
            DESTINATION,
            "trimming logs",
            f"we lack {needed} on {len(lacking)} of {counted(len(topics), 'topic')}: it is needed where the log is to "
            "begin above 0, now or later; for compact-only topics ALTER_CONFIGS too",
            grant_line(client.config, ("DELETE",), _topic_options(lacking)),
        )
    elif topics:
        sheet.add(DESTINATION, "trimming logs", True, f"we have {needed} on {counted(len(topics), 'topic')}", "")


def _topic_options(topics: list[str]) -> str:
    """Name topics as kafka-acls takes them; too many, or none yet, are left to be filled in."""
    if not 0 < len(topics) <= _TOPICS_IN_HINT:
        return "--topic TOPIC"
    return " ".join(f"--topic {topic}" for topic in topics)


def _remembered(
    sheet: Sheet, client: ClusterClient, mirror: str | None
) -> tuple[MirrorRecord | None, tuple[TopicRecord, ...], State]:
    record: MirrorRecord | None = None
    topics: tuple[TopicRecord, ...] = ()
    state = State()
    store = StateStore(client.config)
    try:
        with sheet.catching(DESTINATION, "kmirror's memory"):
            state = store.read()
            if mirror is not None:
                record = require_mirror(state, mirror)
                topics = tuple(one for one in state.topics(mirror) if one.desired is not DesiredState.STOPPED)
            names = ", ".join(known.name for known in state.mirrors) or "none"
            sheet.add(DESTINATION, "kmirror's memory", True, f"mirrors stored here: {names}", "")
    finally:
        store.close()
    return record, topics, state


def _check_source(
    sheet: Sheet,
    properties: Mapping[str, str],
    record: MirrorRecord | None,
    destination_id: str | None,
    topics: tuple[TopicRecord, ...],
    settings: Settings,
    destination: ClusterClient,
) -> list[str]:
    """Look at the source, and return the groups there that are mirrored, as far as they are seen."""
    groups: list[str] = []
    with sheet.catching(SOURCE, "reachable"):
        config = client_config(properties)
        with ClusterClient(config) as client:
            found = _reach(sheet, SOURCE, client)
            if found is None:
                return groups
            _check_cluster(sheet, SOURCE, client, found, Role.SOURCE)
            if settings.sync_group_offsets_enabled:
                with sheet.catching(SOURCE, "rights on groups"):
                    groups = _check_source_groups(sheet, client, settings)
            another = found.cluster_id != destination_id
            sheet.add(
                SOURCE,
                "another cluster",
                another,
                "it is not the destination"
                if another
                else f"source and destination are the same cluster, {found.cluster_id}",
                "bootstrap.servers in the mirror's file names the source, --bootstrap-server the destination",
                Reason.LOOP,
            )
            if record is not None:
                with sheet.catching(SOURCE, "same cluster as before"):
                    require_same_cluster(record.source_cluster_id, found.cluster_id)
                    sheet.add(SOURCE, "same cluster as before", True, f"{found.cluster_id}, as recorded", "")
            with sheet.catching(SOURCE, "rights on topics"):
                _check_topics(sheet, SOURCE, client, [topic.source_topic for topic in topics], _NEEDED_TO_READ)
            if settings.sync_topic_acls_enabled:
                with sheet.catching(SOURCE, "ACLs"):
                    has = len(describe_acls(client)) if has_authorizer(client) else 0
                    sheet.add(SOURCE, "ACLs", True, f"{has} to choose from, as sync.topic.acls.enabled says", "")
            if destination_id is not None:
                check_clients(sheet, client, destination, settings)
            with sheet.catching(SOURCE, "least rights"):
                names = [topic.source_topic for topic in topics] or list(settings.topics_include.names)
                memory = client.metadata([STATE_TOPIC]).topics.get(STATE_TOPIC)
                has_mirrors = memory is not None and not memory.error_code
                _least_rights(sheet, SOURCE, client, source_grants(settings, names, has_mirrors=has_mirrors))
            with sheet.catching(SOURCE, "schemas"):
                _check_schemas(sheet, client, {topic.source_topic for topic in topics})

    return groups


def _check_blocked(sheet: Sheet, store: StateStore, record: MirrorRecord) -> None:
    """Tell of topics to which the source lets nobody write since a promote or switchover."""
    config = client_config(record.source)

    def source_acls() -> Collection[AclBinding]:
        with ClusterClient(config) as source:
            return describe_acls(source)

    for found in blocked_views(store.read(), record.name, admin_options(config), source_acls):
        if found.is_wanted:
            sheet.warn(SOURCE, "blocked producers", found.message, found.hint)
        else:
            sheet.add(SOURCE, "blocked producers", False, found.message, found.hint)


def _check_source_groups(sheet: Sheet, client: ClusterClient, settings: Settings) -> list[str]:
    groups = [group for group in visible_groups(client) if settings.selects_group(group)]
    if groups:
        _check_groups(sheet, SOURCE, client, groups, "DESCRIBE")
    elif not has_authorizer(client):
        sheet.add(SOURCE, "rights on groups", True, "there is no group to sync offsets of", "")
    else:
        said = "no group is visible to sync offsets of: there is none, or kmirror lacks DESCRIBE on groups"
        sheet.warn(SOURCE, "rights on groups", said, grant_line(client.config, ("DESCRIBE",), "--group '*'"))
    return groups


def _check_groups(sheet: Sheet, cluster: str, client: ClusterClient, groups: list[str], needed: str) -> None:
    some = groups[:_GROUPS_ASKED]
    lacking = groups_lacking(client, some, needed)
    if lacking:
        names = " ".join(f"--group {shlex.quote(group)}" for group in lacking[:_TOPICS_IN_HINT])
        sheet.add(
            cluster,
            "rights on groups",
            False,
            f"we lack {needed} on {len(lacking)} of {counted(len(some), 'group')}: their offsets cannot be synced",
            grant_line(client.config, (needed,), names),
            Reason.NOT_AUTHORIZED,
        )
    elif some:
        sheet.add(cluster, "rights on groups", True, f"we have {needed} on {counted(len(some), 'group')}", "")


def _check_schemas(sheet: Sheet, client: ClusterClient, mirrored: Collection[str]) -> None:
    """Warn of a schema registry whose topic stays behind: ids in records are copied as they are."""
    found = client.metadata([_SCHEMAS]).topics.get(_SCHEMAS)
    if found is None or found.error_code or _SCHEMAS in mirrored:
        return
    sheet.warn(
        SOURCE,
        "schemas",
        f"the source has a topic {_SCHEMAS}, used by schema registries, and it is not mirrored: schema ids in"
        " records are copied unchanged, so consumers of the mirror need a registry that has them",
        f"mirror it too (kmirror add --topics {_SCHEMAS}) for a registry at the destination, or let consumers there"
        " use the source's registry",
    )


def _check_topics(
    sheet: Sheet, cluster: str, client: ClusterClient, topics: list[str], needed: tuple[str, ...]
) -> None:
    lacking = missing_rights(client, topics, needed)
    for topic, missing in sorted(lacking.items()):
        sheet.add(
            cluster,
            f"rights on topic {topic}",
            False,
            f"we lack {', '.join(missing)}",
            grant_line(client.config, missing, f"--topic {topic}"),
            Reason.NOT_AUTHORIZED,
        )
    if topics and not lacking:
        sheet.add(
            cluster, "rights on topics", True, f"we have {', '.join(needed)} on {counted(len(topics), 'topic')}", ""
        )
