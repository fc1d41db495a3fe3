"""What the verbs' results look like to people: rows of text, and the sentences that go with them. Pure.

A table keeps its columns when it is piped into a script: names without spaces, `-` for what is not known, one row a
line, never cut. Only the last column may hold spaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmirror.errors import NOT_COPYING
from kmirror.settings.durations import format_duration
from kmirror.words import at_time
from kmirror.words import counted as counted  # noqa: PLC0414 - part of what this module offers

if TYPE_CHECKING:
    from kmirror.ops.results import CheckLine, MirrorRow, PartitionRow, SettingRow, TopicResult
    from kmirror.ops.show.describe_groups import GroupRow
    from kmirror.ops.show.describe_settings import TopicSettingRow
    from kmirror.ops.verify.results import VerifyRow
    from kmirror.sandbox.registry import BrokerStatus
    from kmirror.state.events import Event

UNKNOWN = "-"
_GAP = "  "

#: How states and outcomes are coloured on a terminal; what is not named here is not.
STYLES = {
    "MIRRORING": "green",
    "ACTIVE": "green",
    "DONE": "green",
    "equal": "green",
    "ok": "green",
    "RUNNING": "green",
    "STARTING": "yellow",
    "DOWN": "red",
    "SYNCED": "green",
    "HELD_BACK": "yellow",
    "LOG_ALIGNMENT": "yellow",
    "PENDING_MIRROR": "yellow",
    "PENDING_STOPPED": "yellow",
    "PAUSED": "yellow",
    "SOURCE_UNAVAILABLE": "yellow",
    "TIMED_OUT": "yellow",
    "REFUSED": "red",
    "FAILED": "bold red",
    "FAIL": "bold red",
    "LINK_FAILED": "bold red",
    "NO_ENGINE": "bold red",
    "ENGINE_SILENT": "bold red",
    "NO_WORKERS": "bold red",
    "DIFFERENT": "bold red",
    "not-compared": "yellow",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Hold a table as text; columns named in `numbers` stand to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()

    def lines(self) -> Iterator[str]:
        """Yield the heading and the rows, aligned by spaces."""
        written = (self.columns, *self.rows)
        widths = [max(len(row[index]) for row in written) for index in range(len(self.columns))]
        right = [column in self.numbers for column in self.columns]
        for row in written:
            cells = zip(row, widths, right, strict=True)
            yield _GAP.join(
                cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells
            ).rstrip()


def partitions(rows: Iterable[PartitionRow]) -> Table:
    """Return the table of `describe`."""
    columns = ("MIRROR", "TOPIC", "PARTITION", "SOURCE-OFFSET", "DESTINATION-OFFSET", "LAG", "STATE")
    cells = (
        (
            row.mirror,
            row.topic,
            str(row.partition),
            shown(row.source_offset),
            shown(row.destination_offset),
            shown(row.lag),
            state_of(row),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset(columns[2:6]))


def state_of(row: PartitionRow) -> str:
    """Return a partition's state for people: why nothing is copied goes before what is only remembered."""
    waits = row.topic_state == "PENDING_STOPPED" and row.state in ("MIRRORING", "LOG_ALIGNMENT")
    state = row.topic_state.value if waits else row.state.value
    return f"{row.reason.value} ({state})" if row.reason in NOT_COPYING and row.reason else state


def stopped_partitions(rows: Iterable[PartitionRow]) -> Table:
    """Return the table of `describe --stopped`."""
    columns = ("MIRROR", "TOPIC", "PARTITION", "LAST-MIRRORED-OFFSET", "LAST-MIRRORED-EPOCH", "STOPPED", "REASON")
    cells = (
        (
            row.mirror,
            row.topic,
            str(row.partition),
            shown(row.last_mirrored_offset),
            shown(row.last_mirrored_epoch),
            UNKNOWN if row.state_time_ms is None else at_time(row.state_time_ms),
            shown(row.reason),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset(columns[2:5]))


def failed_partitions(rows: Iterable[PartitionRow]) -> Table:
    """Return the table of `describe --failed`."""
    columns = ("MIRROR", "TOPIC", "PARTITION", "RETRY", "REASON", "ERROR")
    cells = (
        (
            row.mirror,
            row.topic,
            str(row.partition),
            str(row.retry_attempt),
            shown(row.reason),
            one_line(row.error_message),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset(columns[2:4]))


def groups(rows: Iterable[GroupRow]) -> Table:
    """Return the table of `describe --groups`."""
    columns = (
        "MIRROR",
        "GROUP",
        "TOPIC",
        "PARTITION",
        "SOURCE-OFFSET",
        "DESTINATION-OFFSET",
        "LAST-SYNC",
        "REASON",
    )
    cells = (
        (
            row.mirror,
            # the last column alone may hold spaces
            row.group.replace(" ", "\u00b7"),
            row.topic,
            str(row.partition),
            shown(row.source_offset),
            shown(row.destination_offset),
            UNKNOWN if row.last_sync_age_ms is None else format_duration(row.last_sync_age_ms),
            shown(row.reason),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset(columns[3:7]))


def group_notes(rows: Sequence[GroupRow]) -> list[str]:
    """Return a sentence for each reason for which offsets are left alone."""
    told: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.reason is not None:
            told.setdefault((row.mirror, row.reason), one_line(row.message))
    return [f"{mirror}: {reason}: {message}" for (mirror, reason), message in told.items()]


def mirrors(rows: Iterable[MirrorRow]) -> Table:
    """Return the table of `list`."""
    columns = (
        *("MIRROR", "TOPICS", "PARTITIONS", "STATE", "MAX-LAG", "SOURCE-CLUSTER-ID", "SOURCE", "ENGINE"),
        *("HEARTBEAT-AGE", "REASON"),
    )
    cells = (
        (
            row.mirror,
            str(row.topics),
            str(row.partitions),
            shown(row.state),
            shown(row.max_lag),
            shown(row.source_cluster_id),
            shown(row.source_bootstrap_server),
            shown(row.engine),
            UNKNOWN if row.engine_age_ms is None else elapsed(row.engine_age_ms // 1000),
            shown(row.reason),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset({"TOPICS", "PARTITIONS", "MAX-LAG", "HEARTBEAT-AGE"}))


def topic_settings(rows: Iterable[TopicSettingRow]) -> Table:
    """Return the table of `describe --settings`."""
    columns = ("MIRROR", "TOPIC", "KEY", "SOURCE", "DESTINATION", "STATE", "WHY")
    cells = (
        (
            row.mirror,
            row.topic,
            shown(row.key),
            _word(row.source_value),
            _word(row.destination_value),
            shown(row.state.value if row.state else None),
            one_line(row.why),
        )
        for row in rows
    )
    return Table(columns, tuple(cells))


def settings(rows: Iterable[SettingRow]) -> Table:
    """Return the table of `config`."""
    cells = ((row.key, "default" if row.is_default else "set", one_line(row.value)) for row in rows)
    return Table(("KEY", "FROM", "VALUE"), tuple(cells))


def events(found: Iterable[Event]) -> Table:
    """Return the table of `events`."""
    cells = (
        (
            at_time(event.time_ms),
            shown(event.mirror),
            event.actor,
            event.what,
            event.result,
            one_line(json.dumps(event.details, ensure_ascii=False)),
        )
        for event in found
    )
    return Table(("TIME", "MIRROR", "WHO", "WHAT", "RESULT", "DETAILS"), tuple(cells))


def results(rows: Iterable[TopicResult]) -> Table:
    """Return the table of what became of each topic, with a column for partitions where there are some."""
    rows = tuple(rows)
    with_partitions = any(row.partition is not None for row in rows)
    columns = ("TOPIC", "PARTITION", "RESULT", "MESSAGE") if with_partitions else ("TOPIC", "RESULT", "MESSAGE")
    cells = []
    for row in rows:
        told = f"{row.reason.value}: {one_line(row.message)}" if row.reason else one_line(row.message)
        partition = (shown(row.partition),) if with_partitions else ()
        cells.append((shown(row.topic), *partition, row.result.value, told))
    return Table(columns, tuple(cells), frozenset({"PARTITION"}))


def compared(rows: Iterable[VerifyRow]) -> Table:
    """Return the table of `verify`."""
    columns = ("TOPIC", "PARTITION", "RESULT", "RECORDS", "MESSAGE")
    cells = (
        (
            row.topic,
            shown(row.partition),
            row.verdict,
            str(row.records),
            "; ".join(one_line(told) for told in (row.message, *row.notes)),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset({"PARTITION", "RECORDS"}))


def brokers(rows: Iterable[BrokerStatus]) -> Table:
    """Return the table of `sandbox status`."""
    columns = ("CLUSTER", "BROKER", "ADDRESS", "STATE", "PID", "KAFKA", "LOG")
    cells = (
        (
            row.cluster,
            str(row.node_id),
            row.address,
            row.state.value,
            shown(row.pid),
            row.kafka_version,
            str(row.log_file),
        )
        for row in rows
    )
    return Table(columns, tuple(cells), frozenset({"BROKER", "PID"}))


def check_line(line: CheckLine) -> str:
    """Return a finding of `check` in one line: how it went, where, and what was found; a good one with a hint warns.

    Further lines of the message are left out.
    """
    how = ("warn" if line.hint else "ok") if line.ok else "FAIL"
    message = line.message.partition("\n")[0]
    return f"{how:<4}  {line.cluster:<11}  {line.what:<17}  {one_line(message)}"


def notes(rows: Sequence[PartitionRow]) -> list[str]:
    """Return what somebody who reads the table of `describe` should know besides, a sentence a mirror and matter."""
    told: list[str] = []
    for mirror in dict.fromkeys(row.mirror for row in rows):
        of_mirror = [row for row in rows if row.mirror == mirror]
        if failed := sum(row.failed for row in of_mirror):
            told.append(
                f"{mirror}: {failed} of {counted(len(of_mirror), 'partition')} FAILED;"
                f" `kmirror describe --mirror {mirror} --failed` says why"
            )
        for cause in sorted(NOT_COPYING):
            idle = [row for row in of_mirror if row.reason == cause]
            if idle:
                told.append(
                    f"{mirror}: {counted(len(idle), 'partition')} not copied: {one_line(idle[0].error_message)}"
                )
        stopped = [row for row in of_mirror if row.state == "STOPPED"]
        for reason in dict.fromkeys(row.reason for row in stopped):
            topics = {row.topic for row in stopped if row.reason == reason}
            told.append(f"{mirror}: {counted(len(topics), 'topic')} stopped, {reason or 'for good'}")
        refused = [row for row in of_mirror if row.topic_state == "LINK_FAILED" and row.reason not in NOT_COPYING]
        if refused:
            why = one_line(refused[0].error_message)
            told.append(f"{mirror}: the source refuses {counted(len(refused), 'partition')}: {why}")
        silent = [row for row in of_mirror if row.topic_state == "SOURCE_UNAVAILABLE"]
        if silent:
            known = [row.last_known_lag for row in silent if row.last_known_lag is not None]
            last = f"; the last known lag of these partitions is {sum(known):,}" if known else ""
            told.append(f"{mirror}: the source does not answer for {counted(len(silent), 'partition')}{last}")
    return told


def one_line(text: str | None) -> str:
    """Return a text without line ends, `-` for none."""
    return " ".join(text.split()) if text and text.strip() else UNKNOWN


def _word(value: str | None) -> str:
    """Return a value as a cell without spaces, `""` for an empty one."""
    return UNKNOWN if value is None else "".join(value.split()) or '""'


def shown(value: object) -> str:
    """Return a value as a cell, `-` where it is not known."""
    return UNKNOWN if value is None else str(value)


def rate(bytes_per_second: float) -> str:
    """Return bytes per second for people: `0 B/s`, `12.3 KB/s`, `85.0 MB/s` (a KB is 1,000 bytes)."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s")):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.1f} {unit}"
    return f"{bytes_per_second:.0f} B/s"


def size(size_in_bytes: int) -> str:
    """Return a number of bytes for people: `512 B`, `1.2 GB`."""
    return rate(size_in_bytes).removesuffix("/s")


def elapsed(seconds: float) -> str:
    """Return seconds for people: `0.4s`, `12.3s`, `1m5s`."""
    return format_duration(round(seconds * 1000))
