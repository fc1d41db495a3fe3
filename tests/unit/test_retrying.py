"""What `run` tries again, how long, and what ends it at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kmirror.cluster.connection import ConnectFailedError, UnknownHostError
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.status.journal import Level
from kmirror.errors import (
    BrokerError,
    KmirrorError,
    OutcomeUnknown,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from kmirror.ops.base.context import naming_cluster
from kmirror.ops.base.retrying import Interrupted, Retries, is_transient
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.run.last_group_sync import judged
from kmirror.state.group_records import GroupReason


def named(error: UnreachableError) -> KmirrorError:
    with pytest.raises(UnreachableError) as found, naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        raise error
    return found.value


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("no answer"),
        TimedOutError("not done in time"),
        UnreachableError("taking the id: not done within 30 s", None, Reason.DESTINATION_UNREACHABLE),
        named(ConnectFailedError("connection refused")),
        named(UnknownHostError("the name does not resolve yet")),
        BrokerError(Code.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS", "writing"),
    ],
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("there is no mirror"),
        UsageError("no such key"),
        UnreachableError("wrong password", None, Reason.AUTHENTICATION_FAILED),
        UnreachableError("no right", None, Reason.NOT_AUTHORIZED),
        UnreachableError("no secret", None, Reason.SECRET_UNRESOLVED),
        BrokerError(Code.TOPIC_ALREADY_EXISTS, "TOPIC_ALREADY_EXISTS", "creating"),
        KmirrorError("something else"),
    ],
)
def test_what_cannot_pass_ends_it_at_once(error: KmirrorError) -> None:
    assert not is_transient(error)
    with pytest.raises(type(error)):
        Retries(threading.Event(), None, lambda phase, note, level: None).attempt("it", lambda: failing(error))


@pytest.mark.parametrize(
    "late",
    [
        {"client.id": "${file:FOLDER/late:id}"},
        {"client.id": "${dir:FOLDER:late}"},
        {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "FOLDER/late"},
    ],
)
def test_only_what_waits_for_files_is_tried_again_while_one_is_not_there(tmp_path: Path, late: dict[str, str]) -> None:
    given = {key: value.replace("FOLDER", str(tmp_path)) for key, value in late.items()}

    def read() -> object:
        with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
            return client_config({"bootstrap.servers": "a:9092", **given})

    def write(phase: str, note: str | None, level: Level) -> None:
        assert "No such file" in str(note)
        (tmp_path / "late").write_text("id=x\n-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n")

    retries = Retries(threading.Event(), None, write)
    with pytest.raises(KmirrorError, match="No such file"):
        retries.attempt("the clusters", read)
    assert retries.attempt("the clusters", read, awaits_files=True)


def failing(error: Exception) -> None:
    raise error


def test_it_says_what_it_waits_for_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.ops.base.retrying.FIRST_PAUSE_S", 0.01)
    shown: list[tuple[str, str | None]] = []
    errors: list[Exception] = [TimedOutError("slow"), TimedOutError("slow"), OutcomeUnknown("silent")]

    def action() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    retries = Retries(threading.Event(), None, lambda phase, note, level: shown.append((phase, note)))
    assert retries.attempt("the lease of m", action) == "done"
    assert [note.rpartition(": ")[2] for _, note in shown if note] == ["slow", "silent"]
    assert all(phase.startswith("waiting since ") and phase.endswith(" for the lease of m") for phase, _ in shown)


def test_the_operator_ends_the_wait_also_while_a_call_hangs() -> None:
    stop, hanging = threading.Event(), threading.Event()
    retries = Retries(stop, None, lambda phase, note, level: None)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(Interrupted):
        retries.attempt("it", lambda: hanging.wait(60))
    assert retries.has_running_attempt
    hanging.set()


def test_the_time_ends_the_wait_with_what_was_missing() -> None:
    retries = Retries(threading.Event(), 0.1, lambda phase, note, level: None)
    with pytest.raises(TimedOutError, match=r"waited 0\.1 s for the clusters: connection refused"):
        retries.attempt("the clusters", lambda: failing(ConnectFailedError("connection refused")))


def test_a_group_that_could_not_be_synced_is_a_failure_and_one_left_alone_is_not() -> None:
    left_alone = GroupResult("kept", "t", 0, 1, 2, Outcome.REFUSED, GroupReason.COMMITTED_HERE)
    moving = GroupResult("busy", "t", 0, 1, 2, Outcome.TIMED_OUT)
    unknown = GroupResult("lost", "t", 0, 1, 2, Outcome.TIMED_OUT, GroupReason.UNKNOWN_NOW)
    fine = judged("m", (left_alone, moving))
    assert fine.trouble is None
    assert [warning.split()[1] for warning in fine.warnings] == ["busy", "kept"]
    forbidden = GroupResult("secret", "t", 0, 1, 2, Outcome.REFUSED, GroupReason.NOT_AUTHORIZED)
    assert judged("m", (forbidden,)).trouble is not None
    bad = judged("m", (left_alone, unknown))
    assert bad.trouble is not None
    assert bad.trouble.result is Outcome.FAILED
    assert "lost could not be synced" in (bad.trouble.message or "")
