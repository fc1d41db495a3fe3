"""Find out what a destination guarantees, on a topic of its own: whatever the brokers call themselves.

Each guarantee has a partition of its own, so that one that is broken does not hide the others, and is tried with the
code that copies, fills, fences and trims. What that raises is judged as well: brokers that do not answer, or do not
append as they should.
"""

from __future__ import annotations

from collections.abc import Callable

from kmirror.cluster.client import ClusterClient
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import REACH_TIMEOUT_S, now_ms
from kmirror.ops.probe.appends import SEQUENCES, append_guarantees
from kmirror.ops.probe.guarantees import Guarantee, Verdict, failed, holds, weaker
from kmirror.ops.probe.log_probes import LOG_STARTS, TOPIC_IDS, recreation_guarantees, trim_guarantees
from kmirror.ops.probe.marker_probes import FENCE, MARKERS, fence_guarantees, marker_guarantees
from kmirror.ops.probe.partition import ProbePartition, probe_partition
from kmirror.ops.probe.record_probes import RECORDS, record_guarantees
from kmirror.ops.probe.topic import ProbeTopic
from kmirror.ops.rights.protection import NO_AUTHORIZER, OPEN_BY_DEFAULT, survey
from kmirror.sync.setting_changes import SettingsPlan, settled_notes

SETTINGS, ACLS = "topic settings", "ACLs"


def probe_destination(
    client: ClusterClient, replication_factor: int, on_guarantee: Callable[[Guarantee], None]
) -> None:
    """Create a topic, try each guarantee, and delete the topic; `on_guarantee` is called with each one found.

    Raises:
        RefusedError: another probe is running, or a right on the topic is missing (NOT_AUTHORIZED).
        BrokerError: the topic is refused.
        UnreachableError, OutcomeUnknown: no answer; the message names the topic if it may be left.
    """

    def attempt(what: str, find: Callable[[], list[Guarantee]]) -> None:
        try:
            found = find()
        except (KmirrorError, OutcomeUnknown) as error:
            found = [failed(what, error)]
            if found[0].reason is Reason.DESTINATION_UNREACHABLE:
                client.metadata([], timeout=REACH_TIMEOUT_S)  # the others would wait in vain
        for one in found:
            on_guarantee(one)

    def attempt_on(index: int, what: str, find: Callable[[ProbePartition], list[Guarantee]]) -> None:
        def found() -> list[Guarantee]:
            with probe_partition(client, topic.partition(index)) as trial:
                return find(trial)

        attempt(what, found)

    with ProbeTopic(client, replication_factor) as topic:
        attempt(SETTINGS, lambda: _settings(topic))
        attempt_on(0, SEQUENCES, append_guarantees)
        attempt_on(1, RECORDS, lambda trial: record_guarantees(trial, topic.largest_batch))
        attempt_on(2, MARKERS, marker_guarantees)
        attempt_on(3, FENCE, fence_guarantees)
        attempt_on(4, LOG_STARTS, trim_guarantees)
        attempt_on(5, TOPIC_IDS, lambda trial: recreation_guarantees(trial, topic))
    attempt(ACLS, lambda: [_acls(client)])


def _settings(topic: ProbeTopic) -> list[Guarantee]:
    # brokers of each version lack some limits of time: what is accepted is tried with records
    settled = {key: value for key, value in topic.settled.items() if not key.endswith(".max.ms")}
    plan = SettingsPlan({"cleanup.policy": "delete"}, {}, settled=settled)
    notes = settled_notes({"new mirror topics": plan}, now_ms())
    hint = "ask who runs the destination to allow it (a topic policy)"
    return [weaker(SETTINGS, note, hint) for note in notes] or [holds(SETTINGS, "those of mirror topics are accepted")]


def _acls(client: ClusterClient) -> Guarantee:
    """Create ACLs for a name that no topic has, and delete them, as the protection of mirror topics does."""
    ground = survey(client, [])
    if ground.detected_only is None:
        return holds(ACLS, "they can be created, so mirror topics can be protected from other clients")
    message = f"mirror topics are not protected, foreign writes are detected afterwards: {ground.detected_only}"
    if ground.detected_only.startswith((NO_AUTHORIZER, OPEN_BY_DEFAULT)):
        return weaker(ACLS, message, ground.hint or "")
    return Guarantee(ACLS, Verdict.UNKNOWN, message, ground.hint)
