"""A driver in its own process: one endless function in a local Spark, to be killed, frozen and interrupted.

    python -m tests.support.spark_driver FOLDER

The function writes its pid and attempt to FOLDER/function, a line for each attempt, and ends when FOLDER/end exists;
the driver writes its own pid and the JVM's to FOLDER/driver.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.errors import KmirrorError


def endless(folder: str, attempt: int) -> str:
    """Run until the test says so."""
    import os
    import time
    from pathlib import Path

    with Path(folder, "function").open("a") as file:
        file.write(f"{os.getpid()} {os.getppid()} {attempt}\n")
    while not Path(folder, "end").exists():
        time.sleep(0.01)
    return "ended"


def main(folder: Path) -> None:
    """Run the function; print its result or the error."""
    options = SparkOptions(slots=2, log_file=folder / "spark.log", app_name="test")
    with SparkRuntime(options) as spark:
        signal.signal(signal.SIGINT, lambda *_: (folder / "interrupted").touch())
        future = spark.submit("endless", endless, str(folder))
        jvm = spark._launched.gateway.process.pid if spark._launched is not None else 0
        (folder / "driver.new").write_text(f"{os.getpid()} {jvm}")
        (folder / "driver.new").rename(folder / "driver")
        try:
            sys.stdout.write(future.result())
        except KmirrorError as error:
            sys.stdout.write(type(error).__name__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
