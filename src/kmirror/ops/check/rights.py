"""Checks of rights: how mirror topics are protected, and the least rights that kmirror needs on either cluster.

The least rights are those that `create`, `add`, `run`, `verify` and `failback` need with these settings. Rights implied
by another one are not listed: READ and WRITE imply DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kmirror.beside import beside
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import EVERYONE, AclBinding
from kmirror.cluster.rights.acl_commands import Grant, admin_options
from kmirror.cluster.rights.acls import NoAuthorizerError, describe_acls
from kmirror.commands import option
from kmirror.engine.archive.archive_topic import archive_prefix
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.rights.protection import ProbeCache, decide_protection, survey
from kmirror.settings.table import Settings
from kmirror.state.internal_topics import OWN_IDS_GRANT, OWN_TOPICS_GRANT, STATE_TOPIC
from kmirror.sync.acl_changes import producers_of
from kmirror.words import counted, visible

_ON_MIRROR_TOPICS = ("CREATE", "READ", "WRITE", "ALTER", "ALTER_CONFIGS", "DELETE")
_ON_ARCHIVES = ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS")
_ON_SOURCE_TOPICS = ("READ", "DESCRIBE_CONFIGS")
_MOST_TOPICS = 20
_MOST_WRITERS = 10


@dataclass(frozen=True, slots=True)
class ProtectionView:
    """How mirror topics are protected, in a sentence; with a `hint` if more protection is wanted and possible."""

    message: str
    hint: str | None


def destination_grants(
    settings: Settings, topics: Collection[str], to_mark: tuple[str, ...] = ("ALTER", "CLUSTER_ACTION")
) -> tuple[Grant, ...]:
    """Return the least rights at the destination; `topics` are its mirror topics, as far as they are known.

    Each of `to_mark` on the cluster allows us to write markers.
    """
    changes_acls = settings.read_only == "enforce" or settings.sync_topic_acls_enabled
    cluster: tuple[str, ...] = ("ALTER",) if changes_acls else ("CLUSTER_ACTION", "DESCRIBE")
    if changes_acls and "ALTER" not in to_mark:
        cluster += ("CLUSTER_ACTION",)
    if settings.sync_quotas_enabled:
        cluster += ("ALTER_CONFIGS",)
    elif settings.sync_group_offsets_enabled:
        cluster += ("DESCRIBE_CONFIGS",)
    # a topic that is deleted and created again takes along what any group has committed
    on_groups = ("READ", "DELETE") if settings.sync_group_offsets_enabled else ("READ",)
    return (
        OWN_TOPICS_GRANT,
        OWN_IDS_GRANT,
        *(Grant(option("--topic", name), ("CREATE", "WRITE")) for name in beside("mirrormaker_topics")(settings)),
        *(Grant(option("--topic", name), _ON_MIRROR_TOPICS) for name in _named(topics)),
        *(Grant(option("--topic", archive_prefix(name)), _ON_ARCHIVES, prefixed=True) for name in _named(topics)),
        Grant(("--cluster",), cluster),
        Grant(("--group", "*"), on_groups),
    )


def source_grants(settings: Settings, topics: Collection[str], *, has_mirrors: bool = False) -> tuple[Grant, ...]:
    """Return the least rights at the source; `topics` are the mirrored ones, as far as they are known.

    With `has_mirrors` it may itself be the destination of mirrors, whose stored state is read.
    """
    stored = [Grant(option("--topic", STATE_TOPIC), ("READ",))] if has_mirrors else []
    reads_groups = settings.sync_group_offsets_enabled or settings.emit_checkpoints_enabled
    groups = [Grant(("--group", "*"), ("DESCRIBE",))] if reads_groups else []
    cluster = []
    if settings.sync_topic_acls_enabled or settings.compare_scram_users_enabled:
        cluster.append("DESCRIBE")
    if settings.sync_quotas_enabled:
        cluster.append("DESCRIBE_CONFIGS")
    on_cluster = [Grant(("--cluster",), tuple(cluster))] if cluster else []
    return (
        *(Grant(option("--topic", name), _ON_SOURCE_TOPICS) for name in _named(topics)),
        *groups,
        *on_cluster,
        *stored,
    )


def grant_lines(client: ClusterClient, grants: Iterable[Grant]) -> list[str]:
    """Return the commands that grant them to our principal; none if the cluster has no authorizer."""
    return [one.line(client.config) for one in grants] if has_authorizer(client) else []


def has_authorizer(client: ClusterClient) -> bool:
    """Return whether the cluster has an authorizer, as it has if it denies us to list ACLs. Raises UnreachableError."""
    try:
        describe_acls(client)
    except NoAuthorizerError:
        return False
    except KmirrorError as error:
        if error.reason is not Reason.NOT_AUTHORIZED:
            raise
    return True


def protection_view(
    client: ClusterClient, settings: Settings, topics: Mapping[str, Collection[AclBinding]]
) -> ProtectionView:
    """Return how mirror topics are protected; `topics` with the denials that kmirror made for each.

    Found out as the engine does it: with ACLs for names that no topic has, which are deleted immediately.
    """
    if settings.read_only == "detect":
        return ProtectionView("detected only (read.only=detect): foreign writes are detected afterwards", None)
    ground = survey(client, topics, ProbeCache())
    if ground.detected_only is not None:
        message = f"detected only: {ground.detected_only}"
        writers = sorted(producers_of(ground.acls, topics) - {EVERYONE} - ground.own.principals)
        everyone = any(one.principal == EVERYONE for one in ground.acls)
        if ground.acls and topics and not everyone:
            named = ", ".join(map(visible, writers[:_MOST_WRITERS])) + (" …" if len(writers) > _MOST_WRITERS else "")
            message += f"; as ACLs are now, {named or 'only super users'} may write"
        return ProtectionView(message, ground.hint if ground.acls or ground.own.principals else None)
    found = [
        decide_protection(ground, topic, tuple(ours), admin_options(client.config)) for topic, ours in topics.items()
    ]
    weak = [one for one in found if one.detected_only is not None]
    if weak:
        names = ", ".join(visible(one.topic) for one in weak[:_MOST_TOPICS])
        return ProtectionView(f"detected only on {names}: {weak[0].detected_only}", weak[0].hint)
    many = f" ({counted(len(found), 'topic')})" if found else ""
    return ProtectionView(f"enforced: ACLs allow only kmirror and super users to write{many}", None)


def _named(topics: Collection[str]) -> list[str]:
    return sorted(topics) if 0 < len(topics) <= _MOST_TOPICS else ["TOPIC"]
