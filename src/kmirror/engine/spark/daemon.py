"""The process that forks Python workers: Spark's own, prepared so that a worker starts quickly and never outlives it.

Spark runs it as `spark.python.daemon.module`. Before Spark's own loop starts, it

* takes Spark's zip of pyspark off the path where the same pyspark is installed unpacked: a zip holds no bytecode, and
  compiling costs half a second at every start; and Spark's own jar, whose directory every worker would read again, for
  13 MB each;
* imports what every worker needs, so that forks share it (KMIRROR_PRELOAD: module names, comma-separated; a name that
  ends in ``*`` means all modules of that package with that prefix);
* limits the heaps of the C library: a worker's threads would get one of a megabyte each;
* makes every worker end with it (`lifeline`).

Standard output is Spark's: it carries the address of the daemon, so nothing else may print there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import os
import pkgutil
import sys
import traceback
from pathlib import Path

from kmirror.engine import lifeline
from kmirror.engine.memory import limit_arenas

PRELOAD_VARIABLE = "KMIRROR_PRELOAD"


def main() -> None:
    """Prepare the process, then fork workers until Spark closes standard input."""
    given = set(sys.path)
    sys.path[:] = without_bundled_pyspark(sys.path)
    for entry in given.difference(sys.path):
        sys.path_importer_cache.pop(entry, None)
    with contextlib.redirect_stdout(sys.stderr):
        preload(["pyspark.daemon", "pyspark.worker", *os.environ.get(PRELOAD_VARIABLE, "").split(",")])
    lifeline.tie_children()
    limit_arenas()
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


def without_bundled_pyspark(path: list[str]) -> list[str]:
    """Return `path` without Spark's jar and the zips of pyspark and py4j, if their installation is on it."""
    others = [entry for entry in path if not entry.endswith((".zip", ".jar"))]
    spec = importlib.machinery.PathFinder.find_spec("pyspark", others)
    if spec is None or spec.origin is None or importlib.machinery.PathFinder.find_spec("py4j", others) is None:
        return path
    installed = Path(spec.origin).parent.resolve()
    bundled = {installed / "python" / "lib", installed / "jars"}
    return [entry for entry in path if entry in others or Path(entry).resolve().parent not in bundled]


def preload(names: list[str]) -> None:
    """Import the named modules; print the traceback of one that fails: the task that needs it will fail."""
    for name in names:
        for module in _expand(name.strip()):
            try:
                importlib.import_module(module)
            except Exception:
                traceback.print_exc()


def _expand(name: str) -> list[str]:
    if not name.endswith("*"):
        return [name] if name else []
    package_name, _, prefix = name[:-1].rpartition(".")
    package = importlib.import_module(package_name)
    return [
        f"{package_name}.{module.name}"
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.startswith(prefix)
    ]


if __name__ == "__main__":
    main()
