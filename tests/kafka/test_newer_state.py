"""Records of a newer kmirror next to ours: verbs do what they can, and neither they nor an engine write over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kmirror.errors import Reason, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.lease import Lease
from kmirror.state.record_kinds import encode, encode_key
from kmirror.state.records import EngineState, Key
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair
from tests.support.engine import typed
from tests.support.idle_engine import MIRRORING, Run, mirror, row, topic
from tests.support.librdkafka import librdkafka
from tests.support.mirrors import selector

__all__ = ["mirror", "topic"]

Store = Callable[[Key, bytes | None], None]


@pytest.fixture
def store(destination: Destination) -> Iterator[Store]:
    """Return what stores a record as another version would; all of them are gone after the test."""
    producer = Producer(librdkafka(destination.config))
    keys: list[Key] = []

    def write(key: Key, value: bytes | None) -> None:
        keys.append(key)
        producer.produce(STATE_TOPIC, key=encode_key(key), value=value)
        assert producer.flush(30) == 0

    yield write
    for key in keys.copy():
        write(key, None)


def stored(destination: Destination, key: Key) -> bytes | None:
    destination.state()
    return destination.store._raw.values.get(encode_key(key))


def test_an_engine_that_meets_a_newer_record_ends_and_writes_over_nothing(
    cluster_pair: ClusterPair, destination: Destination, store: Store, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 0))
        before = run.stored(topic)
        newer = encode(before)[1].replace(b'"v":1', b'"v":2')
        run.say(row(topic, MIRRORING, 4, begun=True), fills_by_transactions=False)  # not stored yet
        store(before.key, newer)
        run.until(lambda: run.engine.lost is not None)
    assert run.engine.lost is not None
    assert run.engine.lost.reason is Reason.STATE_UNREADABLE
    assert stored(destination, before.key) == newer
    engine = destination.state().engine(mirror)
    assert engine is not None
    assert engine.state is EngineState.RELEASED
    _refuses_all_but_what_shows(cluster_pair.destination, mirror, topic)
    assert stored(destination, before.key) == newer


def _refuses_all_but_what_shows(cluster: SandboxCluster, mirror: str, topic: str) -> None:
    of_mirror = ("--mirror", mirror)
    shown = typed(cluster, "describe", *of_mirror, "--json")
    assert shown.returncode == 4
    assert f'["partition", "{mirror}", "{topic}", 0] cannot be read: its schema version is 2'.replace('"', "'") in (
        shown.stderr
    )
    for other in ("--groups", "--settings"):
        told = typed(cluster, "describe", *of_mirror, other)
        assert (told.returncode, "cannot be read: its schema version is 2" in told.stderr) == (4, True), other
    (only,) = json.loads(shown.stdout)
    assert only["reason"] == "STATE_UNREADABLE"
    assert only["topicState"] == "LINK_FAILED"
    listed = typed(cluster, "list", "--json")
    assert listed.returncode == 4
    (of_ours,) = (one for one in json.loads(listed.stdout) if one["mirror"] == mirror)
    assert (of_ours["state"], of_ours["reason"]) == ("LINK_FAILED", "STATE_UNREADABLE")
    for line in (
        ("failover", *of_mirror, "--dry-run"),
        ("failover", *of_mirror, "--yes"),
        ("wait", *of_mirror, "--for", "healthy", "--timeout", "1s"),
        ("run", *of_mirror, "--standby"),
        ("run", *of_mirror, "--take-over"),
        ("pause", *of_mirror),
        ("delete", *of_mirror, "--yes"),
    ):
        refused = typed(cluster, *line)
        assert refused.returncode == 3, (line, refused.stderr)
        assert "use the kmirror version that wrote it, or a newer one" in refused.stderr


def test_what_a_newer_version_only_adds_is_kept_and_does_no_harm(
    cluster_pair: ClusterPair, destination: Destination, store: Store, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    records = destination.state()
    found, record = records.topic(mirror, topic), records.mirror(mirror)
    assert found is not None
    assert record is not None
    store(("zebra", mirror, topic), b'{"v":7,"stripes":9}')
    store(found.key, encode(found)[1].replace(b'"v":1', b'"v":1,"zoo":{"a":[1,null]}'))
    store(record.key, encode(record)[1].replace(b'"settings":{', b'"settings":{"copy.warp":"9",'))
    cluster, of_mirror = cluster_pair.destination, ("--mirror", mirror)
    assert typed(cluster, "describe", *of_mirror).returncode == 0
    assert "copy.warp" in typed(cluster, "config", *of_mirror).stdout
    assert typed(cluster, "config", *of_mirror, "--set", "copy.lanes=3").returncode == 0
    assert typed(cluster, "pause", *of_mirror, "--topics", topic).returncode == 0
    assert typed(cluster, "failover", *of_mirror, "--dry-run").returncode == 0
    paused = destination.state().topic(mirror, topic)
    assert paused is not None
    assert paused.pause_id is not None
    assert paused.extra == {"zoo": {"a": [1, None]}}
    assert stored(destination, ("zebra", mirror, topic)) == b'{"v":7,"stripes":9}'
    changed = destination.state().mirror(mirror)
    assert changed is not None
    assert changed.settings["copy.warp"] == "9"
    assert typed(cluster, "config", *of_mirror, "--unset", "copy.warp").returncode == 0
    assert b"copy.warp" not in (stored(destination, record.key) or b"")


def test_an_engine_of_a_newer_version_is_left_in_charge(destination: Destination, store: Store, mirror: str) -> None:
    identity = EngineIdentity.of_this_process()
    lease = Lease.acquire(destination.store, mirror, identity, 5_000)
    newer = encode(lease.record)[1].replace(b'"v":1', b'"v":2')
    store(lease.record.key, newer)
    lease.close()  # as if the newer engine had fenced it
    with pytest.raises(RefusedError, match="an engine of a newer kmirror took over") as fenced:
        lease.heartbeat({})
    assert fenced.value.reason is Reason.FENCED
    for take in (Lease.acquire, Lease.standby):
        with pytest.raises(RefusedError, match="schema version is 2"):
            take(destination.store, mirror, identity, 5_000)
    assert stored(destination, lease.record.key) == newer


#: What is no record of ours, and how it is called.
SPOILED = {
    "no JSON": b"\xff\x00\x01 not json",
    "another tool's": b'{"schema":{"type":"struct"},"payload":{"state":"RUNNING"}}',
    "half of it": b'{"v":1,"state":"MIRR',
    "a huge one": b'{"v":1,"state":"' + b"x" * 900_000 + b'"}',
    "a huge number": b'{"v":1,"state_time_ms":1' + b"0" * 900_000 + b".0}",
    "another type": b'{"v":1,"state":["MIRRORING"],"state_time_ms":1e400}',
    "half a character": b'{"v":1,"zoo":"\\ud800"}',
    "nested too deep": b"[" * 100_000,
}
SHOWING: tuple[tuple[str, ...], ...] = (
    ("describe", "--json"),
    ("describe",),
    ("describe", "--settings"),
    ("config",),
    ("events",),
)
CHANGING: tuple[tuple[str, ...], ...] = (
    ("pause",),
    ("resume",),
    ("recover",),
    ("failover", "--dry-run"),
    ("promote", "--dry-run"),
    ("remove", "--topics", "a-topic", "--yes"),
    ("delete", "--yes"),
    ("config", "--set", "copy.lanes=2"),
    ("run", "--take-over"),
    ("verify",),
    ("wait", "--for", "healthy", "--timeout", "1s"),
)


def carried_out(cluster: SandboxCluster, mirror: str, line: tuple[str, ...]) -> tuple[int, str]:
    """Carry out a verb, which may refuse but not break; return its exit code and what it says."""
    done = typed(cluster, line[0], "--mirror", mirror, *line[1:])
    assert done.returncode != 1, (line, done.stderr)
    assert "Traceback" not in done.stderr, (line, done.stderr)
    assert len(done.stderr) < 5000, line
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_spoiled_record_is_named_by_every_verb_and_changed_by_none(
    cluster_pair: ClusterPair, destination: Destination, store: Store, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    cluster, records = cluster_pair.destination, destination.state()
    known = records.topic(mirror, topic)
    assert known is not None
    sound = stored(destination, known.key)
    assert sound is not None
    for name, value in SPOILED.items():
        keys: tuple[Key, ...] = (known.key, ("partition", mirror, topic, 0), ("engine", mirror))
        for key in keys:
            store(key, value)
            carried_out(cluster, mirror, SHOWING[0])
            assert carried_out(cluster, mirror, ("pause",))[0] == 3, (name, key)
            assert stored(destination, key) == value, (name, key)
            store(key, sound if key == known.key else None)
    store(known.key, SPOILED["no JSON"])
    for line in SHOWING:
        carried_out(cluster, mirror, line)
    reported = {line: carried_out(cluster, mirror, line) for line in CHANGING}
    assert {line: code for line, (code, _) in reported.items()} == dict.fromkeys(CHANGING, 3), reported
    for line, (_, words) in reported.items():
        assert f"['topic', '{mirror}', '{topic}'] cannot be read" in words, line
    assert stored(destination, known.key) == SPOILED["no JSON"]
    store(known.key, sound)
    assert carried_out(cluster, mirror, ("pause",))[0] == 0


@pytest.mark.slow
def test_tombstones_at_odd_places_are_reported_or_make_no_difference(
    cluster_pair: ClusterPair, destination: Destination, store: Store, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    cluster, records = cluster_pair.destination, destination.state()
    found = [records.topic(mirror, topic), records.mirror(mirror)]
    for record in found:
        assert record is not None
        store(record.key, None)
        for line in (*SHOWING, *CHANGING[:-3]):
            carried_out(cluster, mirror, line)
        assert typed(cluster, "list").returncode in {0, 4}
        store(record.key, encode(record)[1])
    assert carried_out(cluster, mirror, ("describe",))[0] in {0, 4}
