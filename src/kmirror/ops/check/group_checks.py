"""Checks of consumer groups: our rights on them, and how long the destination keeps their offsets."""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.rights.authorized import groups_lacking
from kmirror.commands import options
from kmirror.errors import Reason
from kmirror.ops.check.findings import Findings
from kmirror.ops.check.rights import has_authorizer
from kmirror.ops.groups.expiry import OFFSETS_RETENTION, offsets_retention
from kmirror.settings.durations import format_duration
from kmirror.settings.table import Settings
from kmirror.words import counted

#: The line about how long offsets of groups are kept.
KEEPING = "keeping group offsets"
#: The most groups whose rights are checked one by one, and that a hint names.
_GROUPS_ASKED, _GROUPS_IN_HINT = 200, 20


def check_source_groups(findings: Findings, client: ClusterClient, settings: Settings) -> list[str]:
    """Check rights on the source's groups, and return those that are visible and whose offsets are synced."""
    listed = ClusterGroups(client).listed(whole=False, passes_silent=True)
    groups = sorted(filter(settings.selects_group, listed))
    if groups:
        check_groups(findings, client, groups, "DESCRIBE")
    elif not has_authorizer(client):
        findings.ok("rights on groups", "there is no group to sync offsets of")
    else:
        message = "no group is visible to sync offsets of: there is none, or kmirror lacks DESCRIBE on groups"
        findings.warn("rights on groups", message, grant_line(client.config, ("DESCRIBE",), "--group", "*"))
    return groups


def check_groups(findings: Findings, client: ClusterClient, groups: list[str], needed: str) -> None:
    """Check whether we have one right on groups."""
    some = groups[:_GROUPS_ASKED]
    lacking = groups_lacking(client, some, needed)
    if lacking:
        names = options("--group", lacking[:_GROUPS_IN_HINT])
        findings.fail(
            "rights on groups",
            f"we lack {needed} on {len(lacking)} of {counted(len(some), 'group')}: their offsets cannot be synced",
            grant_line(client.config, (needed,), *names),
            Reason.NOT_AUTHORIZED,
        )
    elif some:
        findings.ok("rights on groups", f"we have {needed} on {counted(len(some), 'group')}")


def check_dropping_offsets(findings: Findings, client: ClusterClient, groups: list[str]) -> None:
    """Warn if offsets that the source drops cannot be deleted here."""
    some = groups[:_GROUPS_ASKED]
    if lacking := groups_lacking(client, some, "DELETE"):
        findings.warn(
            "rights on groups",
            f"we lack DELETE on {len(lacking)} of {counted(len(some), 'group')}: offsets that the source no longer"
            " has remain until they expire",
            grant_line(client.config, ("DELETE",), *options("--group", lacking[:_GROUPS_IN_HINT])),
        )


def check_offsets_retention(findings: Findings, client: ClusterClient, settings: Settings) -> None:
    """Check how long the destination keeps offsets of groups without members, and so of all synced groups."""
    retention = offsets_retention(client)
    kept, again = (format_duration(int(seconds * 1000)) for seconds in (retention.seconds, retention.refresh_s))
    interval_s = settings.sync_group_offsets_interval_seconds
    if not retention.is_known:
        findings.warn(
            KEEPING,
            f"{OFFSETS_RETENTION} is not reported by the brokers: {kept} is assumed, and offsets are committed again "
            f"every {again}; if it is shorter, they expire in between",
            grant_line(client.config, ("DESCRIBE_CONFIGS",), "--cluster"),
        )
    elif interval_s * 3 > retention.seconds:
        findings.warn(
            KEEPING,
            f"{kept} ({OFFSETS_RETENTION}), too short for syncing every {interval_s} s: they may expire in between",
            f"raise {OFFSETS_RETENTION} of the brokers, or lower sync.group.offsets.interval.seconds",
        )
    else:
        again = format_duration(int(max(retention.refresh_s, interval_s) * 1000))
        findings.ok(
            KEEPING,
            f"{kept} without a member or a commit ({OFFSETS_RETENTION}); an engine commits them again every {again}",
        )
