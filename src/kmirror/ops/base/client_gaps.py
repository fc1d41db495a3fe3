"""What clients of a mirror's source lack at the destination, for people and for scripts. Pure: no I/O, no clock.

Unknown parts are None, and `unknown` says why; an empty list means that nothing is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kmirror.cluster.protocol.acl_binding import ANY_HOST, PatternType, ResourceType
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.acl_commands import PREFIXED, operation_flag
from kmirror.columns import TEXT, TIME, Column, Type, columns_of, document, list_of, object_of, one_of, shown, table_row
from kmirror.commands import Arguments, command_line, option, options
from kmirror.settings.durations import format_duration
from kmirror.sync.client_rights import LackingRight
from kmirror.words import at_time, counted, listed

_MOST_NAMED = 5
_FLAGS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}
_NOUNS = {ResourceType.TOPIC: "topic", ResourceType.GROUP: "group", ResourceType.TRANSACTIONAL_ID: "transactional id"}


def _part(kind: str) -> Column[Quota]:
    def name(quota: Quota) -> str | None:
        return dict(quota.entity).get(kind)

    key = "user" if kind == "user" else "clientId"
    return Column(key, TEXT.null_when(f"it is not about a {kind}"), f"the {kind}", name)


_RIGHTS: tuple[Column[tuple[LackingRight, str]], ...] = (
    Column("principal", TEXT, "who lacks it", lambda row: row[0].principal),
    Column("host", TEXT, "the host from which it was granted; `*` is any host", lambda row: row[0].host),
    Column("operation", TEXT, "what cannot be done: READ or WRITE", lambda row: row[0].operation),
    Column("resourceType", one_of("resource type", ResourceType), "on what", lambda row: row[0].resource_type),
    Column("patternType", one_of("pattern", PatternType), "how to read names", lambda row: row[0].pattern_type),
    Column("names", list_of(TEXT), "names at the destination, or prefixes", lambda row: row[0].names),
    Column("command", TEXT, "the command that grants it", lambda row: row[1]),
)
_QUOTAS: tuple[Column[Quota], ...] = (
    _part("user"),
    _part("client-id"),
    Column("key", TEXT, "what is limited", lambda quota: quota.key),
    Column("value", Type("number", "number", minimum=0), "its value at the source", lambda quota: quota.value),
)
_UNKNOWN = "unknown; see `unknown`"


@table_row
class ClientGaps:
    """What the source's clients had there and lack here; each with the time at which it was read from the source.

    `commands` grant the rights, one for each. `warned` are further sentences for people.
    """

    found_ms: int
    rights: tuple[LackingRight, ...] | None = shown(
        list_of(object_of(_RIGHTS)).null_when(_UNKNOWN),
        "rights that principals have at the source by its ACLs and lack here; super users are unknown",
        default=None,
        value=lambda gaps: None if gaps.rights is None else zip(gaps.rights, gaps.commands, strict=True),
    )
    rights_as_of_ms: int | None = shown(
        TIME.null_when(_UNKNOWN), "when the source's ACLs were read", key="rightsAsOf", default=None
    )
    quotas: tuple[Quota, ...] | None = shown(
        list_of(object_of(_QUOTAS)).null_when(_UNKNOWN),
        "quotas of users and client ids at the source that differ or are missing here",
        default=None,
    )
    quotas_as_of_ms: int | None = shown(
        TIME.null_when(_UNKNOWN), "when the source's quotas were read", key="quotasAsOf", default=None
    )
    scram_users: tuple[str, ...] | None = shown(
        list_of(TEXT).null_when(_UNKNOWN), "SCRAM users of the source without a credential here", default=None
    )
    scram_users_as_of_ms: int | None = shown(
        TIME.null_when(_UNKNOWN), "when the source's users were read", key="scramUsersAsOf", default=None
    )
    deferred: tuple[str, ...] = shown(
        list_of(TEXT),
        "commands that create ACLs of the source that stay deferred while mirror topics are left",
        default=(),
    )
    unknown: tuple[str, ...] = shown(list_of(TEXT), "what is unknown, and why, as sentences", default=())
    commands: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the gaps as `--json` prints them."""
        return document(CLIENTS, self)


CLIENTS: tuple[Column[ClientGaps], ...] = columns_of(ClientGaps)


def grant_command(right: LackingRight, cluster: Arguments) -> str:
    """Return the command with which an administrator grants a right; `cluster` as of `admin_options`."""
    return command_line(
        "kafka-acls",
        *cluster,
        "--add",
        *option("--allow-principal", right.principal),
        *(() if right.host == ANY_HOST else option("--allow-host", right.host)),
        *option("--operation", operation_flag(right.operation)),
        *options(_FLAGS[right.resource_type], right.names),
        *(PREFIXED if right.pattern_type is PatternType.PREFIXED else ()),
    )


def gap_sentences(gaps: ClientGaps) -> Iterator[str]:
    """Yield the gaps in sentences for people."""
    together: defaultdict[tuple[str, str, bool, tuple[str, ...]], list[str]] = defaultdict(list)
    for right in gaps.rights or ():
        noun, is_prefix = _NOUNS[right.resource_type], right.pattern_type is PatternType.PREFIXED
        holder = right.principal if right.host == ANY_HOST else f"{right.principal} from {right.host}"
        together[right.operation, noun, is_prefix, right.names].append(holder)
    for (operation, noun, is_prefix, names), who in together.items():
        kind = f"{noun} prefix" if is_prefix else noun
        many = counted(len(names), kind, f"{kind}es" if is_prefix else None)
        lacks = "lacks" if len(who) == 1 else "lack"
        yield (
            f"{_some(who)} {lacks} {operation} on {many} here ({_some(names)}), granted at the source"
            f"{_as_of(gaps.rights_as_of_ms, gaps.found_ms)}; `--json` has commands that grant it"
        )
    if gaps.quotas:
        are = "is" if len(gaps.quotas) == 1 else "are"
        missing = f"{counted(len(gaps.quotas), 'quota')} of the source {are} missing or different here"
        yield f"{missing} ({_some([str(one) for one in gaps.quotas])}){_as_of(gaps.quotas_as_of_ms, gaps.found_ms)}"
    if gaps.scram_users:
        users = f"{counted(len(gaps.scram_users), 'SCRAM user')} of the source cannot log in here"
        yield f"{users} ({_some(gaps.scram_users)}){_as_of(gaps.scram_users_as_of_ms, gaps.found_ms)}; create them here"
    yield from gaps.warned


def _some(names: Sequence[str]) -> str:
    return listed(names, _MOST_NAMED)


def _as_of(seen_ms: int | None, found_ms: int) -> str:
    if seen_ms is None or seen_ms >= found_ms:
        return ""
    return f" as of {at_time(seen_ms)}, {format_duration(found_ms - seen_ms)} ago"
