"""A stop of topics: what is asked for, how it went, and what its steps hand to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.cluster.fence import FenceResult
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.context import Destination
from kmirror.ops.results import GroupResult, Outcome, TopicResult
from kmirror.ops.stop.facts import StopLook
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.source_ends import SourceEnds
from kmirror.ops.stop.steps import Clock
from kmirror.state.records import AtStop, DesiredState, TopicRecord
from kmirror.state.snapshot import State

RUN_AGAIN = "run the same command again to finish"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What is to be stopped, and how; `topics` are destination names."""

    mirror: str
    verb: str
    topics: tuple[str, ...]
    reason: Reason
    #: The whole mirror: its discovery ends with it, and its engine.
    whole: bool = False
    #: Shut the mirror's producers out at the brokers also where its engine has given the topics up.
    always_fence: bool = False
    #: Where markers may not be written, shut them out by one visible record per partition.
    fence_with_record: bool = False
    #: Make no topic writable before where each of them ends is recorded.
    together: bool = False
    #: Source topics that discovery is not to bring back.
    exclude: tuple[str, ...] = ()


@dataclass(slots=True)
class Stopping:
    """How a stop went: results by topic and partition, and how long its steps took, in seconds."""

    results: list[TopicResult] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)
    #: Where the source's records end in each log.
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    #: When topics were proved to be writable, in epoch milliseconds.
    writable_ms: dict[str, int] = field(default_factory=dict)
    #: Why the source did not say where it ends; None when it did, or was not asked.
    source_trouble: str | None = None


@dataclass(slots=True)
class StopWork:
    """A stop in progress; `topics` are claimed and still exist, `failed` are rows of those that cannot be stopped."""

    destination: Destination
    request: StopRequest
    clock: Clock
    done: Stopping
    is_over: bool = False
    failed: dict[str, TopicResult] = field(default_factory=dict)
    topics: Sequence[TopicRecord] = ()
    #: As it was read last: with the claim, then with the recorded ends.
    state: State = field(default_factory=State)
    #: True when the engine may still send something.
    must_fence: bool = False
    look: StopLook = field(init=False)
    #: Log ends that were not recorded before.
    log_ends: Mapping[TopicPartition, FenceResult] = field(default_factory=dict)
    first_source: FirstSource = field(init=False)
    source: SourceEnds = field(init=False)
    at_stop: Mapping[TopicPartition, AtStop] = field(default_factory=dict)

    @property
    def left(self) -> list[TopicRecord]:
        """Return the topics of which nothing has failed."""
        return [topic for topic in self.topics if topic.topic not in self.failed]

    def fail(self, topic: str, error: KmirrorError, partition: int | None = None) -> None:
        """Report what keeps a topic from being stopped now."""
        hint = error.hint or RUN_AGAIN
        row = TopicResult(topic, partition, Outcome.FAILED, error.message, error.reason, hint=hint)
        self.failed[topic] = row
        self.done.results.append(row)


def is_stopped(state: State, topic: TopicRecord) -> bool:
    """Tell whether mirroring to a topic has been stopped, with all that belongs to it."""
    return topic.desired is DesiredState.STOPPED and topic.pending_operation is None
