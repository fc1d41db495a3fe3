"""Logins by Kerberos as properties say them, and what cannot be done with them."""

from __future__ import annotations

import ctypes
import pickle

import pytest

from kmirror.cluster.security import kerberos
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.kerberos import KerberosClient, KerberosLogin
from kmirror.errors import Reason, UnreachableError, UsageError

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
PROPERTIES = {
    "bootstrap.servers": "kafka1.example.com:9092",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.kerberos.service.name": "kafka",
    "sasl.jaas.config": f'{MODULE} useKeyTab=true storeKey=true keyTab="/etc/k.keytab" principal="km@EXAMPLE.COM";',
}


@pytest.mark.parametrize(
    ("changes", "login"),
    [
        ({}, KerberosLogin("kafka", "km@EXAMPLE.COM", "/etc/k.keytab")),
        ({"sasl.mechanism": "GSSAPI", "sasl.jaas.config": f"{MODULE} useTicketCache=true;"}, KerberosLogin("kafka")),
        (
            {"sasl.jaas.config": f'{MODULE} useTicketCache=true ticketCache="/tmp/cc";'},
            KerberosLogin("kafka", ticket_cache="/tmp/cc"),
        ),
        (
            {"sasl.kerberos.service.name": "", "sasl.jaas.config": f"{MODULE} serviceName=broker;"},
            KerberosLogin("broker"),
        ),
    ],
)
def test_who_logs_in_to_which_service(changes: dict[str, str], login: KerberosLogin) -> None:
    config = client_config({**PROPERTIES, **changes}, {})
    assert (config.sasl_mechanism, config.kerberos) == ("GSSAPI", login)
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_service_has_to_be_named() -> None:
    with pytest.raises(UsageError, match=r"sasl\.kerberos\.service\.name is missing") as caught:
        client_config({**PROPERTIES, "sasl.kerberos.service.name": ""}, {})
    assert "often kafka" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["HTTP@intranet.example.com", "kafka/host", "kafka host", "HTTP@a\0"])
def test_the_service_has_a_plain_name(name: str) -> None:
    """The library takes what is after an @ for the host."""
    with pytest.raises(UsageError, match=r"sasl\.kerberos\.service\.name is not the name of a service"):
        client_config({**PROPERTIES, "sasl.kerberos.service.name": name}, {})


def test_a_machine_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    kerberos._library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnreachableError, match=r"need libgssapi_krb5\.so\.2, which this machine does not") as caught:
        KerberosClient(KerberosLogin("kafka"), "kafka1.example.com")
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert "apt-get install libgssapi-krb5-2" in str(caught.value.hint)
