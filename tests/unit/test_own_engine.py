"""The engine that a command starts for itself."""

from __future__ import annotations

import pytest

from kmirror.ops.base import own_engine
from kmirror.ops.base.own_engine import OwnEngine
from tests.support.waiting import wait_until


def test_an_engine_that_has_ended_says_why() -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "NONE"}
    with OwnEngine("m", properties) as engine:
        assert engine.error_text() == ""
        engine.start()
        wait_until(lambda: not engine.is_running)
        assert engine.error_text() == "kmirror: security.protocol=NONE is not known"
    assert engine.error_text() == ""


def test_the_last_line_of_an_engine_that_ended_without_a_cause_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_engine, "_START", "raise OSError('no space left')")
    with OwnEngine("m", {"bootstrap.servers": "127.0.0.1:1"}) as engine:
        engine.start()
        wait_until(lambda: not engine.is_running)
        assert engine.error_text() == "OSError: no space left"


def test_it_reads_the_properties_that_the_command_has(monkeypatch: pytest.MonkeyPatch) -> None:
    shows = (
        "import sys\nfrom kmirror.cluster.security.properties import read_properties\n"
        "print(ascii(read_properties(sys.argv[sys.argv.index('--command-config') + 1])), file=sys.stderr)"
    )
    monkeypatch.setattr(own_engine, "_START", shows)
    properties = {"bootstrap.servers": "127.0.0.1:1", "ssl.keystore.password": ' p\u00fc\u20ac\\"ss'}
    with OwnEngine("m", properties) as engine:
        engine.start()
        wait_until(lambda: not engine.is_running)
        assert engine.error_text() == ascii(properties)
