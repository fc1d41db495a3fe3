"""Schemas and docs/json.md are what the documents' declarations say, and documents are what their schemas say."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from kmirror.cli.verbs import VERBS
from tests.support.json_documents import (
    DOCUMENTS,
    MIRRORS_FILE,
    PAGE,
    SCHEMAS,
    JsonDocument,
    check,
    check_printed,
    page,
    printed_by,
    schema_text,
)
from tests.support.mirrors_schema import mirrors_schema

REMEDY = "run: .venv/bin/python -m tests.support.json_documents"


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_schema_is_what_the_declarations_say(document: JsonDocument) -> None:
    assert document.file.read_text(encoding="utf-8") == schema_text(document.schema), REMEDY
    Draft202012Validator.check_schema(document.schema)


def test_there_is_a_document_for_each_schema() -> None:
    files = {document.file.name for document in DOCUMENTS.values()}
    assert {file.name for file in SCHEMAS.iterdir()} == files | {MIRRORS_FILE.name}


def test_the_schema_of_the_file_of_mirrors_is_what_the_settings_say() -> None:
    assert MIRRORS_FILE.read_text(encoding="utf-8") == schema_text(mirrors_schema()), REMEDY
    Draft202012Validator.check_schema(mirrors_schema())


def test_the_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), REMEDY


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"error": {"code": 3, "message": "m", "hint": None, "reason": None, "new": 1}}, None),
        ({"error": {"code": 3, "message": "m", "hint": None}}, r"\$.error: 'reason' is a required property"),
        ({"error": {"code": 9, "message": "m", "hint": None, "reason": None}}, r"\$.error.code: 9 is not one of"),
        ({"error": {"code": 3, "message": "m", "hint": None, "reason": "OTHER"}}, "'OTHER' is not one of"),
        ({"error": {"code": -1, "message": "m", "hint": None, "reason": None}}, "-1 is not one of"),
        ({"error": {"code": 3, "message": None, "hint": None, "reason": None}}, "None is not of type 'string'"),
    ],
)
def test_what_a_schema_lets_pass(found: object, wrong: str | None) -> None:
    if wrong is None:
        check("error", found)
        return
    with pytest.raises(AssertionError, match=wrong):
        check("error", found)


def test_which_document_a_command_prints() -> None:
    assert printed_by(["describe", "--mirror", "m", "--groups", "--json"]) == "describe-groups"
    assert printed_by(["config", "--mirror", "m"]) == "config"
    assert printed_by(["config", "--mirror", "m", "--set", "copy.lanes=3"]) == "result"
    assert printed_by(["sandbox", "status"]) == "sandbox-status"
    assert {printed_by([verb, "status"]) for verb in VERBS} <= {*DOCUMENTS, "mirrors"}
    with pytest.raises(AssertionError, match="required property"):
        check_printed(["list", "--json"], '[{"mirror": "m"}]')


def test_a_key_that_some_rows_have_is_not_required() -> None:
    schema = DOCUMENTS["result"].schema
    some = {"changes", "totals", "clients", "keys", "blockedProducers", "steps", "hooks"}
    assert set(schema["properties"]) - set(schema["required"]) == some
