"""`run` and `verify` as scripts use them: what they print, and how they end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import command, kmirror, typed
from tests.support.groups import commit
from tests.support.mirrors import make_topic

PARTITIONS, RECORDS = 2, 500
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(scope="module")
def mirrored(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """Return a mirror and its one topic, of which nothing is copied yet."""
    mirror, topic = unique_topic("m"), unique_topic("run")
    admin = AdminClient({"bootstrap.servers": source_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(topic, f"value-{number}", partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    file = tmp_path_factory.mktemp("mirror") / "source.properties"
    file.write_text(f"bootstrap.servers={source_cluster.bootstrap_servers}\n", encoding="utf-8")
    assert typed(destination_cluster, "create", "--mirror", mirror, "--mirror-config", str(file)).returncode == 0
    assert typed(destination_cluster, "add", "--mirror", mirror, "--topics", topic).returncode == 0
    return mirror, topic


def test_run_until_caught_up_then_verify(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, mirrored: tuple[str, str], tmp_path: Path
) -> None:
    mirror, topic = mirrored
    group = unique_topic("group")
    commit(source_cluster, group, topic, {0: 10})
    commit(destination_cluster, group, topic, {0: 0})
    ran = kmirror(destination_cluster, "run", "--mirror", mirror, "--until-caught-up", "--timeout", "2m", "--json")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert (document["verb"], document["mirror"], document["exitCode"], document["error"]) == ("run", mirror, 0, None)
    assert [(row["topic"], row["partition"], row["result"], row["lag"]) for row in document["results"]] == [
        (topic, 0, "DONE", 0),
        (topic, 1, "DONE", 0),
    ]
    # the group was committed here too: it is left alone, and that is reported
    assert [(row["group"], row["result"]) for row in document["groups"]] == [(group, "REFUSED")]
    assert f"group {group} of {mirror} is not in sync with the source" in ran.stderr
    waited = typed(destination_cluster, "wait", "--mirror", mirror, "--for", "caught-up", "--timeout", "1s")
    assert waited.returncode == 0

    evidence = tmp_path / "evidence.json"
    arguments = ("--mirror", mirror, "--json", "--report", str(evidence))
    verified = kmirror(destination_cluster, "verify", *arguments, with_spark=False)
    assert verified.returncode == 0, verified.stderr
    rows = json.loads(verified.stdout)["results"]
    assert [(row["partition"], row["result"], row["recordsCompared"]) for row in rows] == [
        (0, "DONE", RECORDS // PARTITIONS),
        (1, "DONE", RECORDS // PARTITIONS),
    ]
    report = json.loads(evidence.read_text(encoding="utf-8"))
    assert (report["verb"], report["mirror"], report["exitCode"]) == ("verify", mirror, 0)
    assert list(tmp_path.iterdir()) == [evidence]


@pytest.mark.slow
def test_a_mirror_without_topics_has_not_caught_up_with_those_that_its_filters_select(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path
) -> None:
    topic, empty, lacking = unique_topic("there"), unique_topic("empty"), unique_topic("lacking")
    for cluster in (source_cluster, destination_cluster):  # what exists here is not adopted
        make_topic(cluster, topic)
    file = tmp_path / "source.properties"
    file.write_text(f"bootstrap.servers={source_cluster.bootstrap_servers}\n", encoding="utf-8")
    for mirror, more in ((empty, ()), (lacking, ("--config", f"topics.include={topic}"))):
        created = typed(destination_cluster, "create", "--mirror", mirror, "--mirror-config", str(file), *more)
        assert created.returncode == 0
    left = f"1 source topic matches the mirror's filters and is not mirrored, so not %s: {topic}"
    both = ("--mirror", empty, "--mirror", lacking)
    ran = kmirror(destination_cluster, "run", *both, "--until-caught-up", "--timeout", "2m", "--json")
    assert ran.returncode == 3, ran.stderr
    assert left % "copied" in json.loads(ran.stdout)["error"]["hint"]
    assert f"warning: nothing was copied: mirror {empty} has no topics to copy" in ran.stderr
    for mirror, code in ((empty, 0), (lacking, 3)):
        verified = kmirror(destination_cluster, "verify", "--mirror", mirror, with_spark=False)
        assert verified.returncode == code, verified.stderr
        assert verified.stdout == "nothing compared: the mirror has no topics\n"
        assert f"mirror {mirror} has no topics yet: nothing was compared" in verified.stderr
        assert (left % "compared" in verified.stderr) is bool(code)
    # once others are copied, it is a warning
    make_topic(source_cluster, f"{topic}-too")
    changed = typed(destination_cluster, "config", "--mirror", lacking, "--set", f"topics.include={topic}.*")
    assert changed.returncode == 0
    ran = kmirror(destination_cluster, "run", "--mirror", lacking, "--until-caught-up", "--timeout", "2m")
    assert ran.returncode == 0, ran.stderr
    assert f"warning: {left % 'copied'}" in ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "with_spark"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), pytest.param(signal.SIGINT, True, marks=pytest.mark.slow)],
)
def test_a_run_ends_on_request(
    destination_cluster: SandboxCluster,
    mirrored: tuple[str, str],
    tmp_path: Path,
    number: signal.Signals,
    with_spark: bool,
) -> None:
    mirror, topic = mirrored
    log = tmp_path / "run.log"
    engine = subprocess.Popen(
        command(destination_cluster, "run", "--mirror", mirror, "--log-file", str(log), with_spark=with_spark),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert engine.stdout is not None
        time, level, named, first = engine.stdout.readline().split(maxsplit=3)
        assert (re.fullmatch(TIME, time) is not None, level, named) == (True, "INFO", mirror)
        assert re.search(r"process \d+ on \S+, Spark master local\[\*\]; Spark logs to /\S+/spark-\d+\.log$", first)
        assert re.fullmatch(rf"{TIME} INFO    {mirror} starting\n", engine.stdout.readline())
        # one lane with both, or a machine with many cores has one for each
        runs = re.compile(rf" lane 0 of {mirror} runs, with (1 partition|2 partitions)$", re.MULTILINE)
        assert any(runs.search(line) for line in engine.stdout)
        if number is signal.SIGINT:
            second = kmirror(destination_cluster, "run", "--mirror", mirror, with_spark=False)
            assert second.returncode == 3
            assert second.stderr.startswith("kmirror: ")
        engine.send_signal(number)
        out, err = engine.communicate(timeout=120)
    finally:
        engine.kill()
    assert (engine.returncode, err) == (0, "")
    assert out.splitlines()[-1].startswith("stopped after ")
    lines = log.read_text().splitlines()
    # on a busy machine Spark may need longer for its first workers than they may be silent
    late = re.compile(rf"{TIME} (ERROR   |INFO    ){mirror} {mirror}: (no worker has|all lanes report again)")
    lines = [line for line in lines if not late.match(line)]
    assert all(re.match(rf"{TIME} (INFO   |WARNING) {mirror} ", line) for line in lines), "\n".join(lines)
    messages = [line.split(maxsplit=3)[3] for line in lines]
    assert messages[-1].startswith("stopped after ")
    assert any(one.startswith("copying: 1 topic, 2 partitions, total lag ") for one in messages)
    # the second run finds it copied before
    assert {f"{topic}: PENDING_MIRROR", f"{topic}: ACTIVE"} & set(messages)
    # a few seconds of a mirror to which nothing happens
    assert len(lines) < 20, "\n".join(lines)
