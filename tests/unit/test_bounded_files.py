"""Files that never end, or are far too large, are refused: a device that was named by mistake took all memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kmirror.bounded_files import MOST_BYTES, read_file
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import parse_properties, read_properties, resolve
from kmirror.errors import KmirrorError
from kmirror.ops.append.append_file import _lines
from kmirror.ops.failback.truncation_plan import read_plan
from kmirror.settings.patterns import TopicSelector
from kmirror.toml_tables import read_toml
from kmirror_plan import plan_files

ENDLESS = "/dev/zero"
#: What a process may use: more than the largest file, and much less than memory.
SPACE = 3 << 30


def tls() -> None:
    config = client_config(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": ENDLESS,
        }
    )
    config.ssl_context()


def plan() -> None:
    folder = Path("plan-of-nothing")
    folder.mkdir(exist_ok=True)
    (folder / plan_files.PLAN_FILE).symlink_to(ENDLESS)
    plan_files.read_plan(str(folder))


def records() -> None:
    file = Path("one-line")
    file.touch()
    os.truncate(file, MOST_BYTES + 1)
    list(_lines(str(file)))


READS: dict[str, Callable[[], object]] = {
    "properties": lambda: read_properties(ENDLESS),
    "names": lambda: TopicSelector.parse([f"@{ENDLESS}"]),
    "toml": lambda: read_toml(Path(ENDLESS), "name another"),
    "file secret": lambda: resolve({"sasl.jaas.config": f"${{file:{ENDLESS}:a}}"}),
    "dir secret": lambda: resolve({"sasl.jaas.config": "${dir:/dev:zero}"}),
    "certificates": tls,
    "records": records,
    "cuts": lambda: read_plan(ENDLESS),
    "plan": plan,
}


@pytest.mark.parametrize("what", READS)
def test_an_endless_file_is_refused_by_name(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KmirrorError, match=r"it has more than (64|250) MB"):
        READS[what]()


@pytest.mark.slow
def test_a_command_says_so_with_little_memory() -> None:
    program = [sys.executable, "-m", "kmirror", "list", "--bootstrap-server", "127.0.0.1:1"]
    done = subprocess.run(
        [*program, "--command-config", ENDLESS],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE)),
    )
    assert done.returncode == 2, done
    assert f"cannot read the properties file {ENDLESS}: it has more than 64 MB" in done.stderr


def test_what_is_large_but_not_too_large_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"#" + bytes(1000) + b"\na=b\n")
    assert parse_properties(read_file(file).decode("iso-8859-1"))["a"] == "b"
    with pytest.raises(OSError, match="more than 0 MB"):
        read_file(file, 1000)
    assert MOST_BYTES == 64_000_000
