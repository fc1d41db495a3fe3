"""Open connections without waiting again and again for an address that does not answer.

Which addresses kept a caller waiting is remembered for a moment, for this process: where there are others these come
first, and what would only ask everybody leaves it out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from functools import partial

from kmirror.cluster.connecting import LEAST_SECONDS
from kmirror.cluster.connection import ConnectFailedError, Connection, UnknownHostError, WrongClusterError
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.seen_brokers import Address
from kmirror.cluster.threaded_calls import begin_each
from kmirror.errors import UnreachableError

#: Time each broker has to answer when there are others to ask.
EACH_SECONDS = 2.0
#: Whoever had an answer within this is not silent; and how long one counts as silent.
_LEAST_S, _SILENT_S = 1.0, 10.0
#: What one address may take of the time for trying one after the other, and how many silent ones are tried at once.
_MOST_OF_IT, _AT_ONCE = 0.9, 8


class SilentAddresses:
    """The addresses that lately did not answer in time, with the error. Thread-safe: single steps on a dict."""

    def __init__(self) -> None:
        self._found: dict[Address, tuple[float, UnreachableError]] = {}

    def note(self, address: Address, error: UnreachableError | None) -> None:
        """Note an address that did not answer, or with None that it did."""
        if error is None:
            self._found.pop(address, None)
        else:
            self._found[address] = time.monotonic() + _SILENT_S, error

    def of(self, address: Address) -> UnreachableError | None:
        """Return what was wrong, if it was lately."""
        until, error = self._found.get(address, (0.0, None))
        return error if time.monotonic() < until else None


#: Those of this process.
SILENT_ADDRESSES = SilentAddresses()


def open_connection(
    host: str, port: int, config: ClientConfig, timeout: float | None, *, skips_silent: bool = False
) -> Connection:
    """Open a connection within `timeout` seconds. Raises UnreachableError, with `skips_silent` at once where it can."""
    address = host, port
    known = SILENT_ADDRESSES.of(address) if skips_silent else None
    if known is not None:
        raise ConnectFailedError(known.message, known.hint, known.reason)
    if timeout is not None:
        config = replace(config, connect_timeout_ms=min(config.connect_timeout_ms, int(1000 * timeout)))
    began = time.monotonic()
    try:
        connection = Connection.open(host, port, config)
    except UnreachableError as error:
        if error.reason is None and time.monotonic() - began >= _LEAST_S:
            SILENT_ADDRESSES.note(address, error)
        raise
    SILENT_ADDRESSES.note(address, None)
    return connection


def open_any(
    addresses: Iterable[Address],
    config: ClientConfig,
    timeout: float | None,
    errors: dict[Address, UnreachableError],
) -> Connection:
    """Connect to the first of these addresses that answers, but not to one that has an error; add the errors met.

    All together have `timeout` seconds: in the first half those that were not silent lately are tried for a short time
    each, one after the other; in the second half all that are silent at once.

    Raises:
        UnreachableError: none answers.
    """
    seconds = config.connect_timeout_ms / 1000 if timeout is None else timeout
    deadline = time.monotonic() + seconds
    left = [address for address in dict.fromkeys(addresses) if address not in errors]
    first = [address for address in left if SILENT_ADDRESSES.of(address) is None] if len(left) > 1 else []
    silent = [address for address in left if address not in first]
    for tried, address in enumerate(first):
        began = time.monotonic()
        share = deadline - seconds / 2 - began
        # usually only one is silent: it has long enough to be known as that afterwards
        patience = min(EACH_SECONDS, share if tried + 1 == len(first) else share * _MOST_OF_IT)
        if patience < LEAST_SECONDS:
            silent.append(address)
            continue
        try:
            return open_connection(*address, config, patience)
        except UnreachableError as error:
            errors[address] = error
            if error.reason is None and time.monotonic() - began >= min(_LEAST_S, patience / 2):
                silent.append(address)
    found = _open_first(silent, config, max(LEAST_SECONDS, deadline - time.monotonic()), errors)
    if found is None:
        raise _most_telling(errors, config.bootstrap_servers)
    errors.pop((found.host, found.port), None)  # it was only slow
    return found


def _open_first(
    addresses: Sequence[Address], config: ClientConfig, seconds: float, errors: dict[Address, UnreachableError]
) -> Connection | None:
    """Connect to many addresses at once; return the first connection and close others; None if there is none."""
    if len(addresses) < 2:
        for address in addresses:
            try:
                return open_connection(*address, config, seconds)
            except UnreachableError as error:
                errors[address] = error
        return None
    patience = max(LEAST_SECONDS, seconds / math.ceil(len(addresses) / _AT_ONCE))
    begun = begin_each(lambda one: open_connection(*one, config, patience), addresses, "kmirror-brokers", _AT_ONCE)
    attempts = dict(zip(begun, addresses, strict=True))
    found: Connection | None = None
    try:
        for attempt in as_completed(attempts):
            try:
                found = attempt.result()
            except UnreachableError as error:
                errors[attempts[attempt]] = error
            else:
                return found
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(partial(_close_others, found))
    return None


def _close_others(found: Connection | None, attempt: Future[Connection]) -> None:
    if not attempt.cancelled() and attempt.exception() is None and (other := attempt.result()) is not found:
        other.close()


def _most_telling(errors: Mapping[Address, UnreachableError], named: Iterable[Address]) -> UnreachableError:
    """Return the error that says most of why no address leads to the cluster."""
    if not errors:
        return UnreachableError("bootstrap.servers is missing", "set bootstrap.servers")
    # a stale address that is another cluster's now says nothing of ours while others are down
    down = [error for error in errors.values() if not isinstance(error, WrongClusterError)]
    are_wrong = all(isinstance(errors.get(one), WrongClusterError) for one in named)
    told = list(errors.values()) if are_wrong or not down else down
    # a refusal says more than silence, and silence says more than an unknown host name
    return max(
        told,
        key=lambda e: (isinstance(e, WrongClusterError), e.reason is not None, not isinstance(e, UnknownHostError)),
    )
