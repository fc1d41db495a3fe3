"""The verbs as scripts use them: two real clusters, JSON in the shape that is promised; the main ones as processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cli.main import main
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import kmirror, typed
from tests.support.new_topics import create_and_wait
from tests.support.strict_html import StrictHtml

NUMBER, TEXT, FLAG, NULL = int, str, bool, type(None)

DESCRIBE_KEYS: dict[str, tuple[type, ...]] = {
    "mirror": (TEXT,),
    "topic": (TEXT,),
    "partition": (NUMBER,),
    "sourceOffset": (NUMBER, NULL),
    "destinationOffset": (NUMBER, NULL),
    "lag": (NUMBER, NULL),
    "state": (TEXT,),
    "retryAttempt": (NUMBER,),
    "errorMessage": (TEXT, NULL),
    "sourceTopic": (TEXT,),
    "topicState": (TEXT,),
    "reason": (TEXT, NULL),
    "stateTimeMs": (NUMBER, NULL),
    "timeLagMs": (NUMBER, NULL),
    "lastKnownLag": (NUMBER, NULL),
    "sourceLogStart": (NUMBER, NULL),
    "destinationLogStart": (NUMBER, NULL),
    "sourceHighWatermark": (NUMBER, NULL),
    "lastMirroredOffset": (NUMBER, NULL),
    "lastMirroredEpoch": (NUMBER, NULL),
    "initialCopyComplete": (FLAG,),
    "initialCopyAt": (NUMBER, NULL),
    "rebuiltAt": (NUMBER, NULL),
    "archive": (TEXT, NULL),
    "offsetsToArchive": (NUMBER, NULL),
    "archiveLogEnd": (NUMBER, NULL),
    "asOf": (NUMBER, NULL),
    "engine": (TEXT, NULL),
    "engineLastSeenMs": (NUMBER, NULL),
    "engineAgeMs": (NUMBER, NULL),
    "keptBeyondSourceLogStart": (NUMBER, NULL),
    "objectiveMs": (NUMBER, NULL),
    "throttleBytesPerSecond": (NUMBER, NULL),
    "bytesPerSecond": (NUMBER, NULL),
    "recordsPerSecond": (float, NULL),
    "etaMs": (NUMBER, NULL),
    "offsetsToFill": (NUMBER, NULL),
    "lane": (NUMBER, NULL),
    "worker": (TEXT, NULL),
    "limitedBy": (TEXT, NULL),
    "objectiveState": (TEXT, NULL),
}
LIST_KEYS: dict[str, tuple[type, ...]] = {
    "mirror": (TEXT,),
    "topics": (NUMBER,),
    "partitions": (NUMBER,),
    "sourceClusterId": (TEXT, NULL),
    "sourceBootstrapServer": (TEXT, NULL),
    "state": (TEXT, NULL),
    "engine": (TEXT, NULL),
    "maxLag": (NUMBER, NULL),
    "reason": (TEXT, NULL),
    "engineLastSeenMs": (NUMBER, NULL),
    "engineAgeMs": (NUMBER, NULL),
    "throttleBytesPerSecond": (NUMBER, NULL),
    "bytesPerSecond": (NUMBER, NULL),
    "maxTimeLagMs": (NUMBER, NULL),
    "etaMs": (NUMBER, NULL),
    "lagUnknown": (NUMBER,),
    "stoppedTopics": (NUMBER,),
    "objectivesWithin": (NUMBER,),
    "objectivesBreached": (NUMBER,),
    "objectivesUnknown": (NUMBER,),
    "notAdded": (NUMBER, NULL),
    "failingJobs": (NUMBER, NULL),
}
VERB_KEYS = ["verb", "mirror", "dryRun", "exitCode", "results", "groups", "error"]
RESULT_KEYS = ["topic", "partition", "result", "reason", "message", "lastMirroredOffset", "lag"]


def assert_shape(document: dict[str, Any], keys: dict[str, tuple[type, ...]]) -> None:
    assert list(document) == list(keys)
    for key, types in keys.items():
        assert type(document[key]) in types, (key, document[key])


def make_topic(cluster: SandboxCluster, topic: str, partitions: int, records: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    create_and_wait(admin, NewTopic(topic, partitions, 1))
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(records):
        producer.produce(topic, f"value-{number}", str(number), partition=number % partitions)
    assert producer.flush(30) == 0


def properties_file(folder: Path, source: SandboxCluster | str, **more: str) -> str:
    servers = source if isinstance(source, str) else source.bootstrap_servers
    lines = [f"bootstrap.servers={servers}", *(f"{key}={value}" for key, value in more.items())]
    path = folder / "source.properties"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def mirrors(destination: SandboxCluster) -> list[dict[str, Any]]:
    listed = typed(destination, "list", "--json")
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


#: Keys of `list` whose values grow with time.
PASSING = ("engineAgeMs", "maxTimeLagMs")


def lasting(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what changes as time goes by."""
    return [{key: value for key, value in row.items() if key not in PASSING} for row in listed]


def test_from_create_to_describe(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path
) -> None:
    mirror, topic = unique_topic("m"), unique_topic("cli")
    make_topic(source_cluster, topic, 2, records=10)
    properties = properties_file(tmp_path, source_cluster)
    create = ("create", "--mirror", mirror, "--mirror-config", properties)
    add = ("add", "--mirror", mirror, "--topics", topic)

    tried = typed(destination_cluster, *create, "--dry-run", "--json")
    assert (tried.returncode, tried.stderr) == (0, "")
    document = json.loads(tried.stdout)
    assert list(document) == VERB_KEYS
    assert (document["dryRun"], document["exitCode"], document["error"]) == (True, 0, None)
    assert mirror not in [row["mirror"] for row in mirrors(destination_cluster)]

    created = kmirror(destination_cluster, *create)
    assert (created.returncode, created.stderr) == (0, "")
    assert created.stdout == (
        f"created mirror {mirror} of cluster {source_cluster.cluster_id} at {source_cluster.bootstrap_servers}\n"
    )
    (listed,) = [row for row in mirrors(destination_cluster) if row["mirror"] == mirror]
    assert_shape(listed, LIST_KEYS)
    assert (listed["topics"], listed["sourceClusterId"], listed["state"]) == (0, source_cluster.cluster_id, None)

    again = kmirror(destination_cluster, *create, "--json")
    assert again.returncode == 3
    assert json.loads(again.stdout)["error"]["message"] == f"mirror {mirror} already exists"
    same = typed(destination_cluster, *create, "--if-not-exists", "--json")
    assert same.returncode == 0
    assert json.loads(same.stdout)["results"][0]["result"] == "NOOP"

    planned = typed(destination_cluster, *add, "--dry-run", "--json")
    assert planned.returncode == 0
    assert [(row["topic"], row["result"]) for row in json.loads(planned.stdout)["results"]] == [(topic, "DONE")]
    assert json.loads(typed(destination_cluster, "describe", "--mirror", mirror, "--json").stdout) == []
    admin = AdminClient({"bootstrap.servers": destination_cluster.bootstrap_servers})
    assert topic not in admin.list_topics(timeout=30).topics

    for expected in ("DONE", "NOOP"):
        added = kmirror(destination_cluster, *add, "--json")
        assert added.returncode == 0, added.stderr
        (row,) = json.loads(added.stdout)["results"]
        assert list(row) == RESULT_KEYS
        assert (row["topic"], row["partition"], row["result"]) == (topic, None, expected)

    for others in ((), ("--all",)):
        planned = typed(destination_cluster, "run", *(others or ("--mirror", mirror)), "--dry-run", "--json")
        assert planned.returncode == 0, planned.stderr
        document = json.loads(planned.stdout)
        assert (list(document), document["verb"], document["dryRun"]) == (VERB_KEYS, "run", True)
        (row,) = [row for row in document["results"] if row["topic"] == topic]
        assert (row["result"], row["message"]) == ("DONE", "would copy 2 partitions")

    described = kmirror(destination_cluster, "describe", "--mirror", mirror, "--json")
    assert described.returncode == 0
    rows = json.loads(described.stdout)
    assert [(row["topic"], row["partition"], row["sourceOffset"], row["lag"]) for row in rows] == [
        (topic, 0, 5, 5),
        (topic, 1, 5, 5),
    ]
    for row in rows:
        assert_shape(row, DESCRIBE_KEYS)

    shown = kmirror(destination_cluster, "describe", "--topics", topic)
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["MIRROR", "TOPIC", "PARTITION", "SOURCE-OFFSET", "DESTINATION-OFFSET", "LAG", "STATE"],
        [mirror, topic, "0", "5", "0", "5", "NO_ENGINE", "(LOG_ALIGNMENT)"],
        [mirror, topic, "1", "5", "0", "5", "NO_ENGINE", "(LOG_ALIGNMENT)"],
    ]
    assert shown.stderr == (
        f"{mirror}: 2 partitions not copied: no engine copies mirror {mirror}; "
        f"`kmirror run --mirror {mirror}` starts one\n"
    )

    page = tmp_path / "report.html"
    for _ in range(2):
        reported = kmirror(destination_cluster, "report", "--mirror", mirror, "--html", str(page))
        assert (reported.returncode, reported.stderr) == (0, "")
        assert reported.stdout.startswith(f"wrote {page} (")
    reported = kmirror(destination_cluster, "report", "--mirror", mirror, "--html", str(page), "--json")
    (row,) = json.loads(reported.stdout)["results"]
    assert (reported.returncode, row["message"].startswith(f"wrote {page} (")) == (0, True)
    printed = typed(destination_cluster, "report", "--mirror", mirror, "--html", "-")
    for document in (page.read_text(encoding="utf-8"), printed.stdout):
        text = StrictHtml(document).text()
        assert f"Nothing is copied now: no engine copies mirror {mirror}" in text
        assert "the destination lacked 10 offsets." in text
        assert "There is no history of the last 48 hours" in text
        assert source_cluster.cluster_id in text

    waited = typed(destination_cluster, "wait", "--mirror", mirror, "--for", "caught-up", "--timeout", "1s", "--json")
    assert waited.returncode == 5
    assert [row["result"] for row in json.loads(waited.stdout)["results"]] == ["TIMED_OUT"]

    kept = kmirror(destination_cluster, "delete", "--mirror", mirror, "--yes")
    assert kept.returncode == 3
    assert mirror in [row["mirror"] for row in mirrors(destination_cluster)]


def test_settings_can_be_seen_and_changed(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path
) -> None:
    mirror = unique_topic("m")
    properties = properties_file(tmp_path, source_cluster)
    assert typed(destination_cluster, "create", "--mirror", mirror, "--mirror-config", properties).returncode == 0
    change = ("config", "--mirror", mirror, "--set", "copy.lanes=4")

    def lanes() -> tuple[str, bool]:
        shown = typed(destination_cluster, "config", "--mirror", mirror, "--json")
        (row,) = [row for row in json.loads(shown.stdout) if row["key"] == "copy.lanes"]
        return row["value"], row["default"]

    assert lanes() == ("auto", True)
    assert typed(destination_cluster, *change, "--dry-run").returncode == 0
    assert lanes() == ("auto", True)
    assert typed(destination_cluster, *change).returncode == 0
    assert lanes() == ("4", False)
    assert typed(destination_cluster, "config", "--mirror", mirror, "--unset", "copy.lanes").returncode == 0
    assert lanes() == ("auto", True)
    unsure = typed(destination_cluster, "delete", "--mirror", mirror)
    assert unsure.returncode == 3
    assert unsure.stderr.endswith(
        "kmirror: this must be confirmed, and there is no terminal to ask on\n  add --yes to proceed\n"
    )
    assert f"source:       {source_cluster.cluster_id}" in unsure.stderr
    assert f"destination:  {destination_cluster.cluster_id}" in unsure.stderr
    assert typed(destination_cluster, "delete", "--mirror", mirror, "--dry-run").returncode == 0
    assert mirror in [row["mirror"] for row in mirrors(destination_cluster)]
    assert typed(destination_cluster, "delete", "--mirror", mirror, "--yes").returncode == 0
    again = typed(destination_cluster, "delete", "--mirror", mirror, "--yes")
    assert (again.returncode, "was already deleted by" in again.stdout, "dry run" in again.stdout) == (0, True, False)
    assert mirror not in [row["mirror"] for row in mirrors(destination_cluster)]


def test_check(source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path) -> None:
    properties = properties_file(tmp_path, source_cluster)
    well = typed(destination_cluster, "check", "--mirror-config", properties)
    assert well.returncode == 0
    assert well.stdout.splitlines()[-1] == "all checks passed"
    assert all(line.startswith("ok ") for line in well.stdout.splitlines()[:-1])
    ill = typed(destination_cluster, "check", "--mirror-config", properties_file(tmp_path, "127.0.0.1:1"), "--json")
    assert ill.returncode == 6
    report = json.loads(ill.stdout)
    assert report["exitCode"] == 6
    assert {(line["cluster"], line["ok"]) for line in report["checks"]} == {("destination", True), ("source", False)}
    probed = typed(destination_cluster, "check", "--probe", "--json")
    assert (probed.returncode, "HOLDS" in probed.stdout) == (0, True)


@pytest.fixture(scope="module")
def mirror(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the name of a mirror without topics."""
    name = unique_topic("m")
    properties = properties_file(tmp_path_factory.mktemp("mirror"), source_cluster)
    assert typed(destination_cluster, "create", "--mirror", name, "--mirror-config", properties).returncode == 0
    return name


BAD_INPUT: list[tuple[list[str], int, str]] = [
    (["describe", "--mirror", "nobody-knows-it"], 3, "there is no mirror nobody-knows-it on this destination"),
    (["run", "--mirror", "nobody-knows-it"], 3, "there is no mirror nobody-knows-it on this destination"),
    (["run", "--mirror", "nobody-knows-it", "--dry-run"], 3, "there is no mirror nobody-knows-it on this destination"),
    (["verify", "--mirror", "nobody-knows-it"], 3, "there is no mirror nobody-knows-it on this destination"),
    (["add", "--mirror", "MIRROR", "--topics", "no-such-topic"], 3, "the source has no topic no-such-topic"),
    (["describe", "--mirror", "MIRROR", "--topics", "no-such-topic"], 3, "no-such-topic"),
    (["config", "--mirror", "MIRROR", "--set", "copy.lane=3"], 2, "unknown setting copy.lane"),
    (["config", "--mirror", "MIRROR", "--set", "copy.lanes=0"], 2, "copy.lanes=0 is not a whole number from 1 to 256"),
    (["config", "--mirror", "MIRROR", "--unset", "nothing"], 2, "unknown setting nothing"),
    (["list", "--expect-cluster-id", "another"], 3, "not another"),
    (["run", "--mirror", "MIRROR", "--standby", "--take-over"], 2, "--standby and --take-over exclude each other"),
    (
        ["run", "--mirror", "MIRROR", "--for", "1s", "--until-caught-up"],
        2,
        "--until-caught-up exclude each other",
    ),
    (["run", "--mirror", "MIRROR", "--master", "nonsense"], 2, "nonsense"),
    (["verify", "--mirror", "MIRROR", "--sample", "-1"], 2, "--sample -1 is not a number"),
    (["verify", "--mirror", "MIRROR", "--report", "/nowhere/report.json"], 2, "--report: cannot write"),
    (["wait", "--mirror", "MIRROR", "--for", "healthy", "--timeout", "1s"], 3, "has no topics yet"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_INPUT)
def test_bad_input_is_refused_and_changes_nothing(
    capsys: pytest.CaptureFixture[str],
    destination_cluster: SandboxCluster,
    mirror: str,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    before = lasting(mirrors(destination_cluster))
    words = [mirror if word == "MIRROR" else word for word in arguments]
    assert main([*words, "--bootstrap-server", destination_cluster.bootstrap_servers, "--json"]) == code
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert message in error["message"]
    # the log of a run goes before it
    assert f"kmirror: {error['message']}\n" in captured.err
    assert lasting(mirrors(destination_cluster)) == before


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        ({"ssl.keystore.password": "hunter2"}, 3, "ssl.keystore.password: plaintext secrets are not stored"),
        ({"topics.includ": "a"}, 2, "unknown setting topics.includ"),
        ({"retry.timeout.ms": "-1"}, 2, "retry.timeout.ms=-1 is not a whole number"),
        ({"topics.include": "a("}, 2, "topics.include: the pattern a( is not understood"),
        ({"bootstrap.servers": "DESTINATION"}, 3, "source and destination are the same cluster"),
        ({"bootstrap.servers": "127.0.0.1:1"}, 6, "the source: cannot connect to 127.0.0.1:1"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, 2, "sasl.jaas.config is missing"),
    ],
)
def test_a_bad_mirror_file_is_refused_and_nothing_is_stored(
    capsys: pytest.CaptureFixture[str],
    source_cluster: SandboxCluster,
    destination_cluster: SandboxCluster,
    tmp_path: Path,
    lines: dict[str, str],
    code: int,
    message: str,
) -> None:
    server = destination_cluster.bootstrap_servers
    file = properties_file(tmp_path, source_cluster, **lines).replace("DESTINATION", server)
    path = Path(file)
    path.write_text(path.read_text(encoding="utf-8").replace("DESTINATION", server), encoding="utf-8")
    name = unique_topic("bad")
    assert main(["create", "--mirror", name, "--mirror-config", file, "--bootstrap-server", server]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kmirror: ")
    assert message in captured.err
    assert "hunter2" not in captured.err
    assert name not in [row["mirror"] for row in mirrors(destination_cluster)]


def test_a_topic_that_is_there_already_is_refused(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, mirror: str
) -> None:
    topic = unique_topic("there")
    make_topic(source_cluster, topic, 1, records=3)
    make_topic(destination_cluster, topic, 1, records=5)
    refused = typed(destination_cluster, "add", "--mirror", mirror, "--topics", topic)
    assert refused.returncode == 3
    assert f"topic {topic} already exists on the destination" in refused.stderr
    adopted = typed(destination_cluster, "add", "--mirror", mirror, "--topics", topic, "--adopt")
    assert adopted.returncode in {3, 7}
    assert mirror not in [row["mirror"] for row in json.loads(typed(destination_cluster, "describe", "--json").stdout)]
