"""All errors that operators see: message, hint, exit code and reason.

Two families, neither a subclass of the other because they must never be confused:

* `KmirrorError`: the outcome is known, and it is a failure. Its class decides the exit code.
* `OutcomeUnknown`: a request was sent and not answered, so it may have happened. Code that catches it has to check.

Errors cross Spark, so each one pickles by its constructor arguments.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, TypeVar


class ExitCode(IntEnum):
    """The exit codes, on which scripts rely."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    REFUSED = 3
    PARTLY_DONE = 4
    TIMED_OUT = 5
    UNREACHABLE = 6
    HISTORIES_DIFFER = 7


class Reason(StrEnum):
    """The reason codes of partitions and of refusals."""

    PROMOTED = "PROMOTED"
    FAILED_OVER = "FAILED_OVER"
    REMOVED = "REMOVED"
    PAUSED_BY_OPERATOR = "PAUSED_BY_OPERATOR"
    NO_ENGINE = "NO_ENGINE"
    ENGINE_SILENT = "ENGINE_SILENT"
    NO_WORKERS = "NO_WORKERS"
    PARTITION_MISSING = "PARTITION_MISSING"
    STATE_UNREADABLE = "STATE_UNREADABLE"
    OPEN_TRANSACTION = "OPEN_TRANSACTION"
    SOURCE_UNREACHABLE = "SOURCE_UNREACHABLE"
    DESTINATION_UNREACHABLE = "DESTINATION_UNREACHABLE"
    AUTHENTICATION_FAILED = "AUTHENTICATION_FAILED"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    SECRET_UNRESOLVED = "SECRET_UNRESOLVED"
    SOURCE_SILENT = "SOURCE_SILENT"
    SOURCE_CLUSTER_CHANGED = "SOURCE_CLUSTER_CHANGED"
    SOURCE_TOPIC_DELETED = "SOURCE_TOPIC_DELETED"
    SOURCE_TOPIC_RECREATED = "SOURCE_TOPIC_RECREATED"
    SOURCE_TRUNCATED = "SOURCE_TRUNCATED"
    SOURCE_DIVERGED = "SOURCE_DIVERGED"
    SOURCE_WRITTEN_AFTER_STOP = "SOURCE_WRITTEN_AFTER_STOP"
    PARTITIONS_DECREASED = "PARTITIONS_DECREASED"
    DESTINATION_WRITTEN = "DESTINATION_WRITTEN"
    DESTINATION_TOPIC_DELETED = "DESTINATION_TOPIC_DELETED"
    DESTINATION_TRUNCATED = "DESTINATION_TRUNCATED"
    OFFSET_MISMATCH = "OFFSET_MISMATCH"
    RECORD_REJECTED = "RECORD_REJECTED"
    CORRUPT_BATCH = "CORRUPT_BATCH"
    UNSUPPORTED_MESSAGE_FORMAT = "UNSUPPORTED_MESSAGE_FORMAT"
    LOOP = "LOOP"
    FENCED = "FENCED"


#: With these reasons nothing is copied now, as far as is known, whatever state is stored for the partition.
NOT_COPYING = frozenset({Reason.NO_ENGINE, Reason.ENGINE_SILENT, Reason.NO_WORKERS, Reason.STATE_UNREADABLE})

#: Reasons that concern the link to a source as a whole: no topic can be copied.
LINK_REFUSED = frozenset({Reason.AUTHENTICATION_FAILED, Reason.SOURCE_CLUSTER_CHANGED})

#: With these reasons the source has another topic now: none of the mirror topic's records is to be copied again.
RESET_REASONS = frozenset({Reason.SOURCE_TOPIC_RECREATED, Reason.PARTITIONS_DECREASED})

#: With these reasons source and destination no longer share one history: exit code 7.
HISTORY_REASONS = frozenset(
    {
        Reason.SOURCE_TOPIC_RECREATED,
        Reason.SOURCE_TRUNCATED,
        Reason.SOURCE_DIVERGED,
        Reason.PARTITIONS_DECREASED,
        Reason.DESTINATION_WRITTEN,
        Reason.DESTINATION_TRUNCATED,
        Reason.OFFSET_MISMATCH,
    }
)


_T = TypeVar("_T")


def settled(value: _T | None, what: str) -> _T:
    """Return a value that an earlier step has set. Raises RuntimeError: none has, which is a bug."""
    if value is None:
        raise RuntimeError(f"{what} is not known yet")
    return value


class KmirrorError(Exception):
    """What is wrong (`message`), what to do (`hint`), and the cause as a code (`reason`)."""

    exit_code: ExitCode = ExitCode.UNEXPECTED
    #: Set by `kmirror.Client`: what the call would have returned, as far as it got.
    result: Any = None

    def __init__(self, message: str, hint: str | None = None, reason: Reason | None = None) -> None:
        super().__init__(message, hint, reason)
        self.message = message
        self.hint = hint
        self.reason = reason

    def __str__(self) -> str:
        return self.message


class UsageError(KmirrorError):
    """A flag, value, pattern or file is invalid."""

    exit_code = ExitCode.USAGE


class RefusedError(KmirrorError):
    """A precondition does not hold; nothing was changed."""

    exit_code = ExitCode.REFUSED


class PolicyError(RefusedError):
    """This host's policy does not allow what a record names; as text it includes the hint, which is the remedy."""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


class PartlyDoneError(KmirrorError):
    """Some topics succeeded, others failed, and waiting will not help."""

    exit_code = ExitCode.PARTLY_DONE


class TimedOutError(KmirrorError):
    """Time ran out; trying again later may help."""

    exit_code = ExitCode.TIMED_OUT


#: With these reasons someone must grant or set something first: exit code 3, because trying again does not help.
UNMET_REASONS = frozenset({Reason.NOT_AUTHORIZED, Reason.SECRET_UNRESOLVED, Reason.SOURCE_CLUSTER_CHANGED})


class UnreachableError(KmirrorError):
    """A required cluster cannot be reached or refuses us; exit code 3 if its reason is one of `UNMET_REASONS`."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, message: str, hint: str | None = None, reason: Reason | None = None) -> None:
        super().__init__(message, hint, reason)
        if reason in UNMET_REASONS:
            self.exit_code = ExitCode.REFUSED


class HistoriesDifferError(KmirrorError):
    """Source and destination do not hold the same records at the same offsets."""

    exit_code = ExitCode.HISTORIES_DIFFER


class BrokerError(KmirrorError):
    """A broker answered with an error code.

    `code` is Kafka's protocol error code, `name` its name, `what` the request and its resource.
    """

    def __init__(self, code: int, name: str, what: str, detail: str | None = None) -> None:
        message = f"{what}: {name} ({code})" + (f": {detail}" if detail else "")
        super().__init__(message)
        self.args = (code, name, what, detail)
        self.code = code
        self.name = name
        self.what = what
        self.detail = detail
        if name.endswith("_AUTHORIZATION_FAILED"):
            self.exit_code = ExitCode.REFUSED


class OutcomeUnknown(Exception):  # noqa: N818 - not an error, as far as is known
    """A request was sent and not answered: it may or may not have been carried out."""

    exit_code = ExitCode.UNEXPECTED
    reason: Reason | None = None


def described_error(error: BaseException) -> str:
    """Return an error's text; of one that should not happen, its type too."""
    return str(error) if isinstance(error, KmirrorError | OutcomeUnknown) else f"{type(error).__name__}: {error}"
