"""Measure copies over a distance. Needs root on Linux."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path as File

from bench.clusters import Pair, Place
from bench.far.delay import Path
from bench.far.enclosure import inside, run_enclosed
from bench.far.link import FAR, HOSTS, NEAR, Link
from kmirror.errors import RefusedError

TUNED_BROKERS = {"socket.send.buffer.bytes": "-1", "socket.receive.buffer.bytes": "-1"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.far", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    link = parts.add_parser("link", help="hold a link with two clusters up while a command runs")
    link.add_argument("--round-trip", type=float, default=80, metavar="MS")
    link.add_argument("--rate", type=float, default=200, metavar="MB/S", help="(%(default)s)")
    link.add_argument("--lost-one-in", type=int, default=0, metavar="N", help="lose one packet in N (default: none)")
    link.add_argument("--host", choices=HOSTS, default="stock", help="kernel settings (%(default)s)")
    link.add_argument("--brokers", type=int, default=1, help="of each cluster; 0: no clusters (%(default)s)")
    link.add_argument("--tuned", action="store_true", help="brokers whose socket buffers the kernel sizes")
    link.add_argument("--far", choices=("source", "destination"), default="source", help="which cluster is far")
    link.add_argument("command", nargs="+", metavar="-- COMMAND", help="runs near; finds SOURCE and DESTINATION set")
    options = parser.parse_args(arguments)
    try:
        return run_enclosed(lambda folder: _hold(options, folder))
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _hold(options: argparse.Namespace, folder: File) -> int:
    path = Path(options.round_trip, options.rate, options.lost_one_in)
    with Link(path, HOSTS[options.host]) as link:
        environ = {**os.environ, "FAR_FOLDER": str(folder)}
        if not options.brokers:
            return subprocess.run(options.command, env=environ, check=False).returncode
        far, near = Place(FAR, lambda: inside(link.far)), Place(NEAR, nullcontext)
        source, destination = (far, near) if options.far == "source" else (near, far)
        properties = TUNED_BROKERS if options.tuned else {}
        with Pair(folder, options.brokers, source=source, destination=destination, properties=properties) as pair:
            environ |= {"SOURCE": pair.source.bootstrap_servers, "DESTINATION": pair.destination.bootstrap_servers}
            return subprocess.run(options.command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
