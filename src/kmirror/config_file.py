"""The operator's own `kmirror.toml`: clusters by name, and defaults for the command line.

    [clusters.prod]
    bootstrap-server = "kafka1:9092,kafka2:9092"
    command-config = "prod.properties"        # relative to this file; credentials go there, not here

    [defaults]
    cluster = "prod"
    output = "json"

The first of these files is read: KMIRROR_CONFIG, `kmirror.toml` in the working directory, and `kmirror/kmirror.toml` in
XDG_CONFIG_HOME or `~/.config`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kmirror.errors import UsageError

OUTPUTS = ("table", "json")


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """How to reach one cluster; `command_config` is an absolute path."""

    bootstrap_server: str
    command_config: Path | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a `kmirror.toml`; empty if there is none."""

    path: Path | None = None
    clusters: Mapping[str, NamedCluster] = field(default_factory=dict)
    default_cluster: str | None = None
    default_output: str | None = None

    def cluster(self, name: str) -> NamedCluster:
        """Return the cluster of that name.

        Raises:
            UsageError: there is none; the hint lists the known ones.
        """
        if name in self.clusters:
            return self.clusters[name]
        if self.path is None:
            raise UsageError(f"cluster {name} is unknown: there is no kmirror.toml", f"write [clusters.{name}] in it")
        known = ", ".join(sorted(self.clusters)) or "none"
        raise UsageError(f"cluster {name} is unknown", f"{self.path} names: {known}")


def load_config_file(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> ConfigFile:
    """Find and read `kmirror.toml`; `environ` and `folder` default to the process's environment and working directory.

    Raises:
        UsageError: the file that KMIRROR_CONFIG names cannot be read, or the file is invalid.
    """
    environment = os.environ if environ is None else environ
    if named := environment.get("KMIRROR_CONFIG"):
        return read_config_file(Path(named).expanduser())
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    for path in ((folder or Path.cwd()) / "kmirror.toml", Path(home) / "kmirror" / "kmirror.toml"):
        if path.is_file():
            return read_config_file(path)
    return ConfigFile()


def read_config_file(path: Path) -> ConfigFile:
    """Read one `kmirror.toml`.

    Raises:
        UsageError: it is unreadable, not TOML (with the line), or has an unknown key or a value of the wrong type.
    """
    import tomli

    try:
        document = tomli.loads(path.read_bytes().decode("utf-8"))
    except tomli.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "correct that line") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deep", "it has tables of two levels at most") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {why}", "correct KMIRROR_CONFIG, or make the file readable") from None
    table = _Table(path, "", document)
    table.check_keys({"clusters", "defaults"})
    clusters = table.table("clusters")
    named = {name: _cluster(clusters.table(name)) for name in clusters.content}
    defaults = table.table("defaults")
    defaults.check_keys({"cluster", "output"})
    cluster, output = defaults.string("cluster"), defaults.string("output")
    if cluster is not None and cluster not in named:
        raise UsageError(
            f"{path}: defaults.cluster names {cluster}, which is not among the clusters", f"write [clusters.{cluster}]"
        )
    if output is not None and output not in OUTPUTS:
        raise UsageError(f"{path}: defaults.output is {output!r}", f"it is one of {', '.join(OUTPUTS)}")
    return ConfigFile(path, named, cluster, output)


def _cluster(table: _Table) -> NamedCluster:
    table.check_keys({"bootstrap-server", "command-config"})
    bootstrap_server, command_config = table.string("bootstrap-server"), table.string("command-config")
    if not bootstrap_server:
        raise UsageError(
            f"{table.path}: {table.name} has no bootstrap-server", 'write bootstrap-server = "kafka1:9092"'
        )
    if not command_config:
        return NamedCluster(bootstrap_server)
    return NamedCluster(bootstrap_server, (table.path.parent / Path(command_config).expanduser()).absolute())


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the document; `name` is its dotted name, for errors."""

    path: Path
    name: str
    content: Mapping[str, Any]

    def check_keys(self, known: Collection[str]) -> None:
        for key in self.content:
            if key not in known:
                near = get_close_matches(key.replace("_", "-"), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
                raise UsageError(f"{self.path}: unknown key {self._dotted(key)}", hint)

    def table(self, key: str) -> _Table:
        content = self.content.get(key, {})
        if not isinstance(content, dict):
            raise UsageError(f"{self.path}: {self._dotted(key)} is not a table", f"write [{self._dotted(key)}]")
        return _Table(self.path, self._dotted(key), content)

    def string(self, key: str) -> str | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{self.path}: {self._dotted(key)} is not a string", 'write it in quotes: "…"')
        return value

    def _dotted(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key
