"""How many lanes copy a mirror whose operator leaves that to us (`copy.lanes=auto`).

A Produce request takes one batch of each partition that a lane has at a broker: what two lanes do costs more requests,
here and at the destination, than what one does. But a lane waits for one fetch of each source broker at a time, so two
bring large batches sooner: 570 MB/s of 256 KB against 435 on two cores, for a seventh more of the processors' time. So
there are two, and more where the machine has cores to spare.
"""

from __future__ import annotations

import os
import re

_LOCAL = re.compile(r"local(?:\[\s*(\*|[0-9]+).*\])?")
#: The brokers that a lane keeps busy take more than its own core, wherever they are.
_CORES_PER_LANE = 4
_LEAST_LANES = 2


def cores_of(master: str) -> int | None:
    """Return how many threads a Spark master on this machine has, None for one of a cluster."""
    local = _LOCAL.fullmatch(master)
    if local is None:
        return None
    threads = local[1] or "1"
    return (os.cpu_count() or 1) if threads == "*" else max(1, int(threads))


def lanes_of(setting: int | None, master: str | None) -> int:
    """Return the number of lanes for `copy.lanes`, None for `auto`, below this Spark master."""
    if setting is not None:
        return setting
    cores = cores_of(master) if master is not None else None
    return _LEAST_LANES if cores is None else min(cores, max(_LEAST_LANES, -(-cores // _CORES_PER_LANE)))
