"""The trust policy of the machine that runs the tests: its temporary folder, and variables of the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

#: The environment variables of the policy.
TRUST_VARIABLES = tuple(f"KMIRROR_TRUST_{name}" for name in ("PATHS", "ENV", "SOURCES", "TOKEN_URLS", "UNVERIFIED"))


@pytest.fixture(scope="session", autouse=True)
def trusted() -> Iterator[None]:
    """Let records of mirrors name what tests make, in this process and in those that it starts."""
    before = {name: os.environ.get(name) for name in TRUST_VARIABLES}
    os.environ["KMIRROR_TRUST_PATHS"] = tempfile.gettempdir()
    os.environ["KMIRROR_TRUST_ENV"] = "KM_*,KMIRROR_*"
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
