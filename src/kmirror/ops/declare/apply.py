"""`apply`: make the stored mirrors those of a file, by the functions of the other verbs.

The difference is computed from the stored state, mirror by mirror, and each change is carried out by the verb that does
the same; a change that fails ends those of its mirror, not the others. A dry run walks the same way: it rehearses each
verb on the state that the changes before it would have led to.

The file comes from a repository, and who may change it there need not be an operator of this host: what it names is
judged by the host's policy before anything is resolved or connected to, as what a record names is.

Two at once: before the first change an apply records itself (`_Turn`), then it reads each mirror under its lock. A verb
begins only while that record is the last one, which is checked in the transaction that it writes first. So the changes
of one apply precede all that a later one reads, and what is left of it is refused. Killed anywhere, it leaves what its
verbs leave, and the same command goes on from the stored state; the record of one that is dead keeps no other out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.base.change_rows import ChangeRow
from kmirror.ops.base.context import Destination, actor, as_kmirror_error, change, now_ms
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.trust_checks import require_usable_once_stored
from kmirror.ops.declare.declared import Declared
from kmirror.ops.declare.planned import (
    AddTopics,
    ConfigChange,
    CreateMirror,
    DeleteMirror,
    PlannedChange,
    Refusal,
    StopTopics,
    SwitchTopics,
)
from kmirror.ops.declare.state_difference import MirrorDifference, Prune, difference, names_to_visit, unknown_names
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.rights.own_rights import record_warnings
from kmirror.ops.stop.failover import failover, remove
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.snapshot import Changes, State
from kmirror.state.workflow_records import WorkflowRecord
from kmirror.words import counted, visible
from kmirror.work import Watch, unwatched

#: The lock and the record of all applies. It is also the lock of the claims of `add`, which is therefore shut out, too;
#: no mirror can have this name.
_ALL, _APPLY = "*", "apply"
_VERB = "apply"
_NOT_ATTEMPTED = "not attempted: "
_GOOD = (Outcome.DONE, Outcome.NOOP)
#: From the worst to the best.
_ORDER = (Outcome.FAILED, Outcome.REFUSED, Outcome.TIMED_OUT, *_GOOD)


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """What to apply, and how; `spark` compares adopted topics."""

    declared: Declared
    prune: Prune = field(default_factory=Prune)
    spark: SparkChoice = field(default_factory=SparkChoice)


def apply(
    destination: Destination,
    request: ApplyRequest,
    planned: Callable[[str], object] = lambda _: None,
    watch: Watch = unwatched,
    *,
    dry_run: bool = False,
) -> VerbResult:
    """Make the stored mirrors those of the file; `planned` gets each line of the plan before anything is done.

    Raises:
        UsageError: what is named to be pruned is in the file.
        UnreachableError: the destination does not answer.
    """
    walk = _Walk(destination, request, watch, dry_run)
    state = destination.state()
    names = names_to_visit(request.declared, state, request.prune)
    plans = {name: walk.plan(name, state) for name in names}
    for line in (f"{name}: {line}" for name, plan in plans.items() for one in plan.changes for line in one.lines):
        planned(visible(line))
    if dry_run and any(plan.changes for plan in plans.values()):
        walk.warnings += record_warnings(destination)
        destination.rehearse(state)
    try:
        walk.carry_out(plans)
    finally:
        destination.rehearse(None)
    for refusal in unknown_names(state, request.prune):
        walk.refuse(refusal)
    results = walk.results
    if not results:
        count = counted(len(request.declared.mirrors), "mirror is as it is", "mirrors are as they are")
        results = [TopicResult(None, None, Outcome.NOOP, f"nothing to change: {count} in {request.declared.path}")]
    notes = [note for plan in plans.values() for note in plan.notes]
    done = VerbResult.of(_VERB, "", results, dry_run=dry_run, warnings=dict.fromkeys([*notes, *walk.warnings]))
    return replace(done, changes=tuple(walk.rows))


class _Turn:
    """This apply among others: no verb begins for it once another one has begun."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        #: Who took over; None while no other has.
        self.successor: str | None = None

    def begin(self, destination: Destination) -> None:
        """Record it, and end the turn of any other."""
        now = now_ms()
        record = WorkflowRecord(_ALL, _APPLY, "APPLYING", actor(), now, now, {"id": self._id})
        change(destination, _ALL, lambda _: Changes((record,)))

    def require(self, state: State) -> None:
        """Raise RefusedError if another one has begun."""
        found = state.workflow(_ALL, _APPLY)
        if found is None or found.facts.get("id") != self._id:
            self.successor = "another command" if found is None else found.actor
            raise RefusedError(
                f"another apply has begun, by {self.successor}: it decides from the state as it is now",
                "see what it did with `kmirror events`, then run this one again if it is still wanted",
                Reason.FENCED,
            )


@dataclass(slots=True)
class _Walk:
    """The walk through the mirrors, and what came of it."""

    destination: Destination
    request: ApplyRequest
    watch: Watch
    dry_run: bool
    rows: list[ChangeRow] = field(default_factory=list)
    results: list[TopicResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    turn: _Turn = field(default_factory=_Turn)
    #: Why no further mirror can be changed.
    ended: KmirrorError | None = None

    def plan(self, name: str, state: State) -> MirrorDifference:
        """Return the difference of a mirror; one that cannot be read is refused."""
        try:
            return difference(self.request.declared.mirror(name), name, state, self.request.prune)
        except RefusedError as error:
            return MirrorDifference([Refusal(name, f"~ mirror {name}", error.message, error.hint, error.reason)])

    def carry_out(self, plans: Mapping[str, MirrorDifference]) -> None:
        """Carry out what is planned, or rehearse it."""
        acts = not self.dry_run and any(not isinstance(one, Refusal) for p in plans.values() for one in p.changes)
        if acts:
            self._begin(one for plan in plans.values() for one in plan.changes)
        for name, plan in plans.items():
            if self.ended is not None:
                self._leave(plan.changes, self.ended, _NOT_ATTEMPTED)
            elif acts and (plan.changes or self.request.declared.mirror(name) is not None):
                self._under_lock(name, plan.changes)
            else:
                self._mirror(plan.changes)

    def _begin(self, changes: Iterable[PlannedChange]) -> None:
        """Begin the turn; the first mirror of a destination says how kmirror's own topics are created."""
        new = [stored_settings(one.settings) for one in changes if isinstance(one, CreateMirror)]
        self.destination.store.ensure_topics(new[0].state_replication_factor if new else -1)
        self.turn.begin(self.destination)

    def _under_lock(self, name: str, planned: Sequence[PlannedChange]) -> None:
        """Decide again from what is stored once this apply has the mirror's lock, and carry that out."""
        read = State()

        def look(state: State) -> Changes:
            nonlocal read
            self.turn.require(state)
            read = state
            return Changes()

        try:
            self.destination.will_change(name)
            change(self.destination, name, look)
            planned = self.plan(name, read).changes
        except (KmirrorError, OutcomeUnknown) as error:
            known = self._as_known(error)
            if not planned and self.turn.successor is None:
                planned = [Refusal(name, f"~ mirror {name}", known.message, known.hint)]
            self._leave(planned, known)
        else:
            self._mirror(planned)
        finally:
            self.destination.let_go(name)

    def _mirror(self, changes: Sequence[PlannedChange]) -> None:
        """Carry out the changes of one mirror up to the first that cannot be made at all."""
        for number, one in enumerate(changes):
            if (failed := self._do(one)) is not None:
                self._leave(changes[number + 1 :], failed, _NOT_ATTEMPTED)
                return

    def _do(self, one: PlannedChange) -> KmirrorError | None:
        """Carry out one change; return why it could not be made at all.

        A verb that fails for each of its topics has rows of them, and ends nothing.
        """
        if isinstance(one, Refusal):
            self.refuse(one)
            return None
        try:
            self.destination.first_condition = None if self.dry_run else self.turn.require
            done = self._verb(one)
        except (KmirrorError, OutcomeUnknown) as error:
            failed = self._as_known(error)
            self._leave([one], failed)
            return failed
        finally:
            self.destination.first_condition = None
        self._report(one, done)
        if self.dry_run:
            state = self.destination.state()
            topics = [row.topic for row in done.results if row.topic is not None and row.result is Outcome.DONE]
            self.destination.rehearse(state.after(one.after(state, topics)))
        return None

    def _verb(self, one: PlannedChange) -> VerbResult:
        """Run the verb that does the same."""
        destination, dry_run = self.destination, self.dry_run
        match one:
            case CreateMirror():
                require_usable_once_stored(one.source)
                return create(destination, one.mirror, one.properties, dry_run=dry_run)
            case ConfigChange():
                return change_config(destination, one.mirror, one.changed, one.unset, dry_run=dry_run)
            case AddTopics():
                return add(
                    destination,
                    one.mirror,
                    TopicSelector(one.patterns),
                    adopt=one.adopt,
                    keep_stopped=True,
                    allow_missing=one.allow_missing,
                    start_from=one.start_from,
                    overrides=one.config,
                    spark=self.request.spark,
                    watch=self.watch,
                    dry_run=dry_run,
                )
            case SwitchTopics():
                verb = pause if one.paused else resume
                topics = None if one.topics is None else TopicSelector(one.topics)
                return verb(destination, one.mirror, topics, dry_run=dry_run)
            case StopTopics(topics=None):
                return failover(destination, one.mirror, dry_run=dry_run).result
            case StopTopics():
                return remove(destination, one.mirror, TopicSelector(one.topics or ()), dry_run=dry_run).result
            case DeleteMirror():
                return delete(destination, one.mirror, dry_run=dry_run)
        raise ValueError(f"{one} is no change")

    def _as_known(self, error: KmirrorError | OutcomeUnknown) -> KmirrorError:
        """Return the error of a change; note whether no other can be carried out either."""
        known = as_kmirror_error(error)
        if self.turn.successor is not None or known.reason is Reason.DESTINATION_UNREACHABLE:
            self.ended = known
        return known

    def refuse(self, one: Refusal) -> None:
        """Report what is not done."""
        self._leave([one], RefusedError(one.message, one.hint, one.reason))

    def _leave(self, changes: Iterable[PlannedChange], why: KmirrorError, prefix: str = "") -> None:
        """Report changes that were not made."""
        outcome = Outcome.REFUSED if why.exit_code in (ExitCode.USAGE, ExitCode.REFUSED) else Outcome.FAILED
        outcome = Outcome.TIMED_OUT if why.exit_code is ExitCode.TIMED_OUT else outcome
        for one in changes:
            if isinstance(one, Refusal) and prefix:
                self.refuse(one)
                continue
            message = f"{prefix}mirror {one.mirror}: {why.message}" if one.mirror else why.message
            row = TopicResult(None, None, outcome, message, why.reason, hint=why.hint, mirror=one.mirror)
            self.results.append(row)
            self.rows += (_row(one, line, [row]) for line in one.lines)

    def _report(self, one: PlannedChange, done: VerbResult) -> None:
        rows = [replace(row, mirror=one.mirror) for row in done.results]
        self.results += rows
        self.warnings += (f"mirror {one.mirror}: {warning}" for warning in done.warnings)
        by_topic: dict[str | None, list[TopicResult]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        names = one.topic_names or [None] * len(one.lines)
        for line, name in zip(one.lines, names, strict=True):
            self.rows.append(_row(one, line, rows if name is None else by_topic.get(name, rows)))


def _row(one: PlannedChange, line: str, results: Sequence[TopicResult]) -> ChangeRow:
    """Return the row of a line with the worst of these results."""
    worst = min(results, key=lambda row: _ORDER.index(row.result))
    trouble = (None, None) if worst.result in _GOOD else (worst.message, worst.hint)
    return ChangeRow(
        mirror=one.mirror,
        action=one.action,
        change=line,
        result=worst.result,
        reason=worst.reason,
        message=trouble[0],
        hint=trouble[1],
    )
