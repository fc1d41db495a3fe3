"""`serve` on real clusters: it shows what `describe` and `list` show, whatever becomes of engines and clusters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.cli.main import main
from kmirror.engine.clock import now, now_ms
from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.pause import pause
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.ops.show.describe import describe
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.open_transactions import SHOWN_AFTER_MS
from kmirror.ops.stop.failover import failover
from kmirror.state.snapshot import State
from kmirror.state.store import StateStore
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.partition_row import PARTITIONS
from kmirror.web import offset_looks, watch_service, watched_cluster
from kmirror.web.watch_service import WatchService
from kmirror.web.watched_cluster import WatchedCluster
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.clusters import ClusterPair, freeze, unique_topic
from tests.support.engine import ROOT, Engine
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.scraped import Get, asking, fetching, scraped, value
from tests.support.shared_clusters import revived
from tests.support.waiting import PATIENCE_S, wait_until

#: What is of the moment at which it was asked for.
MOMENTARY = {"asOf", "engineAgeMs", "engineLastSeenMs", "timeLagMs", "maxTimeLagMs"}
#: Of busy partitions.
SPEEDS = {"bytesPerSecond", "recordsPerSecond", "sourceRecordsPerSecond", "etaMs", "limitedBy"}


@contextmanager
def watching(*clusters: WatchedCluster) -> Iterator[Get]:
    """Watch clusters, and yield what asks for a path; JSON is checked against its schema."""
    service = WatchService(clusters, ChargeKeeper(one.name for one in clusters))
    get = asking(service)
    with service.watching():
        yield get


def named(name: str, cluster: SandboxCluster, user: str | None = None) -> WatchedCluster:
    """Return a cluster to watch."""
    properties = properties_of(cluster) if user is None else cluster.client_properties(user)
    return WatchedCluster(name, lambda: properties)


def document(get: Get, path: str, name: str) -> Any:
    """Return a JSON document, which its schema allows."""
    status, body = get(path)
    found = json.loads(body)
    assert status == 200, body
    check(name, found)
    return found


def lasting(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without what another moment changes."""
    row = {key: value for key, value in found.items() if key not in MOMENTARY | SPEEDS}
    if isinstance(row.get("errorMessage"), str):
        row["errorMessage"] = re.sub(r"last reported \S+ ago", "last reported", row["errorMessage"])
    return row


def wait_for_agreement(get: Get, destination: Destination, mirror: str, is_so: Callable[[list[Any]], bool]) -> None:
    """Wait until `describe` satisfies a condition, and `serve` shows of the mirror what `describe` and `list` do."""
    seen: dict[str, object] = {}

    def agree() -> bool:
        status = document(get, f"/status.json?mirror={mirror}", "status")
        rows = [PARTITIONS.document(row) for row in describe(destination, mirror)]
        (listed,) = [MIRRORS.document(row) for row in list_mirrors(destination) if row.mirror == mirror]
        (served,) = [row for row in status["mirrors"] if row["mirror"] == mirror]
        seen.update(rows=rows, status=status)
        partitions = [{key: one for key, one in row.items() if key != "cluster"} for row in status["partitions"]]
        return (
            is_so(rows)
            and [*map(lasting, rows)] == [*map(lasting, partitions)]
            and lasting(listed).items() <= lasting(served).items()
        )

    try:
        wait_until(agree)
    except AssertionError as error:
        raise AssertionError(json.dumps(seen, indent=1, default=str)) from error


def reasons(*wanted: str | None) -> Callable[[list[Any]], bool]:
    """Return whether the partitions have these reasons."""
    return lambda rows: {row["reason"] for row in rows} == set(wanted)


@pytest.fixture
def stored(cluster_pair: ClusterPair, destination: Destination) -> tuple[str, list[str]]:
    """Return a mirror and its topics, each of two partitions with records."""
    topics = [unique_topic(kind) for kind in ("copied", "paused", "stopped")]
    for topic in topics:
        make_topic(cluster_pair.source, topic, 2)
        produce(cluster_pair.source, topic, ["1", "2", "3"], 0)
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror, topics


@pytest.mark.slow
def test_it_shows_what_describe_shows_while_an_engine_copies_stops_responding_and_dies(
    cluster_pair: ClusterPair, destination: Destination, stored: tuple[str, list[str]], tmp_path: Path
) -> None:
    mirror, (copied, paused, stopped) = stored
    with watching(named("dr", cluster_pair.destination)) as get:
        wait_until(lambda: get("/readyz")[0] == 200)
        wait_for_agreement(get, destination, mirror, reasons("NO_ENGINE"))
        (row,) = document(get, f"/status.json?mirror={mirror}&partitions=false", "status")["mirrors"]
        assert (row["engineIsHere"], row["topicStates"]) == (None, {"PENDING_MIRROR": 3})
        assert "no engine copies mirror" in row["missing"]
        engine = Engine(cluster_pair.destination, mirror, tmp_path / "engine.out", with_spark=False)
        try:
            wait_for_agreement(get, destination, mirror, lambda rows: all(one["lag"] == 0 for one in rows))
            assert pause(destination, mirror, selector(paused)).exit_code == 0
            assert failover(destination, mirror, selector(stopped)).result.exit_code == 0
            wait_for_agreement(get, destination, mirror, reasons(None, "PAUSED_BY_OPERATOR", "FAILED_OVER"))
            (row,) = document(get, f"/status.json?mirror={mirror}", "status")["mirrors"]
            assert (row["engineIsHere"], row["missing"], row["lag"], row["lagUnknown"]) == (True, None, 0, 0)
            samples, of_it = scraped(get), {"cluster": "dr", "mirror": mirror}
            assert value(samples, "kmirror_healthy", **of_it) == 1
            assert value(samples, "kmirror_topic_lag_offsets", **of_it, topic=copied) == 0
            assert value(samples, "kmirror_source_up", **of_it) == 1
            assert value(samples, "kmirror_batches_copied_total", **of_it) is None, "only its engine knows"
            engine.process.send_signal(signal.SIGSTOP)
            wait_for_agreement(get, destination, mirror, lambda rows: "ENGINE_SILENT" in {r["reason"] for r in rows})
            assert value(scraped(get), "kmirror_healthy", **of_it) == 0
        finally:
            engine.process.send_signal(signal.SIGCONT)
            engine.destroy()
        wait_for_agreement(get, destination, mirror, lambda rows: "NO_ENGINE" in {r["reason"] for r in rows})
        # an answer with sums may be a second old
        wait_until(lambda: value(scraped(get), "kmirror_engine_start_time_seconds", **of_it) is None)
        # new records show without an engine
        produce(cluster_pair.source, copied, ["4", "5"], 1)
        wait_for_agreement(get, destination, mirror, lambda rows: sum(one["lag"] or 0 for one in rows) == 2)
        past = document(get, f"/history.json?mirror={mirror}", "history")
        assert {"create", "add", "run", "pause", "failover"} <= {one["what"] for one in past["events"]}
        assert {one["cluster"] for one in past["events"]} == {"dr"}


@pytest.mark.slow
def test_a_cluster_that_goes_away_is_shown_as_it_was_until_it_is_back(
    source_cluster: SandboxCluster, passing_destination: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_cluster, "_TIMEOUT_SECONDS", 1.0)
    topic = unique_topic()
    make_topic(source_cluster, topic)
    with Destination.open(properties_of(passing_destination)) as destination:
        mirror = new_mirror(destination, source_cluster)
        assert add(destination, mirror, selector(topic)).exit_code == 0
    taken: list[tuple[str, str, State, float]] = []
    watched = WatchedCluster(
        "dr",
        lambda: properties_of(passing_destination),
        taken=lambda name, cluster_id, servers, state, at: taken.append((name, cluster_id, state, at)),
    )
    (broker,) = passing_destination.brokers

    def of_dr() -> dict[str, Any]:
        found = document(get, "/fleet.json", "fleet")
        assert mirror in [one["mirror"] for one in found["mirrors"]] or found["clusters"][0]["asOf"] is None
        return {**found["clusters"][0], "ready": found["ready"]}

    with watching(watched, named("source", source_cluster)) as get:
        for stop in (freeze, SandboxCluster.kill):
            wait_until(lambda: get("/readyz") == (200, "all watched clusters are read\n"))
            assert of_dr()["error"] is None
            stop(passing_destination, broker.node_id)
            stopped_at = now()
            wait_until(lambda: get("/readyz")[0] == 503)
            assert get("/readyz")[1].startswith("dr: last read at ")
            gone = of_dr()
            assert gone["error"]
            assert gone["asOf"] < gone["errorSince"] + 2_000
            samples = scraped(get)
            assert value(samples, "kmirror_cluster_up", cluster="dr") == 0
            assert value(samples, "kmirror_cluster_up", cluster="source") == 1
            assert value(samples, "kmirror_healthy", cluster="dr", mirror=mirror) is None, "it is not known"
            assert (value(samples, "kmirror_cluster_read_age_seconds", cluster="dr") or 0) > 5
            assert get("/healthz") == (200, "the clusters are being watched\n")
            assert not [one for one in taken if one[3] > stopped_at], "nothing that is not known is passed on"
            revived(passing_destination)
        wait_until(lambda: get("/readyz")[0] == 200)
    assert {(name, cluster_id) for name, cluster_id, _, _ in taken} == {("dr", passing_destination.cluster_id)}
    assert all(state.mirror(mirror) is not None for _, _, state, _ in taken)


@pytest.mark.slow
def test_another_cluster_at_the_addresses_of_one_is_an_error_and_its_state_is_not_mixed_in(
    cluster_pair: ClusterPair, passing_destination: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_cluster, "_TIMEOUT_SECONDS", 1.0)
    with Destination.open(properties_of(passing_destination)) as destination:
        mirror = new_mirror(destination, cluster_pair.source)
    now_at = [passing_destination]
    with watching(WatchedCluster("dr", lambda: properties_of(now_at[0]))) as get:
        wait_until(lambda: get("/readyz")[0] == 200)
        before = document(get, "/fleet.json", "fleet")
        now_at[0] = cluster_pair.destination
        passing_destination.kill(passing_destination.brokers[0].node_id)
        wait_until(lambda: cluster_pair.destination.cluster_id in get("/readyz")[1])
        after = document(get, "/fleet.json", "fleet")
        assert after["clusters"][0]["clusterId"] == passing_destination.cluster_id
        assert [one["mirror"] for one in after["mirrors"]] == [one["mirror"] for one in before["mirrors"]]
        assert mirror in [one["mirror"] for one in after["mirrors"]]


@pytest.mark.slow
def test_a_login_that_may_not_read_the_state_is_shown_with_the_missing_right_and_then_served(
    source_cluster: SandboxCluster, guarded_cluster: SandboxCluster
) -> None:
    with Destination.open(guarded_cluster.client_properties()) as destination:
        mirror = new_mirror(destination, source_cluster)
        give(destination.client, acls("topic", "__kmirror_state", "reader", "DESCRIBE"))
        wrong = {**guarded_cluster.client_properties("reader")}
        login = wrong["sasl.jaas.config"]
        wrong["sasl.jaas.config"] = login.replace("reader-secret", "another-secret")
        assert wrong["sasl.jaas.config"] != login
        with watching(named("dr", guarded_cluster, "reader"), WatchedCluster("wrong", lambda: wrong)) as get:

            def errors() -> dict[str, str]:
                return {one["name"]: one["error"] or "" for one in document(get, "/fleet.json", "fleet")["clusters"]}

            wait_until(lambda: all(errors().values()))
            found = errors()
            assert "__kmirror_state" in found["dr"]
            assert "--operation read" in found["dr"].lower()
            assert "another-secret" not in found["wrong"]
            give(destination.client, acls("topic", "__kmirror_state", "reader", "READ"))
            wait_until(lambda: not errors()["dr"])
            shown = document(get, "/fleet.json", "fleet")["mirrors"]
            assert ("dr", mirror) in [(one["cluster"], one["mirror"]) for one in shown]
            assert errors()["wrong"]
            assert get("/readyz")[0] == 503


@pytest.mark.slow
def test_an_open_transaction_that_holds_a_copy_back_is_named_until_it_ends(
    cluster_pair: ClusterPair,
    destination: Destination,
    stored: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror, (copied, *_) = stored
    monkeypatch.setattr(offset_looks, "_LONG_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(offset_looks, "_SHARE", 1.0)
    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": f"x-{copied}"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(copied, "undecided", partition=0, timestamp=now_ms() - 2 * SHOWN_AFTER_MS)
    producer.flush(PATIENCE_S)
    with watching(named("dr", cluster_pair.destination)) as get, LocalEngine(destination, mirror) as local:
        local.catch_up()
        row: dict[str, Any] = {}

        def has_reason(reason: str | None) -> bool:
            rows = document(get, f"/status.json?mirror={mirror}&topic={copied}", "status")["partitions"]
            row.update(next(one for one in rows if one["partition"] == 0))
            return (row["lag"], row["reason"]) == (0, reason)

        wait_until(lambda: has_reason("OPEN_TRANSACTION"))
        assert "blocked at offset 3 by an open transaction of producer id" in row["errorMessage"]
        (served,) = document(get, f"/status.json?mirror={mirror}&partitions=false", "status")["mirrors"]
        assert (served["reason"], served["missing"]) == ("OPEN_TRANSACTION", None)
        producer.abort_transaction(PATIENCE_S)
        wait_until(lambda: has_reason(None))
        assert row["errorMessage"] is None


def test_a_lag_without_an_engine_is_of_now_or_unknown(
    cluster_pair: ClusterPair,
    destination: Destination,
    stored: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not of the last scrape, a minute ago: producers have written since."""
    mirror, (copied, *_) = stored
    later = [0.0]
    monkeypatch.setattr(offset_looks, "now", lambda: now() + later[0])
    monkeypatch.setattr(watch_service, "_SAME_SECONDS", 0.0)
    with watching(named("dr", cluster_pair.destination)) as get:

        def lag() -> float | None:
            return value(scraped(get), "kmirror_topic_lag_offsets", cluster="dr", mirror=mirror, topic=copied)

        wait_until(lambda: lag() == 3)
        produce(cluster_pair.source, copied, ["4", "5"], 1)
        later[0] += 61
        assert lag() in (None, 5)
        wait_until(lambda: lag() == 5)
        produce(cluster_pair.source, copied, ["6"], 1)
        wait_until(lambda: lag() == 6)


def test_a_store_may_leave_reports_undecoded_until_they_are_wanted(
    cluster_pair: ClusterPair, destination: Destination, stored: tuple[str, list[str]]
) -> None:
    mirror, _ = stored
    watched = StateStore(destination.config)
    with closing(watched):
        watched.wants_reports = False
        with LocalEngine(destination, mirror) as local:
            local.catch_up()
            wait_until(lambda: destination.state().progress(mirror))
            assert watched.read().engine(mirror) is not None
            assert watched.read().progress(mirror) == ()
            watched.wants_reports = True
            assert watched.read().progress(mirror)
        watched.wants_reports = False
        assert watched.read().progress(mirror), "what was decoded stays"
        watched.wants_reports = True
        assert watched.read() == destination.state()


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `kmirror serve` on a free port; yield its process and its address."""
    line = [sys.executable, "-m", "kmirror", "serve", "--http", "0", *words]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = re.search(r"http://(\S+) answers", process.stdout.readline())
        assert found is not None
        yield process, found[1]
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_command_watches_the_clusters_of_kmirror_toml_and_ends_when_asked_to(
    cluster_pair: ClusterPair,
    stored: tuple[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror, _ = stored
    file = tmp_path / "kmirror.toml"
    file.write_text(
        f'[clusters.a]\nbootstrap-server = "{cluster_pair.source.bootstrap_servers}"\n'
        f'[clusters.b]\nbootstrap-server = "{cluster_pair.destination.bootstrap_servers}"\n'
        '[clusters.down]\nbootstrap-server = "127.0.0.1:1"\n'
    )
    monkeypatch.setenv("KMIRROR_CONFIG", str(file))
    monkeypatch.delenv("KMIRROR_BOOTSTRAP_SERVER", raising=False)
    with ExitStack() as stack:
        process, address = stack.enter_context(serving())
        get = fetching(address)

        def states() -> dict[str, tuple[bool, bool]]:
            found = document(get, "/fleet.json", "fleet")["clusters"]
            return {one["name"]: (one["asOf"] is not None, one["error"] is not None) for one in found}

        wait_until(lambda: states() == {"a": (True, False), "b": (True, False), "down": (False, True)})
        assert get("/readyz")[0] == 503
        (row,) = document(get, f"/status.json?mirror={mirror}&cluster=b", "status")["mirrors"]
        assert (row["cluster"], row["mirror"]) == ("b", mirror)
        where = f"/status.json?mirror={mirror}&cluster="
        for path, expected in (
            (where + "a", 404),
            (where + "down", 503),
            ("/status.json?cluster=c", 404),
            ("/history.json?mirror=no&cluster=b", 404),
        ):
            status, body = get(path)
            check("error", json.loads(body))
            assert (path, status) == (path, expected)
        status, body = get("/history.json?from=yesterday")
        check("error", json.loads(body))
        assert status == 400
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "pyspark" not in maps
        assert "libjvm" not in maps
        _, of_b = stack.enter_context(serving("--cluster", "b"))
        wait_until(lambda: fetching(of_b)("/readyz")[0] == 200)
        assert main(["serve", "--http", address]) == ExitCode.REFUSED
        assert "another process listens there" in capsys.readouterr().err
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == ExitCode.OK


def test_what_cannot_be_watched_at_all_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kmirror.toml"
    monkeypatch.setenv("KMIRROR_CONFIG", str(file))
    monkeypatch.delenv("KMIRROR_BOOTSTRAP_SERVER", raising=False)

    def refused(*words: str) -> str:
        assert main(["serve", "--http", "0", *words]) == ExitCode.USAGE
        return capsys.readouterr().err

    assert str(file) in refused()
    file.write_text("[clusters.a\n")
    assert "kmirror.toml" in refused()
    file.write_text("[clusters]\n")
    assert "the destination is missing" in refused()
    file.write_text('[clusters.a]\nbootstrap-server = "127.0.0.1:1"\ncommand-config = "missing.properties"\n')
    assert "missing.properties" in refused()
    assert "cluster b is unknown" in refused("--cluster", "b")
    assert "exclude each other" in refused("--cluster", "a", "--bootstrap-server", "127.0.0.1:1")
    file.write_text('[clusters.a]\nbootstrap-server = "h:1"\n[clusters.b]\nbootstrap-server = "h:2"\n')
    assert "--expect-cluster-id is for one cluster" in refused("--expect-cluster-id", "x")
    assert "--command-config is for one cluster" in refused("--cluster", "a", "--cluster", "b", "--command-config", "c")
    assert "neither a port nor" in refused("--http", "x")
