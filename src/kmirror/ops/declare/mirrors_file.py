"""The file of `apply`: read with all that it includes, its variables put in; `declared` reads the table of a mirror.

    include = ["common.toml"]                 # relative to this file

    [variables]
    region = "eu"

    [mirrors.orders]
    topics = ["orders", 'payments\\..*']

    [mirrors.orders.source]
    "bootstrap.servers" = "kafka.{{region}}.example.com:9093"
    "ssl.truststore.password" = "${file:/etc/kmirror/{{region}}.properties:password}"

`{{name}}` is a variable of this file or of any that is included; where two files set one, the including file counts.
It is no secret: references to secrets, `${…}`, are left for the host that uses them. A file that is included twice is
read once, and one that includes itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kmirror.bounded_files import expanded
from kmirror.errors import UsageError
from kmirror.ops.declare.declared import Declared, declared_mirror
from kmirror.toml_tables import TomlTable, read_toml

_VARIABLE = re.compile(r"\{\{(.*?)\}\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def read_mirrors_file(path: Path) -> Declared:
    """Return the mirrors that a file declares, checked as far as that is possible without a cluster.

    Raises:
        UsageError: a file is unreadable, not TOML or includes itself; a key, value, pattern or variable is invalid. It
            names the file, the table and the key.
        RefusedError: a plaintext secret.
    """
    files = list(_with_included(path, (), set()))
    variables: dict[str, tuple[TomlTable, Any]] = {}
    mirrors: dict[str, TomlTable] = {}
    for file in files:  # the included ones first
        table = file.table("variables")
        for name, value in table.content.items():
            variables[name] = (table, _checked_variable(table, name, value))
        for name in file.table("mirrors").content:
            if name in mirrors:
                raise UsageError(
                    f"{file.path}: mirrors.{name} is also in {mirrors[name].path}", "declare each mirror once"
                )
            mirrors[name] = file.table("mirrors").table(name)
    if not mirrors:
        raise UsageError(f"{path} declares no mirror", "write [mirrors.NAME]")
    values = {name: value for name, (_, value) in variables.items()}
    return Declared(
        path,
        tuple(
            declared_mirror(name, replace(table, content=_expanded(table, table.content, values)))
            for name, table in mirrors.items()
        ),
    )


def _with_included(path: Path, including: tuple[Path, ...], seen: set[Path]) -> Iterator[TomlTable]:
    """Yield the files that one includes, then the file; each once."""
    real = path.resolve()
    if real in including:
        circle = " includes ".join(str(one) for one in (*including[including.index(real) :], real))
        raise UsageError(f"{including[-1]}: include is a circle: {circle}", "remove one of these includes")
    if real in seen:
        return
    file = read_toml(path, "name a readable TOML file")
    file.check_keys({"include", "variables", "mirrors"})
    for name in file.strings("include") if "include" in file.content else ():
        yield from _with_included(path.parent / expanded(name, f"{file.path}: include"), (*including, real), seen)
    seen.add(real)
    yield file


def _checked_variable(table: TomlTable, name: str, value: Any) -> Any:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{table.path}: {table.dotted(name)} is not a name for a variable",
            "use letters, digits, underscores and hyphens",
        )
    if type(value) not in (str, int, bool):
        raise UsageError(
            f"{table.path}: {table.dotted(name)} is not a string, a whole number, true or false", "write it as one"
        )
    return value


def _expanded(table: TomlTable, value: Any, variables: Mapping[str, Any], where: str = "") -> Any:
    """Return a value of a mirror's table with its variables put in, in all strings but keys."""
    if isinstance(value, Mapping):
        return {key: _expanded(table, one, variables, f"{where}.{key}" if where else key) for key, one in value.items()}
    if isinstance(value, list):
        return [_expanded(table, one, variables, where) for one in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    if (whole := _VARIABLE.match(value)) and whole.end() == len(value):
        return _value_of(whole, table, where, variables)
    rest = _VARIABLE.sub("", value)
    if "{{" in rest:
        raise UsageError(
            f"{table.path}: {table.dotted(where)}: {{{{ is not closed", "write {{name}}, or a variable that is {{"
        )
    return _VARIABLE.sub(lambda match: _text(_value_of(match, table, where, variables)), value)


def _value_of(match: re.Match[str], table: TomlTable, where: str, variables: Mapping[str, Any]) -> Any:
    name = match[1].strip()
    if name not in variables:
        near = get_close_matches(name, variables, n=1)
        raise UsageError(
            f"{table.path}: {table.dotted(where)}: there is no variable {name}",
            f"did you mean {near[0]}?" if near else f"write {name} = … in [variables]",
        )
    return variables[name]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
