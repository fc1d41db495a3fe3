"""How long to wait for brokers, and the errors when they do not answer or refuse."""

from __future__ import annotations

import time

from kmirror.errors import BrokerError, KmirrorError, Reason, UnreachableError

#: Seconds between two looks at what is waited for.
STEP_S = 0.02

SLOW_HINT = "the brokers answered before: they may be slow, restarting or changing leaders; try again"
_REACH_HINT = "check --bootstrap-server, the network, and the security protocol in --command-config"

_LOGIN_HINT = "check user name, password and mechanism in the file given as --command-config"
#: Authorization failed on a topic, on the cluster, on a transactional id.
_NOT_AUTHORIZED = (29, 31, 53)


def boottime() -> float:
    """Return seconds of a monotonic clock that also counts while the machine is suspended, where the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Deadline:
    """The end of a wait, `seconds` from now."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = boottime() + seconds

    def end(self) -> None:
        """Let it pass now."""
        self._end = boottime()

    @property
    def remaining(self) -> float:
        return max(0.0, self._end - boottime())

    @property
    def passed(self) -> bool:
        return self.remaining == 0.0


def unreachable(message: str, reason: Reason | None = None, hint: str | None = None) -> UnreachableError:
    """Return the error for a destination that does not answer, or that refuses us for `reason`."""
    if reason is Reason.AUTHENTICATION_FAILED:
        return UnreachableError(message, _LOGIN_HINT, reason)
    return UnreachableError(message, hint or _REACH_HINT, reason or Reason.DESTINATION_UNREACHABLE)


def refused(code: int, name: str, what: str, detail: str | None, grant: str | None) -> KmirrorError:
    """Return the error for a broker that refuses `what`; `code` is Kafka's, `grant` the command for a missing right."""
    if code in _NOT_AUTHORIZED:
        return UnreachableError(f"{what}: {detail or name.replace('_', ' ').lower()}", grant, Reason.NOT_AUTHORIZED)
    return BrokerError(code, name, what, detail)
