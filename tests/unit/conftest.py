"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import has_chromium
from tests.support.cutting import SEGMENTS
from tests.support.log_dirs import add_partition, make_log_dir
from tests.support.partition_shell import EPOCH_MS, Shell, facts, producer_state, stored
from tests.support.tls import write_tls_files

#: What needs a browser is there where one is: no package brings one. test_serve_page.py runs the same page without.
collect_ignore = [] if has_chromium() else ["test_browser.py"]


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this run's keys and certificates."""
    folder = tmp_path_factory.mktemp("tls")
    write_tls_files(folder)
    return folder


@pytest.fixture
def shell() -> Iterator[Shell]:
    """Return a partition whose copy has not begun; whatever happens to it, it gives everything back in the end."""
    made = Shell()
    yield made
    made.end()


@pytest.fixture
def copying(shell: Shell) -> Shell:
    """Return a shell whose copy is past its first success, at offset 10, with a broker that remembers us."""
    shell.inspect(facts(9, producer=producer_state(9, EPOCH_MS)))
    shell.fetch(stored(9))
    assert len(shell.send()) == 1
    shell.answer()
    assert (shell.status, shell.copy.progress.acknowledged) == ("copying", 10)
    return shell


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Return a log directory with `orders-0`, 0 to 89, and a partition that no one names."""
    path = make_log_dir(tmp_path / "data")
    add_partition(path, "orders-0", SEGMENTS, epochs=[(0, 0), (3, 40), (5, 80)])
    add_partition(path, "bystander-0", SEGMENTS)
    return path
