"""Make a Python process believe that it runs on another host, whose clock is off. Python imports this by itself.

CAMPAIGN_HOST is that host's name, CAMPAIGN_CLOCK_S by how many seconds its clock is ahead; children inherit both. C
libraries and the JVM still see the real values.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

_OWN_NAMESPACE = "/proc/self/ns/pid"


def _move(name: str, ahead_ns: int) -> None:
    real_time_ns, real_readlink, real_gmtime = time.time_ns, os.readlink, time.gmtime

    def readlink(path: Any, **words: Any) -> Any:
        # so that its process ids mean nothing to others
        return name if path == _OWN_NAMESPACE else real_readlink(path, **words)

    time.time_ns = lambda: real_time_ns() + ahead_ns
    time.time = lambda: time.time_ns() / 1e9
    time.gmtime = lambda seconds=None, /: real_gmtime(time.time() if seconds is None else seconds)
    socket.gethostname = lambda: name
    os.readlink = readlink


if "CAMPAIGN_HOST" in os.environ:
    _move(os.environ["CAMPAIGN_HOST"], int(float(os.environ["CAMPAIGN_CLOCK_S"]) * 1e9))
