"""Find the Java for Kafka and Spark, before either of them fails with an obscure message.

It is `JAVA_HOME/bin/java` if JAVA_HOME is set, otherwise `java` on the PATH: the same choice as Spark's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kmirror.bounded_files import expanded
from kmirror.errors import RefusedError

#: Kafka 4 brokers and Spark 4 are compiled for Java 17.
MINIMUM_JAVA = 17

_HINT = (
    f"install Java {MINIMUM_JAVA} or newer (a package such as openjdk-17-jre-headless, temurin-17 or openjdk@17) "
    "and set JAVA_HOME, or put java on the PATH"
)
#: Variables with options for every Java.
_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(environ: Mapping[str, str]) -> Path:
    """Return the absolute path of a `java` that is new enough.

    Raises:
        RefusedError: there is none, it does not run, or it is older than 17; the hint says how to get one.
    """
    java = _candidate(environ)
    try:
        answer = subprocess.run(
            [java, "-version"], env=dict(environ), capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"{java} cannot be run: {error}", _HINT) from error
    if answer.returncode != 0 and (variables := [name for name in _OPTIONS if environ.get(name)]):
        # the last line says no more than that the virtual machine could not be created
        why = (answer.stderr + answer.stdout).strip().splitlines()
        told = next(
            (line for line in why if not line.startswith(("Picked up", "NOTE:"))), f"exit code {answer.returncode}"
        )
        raise RefusedError(f"{java} does not start: {told}", f"correct {' and '.join(variables)}, or unset it")
    major = java_major_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or major is None:
        raise RefusedError(f"{java} -version does not look like Java (exit code {answer.returncode})", _HINT)
    if major < MINIMUM_JAVA:
        raise RefusedError(f"{java} is Java {major}, but kmirror needs Java {MINIMUM_JAVA} or newer", _HINT)
    return java


def java_major_version(version_output: str) -> int | None:
    """Return the feature release in the output of `java -version` (8 for "1.8.0"), None if there is none."""
    found = _VERSION.search(version_output)
    return int(found.group(1)) if found else None


def _candidate(environ: Mapping[str, str]) -> Path:
    java_home = environ.get("JAVA_HOME")
    if java_home:
        java = expanded(java_home, "JAVA_HOME").absolute() / "bin" / "java"
        if not java.is_file():
            raise RefusedError(f"JAVA_HOME is {java_home}, but there is no bin/java in it", _HINT)
        return java
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise RefusedError("no Java found: none on the PATH, and JAVA_HOME is not set", _HINT)
    return Path(found).absolute()
