"""The library has a function for every verb that is not a program of its own."""

from __future__ import annotations

import kmirror
from kmirror.cli.verbs import VERBS

#: What runs until it is stopped, belongs to a terminal or works on files.
PROGRAMS = {
    "run",
    "top",
    "report",
    "truncate-logs",
    "append",
    "pack",
    "help",
    "completion",
    "sandbox",
    "demo",
    "rehearse",
    "serve",
}


def test_every_verb_is_a_function() -> None:
    assert {verb for verb in VERBS if not hasattr(kmirror.Client, verb.replace("-", "_"))} == PROGRAMS
