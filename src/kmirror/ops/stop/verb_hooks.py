"""Hooks of a verb that moves topics: one command before its first change, which may stop it, and one after its end.

The one before runs once the preconditions hold and the operator has agreed: the verb calls a `Gate` then. If it does
not end with 0, nothing is changed (exit code 3). The one after runs whenever that point was passed, whatever the verb
did then; if it fails, what was done stays done (exit code 4 instead of 0).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NoReturn

from kmirror.columns import FLAG, TEXT, Column, Only, document, list_of, one_of
from kmirror.errors import ExitCode, KmirrorError, RefusedError
from kmirror.ops.base.context import Destination, as_kmirror_error, now_ms
from kmirror.ops.base.evidence import VERB_RUN, VerbRun, evidence_of
from kmirror.ops.base.hook_process import run_hook
from kmirror.ops.base.hook_runs import HookCommand, HookOutcome, HookRun, When, hook_run, trouble_text
from kmirror.ops.base.results import RESULT, ErrorInfo, VerbResult
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.stop.steps import Gate, no_gate
from kmirror.settings.durations import format_duration
from kmirror.state.records import MirrorRecord


@dataclass(frozen=True, slots=True)
class HookInput:
    """What a hook is given: the run of the verb and its topics; after the verb also its result."""

    when: When
    run: VerbRun
    topics: tuple[str, ...]
    result: VerbResult | None = None


def _of_result(column: Column[VerbResult]) -> Column[HookInput]:
    where = "`after`" + (f", {column.only.where}" if column.only else "")
    has = column.only.has if column.only else lambda _: True
    return replace(column, only=Only(where, has)).of_part(lambda given: given.result)


#: The document on a hook's stdin.
HOOK_INPUT: tuple[Column[HookInput], ...] = (
    Column("when", one_of("when", When), "when it runs: before or after", lambda given: given.when),
    *(column.of_part(lambda given: given.run) for column in VERB_RUN if column.key != "endedMs"),
    Column("topics", list_of(TEXT), "the topics on the destination", lambda given: given.topics),
    Column("dryRun", FLAG, "always false: with --dry-run no hook runs", lambda _: False),
    *(_of_result(column) for column in RESULT if column.key not in ("verb", "mirror", "dryRun")),
)


class BeforeHookError(RefusedError):
    """The command before did not end with 0; nothing was changed."""


class VerbHooks:
    """Run the hooks of one call of a verb.

    `say` is given lines for people; during a run, `interrupts` yields an event that Ctrl-C sets.
    """

    def __init__(
        self,
        verb: str,
        before: HookCommand | None,
        after: HookCommand | None,
        say: Callable[[str], None],
        interrupts: Callable[[], AbstractContextManager[threading.Event]],
    ) -> None:
        self._verb = verb
        self._before, self._after = before, after
        self._say = say
        self._interrupts = interrupts
        self._began_ms = now_ms()
        #: What was passed on at the gate; None before.
        self._given: HookInput | None = None
        self._runs: list[HookRun] = []

    def carry_out(self, destination: Destination, work: Callable[[Gate], VerbReport], *, dry_run: bool) -> VerbReport:
        """Carry out the verb with its hooks; `work` is given the gate to call before the first change.

        Raises what `work` raises before it calls the gate, and errors that are bugs.
        """
        if self._before is None and self._after is None:
            return work(no_gate)

        def gate(mirror: MirrorRecord, topics: Sequence[str]) -> None:
            run = VerbRun(self._verb, destination, mirror, self._began_ms)
            self._given = HookInput(When.BEFORE, run, tuple(topics))
            if self._before is not None:
                self._pass(self._before, self._given)

        try:
            done = work(gate)
        except BeforeHookError as error:
            return _with_runs(self._failed(error), self._runs)
        except KmirrorError as error:
            if self._given is None:
                raise
            done = self._failed(error)
        except Exception as error:
            if self._given is not None:
                self._run_after(self._failed(as_kmirror_error(error)).result)
            raise
        if dry_run:
            planned = [command for command in (self._before, self._after) if command is not None]
            return _with_runs(done, [hook_run(command, HookOutcome.NOT_RUN) for command in planned])
        return _with_runs(self._run_after(done.result, done), self._runs) if self._given is not None else done

    def _pass(self, command: HookCommand, given: HookInput) -> None:
        """Run the command before; raise BeforeHookError unless it ends with 0, KeyboardInterrupt at Ctrl-C."""
        run = self._run(command, given)
        if run.outcome is HookOutcome.INTERRUPTED:
            _interrupted(command)
        if not run.is_done:
            hint = "nothing was changed; correct what it found, then run the same command again"
            raise BeforeHookError(trouble_text(command, run), hint)

    def _run_after(self, result: VerbResult, done: VerbReport | None = None) -> VerbReport:
        """Run the command after, and return the report with what became of it."""
        report = done or VerbReport(result, {})
        command, given = self._after, self._given
        if command is None or given is None:
            return report
        result = replace(result, hooks=tuple(self._runs))
        run = self._run(command, replace(given, when=When.AFTER, result=result))
        if run.is_done:
            return report
        trouble = trouble_text(command, run)
        if result.exit_code is not ExitCode.OK:
            warnings = (*result.warnings, trouble)
            return VerbReport(replace(result, warnings=warnings), report.evidence | {"warnings": list(warnings)})
        hint = f"{self._verb} itself is done; run the command by hand, or the same {self._verb} again"
        error = ErrorInfo(ExitCode.PARTLY_DONE, trouble, hint)
        result = replace(result, exit_code=error.code, error=error)
        return VerbReport(result, report.evidence | {"exitCode": int(error.code), "error": error.to_json()})

    def _run(self, command: HookCommand, given: HookInput) -> HookRun:
        """Run a command; people see what runs, what it writes, and how long it took."""
        self._say(f"{command.when}: {command.text} (at most {format_duration(command.limit_ms)})")
        content = json.dumps(document(HOOK_INPUT, given)).encode()
        with self._interrupts() as interrupted:
            run = run_hook(command, content, interrupted.is_set)
        for line in run.output.split("\n") if run.output else ():
            self._say(f"{command.when}: {line}")
        if run.is_done:
            self._say(f"{command.when}: done after {run.seconds:.1f} s")
        self._runs.append(run)
        return run

    def _failed(self, error: KmirrorError) -> VerbReport:
        """Return the report of a verb that failed after the gate."""
        if self._given is None:
            raise error
        run = self._given.run
        result = VerbResult.failed(self._verb, run.mirror.name, error)
        return VerbReport(result, evidence_of(run.destination, run.mirror, result, run.began_ms, {}))


def _with_runs(done: VerbReport, runs: Sequence[HookRun]) -> VerbReport:
    """Add the runs to the report and to its steps."""
    steps = done.result.steps
    if steps is not None:
        texts = [(run.when, f"run the --{run.when} command: {run.command}") for run in runs]
        first, last = ([text for when, text in texts if when is at] for at in (When.BEFORE, When.AFTER))
        steps = (*first, *steps, *last)
    result = replace(done.result, hooks=tuple(runs), steps=steps)
    return VerbReport(result, done.evidence | {"hooks": result.to_json()["hooks"], "endedMs": now_ms()})


def _interrupted(command: HookCommand) -> NoReturn:
    interruption = KeyboardInterrupt()
    interruption.add_note(f"the {command.flag} command was ended; nothing was changed")
    raise interruption
