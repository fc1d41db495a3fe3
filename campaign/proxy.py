"""The network between kmirror and brokers: a separate process that forwards connections, and disturbs them on demand.

`python -m campaign.proxy PORT:TARGET ...` listens on each local PORT and forwards to TARGET. Commands come as JSON on
stdin, one per line: `{"port": 1, "trouble": "hole", "ways": ["there", "back"], "amount": 1}`. Each is answered with a
line on stdout: the number of affected connections. An amount of 0 ends a disturbance. It ends with stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

LOOPBACK = "127.0.0.1"
THERE, BACK = "there", "back"
_CHUNK = 1 << 16
#: The most chunks in flight in one direction: what a line holds.
_CHUNKS_UNDER_WAY = 64
_SLICES_A_SECOND = 20
#: When bytes are due, and the bytes.
_UnderWay = asyncio.Queue[tuple[float, bytes]]


class Trouble(StrEnum):
    """What can be wrong with a link, and the meaning of the amount."""

    #: Connections are reset, and new ones too.
    CUT = "cut"
    #: Nothing passes and no one hangs up.
    HOLE = "hole"
    #: Seconds.
    DELAY = "delay"
    #: Seconds, besides those of a delay: how far away the other side is.
    DISTANCE = "distance"
    #: Bytes per second, of each connection.
    THROTTLE = "throttle"
    #: Bytes that still pass on each connection before it is reset.
    CUT_AFTER = "cut-after"
    #: The port of another server: connections are reset, and new ones lead there.
    ELSEWHERE = "elsewhere"


class Way:
    """One direction of a link, with its disturbances."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay = self.distance = 0.0
        self.rate = 0.0
        self.cut_after = 0
        #: The command that `cut_after` belongs to: each starts counting again.
        self.order = 0

    def change(self, trouble: Trouble, amount: float) -> None:
        """Start a disturbance, or end it with 0."""
        match trouble:
            case Trouble.HOLE if amount:
                self.open.clear()
            case Trouble.HOLE:
                self.open.set()
            case Trouble.DELAY:
                self.delay = amount
            case Trouble.DISTANCE:
                self.distance = amount
            case Trouble.THROTTLE:
                self.rate = amount
            case Trouble.CUT_AFTER:
                self.cut_after, self.order = int(amount), self.order + 1
            case Trouble.CUT | Trouble.ELSEWHERE:
                raise ValueError("a link is cut in both directions, and leads to one place")


class _ResetError(Exception):
    """The connection has had its last byte."""


@dataclass(eq=False)
class Link:
    """A port and its target."""

    target: int
    ways: dict[str, Way] = field(default_factory=lambda: {THERE: Way(), BACK: Way()})
    is_cut: bool = False
    #: Where it leads instead, and how many connections have led there.
    other: int = 0
    led_there: int = 0
    connections: set[tuple[asyncio.StreamWriter, ...]] = field(default_factory=set)

    def change(self, trouble: Trouble, amount: float, ways: tuple[str, ...] = (THERE, BACK)) -> int:
        """Start a disturbance, or end it with 0; return the number of affected connections.

        Those of a link that has led elsewhere are all that led there.
        """
        if trouble is Trouble.ELSEWHERE:
            return self._lead(int(amount))
        if trouble is not Trouble.CUT:
            for way in ways:
                self.ways[way].change(trouble, amount)
            return len(self.connections)
        self.is_cut = bool(amount)
        return self._reset_all() if amount else 0

    def _lead(self, other: int) -> int:
        if other == self.other:
            return 0
        led_there, self.led_there, self.other = self.led_there, 0, other
        were_open = self._reset_all()
        return were_open if other else led_there

    def _reset_all(self) -> int:
        for connection in self.connections:
            for writer in connection:
                reset(writer)
        return len(self.connections)

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Forward a connection until either side has ended it."""
        try:
            if self.is_cut:
                raise _ResetError
            await self.ways[THERE].open.wait()
            target = self.other or self.target
            from_broker, to_broker = await asyncio.open_connection(LOOPBACK, target)
            if target != (self.other or self.target):
                reset(to_broker)
                raise _ResetError
            self.led_there += target == self.other
        except (OSError, _ResetError):
            reset(to_client)
            return
        connection = (to_client, to_broker)
        self.connections.add(connection)
        receiving, sending = set(), set()
        for reader, writer, way in (
            (from_client, to_broker, self.ways[THERE]),
            (from_broker, to_client, self.ways[BACK]),
        ):
            under_way: _UnderWay = asyncio.Queue(_CHUNKS_UNDER_WAY)
            receiving.add(asyncio.ensure_future(_receive(reader, under_way, way)))
            sending.add(asyncio.ensure_future(_send(under_way, writer, way)))
        try:
            done, _ = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
            for writer in connection:
                if any(one.exception() for one in done):
                    reset(writer)
                else:
                    writer.close()
        finally:
            for one in receiving | sending:
                one.cancel()
            await asyncio.gather(*receiving, *sending, return_exceptions=True)
            self.connections.discard(connection)


async def _receive(reader: asyncio.StreamReader, under_way: _UnderWay, way: Way) -> None:
    """Receive until the other side has ended, which is then forwarded too, as empty bytes."""
    while True:
        try:
            data = await reader.read(_CHUNK)
        except OSError:
            data = b""
        await under_way.put((asyncio.get_running_loop().time() + way.delay + way.distance, data))
        if not data:
            return


async def _send(under_way: _UnderWay, writer: asyncio.StreamWriter, way: Way) -> None:
    order, passed = way.order, 0
    while True:
        due, data = await under_way.get()
        if not data:
            return
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        await way.open.wait()
        while data:
            size = max(1, int(way.rate / _SLICES_A_SECOND)) if way.rate else len(data)
            if order != way.order:
                order, passed = way.order, 0
            if way.cut_after:
                size = min(size, way.cut_after - passed)
                if size <= 0:
                    raise _ResetError
            sent, data = data[:size], data[size:]
            writer.write(sent)
            await writer.drain()
            passed += len(sent)
            if way.rate:
                await asyncio.sleep(len(sent) / way.rate)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST, with everything in its buffers."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def listen(link: Link, port: int) -> asyncio.Server:
    """Listen on a port for a link."""
    return await asyncio.start_server(link.serve, LOOPBACK, port)


async def _main(words: list[str]) -> None:
    links: dict[int, Link] = {}
    servers = []
    for word in words:
        port, target = map(int, word.split(":"))
        links[port] = Link(target)
        servers.append(await listen(links[port], port))
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    print(len(servers), flush=True)
    while line := await orders.readline():
        order: dict[str, Any] = json.loads(line)
        fallen = links[order["port"]].change(Trouble(order["trouble"]), order["amount"], tuple(order["ways"]))
        print(fallen, flush=True)
    os._exit(0)  # connections end with it


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
