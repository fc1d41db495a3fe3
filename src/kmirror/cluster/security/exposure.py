"""Files with secrets that every user of this machine can read."""

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


def exposed_files(path: str, properties: Mapping[str, str]) -> list[Path]:
    """Return, sorted, which of a properties file and the files with secrets that it names every user can read.

    Files that cannot be checked are left out, and so are those on a read-only file system: their mode is set where it
    is mounted from.
    """
    return sorted({file for file in _secret_files(path, properties) if _is_exposed(file)})


def _secret_files(path: str, properties: Mapping[str, str]) -> Iterator[Path]:
    if literal_secrets(properties):
        yield Path(path)
    for value in properties.values():
        yield from referenced_files(value)
    if key_store := properties.get("ssl.keystore.location", "").strip():
        yield Path(key_store)
    if token := file_of_url(properties.get("sasl.oauthbearer.token.endpoint.url", "").strip()):
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
