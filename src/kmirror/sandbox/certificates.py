"""Make the certificates of a secured sandbox cluster with the JDK's keytool.

One authority, one key for all nodes, and one for each user who logs in with a certificate.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kmirror.errors import KmirrorError, RefusedError
from kmirror.sandbox.spec import BROKER_PRINCIPAL

_VALID_DAYS = "3650"
_PASSWORD_VARIABLE = "KMIRROR_SANDBOX_STORE_PASSWORD"
_OWN_PASSWORD_VARIABLE = "KMIRROR_SANDBOX_OWN_STORE_PASSWORD"


def make_certificates(java: Path, directory: Path, password: str, users: Mapping[str, str]) -> None:
    """Write `ca.pem` (what clients trust) and `node.p12` (key and certificate for localhost and 127.0.0.1).

    For each of `users`, with the password of the store, write `USER.p12`: key and certificate in the user's name.

    Raises RefusedError when this Java has no keytool.
    """
    directory.mkdir(mode=0o700)
    keytool = _keytool(java)
    both = directory / "authority.p12"
    new_key: list[str | Path] = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", _VALID_DAYS]
    store: list[str | Path] = ["-keystore", both, "-storetype", "PKCS12", "-storepass:env", _PASSWORD_VARIABLE]
    authority = ["-ext", "bc:critical=ca:true", "-ext", "ku:critical=keyCertSign,cRLSign"]
    names = ["-ext", "san=dns:localhost,ip:127.0.0.1", "-ext", "ku:critical=digitalSignature"]
    usage = ["-ext", "eku=serverAuth,clientAuth"]
    steps: list[list[str | Path]] = [
        [*new_key, "-alias", "ca", "-dname", "CN=kmirror sandbox authority", *authority, *store],
        [*new_key, "-alias", "node", "-dname", f"CN={BROKER_PRINCIPAL}", "-signer", "ca", *names, *usage, *store],
        ["-exportcert", "-rfc", "-alias", "ca", "-file", directory / "ca.pem", *store],
        _own_store(both, "node", directory / "node.p12"),
    ]
    for step in steps:
        _run(keytool, step, password, password)
    for user, own_password in users.items():
        signed = ["-signer", "ca", "-ext", "ku:critical=digitalSignature", "-ext", "eku=clientAuth"]
        _run(keytool, [*new_key, "-alias", user, "-dname", f"CN={user}", *signed, *store], password, own_password)
        _run(keytool, _own_store(both, user, directory / f"{user}.p12"), password, own_password)
    both.unlink()


def _own_store(both: Path, alias: str, target: Path) -> list[str | Path]:
    source: list[str | Path] = ["-srckeystore", both, "-srcstorepass:env", _PASSWORD_VARIABLE, "-srcalias", alias]
    stored: list[str | Path] = ["-destkeystore", target, "-deststoretype", "PKCS12"]
    return ["-importkeystore", "-noprompt", *source, *stored, "-deststorepass:env", _OWN_PASSWORD_VARIABLE]


def _keytool(java: Path) -> Path:
    beside = [folder / "keytool" for folder in (java.parent, java.resolve().parent)]
    found = next((path for path in beside if path.is_file()), None) or shutil.which("keytool")
    if found is None:
        raise RefusedError(
            f"There is no keytool beside {java}, and a secured sandbox cluster needs it for its certificates",
            "Install a full Java runtime (every JDK and JRE of version 17 brings keytool).",
        )
    return Path(found)


def _run(keytool: Path, arguments: list[str | Path], password: str, own_password: str) -> None:
    command = [keytool, "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", *arguments]
    environ = {**os.environ, _PASSWORD_VARIABLE: password, _OWN_PASSWORD_VARIABLE: own_password}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KmirrorError(f"keytool {arguments[0]} failed: {(done.stdout + done.stderr).strip()}")
