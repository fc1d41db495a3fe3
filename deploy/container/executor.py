"""Start the JVM of a Spark executor on Kubernetes from the environment that Spark sets, without a shell.

Spark starts the container with the argument `executor`. The JVM replaces this process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: The options of Spark's executor backend, and the environment variables with their values.
_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION = "SPARK_JAVA_OPT_"


def command(environ: Mapping[str, str], spark_home: Path) -> list[str]:
    """Return the JVM's command line. Raises KeyError for a variable that Spark has not set."""
    numbered = sorted(
        (int(name.removeprefix(_JAVA_OPTION)), value)
        for name, value in environ.items()
        if name.startswith(_JAVA_OPTION)
    )
    java = Path(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else "java"
    given = [environ.get(name) for name in ("SPARK_CLASSPATH", "SPARK_EXTRA_CLASSPATH", "SPARK_DIST_CLASSPATH")]
    conf = environ.get("SPARK_CONF_DIR") or str(spark_home / "conf")
    class_path = [conf, f"{spark_home}/jars/*", *(one for one in given if one), "."]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    return [
        str(java),
        *(value for _, value in numbered),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        *("-cp", os.pathsep.join(class_path)),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(word for option, name in _OPTIONS.items() for word in (option, environ[name])),
    ]


def main() -> None:
    """Become the executor."""
    if sys.argv[1:] != ["executor"]:
        sys.exit("this image is for Spark's executors on Kubernetes: Spark starts it with the argument executor")
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit("PySpark is not installed")
    try:
        line = command(os.environ, Path(spec.origin).parent)
    except KeyError as error:
        sys.exit(f"{error.args[0]} is not set: Spark sets it for its executors on Kubernetes")
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
