"""The logins of a rehearsal: its records name a file, in which the operator's secrets stand as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.trust import StoredProperties
from kmirror_rehearse.clusters import for_a_record, trusting

PASSWORD = 'p\u00fc"ss\\w ord'


def test_a_rehearsal_reaches_its_own_clusters_on_a_host_with_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMIRROR_TRUST_SOURCES", "kafka.example.com")
    with trusting(tmp_path, {"bootstrap.servers": "127.0.0.1:1"}):
        assert client_config(StoredProperties({"bootstrap.servers": "127.0.0.1:9"}))


@pytest.mark.parametrize("reference", ["${env:REHEARSAL}", '"${env:REHEARSAL}"'])
def test_any_password_comes_through(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL", PASSWORD)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="u" password={reference};',
    }
    with trusting(tmp_path, properties):
        record = for_a_record(properties, tmp_path / "secrets.properties")
        assert PASSWORD not in str(record)
        assert client_config(StoredProperties(record)).password == PASSWORD
