"""Evaluate the results: medians, ratios, and whether the budgets are kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from bench.data import DATA_SETS, DataSet
from bench.latency import Latency
from bench.logs import Logs
from bench.machine import Machine
from bench.measure import DESTINATION, DRIVER, JVM, LANES, SOURCE, Copy

#: By data set: relative to the destination's ceiling, and to MirrorMaker 2; the requirement and the aim.
CEILING_BUDGETS = {"256k": (0.85, 0.95), "16k": (0.7, 0.85), "16k-lz4": (0.7, 0.85)}
_MIRRORMAKER = {
    "256k": (2.5, 3.0),
    "16k": (1.7, 2.0),
    "16k-lz4": (1.7, 2.0),
    "2k": (2.0, None),
    "2k-lz4": (1.5, None),
    "1-record": (2.0, None),
    "100b": (1.5, None),
}
_CPU_OF_MIRRORMAKER = 1 / 6
#: For batches so small that they are merged.
_CPU_OF_MIRRORMAKER_WHEN_SMALL = 1 / 3
_CPU_AIM = {"256k": 0.9, "16k": 2.0, "16k-lz4": 2.0}
_FIRST_BYTE_S = (5.0, 4.0)
_HELP_S = 0.150
_MEMORY_AIM = 900e6
#: Filled offsets a second: of one partition alone, and of each if all have a hole.
_FILLED_PER_SECOND = 10_000.0
_LOG_START_S = 30.0
#: A copy that keeps up is complete this soon after the writer stopped.
_TRANSACTIONS_LAG_S = 1.0
_LATENCY_AIM_MS = {"p50": 5.0, "p99": 25.0}

PROCESSES = (SOURCE, DESTINATION, LANES, DRIVER, JVM)
TITLES = {
    "kmirror": "kmirror",
    "mirrormaker": "MirrorMaker 2, tuned",
    "ceiling": "destination alone",
    "kmirror-apart": "kmirror, apart",
    "ceiling-apart": "destination, apart",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """One requirement. `must` is None if there is only an aim; `at_least` says which side is good."""

    what: str
    value: float
    unit: str
    must: float | None
    aim: float | None
    at_least: bool = False

    @property
    def kept(self) -> bool:
        """True unless the requirement is missed."""
        return self.must is None or self._reaches(self.must)

    def line(self) -> str:
        """Return it as a line: `ok`, `not ok`, or `aim` if it is only an aim."""
        sign = "≥" if self.at_least else "≤"
        verdict = ("aim   " if self._reaches(self.aim or 0) else "no aim") if self.must is None else ""
        verdict = verdict or ("ok    " if self.kept else "not ok")
        limits = [] if self.must is None else [f"must be {sign} {self.must:.3g}{self.unit}"]
        if self.aim is not None:
            limits.append(f"aim {sign} {self.aim:.3g}{self.unit}, {'' if self._reaches(self.aim) else 'not '}reached")
        return f"{verdict}  {self.what}: {self.value:.3g}{self.unit} ({'; '.join(limits)})"

    def _reaches(self, limit: float) -> bool:
        return self.value >= limit if self.at_least else self.value <= limit


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that was measured."""

    machine: Machine
    rounds: int
    megabytes: int
    help_seconds: list[float]
    copies: list[Copy]
    latencies: list[Latency]
    logs: Logs

    @property
    def data_sets(self) -> list[DataSet]:
        """Return the data sets that were copied."""
        return [one for one in DATA_SETS.values() if any(copy.data_set == one.key for copy in self.copies)]

    def values(self, data_set: str, contender: str, number: Callable[[Copy], float]) -> list[float]:
        """Return one number of every round."""
        return [number(copy) for copy in self.copies if (copy.data_set, copy.contender) == (data_set, contender)]

    def median(self, data_set: str, contender: str, number: Callable[[Copy], float]) -> float | None:
        """Return the median of one number, None where it was not measured."""
        values = self.values(data_set, contender, number)
        return statistics.median(values) if values else None

    def budgets(self) -> list[Budget]:
        """Return the verdicts on the budgets for which there are numbers."""
        return [*self._copy_budgets(), *self._start_budgets(), *self._latency_budgets(), *self._log_budgets()]

    def to_json(self) -> str:
        """Return all raw numbers and verdicts as a JSON document."""
        document = asdict(self) | {"budgets": [asdict(one) | {"kept": one.kept} for one in self.budgets()]}
        return json.dumps(document, indent=1) + "\n"

    def _copy_budgets(self) -> Iterator[Budget]:
        for data_set in self.data_sets:
            key, title = data_set.key, data_set.title
            ours = self.median(key, "kmirror", throughput)
            apart = self.median(key, "kmirror-apart", throughput)
            ceiling = self.median(key, "ceiling-apart", throughput)
            theirs = self.median(key, "mirrormaker", throughput)
            our_cpu, their_cpu = self.median(key, "kmirror", cpu), self.median(key, "mirrormaker", cpu)
            if apart and ceiling and key in CEILING_BUDGETS:
                yield Budget(f"{title}: throughput relative to the destination's ceiling", apart / ceiling, "",
                             *CEILING_BUDGETS[key], at_least=True)  # fmt: skip
            if ours and theirs:
                yield Budget(f"{title}: throughput relative to MirrorMaker 2", ours / theirs, " ×",
                             *_MIRRORMAKER[key], at_least=True)  # fmt: skip
            if our_cpu and their_cpu:
                limit = _CPU_OF_MIRRORMAKER if key in _CPU_AIM else _CPU_OF_MIRRORMAKER_WHEN_SMALL
                yield Budget(f"{title}: CPU relative to MirrorMaker 2", our_cpu / their_cpu, " ×", limit, None)
            if our_cpu and key in _CPU_AIM:
                yield Budget(f"{title}: CPU for a GB", our_cpu, " s", None, _CPU_AIM[key])
            if memory := self.values(key, "kmirror", peak_memory):
                yield Budget(f"{title}: peak memory", max(memory) / 1e6, " MB", None, _MEMORY_AIM / 1e6)

    def _start_budgets(self) -> Iterator[Budget]:
        first = [copy.first_byte_seconds for copy in self.copies if copy.contender == "kmirror"]
        if first:
            yield Budget("first byte after `kmirror run`", statistics.median(first), " s", *_FIRST_BYTE_S)
        if self.help_seconds:
            yield Budget("`kmirror --help`", statistics.median(self.help_seconds) * 1000, " ms", _HELP_S * 1000, None)

    def _latency_budgets(self) -> Iterator[Budget]:
        for latency in self.latencies:
            if latency.contender == "kmirror":
                yield Budget("added latency, p50", latency.added_ms.p50, " ms", None, _LATENCY_AIM_MS["p50"])
                yield Budget("added latency, p99", latency.added_ms.p99, " ms", None, _LATENCY_AIM_MS["p99"])

    def _log_budgets(self) -> Iterator[Budget]:
        for filling in self.logs.holes:
            if filling.partitions == 1:
                yield Budget("filled offsets a second", filling.offsets_per_second, "", _FILLED_PER_SECOND, None,
                             at_least=True)  # fmt: skip
            else:
                yield Budget(f"filled offsets a second, slowest of {filling.partitions} partitions",
                             min(filling.by_partition), "", None, _FILLED_PER_SECOND, at_least=True)  # fmt: skip
        for one in self.logs.starts:
            yield Budget(f"mirror log starts at {one.offset:,}", one.seconds, " s", _LOG_START_S, None)
        for written in self.logs.transactions:
            wanted = 0.99 * written.wanted_per_second  # with less there is little to keep up with
            yield Budget("transactions a second, written", written.per_second, "", wanted, None, at_least=True)
            yield Budget("behind the transactions' writer", written.behind_seconds, " s", _TRANSACTIONS_LAG_S, None)


def throughput(copy: Copy) -> float:
    """Return MB/s."""
    return copy.megabytes_per_second


def cpu(copy: Copy) -> float:
    """Return CPU seconds for a GB."""
    return copy.cpu_seconds_per_gigabyte


def cpu_of(process: str) -> Callable[[Copy], float]:
    """Return a function for the CPU seconds per GB of one of the processes."""
    return lambda copy: copy.cpu_by_process.get(process, 0.0)


def peak_memory(copy: Copy) -> float:
    """Return the peak memory of the process tree, in bytes."""
    return float(copy.peak_memory_bytes)


def report_lines(results: Results) -> Iterator[str]:
    """Yield the report, line by line."""
    yield ""
    yield results.machine.title
    for data_set in results.data_sets:
        yield ""
        yield f"{data_set.title}; medians of {results.rounds} rounds of {results.megabytes * data_set.share:g} MB"
        yield (
            f"{'':<22}{'MB/s':>8}{'(from – to)':>16}{'2nd half':>10}{'CPU-s/GB':>10}{'first byte s':>14}{'peak MB':>9}"
        )
        shown = [contender for contender in TITLES if results.values(data_set.key, contender, throughput)]
        for contender in shown:
            yield _row(results, data_set.key, contender)
        yield f"{'CPU-s/GB of':<22}" + "".join(f"{process:>14}" for process in PROCESSES)
        for contender in shown:
            yield _cpu_row(results, data_set.key, contender)
    if results.latencies:
        yield ""
        yield f"{'added latency, ms':<22}{'p50':>8}{'p99':>8}{'source itself, p50':>22}{'p99':>8}"
    for latency in results.latencies:
        yield (
            f"{TITLES[latency.contender]:<22}{latency.added_ms.p50:8.1f}{latency.added_ms.p99:8.1f}"
            f"{latency.source_ms.p50:22.1f}{latency.source_ms.p99:8.1f}"
        )
    yield from _told_of_logs(results)
    yield ""
    if any(copy.contender.endswith("apart") for copy in results.copies):
        yield "apart: the destination's brokers had half of the cores for themselves, everything else the other half"
    yield from (budget.line() for budget in results.budgets())


def _told_of_logs(results: Results) -> Iterator[str]:
    for filling in results.logs.holes:
        yield ""
        yield (
            f"holes of {filling.hole:,} offsets in {filling.partitions} partitions: "
            f"{filling.offsets_per_second:,.0f} filled offsets a second, {filling.seconds:.1f} s"
        )
        if filling.partitions > 1:
            yield f"  by partition: {', '.join(f'{rate:,.0f}' for rate in filling.by_partition)}"
    for one in results.logs.starts:
        yield ""
        yield (
            f"mirror log starts at {one.offset:,} after {one.seconds:.1f} s, "
            f"{one.since_command_seconds:.1f} s after the command"
        )
    for written in results.logs.transactions:
        yield ""
        yield (
            f"{written.transactions:,} transactions of {written.records_in_transaction} records of "
            f"{written.value_bytes} B, {written.per_second:,.0f} a second for {written.seconds:.1f} s: "
            f"all there {written.behind_seconds:.2f} s after the last, at most {written.peak_lag_offsets:,} "
            "offsets behind before"
        )


def _row(results: Results, key: str, contender: str) -> str:
    def median(number: Callable[[Copy], float]) -> float:
        return statistics.median(results.values(key, contender, number))

    rates = results.values(key, contender, throughput)
    spread = f"({min(rates):.0f} – {max(rates):.0f})"
    return (
        f"{TITLES[contender]:<22}{statistics.median(rates):8.1f}{spread:>16}"
        f"{median(lambda copy: copy.second_half_megabytes_per_second):10.1f}{median(cpu):10.2f}"
        f"{median(lambda copy: copy.first_byte_seconds):14.2f}{median(peak_memory) / 1e6:9.0f}"
    )


def _cpu_row(results: Results, key: str, contender: str) -> str:
    return f"{TITLES[contender]:<22}" + "".join(
        f"{statistics.median(results.values(key, contender, cpu_of(process))):14.2f}" for process in PROCESSES
    )
