"""The operator's own `kmirror.toml`: clusters by name, and defaults for the command line.

    [clusters.prod]
    bootstrap-server = "kafka1:9092,kafka2:9092"
    command-config = "prod.properties"        # relative to this file; credentials go there, not here

    [defaults]
    cluster = "prod"
    output = "json"

    [trust]                                   # see `cluster/security/trust.py`
    paths = ["/etc/kmirror", "/run/secrets"]
    sources = ["*.eu.example.com"]

The operator's file is the one that KMIRROR_CONFIG names, or else `kmirror/kmirror.toml` in XDG_CONFIG_HOME or
`~/.config`. What it does not say is taken from `/etc/kmirror/kmirror.toml`. The working directory is not looked at:
others may write there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kmirror.bounded_files import expanded
from kmirror.errors import UsageError
from kmirror.toml_tables import TomlTable, read_toml

OUTPUTS = ("table", "json")
TRUST_KEYS = ("paths", "env", "sources", "token_urls", "unverified")
#: The file for all users of the machine.
SYSTEM_FILE = Path("/etc/kmirror/kmirror.toml")


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """How to reach one cluster; `command_config` is an absolute path."""

    bootstrap_server: str
    command_config: Path | None = None


@dataclass(frozen=True, slots=True)
class TrustEntries:
    """The entries of one key of `[trust]`, and the file that has them."""

    file: Path
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a `kmirror.toml`, or of the operator's and the machine's; empty if there is none."""

    path: Path | None = None
    clusters: Mapping[str, NamedCluster] = field(default_factory=dict)
    default_cluster: str | None = None
    default_output: str | None = None
    trust: Mapping[str, TrustEntries] = field(default_factory=dict)
    #: Where the operator can write what is missing.
    writable: Path = field(default=SYSTEM_FILE, compare=False)
    #: The files that were read.
    files: tuple[Path, ...] = field(default=(), compare=False)

    def over(self, other: ConfigFile) -> ConfigFile:
        """Return both contents; where both say something, this one counts."""
        return replace(
            self,
            path=self.path or other.path,
            clusters={**other.clusters, **self.clusters},
            default_cluster=self.default_cluster or other.default_cluster,
            default_output=self.default_output or other.default_output,
            trust={**other.trust, **self.trust},
            files=(*self.files, *other.files),
        )

    def cluster(self, name: str) -> NamedCluster:
        """Return the cluster of that name.

        Raises:
            UsageError: there is none; the hint lists the known ones.
        """
        if name in self.clusters:
            return self.clusters[name]
        if self.path is None:
            raise UsageError(
                f"cluster {name} is unknown: there is no kmirror.toml",
                f"write [clusters.{name}] in ~/.config/kmirror/kmirror.toml or {SYSTEM_FILE}",
            )
        known = ", ".join(sorted(self.clusters)) or "none"
        raise UsageError(f"cluster {name} is unknown", f"{self.path} names: {known}")


def load_config_file(environ: Mapping[str, str] | None = None, system: Path = SYSTEM_FILE) -> ConfigFile:
    """Find and read `kmirror.toml`; `environ` defaults to the process's environment.

    Raises:
        UsageError: the file that KMIRROR_CONFIG names cannot be read, or a file is invalid.
    """
    environment = os.environ if environ is None else environ
    named = environment.get("KMIRROR_CONFIG")
    own = expanded(named, "KMIRROR_CONFIG") if named else config_folder(environment) / "kmirror.toml"
    if not named and not own.is_absolute():
        own = system  # this user's home is unknown
    found = read_config_file(own) if named or (own != system and _is_there(own)) else ConfigFile()
    machine = read_config_file(system) if _is_there(system) else ConfigFile()
    return replace(found.over(machine), writable=found.path or machine.path or own)


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's folder for kmirror's configuration."""
    base = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or os.path.expanduser("~")) / ".config"
    return Path(base) / "kmirror"


def _is_there(path: Path) -> bool:
    """Return whether there is a file that this user can reach."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def read_config_file(path: Path) -> ConfigFile:
    """Read one `kmirror.toml`.

    Raises:
        UsageError: it is unreadable, not TOML (with the line), or has an unknown key or a value of the wrong type.
    """
    table = read_toml(path, "correct KMIRROR_CONFIG, or make the file readable")
    table.check_keys({"clusters", "defaults", "trust"})
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
    return ConfigFile(path, named, cluster, output, _trust(table.table("trust")), path, (path,))


def _trust(table: TomlTable) -> dict[str, TrustEntries]:
    table.check_keys(set(TRUST_KEYS))
    found = {key: tuple(table.strings(key)) for key in TRUST_KEYS if key in table.content}
    if "paths" in found:
        found["paths"] = tuple(str(expanded(one, f"{table.path}: trust.paths")) for one in found["paths"])
        for one in found["paths"]:
            if not one.startswith("/"):
                raise UsageError(f"{table.path}: trust.paths: {one} is not an absolute path", "write its full path")
    return {key: TrustEntries(table.path, entries) for key, entries in found.items()}


def _cluster(table: TomlTable) -> NamedCluster:
    table.check_keys({"bootstrap-server", "command-config"})
    bootstrap_server, command_config = table.string("bootstrap-server"), table.string("command-config")
    if not bootstrap_server:
        raise UsageError(
            f"{table.path}: {table.name} has no bootstrap-server", 'write bootstrap-server = "kafka1:9092"'
        )
    if not command_config:
        return NamedCluster(bootstrap_server)
    named = expanded(command_config, f"{table.path}: {table.dotted('command-config')}")
    return NamedCluster(bootstrap_server, (table.path.parent / named).absolute())
