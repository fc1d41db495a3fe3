"""The JSON Schema of the file of `apply`, for editors; `json_documents` writes it with the others."""

from __future__ import annotations

from typing import Any

from kmirror.ops.declare.declared import EXCLUDE, INCLUDE
from kmirror.settings.client_keys import CLIENT_KEYS, refusal_of
from kmirror.settings.table import SETTINGS
from kmirror.settings.value_types import Setting

_STRINGS = {"type": "array", "items": {"type": "string"}}
#: A string may hold a variable, such as `{{region}}`.
_FLAG = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\{\{"}]}
_VALUE = {"type": ["string", "integer", "boolean"]}


def _table(properties: dict[str, Any], description: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": properties,
        **more,
    }


def _described(kind: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, **kind}


def _setting(row: Setting) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "boolean": _FLAG,
        "int": {"type": ["integer", "string"]},
        "list": {"anyOf": [_STRINGS, {"type": "string"}]},
    }
    kind = kinds.get(row.kind.name, {"type": "string"})
    default = row.kind.write(row.default) or "empty"
    fixed = "" if row.changeable else " Cannot be changed once the mirror exists."
    return _described(kind, f"{row.help} Allowed: {row.kind.allowed}. Default: {default}.{fixed}")


def mirrors_schema() -> dict[str, Any]:
    """Return the schema."""
    add = _table(
        {
            "topics": _described(_STRINGS, "Source topics: names and regular expressions, as in `add --topics`."),
            "adopt": _described(_FLAG, "Adopt existing topics whose records are a prefix of the source's."),
            "allow-missing": _described(_FLAG, "Accept names and patterns that match no source topic yet."),
            "start-from": {"type": "string", "description": "Where to start: earliest, latest or timestamp:T."},
            "config": {
                "type": "object",
                "description": "Configs of created topics, instead of the source's values.",
                "additionalProperties": _VALUE,
            },
        },
        "Topics that are added with options of `add`.",
        required=["topics"],
    )
    client = {key: {"type": ["string", "integer", "boolean"]} for key in sorted(CLIENT_KEYS) if not refusal_of(key, "")}
    settings = {row.key: _setting(row) for row in SETTINGS if row.key not in (INCLUDE, EXCLUDE)}
    aliases = {
        alias.key: _described({"type": ["string", "integer", "boolean", "array"]}, f"Another name of {row.key}.")
        for row in SETTINGS
        for alias in row.aliases
        if row.key in settings
    }
    mirror = _table(
        {
            "topics": _described(_STRINGS, "Source topics to mirror: names and regular expressions."),
            "exclude": _described(_STRINGS, "Source topics that no pattern selects."),
            "paused": _described(_FLAG, "Whether the mirror is paused. Left out: it stays as it is."),
            "paused-topics": _described(_STRINGS, "Mirror topics that are paused while the mirror is not."),
            "copying-topics": _described(_STRINGS, "Mirror topics that are copied although the mirror is paused."),
            "source": _table(
                client,
                "Client properties of the source. Secrets are references: ${env:NAME}, ${file:PATH:KEY} or"
                " ${dir:PATH:KEY}.",
                required=["bootstrap.servers"],
                patternProperties={r"^(config\.providers|metrics\.context)\.": {"type": "string"}},
            ),
            "settings": _table({**settings, **aliases}, "Settings of the mirror."),
            "add": {"type": "array", "items": add},
        },
        "A mirror of this name.",
        required=["source"],
    )
    root = _table(
        {
            "include": _described(_STRINGS, "Files to include, relative to this one."),
            "variables": {
                "type": "object",
                "description": "Values that strings of mirrors name as {{name}}; never secrets.",
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_-]*$"},
                "additionalProperties": _VALUE,
            },
            "mirrors": {"type": "object", "description": "The mirrors, by name.", "additionalProperties": mirror},
        },
        "The file of `kmirror apply` (TOML).",
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "mirrors", **root}
