"""How long to wait for brokers, and the errors when they do not answer or refuse."""

from __future__ import annotations

import time

from kmirror.cluster.protocol.quota import throttle_text
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.seen_throttles import SEEN_THROTTLES
from kmirror.errors import BrokerError, KmirrorError, Reason, RefusedError, UnreachableError

#: How long to wait for open transactions before showing what they do not hide; and before deciding by that: an
#: abandoned one of kmirror's has been aborted by then.
BRIEFLY_S, UNTIL_ABORTED_S = 1.0, 22.0
#: Seconds between two looks at what is waited for.
STEP_S = 0.02

_SLOW_HINT = "the brokers answered before: they may be slow, restarting or changing leaders; try again"
_REACH_HINT = "check --bootstrap-server, the network, and the security protocol in --command-config"

_LOGIN_HINT = "check user name, password and mechanism in the file given as --command-config"
#: Authorization failed on a topic, on the cluster, on a transactional id.
_NOT_AUTHORIZED = (29, 31, 53)
#: Transactions need message format 2, of Kafka 0.11; brokers before 3.0 can be set to an older one.
_OLD_FORMAT = 43


def boottime() -> float:
    """Return seconds of a monotonic clock that also counts while the machine is suspended, where the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def now_ms() -> int:
    """Return the wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


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


def slow_hint(config: ClientConfig) -> str:
    """Return why brokers that answered before may not answer in time, and what to do."""
    throttle = SEEN_THROTTLES.of(config)
    return _SLOW_HINT if throttle is None else throttle_text(throttle.address)


def unreachable(message: str, reason: Reason | None = None, hint: str | None = None) -> UnreachableError:
    """Return the error for a destination that does not answer, or that refuses us for `reason`."""
    if reason is Reason.AUTHENTICATION_FAILED:
        return UnreachableError(message, _LOGIN_HINT, reason)
    return UnreachableError(message, hint or _REACH_HINT, reason or Reason.DESTINATION_UNREACHABLE)


def refused(code: int, name: str, what: str, detail: str | None, grant: str | None) -> KmirrorError:
    """Return the error for a broker that refuses `what`; `code` is Kafka's, `grant` the command for a missing right."""
    if code in _NOT_AUTHORIZED:
        return UnreachableError(f"{what}: {detail or name.replace('_', ' ').lower()}", grant, Reason.NOT_AUTHORIZED)
    if code == _OLD_FORMAT:
        hint = "kmirror needs log.message.format.version of 0.11 or later on the destination's brokers"
        return RefusedError(f"{what}: {name} ({code})", hint)
    return BrokerError(code, name, what, detail)
