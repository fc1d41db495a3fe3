"""How an engine logs in to its source: with the values of its secret references when they were last resolved.

They are resolved again on request, and while the source refuses the login. The result is tried before anything uses it:
a new password that the source does not accept yet must not end connections that work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.engine.clock import now
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason

#: How soon a login that failed is retried, longer each time.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
_TIMEOUT_MS = 5_000


#: Properties that decide who is logged in to, and what is sent there.
_CONTACT = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.endpoint.identification.algorithm",
    "sasl.kerberos.service.name",
)
#: The same; their values may be secrets, or long.
_NOT_SHOWN = ("sasl.jaas.config", "sasl.oauthbearer.client.credentials.", "ssl.truststore.")


@dataclass(frozen=True, slots=True)
class LoginReport:
    """The source has accepted the current login; or why it is not used, `trouble`."""

    trouble: KmirrorError | OutcomeUnknown | None = None


class SourceLogin:
    """Keep the login to one source. One thread renews it; any thread may call `ask`.

    `properties` returns the source's stored properties, `is_refused` whether the source refuses the login in use.
    """

    def __init__(
        self,
        properties: Callable[[], Mapping[str, str]],
        source_cluster_id: str | None,
        is_refused: Callable[[], bool],
    ) -> None:
        self._properties = properties
        self._source_cluster_id = source_cluster_id
        self._is_refused = is_refused
        self._asked = threading.Event()
        #: A renewal was asked for, and the source has not accepted it yet.
        self._is_pending = False
        self._failures = 0
        self._retry_at = 0.0
        self._reported: str | None = None
        #: The login in use.
        self.config: ClientConfig = self._resolved()

    def ask(self) -> None:
        """Ask for a renewal soon."""
        self._asked.set()

    @property
    def is_due(self) -> bool:
        """True when it must be renewed now."""
        return self._asked.is_set() or ((self._is_pending or self._is_refused()) and now() >= self._retry_at)

    def renew(self) -> LoginReport | None:
        """Resolve the references, and use the result if the source accepts it; None if there is nothing to report.

        If a renewal was asked for, the same login is reported too: on a worker the references may resolve differently.
        """
        if self._asked.is_set():
            self._asked.clear()
            self._is_pending, self._failures, self._reported = True, 0, None
        try:
            config = self._resolved()
            if config == self.config and not self._is_pending:
                self._retry_later()
                return None
            with ClusterClient(config) as client:
                client.metadata([])
        except (KmirrorError, OutcomeUnknown) as error:
            self._retry_later()
            is_new, self._reported = str(error) != self._reported, str(error)
            return LoginReport(error) if is_new else None
        self.config = config
        self._is_pending, self._failures, self._reported = False, 0, None
        self._retry_at = now() + _LONGEST_PAUSE
        return LoginReport()

    def _resolved(self) -> ClientConfig:
        config = with_short_timeouts(client_config(self._properties()))
        return config.expecting(self._source_cluster_id, Reason.SOURCE_CLUSTER_CHANGED)

    def _retry_later(self) -> None:
        self._retry_at = now() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1


def contact_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what changes of whom a source's properties log in to, and how."""
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return [
        f"{key} from {before.get(key, 'its default')} to {after.get(key, 'its default')}"
        for key in _CONTACT
        if key in changed
    ] + [f"{key} to another value" for key in changed if key.startswith(_NOT_SHOWN)]


def with_short_timeouts(config: ClientConfig) -> ClientConfig:
    """Return the settings with timeouts of at most 5 s."""
    return replace(
        config,
        connect_timeout_ms=min(_TIMEOUT_MS, config.connect_timeout_ms),
        request_timeout_ms=min(_TIMEOUT_MS, config.request_timeout_ms),
    )
