"""`check --probe` on brokers that guarantee everything, that guarantee less, and that grant less.

The weak ones are a real broker behind a wire that changes requests or answers. Each weakness must be named, and nothing
else; whatever happens, the probe's topic is deleted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import ExitCode, Reason
from kmirror.ops.check.check import check
from kmirror.ops.check.findings import CheckLine, CheckReport
from kmirror.ops.probe import topic as probe_topic
from kmirror.ops.probe.guarantees import Verdict
from kmirror.ops.probe.topic import PROBE_TOPICS
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.clusters import ClusterPair, MakeCluster
from tests.support.ending import killed_at_last, printed
from tests.support.kafka_versions import of_long
from tests.support.mirrors import properties_of
from tests.support.shared_clusters import SMALL_HEAP, ForgetfulCluster
from tests.support.waiting import wait_until
from tests.support.weak_brokers import DELETE_TOPICS, MARKERS, weaken
from tests.support.wire import Wire, hang_up, swallow

HOLDS, WEAKER, UNKNOWN, BROKEN = Verdict.HOLDS, Verdict.WEAKER, Verdict.UNKNOWN, Verdict.BROKEN


def left(cluster: SandboxCluster) -> list[str]:
    """Return the topics of probes that are still there."""
    with ClusterClient(client_config(cluster.client_properties())) as client:
        return [name for name in client.metadata().topics if name.startswith(PROBE_TOPICS)]


def guarantees(report: CheckReport) -> dict[str, CheckLine]:
    return {line.what: line for line in report.lines if line.guarantee is not None}


def verdicts(report: CheckReport) -> dict[str, Verdict | None]:
    return {what: line.guarantee for what, line in guarantees(report).items()}


def not_holding(report: CheckReport) -> dict[str, Verdict | None]:
    """Return the guarantees that do not hold; brokers without an authorizer never protect topics."""
    return {what: verdict for what, verdict in verdicts(report).items() if verdict is not HOLDS and what != "ACLs"}


def test_a_stock_broker_guarantees_everything(cluster_pair: ClusterPair) -> None:
    report = check(properties_of(cluster_pair.destination), probe=True)
    assert (report.exit_code, not_holding(report), left(cluster_pair.destination)) == (ExitCode.OK, {}, [])
    assert list(verdicts(report)) == [
        *("topic settings", "sequence numbers", "own producer ids", "log end", "records", "batches", "timestamps"),
        *("batch size", "markers", "fence", "log starts", "topic ids", "ACLs"),
    ]
    assert "zstd" in guarantees(report)["batches"].message
    assert guarantees(report)["ACLs"].message.startswith("weaker: mirror topics are not protected")
    elsewhere = check(properties_of(cluster_pair.destination), expect_cluster_id="another", probe=True)
    assert (elsewhere.exit_code, verdicts(elsewhere)) == (ExitCode.REFUSED, {})
    documents = {one["check"]: one["guarantee"] for one in report.to_json()["checks"]}
    assert (documents["fence"], documents["reachable"]) == ("HOLDS", None)


@pytest.mark.parametrize("version", [pytest.param("2.8.2", marks=pytest.mark.slow), *of_long(("3.6.2", "3.9.2"))])
def test_brokers_of_other_versions_do_too(make_cluster: MakeCluster, version: str) -> None:
    older = make_cluster("older", kafka_version=version, heap=SMALL_HEAP)
    assert (not_holding(check(properties_of(older), probe=True)), left(older)) == ({}, [])


@pytest.mark.slow
def test_several_brokers_do_too(three_brokers: SandboxCluster) -> None:
    assert (not_holding(check(properties_of(three_brokers), probe=True)), left(three_brokers)) == ({}, [])


@pytest.fixture
def weak(forgetful: ForgetfulCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Return the wire to the broker; at the end it is straight again, and no topic is left."""
    monkeypatch.setattr(probe_topic, "_VISIBLE_WITHIN_S", 1.0)
    yield forgetful.wire
    forgetful.wire.calm()
    assert left(forgetful.cluster) == []


#: What does not hold either where one thing is broken.
FOLLOWING = {
    "checks no sequence": {"own producer ids", "fence"},
    "assigns producer ids": {"fence"},
    "reports another log end": {"markers", "log starts"},
    "changes values": {"batches"},
    "sets timestamps": {"batches"},
}


@pytest.mark.parametrize(
    ("how", "what", "verdict", "named"),
    [
        ("checks no sequence", "sequence numbers", BROKEN, "a batch after a gap is not refused"),
        ("appends repeats", "sequence numbers", BROKEN, "a repeated batch is appended a second time"),
        ("assigns producer ids", "own producer ids", BROKEN, "is stored with"),
        ("reports another log end", "log end", BROKEN, "is reported as 2"),
        pytest.param("changes values", "records", BROKEN, "value of stored records differ", marks=pytest.mark.slow),
        ("sets timestamps", "records", BROKEN, "timestamp of stored records differ"),
        ("compresses again", "batches", WEAKER, "none to gzip"),
        pytest.param("refuses a codec", "batches", WEAKER, "refused: gzip", marks=pytest.mark.slow),
        pytest.param(
            "refuses old records",
            "timestamps",
            WEAKER,
            "of 2001 (INVALID_TIMESTAMP 32), of next year",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "takes small batches",
            "batch size",
            WEAKER,
            "of 2,097,152 bytes refused (MESSAGE_TOO_LARGE 10)",
            marks=pytest.mark.slow,
        ),
        pytest.param("writes markers twice", "markers", BROKEN, "another client wrote to it", marks=pytest.mark.slow),
        ("writes stale markers", "markers", BROKEN, "an earlier coordinator epoch"),
        ("does not fence", "fence", BROKEN, "a batch of the fenced producer is appended"),
        ("trims nothing", "log starts", BROKEN, "from 0 to 100000"),
        ("keeps deleted topics", "topic ids", BROKEN, "a deleted topic is still there"),
        ("reuses topic ids", "topic ids", BROKEN, "has the id of the old one"),
    ],
)
def test_what_a_broker_does_not_guarantee_is_named(
    forgetful: ForgetfulCluster, weak: Wire, how: str, what: str, verdict: Verdict, named: str
) -> None:
    weaken(weak, how)
    report = check(properties_of(forgetful.behind_wire), probe=True)
    found = not_holding(report)
    assert found[what] is verdict
    assert found.keys() - {what} == FOLLOWING.get(how, set())
    assert named in guarantees(report)[what].message
    assert report.exit_code == (ExitCode.REFUSED if verdict is BROKEN else ExitCode.OK)


@pytest.mark.slow
def test_a_missing_right_is_named_and_nothing_is_left(guarded_cluster: SandboxCluster) -> None:
    properties = guarded_cluster.client_properties("kmirror")
    with ClusterClient(client_config(guarded_cluster.client_properties())) as admin:
        give(admin, acls("topic", PROBE_TOPICS, "kmirror", "CREATE", "READ", "WRITE", prefixed=True))
        (refused,) = [line for line in check(properties, probe=True).lines if line.what == "probe"]
        assert (refused.ok, refused.reason, left(guarded_cluster)) == (False, Reason.NOT_AUTHORIZED, [])
        assert refused.message == f"nothing was probed: we lack DELETE on topics {PROBE_TOPICS}*"
        assert "--operation Delete" in (refused.hint or "")
        give(admin, acls("topic", PROBE_TOPICS, "kmirror", "DELETE", prefixed=True))
        bare = check(properties, probe=True)
        assert not_holding(bare) == dict.fromkeys(("markers", "empty transactions", "fence"), UNKNOWN)
        assert verdicts(bare)["fence by record"] is HOLDS
        assert verdicts(bare)["ACLs"] is UNKNOWN
        assert "--operation Alter --cluster" in (guarantees(bare)["fence"].hint or "")
        give(admin, acls("transactional_id", "kmirror-", "kmirror", "WRITE", prefixed=True))
        assert verdicts(check(properties, probe=True))["empty transactions"] is HOLDS
    full = check(guarded_cluster.client_properties(), probe=True)
    assert (not_holding(full), verdicts(full)["ACLs"], left(guarded_cluster)) == ({}, HOLDS, [])


def test_a_topic_that_may_be_left_is_named(weak: Wire) -> None:
    weak.lie(DELETE_TOPICS, hang_up)
    report = check({"bootstrap.servers": f"{weak.host}:{weak.port}"}, probe=True)
    *_, last = report.lines
    assert (verdicts(report)["topic ids"], last.ok, report.exit_code) == (UNKNOWN, False, ExitCode.UNREACHABLE)
    assert last.message.startswith(f"topic {PROBE_TOPICS}")
    assert "may be left" in last.message
    assert (last.hint or "").startswith("kafka-topics --bootstrap-server")


@pytest.mark.slow
def test_it_runs_once_at_a_time_and_its_topic_goes_with_it(forgetful: ForgetfulCluster, weak: Wire) -> None:
    assert PROBE_TOPICS.startswith("__kmirror_")  # which no filter, `add` or discovery takes
    wired, there = forgetful.behind_wire, properties_of(forgetful.cluster)
    weak.lie(MARKERS, swallow)

    @contextmanager
    def begun() -> Iterator[subprocess.Popen[str]]:
        """Begin a probe that waits for an answer until the end of time."""
        command = ["-m", "kmirror", "check", "--probe", "--bootstrap-server", wired.bootstrap_servers]
        spoiled, pipe = weak.spoiled, subprocess.PIPE
        started = subprocess.Popen([sys.executable, *command], stdout=pipe, stderr=pipe, text=True)
        with killed_at_last(started) as process:
            wait_until(lambda: weak.spoiled > spoiled or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            yield process

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130)):
        with begun() as process:
            assert len(left(forgetful.cluster)) == 1
            process.send_signal(number)
            said = printed(process)
            assert (process.returncode, left(forgetful.cluster)) == (code, []), said
    with begun():  # and killed at the end
        (name,) = left(forgetful.cluster)
        (refused,) = [line for line in check(there, probe=True).lines if line.what == "probe"]
        assert (refused.ok, refused.message) == (False, f"another probe of this cluster is running (topic {name})")
        assert left(forgetful.cluster) == [name]
    assert left(forgetful.cluster) == [name]
    assert check(there, probe=True).exit_code is ExitCode.OK
    wait_until(lambda: not left(forgetful.cluster))
