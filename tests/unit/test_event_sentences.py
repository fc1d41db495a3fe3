"""Every kind of event reads as a sentence: those of this version, those of others, and those that anyone wrote."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kmirror
from kmirror.ops.show.event_sentences import is_known, sentence
from kmirror.ops.show.events import EVENTS
from kmirror.state.event_records import Event
from tests.support.report_facts import NOW, events

SRC = Path(kmirror.__file__).parent


def said(what: str, result: str, actor: str = "ann@ops", **details: Any) -> str:
    return sentence(Event(NOW, "dr", what, actor, result, details))


def of_partition(result: str, **details: Any) -> str:
    return said("partition", result, topic="shop", partition=3, **details)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            said("create", "OK", sourceClusterId="Sa1", settings={"a": "b"}),
            "ann@ops created mirror dr of cluster Sa1, with 1 setting",
        ),
        (said("add", "OK", topics=["a"], count=1), "ann@ops added topic a"),
        (
            said("add", "PARTLY_DONE", topics=[*"abcde"], count=120),
            "ann@ops added 120 topics: a, b, c and 117 more (only a part was done)",
        ),
        (
            said("add", "OK", topics=[], count=0, filters="topics.exclude loses x"),
            "ann@ops changed which topics are mirrored: topics.exclude loses x",
        ),
        (said("pause", "OK", topics=["a"], count=1, all=True), "ann@ops paused the mirror"),
        (said("resume", "OK", topics=["a", "b"], count=2, all=False), "ann@ops resumed 2 topics: a, b"),
        (said("delete", "OK", topics=["a"], count=1), "ann@ops deleted mirror dr; its 1 topic is kept"),
        (said("failover", "OK", topics=["a"], count=1), "ann@ops failed over topic a; writable now"),
        (said("recover", "REQUESTED", partitions=["a-0", "b-0"], count=2, accepted=[], rebuilds=["a"]),
         "ann@ops requested that 2 partitions: a-0, b-0 be copied again, and accepted that a is rebuilt"),
        (said("recover", "TIMED_OUT", results={"DONE": 2, "FAILED": 1}),
         "the engine answered the request of ann@ops to recover: 2 DONE, 1 FAILED (it timed out)"),
        (said("settings", "CHANGED", topic="a", set={"retention.ms": "5"}, removed=["x"], heldBack={"y": "1"}),
         "settings of a synced from its source: retention.ms=5, x removed, deferred until the stop: y"),
        (said("discovery", "REFUSED", sourceTopic="t", message="no right"),
         "source topic t is not mirrored: no right"),
        (said("rights", "DETECTED", message="foreign writes are only detected"), "foreign writes are only detected"),
        (said("rebuild", "ARCHIVED", topic="t", archive="t.kmirror-archive.1", retentionMs=None),
         "the records of t are archived in t.kmirror-archive.1; the rebuild continues"),
        (said("rebuild", "ARCHIVED", topic="t", archive="t.kmirror-archive.1", retentionMs=86_400_000),
         "the records of t are archived in t.kmirror-archive.1, which keeps them for 1d; the rebuild continues"),
        (said("failback", "SAVED", topic="t", archive=None, records=0),
         "failback: no records of t are archived"),
        (said("failback", "SAVED", topic="t", archive="t.kmirror-archive.1", records=1),
         "failback: 1 record that only t has are archived in t.kmirror-archive.1"),
        (said("rebuild", "ARCHIVED", topic="t", archive=None, records=0),
         "no records of t are archived; the rebuild continues"),
        (said("run", "started", master="local[4]"), "ann@ops started an engine (local[4])"),
        (said("source", "CHANGED", changes=["a", "b"]), "the source is reached in another way: a; b"),
        (of_partition("FAILED", reason="SOURCE_DIVERGED", message="from 9 on"),
         "shop-3 FAILED SOURCE_DIVERGED: from 9 on"),
        (of_partition("LOSS_ACCEPTED", **{"from": 10, "until": 30, "records": 20}),
         "shop-3 continues without 20 offsets that its source had lost: 10 to 29"),
        (said("objective", "BREACHED", topic="t", objectiveMs=30_000, cause="PATH", message="it is slow"),
         "t breached its objective of 30s, cause PATH: it is slow"),
        (said("objective", "MET", topic="t", lastedMs=61_000), "t meets its objective again, after 1m1s"),
        # of another version
        (said("promise", "KEPT", topics=["a"], message="as asked"), "ann@ops: promise KEPT of topic a: as asked"),
    ],
)  # fmt: skip
def test_an_event_is_a_sentence(text: str, words: str) -> None:
    assert text == words


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, 7, -1, 10**30, "", "x", [], [None, {}], {"a": [1]}, True, 1.5])
def test_details_of_any_type_leave_a_sentence(value: object) -> None:
    for what, result in [*kinds(), ("what", "RESULT")]:
        keys = ("topic", "topics", "count", "partition", "partitions", "settings", "results", "set", "removed")
        more = ("heldBack", "message", "reason", "from", "until", "records", "objectiveMs", "lastedMs", "changes")

        for details in ({}, dict.fromkeys((*keys, *more, "sourceTopics", "groups", "changed", "lane"), value)):
            text = sentence(Event(NOW, "dr", what, "ann@ops", result, details))
            assert text != "-", (what, result)


def test_a_sentence_is_one_short_line_without_what_a_terminal_obeys() -> None:
    evil = "a\x1b[2Jb\n\u202e" + "x" * 5000
    for what, result in [*kinds(), (evil, evil)]:
        text = said(what, result, evil, topic=evil, topics=[evil] * 9, groups=[evil], message=evil, error=evil)
        assert text.isprintable(), (what, result)
        assert len(text) <= 400, (what, result)


def test_events_have_their_sentence_in_json() -> None:
    found = EVENTS.document(events()[-1])
    assert found["sentence"] == 'shop.orders-0000-0 FAILED SOURCE_DIVERGED: <b>& "</b>'


def test_all_events_that_the_code_writes_are_known() -> None:
    found = set(kinds())
    assert len(found) > 35
    assert {kind for kind in found if not is_known(*kind)} == set()


@cache
def kinds() -> tuple[tuple[str, str], ...]:
    """Return subject and result of events where the code writes both as literals."""
    return tuple(sorted(set(_all_kinds())))


def _all_kinds() -> Iterator[tuple[str, str]]:
    for path in SRC.rglob("*.py"):
        if "event_sentences" not in path.name:
            yield from _kinds_in(ast.parse(path.read_text(encoding="utf-8")))


def _kinds_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    names = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def text(node: ast.expr) -> str | None:
        match node:
            case ast.Constant(value=str()):
                return str(node.value)
            case ast.Name(id=name):
                found = names.get(name)
                return found if isinstance(found, str) else None
            case (
                ast.Attribute(value=ast.Attribute(attr=name), attr="name")
                | ast.Attribute(value=ast.Name(id="Reason"), attr=name)
            ):
                return name
        return None

    #: Where the subject is in a call; the result comes after it, or after the actor.
    places = {"record": (0, 1), "JobEvent": (1, 2), "Event": (2, 4), "_announce": (2, 2)}
    places |= {"own_event": (1, 2), "record_event": (2, 3)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in places and len(node.args) > max(places[name]):
            what, result = (text(node.args[place]) for place in places[name])
            what = "partition" if name == "_announce" else what
            if what is not None and result is not None:
                yield what, result
