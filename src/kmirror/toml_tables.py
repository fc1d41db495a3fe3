"""TOML files that people write: their tables, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kmirror.bounded_files import read_file
from kmirror.errors import UsageError


@dataclass(frozen=True, slots=True)
class TomlTable:
    """One table of a file; `name` is its dotted name, for errors."""

    path: Path
    name: str
    content: Mapping[str, Any]

    def check_keys(self, known: Collection[str]) -> None:
        """Raise UsageError if there is another key than these."""
        for key in self.content:
            if key not in known:
                near = get_close_matches(key.replace("_", "-"), known, n=1) or get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
                raise UsageError(f"{self.path}: unknown key {self.dotted(key)}", hint)

    def table(self, key: str) -> TomlTable:
        """Return the table below a key, an empty one if there is none. Raises UsageError."""
        content = self.content.get(key, {})
        if not isinstance(content, dict):
            raise UsageError(f"{self.path}: {self.dotted(key)} is not a table", f"write [{self.dotted(key)}]")
        return TomlTable(self.path, self.dotted(key), content)

    def string(self, key: str) -> str | None:
        """Return a string, None if there is none. Raises UsageError."""
        value = self.content.get(key)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{self.path}: {self.dotted(key)} is not a string", 'write it in quotes: "…"')
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings. Raises UsageError."""
        value = self.content[key]
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{self.path}: {self.dotted(key)} is not a list of strings", 'write it as ["…", "…"]')
        return value

    def dotted(self, key: str) -> str:
        """Return the name of a key with that of its table."""
        return f"{self.name}.{key}" if self.name else key


def read_toml(path: Path, hint: str) -> TomlTable:
    """Read a TOML file; the `hint` is for one that cannot be read.

    Raises:
        UsageError: it is unreadable, or not TOML (with the line).
    """
    try:
        import tomli as toml
    except ModuleNotFoundError:  # Spark workers have no other library than Python's own
        import tomllib as toml  # type: ignore[no-redef]

    try:
        document = toml.loads(read_file(path).decode("utf-8-sig"))
    except toml.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "correct that line") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deep", "it has tables of a few levels only") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {why}", hint) from None
    return TomlTable(path, "", document)
