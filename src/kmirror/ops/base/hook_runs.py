"""Hooks, which are commands of the operator before and after a verb or at events: what runs, how it ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kmirror.columns import COUNT, TEXT, Column, Type, columns_of, one_of, shown, table_row
from kmirror.commands import arguments_in, command_line
from kmirror.errors import UsageError
from kmirror.settings.durations import format_duration
from kmirror.words import one_line, visible_lines

DEFAULT_LIMIT_MS = 60_000
#: How many bytes of the output are kept, of its start and of its end.
_KEPT_BYTES = 16_384
#: How many characters of its last line a sentence has.
_MOST_CHARACTERS = 200


class When(StrEnum):
    """When a hook runs; it is also the name of its option."""

    BEFORE = "before"
    AFTER = "after"
    EVENT = "on-event"
    CHECK = "check"


class HookOutcome(StrEnum):
    """How a hook ended."""

    DONE = "DONE"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    INTERRUPTED = "INTERRUPTED"
    NOT_RUN = "NOT_RUN"


@dataclass(frozen=True, slots=True)
class HookCommand:
    """A command to run without a shell: its arguments, the file of its program, and its time limit."""

    when: When
    arguments: tuple[str, ...]
    program: str
    limit_ms: int = DEFAULT_LIMIT_MS

    @property
    def text(self) -> str:
        """The command as a shell would take it."""
        return command_line(*self.arguments)

    @property
    def flag(self) -> str:
        """The option that names it."""
        return f"--{self.when}"


@table_row
class HookRun:
    """One run of a hook."""

    when: When = shown(one_of("when", When), "the option that names it")
    command: str = shown(TEXT, "the command, quoted as for a shell")
    outcome: HookOutcome = shown(
        one_of("outcome", HookOutcome),
        "how it ended: TIMED_OUT and INTERRUPTED were killed, NOT_RUN is what --dry-run shows",
    )
    exit_code: int | None = shown(
        COUNT.null_when("it did not run to its end"), "its exit code; 128 + the number of a signal that ended it"
    )
    seconds: float | None = shown(Type("number", "seconds", minimum=0).null_when("it was not run"), "how long it took")
    output: str = shown(TEXT, "what it wrote to stdout and stderr, with control characters as escapes")
    output_bytes_omitted: int = shown(COUNT, "how many bytes in the middle of a long output are not kept", default=0)

    @property
    def is_done(self) -> bool:
        """True if it ended with 0."""
        return self.outcome is HookOutcome.DONE


HOOK_RUNS: tuple[Column[HookRun], ...] = columns_of(HookRun)


def split_command(flag: str, text: str) -> tuple[str, ...]:
    """Split a command into its arguments as a shell does, without expanding anything.

    Raises:
        UsageError: a quotation does not end, or there is nothing.
    """
    try:
        arguments = arguments_in(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r}: {str(error).lower()}", "quote each argument as in a shell") from None
    if not arguments or not arguments[0]:
        raise UsageError(f"{flag} is empty", "give a program and its arguments")
    return arguments


class HookOutput:
    """Keep the start and the end of what a hook writes."""

    def __init__(self) -> None:
        self._start = bytearray()
        self._end = bytearray()
        self.omitted = 0

    def take(self, data: bytes) -> None:
        """Take what it has written."""
        room = _KEPT_BYTES - len(self._start)
        self._start += data[:room]
        self._end += data[room:]
        if (more := len(self._end) - _KEPT_BYTES) > 0:
            self.omitted += more
            del self._end[:more]

    def text(self) -> str:
        """Return what is kept, with control characters as escapes; lines stay lines."""
        if not self.omitted:
            return _text(self._start + self._end)
        return f"{_text(self._start)}\n… {self.omitted:,} bytes omitted …\n{_text(self._end)}"


def _text(data: bytearray) -> str:
    return visible_lines(data.decode(errors="replace").replace("\r\n", "\n").rstrip("\n"))


def hook_run(
    command: HookCommand,
    outcome: HookOutcome,
    seconds: float | None = None,
    output: HookOutput | None = None,
    exit_code: int | None = None,
) -> HookRun:
    """Return the row of a hook; one that was killed, could not be started or was not run has no exit code."""
    return HookRun(
        when=command.when,
        command=command.text,
        outcome=outcome,
        exit_code=exit_code,
        seconds=None if seconds is None else round(seconds, 3),
        output="" if output is None else output.text(),
        output_bytes_omitted=0 if output is None else output.omitted,
    )


def how_it_ended(command: HookCommand, run: HookRun) -> str:
    """Return how a hook ended, without its output: the same words for the same cause."""
    what = f"the {command.flag} command"
    match run.outcome:
        case HookOutcome.TIMED_OUT:
            return f"{what} was killed after {format_duration(command.limit_ms)}"
        case HookOutcome.INTERRUPTED:
            return f"{what} was interrupted"
        case _ if run.exit_code is None:
            return f"{what} could not be started"
    if run.exit_code > 128 and run.exit_code - 128 in {number.value for number in signal.Signals}:
        return f"{what} exited with {run.exit_code} ({signal.Signals(run.exit_code - 128).name})"
    return f"{what} exited with {run.exit_code}"


def trouble_text(command: HookCommand, run: HookRun) -> str:
    """Return how a hook ended, and the last line of its output."""
    last = last_line(run.output.split("\n"))
    return how_it_ended(command, run) + (f": {last}" if last else "")


def last_line(lines: Iterable[str]) -> str:
    """Return the last line that is not blank, cut to a sentence's length; empty if there is none."""
    found = [line for line in lines if line.strip()]
    return one_line(found[-1])[:_MOST_CHARACTERS] if found else ""
