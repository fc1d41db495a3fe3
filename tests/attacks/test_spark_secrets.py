"""Spark's ports, which other users and machines reach, and command lines, which every user of the machine reads."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kmirror.cli.main import main
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions, settings
from kmirror.engine.spark.gateway import script_command
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.base.spark import with_secrets
from tests.support.spark_standalone import running_standalone_spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])
SECRET = "spark.authenticate.secret"


def options(master: str, log_file: Path = Path("spark.log"), **conf: str) -> SparkOptions:
    given = {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
    return SparkOptions(2, log_file, "test", master, given)


def command_lines() -> bytes:
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() + b"\n"
        except OSError:
            continue
    return found


def echo(argument: str, attempt: int) -> tuple[str, bytes]:
    return argument, command_lines()


@pytest.mark.parametrize("master", ["local[*]", "local", "yarn", "k8s://https://k", "local-cluster[1,1,1024]"])
def test_spark_authenticates_where_the_secret_can_be_made(master: str) -> None:
    found = settings(options(master), Path("/run"), None, None)
    assert found["spark.authenticate"] == "true"
    assert (SECRET in found) == master.startswith("local-cluster")
    assert settings(options(master, authenticate="false"), Path("/run"), None, None)["spark.authenticate"] == "false"


def test_a_standalone_cluster_has_a_secret_of_its_own() -> None:
    assert "spark.authenticate" not in settings(options("spark://s:1"), Path("/run"), None, None)
    found = settings(options("spark://s:1", authenticate_secret="x"), Path("/run"), None, None)
    assert (found["spark.authenticate"], found[SECRET]) == ("true", "x")


def test_command_lines_hold_no_secret() -> None:
    line = script_command(
        Path("/spark"), [], {SECRET: "hunter2", "spark.ssl.keyStorePassword": "hunter2", "spark.a": "b"}
    )
    assert "spark.a=b" in line
    assert "hunter2" not in " ".join(line)


TOKEN = "spark.kubernetes.authenticate.oauthToken"


@pytest.mark.parametrize("key", [SECRET, TOKEN, "spark.ssl.keyPassword", "spark.hadoop.fs.s3a.secret.key"])
def test_a_secret_is_not_taken_from_the_command_line(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--mirror", "m", "--bootstrap-server", "b:1", "--spark-conf", f"{key}=hunter2"]) == 2
    shown = capsys.readouterr().err
    assert "every user of this machine sees" in shown
    assert "${file:" in shown
    assert "hunter2" not in shown


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "spark.properties").write_text("secret=hunter2\n")
    reference = f"${{file:{tmp_path / 'spark.properties'}:secret}}"
    given = {SECRET: reference, TOKEN: reference, "spark.a": reference}
    assert with_secrets(given) == {SECRET: "hunter2", TOKEN: "hunter2", "spark.a": reference}
    assert "hunter2" not in repr(options("spark://s:1", authenticate_secret="hunter2"))
    with pytest.raises(UnreachableError) as refusal:
        with_secrets({SECRET: f"${{file:{tmp_path / 'none'}:secret}}"})
    assert refusal.value.reason is Reason.SECRET_UNRESOLVED


@pytest.mark.slow
def test_a_standalone_cluster_with_a_secret(tmp_path: Path) -> None:
    secret = secrets.token_hex(16)
    with running_standalone_spark(tmp_path / "cluster", workers=1, secret=secret) as cluster:
        log, python = tmp_path / "spark.log", sys.executable
        known = options(cluster.master_url, log, authenticate_secret=secret, pyspark_python=python)
        with SparkRuntime(known) as spark:
            argument, seen = spark.submit("lane", echo, "sent").result(60)
        assert argument == "sent"
        assert b"CoarseGrainedExecutorBackend" in seen
        assert secret.encode() not in seen
        wrong = options(cluster.master_url, log, authenticate_secret="wrong", pyspark_python=python)
        with pytest.raises(KmirrorError), SparkRuntime(wrong):
            pass
