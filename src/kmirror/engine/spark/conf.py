"""The Spark settings of a run: ours, which depend on the master, and the user's, which win."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import kmirror
from kmirror.engine.executors import cores_of
from kmirror.engine.spark.daemon import PRELOAD_VARIABLE
from kmirror.engine.spark.shipping import UNPACKED
from kmirror.errors import RefusedError, UsageError

#: For a JVM that schedules and carries no data: quick to start, and small. With its default young generation it would
#: fill 100 MB before its first collection. Without memory it may live on with threads missing, and run nothing more.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmn24m", "-XX:+ExitOnOutOfMemoryError")
#: How often Spark replaces a worker that died for one task before the job fails.
TASK_FAILURES = 4
#: A Unix socket path has at most 107 bytes, and Spark appends a name of 43 to the folder.
_SOCKET_FOLDER_BYTES = 64

#: A mirror runs for months: only failures of the last hour count, of which there may be two per executor, and of YARN's
#: application master as many as the cluster allows. By default all failures ever count.
_LASTING = {"spark.executor.failuresValidityInterval": "1h"}
_LASTING_ON_YARN = {"spark.yarn.am.attemptFailuresValidityInterval": "1h"}

#: Spark's default for `spark.redaction.regex`, and the keys of Hadoop's storage accounts.
_SECRET = re.compile(
    r"secret|password|token|credential|access[._-]?key"
    r"|azure[.](account[.]key|sas)[.]|encryption[.]key$|private[.]key",
    re.IGNORECASE,
)
#: What such a name may be about instead: files and classes, Secrets of Kubernetes by their names, and how, where or how
#: long tokens are used.
_NO_SECRET = re.compile(
    r"(file|path|enabled|secretBitLength|APPLICATION_CREDENTIALS)$|(token|credentials?)[.]provider"
    r"|delegation[.]token[.](always-use|binding|max-lifetime|renew-interval)$|enable[.]delegation[.]token$"
    r"|token-renewal[.]exclude$|token[.]service[.]use_ip$|cancel[.]delegation[.]tokens$|clear-text-fallback$"
    r"|^spark[.]kubernetes[.].*[.](secrets[.]|secretKeyRef[.]|pullSecrets$|tokenSecret[.])"
    r"|^spark[.](kerberos[.]renewal|security|yarn[.](am[.]token|credentials|security))",
    re.IGNORECASE,
)
_AUTH_SECRET = "spark.authenticate.secret"

_DEPLOY_MODE = "spark.submit.deployMode"
#: Where Hadoop's configuration is, which says how to reach YARN.
_HADOOP_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")

_LOCAL = re.compile(r"local(?:\[\s*(?P<threads>\*|[0-9]+)\s*(?:,\s*(?P<failures>[0-9]+)\s*)?\])?")
_CLUSTER = re.compile(r"local-cluster\[.*\]|spark://.+|yarn|k8s://.+")


#: What a lane imports when it first needs it: 6 MB, which each lane would have for itself.
_LATER_IMPORTS = ("kafka.protocol.metadata", "kafka.protocol.admin", "kafka.protocol.producer", "encodings.idna")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The caller's choices for Spark.

    `slots` is how many functions may run at once: lanes, plus one, so that a lane whose worker died finds a free core.
    `later_slots` may be needed later: a local master provides them from the start.
    `conf` is the user's `--spark-conf`. `preload` names modules that the daemon imports before it forks workers (a name
    that ends in ``*`` means all modules with that prefix). `log_file` receives all output of Spark and the workers.
    """

    slots: int
    log_file: Path
    app_name: str
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    preload: tuple[str, ...] = ("kmirror.engine.lane.lane*", *_LATER_IMPORTS)
    later_slots: int = 0


def check(options: SparkOptions, environ: Mapping[str, str]) -> None:
    """Raise UsageError or RefusedError for a master or a setting that cannot work."""
    master = options.master
    if master.startswith("sc://") or environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise RefusedError(
            f"Spark Connect ({master}) is not supported: kmirror needs a classic Spark master",
            "use --master local[*], spark://HOST:PORT, yarn or k8s://…",
        )
    if not (_LOCAL.fullmatch(master) or _CLUSTER.fullmatch(master)):
        raise UsageError(f"{master!r} is not a Spark master", "use local[*], spark://HOST:PORT, yarn or k8s://…")
    for key in options.conf:
        if not key.startswith("spark."):
            raise UsageError(f"{key!r} is not a Spark property: names start with 'spark.'")
    if "spark.master" in options.conf:
        raise UsageError("spark.master cannot be set with --spark-conf", "use --master")
    if (mode := options.conf.get(_DEPLOY_MODE, "client")) != "client":
        raise UsageError(
            f"{_DEPLOY_MODE}={mode} is not possible: kmirror itself is the Spark driver, and runs here",
            f"leave {_DEPLOY_MODE} out; lanes run on the cluster all the same. To have the driver restarted elsewhere,"
            " run kmirror under a supervisor, or with --standby on a second machine",
        )
    if master == "yarn":
        _check_hadoop(environ)


def _check_hadoop(environ: Mapping[str, str]) -> None:
    """Raise RefusedError if nothing says how to reach YARN: Spark would end, or search on this machine for minutes."""
    named = {name: Path(environ[name]) for name in _HADOOP_VARIABLES if environ.get(name)}
    spark_conf = environ.get("SPARK_CONF_DIR") or f"{environ.get('SPARK_HOME', '')}/conf"
    if any((folder / "yarn-site.xml").is_file() for folder in named.values()):
        return
    if named:
        name, folder = next(iter(named.items()))
        raise RefusedError(f"{name} is {folder}, but there is no yarn-site.xml in it", f"correct {name}")
    if not Path(spark_conf, "spark-env.sh").is_file():
        raise RefusedError(
            "--master yarn needs Hadoop's configuration, but HADOOP_CONF_DIR is not set",
            "set it to the folder with core-site.xml and yarn-site.xml: export HADOOP_CONF_DIR=/etc/hadoop/conf",
        )


def holds_secret(key: str) -> bool:
    """Return whether a setting holds a secret, by its name: it is never part of a command line."""
    return _SECRET.search(key) is not None and _NO_SECRET.search(key) is None


def is_managed(master: str) -> bool:
    """Return True if a resource manager starts the executors, when it has room: YARN or Kubernetes."""
    return master.startswith(("yarn", "k8s"))


def is_local(master: str) -> bool:
    """Return True if workers are processes on this machine, below the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def effective_master(options: SparkOptions) -> str:
    """Return the master to give to Spark: a local one gets threads for all slots, and replaces workers that died.

    More threads than cores do no harm: they wait for the network most of the time.
    """
    if (local := _LOCAL.fullmatch(options.master)) is None:
        return options.master
    return f"local[{local_threads(options)},{local['failures'] or TASK_FAILURES}]"


def local_threads(options: SparkOptions) -> int:
    """Return how many functions a local master runs at once."""
    return max(cores_of(options.master) or 1, options.slots + options.later_slots)


def worker_python(options: SparkOptions, environ: Mapping[str, str]) -> str:
    """Return the Python for workers: this interpreter on this machine, the same minor version elsewhere."""
    if chosen := options.conf.get("spark.pyspark.python"):
        return chosen
    if options.master.startswith("local"):
        return sys.executable
    return environ.get("PYSPARK_PYTHON") or f"python{sys.version_info.major}.{sys.version_info.minor}"


def settings(options: SparkOptions, folder: Path, archive: Path | None, address: str | None) -> dict[str, str]:
    """Return all Spark settings.

    `folder` is the run's own, `archive` is shipped to the workers of a cluster, `address` is our own as a standalone
    master sees it.
    """
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        # A lane that waits for a core finds the spare one at once.
        "spark.dynamicAllocation.enabled": "false",
        # Spark gives up on a frozen executor after 20 s instead of 120.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "5s",
        "spark.task.maxFailures": str(TASK_FAILURES),
        "spark.locality.wait": "1s",
        "spark.python.daemon.module": "kmirror.engine.spark.daemon",
        "spark.python.task.killTimeout": "100ms",
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        f"spark.executorEnv.{PRELOAD_VARIABLE}": ",".join(options.preload),
        **(_local_settings(folder) if is_local(options.master) else _cluster_settings(options, address)),
        **_authentication(options),
    }
    merged = {**ours, **options.conf, "spark.master": effective_master(options), "spark.app.name": options.app_name}
    python_path = [merged.get("spark.executorEnv.PYTHONPATH", "")]
    if archive is not None:
        python_path.insert(0, f"./{UNPACKED}")
        # YARN brings it to each node once; by the other name each executor would also fetch it from us
        key = "spark.yarn.dist.archives" if options.master == "yarn" else "spark.archives"
        merged[key] = ",".join([*filter(None, [merged.get(key)]), f"{archive}#{UNPACKED}"])
    else:
        python_path.insert(0, _source_folder())
    merged["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
    return merged


def log_configuration() -> str:
    """Return a log4j2 configuration that sends warnings and errors to standard error, which is the log file.

    Times are UTC, in the format of our own log, so that lines can be matched. The root level is not above `warn`:
    Spark would announce that it changes it.
    """
    return """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def _authentication(options: SparkOptions) -> dict[str, str]:
    """Return the settings with which only our own processes may talk to Spark's ports, also on this machine.

    Spark makes the secret itself for a local master, YARN and Kubernetes. A standalone cluster has one for all
    applications, which the user gives.
    """
    if options.master.startswith("spark://") and _AUTH_SECRET not in options.conf:
        return {}
    of_ours = {_AUTH_SECRET: secrets.token_hex(32)} if options.master.startswith("local-cluster") else {}
    return {"spark.authenticate": "true", **of_ours}


def _local_settings(folder: Path) -> dict[str, str]:
    short = len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The only executor is the JVM itself: after a suspension it must not count itself as lost.
        "spark.storage.blockManagerHeartbeatTimeoutMs": "365d",
        # By default one for each of the master's threads, of which most are for lanes that may come later.
        "spark.rpc.netty.dispatcher.numThreads": "4",
        "spark.local.dir": str(folder),
        "spark.python.unix.domain.socket.enabled": str(short).lower(),
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def _cluster_settings(options: SparkOptions, address: str | None) -> dict[str, str]:
    # An executor's JVM only starts Python workers; 450 MB is the least that Spark accepts.
    common = {
        _DEPLOY_MODE: "client",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": " ".join(JAVA_OPTIONS),
        **({"spark.driver.host": address} if address else {}),
    }
    if options.master.startswith("spark://"):
        # Twice the slots: when one of two machines is lost, the other has room for all functions.
        return {**common, "spark.cores.max": str(2 * options.slots)}
    if options.master.startswith("local-cluster"):
        return {**common, "spark.driver.host": "127.0.0.1"}
    managed = {**common, "spark.executor.instances": str(options.slots), **_LASTING}
    return {**managed, **_LASTING_ON_YARN} if options.master == "yarn" else managed


def _source_folder() -> str:
    """Return the folder that kmirror is imported from; "" if every Python of this installation finds it anyway."""
    folder = Path(kmirror.__file__).parent.parent
    return "" if folder.name in {"site-packages", "dist-packages"} else str(folder)
