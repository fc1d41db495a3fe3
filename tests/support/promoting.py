"""Promotes that a test interrupts once they have come far enough, however long that takes."""

from __future__ import annotations

import threading

from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.promote_request import PromoteView, Watcher
from kmirror.status.topic_state import TopicState


def until_stopped(destination: Destination, mirror: str, topic: str) -> tuple[Watcher, threading.Event]:
    """Return the watcher and the event of a promote that is interrupted when others still wait, but not this topic."""
    stopping = threading.Event()

    def watch(view: PromoteView) -> None:
        if view.missing and not any(one.topic == topic for one in view.missing):
            states = {row.topic: row.topic_state for row in describe(destination, mirror)}
            if states[topic] is TopicState.STOPPED:
                stopping.set()

    return watch, stopping


def until_said(words: str) -> tuple[Watcher, threading.Event]:
    """Return the watcher and the event of a promote that is interrupted when these words are said, of topics or not."""
    stopping = threading.Event()

    def watch(view: PromoteView) -> None:
        if any(words in said for said in (*view.lines, *(one.what or "" for one in view.missing))):
            stopping.set()

    return watch, stopping
