"""A link with a delay between two networks: `near` is the enclosure's own, `far` another one."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as File
from types import TracebackType
from typing import Self

from bench.far.delay import Path, argv
from bench.far.enclosure import (
    allow_congestion_control,
    inside,
    make_namespace,
    read_machine_setting,
    run,
    write_machine_setting,
    write_setting,
)
from bench.measure import CopyFailedError
from bench.processes import REPOSITORY

NEAR, FAR = "10.77.0.1", "10.77.0.2"
_PREFIX = "/24"
_CONGESTION_CONTROL = "cubic"
_DEVICE = "distance"
_MTU = "1500"
#: Packets wait in the sender's host until its network card has sent them: TCP counts on that, or a large write exceeds
#: its send buffer many times.
_CARD = ("rate", "2gbit", "burst", "66k", "limit", "64m")
_QUEUED_PACKETS = "20000"
# <linux/if_tun.h>
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02


@dataclass(frozen=True, slots=True)
class Host:
    """Settings of the hosts on both sides: of the machine, and of each network."""

    key: str
    title: str
    machine: Mapping[str, str]
    network: Mapping[str, str]


def _host(key: str, title: str, buffer_max: int, receive: str) -> Host:
    return Host(
        key,
        title,
        {"net.core.rmem_max": str(buffer_max), "net.core.wmem_max": str(buffer_max)},
        {
            "net.ipv4.tcp_rmem": f"4096 131072 {receive}",
            "net.ipv4.tcp_wmem": "4096 16384 4194304",
            "net.ipv4.tcp_congestion_control": _CONGESTION_CONTROL,
        },
    )


#: As Linux shipped until 6.15; and with what later ones ship.
STOCK_HOST = _host("stock", "rmem_max 212992", 212_992, "6291456")
LARGE_HOST = _host("large", "rmem_max 4 MB", 4 << 20, "33554432")
HOSTS = {host.key: host for host in (STOCK_HOST, LARGE_HOST)}


class Link:
    """A link: `with Link(path, host) as link`, once in an enclosure. `far` is the network at its other end."""

    def __init__(self, path: Path, host: Host = LARGE_HOST) -> None:
        self._path = path
        self._host = host
        self.far = File("/run/netns/far")
        self._devices: list[int] = []
        self._forwarders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        if not self.far.exists():
            make_namespace(self.far.name)
        allow_congestion_control(_CONGESTION_CONTROL)
        for name, value in self._host.machine.items():
            write_machine_setting(name, value)
        self._devices.append(self._end(NEAR))
        with inside(self.far):
            self._devices.append(self._end(FAR))
        for direction, ends in enumerate((self._devices, self._devices[::-1])):
            command = argv(self._path, ends[0], ends[1], direction)
            self._forwarders.append(subprocess.Popen(command, cwd=REPOSITORY, pass_fds=ends))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._forwarders:
            process.kill()
            process.wait()
        for device in self._devices:
            os.close(device)

    def check(self) -> None:
        """Raise CopyFailedError if something has changed the machine's settings, or a forwarder has ended."""
        for name, value in self._host.machine.items():
            if (now := read_machine_setting(name)) != value:
                raise CopyFailedError(f"another program has set {name} to {now}")
        if any(process.poll() is not None for process in self._forwarders):
            raise CopyFailedError("the link is down")

    def _end(self, address: str) -> int:
        """Make a device in the network that this thread is in, and set that network up."""
        for name, value in self._host.network.items():
            write_setting(name, value)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        request = struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(device, _TUNSETIFF, request)
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
        run("ip", "address", "add", address + _PREFIX, "dev", _DEVICE)
        run("ip", "link", "set", "dev", _DEVICE, "mtu", _MTU, "txqueuelen", _QUEUED_PACKETS, "up")
        run("tc", "qdisc", "replace", "dev", _DEVICE, "root", "tbf", *_CARD)
        return device
