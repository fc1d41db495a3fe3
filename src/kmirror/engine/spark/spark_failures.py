"""Failures of a function in Spark, as kmirror errors."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from kmirror.engine.spark.spark_context import from_java
from kmirror.errors import KmirrorError, RefusedError, UnreachableError


class SparkLostError(KmirrorError):
    """Spark's application has ended, or its Java process, and with it all functions."""


class TaskFailedError(KmirrorError):
    """Spark gave up on a function: its workers died repeatedly, or could not be started."""


class TaskCancelledError(KmirrorError):
    """The function was cancelled, or the runtime stopped, before it ended."""


class WorkerTraceback(Exception):  # noqa: N818 - never raised: it is only a `__cause__`
    """The traceback of an exception in a worker, as text."""


def explain(name: str, error: BaseException, log_file: Path) -> KmirrorError:
    """Return the error to report for function `name`, given the exception that Spark raised."""
    text = from_java(error)
    if text is None:
        return SparkLostError(f"the connection to Spark's Java process broke: {first_line(error)}", f"see {log_file}")
    return translate(name, text, log_file)


def translate(name: str, text: str, log_file: Path) -> KmirrorError:
    """Return the error to report for function `name`, given the JVM's message."""
    hint = f"see {log_file}"
    if versions := re.search(r"different version: (\S+) than that in driver: ([\d.]+)", text):
        return RefusedError(
            f"the Spark workers run Python {versions[1]}, kmirror runs Python {versions[2]}: they must be the same",
            f"install Python {versions[2]} there and set --spark-conf spark.pyspark.python=PATH",
        )
    if program := re.search(r'Cannot run program "([^"]+)"', text):
        return RefusedError(
            f"the Spark workers have no {program[1]}", "set their Python: --spark-conf spark.pyspark.python=PATH"
        )
    if "SparkContext was shut down" in text:
        return SparkLostError(f"Spark's application ended during {name}", hint)
    if module := re.search(r"No module named '([^']+)'", text):
        return RefusedError(f"the Spark workers cannot import {module[1]}", hint)
    return TaskFailedError(f"Spark aborted {name}: {text.strip().splitlines()[0]}", hint)


def not_started(text: str, log_file: Path) -> KmirrorError:
    """Return the error to report when Spark's application did not start, given the message of the JVM or of Python.

    What YARN ends may run later, or on another node: that is UnreachableError. So may the rest, which is KmirrorError.
    """
    first = text.strip().partition("\n")[0]
    if ended := re.search(r"\bapplication_\d+_\d+\b", text):
        detail = re.search(r"Diagnostics: (?:\[[^]]*]\s*)?(.+)", text)
        return UnreachableError(
            f"YARN ended {ended[0]} before it started: {detail[1] if detail else first}",
            f"see {log_file} and `yarn logs -applicationId {ended[0]}`",
        )
    return KmirrorError(f"Spark did not start: {first}", f"see {log_file}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: the JVM's message where the error comes from there.

    Call it while the JVM lives: Py4J's errors have to ask it for their text.
    """
    lines: list[str] = []
    with contextlib.suppress(Exception):
        lines = (from_java(error) or str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
