"""The guarantees of a destination that the copy relies on, as a probe found them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kmirror.errors import BrokerError, ExitCode, KmirrorError, OutcomeUnknown, Reason


class Verdict(StrEnum):
    """Whether a guarantee holds: WEAKER, where kmirror copes with less; BROKEN, where the copy would not be right."""

    HOLDS = "HOLDS"
    WEAKER = "WEAKER"
    UNKNOWN = "UNKNOWN"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One guarantee, what was found, and what to do about it. `reason` says why a verdict is UNKNOWN."""

    what: str
    verdict: Verdict
    message: str
    hint: str | None = None
    reason: Reason | None = None


def holds(what: str, message: str) -> Guarantee:
    """Return a guarantee that holds."""
    return Guarantee(what, Verdict.HOLDS, message)


def weaker(what: str, message: str, hint: str) -> Guarantee:
    """Return a guarantee that kmirror can do without; the message says what it does instead."""
    return Guarantee(what, Verdict.WEAKER, message, hint)


def broken(what: str, message: str) -> Guarantee:
    """Return a guarantee without which the copy would not be right."""
    return Guarantee(what, Verdict.BROKEN, message, "do not mirror to this cluster")


def failed(what: str, error: KmirrorError | OutcomeUnknown) -> Guarantee:
    """Return what an error says of a guarantee: nothing without a right or an answer, else that it does not hold."""
    if isinstance(error, OutcomeUnknown) or error.exit_code is ExitCode.UNREACHABLE:
        return Guarantee(what, Verdict.UNKNOWN, str(error), "try again", Reason.DESTINATION_UNREACHABLE)
    if error.reason is Reason.NOT_AUTHORIZED or is_denied(error):
        return Guarantee(what, Verdict.UNKNOWN, error.message, error.hint, Reason.NOT_AUTHORIZED)
    return broken(what, error.message)


def is_denied(error: KmirrorError) -> bool:
    """Return whether a broker refused a request because a right is missing."""
    return isinstance(error, BrokerError) and error.name.endswith("_AUTHORIZATION_FAILED")
