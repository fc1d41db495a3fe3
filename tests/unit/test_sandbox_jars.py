"""Fetching Kafka's jars: what is asked for, where it is kept, and that a failed fetch leaves nothing behind.

A shell script replaces Java and Ivy here; the real fetch is what every test on real brokers begins with.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kmirror.errors import RefusedError, UnreachableError, UsageError
from kmirror_sandbox.jars import cache_directory, check_kafka_version, ivy_module, kafka_jars

#: Answers `-version`; otherwise notes the call and does what the file `behaviour` says in the folder libs.
FAKE_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit 0; fi
echo fetch >> {calls}
while [ $# -gt 0 ]; do
  if [ "$1" = -retrieve ]; then libs=$(dirname "$2"); fi
  shift
done
mkdir -p "$libs"
{behaviour}
"""
FETCHES = 'touch "$libs/kafka_2.13-4.3.1.jar"'


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(tmp_path / "java"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}


def java_that(tmp_path: Path, behaviour: str) -> Path:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    calls = tmp_path / "calls"
    calls.touch()
    java.write_text(FAKE_JAVA.format(calls=calls, behaviour=behaviour))
    java.chmod(0o755)
    return calls


def ignore(line: str) -> None:
    pass


def test_the_first_use_fetches_and_the_second_does_not(tmp_path: Path, environ: dict[str, str]) -> None:
    calls = java_that(tmp_path, FETCHES)
    said: list[str] = []

    first = kafka_jars(None, environ, said.append)
    again = kafka_jars("4.3.1", environ, said.append)

    assert first == again
    assert (first.version, first.major) == ("4.3.1", 4)
    assert first.classpath == f"{tmp_path}/cache/kmirror/kafka/4.3.1/*"
    assert [jar.name for jar in first.directory.iterdir()] == ["kafka_2.13-4.3.1.jar"]
    assert calls.read_text() == "fetch\n"
    assert said == [f"fetching Kafka 4.3.1 (about 45 MB, once; kept in {tmp_path}/cache/kmirror/kafka)"]


def test_extra_artifacts_are_a_folder_of_their_own(tmp_path: Path, environ: dict[str, str]) -> None:
    calls = java_that(tmp_path, FETCHES)
    jars = kafka_jars(None, environ, ignore, ["kafka-tools", "connect-mirror", "kafka-tools"])
    assert jars.directory.name == "4.3.1+connect-mirror+kafka-tools"
    assert kafka_jars(None, environ, ignore).directory.name == "4.3.1"
    assert calls.read_text() == "fetch\nfetch\n"


def test_many_at_once_fetch_once(tmp_path: Path, environ: dict[str, str]) -> None:
    calls = java_that(tmp_path, f"sleep 0.2; {FETCHES}")
    threads = [threading.Thread(target=kafka_jars, args=(None, environ, ignore)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.read_text() == "fetch\n"


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("echo ':: org.apache.kafka#kafka_2.13;4.3.1: not found'; exit 1", "kafka_2.13;4.3.1: not found"),
        ("echo 'Server access error at url x (java.net.ConnectException: refused)'; exit 1", "Server access error"),
        ("exit 0", "Ivy printed nothing"),
    ],
)
def test_a_failed_fetch_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, environ: dict[str, str], behaviour: str, why: str
) -> None:
    java_that(tmp_path, behaviour)
    with pytest.raises(UnreachableError, match=f"cannot fetch Kafka 4.3.1: .*{why}") as failed:
        kafka_jars(None, environ, ignore)
    assert "KAFKA_HOME" in (failed.value.hint or "")
    assert [entry.name for entry in cache_directory(environ).iterdir()] == ["lock"]

    java_that(tmp_path, FETCHES)
    assert kafka_jars(None, environ, ignore).directory.is_dir()


def test_what_a_killed_fetch_left_is_cleared_and_never_taken_for_jars(tmp_path: Path, environ: dict[str, str]) -> None:
    half = cache_directory(environ) / "fetching-x" / "libs"
    half.mkdir(parents=True)
    (half / "kafka_2.13-4.3.1.jar").touch()
    calls = java_that(tmp_path, FETCHES)

    kafka_jars(None, environ, ignore)

    assert calls.read_text() == "fetch\n"
    assert sorted(entry.name for entry in cache_directory(environ).iterdir()) == ["4.3.1", "lock"]


def test_kafka_home_is_used_with_its_own_version(tmp_path: Path, environ: dict[str, str]) -> None:
    calls = java_that(tmp_path, FETCHES)
    libs = tmp_path / "kafka" / "libs"
    libs.mkdir(parents=True)
    for jar in ("kafka_2.13-3.9.2.jar", "kafka-clients-3.9.2.jar", "kafka_2.13-3.9.2-scaladoc.jar.asc"):
        (libs / jar).touch()
    environ["KAFKA_HOME"] = str(tmp_path / "kafka")
    said: list[str] = []

    for version in (None, "3.9.2"):
        jars = kafka_jars(version, environ, said.append, ["kafka-tools"])
        assert (jars.version, jars.directory) == ("3.9.2", libs)
    assert said == []
    assert calls.read_text() == ""

    assert kafka_jars("4.3.1", environ, said.append).version == "4.3.1"
    assert said[0] == "KAFKA_HOME has Kafka 3.9.2; using 4.3.1 as requested"


def test_a_kafka_home_without_kafka_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    environ["KAFKA_HOME"] = str(tmp_path)
    with pytest.raises(RefusedError, match=r"KAFKA_HOME is .*, but .*libs does not have exactly one"):
        kafka_jars(None, environ, ignore)


@pytest.mark.parametrize("version", ["4", "4.3", "latest", "4.3.1 ", "../4.3.1", "v4.3.1"])
def test_a_version_must_be_a_version(version: str) -> None:
    with pytest.raises(UsageError, match="is not a Kafka version"):
        check_kafka_version(version)


@pytest.mark.parametrize("version", ["2.7.2", "0.11.0", "5.0.0"])
def test_a_version_the_sandbox_cannot_run_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=f"cannot run Kafka {version}"):
        check_kafka_version(version)


def test_ivy_is_asked_for_the_broker_its_logging_and_the_extras() -> None:
    module = ivy_module("4.3.1", ["connect-mirror", "kafka-tools"])
    for name in ("kafka_2.13", "connect-mirror"):
        assert f'<dependency org="org.apache.kafka" name="{name}" rev="4.3.1" conf="default->default"/>' in module
    assert '<dependency org="org.apache.kafka" name="kafka-tools" rev="4.3.1" conf="default->master"/>' in module
    assert 'name="log4j-slf4j-impl"' in module
    assert 'name="slf4j-reload4j"' in ivy_module("3.9.2", [])


def test_the_cache_is_the_user_s() -> None:
    assert cache_directory({"HOME": "/h"}) == Path("/h/.cache/kmirror/kafka")
    assert cache_directory({"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/c/kmirror/kafka")
