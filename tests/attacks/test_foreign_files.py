"""A file of mirrors from a pull request: who may write it must not learn what this host may read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks.conftest import SECRET
from tests.attacks.test_planted_state import PLAIN
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.listener import Listener


def plan(pair: ClusterPair, file: Path, *more: str) -> tuple[int, list[tuple[str, str | None]], str]:
    """Apply a file; return the exit code, how its changes ended, and all that was shown."""
    done = typed(pair.destination, "apply", "-f", str(file), "--json", *more)
    rows = [(row["result"], row["reason"]) for row in json.loads(done.stdout)["changes"]]
    return done.returncode, rows, done.stdout + done.stderr


@pytest.mark.parametrize("reference", ["${dir:FOLDER:key}", "${file:FOLDER/app.properties:password}", "${env:OTHER}"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_plan_sends_no_secret_of_this_host(
    cluster_pair: ClusterPair,
    listener: Listener,
    secrets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: str,
    is_new: bool,
) -> None:
    monkeypatch.setenv("OTHER", SECRET)
    mirror, file = unique_topic("m"), tmp_path / "mirrors.toml"
    if not is_new:
        file.write_text(f'[mirrors.{mirror}.source]\n"bootstrap.servers" = "{cluster_pair.source.bootstrap_servers}"')
        assert plan(cluster_pair, file)[0] == 0
    file.write_text(
        f"""
        [mirrors.{mirror}.source]
        "bootstrap.servers" = "{listener.address}"
        "security.protocol" = "SASL_PLAINTEXT"
        "sasl.mechanism" = "PLAIN"
        "sasl.jaas.config" = '{PLAIN.format(reference.replace("FOLDER", str(secrets)))}'
        """
    )
    for more in (("--dry-run",), ()):
        code, rows, shown = plan(cluster_pair, file, *more)
        assert code == 3
        assert set(rows) == {("REFUSED", "SECRET_UNRESOLVED")}
        assert "if that is intended" in shown
        assert SECRET not in shown
    assert listener.received == []


def test_a_plan_logs_in_only_where_mirrors_may(
    cluster_pair: ClusterPair, listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMIRROR_OWN", SECRET)
    monkeypatch.setenv("KMIRROR_TRUST_SOURCES", "kafka.example.com")
    file = tmp_path / "mirrors.toml"
    file.write_text(
        f"""
        [mirrors.{unique_topic("m")}.source]
        "bootstrap.servers" = "{listener.address}"
        "security.protocol" = "SASL_PLAINTEXT"
        "sasl.mechanism" = "PLAIN"
        "sasl.jaas.config" = '{PLAIN.format("${env:KMIRROR_OWN}")}'
        """
    )
    code, _, shown = plan(cluster_pair, file, "--dry-run")
    assert (code, listener.received) == (3, [])
    assert "KMIRROR_TRUST_SOURCES=" in shown
