"""Random logs that hold everything brokers can hold, mirrored by a real engine and judged by what their builder knows.

A log's features count only when all of it was mirrored. Message formats older than 2 may be refused instead, with their
reason and nothing wrong in the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.installed_logs import install
from tests.support.log_features import FEATURES
from tests.support.logs import LONG_SEEDS, QUICK_SEEDS, BuiltLog, build_log
from tests.support.mirrored import Mirrored
from tests.support.mirrors import delete_topic, properties_of
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.visible import Bounds, assert_all_sound, assert_shows, bounds_of, shown

AT_LEAST = 20
OLD_FORMATS = {"format 0", "format 1", "compressed old format"}


def mirror_logs(
    source: SandboxCluster,
    destination: SandboxCluster,
    folder: Path,
    logs: Mapping[str, BuiltLog],
    *,
    with_console: bool,
    with_spark: bool = True,
) -> Counter[str]:
    """Mirror these logs of the source and compare each; return how many logs held each feature."""
    with Mirrored(source, destination, folder, dict.fromkeys(logs, 1), with_spark=with_spark) as mirror:
        mirror.create()
        mirror.copy(120 + 2 * len(logs), exit_codes=(0, 4))
        refused = refused_logs(mirror, logs)
        with ThreadPoolExecutor(2 if with_console else 8) as pool:
            checks = [
                pool.submit(check, destination, topic, log, is_refused=topic in refused, with_console=with_console)
                for topic, log in logs.items()
            ]
            for done in checks:
                done.result()
        if with_console:
            assert_all_sound(destination, logs.keys() - refused)
        mirror.verify()
    return Counter(name for topic, log in logs.items() for name in held(log, topic in refused))


def installed(source: SandboxCluster, seeds: Sequence[int]) -> dict[str, BuiltLog]:
    """Build the logs of these seeds and put them into the source; return them by topic."""
    logs = {unique_topic(f"seed-{seed}"): build_log(seed) for seed in seeds}
    install(source, logs)
    return logs


def refused_logs(mirror: Mirrored, logs: Mapping[str, BuiltLog]) -> set[str]:
    """Return the topics that were refused; only what is in an old format may be."""
    failed = {topic: row for (topic, _), row in mirror.rows().items() if row["state"] == "FAILED"}
    wrong = {
        f"seed {logs[topic].seed}": (row["reason"], row["errorMessage"])
        for topic, row in failed.items()
        if row["reason"] != "UNSUPPORTED_MESSAGE_FORMAT" or not logs[topic].has_old_format
    }
    assert wrong == {}
    return set(failed)


def held(log: BuiltLog, is_refused: bool) -> Iterable[str]:
    """Return the features that were met: of a log that was refused only what it was refused for."""
    return log.features & OLD_FORMATS if is_refused else log.features


def check(destination: SandboxCluster, topic: str, log: BuiltLog, *, is_refused: bool, with_console: bool) -> None:
    """Compare the copy with what is expected of its source."""
    if is_refused:
        copied = shown(destination, topic)
        assert_shows(destination, topic, 0, log.expected[: len(copied)])
        return
    assert_shows(destination, topic, 0, log.expected, with_console=with_console)
    assert bounds_of(destination, topic) == Bounds(log.log_start_offset, log.last_stable_offset), f"seed {log.seed}"


@pytest.mark.slow
def test_ten_logs_with_everything_in_them(
    forgetful: ForgetfulCluster,
    installed_logs: Mapping[str, BuiltLog],
    destination_cluster: SandboxCluster,
    tmp_path: Path,
) -> None:
    source = forgetful.cluster
    for topic in AdminClient(properties_of(destination_cluster)).list_topics(timeout=30).topics.keys() & installed_logs:
        delete_topic(destination_cluster, topic)  # another file's copy of the same log
    mirror_logs(source, destination_cluster, tmp_path, installed_logs, with_console=True, with_spark=False)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_two_hundred_logs(make_cluster: MakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, destination = make_cluster("source"), make_cluster("destination")
    met = mirror_logs(source, destination, tmp_path, installed(source, LONG_SEEDS), with_console=False)
    with capsys.disabled():
        print()  # noqa: T201 - the campaign's result
        for name in FEATURES:
            print(f"{met[name]:4} of {len(LONG_SEEDS)} logs: {name}")  # noqa: T201
    assert {name: met[name] for name in FEATURES if met[name] < AT_LEAST} == {}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_logs_from_the_oldest_brokers_to_the_newest(make_cluster: MakeCluster, tmp_path: Path) -> None:
    source, destination = make_cluster("source", kafka_version="3.9.2"), make_cluster("destination")
    mirror_logs(source, destination, tmp_path, installed(source, QUICK_SEEDS), with_console=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_logs_from_the_newest_brokers_to_the_oldest(make_cluster: MakeCluster, tmp_path: Path) -> None:
    source, destination = make_cluster("source"), make_cluster("destination", kafka_version="3.9.2")
    mirror_logs(source, destination, tmp_path, installed(source, QUICK_SEEDS), with_console=False)
