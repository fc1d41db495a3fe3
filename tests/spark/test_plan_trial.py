"""`kmirror plan --trial` measures with a real engine, and leaves neither mirror nor topics behind."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.client_quotas import alter_quotas
from kmirror.cluster.security.client_config import client_config
from kmirror.ops.base.context import Destination
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.ending import killed_at_last, printed
from tests.support.engine import ROOT, command, kmirror
from tests.support.mirrors import make_topic, properties_of
from tests.support.real_logs import producer_of
from tests.support.waiting import wait_until

TRIAL = "kmirror-trial-"
#: Bytes a second.
LIMIT = 5_000_000
QUOTA = 2_000_000


def left_of_trials(pair: ClusterPair) -> set[str]:
    """Return the mirrors and topics of trials at the destination."""
    topics = AdminClient(properties_of(pair.destination)).list_topics(timeout=30).topics
    with Destination.open(properties_of(pair.destination)) as destination:
        names = {mirror.name for mirror in destination.state().mirrors}
    return {name for name in {*topics, *names} if name.startswith(TRIAL)}


def fill(pair: ClusterPair, topic: str, *, batch: int, size: int) -> None:
    """Write `size` bytes in batches of about `batch` bytes."""
    make_topic(pair.source, topic)
    producer = producer_of(pair.source, topic, batch_size=batch, linger_ms=1000)
    for _ in range(size // 1000):
        producer.produce(topic, bytes(1000), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.slow
def test_a_trial_measures_each_class_of_batches_and_leaves_nothing_behind(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    prefix, config = unique_topic("trial"), tmp_path / "source.properties"
    settings = {"bootstrap.servers": cluster_pair.source.bootstrap_servers, "topics.include": f"{prefix}.*"}
    # of what decides how fast a mirror copies, a trial takes over the settings: without a limit it is over at once
    settings["throttle.bytes.per.second"] = str(LIMIT)
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    fill(cluster_pair, f"{prefix}.large", batch=200_000, size=30_000_000)
    fill(cluster_pair, f"{prefix}.small", batch=2_000, size=30_000_000)
    done = kmirror(
        cluster_pair.destination, "plan", "--mirror-config", str(config), "--trial", "100MB", "--sample", "0s", "--json"
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    rates = plan["copyBytesPerSecondByClass"]
    assert set(rates) == {"large", "small"}
    assert all(0 < rate < 2 * LIMIT for rate in (*rates.values(), plan["copyBytesPerSecond"]))
    assert all(wave["copySeconds"] > 2 for wave in plan["waves"])
    assert left_of_trials(cluster_pair) == set()
    # interrupted in the middle, it removes all that too
    line = command(cluster_pair.destination, "plan", "--mirror-config", str(config), "--trial", "1GB", "--sample", "0s")
    started = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with killed_at_last(started) as interrupted:
        wait_until(lambda: any("." in name for name in left_of_trials(cluster_pair)))
        interrupted.send_signal(signal.SIGINT)
        _, error = printed(interrupted)
    assert interrupted.returncode not in (0, 1), error
    assert left_of_trials(cluster_pair) == set()


@pytest.mark.slow
def test_under_a_quota_a_trial_lasts_until_what_it_may_borrow_is_used_up(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    topic, config, client_id = unique_topic("limited"), tmp_path / "source.properties", unique_topic("planner")
    config.write_text(
        f"bootstrap.servers={cluster_pair.source.bootstrap_servers}\nclient.id={client_id}\ntopics.include={topic}\n"
    )
    fill(cluster_pair, topic, batch=200_000, size=100_000_000)
    quota = Quota((("client-id", client_id),), "consumer_byte_rate", float(QUOTA))
    with ClusterClient(client_config(properties_of(cluster_pair.source))) as client:
        assert not alter_quotas(client, [quota], [])
        try:
            done = kmirror(
                cluster_pair.destination,
                *("plan", "--mirror-config", str(config), "--trial", "1MB", "--sample", "0s", "--json"),
            )
        finally:
            alter_quotas(client, [], [quota])
    assert done.returncode == 0, done.stderr
    # it may borrow eleven seconds' worth at once, which a trial of 1 MB would take for the rate
    assert 0.5 * QUOTA < json.loads(done.stdout)["copyBytesPerSecond"] < 1.25 * QUOTA
    assert left_of_trials(cluster_pair) == set()
