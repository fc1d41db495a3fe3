"""The JVM process of a Spark driver: how it is started, found to be ready, and ended.

It gets a session of its own, so that neither a Ctrl-C on the terminal nor a signal to our process group reaches it. Its
output goes to a log file, never to the terminal. It ends by itself when its standard input closes, which also happens
when the driver is killed.

Java is started directly where Spark's own scripts would add nothing; that saves a second. Where they may know more than
we do, they are used: see `needs_scripts`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmirror.engine.spark.conf import holds_secret, is_managed
from kmirror.engine.threads import wait_until
from kmirror.errors import KmirrorError, RefusedError, TimedOutError, UnreachableError

_READY_SECONDS = 60.0
_MASTER_SECONDS = 5.0
#: The driver's JVM schedules tasks and carries no data; Spark refuses less than 450 MB.
_HEAP = "512m"
_SCRIPT_VARIABLES = (
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)
_SCRIPT_SETTINGS = re.compile(
    r"spark\.(driver\.(extra|default|memory$|memoryOverhead)|jars|submit|kerberos|plugins|yarn|kubernetes)"
)


class GatewayError(KmirrorError):
    """The JVM ended before it was ready."""


@dataclass(slots=True)
class Gateway:
    """A running JVM that accepts Py4J connections on `port` with `secret`."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str

    @property
    def has_ended(self) -> bool:
        """True when the JVM has ended; `close` reaps it."""
        return _has_ended(self.process.pid)

    def close(self, timeout: float) -> bool:
        """Ask the JVM to end, kill its session after `timeout` seconds; return True if it ended by itself."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(TimedOutError):
            wait_until(lambda: _has_ended(self.process.pid), timeout)
        kill_session(self.process.pid)
        return self.process.wait() == 0


def spark_home(environ: Mapping[str, str]) -> Path:
    """Return SPARK_HOME, or the folder of the installed pyspark package, without importing it.

    Raises RefusedError: there is no Spark.
    """
    if home := environ.get("SPARK_HOME"):
        if not _has_spark(Path(home)):
            raise RefusedError(f"SPARK_HOME is {home}, but there is no Spark in it", "correct SPARK_HOME, or unset it")
        return Path(home)
    package = _package()
    if package is None:
        raise RefusedError("PySpark is not installed", "pip install pyspark")
    if not _has_spark(package):
        raise RefusedError(
            f"the PySpark in {package} comes without Spark",
            "unset PYTHONPATH if it leads there, or set SPARK_HOME to the Spark that it belongs to",
        )
    return package


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a local master, without what leads to other installations of Spark and Hadoop."""
    package = _package()
    others = {*_SCRIPT_VARIABLES, "SPARK_LOCAL_DIRS", "PYTHONWARNINGS"}
    if package is not None and _has_spark(package):
        others.add("SPARK_HOME")
    return {name: value for name, value in environ.items() if name not in others}


def _package() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _has_spark(home: Path) -> bool:
    return (home / "jars").is_dir()


def _has_ended(process: int) -> bool:
    """Return True if a child has ended, without reaping it: until it is reaped, no other process can get its id."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def address_towards(master: str) -> str:
    """Return our own address as the standalone `master` sees it; raise UnreachableError if no master answers."""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection((host.strip("[]"), int(port)), timeout=_MASTER_SECONDS) as connection,
        ):
            return str(connection.getsockname()[0])
    raise UnreachableError(f"the Spark master {master} does not answer", "start it, or correct --master")


def needs_scripts(master: str, conf: Mapping[str, str], home: Path, environ: Mapping[str, str]) -> bool:
    """Return True if Spark's own scripts must start it: for resource managers, or a user's own Spark or settings."""
    return (
        is_managed(master)
        or home.resolve() != spark_home({}).resolve()
        or (home / "conf").exists()
        or len(_launchers(home)) != 1
        or any(environ.get(name) for name in _SCRIPT_VARIABLES)
        or any(_SCRIPT_SETTINGS.match(key) for key in conf)
    )


def direct_command(java: Path, home: Path, java_options: Sequence[str]) -> list[str]:
    """Return the command that starts the gateway without a script, as spark-submit finally would."""
    return [
        str(java),
        f"-Xmx{_HEAP}",
        "-XX:-UsePerfData",
        *java_options,
        *module_options(home),
        *("-cp", f"{home}/jars/*"),
        "org.apache.spark.api.python.PythonGatewayServer",
    ]


def script_command(home: Path, java_options: Sequence[str], conf: Mapping[str, str]) -> list[str]:
    """Return the command that starts the gateway through spark-submit.

    Anyone on this machine can read it, so it holds no secrets: the context gets all settings.
    """
    settings = {"spark.driver.memory": _HEAP, **{key: conf[key] for key in conf if not holds_secret(key)}}
    settings["spark.driver.defaultJavaOptions"] = " ".join(
        [settings.get("spark.driver.defaultJavaOptions", ""), *(f'"{option}"' for option in java_options)]
    ).strip()
    arguments = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return [str(home / "bin" / "spark-submit"), *arguments, "pyspark-shell"]


def module_options(home: Path) -> list[str]:
    """Return the Java module options that this version of Spark needs.

    They are string constants of a small class of Spark's launcher, and a class file stores those as plain text.
    """
    (launcher,) = _launchers(home)
    with zipfile.ZipFile(launcher) as jar:
        constants = jar.read("org/apache/spark/launcher/JavaModuleOptions.class")
    return [option.decode() for option in re.findall(rb"(?:--\w|-XX:|-D)[\w./:+=-]+", constants)]


def scala_version(home: Path) -> str:
    """Return the Scala version of this Spark, which its scripts would put into the environment."""
    (launcher,) = _launchers(home)
    return launcher.name.removeprefix("spark-launcher_").partition("-")[0]


def _launchers(home: Path) -> list[Path]:
    return list((home / "jars").glob("spark-launcher_*.jar"))


def start(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, log_file: Path, stopping: threading.Event
) -> Gateway:
    """Start the JVM and wait until it answers.

    `folder` is the run's own: the JVM writes its port and secret there. Raises GatewayError if the JVM ends instead,
    TimedOutError after a minute, StoppedError if `stopping` is set. No exception leaves a process behind.
    """
    answer = folder / "gateway"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: answer.exists() or _has_ended(process.pid), _READY_SECONDS, stopping)
        if not answer.exists():
            raise GatewayError("Java ended while Spark was starting")
        port, size = struct.unpack(">ii", (data := answer.read_bytes())[:8])
        answer.unlink()
        return Gateway(process, port, data[8 : 8 + size].decode())
    except BaseException:
        if process.stdin is not None:
            process.stdin.close()
        kill_session(process.pid)
        process.wait()
        raise


def kill_session(leader: int) -> None:
    """Kill the session of `leader`: the JVM, its Python daemon and workers, including frozen ones.

    Without /proc only the leader's process group is known; the rest ends with it (`lifeline`).
    """
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(entry.name)) == leader:
                os.kill(int(entry.name), signal.SIGKILL)
