"""Whether a mirror's source answers and may be mirrored, and whether its destination answers; changes are announced."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from kmirror.cluster.connection import WrongClusterError
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.quota import throttle_text
from kmirror.cluster.seen_throttles import SeenThrottle
from kmirror.engine.driver.source_monitor import SourceReport
from kmirror.engine.status.health import LANE_SILENCE_SECONDS, LATE_SECONDS
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.errors import LINK_REFUSED, KmirrorError, OutcomeUnknown, Reason
from kmirror.settings.durations import format_duration
from kmirror.state.engine_findings import Lacking, NotAdded


class SourceStatus:
    """Follow the status of one mirror's source."""

    def __init__(self, mirror: str, journal: MirrorJournal) -> None:
        self._mirror = mirror
        self._journal = journal
        #: Why the source does not answer, or may not be mirrored; None in the normal case.
        self.trouble: KmirrorError | None = None
        #: When the last request that it answered was sent; None before the first.
        self.seen_at: float | None = None
        self._log_start_trouble = False
        self._passed_over: Mapping[str, str] = {}
        #: The mirror topics that lack partitions of their sources, and where the logs of those begin at the source.
        self.lacking: dict[str, Lacking] = {}
        self.lacking_starts: dict[TopicPartition, int] = {}
        #: The source topics that discovery could not add; None if it added all.
        self.not_added: NotAdded | None = None
        #: When the ends of paused partitions were last read, and the ends, at the source and at the destination.
        self.paused_ends: tuple[float, Mapping[TopicPartition, tuple[int, int]]] = (0.0, {})

    def take(self, report: SourceReport) -> None:
        """Take a report of the source monitor."""
        if report.trouble:
            if self.trouble is None or self.trouble.reason is not report.trouble.reason:
                is_refused = report.trouble.reason in LINK_REFUSED
                level = Level.ERROR if is_refused else Level.WARNING
                what = "cannot be mirrored" if is_refused else "does not answer"
                self._journal.note(f"the source of {self._mirror} {what}: {report.trouble}", level)
                reason = report.trouble.reason or Reason.SOURCE_UNREACHABLE
                details = {"reason": reason, "message": str(report.trouble)}
                self._journal.record("source", "LINK_FAILED" if is_refused else "SOURCE_UNAVAILABLE", details)
            self.trouble = report.trouble
            return
        self.seen_at = report.seen_at or self.seen_at
        for address in report.passed_over.keys() - self._passed_over.keys():
            what = f"{address} in the bootstrap.servers of {self._mirror} is of no use"
            self._journal.note(f"{what}: {report.passed_over[address]}", Level.WARNING)
        self._passed_over = report.passed_over
        if report.lacking is not None:
            self._take_lacking(report.lacking, report.lacking_starts)
        if report.paused is not None:
            self.paused_ends = report.seen_at, report.paused
        if report.log_start_trouble and not self._log_start_trouble:
            self._journal.note(
                f"records that the source of {self._mirror} deleted stay in the mirror: {report.log_start_trouble}",
                Level.WARNING,
            )
        self._log_start_trouble = report.log_start_trouble is not None
        if self.trouble is not None:
            self._journal.note(f"the source of {self._mirror} answers again")
            self._journal.record("source", "ANSWERS_AGAIN", {})
        self.trouble = None

    def _take_lacking(self, found: Mapping[str, Lacking], starts: Mapping[TopicPartition, int]) -> None:
        for topic, one in found.items():
            before = self.lacking.get(topic)
            if before is None or (before.partitions, before.reason) != (one.partitions, one.reason):
                self._journal.note(f"{topic} lacks partitions of its source: {one.message}", Level.WARNING)
                details = {"topic": topic, "partitions": one.partitions, "reason": one.reason, "message": one.message}
                self._journal.record("partitions", "refused", details)
        self.lacking, self.lacking_starts = dict(found), dict(starts)


class DestinationStatus:
    """Follow the status of one mirror's destination."""

    def __init__(self, mirror: str, journal: MirrorJournal) -> None:
        self._mirror = mirror
        self._journal = journal
        self._error: KmirrorError | OutcomeUnknown | None = None
        self._since, self._answers_since = 0.0, -inf
        self._is_announced = False
        #: The broker that has lately made the engine wait for long; None in the normal case.
        self.throttled_by: str | None = None

    def take_throttle(self, throttle: SeenThrottle | None) -> None:
        """Take the last long throttle of the engine's requests; None if there was none lately."""
        if throttle is not None and self.throttled_by is None:
            duration = format_duration(throttle.throttle_time_ms // 1000 * 1000)
            self._journal.note(
                f"{self._mirror}: held up for {duration}: {throttle_text(throttle.address)}", Level.WARNING
            )
        elif throttle is None and self.throttled_by is not None:
            self._journal.note(
                f"{self._mirror}: the destination's broker {self.throttled_by} throttles kmirror no more"
            )
        self.throttled_by = None if throttle is None else throttle.address

    def take(self, error: KmirrorError | OutcomeUnknown | None, at: float) -> None:
        """Take why it did not answer at a time; None if it did."""
        if error is not None and self._error is None:
            self._since = at
        elif error is None and self._error is not None:
            self._answers_since = at
        self._error = error
        if error is None and self._is_announced:
            self._is_announced = False
            self._journal.note(f"the destination of {self._mirror} answers again")
        elif error is not None and not self._is_announced and self.trouble(at) is not None:
            self._is_announced = True
            is_wrong = isinstance(error, WrongClusterError)
            self._journal.note(
                f"the destination of {self._mirror} does not answer: {error}",
                Level.ERROR if is_wrong else Level.WARNING,
            )

    def passes_reports(self, at: float) -> bool:
        """Return whether lanes without reports send none; False: the destination may not have passed them on yet."""
        return self.trouble(at) is None and at - self._answers_since > LATE_SECONDS

    def trouble(self, at: float) -> str | None:
        """Return why nothing is known of the lanes; None if the destination answers, or has just stopped to."""
        if self._error is None:
            return None
        lasts = isinstance(self._error, WrongClusterError) or at - self._since > LANE_SILENCE_SECONDS
        return str(self._error) if lasts else None
