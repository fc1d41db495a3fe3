"""What is measured: distances, brokers, hosts, partitions, and where the engine is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.data import PARTITIONS
from bench.far.delay import Path

STOCK, TUNED = "stock", "tuned"
LARGE = "large"
SOURCE_FAR, DESTINATION_FAR = "source", "destination"
ROUND_TRIPS_MS = (2, 20, 80, 200)
_USUAL_MS = 80
_LOSS = 1000
#: Settings of brokers, by kind: tuned ones leave the sizes of socket buffers to the kernel.
BROKERS = {STOCK: {}, TUNED: {"socket.send.buffer.bytes": "-1", "socket.receive.buffer.bytes": "-1"}}


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `broker_kind` is a key of BROKERS, `host` one of link.HOSTS; the engine is at the side that is not far.

    One packet in `lost_one_in` is lost (0: none). `latency` asks for what a copy adds to each record when caught up.
    """

    round_trip_ms: int = _USUAL_MS
    broker_kind: str = STOCK
    host: str = STOCK
    partitions: int = PARTITIONS
    brokers: int = 1
    far: str = SOURCE_FAR
    lost_one_in: int = 0
    latency: bool = False

    @property
    def key(self) -> str:
        """Return its name on the command line and in the results."""
        parts = [f"{self.round_trip_ms}ms", f"{self.broker_kind}-brokers", f"{self.host}-host"]
        parts += [f"{self.partitions}p"] if self.partitions != PARTITIONS else []
        parts += [f"{self.brokers}b"] if self.brokers != 1 else []
        parts += ["destination-far"] if self.far == DESTINATION_FAR else []
        parts += ["loss"] if self.lost_one_in else []
        parts += ["latency"] if self.latency else []
        return "-".join(parts)

    @property
    def path(self) -> Path:
        """Return the link."""
        return Path(self.round_trip_ms, lost_one_in=self.lost_one_in)


def quick() -> list[Case]:
    """Return what shows most in a quarter of an hour."""
    pairs = [(brokers, host) for brokers in BROKERS for host in (STOCK, LARGE)]
    return [*(Case(broker_kind=brokers, host=host) for brokers, host in pairs), Case(partitions=1), Case(latency=True)]


def every() -> list[Case]:
    """Return all cases: all distances, and at one of them all that may matter besides."""
    return list(dict.fromkeys([*quick(), *_distances(), *_variations()]))


def _distances() -> Iterator[Case]:
    for round_trip_ms in ROUND_TRIPS_MS:
        for brokers in BROKERS:
            for host in (STOCK, LARGE):
                yield Case(round_trip_ms, brokers, host)


def _variations() -> Iterator[Case]:
    for brokers in BROKERS:
        yield Case(broker_kind=brokers, partitions=1)
        yield Case(broker_kind=brokers, brokers=3)
        yield Case(broker_kind=brokers, far=DESTINATION_FAR)
        yield Case(broker_kind=brokers, lost_one_in=_LOSS)
    yield Case(far=DESTINATION_FAR, latency=True)
    yield Case(round_trip_ms=200, latency=True)
