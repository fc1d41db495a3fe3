"""A mirror's record that is changed while an engine copies, so that it leads elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, now_ms, require_mirror
from kmirror.state.event_records import Event
from kmirror.state.snapshot import Changes
from tests.attacks.conftest import SECRET
from tests.attacks.test_planted_state import PLAIN
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.listener import Listener
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, selector
from tests.support.waiting import wait_until


def changed_to(destination: Destination, mirror: str, listener: Listener) -> None:
    """Have the record lead to the listener, with a login of this host."""
    record = require_mirror(destination.state(), mirror)
    login = {
        "bootstrap.servers": listener.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN.format("${env:KMIRROR_OWN}"),
    }
    change(destination, mirror, lambda _: Changes((replace(record, source=login),)))


def changes(destination: Destination, mirror: str) -> list[Event]:
    return [one for one in destination.store.read_events(mirror) if (one.what, one.result) == ("source", "CHANGED")]


@pytest.mark.parametrize("sources", ["any", "the source"])
def test_a_changed_address_is_reported_before_it_is_used_and_refused_where_sources_are_named(
    cluster_pair: ClusterPair,
    destination: Destination,
    listener: Listener,
    sources: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMIRROR_OWN", SECRET)
    if sources != "any":
        monkeypatch.setenv("KMIRROR_TRUST_SOURCES", cluster_pair.source.bootstrap_servers)
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, ["one"])
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    with LocalEngine(destination, mirror) as local:
        local.catch_up()
        changed_to(destination, mirror, listener)
        if sources == "any":
            wait_until(lambda: bool(listener.received))
            connected_ms = now_ms()
            (event,) = changes(destination, mirror)
            assert event.time_ms <= connected_ms
        else:
            wait_until(lambda: any("lets no mirror log in to" in note for note in local.notes))
            wait_until(lambda: len(changes(destination, mirror)) == 1)
            time.sleep(1)
            assert listener.received == []
            assert any(f'"{cluster_pair.source.bootstrap_servers},' in note for note in local.notes) or any(
                "KMIRROR_TRUST_SOURCES=" in note for note in local.notes
            )
            (event,) = changes(destination, mirror)
        wait_until(lambda: any("is reached in another way from now on" in note for note in local.notes))
    assert any(listener.address in text for text in event.details["changes"])
    assert SECRET not in str(local.notes)
