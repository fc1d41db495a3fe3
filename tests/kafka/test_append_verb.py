"""`kmirror append`: records from a file, to real brokers; what it refuses, and what it says when it ends half-way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import UsageError
from kmirror.ops.add.add import add
from kmirror.ops.append import append_file
from kmirror.ops.append.append_file import Refusals, append
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.show.events import events
from kmirror.ops.stop.failover import failover
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.records import DesiredState, PartitionState
from kmirror.state.snapshot import Changes
from kmirror.state.store import StateStore
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import kmirror
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, selector
from tests.support.visible import shown

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*rows: dict[str, Any]) -> str:
        file = tmp_path / "records.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write


def row(topic: str, offset: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    value = f"value-{offset}"
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": 1_700_000_000_000 + offset,
        "key": "k",
        "value": value,
        **more,
    }


def values(cluster: SandboxCluster, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in shown(cluster, topic, partition)]


def test_records_of_a_file_land_where_it_says(destination_cluster: SandboxCluster, write: Write) -> None:
    topic = unique_topic()
    make_topic(destination_cluster, topic, 2, retention_ms="-1")
    file = write(
        row(topic, 0),
        row(topic, 0, 1, key=None, value="AP8=", encoding="base64", headers=[{"key": "h", "value": "AA=="}]),
        row(topic, 1),
    )
    drill = kmirror(destination_cluster, "append", file, "--dry-run", "--json")
    assert drill.returncode == 0, drill.stderr
    messages = [one["message"] for one in json.loads(drill.stdout)["results"]]
    assert messages == ["2 records would be appended at offsets 0 to 1", "1 record would be appended at offset 0"]
    refused = kmirror(destination_cluster, "append", "--file", file)
    assert refused.returncode == 3
    assert "no terminal" in refused.stderr
    assert values(destination_cluster, topic) == []
    done = kmirror(destination_cluster, "append", "--file", file, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    check("result", document)
    assert document["mirror"] is None
    assert [(one["topic"], one["partition"], one["result"]) for one in document["results"]] == [
        (topic, 0, "DONE"),
        (topic, 1, "DONE"),
    ]
    assert values(destination_cluster, topic) == [(0, b"value-0"), (1, b"value-1")]
    (binary,) = shown(destination_cluster, topic, 1)
    assert (binary.key, binary.value, binary.headers) == (None, b"\0\xff", (("h", b"\0"),))
    assert binary.timestamp == 1_700_000_000_000
    again = kmirror(destination_cluster, "append", "--file", file, "--yes")
    assert again.returncode == 3
    assert "ends at offset 2" in again.stdout


def test_nothing_is_written_where_one_partition_is_refused(
    destination_cluster: SandboxCluster, destination: Destination, write: Write
) -> None:
    own = unique_topic()
    make_topic(destination_cluster, own, 2)
    absent = unique_topic()
    done = append(
        destination,
        write(row(own, 0), row(own, 5, 1), row(own, 0, 2), row(absent, 0),
              row("__kmirror_state", 0)),
    )  # fmt: skip
    assert done.exit_code == 3
    found = {(one.topic, one.partition): one for one in done.results}
    assert {one.result for one in done.results} == {Outcome.REFUSED}
    assert "other partitions are refused" in str(found[own, 0].message)
    assert "ends at offset 0, but the file begins at offset 5" in str(found[own, 1].message)
    assert "no partition 2" in str(found[own, 2].message)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(found[absent, 0].message)
    assert "internal" in str(found["__kmirror_state", 0].message)
    assert append(destination, write(row(own, 0)), dry_run=True).exit_code == 0, "still empty"


def test_a_mirror_topic_is_left_alone_until_it_is_paused(
    cluster_pair: ClusterPair, destination: Destination, write: Write
) -> None:
    """Records that the source has at these offsets are then taken over by the copy."""
    mirror, topic = new_mirror(destination, cluster_pair.source), unique_topic()
    make_topic(cluster_pair.source, topic, retention_ms="-1")
    produce(cluster_pair.source, topic, ["one", "two"])
    assert add(destination, mirror, selector(topic)).exit_code == 0
    first = shown(cluster_pair.source, topic)[0]
    assert first.key is not None
    assert first.value is not None
    file = write(row(topic, 0, key=first.key.decode(), value=first.value.decode(), timestamp=first.timestamp))
    refused = append(destination, file, dry_run=True)
    assert (refused.exit_code, refused.results[0].result) == (3, Outcome.REFUSED)
    assert refused.results[0].message == f"{topic} is mirrored by {mirror}: engines append to it"
    assert f"kmirror pause --mirror {mirror} --topics {topic}" in str(refused.results[0].hint)

    assert pause(destination, mirror, selector(topic)).exit_code == 0
    done = append(destination, file)
    assert done.exit_code == 0, done.results
    assert len(done.warnings) == 1
    assert "DESTINATION_WRITTEN" in done.warnings[0]
    *_, noted = events(destination, mirror).events
    assert (noted.what, noted.result) == ("append", "OK")
    assert noted.details["partitions"] == [f"{topic}-0: 1 record is appended at offset 0"]
    assert resume(destination, mirror, selector(topic)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        assert pause(destination, mirror, selector(topic)).exit_code == 0
        beside = append(destination, write(row(topic, 2)), dry_run=True)
        assert beside.exit_code == 0, beside.results
    assert values(cluster_pair.destination, topic) == [(0, b"one"), (1, b"two")]
    assert failover(destination, mirror).result.exit_code == 0
    end = append(destination, write(row(topic, 2)), dry_run=True).results[0]
    after = append(destination, write(row(topic, 3)), dry_run=True).results[0]
    assert {end.result, after.result} == {Outcome.DONE, Outcome.REFUSED}, "the stop may have written a marker"


@pytest.mark.slow
def test_an_engine_that_has_not_paused_yet_is_noticed_although_its_clock_is_behind(
    cluster_pair: ClusterPair, destination: Destination, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is this test, which sends its heartbeats, and pauses when it likes."""
    mirror, topic = new_mirror(destination, cluster_pair.source), unique_topic()
    make_topic(cluster_pair.source, topic, retention_ms="-1")
    produce(cluster_pair.source, topic, ["one", "two"])
    assert add(destination, mirror, selector(topic)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    monkeypatch.setattr("kmirror.ops.append.append_file._HANDOVER_S", 4.0)
    monkeypatch.setattr("kmirror.state.lease.now_ms", lambda: now_ms() - 3 * 3_600_000)
    record, mirrored = destination.state().topic(mirror, topic), destination.state().partition(mirror, topic, 0)
    assert record is not None
    assert mirrored is not None
    paused = replace(record, desired=DesiredState.PAUSED, pause_id="this-one")
    change(destination, mirror, lambda _: Changes((paused,)))
    file = write(row(topic, 2))
    with closing(StateStore(destination.config)) as store, ThreadPoolExecutor(1) as operator:
        lease = Lease.acquire(store, mirror, EngineIdentity.of_this_process(), ttl_ms=2_000)
        (silent,) = append(destination, file, dry_run=True).results
        assert silent.result is Outcome.REFUSED, "its lanes may still copy"
        for state, pause_id, outcome in (
            (PartitionState.MIRRORING, None, Outcome.REFUSED),
            # a pause that was resumed: the engine may have begun to copy again
            (PartitionState.FAILED, "the-one-before", Outcome.REFUSED),
            (PartitionState.PAUSED, "this-one", Outcome.DONE),
        ):
            lease.heartbeat({}, (replace(mirrored, state=state, pause_id=pause_id, state_time_ms=now_ms()),))
            done = operator.submit(append, destination, file, dry_run=True)
            while wait([done], 0.5).not_done:
                lease.heartbeat({})
            assert [one.result for one in done.result().results] == [outcome]
        lease.release()


def test_what_ends_half_way_says_from_where_to_continue(
    cluster_pair: ClusterPair, destination: Destination, write: Write
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.destination, topic, 2, max_message_bytes="2000", retention_ms="-1")
    rows = [row(topic, offset, value="x" * 5000 if offset == 3 else "small") for offset in range(6)]
    done = append(destination, write(*rows, row(topic, 0, 1)))
    assert done.exit_code == 4
    bad, good = done.results
    assert (bad.result, good.result) == (Outcome.FAILED, Outcome.DONE)
    assert f"{topic}-0: 3 records of 6 appended: " in str(bad.message)
    assert "MESSAGE_TOO_LARGE" in str(bad.message)
    assert "records below offset 3" in str(bad.hint)
    assert [offset for offset, _ in values(cluster_pair.destination, topic)] == [0, 1, 2]


def test_a_topic_whose_broker_replaces_timestamps_is_refused(destination_cluster: SandboxCluster, write: Write) -> None:
    stamped, plain = unique_topic(), unique_topic()
    make_topic(destination_cluster, stamped, message_timestamp_type="LogAppendTime")
    make_topic(destination_cluster, plain, retention_ms="-1")
    file = write(row(stamped, 0), row(plain, 0))
    for how in (["--dry-run"], ["--yes"], []):
        refused = kmirror(destination_cluster, "append", "--file", file, *how, "--json")
        assert refused.returncode == 3
        document = json.loads(refused.stdout)
        assert document["dryRun"] is ("--dry-run" in how)
        results = {one["topic"]: one for one in document["results"]}
        assert f"{stamped} has message.timestamp.type=LogAppendTime" in results[stamped]["message"]
        assert values(destination_cluster, stamped) == values(destination_cluster, plain) == []


def test_a_pipe_is_refused_because_the_file_is_read_again(
    destination_cluster: SandboxCluster, destination: Destination, write: Write
) -> None:
    topic = unique_topic()
    make_topic(destination_cluster, topic, retention_ms="-1")
    reader, writer = os.pipe()
    os.write(writer, Path(write(row(topic, 0))).read_bytes())
    os.close(writer)
    with pytest.raises(UsageError, match=f"cannot read /dev/fd/{reader}: it is not a regular file"):
        append(destination, f"/dev/fd/{reader}")
    os.close(reader)


@pytest.mark.parametrize("cut", [-1, -20], ids=["a line less", "half a line"])
def test_a_file_that_gets_shorter_meanwhile(
    destination_cluster: SandboxCluster,
    destination: Destination,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    cut: int,
) -> None:
    topic = unique_topic()
    make_topic(destination_cluster, topic, retention_ms="-1")
    file = Path(write(row(topic, 0), row(topic, 1)))
    end = len(file.read_bytes().splitlines(keepends=True)[0]) if cut == -1 else file.stat().st_size + cut

    def shorten(*_: object) -> tuple[Refusals, list[str]]:
        os.truncate(file, end)
        return {}, []

    monkeypatch.setattr(append_file, "_check", shorten)
    (found,) = append(destination, str(file)).results
    assert found.result is Outcome.FAILED
    assert found.message == f"{topic}-0: 1 record of 2 appended: {file} was changed after it was checked"
    assert str(found.hint).endswith("remove the records below offset 1 and run the command again")
    assert values(destination_cluster, topic) == [(0, b"value-0")]
