"""The whole life of a mirror between secured clusters under a strict policy, and what is said where it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.java_properties import properties_text
from kmirror.ops.base.context import Destination
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import typed
from tests.support.local_engine import LocalEngine
from tests.support.shared_clusters import GuardedPair

STORES = ("ssl.truststore.location", "ssl.keystore.location")


@dataclass(frozen=True, slots=True)
class Site:
    """A host with a policy folder, and elsewhere the operator's own logins to both clusters."""

    policy: Path
    own: Path

    def own_login(self, cluster: SandboxCluster) -> str:
        return str(cluster.write_client_properties(self.own / f"{cluster.name}.properties"))

    def mirror_file(self, cluster: SandboxCluster, bound_to: str | None = None) -> str:
        """Write a mirror's file whose secrets are in the policy folder, bound to the cluster; return its path."""
        properties = cluster.client_properties()
        secrets = self.policy / f"{cluster.name}.properties"
        line = properties["sasl.jaas.config"]
        secrets.write_text(
            properties_text({"jaas": line, "kmirror.allowed.sources": bound_to or cluster.bootstrap_servers})
        )
        properties["sasl.jaas.config"] = f"${{file:{secrets}:jaas}}"
        for key in STORES:
            if key in properties:
                copied = self.policy / f"{cluster.name}-{Path(properties[key]).name}"
                shutil.copy(properties[key], copied)
                properties[key] = str(copied)
        file = self.own / f"{cluster.name}-mirror.properties"
        file.write_text(properties_text(properties))
        return str(file)


@pytest.fixture
def site(tmp_path: Path, guarded_pair: GuardedPair, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path / "policy", tmp_path / "own")
    made.policy.mkdir()
    made.own.mkdir()
    sources = f"{guarded_pair.source.bootstrap_servers},{guarded_pair.destination.bootstrap_servers}"
    monkeypatch.setenv("KMIRROR_TRUST_PATHS", str(made.policy))
    monkeypatch.setenv("KMIRROR_TRUST_SOURCES", sources)
    return made


@pytest.mark.slow
def test_there_and_back_under_a_strict_policy(
    site: Site, guarded_pair: GuardedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, mirror, topic = guarded_pair.source, guarded_pair.destination, unique_topic("m"), unique_topic()
    with ClusterClient(client_config(a.client_properties())) as admin:
        create_topic(admin, topic, 1, 1, {})
    to_b = ("--mirror", mirror, "--command-config", site.own_login(b))
    to_a = ("--mirror", mirror, "--command-config", site.own_login(a))

    created = typed(b, "create", *to_b, "--mirror-config", site.mirror_file(a), "--config", "read.only=detect")
    assert (created.returncode, created.stderr) == (0, "")
    assert typed(b, "add", *to_b, "--topics", topic).returncode == 0
    with Destination.open(b.client_properties()) as at_b, LocalEngine(at_b, mirror) as engine:
        engine.catch_up()

    # without `sources`, or for a mirror that this host could not use, this is reported when it is created
    another = ("--mirror", unique_topic("m"), *to_b[2:], "--mirror-config", site.mirror_file(a), "--dry-run")
    with monkeypatch.context() as patch:
        patch.delenv("KMIRROR_TRUST_SOURCES")
        urged = typed(b, "create", *another)
        assert "[trust] has no sources" in urged.stderr
        assert f'sources = ["{a.bootstrap_servers}"]' in urged.stderr
        (line,) = (
            one for one in json.loads(typed(b, "check", *to_b, "--json").stdout)["checks"] if one["check"] == "trust"
        )
        assert (line["ok"], f'sources = ["{a.bootstrap_servers}"]' in line["hint"]) == (True, True)
        patch.setenv("KMIRROR_TRUST_PATHS", "/etc/kmirror")
        urged = typed(b, "create", *another)
        assert (urged.returncode, "this host could not use the mirror" in urged.stderr) == (0, True)

    # each part of the policy, when it does not fit
    for variable, value, words in (
        ("KMIRROR_TRUST_PATHS", "/etc/kmirror", f"this host lets no mirror name {site.policy}"),
        ("KMIRROR_TRUST_SOURCES", "kafka.example.com", "this host lets no mirror log in to"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            refused = typed(b, "add", *to_b, "--topics", topic)
            assert refused.returncode == 3
            assert words in refused.stderr
            assert f"if that is intended, set {variable}={value}," in refused.stderr
            described = typed(b, "describe", *to_b)
            assert described.returncode == 0
    bound = site.policy / f"{a.name}.properties"
    text = bound.read_text()
    bound.write_text(
        text.replace(a.bootstrap_servers.replace(":", "\\:"), "other").replace(a.bootstrap_servers, "other")
    )
    refused = typed(b, "add", *to_b, "--topics", topic)
    assert refused.returncode == 3
    assert f"{bound} is for other, not for {a.bootstrap_servers}" in refused.stderr
    bound.write_text(text)

    assert typed(b, "failover", *to_b, "--yes").returncode == 0
    # what would be stored and could not be used afterwards is refused before anything is changed
    back = site.mirror_file(b)
    with monkeypatch.context() as patch:
        patch.setenv("KMIRROR_TRUST_SOURCES", a.bootstrap_servers)
        refused = typed(a, "failback", *to_a, "--mirror-config", back, "--yes")
        assert refused.returncode == 3
        assert "this host could not use the mirror after it was stored" in refused.stderr
    with Destination.open(a.client_properties()) as at_a:
        assert at_a.state().mirror(mirror) is None
        returned = typed(a, "failback", *to_a, "--mirror-config", back, "--yes")
        assert returned.returncode == 0, returned
        with LocalEngine(at_a, mirror) as engine:
            engine.catch_up()
    assert typed(a, "failover", *to_a, "--yes").returncode == 0
