"""The shapes that mirrors make between clusters: prefixes, chains, circles, owners, a source that is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.errors import Reason, RefusedError, UsageError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.check.check import check
from kmirror.ops.check.findings import CheckLine
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.state.records import DesiredState, TopicOrigin
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import delete_topic, make_topic, new_mirror, outcomes, produce, properties_of, selector
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.side_jobs import run_once


class Three:
    """Three clusters, and how each is seen as a destination."""

    def __init__(self, a: SandboxCluster, b: SandboxCluster, c: SandboxCluster, stack: ExitStack) -> None:
        self.a, self.b, self.c = a, b, c
        self.at_a, self.at_b, self.at_c = (
            stack.enter_context(Destination.open(properties_of(cluster))) for cluster in (a, b, c)
        )


@pytest.fixture(scope="module")
def three(cluster_pair: ClusterPair, forgetful: ForgetfulCluster) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(cluster_pair.source, cluster_pair.destination, forgetful.cluster, stack)


@pytest.fixture
def topic() -> str:
    return unique_topic("shape")


@pytest.fixture
def named(three: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this host's own kmirror.toml name the three clusters: chains are followed only through those."""
    config = tmp_path / "kmirror.toml"
    clusters = {"a": three.a, "b": three.b, "c": three.c}
    config.write_text(
        "".join(f'[clusters.{name}]\nbootstrap-server = "{one.bootstrap_servers}"\n' for name, one in clusters.items())
    )
    monkeypatch.setenv("KMIRROR_CONFIG", str(config))


def stop(destination: Destination, mirror: str, topic: str) -> None:
    """Say of a mirror topic that it is stopped, as the verbs do in the end."""
    record = destination.state().topic(mirror, topic)
    assert record is not None
    change(destination, mirror, lambda _: Changes((replace(record, desired=DesiredState.STOPPED),)))


def test_a_prefix_is_literal_and_fixed_and_does_not_go_with_synced_acls(three: Three, topic: str) -> None:
    make_topic(three.a, topic, retention_ms="-1")
    mirror = new_mirror(three.at_b, three.a, topic_prefix="eu.west_1-")
    assert outcomes(add(three.at_b, mirror, selector(topic))) == {f"eu.west_1-{topic}": "DONE"}
    with pytest.raises(RefusedError, match=r"topic\.prefix cannot be changed"):
        change_config(three.at_b, mirror, {"topic.prefix": "us."})
    with pytest.raises(UsageError, match=r"topic\.prefix and sync\.topic\.acls\.enabled exclude each other"):
        change_config(three.at_b, mirror, {"sync.topic.acls.enabled": "true"})
    with pytest.raises(UsageError, match=r"topic\.prefix and sync\.topic\.acls\.enabled"):
        create(three.at_b, "m", {**properties_of(three.a), "topic.prefix": "x", "sync.topic.acls.enabled": "true"})


@pytest.mark.usefixtures("named")
def test_with_a_prefix_a_copy_is_not_discovered_but_taken_by_name(three: Three, topic: str) -> None:
    make_topic(three.a, topic, retention_ms="-1")
    to_b = new_mirror(three.at_b, three.a)
    assert add(three.at_b, to_b, selector(topic)).exit_code == 0
    make_topic(three.b, f"{topic}-own", retention_ms="-1")
    prefixed = new_mirror(three.at_c, three.b, topic_prefix="b.", topics_include=f"{topic}.*")
    with closing(DiscoveryJob(prefixed, properties_of(three.c))) as job:
        (reported,) = run_once(job, three.at_c, prefixed)
    assert (reported.note or "").endswith(f": {topic}-own")
    assert [one.topic for one in three.at_c.state().topics(prefixed)] == [f"b.{topic}-own"]
    assert outcomes(add(three.at_c, prefixed, selector(f"{topic}.?"))) == {
        None: "DONE",
        f"b.{topic}": "NOOP",
    }
    assert outcomes(add(three.at_c, prefixed, selector(topic))) == {f"b.{topic}": "DONE"}
    # without one, the chain A → B → C keeps the names, by filters too
    plain = new_mirror(three.at_c, three.b, topics_include=topic)
    with closing(DiscoveryJob(plain, properties_of(three.c))) as job:
        run_once(job, three.at_c, plain)
    assert [one.topic for one in three.at_c.state().topics(plain)] == [topic]
    # and a mirror that was stopped there is an ordinary topic
    stop(three.at_b, to_b, topic)
    again = new_mirror(three.at_c, three.b, topic_prefix="again.", topics_include=topic)
    with closing(DiscoveryJob(again, properties_of(three.c))) as job:
        run_once(job, three.at_c, again)
    assert [one.topic for one in three.at_c.state().topics(again)] == [f"again.{topic}"]


@pytest.mark.usefixtures("named")
def test_a_circle_over_three_clusters_is_refused_with_the_way_round(three: Three, topic: str) -> None:
    make_topic(three.a, topic, retention_ms="-1")
    to_b = new_mirror(three.at_b, three.a)
    to_c = new_mirror(three.at_c, three.b)
    to_a = new_mirror(three.at_a, three.c)
    for destination, mirror in ((three.at_b, to_b), (three.at_c, to_c)):
        assert add(destination, mirror, selector(topic)).exit_code == 0
    refused = add(three.at_a, to_a, selector(topic), adopt=True)
    (row,) = refused.results
    assert row.reason is Reason.LOOP
    assert three.at_b.cluster_id in (row.message or "")
    assert (row.message or "").endswith(
        f": {topic} here → {topic} on cluster {three.at_b.cluster_id} (mirror {to_b} there) → {topic} on the source "
        f"(mirror {to_c} there) → {topic} here"
    )
    assert three.at_a.state().topics(to_a) == ()
    # once a link is stopped, it is no circle any more
    stop(three.at_b, to_b, topic)
    assert outcomes(add(three.at_a, to_a, selector(topic), adopt=True)) == {topic: "DONE"}


def test_where_a_chain_cannot_be_followed_add_warns(three: Three, topic: str) -> None:
    make_topic(three.a, topic, retention_ms="-1")
    to_b = new_mirror(three.at_b, three.a)
    assert add(three.at_b, to_b, selector(topic)).exit_code == 0
    added = add(three.at_c, new_mirror(three.at_c, three.b), selector(topic))
    assert outcomes(added) == {topic: "DONE"}
    (warning,) = added.warnings
    assert f"whether {topic} may come from this cluster is unknown" in warning
    assert f"cluster {three.at_a.cluster_id}, which kmirror.toml on this host does not name" in warning


def test_both_directions_and_fan_in_work_for_different_topics(three: Three, topic: str) -> None:
    make_topic(three.a, f"{topic}-a", retention_ms="-1")
    make_topic(three.b, f"{topic}-b", retention_ms="-1")
    make_topic(three.c, f"{topic}-a", retention_ms="-1")
    there, back = new_mirror(three.at_b, three.a), new_mirror(three.at_a, three.b)
    assert outcomes(add(three.at_b, there, selector(f"{topic}-a"))) == {f"{topic}-a": "DONE"}
    assert outcomes(add(three.at_a, back, selector(f"{topic}-b"))) == {f"{topic}-b": "DONE"}
    (row,) = add(three.at_a, back, selector(f"{topic}-a")).results
    assert row.reason is Reason.LOOP
    # two sources with a topic of the same name: each with its own prefix
    fan_in = new_mirror(three.at_b, three.c, topic_prefix="c.")
    assert outcomes(add(three.at_b, fan_in, selector(f"{topic}-a"))) == {f"c.{topic}-a": "DONE"}


def test_a_topic_belongs_to_one_active_mirror(three: Three, topic: str) -> None:
    make_topic(three.a, topic, retention_ms="-1")
    make_topic(three.c, topic, retention_ms="-1")
    one, other = new_mirror(three.at_b, three.a), new_mirror(three.at_b, three.c)
    assert add(three.at_b, one, selector(topic)).exit_code == 0
    (row,) = add(three.at_b, other, selector(topic), adopt=True).results
    assert row.message == f"{topic} is a mirror topic of mirror {one}"
    assert add(three.at_c, new_mirror(three.at_c, three.a, topic_prefix="copy."), selector(topic)).exit_code == 0


def test_a_mirror_of_a_lost_source_continues_from_its_sibling_without_a_new_copy(three: Three, topic: str) -> None:
    make_topic(three.a, topic, retention_ms="-1")
    mirrors = {}
    for destination, cluster, held in ((three.at_b, three.b, 5), (three.at_c, three.c, 3)):
        mirrors[cluster] = new_mirror(destination, three.a)
        assert add(destination, mirrors[cluster], selector(topic)).exit_code == 0
        # what the two had got of A when it was lost
        produce(cluster, topic, [f"v{n}" for n in range(held)])
    delete_topic(three.a, topic)
    sibling = new_mirror(three.at_c, three.b)
    (row,) = add(three.at_c, sibling, selector(topic), adopt=True).results
    assert f"is a mirror topic of mirror {mirrors[three.c]}" in (row.message or "")
    stop(three.at_c, mirrors[three.c], topic)
    before = three.at_c.client.metadata([topic]).topics[topic].printed_topic_id
    assert outcomes(add(three.at_c, sibling, selector(topic), adopt=True)) == {topic: "DONE"}
    record = three.at_c.state().topic(sibling, topic)
    assert record is not None
    assert (record.origin, record.destination_topic_id) == (TopicOrigin.ADOPTED, before)
    # what the mirror before had set counts as set by kmirror
    assert (record.settings or {})["retention.ms"] == "-1"
    (partition,) = three.at_c.state().partitions(sibling, topic)
    assert partition.begun


def test_check_warns_of_schemas_that_stay_behind(three: Three, topic: str) -> None:
    def schemas(mirror: str) -> list[CheckLine]:
        return [line for line in check(properties_of(three.c), mirror=mirror).lines if line.what == "schemas"]

    make_topic(three.a, topic, retention_ms="-1")
    mirror = new_mirror(three.at_c, three.a)
    assert add(three.at_c, mirror, selector(topic)).exit_code == 0
    assert schemas(mirror) == []
    make_topic(three.a, "_schemas", cleanup_policy="compact")
    try:
        (line,) = schemas(mirror)
        assert line.ok
        assert "kmirror add --topics _schemas" in (line.hint or "")
        report = check(properties_of(three.c), properties=properties_of(three.a))
        assert (report.exit_code, [line for line in report.lines if not line.ok]) == (0, [])
        assert add(three.at_c, mirror, selector("_schemas")).exit_code == 0
        assert schemas(mirror) == []
    finally:
        delete_topic(three.a, "_schemas")
