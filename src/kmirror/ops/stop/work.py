"""A stop of topics: the request, its results, and what its steps share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.writing.fence import FenceResult, Writer
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.ops.show.cluster_view import BackgroundQuery
from kmirror.ops.stop.facts import StopFacts
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.source_ends import SourceEnds
from kmirror.ops.stop.steps import StepRunner
from kmirror.state.records import AtStop, DesiredState, Rebuild, TopicRecord
from kmirror.state.snapshot import State

RUN_AGAIN = "run the same command again to finish"

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

    def fail(self, topic: str, error: KmirrorError, partition: int | None = None) -> None:
        """Report why a topic cannot be stopped now."""
        hint = error.hint or (RUN_AGAIN if self.runner.acts else None)
        row = TopicResult(topic, partition, Outcome.FAILED, error.message, error.reason, hint=hint)
        self.failed[topic] = row
        self.done.results.append(row)


def is_stopped(topic: TopicRecord) -> bool:
    """Return whether mirroring to a topic has been stopped completely, with no operation pending."""
    return topic.desired is DesiredState.STOPPED and topic.pending_operation is None
