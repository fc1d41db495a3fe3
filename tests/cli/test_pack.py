"""`kmirror pack`: the archive runs what workers run, in another folder, without this machine's Python."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmirror.engine.spark import python_pack
from kmirror.engine.spark.shipping import worker_archive

if TYPE_CHECKING:
    from .conftest import Run

#: Uses what lanes use, then prints where Python and everything compiled come from.
_WORKER = """\
import sys
import cffi, cramjam, crc32c, kafka, ssl, botocore.session
import kmirror.engine.lane.lane
from cryptography.hazmat.primitives.ciphers import aead
assert cramjam.zstd.compress(b"x")
print(sys.version.split()[0], sys.prefix)
print("\\n".join({line.split(None, 5)[-1].strip() for line in open("/proc/self/maps") if ".so" in line}))
"""


@pytest.mark.slow
def test_the_packed_python_runs_what_workers_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_pack, "_COMPRESSION", 1)  # half of the time that packing takes
    packed = run("pack", "--output", "python.tar.gz")
    assert (packed.code, packed.err) == (0, "")
    assert packed.out.startswith("wrote python.tar.gz (")
    archive = tmp_path / "python.tar.gz"
    options = [shlex.split(line) for line in packed.out.splitlines() if line.startswith("  --spark-conf")]
    assert [(key, value) for _, key, _, value in options] == [
        (f"spark.yarn.dist.archives={archive}#environment", "spark.pyspark.python=./environment/bin/python"),
        (f"spark.archives={archive}#environment", "spark.pyspark.python=./environment/bin/python"),
    ]
    with tarfile.open(archive) as tar:
        assert {(member.uid, member.uname, member.mode & 0o022) for member in tar} == {(0, "", 0)}
        tar.extractall(tmp_path / "a worker's place" / "environment", filter="fully_trusted")
    with zipfile.ZipFile(worker_archive(tmp_path / "shipped")) as shipped:
        shipped.extractall(tmp_path / "kmdeps")
    place = tmp_path / "a worker's place"
    done = subprocess.run(
        ["./environment/bin/python", "-c", _WORKER],
        cwd=place,
        env={"PYTHONPATH": str(tmp_path / "kmdeps")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *loaded = done.stdout.splitlines()
    assert first == f"{sys.version.split()[0]} {place / 'environment'}"
    elsewhere = {Path(file).name for file in loaded if not file.startswith(str(tmp_path))}
    assert [name for name in elsewhere if not python_pack.is_of_glibc(name)] == []


def test_an_earlier_archive_is_replaced_and_nothing_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    refused = run("pack", "--output", "notes")
    assert (refused.code, (tmp_path / "notes").read_text()) == (2, "mine")
    assert "--output: notes is not an archive of this command" in refused.err
    assert run("pack", "--output", "no/such/folder.tar.gz").code == 2


@pytest.mark.slow
def test_a_python_that_works_only_where_it_is_installed_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_pack, "_CHECK", "import no_such_part")
    refused = run("pack")
    assert refused.code == 3
    assert "does not work once it is copied: ModuleNotFoundError: No module named 'no_such_part'" in refused.err
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert "only a Python of Linux with glibc can be packed" in run("pack").err
    assert [*tmp_path.iterdir()] == []
