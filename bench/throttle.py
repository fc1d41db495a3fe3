"""Measure how closely `throttle.bytes.per.second` is kept: `python -m bench.throttle`.

An engine with two lanes copies a topic under one limit after another, changed while it runs. What reaches the
destination's logs in ten seconds is compared with the limit, leaving out the seconds in which a change takes effect.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.__main__ import filled
from bench.clusters import Pair
from bench.contenders import Kmirror
from bench.data import DATA_SETS
from bench.processes import Running, carry_out

_KEY = "throttle.bytes.per.second"
_DATA_SETS = ("256k", "16k")
_LIMITS = (2_000_000, 20_000_000, 5_000_000, 40_000_000)
_MEGABYTES = 1500
_TAKEN_UP_S = 4.0
_MEASURED_S = 10.0
_FIRST_BYTE_TIMEOUT_S = 60.0
_ALLOWED = 0.05


@dataclass(frozen=True, slots=True)
class Kept:
    """The rate over `seconds` under a limit, in bytes a second; `ratio` is to the limit."""

    data_set: str
    limit: int
    seconds: float
    bytes_per_second: float
    ratio: float


def measure(pair: Pair, folder: Path, key: str) -> list[Kept]:
    """Copy one data set under every limit.

    Raises:
        CopyFailedError: the engine ended.
    """
    load = filled(pair, folder, DATA_SETS[key], _MEGABYTES)
    bytes_per_offset = load.amount.stored_bytes / load.amount.records
    contender = Kmirror(pair, folder)
    contender.prepare(load, for_latency=True)
    found: list[Kept] = []
    running: Running | None = None
    try:
        for limit in _LIMITS:
            carry_out(contender.command("config", "--set", f"{_KEY}={limit}"))
            if running is None:
                running = contender.start()
                began = time.monotonic()
                while not pair.destination.log_end(load.topic) and time.monotonic() - began < _FIRST_BYTE_TIMEOUT_S:
                    time.sleep(0.1)
            time.sleep(_TAKEN_UP_S)
            running.check()
            first, first_at = pair.destination.log_end(load.topic), time.monotonic()
            time.sleep(_MEASURED_S)
            last, last_at = pair.destination.log_end(load.topic), time.monotonic()
            seconds = last_at - first_at
            rate = (last - first) * bytes_per_offset / seconds
            found.append(Kept(key, limit, seconds, rate, rate / limit))
            print(f"{key}: {rate / 1e6:.2f} MB/s under {limit / 1e6:.0f} MB/s", file=sys.stderr, flush=True)
        assert pair.destination.log_end(load.topic) < load.amount.records, "everything was copied before the end"
        assert running is not None
        running.end()
    finally:
        if running is not None:
            running.kill()
    contender.clean_up()
    pair.source.delete_topics({load.topic})
    return found


def main() -> int:
    """Measure once, and print the result as JSON; return 1 if a limit is missed by more than is allowed."""
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        found = [one for key in _DATA_SETS for one in measure(pair, Path(name), key)]
    print(json.dumps({"throttle": [asdict(one) for one in found], "allowed": _ALLOWED}, indent=2))
    return int(any(abs(one.ratio - 1) > _ALLOWED for one in found))


if __name__ == "__main__":
    sys.exit(main())
