"""The JSON documents of kmirror, and what is made of their declarations: the schemas in the package, docs/json.md.

`python -m tests.support.json_documents` writes both. `check_printed` holds what a command printed against its schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from kmirror.columns import Column, Type, object_of
from kmirror.ops.check.findings import CHECK
from kmirror.ops.mirrors.config import MIRROR_SETTINGS
from kmirror.ops.results import ERROR, RESULT
from kmirror.ops.show.describe_groups import GROUPS
from kmirror.ops.show.describe_settings import TOPIC_SETTINGS
from kmirror.ops.show.events import EVENTS
from kmirror.ops.show.tables import MIRRORS, PARTITIONS
from kmirror.ops.verify.results import VERIFY
from kmirror.sandbox.registry import STATUS

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "json.md"
SCHEMAS = ROOT / "src" / "kmirror" / "schemas"
#: What people read above the documents.
_INTRODUCTION = """\
# JSON documents

Every command but `demo` and `completion` prints one JSON document with `--json` (short for `--output json`) to stdout.
Warnings, hints and questions go to stderr. For each document there is a JSON Schema (draft 2020-12) in the Python
package `kmirror`:

```python
import importlib.resources, json

schema = json.loads((importlib.resources.files("kmirror") / "schemas" / "describe.json").read_text())
```

What scripts can rely on:

- Keys are never removed or renamed, and their types do not change. New keys may be added: ignore those you do not know.
- A key is always there, unless its meaning says *only for* which rows. What is unknown is `null`, never -1.
- Codes such as states and reasons may get new members; the schemas list those of their release.
- An *offset, exclusive* is the offset after the last record, as in Kafka. Times are epoch milliseconds.
- A read-only command that fails prints the document `error` instead of its own. The exit code says that it failed.

`results[].topic` is the key `topic` of each object in the list `results`.
"""


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """One document: its name, which is that of its schema, what prints it, and what it is."""

    name: str
    printed_by: str
    type: Type

    @property
    def file(self) -> Path:
        """Return the file of its schema."""
        return SCHEMAS / f"{self.name}.json"

    @property
    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema."""
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": self.name}
        return {**head, "description": f"Printed by {self.printed_by}.", **_schema_of(self.type)}


_ERROR: Column[Any] = Column("error", object_of(ERROR), "why the command failed", lambda error: error)
DOCUMENTS = {
    document.name: document
    for document in (
        JsonDocument("list", "`list`", MIRRORS.type),
        JsonDocument("describe", "`describe`, also with `--failed` or `--stopped`", PARTITIONS.type),
        JsonDocument("describe-groups", "`describe --groups`", GROUPS.type),
        JsonDocument("describe-settings", "`describe --settings`", TOPIC_SETTINGS.type),
        JsonDocument("events", "`events`", EVENTS.type),
        JsonDocument("config", "`config` without `--set` and `--unset`", MIRROR_SETTINGS.type),
        JsonDocument("check", "`check`", object_of(CHECK)),
        JsonDocument("verify", "`verify`", object_of(VERIFY)),
        JsonDocument(
            "result",
            "every command that changes something, whether it succeeds or fails, and `wait`",
            object_of(RESULT),
        ),
        JsonDocument("sandbox", "`sandbox up` and `sandbox down`", object_of((*RESULT, *STATUS))),
        JsonDocument("sandbox-status", "`sandbox status`", object_of(STATUS)),
        JsonDocument("error", "read-only commands that fail", object_of((_ERROR,))),
    )
}
#: What read-only commands print, by their first words; any other command prints `result`.
_PRINTED = {
    ("list",): "list",
    ("describe",): "describe",
    ("describe", "--groups"): "describe-groups",
    ("describe", "--settings"): "describe-settings",
    ("events",): "events",
    ("config",): "config",
    ("check",): "check",
    ("verify",): "verify",
    ("sandbox", "status"): "sandbox-status",
    ("sandbox", "up"): "sandbox",
    ("sandbox", "down"): "sandbox",
}


def check(name: str, found: Any) -> None:
    """Hold a document, or the text of one, against its schema."""
    schema = json.loads(DOCUMENTS[name].file.read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema)
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]
    assert wrong == [], f"{name}: {wrong}"


def check_printed(words: Sequence[str], out: str) -> None:
    """Hold what a command printed against its schema."""
    found = json.loads(out)
    check("error" if isinstance(found, dict) and list(found) == ["error"] else printed_by(words), found)


def printed_by(words: Sequence[str]) -> str:
    """Return which document a command prints."""
    if words[0] == "config" and {"--set", "--unset"} & set(words):
        return "result"
    fitting = [known for known in _PRINTED if words[0] == known[0] and set(known) <= set(words)]
    return _PRINTED[max(fitting, key=len)] if fitting else "result"


# -- schemas -----------------------------------------------------------------------------------------------------------


def _schema_of(kind: Type) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": [kind.json, "null"] if kind.null else kind.json}
    if kind.minimum is not None:
        schema["minimum"] = kind.minimum
    if kind.codes:
        schema["enum"] = [*kind.codes, None] if kind.null else list(kind.codes)
    if kind.items is not None:
        schema["items" if kind.json == "array" else "additionalProperties"] = _schema_of(kind.items)
    if kind.fields:
        schema["required"] = [field.key for field in kind.fields if field.only is None]
        schema["properties"] = {
            field.key: {"description": _meaning(field), **_schema_of(field.type)} for field in kind.fields
        }
    return schema


def _meaning(field: Column[Any]) -> str:
    """Return what a key means, with its unit, when it is null, and which rows have it."""
    unit = f" ({field.type.words})" if field.type.json in ("integer", "number") else ""
    null = f"; null: {field.type.null}" if field.type.null else ""
    only = f"; only for {field.only.where}" if field.only else ""
    return f"{field.meaning}{unit}{null}{only}"


# -- docs/json.md ------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of docs/json.md."""
    codes: dict[str, tuple[str | int, ...]] = {}
    parts = [_INTRODUCTION]
    for document in DOCUMENTS.values():
        of = "a list of objects" if document.type.json == "array" else "one object"
        rows = "\n".join(_rows(document.type, ""))
        parts.append(
            f"## {document.name}\n\nPrinted by {document.printed_by}: {of}.\n\n"
            f"| key | type | meaning | null when |\n|---|---|---|---|\n{rows}\n"
        )
        codes |= _codes(document.type)
    listed = "\n".join(f"| {words} | {', '.join(f'`{code}`' for code in codes[words])} |" for words in sorted(codes))
    parts.append(
        "## Codes\n\nWhat they mean and what to do: [troubleshooting](troubleshooting.md); exit codes:"
        f" [operating](operating.md).\n\n| type | members |\n|---|---|\n{listed}\n"
    )
    return "\n".join(parts)


def _rows(kind: Type, prefix: str) -> Iterator[str]:
    """Yield the rows of the table of an object, or of the objects of a list, those within them below them."""
    for field in (kind.items or kind).fields:
        only = f"; *only for {field.only.where}*" if field.only else ""
        inner = field.type.items or field.type
        words = f"list of {inner.words}s" if field.type.json == "array" else field.type.words
        yield f"| `{prefix}{field.key}` | {words} | {field.meaning}{only} | {field.type.null or '–'} |"
        if inner.fields:
            yield from _rows(inner, f"{prefix}{field.key}{'[]' if field.type.json == 'array' else ''}.")


def _codes(kind: Type) -> dict[str, tuple[str | int, ...]]:
    """Return the codes that occur in a type, by what they are called."""
    found = {kind.words: kind.codes} if kind.codes else {}
    if kind.items is not None:
        found |= _codes(kind.items)
    for field in kind.fields:
        found |= _codes(field.type)
    return found


def schema_text(document: JsonDocument) -> str:
    """Return the text of the file of a document's schema."""
    return json.dumps(document.schema, indent=2, ensure_ascii=False) + "\n"


def write() -> None:
    """Write docs/json.md and all schemas."""
    PAGE.write_text(page(), encoding="utf-8")
    for document in DOCUMENTS.values():
        document.file.write_text(schema_text(document), encoding="utf-8")


if __name__ == "__main__":
    write()
