"""The store of a sandbox with tiered storage: how it is made to behave, and what is needed to make one.

A shell script replaces Java and its compiler here; tests/kafka/test_sandbox_store.py uses real ones.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kmirror.errors import RefusedError, UsageError
from kmirror_sandbox.jars import KafkaJars
from kmirror_sandbox.tiered_store import Store, check_tiered, compiled_store, install_store

JAVA = """#!/bin/sh
echo '    java.home = {home}' >&2
"""
COMPILER = """#!/bin/sh
echo compiled >> {calls}
[ "$1" = -d ] && mkdir -p "$2" && touch "$2/FolderStore.class"
"""
JARS = KafkaJars("4.3.1", Path("/jars"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_store_is_compiled_once_for_each_version(tmp_path: Path, environ: dict[str, str]) -> None:
    calls = tmp_path / "calls"
    java = script(tmp_path / "elsewhere" / "java", JAVA.format(home=tmp_path / "jdk"))
    script(tmp_path / "jdk" / "bin" / "javac", COMPILER.format(calls=calls))
    said: list[str] = []
    for version in ("4.3.1", "4.3.1", "3.9.2"):
        classes = compiled_store(java, KafkaJars(version, Path("/jars")), environ, said.append)
        assert [file.name for file in classes.iterdir()] == ["FolderStore.class"]
        assert classes.parent == tmp_path / "cache" / "kmirror" / "kafka"
    assert calls.read_text() == "compiled\ncompiled\n"
    assert said == ["compiling the store of tiered topics (once)"] * 2

    install_store(tmp_path / "store", classes)
    assert (tmp_path / "store" / "classes" / "FolderStore.class").is_file()


def test_a_java_without_compiler_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    java = script(tmp_path / "jre" / "bin" / "java", JAVA.format(home=tmp_path / "jre"))
    with pytest.raises(RefusedError, match=f"{java} is not part of a JDK") as refused:
        compiled_store(java, JARS, environ)
    assert "install a JDK 17" in (refused.value.hint or "")


def test_a_failed_compilation_leaves_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    java = script(tmp_path / "jdk" / "bin" / "java", JAVA.format(home=tmp_path / "jdk"))
    script(tmp_path / "jdk" / "bin" / "javac", "#!/bin/sh\necho no room >&2\nexit 1\n")
    with pytest.raises(RefusedError, match=r"for Kafka 4\.3\.1: no room"):
        compiled_store(java, JARS, environ)
    assert list((tmp_path / "cache" / "kmirror" / "kafka").iterdir()) == []


@pytest.mark.parametrize("version", ["2.8.2", "3.5.2"])
def test_versions_without_tiered_storage_are_named(version: str) -> None:
    with pytest.raises(UsageError, match=f"Kafka {version} has no tiered storage"):
        check_tiered(version)
    for later in ("3.6.0", "3.10.1", "4.3.1"):
        check_tiered(later)


def test_how_a_store_behaves(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for behave, said in (
        (partial(store.slow, 1500), "read.ms=1500\nindex.ms=1500\n"),
        (partial(store.slow, 400, 0), "read.ms=400\nindex.ms=0\n"),
        (store.fail, "fails=true\n"),
        (store.away, "away=true\n"),
        (store.well, ""),
    ):
        behave()
        assert store.control_file.read_text() == said
    assert [file.name for file in tmp_path.iterdir()] == ["control.properties"]
