"""A Kerberos realm on this machine: Apache Kerby's key distribution centre, in its own JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from kmirror_sandbox.jars import artifact_jars
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.class_archive import java

REALM = "EXAMPLE.COM"
_KERBY = ("org.apache.kerby", "kerb-simplekdc", "2.1.0")
_CONFIGURATION = """\
[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
  kdc = {host}:{port}
}}
"""


@dataclass(frozen=True, slots=True)
class Realm:
    """The realm's configuration for clients and brokers, and the keytab with all its principals' keys."""

    krb5_conf: Path
    keytab: Path

    def jaas(self, principal: str) -> str:
        """Return the JAAS line of a principal."""
        options = f'useKeyTab=true storeKey=true keyTab="{self.keytab}" principal="{principal}@{REALM}"'
        return f"com.sun.security.auth.module.Krb5LoginModule required {options};"


@contextmanager
def kerberos_realm(folder: Path, principals: Sequence[str]) -> Iterator[Realm]:
    """Start a KDC that knows the principals."""
    jars = artifact_jars(*_KERBY, 6, os.environ)
    (port,) = free_ports(1)
    krb5_conf, keytab = folder / "client.conf", folder / "all.keytab"
    krb5_conf.write_text(_CONFIGURATION.format(realm=REALM, host=LOOPBACK, port=port))
    gateway_port, secret, process = launch_gateway(
        classpath=os.pathsep.join(map(str, sorted(jars.directory.glob("*.jar")))),
        javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m"],
        java_path=str(java()),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port, auth_token=secret))
    try:
        jvm = gateway.jvm
        kdc = jvm.org.apache.kerby.kerberos.kerb.server.SimpleKdcServer()
        kdc.setWorkDir(jvm.java.io.File(str(folder)))
        kdc.setKdcHost(LOOPBACK)
        kdc.setKdcRealm(REALM)
        kdc.setKdcTcpPort(port)
        kdc.setAllowUdp(False)
        kdc.init()
        kdc.start()
        for principal in principals:
            kdc.createPrincipal(principal)
            kdc.exportPrincipal(principal, jvm.java.io.File(str(keytab)))
        yield Realm(krb5_conf, keytab)
        kdc.stop()
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()
        process.stdin.close()
