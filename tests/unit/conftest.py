"""What several unit tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tls import write_tls_files


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this run's keys and certificates."""
    folder = tmp_path_factory.mktemp("tls")
    write_tls_files(folder)
    return folder
