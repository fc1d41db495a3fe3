"""The verbs as Python functions: `kmirror.Client`.

A call does what the command of that name does and returns the same rows: the dataclasses that `--json` is printed from,
each with `to_json()`. It prints nothing and asks nothing: calling a function that ends mirroring is consent, like
`--yes`. If the command would exit with a code other than 0, the call raises an error with that code, the reason, and
in `result` what was found and done until then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec

from kmirror.beside import beside
from kmirror.errors import (
    ExitCode,
    HistoriesDifferError,
    KmirrorError,
    OutcomeUnknown,
    PartlyDoneError,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from kmirror.library_values import (
    Properties,
    Topics,
    destination_properties,
    done_of,
    error_of,
    idle_ms_of,
    milliseconds,
    properties_of,
    readable,
    required,
    selector,
)
from kmirror.ops.add.add import add
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.base.change_rows import ChangeRow
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.base.results import ErrorInfo, StopTotals, VerbResult
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.ops.check.check import check
from kmirror.ops.check.findings import CheckLine, CheckReport
from kmirror.ops.declare.apply import ApplyRequest, apply
from kmirror.ops.declare.export import export
from kmirror.ops.declare.mirrors_file import read_mirrors_file
from kmirror.ops.declare.state_difference import Prune
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.mirrors.config import SettingRow, change_config, show_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.mirrors.recover import Consent, recover
from kmirror.ops.show.charge_keeper import EndInCharge
from kmirror.ops.show.describe import describe, unreadable_notes
from kmirror.ops.show.ends_in_charge import in_charge
from kmirror.ops.show.events import events, hidden_notes
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.batches import promote_in_batches
from kmirror.ops.stop.failover import failover, remove
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.ops.verify.verify_results import VerifyOutcome, VerifyRow
from kmirror.settings.durations import parse_timestamp
from kmirror.settings.value_types import parse_start_from
from kmirror.state.event_records import Event
from kmirror.status.mirror_status import MirrorRow
from kmirror.status.partition_row import PartitionRow

#: Also exported by `kmirror` itself; as stable as the command line.
__all__ = [
    "ChangeRow",
    "CheckLine",
    "CheckReport",
    "Client",
    "ErrorInfo",
    "Event",
    "ExitCode",
    "GroupResult",
    "HistoriesDifferError",
    "KmirrorError",
    "MirrorRow",
    "Outcome",
    "OutcomeUnknown",
    "PartitionRow",
    "PartlyDoneError",
    "Reason",
    "RefusedError",
    "SettingRow",
    "StopTotals",
    "TimedOutError",
    "TopicResult",
    "UnreachableError",
    "UsageError",
    "VerbResult",
    "VerifyOutcome",
    "VerifyRow",
]

_LOCAL = "local[*]"
P = ParamSpec("P")


class Client:
    """Work with the mirrors of one destination; each call opens its own connections and closes them.

    Thread-safe. Times are in seconds; a `timeout` of None waits forever.

    Every call raises:
        UsageError: an argument is invalid.
        RefusedError: a precondition does not hold; nothing was changed.
        PartlyDoneError, TimedOutError, HistoriesDifferError: exit codes 4, 5 and 7 of the command.
        UnreachableError: a required cluster does not answer or refuses us.
        OutcomeUnknown: a request was sent and not answered; check before trying again.
    """

    def __init__(
        self,
        bootstrap_server: str | None = None,
        *,
        command_config: Properties | None = None,
        expect_cluster_id: str | None = None,
    ) -> None:
        """Store how to reach the destination: `command_config` may include `bootstrap.servers`. Connects to nothing."""
        self._properties = destination_properties(bootstrap_server, command_config or {})
        self._expect_cluster_id = expect_cluster_id

    def __repr__(self) -> str:
        return f"Client({self._properties['bootstrap.servers']!r})"

    def plan(
        self,
        mirror_config: Properties,
        topics: Topics | None = None,
        *,
        config: Mapping[str, str] | None = None,
        sample: float = 30.0,
        wave_bytes: int | None = None,
        wave_time: float | None = None,
        bandwidth: float | None = None,
        trial: int | None = None,
    ) -> dict[str, Any]:
        """Return the plan of a migration, as `kmirror plan --json` prints it; `trial` copies so many bytes for it."""
        properties = {**properties_of(mirror_config), **(config or {})}
        asked = (selector(topics, "topics"), sample, wave_bytes, wave_time, bandwidth, trial)
        with self._destination() as here:
            return dict(beside("plan")(here, properties, *asked))

    def check(
        self,
        *,
        mirror: str | None = None,
        mirror_config: Properties | None = None,
        config: Mapping[str, str] | None = None,
        probe: bool = False,
    ) -> CheckReport:
        """Check connections, versions, rights, settings of a mirror or a file; `probe` tries appends on a new topic."""
        if mirror is not None and mirror_config is not None:
            raise UsageError("mirror and mirror_config exclude each other", "give one of them")
        if config and mirror_config is None:
            raise UsageError("config requires mirror_config", "give both, or mirror alone")
        report = check(
            self._properties,
            mirror=mirror,
            properties=None if mirror_config is None else {**properties_of(mirror_config), **(config or {})},
            expect_cluster_id=self._expect_cluster_id,
            probe=probe,
        )
        if report.exit_code is not ExitCode.OK:
            bad = [line for line in report.lines if not line.ok]
            first = bad[0]
            message = f"{len(bad)} of {len(report.lines)} checks failed; the first: {first.cluster}: {first.message}"
            raise error_of(ErrorInfo(report.exit_code, message, first.hint, first.reason), report)
        return report

    def create(
        self,
        mirror: str,
        mirror_config: Properties,
        *,
        config: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
        dry_run: bool = False,
    ) -> VerbResult:
        """Create a mirror: store its source, filters and settings."""
        properties = properties_of(mirror_config)
        return self._done(create, mirror, properties, config, if_not_exists=if_not_exists, dry_run=dry_run)

    def add(
        self,
        mirror: str,
        topics: Topics,
        *,
        exclude: Topics | None = None,
        adopt: bool = False,
        allow_missing: bool = False,
        start_from: str | None = None,
        config: Mapping[str, str] | None = None,
        master: str = _LOCAL,
        spark_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> VerbResult:
        """Add source topics to a mirror; `start_from` is earliest, latest or timestamp:T."""
        selected, left_out = required(topics, "topics"), selector(exclude, "exclude")
        start = None if start_from is None else parse_start_from("start_from", start_from)
        return self._done(
            add,
            mirror,
            selected,
            exclude=left_out,
            adopt=adopt,
            allow_missing=allow_missing,
            start_from=start,
            overrides=config,
            spark=SparkChoice(master, spark_conf or {}),
            dry_run=dry_run,
        )

    def apply(
        self,
        file: str | os.PathLike[str],
        *,
        prune: bool = False,
        prune_topics: Topics | None = None,
        prune_mirrors: Sequence[str] = (),
        master: str = _LOCAL,
        spark_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> VerbResult:
        """Make the mirrors those of a file; `prune_topics` and `prune_mirrors` name what is not in it and ends."""
        pruned = Prune.of(prune, selector(prune_topics, "prune_topics"), prune_mirrors)
        request = ApplyRequest(read_mirrors_file(Path(file)), pruned, SparkChoice(master, spark_conf or {}))
        return self._done(apply, request, dry_run=dry_run)

    def export(self, mirrors: Sequence[str] = ()) -> str:
        """Return the file for `apply` of these mirrors, by default of all."""
        with self._destination() as destination:
            return export(destination, mirrors)

    def list(self) -> tuple[MirrorRow, ...]:
        """Return the mirrors of the destination."""
        with self._destination() as destination:
            rows = list_mirrors(destination)
            return readable(rows, unreadable_notes(destination))

    def describe(
        self, mirror: str | None = None, topics: Topics | None = None, *, failed: bool = False
    ) -> tuple[PartitionRow, ...]:
        """Return the current state of each mirrored partition, or of the FAILED ones; unknown values are None.

        Works with the source down and without an engine. Raises PartlyDoneError, with the rows in `result`, if a newer
        kmirror stored something that this one cannot read.
        """
        selected = selector(topics, "topics")
        with self._destination() as destination:
            rows = describe(destination, mirror, selected, failed=failed)
            return readable(rows, unreadable_notes(destination, mirror))

    def wait(
        self,
        mirror: str,
        condition: Literal["caught-up", "stopped", "healthy", "drained", "objective"],
        timeout: float,
        topics: Topics | None = None,
        *,
        groups: Topics | None = None,
    ) -> VerbResult:
        """Wait until topics are caught up, stopped, healthy, within their objectives, or drained by `groups`.

        Raises immediately if waiting cannot help.
        """
        if condition not in list(Condition):
            raise UsageError(f"{condition!r} is not a condition to wait for", f"give one of {', '.join(Condition)}")
        selected, readers, timeout_ms = selector(topics, "topics"), selector(groups, "groups"), milliseconds(timeout)
        return self._done(wait, mirror, Condition(condition), timeout_ms, topics=selected, groups=readers)

    def verify(
        self,
        mirror: str,
        topics: Topics | None = None,
        *,
        sample: int | None = None,
        master: str = _LOCAL,
        spark_conf: Mapping[str, str] | None = None,
    ) -> VerifyOutcome:
        """Compare source and destination record by record, or `sample` random ranges of each partition."""
        request = VerifyRequest(mirror, selector(topics, "topics"), sample, SparkChoice(master, spark_conf or {}))
        with self._destination() as destination:
            outcome = verify(destination, request)
        if outcome.error is not None:
            raise error_of(outcome.error, outcome)
        return outcome

    def promote(
        self,
        mirror: str,
        topics: Topics | None = None,
        *,
        exclude: Topics | None = None,
        timeout: float | None = None,
        idle: float | None = None,
        allow_producers: bool = False,
        block_producers: bool = False,
        verify: bool = False,
        together: bool = False,
        batch: int | None = None,
        pause: float = 0,
        master: str = _LOCAL,
        stop: threading.Event | None = None,
        dry_run: bool = False,
    ) -> VerbResult:
        """Stop mirroring topics once they are fully copied (planned migration).

        The source of a topic must have received nothing for `idle` seconds, 10 by default. Topics that are not ready
        by `timeout`, or when `stop` is set, stay mirrored. If no engine is in charge, one runs during the call, as a
        process of its own.
        """
        request = PromoteRequest(
            mirror,
            selector(topics, "topics"),
            selector(exclude, "exclude"),
            None if timeout is None else milliseconds(timeout),
            idle_ms_of(idle, allow_producers=allow_producers, block_producers=block_producers),
            verify,
            master,
            together,
            block_producers,
        )
        if batch is None:
            return self._done(promote, request, stopping=stop, dry_run=dry_run)
        return self._done(promote_in_batches, request, batch, milliseconds(pause), stopping=stop, dry_run=dry_run)

    def failover(
        self,
        mirror: str,
        topics: Topics | None = None,
        *,
        fence_with_record: bool = False,
        dry_run: bool = False,
    ) -> VerbResult:
        """Stop mirroring immediately and make the topics writable; needs neither the source nor an engine."""
        selected = selector(topics, "topics")
        return self._done(failover, mirror, selected, fence_with_record=fence_with_record, dry_run=dry_run)

    def remove(self, mirror: str, topics: Topics, *, dry_run: bool = False) -> VerbResult:
        """Remove topics from a mirror and make them writable, whatever their lag."""
        selected = required(topics, "topics")
        return self._done(remove, mirror, selected, dry_run=dry_run)

    def failback(
        self,
        mirror: str,
        mirror_config: Properties,
        topics: Topics | None = None,
        *,
        recreate: bool = False,
        offline_plan: str | os.PathLike[str] | None = None,
        discard: bool = False,
        master: str = _LOCAL,
        spark_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> VerbResult:
        """Make the old source (this client's cluster) a mirror of the new primary, which `mirror_config` describes.

        Records that exist only on the old source raise a RefusedError, unless `recreate` or `offline_plan` (the file
        for `kmirror truncate-logs`) says how to proceed.
        """
        if recreate and offline_plan is not None:
            raise UsageError("recreate and offline_plan exclude each other", "give one of them")
        if discard and not recreate and offline_plan is None:
            raise UsageError("discard requires recreate or offline_plan", "give one of them with it")
        request = FailbackRequest(
            mirror,
            properties_of(mirror_config),
            selector(topics, "topics"),
            Strategy.RECREATE if recreate else None if offline_plan is None else Strategy.OFFLINE,
            None if offline_plan is None else os.fspath(offline_plan),
            discard,
            spark=SparkChoice(master, spark_conf or {}),
        )
        return self._done(failback, request, dry_run=dry_run)

    def switchover(
        self,
        mirror: str,
        mirror_config: Properties,
        topics: Topics | None = None,
        *,
        timeout: float | None = None,
        idle: float | None = None,
        allow_producers: bool = False,
        block_producers: bool = False,
        master: str = _LOCAL,
        stop: threading.Event | None = None,
        dry_run: bool = False,
    ) -> VerbResult:
        """Promote topics here, and make their source a mirror of this cluster, as `mirror_config` describes it."""
        request = SwitchoverRequest(
            mirror,
            properties_of(mirror_config),
            selector(topics, "topics"),
            None if timeout is None else milliseconds(timeout),
            idle_ms_of(idle, allow_producers=allow_producers, block_producers=block_producers),
            master,
            block_producers=block_producers,
        )
        return self._done(switchover, request, stopping=stop, dry_run=dry_run)

    def pause(self, mirror: str, topics: Topics | None = None, *, dry_run: bool = False) -> VerbResult:
        """Stop copying topics, all of the mirror by default, until they are resumed; they stay read-only."""
        selected = selector(topics, "topics")
        return self._done(pause, mirror, selected, dry_run=dry_run)

    def resume(self, mirror: str, topics: Topics | None = None, *, dry_run: bool = False) -> VerbResult:
        """Copy paused topics again."""
        selected = selector(topics, "topics")
        return self._done(resume, mirror, selected, dry_run=dry_run)

    def recover(
        self,
        mirror: str,
        topics: Topics | None = None,
        *,
        accept_loss: bool = False,
        trim: bool = False,
        accept_reset: bool = False,
        accept_divergence: bool = False,
        dry_run: bool = False,
    ) -> VerbResult:
        """Retry FAILED partitions now; to accept what is lost by that is consent to it."""
        if trim and not accept_loss:
            raise UsageError("trim requires accept_loss", "give both or neither")
        selected, consent = selector(topics, "topics"), Consent(accept_loss, trim, accept_reset, accept_divergence)
        return self._done(recover, mirror, selected, consent, dry_run=dry_run)

    def settings(self, mirror: str) -> tuple[SettingRow, ...]:
        """Return a mirror's settings and the connection properties of its source, as `kmirror config` shows them."""
        with self._destination() as destination:
            return show_config(destination, mirror)

    def config(
        self, mirror: str, changes: Mapping[str, str], *, unset: Sequence[str] = (), dry_run: bool = False
    ) -> VerbResult:
        """Change settings of a mirror, and reset those in `unset` to their defaults."""
        return self._done(change_config, mirror, changes, unset, dry_run=dry_run)

    def delete(self, mirror: str, *, dry_run: bool = False) -> VerbResult:
        """Delete a mirror whose topics are all stopped; the topics stay."""
        return self._done(delete, mirror, dry_run=dry_run)

    def events(self, mirror: str | None = None, since: str | None = None) -> tuple[Event, ...]:
        """Return what was done and what happened, oldest first; `since` is a time or a duration, as in `--since`.

        Raises PartlyDoneError, with the events in `result`, if an open transaction hides the newest ones.
        """
        since_ms = None if since is None else parse_timestamp(since, now_ms(), "since")
        with self._destination() as destination:
            page = events(destination, mirror, since_ms)
            return readable(page.events, hidden_notes(page))

    def in_charge(self, mirror: str, topic: str | None = None) -> tuple[EndInCharge, EndInCharge]:
        """Return both ends of a mirror; `in_charge` says which takes the writes, and is None if it is not certain."""
        with self._destination() as destination:
            return in_charge(destination, mirror, topic)

    def _done(
        self, verb: Callable[Concatenate[Destination, P], VerbResult | VerbReport], *args: P.args, **kwargs: P.kwargs
    ) -> VerbResult:
        """Return what a verb has done. Raises the error of its result."""
        with self._destination() as destination:
            done = verb(destination, *args, **kwargs)
        return done_of(done.result if isinstance(done, VerbReport) else done)

    def _destination(self) -> Destination:
        return Destination.open(self._properties, self._expect_cluster_id)
