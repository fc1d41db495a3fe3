"""A stop of topics: the request, its results, and what its steps share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.writing.fence import FenceResult, Writer
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.base.context import Destination
from kmirror.ops.base.retrying import interrupted_row
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.ops.show.cluster_view import BackgroundQuery
from kmirror.ops.stop.facts import StopFacts
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.report import already_stopped_rows
from kmirror.ops.stop.source_ends import SourceEnds
from kmirror.ops.stop.steps import StepRunner
from kmirror.state.records import AtStop, DesiredState, Rebuild, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import boottime

T = TypeVar("T")
RUN_AGAIN = "run the same command again to finish"
#: Nobody can have undone a stop, and mirrored its topics again, since it was seen so recently.
_SEEN_S = 1.0

#: The settings of topics, an error code for one that has none to show; and those that topics have by default.
PresentSettings = tuple[Mapping[str, TopicSettings | int], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What to stop, and how; `topics` are destination names."""

    mirror: str
    verb: str
    topics: tuple[str, ...]
    reason: Reason
    #: The whole mirror: also ends its discovery and its engine.
    whole: bool = False
    #: Fence the mirror's producers at the brokers even if the engine has released the topics.
    always_fence: bool = False
    #: If we may not write markers, fence with one visible record per partition.
    fence_with_record: bool = False
    #: Make no topic writable before the ends of all of them are recorded.
    together: bool = False
    #: Source topics that discovery must not bring back.
    exclude: tuple[str, ...] = ()


@dataclass(slots=True)
class StopResults:
    """Results of a stop by topic and partition."""

    results: list[TopicResult] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: Where the source's records end in each log.
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    #: When a probe showed that a topic is writable, in epoch milliseconds.
    writable_ms: dict[str, int] = field(default_factory=dict)
    #: The stored state after a stop that has acted, as it was last read and written.
    state: State | None = None
    #: Why the source did not return its ends; None if it did, or was not asked.
    source_trouble: str | None = None

    def add_stopped(self, rows: Sequence[TopicResult]) -> None:
        """Add the rows of a topic that another command has stopped; a promote compares its ends all the same."""
        self.results += rows
        for row in rows:
            if row.last_mirrored_offset is not None and row.at_stop is not None and row.at_stop.unchecked:
                self.ends[TopicPartition(row.topic or "", row.partition or 0)] = row.last_mirrored_offset

    def has_stopped(self, topic: str) -> bool:
        """Return whether a whole topic is stopped; one on which WRITE is denied has a FAILED row of its own, too."""
        rows = [row for row in self.results if row.topic == topic]
        stopped = {row.partition for row in rows if row.result in (Outcome.DONE, Outcome.NOOP)}
        return bool(stopped) and stopped.issuperset(row.partition for row in rows if row.partition is not None)


@dataclass(slots=True)
class StopWork:
    """A stop in progress; `topics` are claimed and still exist, `failed` has rows of those that cannot be stopped."""

    destination: Destination
    request: StopRequest
    runner: StepRunner
    #: The stored state, with what was recorded since; in a dry run with what would be.
    state: State
    done: StopResults = field(default_factory=StopResults)
    #: Closed when the stop is over.
    resources: ExitStack = field(default_factory=ExitStack)
    is_over: bool = False
    failed: dict[str, TopicResult] = field(default_factory=dict)
    topics: Sequence[TopicRecord] = ()
    #: The requested topics as the destination described them at first.
    here: Mapping[str, TopicMetadata] = field(default_factory=dict)
    #: The topics that were being rebuilt when they were claimed.
    rebuilds: dict[str, Rebuild] = field(default_factory=dict)
    #: The destination's topics and leaders when the stop began; one that has moved since is looked up again.
    metadata: ClusterMetadata | None = None
    #: The topics of which there is nothing to stop.
    gone: Sequence[TopicRecord] = ()
    #: True if it is unknown whether the last change of the stored state was made.
    in_doubt: bool = False
    #: When the stored state was last asked for, or decided upon, on `boottime()`'s clock.
    seen_at: float = 0.0
    #: True if the engine may still send something.
    must_fence: bool = False
    facts: StopFacts = field(init=False)
    #: The producers of the partitions whose ends are not recorded yet, and the ends found since.
    writers: Mapping[TopicPartition, Writer] = field(default_factory=dict)
    log_ends: dict[TopicPartition, FenceResult] = field(default_factory=dict)
    first_source: FirstSource = field(init=False)
    #: Where filler ends that must not stay visible.
    fillers: dict[TopicPartition, int] = field(default_factory=dict)
    #: Where logs start and end.
    ranges: Mapping[TopicPartition, tuple[int, int]] | None = None
    #: Reads the topics' settings and their defaults beside all else; what it has read, until something changes them.
    settings_query: BackgroundQuery | None = None
    present: PresentSettings | None = None
    #: By topic, the deferred settings that it does not have yet.
    settings: dict[str, Mapping[str, str | None]] = field(default_factory=dict)
    source: SourceEnds = field(init=False)
    #: What was known of each partition when it was stopped.
    at_stop: Mapping[TopicPartition, AtStop] = field(default_factory=dict)

    @property
    def left(self) -> list[TopicRecord]:
        """Topics for which nothing has failed."""
        return [topic for topic in self.topics if topic.topic not in self.failed]

    @property
    def becomes(self) -> str:
        """The verb for what the stop brings about."""
        return "is" if self.runner.acts else "would be"

    def drop_taken(self) -> None:
        """Drop the topics that were mirrored again meanwhile, and those that another command has stopped.

        To be called before anything else than the stored state is changed.
        """
        if not (self.runner.acts and self.left) or (
            self.destination.condition is None and boottime() < self.seen_at + _SEEN_S
        ):
            return
        seen_at, state = boottime(), self.destination.state()
        self.destination.require_condition(state)
        self.seen_at = seen_at
        for topic in self.left:
            now = state.topic(topic.mirror, topic.topic)
            if error := taken(topic, state):
                self.fail(topic.topic, error)
            elif now is not None and is_stopped(now):
                self.done.add_stopped(already_stopped_rows(state, now))
                self.topics = [one for one in self.topics if one is not topic]
        names = {topic.topic for topic in self.left}
        self.writers, self.log_ends = _among(names, self.writers), _among(names, self.log_ends)
        self.fillers, self.ranges = _among(names, self.fillers), self.ranges and _among(names, self.ranges)
        self.settings = {name: one for name, one in self.settings.items() if name in names}
        self.is_over |= not names

    @contextmanager
    def none_taken(self) -> Iterator[None]:
        """Drop such topics, and let all that is stored meanwhile require that none of the others is mirrored again."""

        def require(state: State) -> None:
            for topic in self.left:
                if error := taken(topic, state):
                    raise error

        self.drop_taken()
        if not self.runner.acts:
            yield
            return
        with self.destination.requiring(require):
            yield

    def fail(self, topic: str, error: KmirrorError, partition: int | None = None) -> None:
        """Report why a topic cannot be stopped now."""
        hint = error.hint or (RUN_AGAIN if self.runner.acts else None)
        row = interrupted_row(topic, error.message, error, hint, partition)
        self.failed[topic] = row
        self.done.results.append(row)


def taken(topic: TopicRecord, state: State) -> KmirrorError | None:
    """Return an error if a topic was mirrored again since it was claimed, and no longer has the stop of that time."""
    now = state.topic(topic.mirror, topic.topic)
    if now is not None and now.desired is DesiredState.STOPPED and now.added_at_ms == topic.added_at_ms:
        return None
    why = f"{topic.topic} was mirrored again, or forgotten, while this command did not respond"
    return KmirrorError(why, "check with `kmirror describe` and `kmirror events`", Reason.FENCED)


def _among(topics: Collection[str], found: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
    return {partition: one for partition, one in found.items() if partition.topic in topics}


def is_stopped(topic: TopicRecord) -> bool:
    """Return whether mirroring to a topic has been stopped completely, with no operation pending."""
    return topic.desired is DesiredState.STOPPED and topic.pending_operation is None
