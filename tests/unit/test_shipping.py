"""The archive for workers: what is in it, and when it is made again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from kmirror.engine.spark.shipping import cache_folder, worker_archive
from kmirror.errors import RefusedError


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive as it is shipped."""
    return worker_archive(tmp_path_factory.mktemp("shipping"))


def test_it_holds_what_workers_import_and_no_more(archive: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        names = bundle.namelist()

    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    (backend,) = {name for name in packages if name.startswith("_cffi_backend.")}
    assert packages == {"cramjam", "crc32c", "cryptography", "kafka", "kmirror", "cffi", backend}
    assert "kmirror/engine/lane/lane.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


@pytest.mark.slow
def test_a_python_without_libraries_imports_the_lane_from_it(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        bundle.extractall(tmp_path)
    code = (
        "import kmirror.engine.lane.lane, kmirror.engine.spark.daemon, kafka, cramjam, crc32c\n"
        "from cryptography.hazmat.primitives.serialization import pkcs12\n"
        # as a lane does before it resolves the properties of its source
        "from kmirror.config_file import load_config_file\n"
        "assert load_config_file().path is not None\n"
        "print(kmirror.__file__)"
    )

    policy = tmp_path / "kmirror.toml"
    policy.write_text('[trust]\nsources = ["*.example.com:9093"]\n')

    # -S leaves out all that is installed.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path), "KMIRROR_CONFIG": str(policy)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout == f"{tmp_path}/kmirror/__init__.py\n"


def test_it_is_made_once_for_the_same_content(tmp_path: Path) -> None:
    first = worker_archive(tmp_path, ["crc32c"])
    made = first.stat().st_ino
    os.utime(first, (0, 0))

    assert worker_archive(tmp_path, ["crc32c"]) == first
    assert first.stat().st_ino == made
    assert first.stat().st_mtime > time.time() - 60
    assert worker_archive(tmp_path, ["cramjam"]) != first


def test_archives_unused_for_a_month_are_removed(tmp_path: Path) -> None:
    old, recent = tmp_path / "workers-old.zip", tmp_path / "workers-recent.zip"
    for path, days in (old, 31), (recent, 29):
        path.touch()
        os.utime(path, (time.time() - days * 24 * 3600,) * 2)

    made = worker_archive(tmp_path, ["crc32c"])

    assert set(tmp_path.iterdir()) == {recent, made}


def test_a_library_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no-such-library is not installed here") as caught:
        worker_archive(tmp_path, ["no-such-library"])

    assert caught.value.hint == "install it from a wheel: pip install --force-reinstall no-such-library"
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder({}) == tmp_path / ".cache" / "kmirror"
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path / "caches")}) == tmp_path / "caches/kmirror"
