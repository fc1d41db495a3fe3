"""The pair of clusters behind `kmirror sandbox`: up, status and down, each twice, and with a broker lost in between."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kmirror.cluster.rights.acls import describe_acls
from kmirror.cluster.security.properties import literal_secrets, read_properties
from kmirror.errors import RefusedError, UsageError
from kmirror.ops.base.context import Destination
from kmirror.ops.check.check import check
from kmirror.ops.mirrors.create import create
from kmirror_sandbox.ports import LOOPBACK
from kmirror_sandbox.registry import (
    BrokerState,
    SandboxOptions,
    default_directory,
    down,
    plan_down,
    plan_up,
    status,
    up,
)
from tests.support.clusters import broker_processes, put_quick_java_into
from tests.support.ports import free_base_port


def typed(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run what a terminal would."""
    assert program == "kmirror"
    command = [sys.executable, "-m", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.slow
def test_up_status_and_down_each_twice_and_with_a_broker_lost(
    clusters_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_quick_java_into(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    directory, base = clusters_directory / "pair", free_base_port()
    said: list[str] = []
    planned = plan_up(directory, SandboxOptions(base_port=base))
    assert [step.text for step in planned] == [
        f"create cluster a with 1 broker, ports from {base}",
        f"create cluster b with 1 broker, ports from {base + 10}",
    ]
    assert not directory.exists()

    first = up(directory, SandboxOptions(base_port=base), report=said.append)
    assert first.steps == planned
    assert said[-2:] == [step.text for step in planned]
    assert [(broker.cluster, broker.address, broker.state) for broker in first.status.brokers] == [
        ("a", f"{LOOPBACK}:{base}", BrokerState.RUNNING),
        ("b", f"{LOOPBACK}:{base + 10}", BrokerState.RUNNING),
    ]
    for name, broker in zip("ab", first.status.brokers, strict=True):
        servers = first.status.bootstrap_servers(name)
        metadata = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30)
        assert metadata.cluster_id == broker.cluster_id
        assert Path(broker.log_file).is_file()

    again = up(directory)
    assert again.steps == ()
    assert again.status == first.status == status(directory)

    lost = first.status.brokers[1]
    assert lost.pid is not None
    os.kill(lost.pid, signal.SIGKILL)
    while (seen := status(directory).brokers[1]).pid is not None:
        pass
    assert (seen.state, seen.address, seen.cluster_id) == (BrokerState.DOWN, lost.address, lost.cluster_id)
    repaired = up(directory, SandboxOptions(base_port=base, brokers=1, kafka_version="4.3.1"))
    assert [step.text for step in repaired.steps] == ["start broker 1 of cluster b"]
    assert repaired.status.brokers[0] == first.status.brokers[0]
    assert repaired.status.brokers[1].state == BrokerState.RUNNING

    with pytest.raises(RefusedError, match="cluster a already exists, with --brokers 1 instead of 3"):
        up(directory, SandboxOptions(brokers=3))
    with pytest.raises(RefusedError, match=r"with --kafka-version 4.3.1 instead of 3.9.2"):
        up(directory, SandboxOptions(kafka_version="3.9.2"))
    with pytest.raises(RefusedError, match=f"with --base-port {base} instead of {base + 1}"):
        up(directory, SandboxOptions(base_port=base + 1))
    with pytest.raises(RefusedError, match="cluster a already exists and is not secured"):
        up(directory, SandboxOptions(secured="scram"))
    with pytest.raises(RefusedError, match="cluster a already exists, without tiered storage"):
        up(directory, SandboxOptions(tiered=True))
    assert status(directory) == repaired.status

    (directory / "notes.txt").write_text("mine")
    steps = plan_down(directory)
    assert [step.text for step in steps] == [
        f"stop cluster {name} and remove its data in {directory / name}" for name in "ab"
    ]
    ended = down(directory, said.append)
    assert ended.steps == steps
    assert ended.status.brokers == ()
    assert broker_processes(directory) == []
    assert [entry.name for entry in directory.iterdir()] == ["notes.txt"]
    (directory / "notes.txt").unlink()
    for _ in range(2):
        assert down(directory).steps == ()
        assert not directory.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "secret", "principal"),
    [
        ("scram", "sasl.jaas.config", "User:kmirror"),
        ("plain", "sasl.jaas.config", "User:kmirror"),
        ("mtls", "ssl.keystore.password", "User:NAME"),
    ],
)
def test_a_secured_pair_lets_in_who_has_the_files(
    clusters_directory: Path, kind: str, secret: str, principal: str
) -> None:
    directory, base = clusters_directory / f"secured pair {kind}", free_base_port()
    done = up(directory, SandboxOptions(base_port=base, secured=kind))
    assert [step.text for step in done.steps] == [
        f"create cluster {name} with 1 secured broker, ports from {port}"
        for name, port in (("a", base), ("b", base + 10))
    ]
    files = done.status.client_files
    assert [str(file.relative_to(directory)) for file in files] == [
        f"{name}/{kind}.properties" for name in "ab" for kind in ("admin", "kmirror", "mirror")
    ]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert "${file:" in files[2].read_text()
    assert literal_secrets(read_properties(files[2])) == []
    assert len({read_properties(file)[secret] for file in files}) == 6  # a password for each
    mirror, (admin, kmirror) = read_properties(files[2]), (read_properties(file) for file in files[3:5])
    with Destination.open(admin) as destination:
        assert describe_acls(destination.client) == frozenset()  # and there is an authorizer
        assert create(destination, "m", mirror).exit_code == 0  # the source lets it in, though it may do nothing
    report = check(kmirror, properties=mirror)
    (least,) = [line for line in report.lines if (line.cluster, line.what) == ("destination", "least rights")]
    assert f"--add --allow-principal {principal} --operation Create" in least.message
    assert up(directory, SandboxOptions(secured=kind)).steps == ()
    with pytest.raises(RefusedError, match=f"already exists and is secured with {kind}"):
        up(directory, SandboxOptions(secured="oauth"))
    assert up(directory).status.client_files == files
    reported = typed("kmirror", "sandbox", "up", "--dir", str(directory)).stderr.splitlines()
    create_line, check_line = (line[line.index("kmirror c") :] for line in reported if "kmirror c" in line)
    (export,) = (line for line in reported if "export" in line)
    assert shlex.split(export)[-1] == f"KMIRROR_TRUST_PATHS={directory}"
    refused = typed(*shlex.split(create_line))
    assert (refused.returncode, f"--allow-principal {principal}" in refused.stderr) == (3, True), refused
    checked = typed(*shlex.split(check_line))
    assert "kafka-acls --bootstrap-server" in checked.stdout, checked
    down(directory)
    assert not directory.exists()


def test_a_taken_port_is_named_before_anything_is_changed(tmp_path: Path) -> None:
    base = free_base_port()
    for offset in (0, 11, 20, 32):
        with socket.create_server((LOOPBACK, base + offset)), pytest.raises(RefusedError) as refused:
            up(tmp_path / "sandbox", SandboxOptions(base_port=base, brokers=3))
        assert refused.value.message == f"port {base + offset} is in use by another process"
        assert "--base-port" in (refused.value.hint or "")
    assert not (tmp_path / "sandbox").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"brokers": 0}, "invalid number of brokers: 0"),
        ({"brokers": 10}, "invalid number of brokers: 10"),
        ({"base_port": 80}, "invalid base port: 80"),
        ({"base_port": 65_500}, "invalid base port: 65500"),
        ({"kafka_version": "newest"}, "'newest' is not a Kafka version"),
        ({"kafka_version": "2.7.0"}, "cannot run Kafka 2.7.0"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, wrong: dict[str, int | str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        up(tmp_path / "sandbox", SandboxOptions(**wrong))  # type: ignore[arg-type]
    assert not (tmp_path / "sandbox").exists()


def test_the_sandbox_lives_in_the_user_s_state_folder() -> None:
    assert default_directory({"HOME": "/h"}) == Path("/h/.local/state/kmirror/sandbox")
    assert default_directory({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/kmirror/sandbox")
