"""A test process that is killed leaves no broker behind, also where it is a worker of pytest-xdist."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.reaper import MARK, marked
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_TEST = """
import json, os, pathlib, time


def test_that_is_killed(make_cluster):
    pids = [broker.pid for broker in make_cluster().brokers]
    told = json.dumps({{"pid": os.getpid(), "run": os.environ["{mark}"], "brokers": pids}})
    pathlib.Path("{file}.new").write_text(told)
    pathlib.Path("{file}.new").rename("{file}")
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n", "1", "--max-worker-restart", "0"]], ids=["alone", "xdist"])
def test_what_a_killed_test_process_has_started_is_ended(processes: list[str], tmp_path: Path) -> None:
    reported = tmp_path / "told.json"
    test = tmp_path / "kafka" / "test_killed.py"
    test.parent.mkdir()
    test.write_text(_TEST.format(mark=MARK, file=reported))
    command = [sys.executable, "-m", "pytest", "-c", str(_ROOT / "pyproject.toml"), "-p", "tests.conftest", str(test)]
    run = ""
    with subprocess.Popen([*command, *processes], cwd=_ROOT, stdout=subprocess.PIPE, text=True) as pytest_process:
        try:
            wait_until(lambda: reported.exists() or pytest_process.poll() is not None, 120)
            assert reported.exists(), pytest_process.communicate()
            found = json.loads(reported.read_text())
            run = found["run"]
            assert run != os.environ[MARK]
            assert set(found["brokers"]) <= set(marked(run))
            os.kill(found["pid"], signal.SIGKILL)
            wait_until(lambda: marked(run) == [])
        finally:
            pytest_process.kill()
            for pid in marked(run) if run else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
