"""Measure copies over a distance. Needs root on Linux, for two networks with a link between them that has a delay.

    python -m bench.far                          the most telling cases, about 20 minutes
    python -m bench.far --all                    every case, more than an hour
    python -m bench.far --only 'stock,1p'        cases whose names match one of the patterns; --list shows the names
    python -m bench.far link --round-trip 80 -- COMMAND      hold a link with two clusters up while a command runs

Each case that is complete replaces its row in docs/results/far.json and then the tables of README.md and
docs/distance.md; `--page` writes only the tables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path as File

from bench.far.cases import DESTINATION_FAR, SOURCE_FAR, STOCK, TUNED, Case, every, quick
from bench.far.enclosure import run_enclosed
from bench.far.link import HOSTS, Link
from bench.far.results import store, write_tables
from bench.far.run import CONTENDERS, clusters, measure
from bench.machine import describe_machine
from bench.mirrormaker import mirrormaker_jars
from kmirror.errors import RefusedError

_BEGAN = time.monotonic()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or hold a link; return 0 if everything was carried out."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _link(given[1:]) if given[:1] == ["link"] else _bench(given)
    except RefusedError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 1


def _bench(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.far", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--only", metavar="PATTERN[,PATTERN]", help="of every case those whose names match")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="default: %(default)s")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument("--page", action="store_true", help="only write the tables from the stored results")
    parser.add_argument("--dry", action="store_true", help="print, and store nothing")
    options = parser.parse_args(given)
    cases = every() if options.all or options.only else quick()
    if options.only:
        patterns = options.only.split(",")
        cases = [case for case in cases if any(fnmatchcase(case.key, pattern) for pattern in patterns)]
    if options.page:
        write_tables()
        return 0
    if options.list:
        print("\n".join(case.key for case in cases))
        return 0
    mirrormaker_jars()
    return run_enclosed(lambda folder: _measure(cases, options.contenders.split(","), folder, dry=options.dry))


def _measure(cases: Sequence[Case], contenders: Sequence[str], folder: File, *, dry: bool) -> int:
    failures: list[str] = []
    for number, case in enumerate(cases, 1):
        _say(f"case {number} of {len(cases)}: {case.key}")
        result, version = measure(case, folder / case.key, contenders, failures.append, _say)
        if not dry and set(contenders) == set(CONTENDERS):
            store(asdict(describe_machine(version)), result.stored())
            write_tables()
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _link(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.far link", description="Hold a link up.")
    parser.add_argument("--round-trip", type=int, default=80, metavar="MS")
    parser.add_argument("--lost-one-in", type=int, default=0, metavar="N", help="lose one packet in N (default: none)")
    parser.add_argument("--host", choices=HOSTS, default=STOCK, help="kernel settings (%(default)s)")
    parser.add_argument("--brokers", type=int, default=1, help="of each cluster; 0: no clusters (%(default)s)")
    parser.add_argument("--tuned", action="store_true", help="brokers whose socket buffers the kernel sizes")
    parser.add_argument("--far", choices=(SOURCE_FAR, DESTINATION_FAR), default=SOURCE_FAR, help="default: %(default)s")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="runs near; finds SOURCE and DESTINATION set")
    options = parser.parse_args(given)
    kind = TUNED if options.tuned else STOCK
    case = Case(
        options.round_trip,
        kind,
        options.host,
        brokers=options.brokers,
        far=options.far,
        lost_one_in=options.lost_one_in,
    )
    return run_enclosed(lambda folder: _hold(case, options.command, folder))


def _hold(case: Case, command: Sequence[str], folder: File) -> int:
    environ = {**os.environ, "FAR_FOLDER": str(folder)}
    with Link(case.path, HOSTS[case.host]) as link:
        if not case.brokers:
            return subprocess.run(command, env=environ, check=False).returncode
        with clusters(link, case, folder) as pair:
            environ |= {"SOURCE": pair.source.bootstrap_servers, "DESTINATION": pair.destination.bootstrap_servers}
            return subprocess.run(command, env=environ, check=False).returncode


def _say(line: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - _BEGAN), 60)
    print(f"{minutes:3d}:{seconds:02d}  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
