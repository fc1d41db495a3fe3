"""What client properties need on the machine where they are used: files, environment variables, libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.kerberos import require_library
from kmirror.cluster.security.properties import referenced_files
from kmirror.cluster.security.property_reader import PropertyReader
from kmirror.cluster.security.tls_material import STORE_LOCATIONS
from kmirror.cluster.security.token_endpoint import TokenFile
from kmirror.errors import KmirrorError, PolicyError


def lacking_here(properties: Mapping[str, str]) -> list[str]:
    """Return what this machine lacks to log in with these properties; every file that cannot be read, or else why.

    What is only known while connecting, such as an unreachable broker, is not looked for.
    """
    try:
        # a record's properties are judged before a file that they name is opened
        PropertyReader.of(properties, None)
        if lacking := _unreadable(_named_files(properties)):
            return lacking
        config = client_config(properties)
        if config.kerberos is not None:
            require_library()
    except PolicyError as error:
        return [str(error)]
    except KmirrorError as error:
        return [error.message]
    return _unreadable(_login_files(config))


def _named_files(properties: Mapping[str, str]) -> Iterator[Path]:
    for key, value in properties.items():
        references = referenced_files(value)
        yield from references
        if key in STORE_LOCATIONS and value.strip() and not references:
            yield Path(value.strip())


def _login_files(config: ClientConfig) -> Iterator[Path]:
    if config.kerberos is not None:
        yield from (Path(file) for file in (config.kerberos.keytab, config.kerberos.ticket_cache) if file)
    if isinstance(config.tokens, TokenFile):
        yield Path(config.tokens.path)


def _unreadable(files: Iterable[Path]) -> list[str]:
    found = {}
    for file in files:
        try:
            with file.open("rb"):
                pass
        except (OSError, ValueError) as error:
            found[file] = f"{file}: {(error.strerror if isinstance(error, OSError) else None) or error}"
    return list(found.values())
