"""The JSON documents of kmirror, and what is generated from their declarations: schemas in the package, docs/json.md.

`python -m tests.support.json_documents` writes both. `check_printed` validates what a command printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from kmirror.cli.commands.evidence_files import FILE
from kmirror.cli.terminal.run_log import LINE
from kmirror.columns import Column, Type, object_of
from kmirror.ops.base.evidence import EVIDENCE, VERB_RUN
from kmirror.ops.base.results import ERROR, RESULT
from kmirror.ops.check.findings import CHECK
from kmirror.ops.failback.truncation_plan import PLAN
from kmirror.ops.mirrors.config import MIRROR_SETTINGS
from kmirror.ops.run.event_hook import EVENT_INPUT
from kmirror.ops.show.charge_keeper import IN_CHARGE
from kmirror.ops.show.describe_groups import GROUPS
from kmirror.ops.show.describe_settings import TOPIC_SETTINGS
from kmirror.ops.show.events import EVENTS
from kmirror.ops.stop.verb_hooks import HOOK_INPUT
from kmirror.ops.verify.verify_results import VERIFY, VERIFY_EVIDENCE, VERIFY_PLAN
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.partition_row import PARTITIONS
from kmirror.web.answers import FLEET
from kmirror.web.answers import STATUS as SERVED
from kmirror.web.past import HISTORY
from kmirror_plan.differences import CHANGES
from kmirror_plan.migration_plan import MIGRATION_PLAN
from kmirror_rehearse.rehearsal_evidence import REHEARSAL
from kmirror_sandbox.registry import STATUS
from tests.support.mirrors_schema import mirrors_schema

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "json.md"
SCHEMAS = ROOT / "src" / "kmirror" / "schemas"
#: The schema of what people write, for their editors.
MIRRORS_FILE = SCHEMAS / "mirrors.json"
#: The text above the documents on the page.
_INTRODUCTION = """\
# JSON documents

Every command but `demo`, `help`, `completion`, `serve` and `top` prints one JSON document with `--json` (short for
`--output json`) to stdout; `export` one of the schema `mirrors`, which is the file of mirrors as JSON.
Warnings, hints, questions and progress go to stderr. For each document there is a JSON Schema (draft 2020-12) in the
Python package `kmirror`:

```python
import importlib.resources, json

schema = json.loads((importlib.resources.files("kmirror") / "schemas" / "describe.json").read_text())
```

What scripts can rely on:

- Keys are never removed or renamed, and their types do not change. New keys may be added: ignore those you do not know.
- A key is always present, unless its meaning says *only for* certain rows. Unknown values are `null`, never -1.
- Codes such as states and reasons may get new members; the schemas list those of their release.
- An *offset, exclusive* is the offset after the last record, as in Kafka. Times are epoch milliseconds.
- A read-only command that fails prints the document `error` instead of its own. The exit code says that it failed.

`results[].topic` is the key `topic` of each object in the list `results`, `archives.*.records` the key `records` for
each key of the object `archives`.
"""


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """One document: its name, which is that of its schema, what prints or writes it, and what it is."""

    name: str
    made_by: str
    type: Type

    @property
    def file(self) -> Path:
        """Return the file of its schema."""
        return SCHEMAS / f"{self.name}.json"

    @property
    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema."""
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": self.name}
        return {**head, "description": f"{self.made_by}.", **_schema_of(self.type)}


_ERROR: Column[Any] = Column("error", object_of(ERROR), "why the command failed", lambda error: error)
DOCUMENTS = {
    document.name: document
    for document in (
        JsonDocument("list", "Printed by `list`", MIRRORS.type),
        JsonDocument("describe", "Printed by `describe`, also with `--failed` or `--stopped`", PARTITIONS.type),
        JsonDocument("describe-groups", "Printed by `describe --groups`", GROUPS.type),
        JsonDocument("describe-settings", "Printed by `describe --settings`", TOPIC_SETTINGS.type),
        JsonDocument("events", "Printed by `events`; with `--follow` one object a line", EVENTS.type),
        JsonDocument("in-charge", "Printed by `in-charge`: the source, then the destination", IN_CHARGE.type),
        JsonDocument("config", "Printed by `config` without `--set` and `--unset`", MIRROR_SETTINGS.type),
        JsonDocument("check", "Printed by `check`", object_of(CHECK)),
        JsonDocument("error", "Printed by read-only commands that fail", object_of((_ERROR,))),
        JsonDocument(
            "result",
            "Printed by commands that change something, whether they succeed or fail, by `run`, `wait` and `report`",
            object_of(RESULT),
        ),
        JsonDocument("verify", "Printed by `verify`", object_of(VERIFY)),
        JsonDocument("verify-plan", "Printed by `verify --explain`", VERIFY_PLAN.type),
        JsonDocument(
            "sandbox",
            "Printed by `sandbox up` and `sandbox down`; where they fail, the document `result`",
            object_of((*RESULT, *STATUS)),
        ),
        JsonDocument("sandbox-status", "Printed by `sandbox status`", object_of(STATUS)),
        JsonDocument(
            "report",
            "Written by `--report FILE` of commands that stop or reverse mirroring",
            object_of((*VERB_RUN, *EVIDENCE, *FILE)),
        ),
        JsonDocument(
            "verify-report", "Written by `verify --report FILE`", object_of((*VERB_RUN, *VERIFY_EVIDENCE, *FILE))
        ),
        JsonDocument(
            "run-log",
            "Each line that `run --log-format json` logs; watching.md says which lines have more keys",
            object_of(LINE),
        ),
        JsonDocument(
            "status",
            "Served at `/status.json` by `run --http` and `serve`; while `run` does not answer, the document `error`",
            object_of(SERVED),
        ),
        JsonDocument(
            "fleet",
            "Served at `/fleet.json` by `run --http` and `serve`: `status` without topics and partitions",
            object_of(FLEET),
        ),
        JsonDocument(
            "history",
            "Served at `/history.json` by `run --http` and `serve`; the document `error` as for `/status.json`",
            object_of(HISTORY),
        ),
        JsonDocument("hook", "Given to the commands of `--before` and `--after` on stdin", object_of(HOOK_INPUT)),
        JsonDocument("event-hook", "Given to the command of `run --on-event` on stdin", object_of(EVENT_INPUT)),
        JsonDocument("plan", "Written by `failback --offline --plan FILE`", object_of(PLAN)),
        JsonDocument(
            "migration-plan",
            "Printed by `plan`; `plan --out DIR` writes it as plan.json",
            object_of(MIGRATION_PLAN),
        ),
        JsonDocument("plan-changes", "Printed by `plan --against DIR`", CHANGES.type),
        JsonDocument("rehearsal", "Printed by `rehearse`; `rehearse --out DIR` also stores it", object_of(REHEARSAL)),
    )
}
#: What read-only commands print, by their first words; any other command prints `result`.
_PRINTED = {
    ("list",): "list",
    ("in-charge",): "in-charge",
    ("describe",): "describe",
    ("describe", "--groups"): "describe-groups",
    ("describe", "--settings"): "describe-settings",
    ("events",): "events",
    ("config",): "config",
    ("check",): "check",
    ("plan",): "migration-plan",
    ("rehearse",): "rehearsal",
    ("rehearse", "--dry-run"): "result",
    ("export",): "mirrors",
    ("export", "-f"): "result",
    ("plan", "--against"): "plan-changes",
    ("verify",): "verify",
    ("verify", "--explain"): "verify-plan",
    ("sandbox", "status"): "sandbox-status",
    ("sandbox", "up"): "sandbox",
    ("sandbox", "down"): "sandbox",
}


def check(name: str, found: Any) -> None:
    """Validate a document against its schema."""
    file = MIRRORS_FILE if name == "mirrors" else DOCUMENTS[name].file
    schema = json.loads(file.read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema)
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]
    assert wrong == [], f"{name}: {wrong}"


def check_printed(words: Sequence[str], out: str) -> None:
    """Validate what a command printed, and the files that it wrote."""
    if "--json" in words:
        found = json.loads(out)
        name = printed_by(words)
        if isinstance(found, dict) and found.get("error"):
            # what a command prints that failed before it came to its own document
            name = "error" if list(found) == ["error"] else {"sandbox": "result"}.get(name, name)
        check(name, found)
    for flag, name in (("--report", "verify-report" if "verify" in words[:1] else "report"), ("--plan", "plan")):
        if flag in words and "truncate-logs" not in words[:1]:
            file = Path(words[words.index(flag) + 1])
            if file.is_file():
                check(name, json.loads(file.read_text(encoding="utf-8")))


def printed_by(words: Sequence[str]) -> str:
    """Return which document a command prints."""
    if words[0] == "config" and {"--set", "--unset"} & set(words):
        return "result"
    fitting = [known for known in _PRINTED if words[0] == known[0] and set(known) <= set(words)]
    return _PRINTED[max(fitting, key=len)] if fitting else "result"


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


def page() -> str:
    """Return the text of docs/json.md."""
    codes: dict[str, tuple[str | int, ...]] = {}
    parts, shown = [_INTRODUCTION], _Shown()
    for document in DOCUMENTS.values():
        shown.setdefault((document.type.items or document.type).fields, document.name)
        of = "A list of objects" if document.type.json == "array" else "One object"
        rows = "\n".join(_rows(document.type, document.name, shown))
        parts.append(
            f"## {document.name}\n\n{of}. {document.made_by}.\n\n"
            f"| key | type | meaning | null when |\n|---|---|---|---|\n{rows}\n"
        )
        codes |= _codes(document.type)
    listed = "\n".join(f"| {words} | {', '.join(f'`{code}`' for code in codes[words])} |" for words in sorted(codes))
    parts.append(
        "## Codes\n\nWhat they mean and what to do: [troubleshooting](troubleshooting.md); exit codes:"
        f" [commands](commands.md#exit-codes).\n\n| type | members |\n|---|---|\n{listed}\n"
    )
    return "\n".join(parts)


#: The keys of objects that have been shown, and in which document.
_Shown = dict[tuple[Column[Any], ...], str]


def _rows(kind: Type, name: str, shown: _Shown, prefix: str = "") -> Iterator[str]:
    """Yield the rows of the table of an object, or of the objects of a list; nested keys below each.

    Objects that occur in another document are shown there.
    """
    for field in (kind.items or kind).fields:
        inner = field.type.items or field.type
        words = f"list of {inner.words}s" if field.type.json == "array" else field.type.words
        only = f"; *only for {field.only.where}*" if field.only else ""
        first = shown.setdefault(inner.fields, name) if inner.fields else name
        see = "" if first == name else f"; keys as in [{first}](#{first})"
        yield f"| `{prefix}{field.key}` | {words} | {field.meaning}{only}{see} | {field.type.null or '–'} |"
        if inner.fields and first == name:
            each = "[]" if field.type.json == "array" else ".*" if field.type.items else ""
            yield from _rows(inner, name, shown, f"{prefix}{field.key}{each}.")


def _codes(kind: Type) -> dict[str, tuple[str | int, ...]]:
    """Return the codes that occur in a type, by the name of their type."""
    found = {kind.words: kind.codes} if kind.codes else {}
    if kind.items is not None:
        found |= _codes(kind.items)
    for field in kind.fields:
        found |= _codes(field.type)
    return found


def schema_text(schema: dict[str, Any]) -> str:
    """Return the text of the file of a schema."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write() -> None:
    """Write docs/json.md and all schemas."""
    PAGE.write_text(page(), encoding="utf-8")
    for document in DOCUMENTS.values():
        document.file.write_text(schema_text(document.schema), encoding="utf-8")
    MIRRORS_FILE.write_text(schema_text(mirrors_schema()), encoding="utf-8")


if __name__ == "__main__":
    write()
