"""`create`: store a mirror.

The connection is tried before it is stored: the source must answer with these properties, be new enough, and not be the
destination itself. Secrets are stored as references, never resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import WrongClusterError
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import literal_secrets
from kmirror.cluster.security.trust import require_references_that_count
from kmirror.errors import ExitCode, Reason, RefusedError, UsageError
from kmirror.ops.base.context import (
    Destination,
    actor,
    change,
    cluster_id_of,
    naming_cluster,
    now_ms,
    own_event,
    require_own_brokers,
    require_same_cluster,
)
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.trust_checks import refusal_once_stored, unlimited_sources
from kmirror.ops.base.versions import Role, require_supported
from kmirror.ops.mirrors.replication import replication_of, weak_replication
from kmirror.ops.rights.acl_sync import require_possible
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.settings.other_tools import AT_CREATION, DESTINATION_CLUSTER_ID, PAUSED, SOURCE_CLUSTER_ID
from kmirror.settings.parsing import parse_settings, split
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State

LONGEST_NAME = 200

#: Lists that `add` and `remove` extend: a stored list with more than the file is not a difference.
_GROWING = ("topics.include", "topics.exclude")


def create(
    destination: Destination,
    mirror: str,
    properties: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
    *,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> VerbResult:
    """Store a mirror; `properties` is the file of `--mirror-config`, `overrides` each `--config k=v`.

    Raises:
        UsageError: a name, key or value is invalid.
        RefusedError: a plaintext secret, the mirror exists already (with `if_not_exists`: and differs), the source is
            the destination (LOOP), or one of the two is too old.
        UnreachableError: a cluster does not answer or refuses us, or a secret cannot be resolved here.
    """
    check_name(mirror)
    given = {**properties, **(overrides or {})}
    once = {key: given.pop(key).strip() for key in AT_CREATION & given.keys()}
    source, settings = checked_properties(given)
    is_paused = _is_true(PAUSED, once.get(PAUSED, "false"))
    _require_cluster(DESTINATION_CLUSTER_ID, once, "the destination", destination.cluster_id)
    existing = destination.state().mirror(mirror)
    if existing is not None:
        _require_same(existing, source, settings, if_not_exists)
        return _result(mirror, Outcome.NOOP, f"mirror {mirror} already exists and is identical", dry_run)
    require_supported(destination.client, "the destination", Role.DESTINATION)
    parsed = parse_settings(settings)
    require_possible(destination, parsed)
    cluster_id = source_cluster_id(destination, source)
    _require_cluster(SOURCE_CLUSTER_ID, once, "the source", cluster_id)
    record = MirrorRecord(mirror, source, settings, cluster_id, actor(), now_ms(), paused=is_paused)
    warnings = [*_warnings(source), *_replication_warnings(destination, parsed)]
    if dry_run:
        require_own_rights(destination)
        return _result(mirror, Outcome.DONE, f"would create {_described(record)}", dry_run, warnings)

    def decide(state: State) -> Changes:
        found = state.mirror(mirror)
        if found is not None:
            _require_same(found, source, settings, if_not_exists)
            return Changes()
        details = {"sourceClusterId": record.source_cluster_id, "settings": dict(settings)}
        event = own_event(mirror, "create", ExitCode.OK.name, details)
        return Changes((record,), (), (event,))

    destination.store.ensure_topics(parsed.state_replication_factor)
    if not change(destination, mirror, decide):
        return _result(mirror, Outcome.NOOP, f"mirror {mirror} already exists and is identical", dry_run)
    return _result(mirror, Outcome.DONE, f"created {_described(record)}", dry_run, warnings)


def _warnings(source: Mapping[str, str]) -> list[str]:
    """Return what this host's policy says about the properties once they are stored."""
    if refused := refusal_once_stored(source):
        return [f"this host could not use the mirror: {refused}"]
    advice = unlimited_sources(client_config(source))
    return [f"{advice[0]}; {advice[1]}"] if advice else []


def _replication_warnings(destination: Destination, settings: Settings) -> list[str]:
    """Return what is weak about the replication of kmirror's own topics and of new mirror topics."""
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        known = replication_of(destination.client, settings, [])
        brokers = len(destination.client.metadata([]).brokers)
    return [f"{message}; {hint}" for message, hint in weak_replication(known, brokers)]


def check_name(mirror: str) -> None:
    """Raise UsageError unless this is a valid mirror name."""
    if not re.fullmatch("[A-Za-z0-9._-]+", mirror) or mirror in {".", ".."} or len(mirror) > LONGEST_NAME:
        shown = mirror if len(mirror) <= 40 else f"{mirror[:40]}…"
        raise UsageError(
            f"{shown!r} is not a valid mirror name",
            f"use 1 to {LONGEST_NAME} letters, digits, dots, underscores and hyphens",
        )


def checked_properties(
    properties: Mapping[str, str], *, complete: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the source's client properties and the mirror's settings, checked for storing.

    Unless they are `complete`, they are merged with others, and contradictions are not checked.

    Raises:
        UsageError: a key or value is invalid, or two contradict each other; names them.
        RefusedError: there is a plaintext secret, or a reference where none counts; names the keys, never a value.
    """
    secrets = literal_secrets(properties)
    if secrets:
        raise RefusedError(
            f"{', '.join(secrets)}: plaintext secrets are not stored",
            "use a reference instead: ${env:NAME}, ${file:PATH:KEY} or ${dir:PATH:KEY}; it is resolved where it is"
            " used",
        )
    require_references_that_count(properties)
    return split(properties, complete=complete)


def source_cluster_id(destination: Destination, source: Mapping[str, str], known: str | None = None) -> str:
    """Connect to the source and return its cluster id; a mirror of it may have it `known`.

    Raises:
        UsageError: a property is invalid.
        UnreachableError: it does not answer or refuses us, or a secret cannot be resolved here.
        RefusedError: it is the destination itself (LOOP), advertises another cluster's brokers, is not the `known` one
            (SOURCE_CLUSTER_CHANGED), or too old.
    """
    config = client_config(source).expecting(known)
    with naming_cluster("the source", Reason.SOURCE_UNREACHABLE), ClusterClient(config) as client:
        try:
            found = cluster_id_of(client)
        except WrongClusterError as error:
            found = error.found or "unknown"
        if found == destination.cluster_id:
            raise RefusedError(
                f"source and destination are the same cluster, {found}",
                "bootstrap.servers in the mirror's file names the source, --bootstrap-server the destination",
                Reason.LOOP,
            )
        require_same_cluster(known, found)
        require_own_brokers(client, destination.cluster_id)
        require_supported(client, "the source", Role.SOURCE)
    return found


def _require_cluster(key: str, given: Mapping[str, str], what: str, found: str) -> None:
    if given.get(key, found) != found:
        raise RefusedError(f"{what} is cluster {found}, but {key}={given[key]}", f"correct {key}, or the address")


def _is_true(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"invalid value {key}={text}", "use true or false")
    return text.lower() == "true"


def _require_same(existing: MirrorRecord, source: Mapping[str, str], settings: Mapping[str, str], wanted: bool) -> None:
    if not wanted:
        raise RefusedError(
            f"mirror {existing.name} already exists",
            "change it with `kmirror config`; --if-not-exists succeeds if it is identical",
        )
    keys = sorted({*existing.source, *source, *existing.settings, *settings})
    before, after = {**existing.source, **existing.settings}, {**source, **settings}
    different = [key for key in keys if not _is_same(key, before.get(key), after.get(key))]
    if different:
        raise RefusedError(
            f"mirror {existing.name} already exists and differs in {', '.join(different)}",
            "change it with `kmirror config`, or correct the file",
        )


def _is_same(key: str, before: str | None, after: str | None) -> bool:
    if key in _GROWING:
        stored, given = TopicSelector.parse([before] if before else []), TopicSelector.parse([after] if after else [])
        return set(given.patterns) <= set(stored.patterns)
    return before == after


def _described(record: MirrorRecord) -> str:
    place = f"mirror {record.name} of cluster {record.source_cluster_id} at {record.source['bootstrap.servers']}"
    settings = ", ".join(f"{key}={value}" for key, value in sorted(record.settings.items()))
    return (f"{place}, with {settings}" if settings else place) + (", paused" if record.paused else "")


def _result(mirror: str, outcome: Outcome, message: str, dry_run: bool, warnings: Iterable[str] = ()) -> VerbResult:
    rows = [TopicResult(None, None, outcome, message)]
    return VerbResult.of("create", mirror, rows, dry_run=dry_run, warnings=warnings)
