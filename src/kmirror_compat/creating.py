"""`create --from-mm2` and `create --from-link`: create mirrors from another tool's file, with a row for each key.

If any key is refused, nothing is created; the rows say what to do about each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import literal_secrets
from kmirror.errors import KmirrorError, RefusedError, UnreachableError, UsageError
from kmirror.ops.base.context import Destination, cluster_id_of
from kmirror.ops.base.converted_keys import KeyOutcome, KeyResult, KeyRow, rows_of
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.mirrors.create import check_name, create
from kmirror.words import counted
from kmirror_compat.conversion import Conversion, link_conversion, own_keys
from kmirror_compat.mirrormaker_file import Flow, MirrorMakerFile

#: How long to wait for a cluster of the file.
_ASK_S = 5.0
_SECRET = "plaintext secrets are not stored"
_SECRET_HINT = "write ${env:NAME}, ${file:PATH:KEY} or ${dir:PATH:KEY} instead"


def create_from_link(
    destination: Destination,
    mirror: str,
    properties: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> VerbResult:
    """Create a mirror from a cluster link's file. Raises as `create`, except for keys, which have rows."""
    found = _checked(link_conversion(properties, overrides), overrides)
    return _created(destination, {mirror: found}, overrides, (), if_not_exists=if_not_exists, dry_run=dry_run)


def create_from_mm2(
    destination: Destination,
    properties: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    mirror: str | None = None,
    target: str | None = None,
    if_not_exists: bool = False,
    dry_run: bool = False,
) -> VerbResult:
    """Create a mirror from each enabled flow of a MirrorMaker 2 file whose target is this destination.

    `target` is the destination's alias in the file; without it each target is asked for its cluster id. `mirror` names
    the mirror if there is only one; otherwise mirrors are named after their flows.

    Raises:
        UsageError: it is not such a file, or has no such alias.
        RefusedError: no enabled flow leads here, or several do and `mirror` is given.
        KmirrorError: as `create`.
    """
    file = MirrorMakerFile(properties)
    if target is not None and target not in file.clusters:
        raise UsageError(f"{target} is not a cluster in this file", f"its clusters are {', '.join(file.clusters)}")
    why_not = {alias: _why_not(destination, file, alias, target) for alias in {flow.target for flow in file.flows}}
    flows = [replace(flow, why_not=flow.why_not or why_not[flow.target]) for flow in file.flows]
    chosen = [flow for flow in flows if flow.why_not is None]
    if not chosen:
        why = "; ".join(f"{flow.name}: {flow.why_not}" for flow in flows) or "the file has no flow A->B.enabled=true"
        raise RefusedError(
            f"no flow in the file is to be mirrored to this destination: {why}",
            "--target ALIAS says which cluster of the file this destination is",
        )
    if mirror is not None and len(chosen) > 1:
        raise RefusedError(
            f"--mirror names one mirror, but these flows lead here: {', '.join(flow.name for flow in chosen)}",
            "omit --mirror: mirrors are then named after their flows, such as A-to-B",
        )
    found = {mirror or flow.mirror: _checked(file.conversion(flow), overrides) for flow in chosen}
    return _created(
        destination, found, overrides, _rest(file, flows, found), if_not_exists=if_not_exists, dry_run=dry_run
    )


def _created(
    destination: Destination,
    found: Mapping[str, Conversion],
    overrides: Mapping[str, str],
    rest: Sequence[KeyRow],
    *,
    if_not_exists: bool,
    dry_run: bool,
) -> VerbResult:
    keys = (*(row for name, one in found.items() for row in rows_of(name, one.key_results)), *rest)
    names = ",".join(found)
    for name in found:
        check_name(name)
    if refused := [key_result.key for one in found.values() for key_result in one.refused]:
        message = f"nothing was created: {counted(len(refused), 'key')} refused: {', '.join(dict.fromkeys(refused))}"
        refusal = RefusedError(message, "correct the file as the rows say, and run the command again")
        return replace(VerbResult.failed("create", names, refusal, dry_run=dry_run), keys=keys)
    rows: list[TopicResult] = []
    # a dry run of all first, so that a refusal is found before the first mirror is created
    for is_rehearsal in [True] if dry_run else [True, False]:
        rows = []
        for name, one in found.items():
            try:
                done = create(
                    destination,
                    name,
                    {**one.properties, **one.at_creation},
                    overrides,
                    if_not_exists=if_not_exists,
                    dry_run=is_rehearsal,
                )
                rows += done.results
            except KmirrorError as error:
                if isinstance(error, UnreachableError) and not rows:
                    raise
                rows.append(TopicResult(None, None, Outcome.REFUSED, error.message, error.reason, hint=error.hint))
        if any(row.result is Outcome.REFUSED for row in rows):
            break
    return replace(VerbResult.of("create", names, rows, dry_run=dry_run), keys=keys)


def _checked(conversion: Conversion, overrides: Mapping[str, str]) -> Conversion:
    """Return a conversion without the keys that --config overrides, and with plaintext secrets refused."""
    for key in overrides:
        conversion = conversion.without(own_keys(key), f"--config {key} overrides it")
    return conversion.refusing(literal_secrets(conversion.properties), _SECRET, _SECRET_HINT)


def _why_not(destination: Destination, file: MirrorMakerFile, alias: str, target: str | None) -> str | None:
    """Return why flows to a cluster of the file do not lead to this destination, None if they do."""
    if target is not None:
        return None if alias == target else f"its target is not {target}"
    try:
        with ClusterClient(client_config(file.login(alias))) as client:
            found = cluster_id_of(client, _ASK_S)
    except KmirrorError as error:
        return f"whether {alias} is this destination is unknown: {error.message}"
    return None if found == destination.cluster_id else f"{alias} is cluster {found}, not this destination"


def _rest(file: MirrorMakerFile, flows: Iterable[Flow], found: Mapping[str, Conversion]) -> list[KeyRow]:
    """Return rows for the keys that concern none of the mirrors."""
    results = [result for flow in flows if flow.why_not is not None for result in file.without(flow, flow.why_not)]
    covered = {result.key for one in found.values() for result in one.key_results} | {one.key for one in results}
    results += [
        KeyResult(key, KeyOutcome.NO_MEANING, "it is about clusters or flows of which no mirror is made")
        for key in file.properties
        if key not in covered
    ]
    return list(rows_of(None, results))
