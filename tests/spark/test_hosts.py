"""`run` on hosts with other users, folders and installations: it starts, says what to set, or ends to be restarted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import Pair, command
from tests.support.waiting import PATIENCE_S, wait_until

#: Runs a command as a user id that has no name, as containers with random ids do.
NAMELESS = ("unshare", "--user", "--map-user=123456", "--map-group=123456")
CORE_SITE = """<configuration>
<property><name>fs.defaultFS</name><value>hdfs://nowhere.invalid:8020</value></property>
<property><name>hadoop.security.authentication</name><value>kerberos</value></property>
</configuration>
"""


def run_once(pair: Pair, *before: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run an engine until it has caught up, with further words before it and these variables."""
    line = command(pair.destination, "run", "--mirror", pair.mirror, "--until-caught-up", "--timeout", "4m")
    return subprocess.run(
        [*before, *line], capture_output=True, text=True, check=False, env={**os.environ, **environ}, timeout=300
    )


@pytest.fixture
def pair(source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path) -> Iterator[Pair]:
    with closing(Pair(source_cluster, destination_cluster, tmp_path, unique_topic(), partitions=1)) as made:
        made.create("copy.lanes=1")
        made.fill(10)
        yield made


@pytest.mark.slow
def test_a_user_without_a_name_and_what_leads_to_other_installations_keep_no_run_from_copying(
    pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "core-site.xml").write_text(CORE_SITE)
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\nspark.driver.extraJavaOptions -XX:+No\n")
    ended = run_once(
        pair,
        *NAMELESS,
        SPARK_HOME="/opt/no-spark",
        SPARK_CONF_DIR=str(tmp_path),
        SPARK_DIST_CLASSPATH="/opt/no-hadoop/*",
        SPARK_SUBMIT_OPTS="-XX:+NoSuchOption",
        SPARK_LOCAL_DIRS="/proc/nowhere",
        HADOOP_CONF_DIR=str(tmp_path),
        PYSPARK_SUBMIT_ARGS="--master yarn pyspark-shell",
        PYSPARK_PYTHON="/opt/no-python",
        PYTHONWARNINGS="error",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        TMPDIR="/proc/nowhere",
        HOME="/nowhere",
        LC_ALL="tr_TR.UTF-8",
    )
    assert ended.returncode == 0, ended
    assert "caught up" in ended.stdout
    pair.assert_equal()


@pytest.mark.slow
def test_options_with_which_java_does_not_start_are_named(pair: Pair) -> None:
    ended = run_once(pair, JAVA_TOOL_OPTIONS="-XX:+NoSuchOption")
    assert ended.returncode == 3, ended
    assert "does not start: Unrecognized VM option 'NoSuchOption'" in ended.stderr
    assert "correct JAVA_TOOL_OPTIONS, or unset it" in ended.stderr


@pytest.mark.slow
def test_another_pyspark_on_the_path_is_named(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("")
    ended = run_once(pair, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 3, ended
    assert f"the PySpark in {tmp_path}/pyspark comes without Spark" in ended.stderr
    assert "unset PYTHONPATH" in ended.stderr


@pytest.mark.slow
def test_a_run_whose_temporary_folder_is_cleaned_ends_for_its_supervisor(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary := tmp_path / "tmp"))
    temporary.mkdir()
    engine = pair.engine()
    pair.wait_until_equal(engine)
    (folder,) = temporary.glob("kmirror-run-*")
    wait_until(lambda: list(folder.glob("blockmgr-*")) != [])
    shutil.rmtree(folder)
    assert engine.wait(PATIENCE_S) == 1, engine.output
    assert f"{folder} was removed, without which Spark starts no workers" in engine.output
