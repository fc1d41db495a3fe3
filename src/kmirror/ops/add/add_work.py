"""The plan of an `add`, and its results while it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmirror.cluster.topics.topic_requests import NewTopic
from kmirror.errors import KmirrorError
from kmirror.ops.add.add_plan import Action, FilterChange, TopicPlan
from kmirror.ops.add.topic_admin import QUOTA_WAIT_S
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.settings.table import Settings
from kmirror.state.records import MirrorRecord


@dataclass(slots=True)
class AddWork:
    """The plan, and the results while it is carried out; `plans` and `changes` are by destination topic."""

    mirror: MirrorRecord
    settings: Settings
    plans: dict[str, TopicPlan]
    results: list[TopicResult]
    filters: FilterChange
    #: Settings to change on topics that exist.
    changes: dict[str, dict[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: By destination topic, the settings of existing topics that count as set by kmirror.
    made: dict[str, dict[str, str]] = field(default_factory=dict)
    #: True if the mirror's filters chose the topics, not an operator.
    discovers: bool = False
    #: The operator's settings for created topics; kmirror never changes them later.
    overrides: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, topic: str, error: KmirrorError, outcome: Outcome = Outcome.REFUSED) -> None:
        """Take a topic out of the plan."""
        del self.plans[topic]
        self.results.append(TopicResult(topic, None, outcome, error.message, error.reason, hint=error.hint))

    def new_topics(self) -> list[NewTopic]:
        """Return the topics to create."""
        new = [plan for plan in self.plans.values() if plan.action is Action.CREATE]
        factor = self.settings.replication_factor
        return [NewTopic(p.topic, p.partitions, factor, {**p.settings.now, **self.overrides}) for p in new]

    @property
    def quota_wait_s(self) -> float:
        """Return how long to wait for the quota of changes: an engine must not, it tries again."""
        return 0.0 if self.discovers else QUOTA_WAIT_S

    @property
    def changes_filters(self) -> bool:
        """Return whether to store the filters: not if every selected topic is refused."""
        refused = any(row.result not in (Outcome.DONE, Outcome.NOOP) for row in self.results)
        return bool(self.filters) and (bool(self.plans) or not refused)
