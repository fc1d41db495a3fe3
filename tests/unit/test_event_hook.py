"""When events are passed on, how many, and that a command that fails or hangs is reported and ended."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from kmirror.ops.base.context import Destination
from kmirror.ops.base.hook_process import hook_command
from kmirror.ops.base.hook_runs import When
from kmirror.ops.run.event_hook import EventHook, WaitingEvents
from kmirror.state.event_records import Event
from kmirror.state.writer import event_listeners
from tests.support.hook_scripts import script
from tests.support.json_documents import check
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).parent.parent.parent / "docs" / "examples" / "chat-hook.sh"


class At:
    """Where events come from, as far as a hook is shown it."""

    cluster_id = "cluster"
    bootstrap_server = "b:9092"


def event(number: int) -> Event:
    return Event(number, "m", "run", "me@here", "started", {"number": number})


def test_events_that_come_within_the_interval_are_passed_on_together() -> None:
    waiting = WaitingEvents(10)
    assert waiting.wait_s(100) is None
    waiting.add([event(1)])
    assert waiting.wait_s(100) == 0
    assert waiting.take(100) == ((event(1),), 0)
    assert waiting.wait_s(101) is None
    waiting.add([event(2)])
    waiting.add([event(3)])
    assert waiting.wait_s(104) == 6
    assert waiting.wait_s(111) == 0
    assert waiting.take(111) == ((event(2), event(3)), 0)


def test_of_too_many_events_only_the_number_is_kept() -> None:
    waiting = WaitingEvents(10)
    waiting.add([event(number) for number in range(400)])
    waiting.add([event(number) for number in range(400, 700)])
    events, dropped = waiting.take(0)
    assert (events, dropped) == (tuple(event(number) for number in range(500)), 200)
    waiting.add([event(1)])
    assert waiting.take(0) == ((event(1),), 0)


def announce(*events: Event) -> None:
    for listener in event_listeners:
        listener(events)


def hook(path: Path, interval_ms: int = 0, last_ms: int = 120_000) -> EventHook:
    return EventHook(hook_command(When.EVENT, str(path)), "m", interval_ms, last_ms)


def at() -> Destination:
    return At()  # type: ignore[return-value]


def test_the_command_is_given_the_events(tmp_path: Path) -> None:
    given = tmp_path / "given"
    passing = hook(script(tmp_path / "hook", f"cat > {given}.new; mv {given}.new {given}"))
    with passing.running(at()):
        announce(event(1), event(2))
        wait_until(given.exists)
    document = json.loads(given.read_text())
    check("event-hook", document)
    assert [one["details"]["number"] for one in document["events"]] == [1, 2]
    assert (document["when"], document["dropped"]) == ("on-event", 0)
    assert document["destination"] == {"clusterId": "cluster", "bootstrapServer": "b:9092"}
    assert (passing.take_notes(), event_listeners) == ((), [])
    chat = subprocess.run(
        [EXAMPLE], input=given.read_bytes(), env={**os.environ, "CHAT": "/dev/stdout"}, check=True, capture_output=True
    )
    assert chat.stdout == b"kmirror m: run started\n" * 2


def test_a_failure_is_noted_once_and_so_is_its_end(tmp_path: Path) -> None:
    runs, fine = tmp_path / "runs", tmp_path / "fine"
    body = f"echo once >> {runs}; test -e {fine} || {{ echo no chat; exit 3; }}"
    passing = hook(script(tmp_path / "hook", body))

    def run_number(number: int) -> None:
        announce(event(number))
        wait_until(lambda: runs.exists() and len(runs.read_text().split()) == number)

    with passing.running(at()):
        run_number(1)
        run_number(2)
        fine.touch()
        run_number(3)
    assert [(note.mirror, note.text) for note in passing.take_notes()] == [
        ("m", "the --on-event command exited with 3: no chat"),
        ("m", "the --on-event command works again"),
    ]


def test_the_last_events_are_passed_on_before_their_time(tmp_path: Path) -> None:
    given = tmp_path / "given"
    passing = hook(script(tmp_path / "hook", f"cat >> {given}; echo >> {given}"), interval_ms=3_600_000)
    with passing.running(at()):
        announce(event(1))
        wait_until(lambda: given.exists() and given.read_text().endswith("\n"))
        announce(event(2))
    numbers = [json.loads(line)["events"][0]["details"]["number"] for line in given.read_text().splitlines()]
    assert numbers == [1, 2]


def test_a_command_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    passing = hook(script(tmp_path / "hook", f"touch {begun}; exec sleep 600"), last_ms=1)
    with passing.running(at()):
        announce(event(1))
        wait_until(begun.exists)
        announce(event(2))
    assert [note.text for note in passing.take_notes()] == ["the --on-event command was interrupted"]
