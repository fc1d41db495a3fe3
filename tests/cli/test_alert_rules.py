"""Prometheus' own tool tests the alerts with the series in deploy/prometheus/rules.test.yml."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.debian import unpacked

RULES = Path(__file__).parent.parent.parent / "deploy" / "prometheus"


def promtool(*arguments: str) -> None:
    """Run promtool; fail with what it prints if it finds anything."""
    program = shutil.which("promtool") or unpacked("prometheus", "promtool", ["prometheus"]) / "usr/bin/promtool"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_alerts_fire_when_they_should_and_not_otherwise() -> None:
    promtool("check", "rules", str(RULES / "rules.yml"))
    promtool("test", "rules", str(RULES / "rules.test.yml"))
