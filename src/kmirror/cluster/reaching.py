"""Open connections without waiting again and again for an address that does not answer.

Which addresses kept a caller waiting is remembered for a moment, for this process: where there are others these come
first, and what would only ask everybody leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kmirror.cluster.connection import ConnectFailedError, Connection, UnknownHostError, WrongClusterError
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.seen_brokers import Address
from kmirror.errors import UnreachableError

#: Time each broker has to answer when there are others to ask.
EACH_SECONDS = 2.0
#: Whoever had an answer within this is not silent; and how long one counts as silent.
_LEAST_S, _SILENT_S = 1.0, 10.0


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

    All are tried for a short time each before one is waited for as long as `timeout` seconds allow.

    Raises:
        UnreachableError: none answers.
    """
    seconds = config.connect_timeout_ms / 1000 if timeout is None else timeout
    left = [address for address in dict.fromkeys(addresses) if address not in errors]
    left.sort(key=lambda address: SILENT_ADDRESSES.of(address) is not None)
    is_split = len(left) > 1 and seconds > EACH_SECONDS
    for patience in (EACH_SECONDS, seconds - EACH_SECONDS) if is_split else (seconds,):
        for address in left:
            try:
                return open_connection(*address, config, patience)
            except UnreachableError as error:
                errors[address] = error
        left = [address for address in left if SILENT_ADDRESSES.of(address) is not None]
    raise _most_telling(errors, config.bootstrap_servers)


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
