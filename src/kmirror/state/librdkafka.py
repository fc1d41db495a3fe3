"""The only module that creates librdkafka clients, waits for them, and turns their errors into ours.

librdkafka reports wrong passwords, dead addresses and failed handshakes only through its error callback; the affected
call just times out. So every wait here polls in short steps that serve the callback, and raises what it received at
once. No `KafkaException` leaves the package.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import BrokerError, KmirrorError, Reason, UnreachableError, UsageError
from kmirror.words import visible

Answer = TypeVar("Answer")

#: Seconds between two checks of the error callback.
STEP_S = 0.02

_REFRESH_S = 1.0

#: Transient error codes: transport; no leader, not the leader, timed out, broker or replica not there, network,
#: not the controller, leader epoch too old or too new.
_TRANSIENT = (-195, 5, 6, 7, 8, 9, 13, 41, 74, 75)

SLOW_HINT = "the brokers answered before: they may be slow, restarting or changing leaders; try again"
_REACH_HINT = "check --bootstrap-server, the network, and the security protocol in --command-config"

_LOGIN_HINT = "check user name, password and mechanism in the file given as --command-config"
#: Authorization failed on a topic, on the cluster, on a transactional id.
_NOT_AUTHORIZED = (29, 31, 53)

#: librdkafka's messages when there is no token (`oauth_cb` raised) or no Kerberos ticket to be had: no broker has
#: refused anything.
_NO_TOKEN = ("Failed to acquire SASL OAUTHBEARER token", "there is no token available", "Cannot contact any KDC")
#: An interrupted login: the broker went away, or accepts no second login within a second (KIP-368), or no KDC renewed
#: the ticket. If the login worked before, the next connection retries it.
_INTERRUPTED = ("Local: Broker transport failure", "Request not valid in current SASL state", "Ticket expired")

#: What librdkafka says of a mechanism that it was built without.
_NO_GSSAPI = "No provider for SASL mechanism GSSAPI"
_GSSAPI_HINT = (
    "install a confluent-kafka that is built with GSSAPI (`kmirror help logins` says how), "
    "or use a listener with another sasl.mechanism"
)

_logger = logging.getLogger("kmirror.librdkafka")
_logger.addHandler(logging.NullHandler())


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


class ErrorWatch:
    """Keep what librdkafka's error callback reports about one store's clients until it can be raised.

    `reached` is set at the first answer of any broker. Before it, all brokers being down is final; after it, they may
    be restarting, so a wait continues. A refused password ends any wait.
    """

    __slots__ = ("_all_down", "_last", "_refused", "reached")

    def __init__(self) -> None:
        self.reached = False
        self._refused: Any = None
        self._all_down = False
        self._last: Any = None

    def on_error(self, error: Any) -> None:
        """Take one error from librdkafka (its `error_cb`)."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._AUTHENTICATION and not self._is_transient(error.str()):
            self._refused = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        else:
            self._last = error

    def _is_transient(self, message: str) -> bool:
        transient = (*_NO_TOKEN, *_INTERRUPTED) if self.reached else _NO_TOKEN
        return any(words in message for words in transient)

    def raise_if_hopeless(self) -> None:
        """Raise UnreachableError when waiting cannot help."""
        if self._refused is not None:
            refused = self._refused
            if self.reached:
                self._refused = None  # it worked before and may work again
            raise known_error(refused, "the destination cluster rejects the credentials")
        if self._all_down and not self.reached:
            raise self.no_answer("the destination cluster cannot be reached")

    def no_answer(self, what: str) -> UnreachableError:
        """Return the error for a missing answer, with librdkafka's last error."""
        last = f": {self._last.str()}" if self._last is not None else ""
        return unreachable(f"{what}{last}", hint=SLOW_HINT if self.reached else None)


def client(factory: Callable[..., Any], config: Mapping[str, Any], watch: ErrorWatch) -> Any:
    """Create a librdkafka client whose errors go to `watch` and whose log lines go to Python's logging.

    Raises UnreachableError when the login needs a token and cannot get one.
    """
    from confluent_kafka import KafkaException

    if "oauth_cb" in config:
        config["oauth_cb"](None)  # the library would wait ten seconds, and not say what is wrong
    try:
        return factory({**config, "error_cb": watch.on_error}, logger=_logger)
    except KafkaException as error:
        if _NO_GSSAPI in (why := error.args[0].str()):
            raise UsageError(f"librdkafka is built without Kerberos: {why}", _GSSAPI_HINT) from error
        raise UsageError(
            f"the settings of the destination connection are refused: {why}",
            "fix the file given as --command-config",
        ) from error


def require_login(config: ClientConfig) -> None:
    """Refuse a destination to which librdkafka cannot log in, before anything connects to it.

    Raises:
        UsageError: it needs Kerberos, and the installed librdkafka is built without GSSAPI.
    """
    if config.kerberos is not None:
        from confluent_kafka.admin import AdminClient

        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": config.sasl_mechanism}
        # it has no brokers to connect to, and runs no kinit
        client(AdminClient, {**login, "sasl.kerberos.min.time.before.relogin": 0, "log_level": 0}, ErrorWatch())


def ask(
    request: Callable[[], Future[Answer]],
    admin: Any,
    watch: ErrorWatch,
    deadline: Deadline,
    what: str,
    grant: str | None = None,
) -> Answer:
    """Send an admin request and wait for its answer; retry while leaders and brokers change.

    `grant` is the command that grants the necessary right.

    Raises UnreachableError, or BrokerError for an error answer.
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
                raise watch.no_answer(f"{what}: no answer within {deadline.seconds:g} s") from None
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError._TIMED_OUT or (code in _TRANSIENT and deadline.passed):
                raise watch.no_answer(f"{what}: no answer within {deadline.seconds:g} s") from error
            if code not in _TRANSIENT:
                raise known_error(error.args[0], what, grant) from error
            refresh(admin)
            future = request()
        else:
            watch.reached = True
            return found


def refresh(admin: Any) -> None:
    """Make the client look up the leaders again: an admin client keeps the ones it knows even if they refuse it."""
    from confluent_kafka import KafkaException

    time.sleep(STEP_S)
    with suppress(KafkaException):
        admin.list_topics(timeout=_REFRESH_S)


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


def known_error(error: Any, what: str, grant: str | None = None) -> KmirrorError:
    """Turn librdkafka's error about `what` into ours; the caller decides whether the request may have had an effect.

    `grant` is the command that grants the necessary right.
    """
    from confluent_kafka import KafkaError

    code = error.code()
    if code in (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    ):
        return unreachable(f"{what}: {visible(error.str())}", Reason.AUTHENTICATION_FAILED)
    if code in (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    ):
        return unreachable(f"{what}: {visible(error.str())}")
    return refused(code, error.name(), what, visible(error.str()), grant)
