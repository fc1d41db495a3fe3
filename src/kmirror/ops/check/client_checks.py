"""Checks of clients: who can stop or damage which mirrors, and what clients of the source need here."""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.rights.acl_commands import grant_line, login_principal
from kmirror.cluster.rights.acls import NoAuthorizerError, describe_acls
from kmirror.cluster.rights.authorized import cluster_operations, missing_operations
from kmirror.cluster.rights.client_quotas import describe_quotas, scram_users
from kmirror.errors import Reason, UnreachableError
from kmirror.ops.check.findings import AllFindings, Findings
from kmirror.ops.check.powers import power_lines
from kmirror.ops.rights.client_sync import quotas_to_sync, users_of_clients
from kmirror.settings.table import Settings
from kmirror.state.records import DesiredState
from kmirror.state.snapshot import State
from kmirror.words import counted, visible

_MOST_NAMED = 10


def check_powers(findings: Findings, client: ClusterClient, state: State, mirror: str | None) -> None:
    """Report who can stop or damage which mirrors."""
    what = "power over all mirrors"
    mirrors = {
        one.name: [topic.topic for topic in state.topics(one.name) if topic.desired is not DesiredState.STOPPED]
        for one in state.mirrors
    }
    login = login_principal(client.config)
    with findings.catching(what):
        try:
            acls = describe_acls(client)
        except NoAuthorizerError:
            message = "the destination has no authorizer: anyone who can reach it can stop or damage every mirror here"
            findings.ok(what, message)
            return
        except UnreachableError as error:
            if error.reason is not Reason.NOT_AUTHORIZED:
                raise
            findings.warn(what, f"who can stop mirrors is unknown: {error.message}", error.hint or "")
            return
        for line in power_lines(acls, {login} if login else (), mirrors, (mirror,) if mirror is not None else ()):
            findings.ok(line.what, line.message, line.hint)


def check_clients(findings: AllFindings, source: ClusterClient, destination: ClusterClient, settings: Settings) -> None:
    """Check whether quotas can be synced and users compared, if the settings ask for it."""
    if settings.sync_quotas_enabled:
        with findings.source.catching("quotas"):
            many = counted(len(quotas_to_sync(source, destination)), "quota")
            findings.source.ok("quotas", f"{many} to sync (sync.quotas.enabled)")
        with findings.destination.catching("quotas"):
            lacking = missing_operations(cluster_operations(destination), ("ALTER_CONFIGS",))
            if not lacking:  # ALTER_CONFIGS implies the right to describe them
                describe_quotas(destination)
            message = "we lack ALTER_CONFIGS on the cluster: quotas cannot be set" if lacking else "quotas can be set"
            hint = grant_line(destination.config, ("ALTER_CONFIGS",), "--cluster")
            findings.destination.add("quotas", not lacking, message, hint, Reason.NOT_AUTHORIZED)
    if settings.compare_scram_users_enabled:
        with findings.source.catching("SCRAM users"):
            theirs = users_of_clients(source, destination)
            findings.source.ok("SCRAM users", f"{counted(len(theirs), 'user')} besides kmirror's")
            with findings.destination.catching("SCRAM users"):
                missing = sorted(theirs - scram_users(destination))
                if missing:
                    named = ", ".join(map(visible, missing[:_MOST_NAMED])) + (
                        " …" if len(missing) > _MOST_NAMED else ""
                    )
                    message = f"{counted(len(missing), 'user')} of the source cannot log in here: {named}"
                    findings.destination.warn("SCRAM users", message, "create them: brokers do not reveal passwords")
                else:
                    findings.destination.ok("SCRAM users", "every user of the source has a credential here")
