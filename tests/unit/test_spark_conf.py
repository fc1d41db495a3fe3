"""From a master and the user's own settings to what Spark gets; and what it says, in our words."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.engine.spark.conf import (
    SparkOptions,
    check,
    effective_master,
    holds_secret,
    is_local,
    settings,
    worker_python,
)
from kmirror.engine.spark.gateway import module_options, needs_scripts, script_command, spark_home
from kmirror.engine.spark.spark_failures import SparkLostError, TaskFailedError, not_started, translate
from kmirror.errors import KmirrorError, RefusedError, UnreachableError, UsageError

CORES = os.cpu_count() or 1
LOG = Path("spark.log")


def options(master: str = "local[*]", slots: int = 3, **conf: str) -> SparkOptions:
    spelled = {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
    return SparkOptions(slots=slots, log_file=LOG, app_name="test", master=master, conf=spelled)


@pytest.mark.parametrize(
    ("master", "slots", "reported"),
    [
        ("local", 3, "local[3,4]"),
        ("local[*]", 3, f"local[{max(CORES, 3)},4]"),
        ("local[*]", 200, "local[200,4]"),
        ("local[2]", 3, "local[3,4]"),
        ("local[8]", 3, "local[8,4]"),
        ("local[8, 2]", 3, "local[8,2]"),
        ("local-cluster[2,1,1024]", 3, "local-cluster[2,1,1024]"),
        ("spark://a:7077,b:7077", 3, "spark://a:7077,b:7077"),
        ("k8s://https://api", 3, "k8s://https://api"),
    ],
)
def test_a_local_master_gets_threads_for_all_slots_and_replaces_workers(master: str, slots: int, reported: str) -> None:
    check(options(master), {})
    assert effective_master(options(master, slots)) == reported


def test_a_local_master_gets_threads_for_what_may_come_later() -> None:
    assert effective_master(replace(options("local[2]"), later_slots=250)) == "local[253,4]"


@pytest.mark.parametrize("environ", [{}, {"SPARK_CONNECT_MODE_ENABLED": "1"}])
def test_spark_connect_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RefusedError, match="kmirror needs a classic Spark master"):
        check(options("sc://host:15002" if not environ else "local[*]"), environ)


@pytest.mark.parametrize("master", ["", "host:7077", "mesos://host:5050", "local[x]", "local[2"])
def test_what_is_no_master_is_a_usage_error(master: str) -> None:
    with pytest.raises(UsageError, match="is not a Spark master"):
        check(options(master), {})


def test_settings_have_to_be_sparks() -> None:
    with pytest.raises(UsageError, match=r"'executor\.memory' is not a Spark property"):
        check(SparkOptions(slots=1, log_file=LOG, app_name="test", conf={"executor.memory": "1g"}), {})
    with pytest.raises(UsageError, match=r"spark\.master cannot be set with --spark-conf"):
        check(SparkOptions(slots=1, log_file=LOG, app_name="test", conf={"spark.master": "yarn"}), {})


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api", "spark://a:7077"])
def test_cluster_deploy_mode_is_a_usage_error(master: str) -> None:
    with pytest.raises(UsageError, match=r"spark\.submit\.deployMode=Cluster is not possible") as refusal:
        check(options(master, submit_deployMode="Cluster"), {"HADOOP_CONF_DIR": "/none"})
    assert refusal.value.hint is not None
    assert "--standby on a second machine" in refusal.value.hint
    if master != "yarn":
        check(options(master, submit_deployMode="client"), {})


def test_yarn_needs_hadoops_configuration(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="HADOOP_CONF_DIR is not set") as unset:
        check(options("yarn"), {})
    assert unset.value.hint is not None
    assert "export HADOOP_CONF_DIR=" in unset.value.hint
    with pytest.raises(RefusedError, match=r"YARN_CONF_DIR is .*, but there is no yarn-site\.xml in it"):
        check(options("yarn"), {"YARN_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").touch()
    check(options("yarn"), {"YARN_CONF_DIR": str(tmp_path)})
    # a Spark of the user's own may set it when it starts
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").touch()
    check(options("yarn"), {"SPARK_HOME": str(tmp_path)})
    check(options("yarn"), {"SPARK_CONF_DIR": str(tmp_path / "conf")})


@pytest.mark.parametrize(
    "key",
    [
        "spark.authenticate.secret",
        "spark.ssl.rpc.keyPassword",
        "spark.kubernetes.authenticate.oauthToken",
        "spark.kubernetes.authenticate.driver.oauthToken",
        "spark.connect.authenticate.token",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
        "spark.yarn.appMasterEnv.API_TOKEN",
        "spark.sql.catalog.lake.credential",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.bucket.logs.session.token",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.fs.s3n.awsAccessKeyId",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.account.oauth2.client.secret.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.files.lake.blob.core.windows.net",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "spark.hadoop.fs.gs.encryption.key",
        "spark.hadoop.fs.azure.account.oauth2.refresh.token",
        "spark.hadoop.fs.azure.sas.fixed.token",
        "spark.yarn.appMasterEnv.DELEGATION_TOKEN",
        "spark.hadoop.fs.ftp.password.host",
    ],
)
def test_a_setting_that_holds_a_secret_is_known_by_its_name(key: str) -> None:
    assert holds_secret(key)
    assert not any("hunter2" in word for word in script_command(Path("/spark"), [], {key: "hunter2"}))


@pytest.mark.parametrize(
    "key",
    [
        "spark.authenticate",
        "spark.authenticate.secret.driver.file",
        "spark.authenticate.secretBitLength",
        "spark.kubernetes.authenticate.oauthTokenFile",
        "spark.kubernetes.authenticate.caCertFile",
        "spark.kubernetes.authenticate.clientKeyFile",
        "spark.kubernetes.container.image.pullSecrets",
        "spark.kubernetes.executor.secrets.login",
        "spark.kubernetes.executor.secretKeyRef.PASSWORD",
        "spark.kubernetes.kerberos.tokenSecret.itemKey",
        "spark.kerberos.renewal.credentials",
        "spark.security.credentials.hive.enabled",
        "spark.security.credentials.renewalRatio",
        "spark.yarn.am.tokenConfRegex",
        "spark.io.encryption.keySizeBits",
        "spark.ssl.rpc.privateKey",
        "spark.executorEnv.GOOGLE_APPLICATION_CREDENTIALS",
        "spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE",
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.hadoop.fs.azure.account.keyprovider.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.token.provider.type.lake.dfs.core.windows.net",
        "spark.hadoop.hadoop.security.credential.provider.path",
        "spark.hadoop.hadoop.security.credential.clear-text-fallback",
        "spark.hadoop.hadoop.security.token.service.use_ip",
        "spark.hadoop.dfs.namenode.delegation.token.max-lifetime",
        "spark.hadoop.fs.azure.enable.delegation.token",
        "spark.hadoop.fs.s3a.delegation.token.binding",
        "spark.hadoop.mapreduce.job.complete.cancel.delegation.tokens",
        "spark.hadoop.mapreduce.job.hdfs-servers.token-renewal.exclude",
        "spark.hadoop.yarn.resourcemanager.delegation.token.renew-interval",
    ],
)
def test_a_setting_about_a_secret_holds_none(
    key: str,
) -> None:
    assert not holds_secret(key)


def test_the_users_settings_win() -> None:
    reported = settings(options(network_timeout="7s", ui_enabled="true"), Path("/run"), None, None)

    assert reported["spark.network.timeout"] == "7s"
    assert reported["spark.ui.enabled"] == "true"
    assert reported["spark.executor.heartbeatInterval"] == "5s"


def test_local_workers_talk_through_unix_sockets_where_their_names_fit() -> None:
    short = settings(options(), Path("/tmp/run"), None, None)
    long = settings(options(), Path("/" + "x" * 80), None, None)

    assert short["spark.python.unix.domain.socket.enabled"] == "true"
    assert short["spark.python.unix.domain.socket.dir"] == "/tmp/run"
    assert long["spark.python.unix.domain.socket.enabled"] == "false"


def test_a_cluster_gets_the_archive_before_what_the_user_adds() -> None:
    own = {"spark.archives": "data.zip#data", "spark.executorEnv.PYTHONPATH": "/opt/lib"}
    cluster = SparkOptions(slots=3, log_file=LOG, app_name="test", master="spark://a:7077", conf=own)

    reported = settings(cluster, Path("/run"), Path("/cache/workers.zip"), "10.0.0.1")

    assert reported["spark.archives"] == "data.zip#data,/cache/workers.zip#kmdeps"
    assert reported["spark.executorEnv.PYTHONPATH"] == "./kmdeps:/opt/lib"
    assert reported["spark.driver.host"] == "10.0.0.1"
    assert reported["spark.cores.max"] == "6"
    assert "spark.local.dir" not in reported


def test_a_resource_manager_is_asked_for_one_executor_a_slot() -> None:
    reported = settings(options("yarn"), Path("/run"), Path("/cache/workers.zip"), None)

    assert reported["spark.executor.instances"] == "3"
    assert reported["spark.submit.deployMode"] == "client"
    assert reported["spark.yarn.dist.archives"] == "/cache/workers.zip#kmdeps"
    assert "spark.archives" not in reported
    assert "spark.driver.host" not in reported


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api"])
def test_only_failures_of_the_last_hour_count(master: str) -> None:
    found = settings(options(master), Path("/run"), None, None)
    assert found["spark.executor.failuresValidityInterval"] == "1h"
    assert found.get("spark.yarn.am.attemptFailuresValidityInterval") == ("1h" if master == "yarn" else None)


def test_yarn_brings_what_the_user_adds_too() -> None:
    added = options("yarn", yarn_dist_archives="python.tar.gz#environment", archives="data.zip#data")
    reported = settings(added, Path("/run"), Path("/cache/workers.zip"), None)
    assert reported["spark.yarn.dist.archives"] == "python.tar.gz#environment,/cache/workers.zip#kmdeps"
    assert reported["spark.archives"] == "data.zip#data"


def test_workers_run_this_python_here_and_one_of_its_version_elsewhere() -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"

    assert worker_python(options(), {"PYSPARK_PYTHON": "other"}) == sys.executable
    assert worker_python(options("spark://a:7077"), {}) == version
    assert worker_python(options("spark://a:7077"), {"PYSPARK_PYTHON": "other"}) == "other"
    assert worker_python(options("spark://a:7077", pyspark_python="mine"), {"PYSPARK_PYTHON": "other"}) == "mine"
    assert is_local("local[2]")
    assert not is_local("local-cluster[2,1,1024]")


@pytest.mark.parametrize(
    ("master", "conf", "environ", "needed"),
    [
        ("local[*]", {}, {}, False),
        ("spark://a:7077", {"spark.executor.memory": "1g"}, {}, False),
        ("yarn", {}, {}, True),
        ("k8s://https://a:443", {}, {}, True),
        ("local[*]", {}, {"HADOOP_CONF_DIR": "/etc/hadoop"}, True),
        ("local[*]", {"spark.driver.memory": "4g"}, {}, True),
        ("local[*]", {"spark.jars.packages": "a:b:c"}, {}, True),
    ],
)
def test_sparks_scripts_start_what_only_they_understand(
    master: str, conf: dict[str, str], environ: dict[str, str], needed: bool
) -> None:
    assert needs_scripts(master, conf, spark_home({}), environ) is needed


def test_an_installation_of_the_users_own_is_started_by_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    assert spark_home({"SPARK_HOME": str(tmp_path)}) == tmp_path
    assert needs_scripts("local[*]", {}, tmp_path, {})


def test_javas_module_options_are_read_from_spark() -> None:
    found = module_options(spark_home({}))

    assert found[0] == "-XX:+IgnoreUnrecognizedVMOptions"
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in found
    assert all(option.isascii() and " " not in option for option in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: …\n"
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.\n",
            "the Spark workers run Python 3.12, kmirror runs Python 3.11: they must be the same",
        ),
        (
            'java.io.IOException: Cannot run program "python3.11": error=2, No such file or directory',
            "the Spark workers have no python3.11",
        ),
        (
            "Error from python worker:\n  ModuleNotFoundError: No module named 'kmirror'",
            "the Spark workers cannot import kmirror",
        ),
    ],
)
def test_what_workers_lack_is_said_in_our_words(text: str, message: str) -> None:
    error = translate("lane 1", text, LOG)

    assert isinstance(error, RefusedError)
    assert str(error) == message
    assert error.hint


def test_an_unknown_error_is_shown_by_its_first_line() -> None:
    error = translate("lane 1", "Job aborted\nat org.apache.spark…", LOG)

    assert isinstance(error, TaskFailedError)
    assert (str(error), error.hint) == ("Spark aborted lane 1: Job aborted", "see spark.log")


def test_what_did_not_start_may_start_later() -> None:
    said = (
        "Application application_17_0001 failed 2 times due to AM Container for … exited with exitCode: -1000\n"
        "Failing this attempt.Diagnostics: [2026-11-28 18:14:34]No space available in any of the local directories\n"
        "For more detailed output, check the application tracking page"
    )
    ended = not_started(said, LOG)
    assert (type(ended), ended.reason) == (UnreachableError, None)
    began = "YARN ended application_17_0001 before it started: "
    assert str(ended) == f"{began}No space available in any of the local directories"
    assert ended.hint == "see spark.log and `yarn logs -applicationId application_17_0001`"
    killed = "Application application_17_0001 was killed by user root"
    assert str(not_started(killed, LOG)) == began + killed
    refused = not_started("Required executor memory (9216 MB) is above the max threshold", LOG)
    assert type(refused) is KmirrorError  # a service manager tries again


def test_the_end_of_the_application_is_not_blamed_on_a_function() -> None:
    error = translate("lane 1", "Job 2 cancelled because SparkContext was shut down", LOG)
    assert isinstance(error, SparkLostError)
    assert str(error) == "Spark's application ended during lane 1"
