"""Where the destination refuses a mirror topic's settings, settle for the closest that it accepts (`policies`).

What was found for one topic is tried for the next one first: a cluster has one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.topics.policies import refuses_settings, settled_to_change, settled_to_create
from kmirror.cluster.topics.settling import Settled
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.add.add_plan import TopicPlan
from kmirror.ops.add.add_work import AddWork
from kmirror.ops.base.context import as_kmirror_error
from kmirror.sync.setting_changes import MIRROR_VALUES, SettingsPlan, settings_made, settings_to_change


def settle_new(client: ClusterClient, work: AddWork, refused: Mapping[str, KmirrorError]) -> dict[str, KmirrorError]:
    """Settle for other settings of the new topics that were refused for them; return what stays refused."""
    known: Settled = {}
    left: dict[str, KmirrorError] = {}
    for topic, error in refused.items():
        plan = work.plans[topic]

        def find(settings: SettingsPlan, plan: TopicPlan = plan) -> Settled:
            wanted = {**settings.now, **work.overrides}
            factor = work.settings.replication_factor
            return settled_to_create(client, plan.topic, plan.partitions, factor, wanted, work.overrides)

        found = _settle(plan.settings, known, find) if refuses_settings(error) else error
        if isinstance(found, KmirrorError):
            left[topic] = found
        else:
            known = found.settled
            work.plans[topic] = replace(plan, settings=found)
    return left


def settle_present(
    client: ClusterClient, work: AddWork, present: Mapping[str, TopicSettings]
) -> dict[str, KmirrorError]:
    """Plan the changes of topics that exist, as far as they are accepted; return what is refused whatever is set."""
    known: Settled = {}
    left: dict[str, KmirrorError] = {}
    for topic, here in present.items():
        # an interrupted `add` has set the overrides already, in the request that created the topic
        def changes(settings: SettingsPlan, here: TopicSettings = here) -> dict[str, str]:
            wanted = settings_to_change(settings, here)
            return {key: value for key, value in wanted.items() if key not in work.overrides}

        def find(settings: SettingsPlan, topic: str = topic) -> Settled:
            return settled_to_change(client, topic, changes(settings))

        plan = work.plans[topic]
        found = _settle(plan.settings, known, find)
        if isinstance(found, KmirrorError):
            if refuses_settings(found):
                left[topic] = found
                continue
            found = plan.settings  # the change itself shows what is wrong
        known = found.settled
        work.plans[topic] = replace(plan, settings=found)
        work.made[topic] = settings_made(found, here)
        if to_set := changes(found):
            work.changes[topic] = to_set
    return left


def _settle(plan: SettingsPlan, known: Settled, find: Callable[[SettingsPlan], Settled]) -> SettingsPlan | KmirrorError:
    tried = plan.settling({key: value for key, value in known.items() if key in MIRROR_VALUES})
    try:
        return tried.settling(find(tried))
    except (KmirrorError, OutcomeUnknown) as error:
        return as_kmirror_error(error)
