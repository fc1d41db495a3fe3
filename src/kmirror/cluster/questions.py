"""Questions that any broker of a cluster answers; several are asked in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import UnsupportedVersionError, exchange_of
from kmirror.cluster.protocol.wire import FrameError
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import KmirrorError, OutcomeUnknown, UnreachableError

T = TypeVar("T")


class Question(NamedTuple, Generic[T]):
    """A request of `kafka.protocol`, and what its answer says; `read` raises KmirrorError for a refusal."""

    request: Callable[[], Any]
    read: Callable[[ClientConfig, Any], T]

    def ask(self, client: ClusterClient, timeout: float | None = None) -> T:
        """Ask it alone, within `timeout` seconds. Raises UnreachableError, and as `read`."""
        return self.read(client.config, client.ask_any(self.request(), timeout=timeout))


def answers_of(
    client: ClusterClient, questions: Sequence[Question[Any]], timeout: float | None = None
) -> list[Any | KmirrorError]:
    """Return the answer to each question, or an error instead; they only read, within `timeout` seconds each.

    They are sent to one broker at once. Where that fails, or it lacks one of the requests, they are asked one by one.
    """
    requests = [exchange_of(one.request()) for one in questions]
    try:
        given = client.any_connection(timeout).request_all(requests, timeout=timeout)
    except (UnreachableError, UnsupportedVersionError, OutcomeUnknown, FrameError):
        return [_answer(lambda one=one: one.ask(client, timeout)) for one in questions]  # type: ignore[misc]
    read = zip(questions, given, strict=True)
    return [_answer(lambda one=one, found=found: one.read(client.config, found)) for one, found in read]  # type: ignore[misc]


def _answer(question: Callable[[], T]) -> T | KmirrorError:
    try:
        return question()
    except KmirrorError as error:
        return error
    except OutcomeUnknown as error:
        return UnreachableError(str(error), "check that the cluster is up")
