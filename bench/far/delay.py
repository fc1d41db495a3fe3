"""The two directions of a link: `python -m bench.far.delay JSON`, with both TUN devices as inherited descriptors.

A packet is read from one device, held for half the round trip, and written to the other. Devices carry packets as the
kernel makes them for a network card that segments by itself: one read returns up to 64 KB, that count as as many
packets as the card would send.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

#: Size of `struct virtio_net_hdr`, which precedes each packet: <linux/virtio_net.h>.
_OFFLOAD = struct.Struct("=BBHHHH")
_TCP, _TCP_OVER_IPV4 = 6, 1
_LARGEST_READ = _OFFLOAD.size + (64 << 10)
#: Packets are handled in bursts: often enough for the delay to be exact to a few percent, and for the processor.
_LONGEST_PAUSE_S, _PAUSES_IN_A_DELAY = 0.0005, 10
#: Like a router, the link queues this much of its rate, and drops what exceeds it.
_QUEUE_S = 0.1


@dataclass(frozen=True, slots=True)
class Path:
    """A link: its round trip, its rate in each direction, and one packet in how many is lost (0: none)."""

    round_trip_ms: float
    megabytes_per_second: float = 200.0
    lost_one_in: int = 0
    seed: int = 1


class DelayLine:
    """Decides when packets arrive: after those before them, at the link's rate, and half a round trip later."""

    def __init__(self, path: Path, direction: int) -> None:
        self._delay_s = path.round_trip_ms / 2000
        self._second_per_byte = 1 / (path.megabytes_per_second * 1e6)
        self._lost_one_in = path.lost_one_in
        self._chance = random.Random(path.seed * 2 + direction)
        self._free_at = 0.0
        self._until_lost = self._next_loss()

    def arrival(self, now: float, size: int) -> float | None:
        """Return when a packet of this size arrives that is sent now; None if the link's queue is full."""
        if self._free_at - now > _QUEUE_S:
            return None
        self._free_at = max(now, self._free_at) + size * self._second_per_byte
        return self._free_at + self._delay_s

    def lost(self, packets: int) -> list[int]:
        """Return which of the next packets are lost, by their index."""
        found = []
        while self._until_lost < packets:
            found.append(self._until_lost)
            self._until_lost += 1 + self._next_loss()
        self._until_lost -= packets
        return found

    def _next_loss(self) -> int:
        """Return how many packets arrive before the next one that is lost."""
        return int(self._chance.expovariate(1 / self._lost_one_in)) if self._lost_one_in else sys.maxsize


def packets_in(data: bytes) -> int:
    """Return how many packets a card would send for what was read from a device."""
    _, kind, headers, size, *_ = _OFFLOAD.unpack_from(data)
    return -(-(len(data) - _OFFLOAD.size - headers) // size) if kind else 1


def without(data: bytes, lost: list[int]) -> list[bytes]:
    """Return what is left of data read from a device, in pieces, when some of its packets are lost."""
    flags, kind, headers, size, *sums = _OFFLOAD.unpack_from(data)
    if kind != _TCP_OVER_IPV4:
        return []
    header = data[_OFFLOAD.size : _OFFLOAD.size + headers]
    payload = data[_OFFLOAD.size + headers :]
    bounds = [-1, *lost, packets_in(data)]
    pieces = []
    for before, after in itertools.pairwise(bounds):
        first, last = (before + 1) * size, min(after * size, len(payload))
        if first < last:
            segmented = last - first > size
            offload = _OFFLOAD.pack(flags, kind if segmented else 0, headers, size if segmented else 0, *sums)
            pieces.append(offload + _tcp_header(header, first, last - first) + payload[first:last])
    return pieces


def _tcp_header(header: bytes, skipped: int, length: int) -> bytes:
    """Return the IPv4 and TCP headers of a piece; TCP's checksum is left to a card, so nothing verifies it."""
    ip_length = (header[0] & 15) * 4
    ip, tcp = bytearray(header[:ip_length]), bytearray(header[ip_length:])
    struct.pack_into(">HH", ip, 2, len(header) + length, (struct.unpack_from(">H", ip, 4)[0] + skipped) & 0xFFFF)
    ip[10:12] = b"\0\0"
    total = sum(struct.unpack(f">{ip_length // 2}H", ip))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into(">H", ip, 10, ~total & 0xFFFF)
    struct.pack_into(">I", tcp, 4, (struct.unpack_from(">I", tcp, 4)[0] + skipped) & 0xFFFFFFFF)
    return bytes(ip + tcp)


def forward(incoming: int, outgoing: int, path: Path, direction: int) -> None:
    """Carry packets from one device to the other, for ever."""
    line = DelayLine(path, direction)
    pause_s = min(_LONGEST_PAUSE_S, path.round_trip_ms / 2000 / _PAUSES_IN_A_DELAY)
    waiting: deque[tuple[float, bytes]] = deque()
    os.set_blocking(incoming, False)
    while True:
        try:
            while True:
                data = os.read(incoming, _LARGEST_READ)
                arrival = line.arrival(time.monotonic(), len(data))
                if arrival is None:
                    continue
                lost = line.lost(packets_in(data)) if path.lost_one_in else None
                if not lost:
                    waiting.append((arrival, data))
                else:
                    waiting.extend((arrival, piece) for piece in without(data, lost))
        except BlockingIOError:
            pass
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            try:
                os.write(outgoing, waiting.popleft()[1])
            except OSError:  # a device that is being removed
                return
        if waiting:
            time.sleep(pause_s)
        else:
            select.select([incoming], [], [])


def argv(path: Path, incoming: int, outgoing: int, direction: int) -> list[str]:
    """Return the command that carries one direction."""
    return [sys.executable, "-m", "bench.far.delay", json.dumps([asdict(path), incoming, outgoing, direction])]


def main() -> None:
    path, incoming, outgoing, direction = json.loads(sys.argv[1])
    forward(incoming, outgoing, Path(**path), direction)


if __name__ == "__main__":
    main()
