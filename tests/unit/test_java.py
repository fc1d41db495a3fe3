"""Finding a Java: what is taken, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmirror.errors import ExitCode, RefusedError
from kmirror.java import find_java, java_major_version


def fake_java(folder: Path, version: str, exit_code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\nexit {exit_code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(output: str, major: int | None) -> None:
    assert java_major_version(output) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    at_home = fake_java(tmp_path / "home", 'openjdk version "17.0.1"')
    on_path = fake_java(tmp_path / "path", 'openjdk version "21.0.1"')

    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}) == at_home
    assert find_java({"JAVA_HOME": "", "PATH": str(on_path.parent)}) == on_path


@pytest.mark.parametrize(
    ("version", "exit_code", "message"),
    [
        ('openjdk version "11.0.20"', 0, "is Java 11, but kmirror needs Java 17 or newer"),
        ('java version "1.8.0_392"', 0, "is Java 8, but kmirror needs Java 17 or newer"),
        ("Unable to locate a Java Runtime.", 1, r"does not look like Java \(exit code 1\)"),
    ],
)
def test_an_old_or_broken_java_is_refused(tmp_path: Path, version: str, exit_code: int, message: str) -> None:
    fake_java(tmp_path, version, exit_code)
    with pytest.raises(RefusedError, match=message) as refused:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert "install Java 17 or newer" in (refused.value.hint or "")
    assert refused.value.exit_code == ExitCode.REFUSED


def test_a_missing_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no Java found: none on the PATH, and JAVA_HOME is not set"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(RefusedError, match=r"JAVA_HOME is .*, but there is no bin/java in it"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_a_java_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path, "").chmod(0o644)
    with pytest.raises(RefusedError, match="cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path)})
