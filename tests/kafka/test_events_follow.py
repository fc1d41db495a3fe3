"""`events --follow` and `top` on a real broker: what there is, what comes, and a broker that is gone for a while."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kmirror.cluster.security.client_config import client_config
from kmirror.state.event_records import Event, EventPage
from kmirror.state.lock import transact
from kmirror.state.snapshot import Changes
from kmirror.state.store import StateStore
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.ending import killed_at_last
from tests.support.engine import command
from tests.support.forked import Forked
from tests.support.live_terminal import LiveTerminal
from tests.support.stores import mirror as stored
from tests.support.waiting import PATIENCE_S, wait_until

DAY = 86_400_000


def write(store: StateStore, mirror: str, what: str, day: int) -> None:
    event = Event(day * DAY, mirror, what, "eve@ops", "DONE", {"day": day})
    # there are no events without state
    transact(store, mirror, lambda _: Changes((stored(mirror),), (), (event,)))


def store_of(cluster: SandboxCluster) -> StateStore:
    store = StateStore(client_config(cluster.client_properties()))
    store.ensure_topics(1)
    return store


@contextmanager
def following(cluster: SandboxCluster, out: Path, *arguments: str) -> Iterator[tuple[Forked, Path, Path]]:
    """Follow events; yield the process and the files that take its standard output and error."""
    err = out.with_suffix(".err")
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = Forked(command(cluster, "events", "--follow", *arguments), stdout=out_file, stderr=err_file)
    try:
        yield process, out, err
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.slow
def test_events_are_followed_past_a_broker_that_is_gone_for_a_while(
    passing_destination: SandboxCluster, tmp_path: Path
) -> None:
    cluster, mirror = passing_destination, unique_topic("m")
    with closing(store_of(cluster)) as store:
        write(store, mirror, "create", 1)
        write(store, unique_topic("other"), "create", 1)
        write(store, mirror, "add", 2)
        with (
            following(cluster, tmp_path / "json", "--mirror", mirror, "--json") as (process, out, err),
            LiveTerminal(cluster, 80, 24, "top") as top,
        ):

            def shown() -> list[str]:
                lines = out.read_text().splitlines()
                return [f"{event['what']} {event['mirror'] == mirror}" for event in map(json.loads, lines)]

            wait_until(lambda: shown() == ["create True", "add True"])
            write(store, mirror, "pause", 3)
            wait_until(lambda: shown()[2:] == ["pause True"])
            top.until(lambda frame: " topic" in "".join(frame[1:2]))
            cluster.stop()
            wait_until(lambda: "the destination does not answer" in err.read_text())
            # the last picture stays, and since when it is old is said above it
            top.until(lambda frame: frame[1].startswith("no answer for") and " topic" in frame[2])
            cluster.start()
            top.until(lambda frame: frame[0].endswith("updated 0s ago") and " topic" in frame[1])
            top.press("q")
            assert top.ends() == 0
            write(store, mirror, "resume", 4)
            wait_until(lambda: shown()[3:] == ["resume True"])
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert shown() == ["create True", "add True", "pause True", "resume True"]
            silent, back = err.read_text().splitlines()
            assert silent.startswith("kmirror: the destination does not answer, retrying until it does: ")
            assert back == "kmirror: the destination answers again"


def test_a_table_is_followed_since_a_time_and_until_its_reader_goes(destination_cluster: SandboxCluster) -> None:
    mirror = unique_topic("m")
    with closing(store_of(destination_cluster)) as store:
        for day, what in ((1, "create"), (2, "add")):
            write(store, mirror, what, day)
        line = command(destination_cluster, "events", "--follow", "--mirror", mirror, "--since", "1970-01-03T00:00:00Z")
        started = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with killed_at_last(started) as process:
            assert process.stdout is not None
            assert process.stdout.readline().split() == ["TIME", "MIRROR", "WHO", "WHAT", "RESULT", "DETAILS"]
            row = ["1970-01-03T00:00:00Z", mirror, "eve@ops", "add", "DONE", '{"day":', "2}"]
            assert process.stdout.readline().split() == row
            write(store, mirror, "pause", 3)
            assert process.stdout.readline().split()[3] == "pause"
            process.stdout.close()
            write(store, mirror, "resume", 4)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""


def test_a_page_begins_where_the_last_one_ended(destination_cluster: SandboxCluster) -> None:
    mirror = unique_topic("m")
    with closing(store_of(destination_cluster)) as store:
        write(store, mirror, "create", 1)
        first = store.read_event_page(EventPage(()), mirror)
        assert [event.what for event in first.events] == ["create"]
        again = store.read_event_page(first, mirror)
        assert (again.events, again.topic_id) == ((), first.topic_id)
        write(store, mirror, "add", 2)
        assert [event.what for event in store.read_event_page(again, mirror).events] == ["add"]
        # a page of another topic of that name has read nothing of this one
        stranger = EventPage((), 1_000_000, "another-topic")
        assert [event.what for event in store.read_event_page(stranger, mirror).events] == ["create", "add"]
        # a leader just elected may hide what was read already
        assert store.read_event_page(EventPage((), 1_000_000, first.topic_id), mirror).next_offset == 1_000_000
