"""Run the bench: `make bench`, or `python -m bench --megabytes 100 --rounds 1 --only 16k,kmirror` for a quick try.

`--only logs` measures logs that are not plain batches: holes, a log start above 0, transactions; once each, smaller
with fewer megabytes.

JVMs compile hot code, so everything that a contender makes the brokers do is warmed up first with small batches, of
which a second holds as many as a minute of large ones. Then the source is filled once with each data set, and every
contender copies it: once to warm up, and then once per round in changing order, each time into a new topic. The median
counts. A full run writes docs/results/bench.json and from it README.md's table; `--readme` writes only the table.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.clusters import Pair
from bench.contenders import (
    Ceiling,
    CeilingApart,
    Contender,
    Kmirror,
    KmirrorApart,
    Load,
    prepare_senders,
    start_senders,
)
from bench.cores import cores_apart
from bench.data import DATA_SETS, WARM_UP, Amount, DataSet
from bench.latency import Latency, measure_latency
from bench.logs import LOG_PARTS, Logs, measure_logs
from bench.machine import describe_machine
from bench.measure import Copy, CopyFailedError, ProcessTree, watch
from bench.mirrormaker import MirrorMaker, mirrormaker_jars
from bench.processes import REPOSITORY, Running, kmirror
from bench.readme import write_table
from bench.report import CEILING_BUDGETS, Results, report_lines

ROUNDS = 3
MEGABYTES = 1000
HELP_RUNS = 9
_BEGAN = time.monotonic()
#: How often a contender copies small batches before anything else.
_LITTLE_WARM_UPS = 2
#: How often a contender copies a data set before it is measured: at least, and at most.
_LEAST_WARM_UPS = 6
_MOST_WARM_UPS = 12
CONTENDERS = (Kmirror, MirrorMaker, Ceiling, KmirrorApart, CeilingApart)
_PARTS = (*DATA_SETS, *(contender.key for contender in CONTENDERS), "throughput", "latency", "logs", *LOG_PARTS)
_LOGS = {"logs", *LOG_PARTS}
_NO_THROUGHPUT = {"latency", *_LOGS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and store; return 0 if every budget is kept."""
    options = _options(arguments)
    if options.readme:
        write_table()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers end too
    only: set[str] = options.only or set(_PARTS) - _LOGS
    data_sets = [one for key, one in DATA_SETS.items() if key in only] or list(DATA_SETS.values())
    wanted = [one for one in CONTENDERS if one.key in only] or list(CONTENDERS)
    # `--only latency,kmirror` asks for no throughput; `--only latency,16k` does.
    throughput = not only & _NO_THROUGHPUT or bool(only - _NO_THROUGHPUT - {one.key for one in CONTENDERS})
    whole = options.only in (None, {"logs"}) and options.rounds >= ROUNDS and options.megabytes >= MEGABYTES
    output: Path | None = options.output or (REPOSITORY / "docs" / "results" if whole else None)
    help_seconds = [] if only <= _LOGS else _time_help()
    if MirrorMaker in wanted and not only <= _LOGS:
        mirrormaker_jars()
    copies: list[Copy] = []
    latencies: list[Latency] = []
    logs = Logs()
    failure: CopyFailedError | None = None
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        folder = Path(name)
        contenders = [one(pair, folder) for one in wanted]
        machine = describe_machine(pair.destination.sandbox.kafka_version)
        print(machine.title, flush=True)
        try:
            if throughput:
                _warm_up_brokers(pair, folder, contenders, options.megabytes)
                for number, data_set in enumerate(data_sets, 1):
                    _say(f"data set {number} of {len(data_sets)}")
                    some = [one for one in contenders if not one.apart or data_set.key in CEILING_BUDGETS]
                    _compare(pair, folder, some, data_set, options.megabytes, options.rounds, copies)
            if "latency" in only:
                for contender in contenders:
                    if not isinstance(contender, (Ceiling, KmirrorApart)):
                        _say(f"latency  {contender.title}")
                        latencies.append(measure_latency(pair, contender))
            for part in LOG_PARTS:
                if only & {"logs", part}:
                    _say(part)
                    measure_logs(part, pair, folder, min(1.0, options.megabytes / MEGABYTES), logs)
        except CopyFailedError as error:
            failure = error
    results = Results(machine, options.rounds, options.megabytes, help_seconds, copies, latencies, logs)
    for line in report_lines(results):
        print(line)
    if failure is not None:
        print(f"Incomplete: a copy failed. {failure}", file=sys.stderr)
        return 1
    if output is not None:
        stem = "logs" if only <= _LOGS else "bench"
        output.mkdir(parents=True, exist_ok=True)
        (output / f"{stem}.json").write_text(results.to_json(), encoding="utf-8")
        if results.copies:
            from bench.chart import draw

            draw(results, output / f"{stem}.png")
        if stem == "bench" and options.output is None:
            write_table()
        print(f"Written: {stem}.* in {output}")
    return 0 if all(budget.kept for budget in results.budgets()) else 1


def _compare(
    pair: Pair,
    folder: Path,
    contenders: Sequence[Contender],
    data_set: DataSet,
    megabytes: int,
    rounds: int,
    copies: list[Copy],
) -> None:
    """Fill the source with a data set and let every contender copy it: to warm up, and then once per round."""
    load = filled(pair, folder, data_set, megabytes)
    for contender in _to_warm_up(contenders):
        _measure(pair, contender, load, "warm-up")
    for number in range(1, rounds + 1):
        turn = number % len(contenders)
        what, in_turn = f"round {number} of {rounds}", (*contenders[turn:], *contenders[:turn])
        copies.extend(_measure(pair, contender, load, what, number) for contender in in_turn)
    pair.source.delete_topics({load.topic})


def filled(pair: Pair, folder: Path, data_set: DataSet, megabytes: int) -> Load:
    """Fill a topic of the source with a data set."""
    amount = Amount.of(data_set, megabytes)
    load = Load(f"bench-{data_set.key}", data_set, amount, time.time_ns() // 1_000_000)
    _say(f"{data_set.title}: {amount.stored_bytes / 1e6:,.0f} MB in {8 * amount.batches:,} batches")
    pair.source.create_topic(load.topic)
    senders = prepare_senders(pair.source, load, folder)
    start_senders(senders)
    for process in senders.processes:
        process.wait()
    senders.end()
    assert pair.source.log_end(load.topic) == amount.records
    return load


def _warm_up_brokers(pair: Pair, folder: Path, contenders: Sequence[Contender], megabytes: int) -> None:
    """Warm up what each contender makes the brokers do."""
    load = filled(pair, folder, WARM_UP, megabytes)
    for contender in _to_warm_up(contenders):
        for _ in range(_LITTLE_WARM_UPS):
            _measure(pair, contender, load, "warm-up")
    pair.source.delete_topics({load.topic})


def _to_warm_up(contenders: Sequence[Contender]) -> Sequence[Contender]:
    """Return one contender of each kind: brokers do the same work on whichever cores."""
    return [contender for contender in contenders if not contender.apart] or contenders


def _measure(pair: Pair, contender: Contender, load: Load, what: str, number: int = 0) -> Copy:
    copy = _copy(pair, contender, load, number)
    _say(
        f"  {what}  {contender.title:<18}{copy.megabytes_per_second:7.1f} MB/s"
        f"  {copy.cpu_seconds_per_gigabyte:6.2f} CPU-s/GB  first byte after {copy.first_byte_seconds:.2f} s"
    )
    return copy


def _copy(pair: Pair, contender: Contender, load: Load, number: int) -> Copy:
    with cores_apart(pair) if contender.apart else contextlib.nullcontext():
        return _watched_copy(pair, contender, load, number)


def _watched_copy(pair: Pair, contender: Contender, load: Load, number: int) -> Copy:
    contender.prepare(load)
    os.sync()
    running: Running | None = None
    try:
        started_at = time.monotonic()
        running = contender.start()
        tree = ProcessTree([process.pid for process in running.processes], beside=pair.pids)
        seen = watch(lambda: pair.destination.log_end(load.topic), load.amount.records, tree, started_at, running.check)
        running.end()
    finally:
        if running is not None:
            running.kill()
    contender.clean_up()
    return seen.copy(contender.key, load.data_set.key, number, load.amount.stored_bytes)


def _time_help() -> list[float]:
    """Time `kmirror --help`, in seconds; the first run only fills the disk cache."""
    times = []
    for _ in range(HELP_RUNS + 1):
        before = time.perf_counter()
        subprocess.run(kmirror("--help"), cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - before)
    _say(f"kmirror --help: {statistics.median(times[1:]) * 1000:.0f} ms")
    return times[1:]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="How fast kmirror copies.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each contender copies (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of each data set, stored (%(default)s)")
    parser.add_argument(
        "--only", type=_parts, default=None, metavar="PART[,PART]", help=f"measure only some of {', '.join(_PARTS)}"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="write the results here (default: docs/results for a full run, else nowhere)",
    )
    parser.add_argument("--readme", action="store_true", help="only write README.md's table from the stored results")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.megabytes < 1:
        parser.error("--rounds and --megabytes are at least 1")
    return options


def _parts(text: str) -> set[str]:
    parts = set(text.split(","))
    if unknown := parts - set(_PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is none of {', '.join(_PARTS)}")
    return parts


def _say(line: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - _BEGAN), 60)
    print(f"{minutes:3d}:{seconds:02d}  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
