"""The engine that a command starts for itself."""

from __future__ import annotations

import time

from kmirror.ops.run.own_engine import OwnEngine


def test_an_engine_that_has_ended_says_why() -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "NONE"}
    with OwnEngine("m", properties) as engine:
        assert engine.said() == ""
        engine.start()
        deadline = time.monotonic() + 60
        while engine.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        assert engine.said() == "kmirror: security.protocol=NONE is not known"
    assert engine.said() == ""
