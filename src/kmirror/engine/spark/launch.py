"""Launch Spark's JVM for a run: which Java, which command, which settings."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kmirror.engine.spark import conf as spark_conf
from kmirror.engine.spark import gateway
from kmirror.engine.spark.class_archive import ClassArchive
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.gateway import Gateway, GatewayError
from kmirror.engine.spark.shipping import cache_folder, worker_archive
from kmirror.errors import KmirrorError, TimedOutError
from kmirror.java import find_java

_STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A running JVM, the command that started it, and where it lists classes for an archive, if it does."""

    gateway: Gateway
    command: list[str]
    classes: ClassArchive | None
    class_list: Path

    def close(self) -> None:
        """End the JVM within some 3 s; if it ended well and there is no class archive, build one."""
        if self.gateway.close(_STOP_SECONDS) and self.classes is not None:
            self.classes.build(self.command, self.class_list)


def all_settings(options: SparkOptions, environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the Spark settings of this run, whose folder is `folder`; on a cluster, build what workers are sent.

    Raises UnreachableError if a standalone master does not answer, RefusedError if a library to send is missing.
    """
    archive = address = None
    if not spark_conf.is_local(options.master):
        if options.master.startswith("spark://"):
            address = gateway.address_towards(options.master)
        try:
            kept = worker_archive(cache_folder(environ) / "workers")
            # executors that come later fetch it too, and others may clean the cache
            archive = Path(shutil.copy2(kept, folder))
        except OSError:
            archive = worker_archive(folder)
    return spark_conf.settings(options, folder, archive, address)


def launch(
    options: SparkOptions,
    environ: Mapping[str, str],
    folder: Path,
    settings: Mapping[str, str],
    stopping: threading.Event,
) -> Launched:
    """Start the JVM: by Spark's scripts where those are needed, otherwise directly and with the class archive.

    An archive with which the JVM does not start is discarded. Raises RefusedError if there is no Java, KmirrorError if
    it does not start, TimedOutError if it does not answer, StoppedError if `stopping` is set.
    """
    java, home = find_java(environ), gateway.spark_home(environ)
    log_configuration = folder / "log4j2.properties"
    log_configuration.write_text(spark_conf.log_configuration())
    java_options = [f"-Dlog4j2.configurationFile={log_configuration}", f"-Djava.io.tmpdir={folder}"]
    java_options += [f"-XX:ErrorFile={options.log_file.absolute()}.crash", *spark_conf.JAVA_OPTIONS]
    class_list = folder / "classes"
    if options.master.startswith("local"):
        # Java then does not look for a host name that other machines could use.
        environ = {"SPARK_LOCAL_IP": "127.0.0.1", **environ}
    if options.master.startswith("local-cluster"):
        # This JVM starts the executors, which write their work folders into the home they are given.
        links = str(_home_of_links(home, folder / "spark"))
        environ = {**environ, "SPARK_HOME": links, "SPARK_SCALA_VERSION": gateway.scala_version(home)}

    def start(command: list[str], classes: ClassArchive | None = None) -> Launched:
        started = gateway.start(command, environ, folder, options.log_file, stopping)
        return Launched(started, command, classes, class_list)

    try:
        if gateway.needs_scripts(options.master, options.conf, home, environ):
            return start(gateway.script_command(home, java_options, settings))
        classes = _class_archive(java, home, environ)
        if classes is None:
            return start(gateway.direct_command(java, home, java_options))
        if classes.exists:
            try:
                return start(gateway.direct_command(java, home, [*java_options, *classes.use()]))
            except GatewayError:
                classes.discard()
            except TimedOutError:
                classes.discard()
                raise
        return start(gateway.direct_command(java, home, [*java_options, *classes.record(class_list)]), classes)
    except GatewayError as error:
        raise KmirrorError(error.message, f"see {options.log_file}") from error


def _class_archive(java: Path, home: Path, environ: Mapping[str, str]) -> ClassArchive | None:
    try:
        return ClassArchive.locate(java, home, cache_folder(environ) / "java")
    except OSError:
        return None


def _home_of_links(home: Path, place: Path) -> Path:
    """Create a Spark home of symbolic links, so that what is written there is ours to remove."""
    place.mkdir()
    for entry in home.iterdir():
        if entry.name != "work":
            (place / entry.name).symlink_to(entry)
    return place
