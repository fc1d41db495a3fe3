"""The documents that verbs hand back: their keys are an interface, and one exit code sums up many rows."""

from __future__ import annotations

import pickle

import pytest

from kmirror.errors import BrokerError, ExitCode, Reason, RefusedError, UnreachableError
from kmirror.ops.base.context import NamedClusterError, naming_cluster
from kmirror.ops.base.results import VerbResult, exit_code_of
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.status.mirror_status import MIRRORS


def row(result: Outcome, reason: Reason | None = None, topic: str = "t") -> TopicResult:
    return TopicResult(topic, None, result, f"{topic}: {result}", reason, hint=f"hint for {topic}")


DONE, NOOP = row(Outcome.DONE), row(Outcome.NOOP)
REFUSED, TIMED_OUT = row(Outcome.REFUSED), row(Outcome.TIMED_OUT)
FAILED = row(Outcome.FAILED)
DIVERGED = row(Outcome.FAILED, Reason.SOURCE_DIVERGED)
FORBIDDEN = row(Outcome.REFUSED, Reason.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], ExitCode.OK),
        ([DONE, NOOP], ExitCode.OK),
        ([REFUSED, REFUSED], ExitCode.REFUSED),
        ([DONE, REFUSED], ExitCode.PARTLY_DONE),
        ([NOOP, REFUSED], ExitCode.PARTLY_DONE),
        ([FAILED], ExitCode.PARTLY_DONE),
        ([DONE, TIMED_OUT], ExitCode.TIMED_OUT),
        ([TIMED_OUT], ExitCode.TIMED_OUT),
        ([TIMED_OUT, FAILED, DONE], ExitCode.PARTLY_DONE),
        ([TIMED_OUT, FAILED, DIVERGED, DONE], ExitCode.HISTORIES_DIFFER),
        ([row(Outcome.REFUSED, Reason.DESTINATION_WRITTEN)], ExitCode.REFUSED),
        ([FORBIDDEN, FORBIDDEN], ExitCode.REFUSED),
        ([row(Outcome.REFUSED, Reason.SOURCE_UNREACHABLE)], ExitCode.UNREACHABLE),
        ([FORBIDDEN, REFUSED], ExitCode.REFUSED),
        ([FORBIDDEN, DONE], ExitCode.PARTLY_DONE),
    ],
)
def test_one_exit_code_for_many_rows_seven_over_four_over_five(rows: list[TopicResult], code: ExitCode) -> None:
    assert exit_code_of(rows) == code


def test_a_verbs_document_has_exactly_these_keys() -> None:
    groups = [GroupResult("g", "t", 0, 5, 7, Outcome.DONE)]
    document = VerbResult.of("add", "m", [DONE, REFUSED], groups=groups, dry_run=True).to_json()
    assert document == {
        "verb": "add",
        "mirror": "m",
        "dryRun": True,
        "exitCode": 4,
        "results": [
            {
                "topic": "t",
                "partition": None,
                "result": "DONE",
                "reason": None,
                "message": "t: DONE",
                "lastMirroredOffset": None,
                "lag": None,
            },
            {
                "topic": "t",
                "partition": None,
                "result": "REFUSED",
                "reason": None,
                "message": "t: REFUSED",
                "lastMirroredOffset": None,
                "lag": None,
            },
        ],
        "groups": [
            {
                "group": "g",
                "topic": "t",
                "partition": 0,
                "from": 5,
                "to": 7,
                "result": "DONE",
                "reason": None,
                "message": None,
            }
        ],
        "error": {"code": 4, "message": "t: REFUSED", "hint": "hint for t", "reason": None},
    }


def test_success_has_no_error() -> None:
    assert VerbResult.of("add", "m", [DONE]).to_json()["error"] is None


def test_several_bad_rows_are_summed_up_in_one_sentence() -> None:
    error = VerbResult.of("add", "m", [row(Outcome.REFUSED, topic="a"), row(Outcome.REFUSED, topic="b")]).error
    assert error is not None
    assert error.message == "2 of 2 topics failed; the first: a: REFUSED"
    assert error.hint == "see the message of each row"


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ([("c", 2), ("d", 2)], [("a", 0), ("a", 1), ("b", 0), ("b", 1)], "2 of 4 topics"),
        ([("a", 2)], [("a", 0), ("a", 1), ("a", 3)], "3 of 4 partitions"),
        ([("b", None), ("c", None), (None, None)], [("a", None), ("b", None)], "2 of 3 topics"),
        ([(None, None)], [(None, None), (None, None)], "2 of 3"),
    ],
)
def test_topics_are_counted_and_of_one_topic_its_partitions(
    good: list[tuple[str | None, int | None]], bad: list[tuple[str | None, int | None]], message: str
) -> None:
    rows = [TopicResult(*place, Outcome.DONE) for place in good]
    error = VerbResult.of("add", "m", [*rows, *(TopicResult(*place, Outcome.FAILED, "why") for place in bad)]).error
    assert error is not None
    assert error.message == f"{message} failed; the first: why"


def test_an_error_before_any_topic_is_the_whole_document() -> None:
    document = VerbResult.failed("add", "m", RefusedError("no", "do this", Reason.LOOP)).to_json()
    assert document["exitCode"] == 3
    assert document["results"] == []
    assert document["error"] == {"code": 3, "message": "no", "hint": "do this", "reason": "LOOP"}


def test_list_has_exactly_these_keys() -> None:
    assert [column.key for column in MIRRORS.columns] == [
        "mirror",
        "topics",
        "partitions",
        "sourceClusterId",
        "sourceBootstrapServer",
        "state",
        "engine",
        "maxLag",
        "reason",
        "engineLastSeenMs",
        "engineAgeMs",
        "throttleBytesPerSecond",
        "bytesPerSecond",
        "maxTimeLagMs",
        "etaMs",
        "lagUnknown",
        "stoppedTopics",
        "objectivesWithin",
        "objectivesBreached",
        "objectivesUnknown",
        "notAdded",
        "failingJobs",
    ]


@pytest.mark.parametrize("reason", [Reason.NOT_AUTHORIZED, Reason.SECRET_UNRESOLVED])
def test_what_someone_must_grant_or_set_is_refused_wherever_it_is_raised(reason: Reason) -> None:
    """Scripts run a command again after 6, which never helps here."""
    error = UnreachableError("no", None, reason)
    with pytest.raises(NamedClusterError) as named, naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
        raise error
    for one in (error, named.value, pickle.loads(pickle.dumps(error))):
        assert (one.exit_code, one.reason) == (ExitCode.REFUSED, reason)
    assert BrokerError(31, "CLUSTER_AUTHORIZATION_FAILED", "altering").exit_code is ExitCode.REFUSED
    assert UnreachableError("no", None, Reason.AUTHENTICATION_FAILED).exit_code is ExitCode.UNREACHABLE
