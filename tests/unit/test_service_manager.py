"""What systemd is notified of, by the protocol of sd_notify(3), and the unit that makes use of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path

import pytest

from kmirror.cli.commands.copying import ServiceManager
from kmirror.cli.commands.serve_command import serve_verb
from kmirror.engine.driver.driver import view_pause
from kmirror_rehearse.cli.rehearse_command import rehearse_verb
from tests.support.forked import run
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
UNIT = ROOT / "deploy" / "systemd" / "kmirror@.service"
REHEARSAL = UNIT.with_name("kmirror-rehearse@.service")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Listen as systemd does; give the socket, and what NOTIFY_SOCKET says."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0", 1))
        listening.settimeout(PATIENCE_S)
        yield listening, address


def test_ready_is_reported_once_and_alive_each_time(
    manager: tuple[socket.socket, str],
) -> None:
    listening, address = manager
    service_manager = ServiceManager.of_this_process({"NOTIFY_SOCKET": address})
    service_manager.report_alive("waiting")
    service_manager.report_alive("copying")
    service_manager.report_stopping()
    assert [listening.recv(1000).decode() for _ in range(3)] == [
        "READY=1\nWATCHDOG=1\nSTATUS=waiting",
        "WATCHDOG=1\nSTATUS=copying",
        "STOPPING=1",
    ]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/notify"}])
def test_without_one_nothing_happens(environ: dict[str, str]) -> None:
    service_manager = ServiceManager.of_this_process(environ)
    service_manager.report_alive("copying")
    service_manager.report_stopping()


def test_a_run_notifies_the_service_manager(manager: tuple[socket.socket, str]) -> None:
    """Also one that waits for a destination which is down, and ends with an error."""
    listening, address = manager
    line = ["run", "--mirror", "m", "--bootstrap-server", "127.0.0.1:1", "--for", "2s"]
    environ = {**os.environ, "NOTIFY_SOCKET": address}
    done = run([sys.executable, "-m", "tests.support.without_spark", *line], env=environ)
    assert done.returncode == 5
    listening.setblocking(False)
    reported: list[str] = []
    while not reported or reported[-1] != "STOPPING=1":
        reported.append(listening.recv(1000).decode())
    assert reported[0].startswith("READY=1\nWATCHDOG=1\nSTATUS=")
    assert all(one.startswith("WATCHDOG=1\n") for one in reported[1:-1])
    assert len(reported) >= 3


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["KillMode"], service["RestartPreventExitStatus"]) == ("notify", "mixed", "2 3")
    assert int(service["WatchdogSec"]) >= 60, "the driver loops about once a second, and may wait for a heartbeat"
    # however much there is to show, the engine reports that it is alive in time
    pauses = [view_pause(work) for work in (0.0, 0.001, 0.005, 0.01, 0.1, 60.0)]
    assert pauses == [1.0, 1.0, 2.0, 3.0, 12.5, int(service["WatchdogSec"]) / 3]
    verb = service["ExecStart"].split()[1:]
    assert verb == ["run", "--mirror", "%i", "--standby"]
    assert service["ExecReload"].endswith(f"kill -{signal.SIGHUP.name.removeprefix('SIG')} $MAINPID")
    if (systemd_analyze := shutil.which("systemd-analyze")) is None:
        return  # where there is no systemd, no one starts the unit
    there = tmp_path / "kmirror@.service"
    there.write_text(UNIT.read_text().replace("/opt/kmirror/bin/kmirror", sys.executable))
    done = subprocess.run([systemd_analyze, "verify", str(there)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_of_serve_starts_what_kmirror_takes(tmp_path: Path) -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    file = UNIT.with_name("kmirror-serve@.service")
    assert unit.read(file)
    service = unit["Service"]
    assert (service["Type"], service["RestartPreventExitStatus"]) == ("notify", "2 3")
    verb, *words = service["ExecStart"].split()[1:]
    assert verb == "serve"
    with serve_verb.make_context("serve", words) as context:
        assert context.params["http"] == "%i"
    if (systemd_analyze := shutil.which("systemd-analyze")) is None:
        return  # where there is no systemd, no one starts the unit
    there = tmp_path / "kmirror-serve@.service"
    there.write_text(file.read_text().replace("/opt/kmirror/bin/kmirror", sys.executable))
    done = subprocess.run([systemd_analyze, "verify", str(there)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_rehearsal_s_unit_starts_what_kmirror_takes_and_its_timer_starts_that(tmp_path: Path) -> None:
    unit, timer = RawConfigParser(strict=False), RawConfigParser(strict=False)
    for parser, file in ((unit, REHEARSAL), (timer, REHEARSAL.with_suffix(".timer"))):
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        assert parser.read(file)
    verb, *words = unit["Service"]["ExecStart"].split()[1:]
    assert verb == "rehearse"
    with rehearse_verb.make_context("rehearse", words) as context:
        assert (context.params["check"], context.params["out"]) == ("${CHECK}", "/var/lib/kmirror/rehearsals/%i")
    assert "CHECK=true" in unit["Service"]["Environment"].split()
    assert unit["Service"]["Type"] == "oneshot", "one that has found something is a failed unit"
    if (systemd_analyze := shutil.which("systemd-analyze")) is None:
        return  # where there is no systemd, no one starts the unit
    line = [systemd_analyze, "calendar", timer["Timer"]["OnCalendar"]]
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0
