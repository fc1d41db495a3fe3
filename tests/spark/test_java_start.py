"""How Spark's JVM is started: directly, with the class archive, without one that is broken, or by Spark's scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kmirror.engine.spark import gateway
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.class_archive import ClassArchive
from kmirror.engine.spark.conf import SparkOptions
from kmirror.errors import ExitCode, KmirrorError
from kmirror.java import find_java
from tests.support.processes import tree
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def options(folder: Path, **conf: str) -> SparkOptions:
    spelled = {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
    return SparkOptions(slots=1, log_file=folder / "spark.log", app_name="test", conf=spelled)


def archive_in(cache: Path, java: Path | None = None) -> ClassArchive:
    """Return the archive that a run with this cache, and this Java, uses."""
    java = java or find_java(os.environ)
    archive = ClassArchive.locate(java, gateway.spark_home(os.environ), cache / "kmirror" / "java")
    assert archive is not None
    return archive


def echo(word: str, attempt: int) -> str:
    return word


def jvm_command() -> str:
    (command,) = [process.command for process in tree(os.getpid()) if "org.apache.spark" in process.command]
    return command


@pytest.mark.long
def test_a_broken_archive_is_harmless(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    archive.path.write_bytes(os.urandom(100_000))

    with SparkRuntime(options(tmp_path), {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}) as spark:
        assert f"-XX:SharedArchiveFile={archive.path}" in jvm_command()
        assert spark.submit("echo", echo, "well").result(60) == "well"


@pytest.mark.slow
def test_an_archive_with_which_java_does_not_start_is_dropped(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\ncase "$*" in *SharedArchiveFile*) exit 134;; esac\nexec {find_java(os.environ)} "$@"\n'
    )
    java.chmod(0o755)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "JAVA_HOME": str(tmp_path / "java")}
    archive = archive_in(tmp_path / "cache", java)
    archive.path.write_bytes(b"an archive that Java dies of")

    with SparkRuntime(options(tmp_path), environ) as spark:
        assert "-XX:DumpLoadedClassList=" in jvm_command()
        assert spark.submit("echo", echo, "well").result(60) == "well"
        assert not archive.exists


def test_an_archive_is_made_from_a_class_list_in_the_background(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "spark.jsa")
    class_list = tmp_path / "classes"
    class_list.write_text("java/lang/Object\njava/lang/String\njava/util/ArrayList\n")
    java = find_java(os.environ)
    command = [str(java), *archive.record(class_list), "-Djava.io.tmpdir=/nowhere", "-cp", "nothing.jar", "Main"]

    archive.build(command, class_list)
    archive.build(command, class_list)

    wait_until(lambda: archive.exists and len(list(tmp_path.iterdir())) == 2, 60)
    check = [str(java), "-Xshare:on", *archive.use()[1:], "-cp", "nothing.jar", "-version"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_settings_that_only_scripts_understand_start_spark_by_its_scripts(tmp_path: Path) -> None:
    with SparkRuntime(options(tmp_path, driver_extraJavaOptions="-Dkmirror.test=yes")) as spark:
        assert "-Dkmirror.test=yes" in jvm_command()
        assert "org.apache.spark.deploy.SparkSubmit" in jvm_command()
        assert spark.submit("echo", echo, "well").result(60) == "well"


@pytest.mark.slow
def test_a_setting_that_spark_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(KmirrorError, match=r"Spark did not start: .*'soon'.*spark\.network\.timeout") as caught:
        SparkRuntime(options(tmp_path, network_timeout="soon")).start()

    assert (caught.value.hint, caught.value.exit_code) == (f"see {tmp_path / 'spark.log'}", ExitCode.UNEXPECTED)


def test_java_that_ends_at_once_is_said(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\ncase "$1" in -version) exec {find_java(os.environ)} -version;; esac\nexit 3\n')
    java.chmod(0o755)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path / "java")}

    with pytest.raises(KmirrorError, match="Java ended while Spark was starting") as caught:
        SparkRuntime(options(tmp_path), environ).start()

    assert caught.value.hint == f"see {tmp_path / 'spark.log'}"
