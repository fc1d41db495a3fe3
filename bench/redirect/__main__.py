"""Move real clients between clusters: `python -m bench.redirect`, or one scenario, `--only killed --clients java-4.4`.

For each client it measures how long it neither wrote nor read, and compares what was acknowledged with the log that
counts at the end, read by Kafka's console consumer and by librdkafka. Results go to docs/results/redirect.json, and
the tables of docs/apps/evicting-clients.md are generated from them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.machine import describe_machine
from bench.redirect.clients import KINDS, Kind
from bench.redirect.results import store, write_page
from bench.redirect.scenarios import SCENARIOS, run
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Move the clients, print and store what came of it; return 1 if a planned move lost or doubled a record."""
    parser = argparse.ArgumentParser(prog="python -m bench.redirect", description="Moves of real clients.")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this scenario; may be repeated")
    parser.add_argument(
        "--clients",
        choices=[kind.key for kind in KINDS],
        action="append",
        help="only this client, and store nothing; may be repeated",
    )
    parser.add_argument("--brokers", type=int, default=1, help="of each cluster (%(default)s)")
    parser.add_argument("--page", action="store_true", help="only write the docs' tables from the stored results")
    options = parser.parse_args(arguments)
    if options.page:
        write_page()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started ends too
    kinds = [kind for kind in KINDS if kind.key in (options.clients or [one.key for one in KINDS])]
    able, left_out = _able(kinds)
    is_wrong = False
    for name in options.only or SCENARIOS:
        machine = asdict(describe_machine(DEFAULT_KAFKA_VERSION))
        with tempfile.TemporaryDirectory(prefix="kmirror-redirect-") as folder:
            for scenario, outcomes in run(
                name, [kind for kind in able if kind.is_in(name)], Path(folder), options.brokers
            ):
                for row in outcomes:
                    print(json.dumps({"scenario": scenario, **asdict(row)}), flush=True)
                if options.clients is None:
                    store(scenario, machine, left_out, outcomes)
                    write_page()
                is_wrong |= scenario not in {"killed", "frozen", "impatient"} and any(
                    row.lost or row.doubled or row.misplaced for row in outcomes
                )
    return int(is_wrong)


def _able(kinds: Sequence[Kind]) -> tuple[list[Kind], dict[str, str]]:
    """Return the clients that can run here, and why the others cannot."""
    able, left_out = [], {}
    with tempfile.TemporaryDirectory(prefix="kmirror-redirect-") as folder:
        for kind in kinds:
            try:
                kind.command(Path(folder) / kind.key)
                able.append(kind)
            except LookupError as error:
                left_out[kind.key] = str(error)
                print(f"{kind.title} is left out: {error}", file=sys.stderr)
    return able, left_out


if __name__ == "__main__":
    sys.exit(main())
