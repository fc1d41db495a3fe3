"""The campaign's proxy does to connections what it is asked, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from campaign.proxy import BACK, LOOPBACK, THERE, Link, Trouble, listen

_SOON_S = 5.0
_NEVER_S = 0.05

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def _linked() -> AsyncIterator[tuple[Link, Connect]]:
    """Give a link to a server that says what it hears, and what connects over it."""
    server = await asyncio.start_server(_echo, LOOPBACK, 0)
    link = Link(server.sockets[0].getsockname()[1])
    front = await listen(link, 0)
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(await asyncio.open_connection(LOOPBACK, front.sockets[0].getsockname()[1]))
        return clients[-1]

    try:
        yield link, connect
    finally:
        for _, writer in clients:
            writer.transport.abort()
        front.close()
        server.close()
        while link.connections:
            await asyncio.sleep(0)


async def _said(client: Client, data: bytes) -> bytes:
    client[1].write(data)
    return await asyncio.wait_for(client[0].readexactly(len(data)), _SOON_S)


async def _is_silent(client: Client) -> bool:
    try:
        await asyncio.wait_for(client[0].readexactly(1), _NEVER_S)
    except TimeoutError:
        return True
    return False


def _run(scene: Callable[[Link, Connect], Awaitable[None]]) -> None:
    async def run() -> None:
        async with _linked() as (link, connect):
            await scene(link, connect)

    asyncio.run(run())


def test_what_is_not_spoiled_passes() -> None:
    async def scene(link: Link, connect: Connect) -> None:
        data = bytes(range(256)) * 10_000
        assert await _said(await connect(), data) == data
        assert len(link.connections) == 1

    _run(scene)


def test_a_cut_link_resets_connections_old_and_new() -> None:
    async def scene(link: Link, connect: Connect) -> None:
        client = await connect()
        await _said(client, b"x")
        assert link.change(Trouble.CUT, 1) == 1
        with pytest.raises(ConnectionResetError):
            await client[0].readexactly(1)
        with pytest.raises(ConnectionResetError):
            await (await connect())[0].readexactly(1)
        link.change(Trouble.CUT, 0)
        assert await _said(await connect(), b"again") == b"again"

    _run(scene)


@pytest.mark.parametrize("ways", [(THERE,), (BACK,), (THERE, BACK)])
def test_in_a_hole_nothing_passes_and_all_comes_when_it_is_closed(ways: tuple[str, ...]) -> None:
    async def scene(link: Link, connect: Connect) -> None:
        client = await connect()
        await _said(client, b"x")
        link.change(Trouble.HOLE, 1, ways)
        client[1].write(b"held")
        assert await _is_silent(client)
        late = await connect()
        late[1].write(b"late")
        assert await _is_silent(late)
        link.change(Trouble.HOLE, 0, ways)
        assert await asyncio.wait_for(client[0].readexactly(4), _SOON_S) == b"held"
        assert await asyncio.wait_for(late[0].readexactly(4), _SOON_S) == b"late"

    _run(scene)


def test_delay_and_throttle_take_their_time() -> None:
    async def scene(link: Link, connect: Connect) -> None:
        client, clock = await connect(), asyncio.get_running_loop()
        link.change(Trouble.DELAY, 0.05)
        began = clock.time()
        await _said(client, b"x" * 10)
        assert clock.time() - began >= 0.1
        link.change(Trouble.DELAY, 0)
        link.change(Trouble.THROTTLE, 10_000, (BACK,))
        began = clock.time()
        await _said(client, b"x" * 1_000)
        assert clock.time() - began >= 0.05

    _run(scene)


def test_a_connection_is_cut_in_the_middle_after_so_many_bytes() -> None:
    async def scene(link: Link, connect: Connect) -> None:
        client = await connect()
        await _said(client, b"before")
        link.change(Trouble.CUT_AFTER, 3, (BACK,))
        for one in (client, await connect()):
            one[1].write(b"abcdef")
            assert await asyncio.wait_for(one[0].readexactly(3), _SOON_S) == b"abc"
            with pytest.raises(ConnectionResetError):
                await one[0].readexactly(1)
        link.change(Trouble.CUT_AFTER, 0, (BACK,))
        assert await _said(await connect(), b"abcdef") == b"abcdef"

    _run(scene)


def test_a_link_leads_elsewhere_for_a_while_and_counts_who_came() -> None:
    async def scene(link: Link, connect: Connect) -> None:
        async def say_other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"other")
            await writer.drain()

        other = await asyncio.start_server(say_other, LOOPBACK, 0)
        client = await connect()
        await _said(client, b"x")
        assert link.change(Trouble.ELSEWHERE, other.sockets[0].getsockname()[1]) == 1
        with pytest.raises(ConnectionResetError):
            await client[0].readexactly(1)
        there = [await connect() for _ in range(2)]
        for one in there:
            assert await asyncio.wait_for(one[0].readexactly(5), _SOON_S) == b"other"
        assert link.change(Trouble.ELSEWHERE, 0) == 2
        for one in there:
            with pytest.raises(ConnectionResetError):
                await one[0].readexactly(1)
        back = await connect()
        assert await _said(back, b"again") == b"again"
        assert link.change(Trouble.ELSEWHERE, 0) == 0
        assert await _said(back, b"still") == b"still"
        other.close()

    _run(scene)


def test_a_client_that_hangs_up_is_hung_up_on_at_the_broker() -> None:
    async def scene(link: Link, connect: Connect) -> None:
        client = await connect()
        await _said(client, b"x")
        client[1].close()
        async with asyncio.timeout(_SOON_S):
            while link.connections:
                await asyncio.sleep(0)

    _run(scene)
