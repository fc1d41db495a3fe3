"""Kafka's jars: from KAFKA_HOME, or fetched once with the Ivy that pyspark ships, and kept in the user's cache.

A fetch goes into a directory of its own, which is renamed when it is complete, under a lock: an interrupted fetch
leaves nothing that looks like a classpath, and two processes never fetch the same thing. Ivy checks each file against
the checksum that the repository has beside it, and refuses one that differs.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kmirror.bounded_files import expanded
from kmirror.errors import RefusedError, UnreachableError, UsageError
from kmirror.java import find_java
from kmirror.work import Meter, Watch, unwatched

DEFAULT_KAFKA_VERSION = "4.3.1"
OLDEST_KAFKA = (2, 8)

#: By major version, the logging binding: Kafka's published jars depend only on the interfaces, its download adds these.
_LOGGING = {
    2: ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    3: ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    4: ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
}
#: Artifacts fetched without their dependencies: here the broker's jars suffice, and the rest (all of Connect) would
#: double the download.
_ALONE = frozenset({"kafka-tools"})
#: Issues tokens to clients that log in with OAUTHBEARER.
_TOKEN_SERVER = ("no.nav.security", "mock-oauth2-server", "3.0.1")
#: What repositories have beside each file, and Ivy can check: the first one that exists counts.
_CHECKSUMS = "sha1,md5"
_FETCH_TIMEOUT_S = 1800
_PROGRESS_S = 0.5
_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")
_BROKER_JAR = re.compile(r"kafka_2\.13-(\d+\.\d+\.\d+.*)\.jar")


@dataclass(frozen=True, slots=True)
class KafkaJars:
    """A directory of jars that run one version of Kafka, or of another server of the sandbox."""

    version: str
    directory: Path

    @property
    def classpath(self) -> str:
        """Return the value for `java -cp`."""
        return f"{self.directory}/*"

    @property
    def major(self) -> int:
        """Return the major version: 4 uses another logging library, and has some tools in other classes."""
        return int(self.version.split(".", 1)[0])


def kafka_jars(
    version: str | None,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    extra: Collection[str] = (),
    watch: Watch = unwatched,
) -> KafkaJars:
    """Return the jars of a Kafka version, fetching them the first time (about a minute).

    The default version is that of KAFKA_HOME if set, else `DEFAULT_KAFKA_VERSION`. `extra` names more artifacts of
    `org.apache.kafka` in the same version, such as `kafka-tools`. `report` gets a line before a fetch, `watch` its
    progress.

    Raises:
        UsageError: the version is invalid.
        RefusedError: KAFKA_HOME is not a Kafka release.
        UnreachableError: the download failed.
    """
    if version is not None:
        check_kafka_version(version)
    kafka_home = environ.get("KAFKA_HOME")
    if kafka_home:
        installed = _installed(expanded(kafka_home, "KAFKA_HOME").absolute())
        if version in {None, installed.version}:
            return installed
        report(f"KAFKA_HOME has Kafka {installed.version}; using {version} as requested")
    chosen, more = version or DEFAULT_KAFKA_VERSION, sorted(set(extra))
    wanted = _Wanted(f"Kafka {chosen}", "+".join([chosen, *more]), ivy_module(chosen, more), 45)
    return _cached(wanted, chosen, f"kafka_2.13-{chosen}.jar", environ, report, watch)


def check_kafka_version(version: str) -> None:
    """Raise UsageError unless this is a release that the sandbox can run."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UsageError(f"{version!r} is not a Kafka version", f"give three numbers, such as {DEFAULT_KAFKA_VERSION}")
    if (int(found.group(1)), int(found.group(2))) < OLDEST_KAFKA or int(found.group(1)) not in _LOGGING:
        raise UsageError(
            f"the sandbox cannot run Kafka {version}",
            "it runs 2.8, 3.x and 4.x releases; omit the version for the default",
        )


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for fetched jars: kmirror/kafka below XDG_CACHE_HOME or ~/.cache."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else expanded(environ.get("HOME", "~"), "HOME") / ".cache") / "kmirror" / "kafka"


def token_server_jars(
    environ: Mapping[str, str], report: Callable[[str], None] = lambda line: None, watch: Watch = unwatched
) -> KafkaJars:
    """Return the jars of the token server, fetching them the first time. Raises UnreachableError."""
    return artifact_jars(*_TOKEN_SERVER, 28, environ, report, watch)


def artifact_jars(
    organisation: str,
    name: str,
    version: str,
    megabytes: int,
    environ: Mapping[str, str],
    report: Callable[[str], None] = lambda line: None,
    watch: Watch = unwatched,
) -> KafkaJars:
    """Return the jars of an artifact and its dependencies, fetching them the first time. Raises UnreachableError."""
    ivy = _ivy_file([(organisation, name, version)])
    wanted = _Wanted(f"{name} {version}", f"{name}-{version}", ivy, megabytes)
    return _cached(wanted, version, f"{name}-{version}.jar", environ, report, watch)


def ivy_module(version: str, extra: Collection[str]) -> str:
    """Return the Ivy file for a broker of this version, its logging, and the extra artifacts."""
    wanted = [("org.apache.kafka", name, version) for name in ("kafka_2.13", *extra)]
    return _ivy_file([*wanted, _LOGGING[int(version.split(".", 1)[0])]])


def _ivy_file(wanted: Sequence[tuple[str, str, str]]) -> str:
    lines = [
        f'    <dependency org="{organisation}" name="{name}" rev="{revision}" '
        f'conf="default->{"master" if name in _ALONE else "default"}"/>'
        for organisation, name, revision in wanted
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="kmirror" module="sandbox"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
            "",
        ]
    )


def _installed(kafka_home: Path) -> KafkaJars:
    libs = kafka_home / "libs"
    versions = [found.group(1) for jar in libs.glob("kafka_2.13-*.jar") if (found := _BROKER_JAR.fullmatch(jar.name))]
    if len(versions) != 1:
        raise RefusedError(
            f"KAFKA_HOME is {kafka_home}, but {libs} does not have exactly one kafka_2.13-<version>.jar",
            "set KAFKA_HOME to an unpacked Kafka release, or unset it to have kmirror fetch one",
        )
    check_kafka_version(versions[0])
    return KafkaJars(versions[0], libs)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to fetch: its name, its directory in the cache, its Ivy file, its size in MB."""

    title: str
    folder: str
    ivy: str
    megabytes: int


def _cached(
    wanted: _Wanted,
    version: str,
    proof: str,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    watch: Watch,
) -> KafkaJars:
    """Return the jars from the cache, after fetching them if missing; a complete fetch has the jar `proof`."""
    cache = cache_directory(environ)
    jars = KafkaJars(version, cache / wanted.folder)
    if jars.directory.is_dir():
        return jars
    with _locked(cache):
        if not jars.directory.is_dir():
            for leftover in cache.glob("fetching-*"):
                shutil.rmtree(leftover)
            report(f"fetching {wanted.title} (about {wanted.megabytes} MB, once; kept in {cache})")
            # the total is unknown until it is complete
            with Meter(watch, f"fetching {wanted.title}", "byte") as meter:
                _fetch(wanted, proof, jars.directory, cache, environ, meter)
    return jars


def _fetch(wanted: _Wanted, proof: str, directory: Path, cache: Path, environ: Mapping[str, str], meter: Meter) -> None:
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as name:
        folder = Path(name)
        (folder / "ivy.xml").write_text(wanted.ivy, encoding="utf-8")
        command: list[str | Path] = [
            *(find_java(environ), "-Dsun.net.client.defaultConnectTimeout=20000"),
            *("-Dsun.net.client.defaultReadTimeout=60000", f"-Divy.checksums={_CHECKSUMS}"),
            *("-jar", _ivy_jar(), "-m2compatible"),
            *("-ivy", folder / "ivy.xml", "-confs", "default", "-cache", cache / "ivy"),
            *("-retrieve", f"{folder}/libs/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        before = _bytes_in(cache / "ivy")
        code, output = _run(command, environ, wanted.title, lambda: meter.reach(_bytes_in(cache / "ivy") - before))
        if code != 0 or not (folder / "libs" / proof).is_file():
            raise _fetch_error(wanted.title, _cause(output))
        (folder / "libs").rename(directory)


def _run(
    command: Sequence[str | Path], environ: Mapping[str, str], title: str, progress: Callable[[], None]
) -> tuple[int, str]:
    """Run Ivy, calling `progress` repeatedly; return its exit code and output."""
    deadline = time.monotonic() + _FETCH_TIMEOUT_S
    with subprocess.Popen(
        command, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_PROGRESS_S)
                except subprocess.TimeoutExpired as error:
                    progress()
                    if time.monotonic() > deadline:
                        why = f"not finished after {_FETCH_TIMEOUT_S // 60} minutes"
                        raise _fetch_error(title, why) from error
                else:
                    return process.returncode, output
        except BaseException:
            process.kill()
            raise


def _bytes_in(directory: Path) -> int:
    """Return the size of all files below a directory; files may disappear meanwhile."""
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                found += os.stat(Path(folder, name)).st_size
    return found


def _cause(output: str) -> str:
    """Return the line of Ivy's long output that names the fault, such as a wrong checksum or a missing artifact."""
    known = (r"invalid (?:sha1|md5).*", r"Server access error.*", r"\S+: not found", r".*Exception.*", r".*\S.*")
    for pattern in known:
        found = re.search(pattern, output)
        if found:
            return found.group(0).strip()
    return "Ivy printed nothing"


def _fetch_error(title: str, why: str) -> UnreachableError:
    return UnreachableError(
        f"cannot fetch {title}: {why}",
        "check the version and the network (behind a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… "
        "-Dhttps.proxyPort=…'), or unpack a Kafka release yourself and set KAFKA_HOME",
    )


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    folders = list(pyspark.submodule_search_locations or ()) if pyspark else []
    for folder in folders:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise RefusedError(
        "pyspark's jars, which are needed to fetch Kafka, are not installed",
        "install kmirror with its dependencies, or unpack a Kafka release and set KAFKA_HOME",
    )


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(cache / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
