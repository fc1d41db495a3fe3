"""The one door to librdkafka: how its clients are made, how long one waits for them, and which errors leave.

librdkafka reports wrong passwords, dead addresses and failed handshakes only through its error callback, while the
call that suffers from it runs into its time-out. So every wait here goes in short steps, between which the callback
is served; what it received becomes the error at once. No `KafkaException` leaves the package.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from kmirror.errors import BrokerError, KmirrorError, Reason, UnreachableError, UsageError

Answer = TypeVar("Answer")

#: Seconds between two checks of the error callback.
STEP_S = 0.02

_REFRESH_S = 1.0

#: Codes that pass by themselves: transport; no leader, not the leader, timed out, broker or replica not there, network,
#: not the controller, leader epoch too old or too new.
_PASSING = (-195, 5, 6, 7, 8, 9, 13, 41, 74, 75)

_SLOW_HINT = "the brokers answered before: they may be slow, restarting or changing leaders; try again"
_REACH_HINT = "check --bootstrap-server, the network, and the security protocol in --command-config"

_LOGIN_HINT = "check user name, password and mechanism in the file given as --command-config"
#: A right is missing on a topic, on the cluster, on a transactional id.
_NOT_AUTHORIZED = (29, 31, 53)

#: What librdkafka says where there is no token (`oauth_cb` raised): brokers have refused nothing.
_NO_TOKEN = ("Failed to acquire SASL OAUTHBEARER token", "there is no token available")
#: A login that broke off: a broker that went away, or that takes no second login within a second (KIP-368). Where the
#: login has worked before, the next connection has it again.
_BROKEN_OFF = ("Local: Broker transport failure", "Request not valid in current SASL state")

_logger = logging.getLogger("kmirror.librdkafka")
_logger.addHandler(logging.NullHandler())


def boottime() -> float:
    """Return seconds on a clock that runs on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Deadline:
    """A moment after which no one waits any longer, `seconds` from now."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = boottime() + seconds

    @property
    def remaining(self) -> float:
        return max(0.0, self._end - boottime())

    @property
    def passed(self) -> bool:
        return self.remaining == 0.0


class Watch:
    """Keep what librdkafka's error callback says about one store's clients until it can be raised.

    `reached` is set at the first answer of any broker: before, all brokers being down is final for these clients;
    after, they may be restarting and waiting is worth while. A refused password ends any wait.
    """

    __slots__ = ("_all_down", "_last", "_refused", "reached")

    def __init__(self) -> None:
        self.reached = False
        self._refused: Any = None
        self._all_down = False
        self._last: Any = None

    def heard(self, error: Any) -> None:
        """Take one error from librdkafka."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._AUTHENTICATION and not self._may_pass(error.str()):
            self._refused = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        else:
            self._last = error

    def _may_pass(self, told: str) -> bool:
        passing = (*_NO_TOKEN, *_BROKEN_OFF) if self.reached else _NO_TOKEN
        return any(words in told for words in passing)

    def raise_if_hopeless(self) -> None:
        """Raise UnreachableError when waiting cannot help."""
        if self._refused is not None:
            refused = self._refused
            if self.reached:
                self._refused = None  # it worked before and may work again
            raise known_error(refused, "the destination cluster rejects the credentials")
        if self._all_down and not self.reached:
            raise self.silence("the destination cluster cannot be reached")

    def silence(self, what: str) -> UnreachableError:
        """Return the error for an answer that did not come, with the last thing librdkafka said about it."""
        told = f": {self._last.str()}" if self._last is not None else ""
        return unreachable(f"{what}{told}", hint=_SLOW_HINT if self.reached else None)


def client(factory: Callable[..., Any], config: Mapping[str, Any], watch: Watch) -> Any:
    """Make a librdkafka client whose errors go to `watch` and whose log lines go to Python's logging.

    Raises UnreachableError when the login takes a token, and none is to be had.
    """
    from confluent_kafka import KafkaException

    if "oauth_cb" in config:
        config["oauth_cb"](None)  # the library would wait ten seconds, and not say what is wrong
    try:
        return factory({**config, "error_cb": watch.heard}, logger=_logger)
    except KafkaException as error:
        raise UsageError(
            f"the settings of the destination connection are refused: {error.args[0].str()}",
            "fix the file given as --command-config",
        ) from error


def ask(
    request: Callable[[], Future[Answer]],
    admin: Any,
    watch: Watch,
    deadline: Deadline,
    what: str,
    grant: str | None = None,
) -> Answer:
    """Make an admin request and wait for its answer; retry while leaders and brokers change.

    `grant` is the command that gives the right it takes.

    Raises UnreachableError, or the BrokerError that the answer consists of.
    """
    from confluent_kafka import KafkaError, KafkaException

    future = request()
    while True:
        try:
            found = future.result(STEP_S)
        except FutureTimeoutError:
            admin.poll(0)
            watch.raise_if_hopeless()
            if deadline.passed:
                raise watch.silence(f"{what}: no answer within {deadline.seconds:g} s") from None
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError._TIMED_OUT or (code in _PASSING and deadline.passed):
                raise watch.silence(f"{what}: no answer within {deadline.seconds:g} s") from error
            if code not in _PASSING:
                raise known_error(error.args[0], what, grant) from error
            refresh(admin)
            future = request()
        else:
            watch.reached = True
            return found


def refresh(admin: Any) -> None:
    """Make the client look up the leaders again: an admin client keeps those it knows, however often they refuse it."""
    from confluent_kafka import KafkaException

    time.sleep(STEP_S)
    with suppress(KafkaException):
        admin.list_topics(timeout=_REFRESH_S)


def unreachable(message: str, reason: Reason | None = None, hint: str | None = None) -> UnreachableError:
    """Return the error of a destination that does not answer, or that refuses us for `reason`."""
    if reason is Reason.AUTHENTICATION_FAILED:
        return UnreachableError(message, _LOGIN_HINT, reason)
    return UnreachableError(message, hint or _REACH_HINT, reason or Reason.DESTINATION_UNREACHABLE)


def refused(code: int, name: str, what: str, detail: str | None, grant: str | None) -> KmirrorError:
    """Return the error for a broker's answer that refuses `what`; `code` is Kafka's, `grant` gives a missing right."""
    if code in _NOT_AUTHORIZED:
        told = detail or name.replace("_", " ").lower()
        return UnreachableError(f"{what}: {told}", grant, Reason.NOT_AUTHORIZED)
    return BrokerError(code, name, what, detail)


def known_error(error: Any, what: str, grant: str | None = None) -> KmirrorError:
    """Turn librdkafka's error about `what` into ours; whether the request had an effect is the caller's knowledge.

    `grant` is the command that gives the right that `what` takes.
    """
    from confluent_kafka import KafkaError

    code = error.code()
    if code in (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    ):
        return unreachable(f"{what}: {error.str()}", Reason.AUTHENTICATION_FAILED)
    if code in (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    ):
        return unreachable(f"{what}: {error.str()}")
    return refused(code, error.name(), what, error.str(), grant)
