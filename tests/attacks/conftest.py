"""Attacks: what others can write or answer must not make this host read, send or run anything.

Each test has a host with the default policy: no `kmirror.toml`, and a home folder of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kmirror.ops.base.context import Destination
from tests.support.clusters import ClusterPair, forgotten_mirrors
from tests.support.listener import Listener, listening
from tests.support.mirrors import properties_of
from tests.support.trust import TRUST_VARIABLES

__all__ = ["forgotten_mirrors"]

SECRET = "hunter2-of-this-host"


@pytest.fixture(autouse=True)
def default_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give this process the policy of a host on which no one has configured one."""
    for name in (*TRUST_VARIABLES, "KMIRROR_CONFIG", "CREDENTIALS_DIRECTORY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def destination(cluster_pair: ClusterPair) -> Iterator[Destination]:
    """Return the shared destination, opened as commands do."""
    with Destination.open(properties_of(cluster_pair.destination)) as opened:
        yield opened


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Return a listener that must receive nothing."""
    with listening() as found:
        yield found


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return a folder with secrets of this host that no mirror is meant to have."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "key").write_text(SECRET)
    (folder / "app.properties").write_text(f"password={SECRET}\n")
    return folder
