"""All that a machine lacks to use client properties is listed; the refusal of a Spark worker names machine and side."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path

import pytest

from kmirror.cluster.security.local_needs import lacking_here
from kmirror.cluster.security.trust import StoredProperties
from kmirror.engine.worker_logins import Logins, require_logins
from kmirror.errors import Reason, RefusedError
from tests.support.tls import write_tls_files

ADDRESS = {"bootstrap.servers": "a:1"}
GONE = "No such file or directory"


def password_login(folder: Path) -> dict[str, str]:
    return {
        **ADDRESS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'ScramLoginModule required username="u" password="${{file:{folder}/secrets:p}}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{folder}/root.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{folder}/client-clear-key.pem",
    }


def test_all_files_that_are_missing_are_named_and_with_them_nothing_is_missing(tmp_path: Path) -> None:
    properties = password_login(tmp_path)
    assert sorted(lacking_here(properties)) == [
        f"{tmp_path}/{name}: {GONE}" for name in ("client-clear-key.pem", "root.pem", "secrets")
    ]
    write_tls_files(tmp_path)
    (tmp_path / "secrets").write_text("q=another\n")
    (lacking,) = lacking_here(properties)
    assert "the file has no key p" in lacking
    (tmp_path / "secrets").write_text("p=hunter2\n")
    assert lacking_here(properties) == []
    assert lacking_here(ADDRESS) == []


@pytest.mark.parametrize(
    "login",
    [
        {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka", "sasl.jaas.config": 'keyTab="{}"'},
        {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka", "sasl.jaas.config": 'ticketCache="{}"'},
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "file://{}", "sasl.jaas.config": ""},
    ],
    ids=["keytab", "ticket cache", "token"],
)
def test_files_that_are_read_at_a_login_are_named(tmp_path: Path, login: dict[str, str]) -> None:
    module = "Krb5LoginModule" if login["sasl.mechanism"] == "GSSAPI" else "OAuthBearerLoginModule"
    file = tmp_path / "file"
    properties = {**ADDRESS, "security.protocol": "SASL_PLAINTEXT"}
    properties |= {key: value.format(file) for key, value in login.items()}
    properties["sasl.jaas.config"] = f"{module} required {properties['sasl.jaas.config']};"
    assert lacking_here(properties) == [f"{file}: {GONE}"]
    file.touch()
    assert lacking_here(properties) == []


def test_a_worker_is_refused_by_name_and_the_refusal_reaches_the_driver(tmp_path: Path) -> None:
    properties = password_login(tmp_path) | {"ssl.key.password": "${env:KM_NOT_SET}"}
    write_tls_files(tmp_path)
    (tmp_path / "secrets").write_text("p=hunter2\n")
    require_logins(Logins("m", ADDRESS, ADDRESS), 0)
    with pytest.raises(RefusedError) as caught:
        require_logins(logins := Logins("m", ADDRESS, properties), 0)
    refusal = pickle.loads(pickle.dumps(caught.value))
    assert refusal.reason is Reason.SECRET_UNRESOLVED
    assert refusal.message.startswith(
        f"Spark worker {socket.gethostname()} cannot log in to the destination of m: ssl.key.password: "
    )
    assert "the environment variable KM_NOT_SET is not set" in refusal.message
    assert "hunter2" not in f"{refusal.message}{refusal.hint}{logins}"


def test_a_file_that_a_record_may_not_name_is_not_opened(tmp_path: Path) -> None:
    """A pipe would never return, and an error would say whether there is such a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KMIRROR_TRUST_PATHS", "/etc/kmirror")
        for named in (pipe, Path("/nowhere/ca.pem")):
            stored = StoredProperties({"bootstrap.servers": "a:1", "ssl.truststore.location": str(named)})
            (why,) = lacking_here(stored)
            assert why.startswith(f"ssl.truststore.location: this host lets no mirror name {named}")
            assert "KMIRROR_TRUST_PATHS=/etc/kmirror," in why
