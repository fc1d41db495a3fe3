"""Secrets that others can read: in files that every user of this machine can read, and unencrypted on the network."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from kmirror.cluster.security.jaas import parse_jaas
from kmirror.cluster.security.properties import literal_secrets, referenced_files
from kmirror.cluster.security.token_endpoint import file_of_url
from kmirror.errors import UsageError

_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
#: What anyone who sees it can use.
_SENT_AS_THEY_ARE = {"PLAIN": "password", "OAUTHBEARER": "token", "AWS_MSK_IAM": "token"}


def exposed_files(path: str, properties: Mapping[str, str]) -> list[Path]:
    """Return, sorted, which of a properties file and the files with secrets that it names every user can read.

    Files that cannot be checked are left out, and so are those on a read-only file system: their mode is set where it
    is mounted from.
    """
    return sorted({file for file in _secret_files(path, properties) if _is_exposed(file)})


def cleartext_logins(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return which secrets these properties send unencrypted, and what to set instead."""
    found = []
    protocol, mechanism = (properties.get(key, "").strip() for key in ("security.protocol", "sasl.mechanism"))
    if protocol.upper() == "SASL_PLAINTEXT" and mechanism in _SENT_AS_THEY_ARE:
        sent = f"sends the {_SENT_AS_THEY_ARE[mechanism]} to the brokers unencrypted"
        found.append((f"security.protocol=SASL_PLAINTEXT with {mechanism} {sent}", "set security.protocol=SASL_SSL"))
    if protocol.upper().startswith("SASL_") and properties.get(_ENDPOINT, "").strip().startswith("http://"):
        found.append((f"{_ENDPOINT} sends the client's secret unencrypted", f"set {_ENDPOINT}=https://…"))
    return found


def _secret_files(path: str, properties: Mapping[str, str]) -> Iterator[Path]:
    if literal_secrets(properties):
        yield Path(path)
    for value in properties.values():
        yield from referenced_files(value)
    if key_store := properties.get("ssl.keystore.location", "").strip():
        yield Path(key_store)
    if token := file_of_url(properties.get(_ENDPOINT, "").strip()):
        yield Path(token)
    with suppress(UsageError):
        for entry in parse_jaas(properties.get("sasl.jaas.config", "")):
            yield from (Path(entry.options[name]) for name in ("keyTab", "ticketCache") if entry.options.get(name))


def _is_exposed(file: Path) -> bool:
    try:
        real = file.resolve(strict=True)
        if not stat.S_ISREG(real.stat().st_mode) or os.statvfs(real).f_flag & os.ST_RDONLY:
            return False
        # a file in a folder that others may not enter cannot be read by them
        reachable = all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)
        return bool(real.stat().st_mode & stat.S_IROTH) and reachable
    except (OSError, ValueError):
        return False
