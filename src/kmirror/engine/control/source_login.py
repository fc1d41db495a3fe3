"""How an engine logs in to its source: with what its references stood for when they were last resolved.

They are resolved anew when somebody asks for it, and while the source refuses the login. What is found is tried before
anything uses it: a new password that the source does not take yet must not end connections that work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.engine.clock import now
from kmirror.engine.histories.identity_check import require_cluster
from kmirror.errors import KmirrorError, OutcomeUnknown

#: How soon what was not taken is tried again, longer each time.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
_PATIENCE_MS = 5_000


@dataclass(frozen=True, slots=True)
class LoginReport:
    """The source has taken the login as it is now; or why it is not used, `trouble`."""

    trouble: KmirrorError | OutcomeUnknown | None = None


class SourceLogin:
    """Hold the login to one source. One thread renews it; `ask` may be called from any.

    `properties` are the source's as they are stored now, `is_refused` tells whether it refuses the login in use.
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
        #: It was asked for, and has not been taken yet.
        self._is_pending = False
        self._failures = 0
        self._again_at = 0.0
        self._last_trouble: str | None = None
        #: The login in use.
        self.config: ClientConfig = impatient(client_config(properties()))

    def ask(self) -> None:
        """Have it renewed soon."""
        self._asked.set()

    @property
    def is_due(self) -> bool:
        """True when there is reason to renew it now."""
        return self._asked.is_set() or ((self._is_pending or self._is_refused()) and now() >= self._again_at)

    def renew(self) -> LoginReport | None:
        """Resolve the references, and use what they stand for if the source takes it; None where that is no news.

        A login that is the same is taken as well where it was asked for: a worker elsewhere may find another one.
        """
        if self._asked.is_set():
            self._asked.clear()
            self._is_pending, self._failures, self._last_trouble = True, 0, None
        try:
            config = impatient(client_config(self._properties()))
            if config == self.config and not self._is_pending:
                self._try_again()
                return None
            with ClusterClient(config) as client:
                require_cluster(self._source_cluster_id, client.metadata([]).cluster_id)
        except (KmirrorError, OutcomeUnknown) as error:
            self._try_again()
            is_news, self._last_trouble = str(error) != self._last_trouble, str(error)
            return LoginReport(error) if is_news else None
        self.config = config
        self._is_pending, self._failures, self._last_trouble = False, 0, None
        self._again_at = now() + _LONGEST_PAUSE
        return LoginReport()

    def _try_again(self) -> None:
        self._again_at = now() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1


def impatient(config: ClientConfig) -> ClientConfig:
    """Return the settings of a client that does not wait long."""
    return replace(
        config,
        connect_timeout_ms=min(_PATIENCE_MS, config.connect_timeout_ms),
        request_timeout_ms=min(_PATIENCE_MS, config.request_timeout_ms),
    )
