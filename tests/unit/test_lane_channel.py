"""Who is let in to the channel between a driver and the processes that host its lanes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest

from kmirror.engine.lane_channel import HostReady, HostSpec, LaneListener, connect


@pytest.fixture
def listener() -> Iterator[LaneListener]:
    with closing(LaneListener()) as listening:
        yield listening


def admitted(listener: LaneListener) -> Connection | None:
    return listener.admit(listener.accept())


def connect_from_a_thread(spec: HostSpec) -> None:
    def say() -> None:
        # it may be turned away before it has said all, or look who listens when that is made another user
        with suppress(BrokenPipeError, PermissionError), connect(spec) as connection:
            connection.send(HostReady(spec.number, os.getpid()))

    threading.Thread(target=say, daemon=True).start()


def test_a_host_that_knows_the_key_is_let_in(listener: LaneListener) -> None:
    connect_from_a_thread(listener.spec(3))
    connection = admitted(listener)
    assert connection is not None
    with connection:
        assert connection.recv() == HostReady(3, os.getpid())


def test_a_process_with_another_key_is_turned_away_before_anything_is_read_of_it(listener: LaneListener) -> None:
    connect_from_a_thread(replace(listener.spec(3), key=bytes(32)))
    assert admitted(listener) is None


def test_one_that_ends_in_the_middle_of_the_key_is_turned_away(listener: LaneListener) -> None:
    spec = listener.spec(3)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(spec.address)
        stranger.sendall(spec.key[:-1])
    assert admitted(listener) is None


def test_processes_of_other_users_are_turned_away_although_they_know_the_key(
    listener: LaneListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_from_a_thread(listener.spec(3))
    accepted = listener.accept()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert listener.admit(accepted) is None


def test_a_host_says_no_key_to_another_user_who_has_taken_the_address(
    listener: LaneListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="another user"):
        connect(listener.spec(3))
    with listener.accept() as accepted:
        assert accepted.recv(1) == b""


def test_the_key_is_not_shown(listener: LaneListener) -> None:
    spec = listener.spec(3)
    assert spec.key.hex() not in repr(spec)
    assert repr(spec.key)[2:-1] not in repr(spec)
