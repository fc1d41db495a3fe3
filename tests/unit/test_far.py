"""The link with a delay, and the tables of what was measured over it; none of it needs root."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.far.cases import Case, every, quick
from bench.far.delay import DelayLine, argv, packets_in, without
from bench.far.delay import Path as LinkPath
from bench.far.enclosure import read_setting, refuse_unless_possible
from bench.far.results import BEGIN, END, PAGE, README, RESULTS, merged, page_tables, readme_table
from bench.processes import REPOSITORY
from kmirror.errors import RefusedError

_OFFLOAD = struct.Struct("<BBHHHH")
_TCP_OVER_IPV4 = 1
_HEADERS = 40
_DROP_FROM_BOUNDING_SET, _CAP_NET_ADMIN = 24, 12
#: Drop a capability that a user without root rights does not have anyway, then be the bench.
_WITHOUT_RIGHTS = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_DROP_FROM_BOUNDING_SET}, {_CAP_NET_ADMIN}, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "bench.far", "link", "--brokers", "0", "--", "echo", "ran"])
"""


def can_make_links() -> bool:
    """Return whether this process may make networks and devices."""
    try:
        refuse_unless_possible()
    except RefusedError:
        return False
    return True


def segments(payload: bytes, size: int) -> bytes:
    """Return data as a device hands it over: TCP over IPv4 for a card that cuts it into packets of `size` bytes."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, _HEADERS + len(payload), 7, 0, 64, 6, 0, bytes(4), bytes(4))
    tcp = struct.pack(">HHIIBBHHH", 9092, 40_000, 1_000, 0, 0x50, 0x10, 0xFFFF, 0, 0)
    return _OFFLOAD.pack(1, _TCP_OVER_IPV4, _HEADERS, size, 20, 16) + ip + tcp + payload


def received(pieces: list[bytes]) -> dict[int, bytes]:
    """Return the bytes of each piece by their sequence number, once its headers agree with it."""
    found = {}
    for piece in pieces:
        packet = piece[_OFFLOAD.size :]
        length, number = struct.unpack_from(">HH", packet, 2)
        total = sum(struct.unpack(">10H", packet[:20]))
        assert length == len(packet)
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF, "the checksum of the IP header"
        (sequence,) = struct.unpack_from(">I", packet, 24)
        assert number == 7 + (sequence - 1_000)
        found[sequence - 1_000] = packet[_HEADERS:]
    return found


def test_a_packet_arrives_after_its_transmission_and_half_a_round_trip() -> None:
    line = DelayLine(LinkPath(80, megabytes_per_second=1), 0)
    assert line.arrival(10.0, 1_000) == pytest.approx(10.041)
    assert line.arrival(10.0, 2_000) == pytest.approx(10.043), "the one before it is sent first"
    assert line.arrival(20.0, 1_000) == pytest.approx(20.041), "the line was free meanwhile"


def test_packets_that_the_queue_cannot_hold_are_dropped() -> None:
    line = DelayLine(LinkPath(2, megabytes_per_second=1), 0)
    arrivals = [line.arrival(0.0, 10_000) for _ in range(20)]
    assert arrivals[:10] == pytest.approx([0.011 + 0.01 * number for number in range(10)])
    assert arrivals[12:] == [None] * 8
    assert line.arrival(1.0, 10_000) == pytest.approx(1.011), "the queue is empty again"


def lost(path: LinkPath, direction: int, sizes: list[int]) -> list[int]:
    """Return the numbers of the packets that are lost, of packets that come in groups of these sizes."""
    line, first, found = DelayLine(path, direction), 0, []
    for size in sizes:
        found += [first + index for index in line.lost(size)]
        first += size
    return found


def test_losses_depend_on_the_seed_alone() -> None:
    path = LinkPath(80, lost_one_in=1000)
    one_by_one = lost(path, 0, [1] * 200_000)
    assert one_by_one == lost(path, 0, [50] * 4_000)
    assert one_by_one != lost(path, 1, [50] * 4_000)
    assert one_by_one != lost(LinkPath(80, lost_one_in=1000, seed=2), 0, [50] * 4_000)
    assert 150 <= len(one_by_one) <= 250
    assert lost(LinkPath(80), 0, [50] * 4_000) == []


@pytest.mark.parametrize("gone", [[0], [1], [3], [0, 1], [0, 2], [1, 2], [0, 1, 2, 3]])
def test_what_is_left_of_segments_is_what_was_not_lost(gone: list[int]) -> None:
    payload = bytes(range(250)) * 14
    data = segments(payload, 1_000)
    assert packets_in(data) == 4
    bounds = [*range(0, len(payload), 1_000), len(payload)]
    kept = {
        position: payload[first:last][position - first]
        for number, (first, last) in enumerate(pairwise(bounds))
        if number not in gone
        for position in range(first, last)
    }
    pieces = without(data, gone)
    left = {at + index: byte for at, part in received(pieces).items() for index, byte in enumerate(part)}
    assert left == kept
    assert sum(map(packets_in, pieces)) == 4 - len(gone)


def test_a_single_packet_is_lost_as_a_whole() -> None:
    single = _OFFLOAD.pack(0, 0, 0, 0, 0, 0) + b"\x45" + bytes(60)
    assert packets_in(single) == 1
    assert without(single, [0]) == []


def test_each_direction_of_a_link_carries_packets_in_their_order() -> None:
    """Sockets that keep message boundaries are to the forwarder what devices are."""
    near, far = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    ends = near[1].fileno(), far[1].fileno()
    packets = [_OFFLOAD.pack(0, 0, 0, 0, 0, 0) + b"packet %d" % number for number in range(100)]
    path = LinkPath(20)
    processes = [
        subprocess.Popen(argv(path, *pair, direction), cwd=REPOSITORY, pass_fds=ends)
        for direction, pair in enumerate((ends, ends[::-1]))
    ]
    try:
        for sender, receiver in ((near[0], far[0]), (far[0], near[0])):
            receiver.settimeout(60)
            for packet in packets:
                sender.send(packet)
            assert [receiver.recv(1_000) for _ in packets] == packets
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for end in (*near, *far):
            end.close()


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_without_rights_it_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_RIGHTS], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "CAP_NET_ADMIN" in done.stderr
    assert "hint: run `sudo" in done.stderr
    assert not done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not can_make_links(), reason="needs root's capabilities, /dev/net/tun and iproute2")
def test_a_killed_run_leaves_nothing() -> None:
    """A command in it has started once it has said where its folder is."""
    command = ("sh", "-c", "cat /proc/self/net/dev; echo $FAR_FOLDER; exec sleep 600")
    arguments = ("link", "--brokers", "0", "--host", "large", "--round-trip", "2", "--", *command)
    before = read_setting("net.core.rmem_max")
    running = subprocess.Popen(
        [sys.executable, "-m", "bench.far", *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    devices, folder = "", Path()
    for line in running.stdout:
        devices += line
        if line.startswith("/"):
            folder = Path(line.strip())
            break
    if "another link" in devices:
        running.wait()
        running.stdout.close()
        pytest.skip("a bench on this machine has a link up")
    assert "distance:" in devices
    assert folder.is_dir()
    running.kill()
    running.wait()
    # what is in the enclosure, and the keeper last of all, have the other end of this pipe
    assert running.stdout.read() == ""
    running.stdout.close()
    assert not folder.exists()
    assert read_setting("net.core.rmem_max") == before


def test_the_names_of_cases_are_theirs_alone() -> None:
    keys = [case.key for case in every()]
    assert len(keys) == len(set(keys))
    assert set(quick()) < set(every())


def test_a_row_replaces_the_one_of_the_same_case() -> None:
    quick_keys = [case.key for case in quick()]
    stored = {
        "machine": {"cores": 1, "cpu": "old"},
        "rows": [{"key": quick_keys[1], "n": 1}, {"key": quick_keys[2], "n": 2}],
    }
    again = merged(stored, {"cores": 2, "cpu": "new"}, {"key": quick_keys[1], "n": 3})
    assert again == {
        "machine": {"cores": 2, "cpu": "new"},
        "rows": [{"key": quick_keys[1], "n": 3, "cpu": "new"}, {"key": quick_keys[2], "n": 2}],
    }
    first = merged(again, {"cores": 2, "cpu": "new"}, {"key": quick_keys[0]})
    assert [row["key"] for row in first["rows"]] == quick_keys[:3]


def row(case: Case, rates: dict[str, float], raw: dict[str, float]) -> dict[str, object]:
    """Return a row as it is stored."""
    copies = {tool: {"megabytes_per_second": rate} for tool, rate in rates.items()}
    stored = {name: getattr(case, name) for name in case.__dataclass_fields__}
    return {
        "key": case.key,
        "case": stored,
        "measured_at": "2026-01-02",
        "copies": copies,
        "raw": raw,
        "latencies": {},
    }


def test_a_table_shows_the_ratio_and_what_is_missing() -> None:
    rows = [
        row(Case(), {"kmirror": 60.4, "mirrormaker": 6.04}, {"1": 2.51, "8": 18.0, "32": 74.2, "64": 106.0}),
        row(Case(partitions=1), {"kmirror": 3.0}, {}),
        row(Case(brokers=3), {"kmirror": 1.0}, {}),
    ]
    assert readme_table({"rows": rows}).splitlines()[2:] == [
        "| stock | stock | 8 | 60 MB/s | 6.0 MB/s | 10.0 × | 2.5 / 18 / 74 / 106 |",
        "| stock | stock | 1 | 3.0 MB/s | – | – | – |",
    ]


def test_the_pages_say_what_was_measured() -> None:
    """`python -m bench.far --page` writes them."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert BEGIN + page_tables(results) + END in PAGE.read_text(encoding="utf-8")
    assert BEGIN + readme_table(results) + END in README.read_text(encoding="utf-8")
