"""The store of a sandbox cluster with tiered storage: a folder shared by its brokers that can be slow, fail or be away.

store/  classes/            `FolderStore.java` compiled: what brokers load to reach the store
        segments/           the segments, one folder for each topic id and partition; written by the brokers
        control.properties  how the store behaves; brokers read it before every operation
        operations.log      one line for each operation, if the file exists
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import as_file, files
from pathlib import Path

from kmirror.errors import RefusedError, UsageError
from kmirror.java import MINIMUM_JAVA
from kmirror_sandbox.cluster_spec import release_of
from kmirror_sandbox.jars import KafkaJars, cache_directory

#: The class that brokers load.
STORE_CLASS = "FolderStore"
#: The first release with tiered storage (KIP-405).
_FIRST_TIERED = (3, 6)
_NO_COMPILER = (
    f"install a JDK {MINIMUM_JAVA} or newer (a package such as openjdk-17-jdk-headless, temurin-17-jdk or openjdk@17) "
    "and set JAVA_HOME to it, or run the sandbox without tiered storage"
)
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)


class Store:
    """How the store of one cluster behaves, from the next operation of any broker on; also while none runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control_file = folder / "control.properties"
        self._operations = folder / "operations.log"

    def slow(self, read_ms: int, index_ms: int | None = None) -> None:
        """Let each read of a segment take this long, and each read of an index: as long by default."""
        self._behave(f"read.ms={read_ms}\nindex.ms={read_ms if index_ms is None else index_ms}\n")

    def fail(self) -> None:
        """Let reads fail."""
        self._behave("fails=true\n")

    def away(self) -> None:
        """Let everything fail: reads, copies and deletions."""
        self._behave("away=true\n")

    def well(self) -> None:
        """Let everything succeed at once."""
        self._behave("")

    def record_operations(self) -> None:
        """Have each operation append a line to a log when it begins, from now on, which is empty now."""
        self._operations.write_text("", encoding="utf-8")

    def operations(self, kind: str) -> list[str]:
        """Return the recorded operations of a kind (READ, INDEX, COPY or DELETE) as `TOPIC-PARTITION START-OFFSET`."""
        lines = self._operations.read_text(encoding="utf-8").splitlines()
        return [rest for name, _, rest in (line.partition(" ") for line in lines) if name == kind]

    def segments(self) -> list[Path]:
        """Return the files of all segments in the store, without their indexes."""
        return sorted((self.folder / "segments").glob("*/*.log"))

    def _behave(self, text: str) -> None:
        temporary = self.control_file.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.control_file)


def check_tiered(version: str) -> None:
    """Raise UsageError for a Kafka version without tiered storage."""
    if release_of(version) < _FIRST_TIERED:
        raise UsageError(f"Kafka {version} has no tiered storage", "use Kafka 3.6 or later, or omit --tiered")


def compiled_store(
    java: Path, jars: KafkaJars, environ: Mapping[str, str], report: Callable[[str], None] = lambda line: None
) -> Path:
    """Return the folder with the store's classes for a Kafka version, compiled the first time and kept in the cache.

    Raises RefusedError if `java` is not part of a JDK.
    """
    with as_file(files("kmirror_sandbox") / f"{STORE_CLASS}.java") as source:
        digest = sha256(source.read_bytes()).hexdigest()[:12]
        cache = cache_directory(environ)
        classes = cache / f"store-{jars.version}-{digest}"
        if not classes.is_dir():
            compiler = _compiler(java, environ)
            report("compiling the store of tiered topics (once)")
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="compiling-", dir=cache) as name:
                _compile(compiler, source, jars, Path(name) / "classes", environ)
                _keep(Path(name) / "classes", classes)
    return classes


def install_store(folder: Path, classes: Path) -> None:
    """Create a cluster's store, which is empty and well."""
    (folder / "segments").mkdir(parents=True)
    shutil.copytree(classes, folder / "classes")
    Store(folder).well()


def _compiler(java: Path, environ: Mapping[str, str]) -> Path:
    """Return the `javac` of a Java, which may be started by a script somewhere else."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    answer = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False, timeout=60)
    home = _HOME.search(answer.stderr + answer.stdout)
    compiler = Path(home.group(1)) / "bin" / "javac" if home else None
    if compiler is None or not compiler.is_file():
        raise RefusedError(f"tiered storage needs a Java compiler: {java} is not part of a JDK", _NO_COMPILER)
    return compiler


def _compile(compiler: Path, source: Path, jars: KafkaJars, classes: Path, environ: Mapping[str, str]) -> None:
    options = ["-d", str(classes), "-cp", jars.classpath, "--release", str(MINIMUM_JAVA), "-Xlint:all", "-proc:none"]
    command = [str(compiler), *options, str(source)]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise RefusedError(
            f"cannot compile the store of tiered topics for Kafka {jars.version}: {done.stderr.strip()}", _NO_COMPILER
        )


def _keep(made: Path, classes: Path) -> None:
    """Rename the compiled classes, unless another process was faster."""
    try:
        made.rename(classes)
    except OSError:
        if not classes.is_dir():
            raise
