"""The plan of an offline truncation: which partitions of which cluster to cut where. `failback` writes it as JSON.

The operator copies the file from where failback ran to each broker; it holds no secrets and no addresses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kmirror.bounded_files import MOST_DOCUMENT_BYTES, expanded, read_file
from kmirror.cluster.protocol.wire import is_topic_name, parse_topic_id
from kmirror.columns import (
    COUNT,
    END,
    OFFSET,
    TEXT,
    TIME,
    Column,
    Only,
    Type,
    columns_of,
    document,
    list_of,
    object_of,
    shown,
    table_row,
)
from kmirror.errors import UsageError
from kmirror.files import replace_file
from kmirror.offline.survey import PlannedCut

_VERSION = 1
_HINT = "use the file as written by `kmirror failback --offline --plan FILE`"


_CUT: tuple[Column[PlannedCut], ...] = (
    Column("topic", TEXT, "the topic", lambda cut: cut.topic),
    Column("topicId", TEXT, "its id as Kafka prints it", lambda cut: cut.topic_id),
    Column("partition", COUNT, "the partition", lambda cut: cut.partition),
    Column("cutOffset", OFFSET, "the first offset that is cut off", lambda cut: cut.cut_offset),
    Column(
        "expectedLogEnd",
        END,
        "where the log ended when the plan was made; a longer one is refused",
        lambda cut: cut.expected_log_end,
        only=Only("partitions of which it is known", lambda cut: cut.expected_log_end is not None),
    ),
    Column(
        "leaderEpoch",
        COUNT,
        "the leader epoch when the plan was made; a log with records of a later one after the cut is refused",
        lambda cut: cut.leader_epoch,
        only=Only("partitions of which it is known", lambda cut: cut.leader_epoch is not None),
    ),
)


@table_row(kw_only=False)
class TruncationPlan:
    """Which logs of a cluster to cut, for which `mirror`; `created_at_ms` in epoch milliseconds."""

    cluster_id: str = shown(TEXT, "id of the cluster whose logs are cut")
    mirror: str = shown(TEXT, "the mirror it is for")
    created_at_ms: int = shown(TIME, "when the plan was made", key="createdAt")
    partitions: tuple[PlannedCut, ...] = shown(list_of(object_of(_CUT)), "the partitions to cut")
    archives_kept_until_ms: int | None = shown(
        TIME,
        "when the first archive begins to delete what is cut off; the plan is refused from then on",
        key="archivesKeptUntil",
        only=Only(
            "plans with an archive that keeps records for a limited time",
            lambda plan: plan.archives_kept_until_ms is not None,
        ),
        default=None,
    )

    @property
    def digest(self) -> str:
        """A checksum of cluster, topics and offsets: the same for plans of the same cuts."""
        cuts = sorted((cut.topic, cut.topic_id, cut.partition, cut.cut_offset) for cut in self.partitions)
        return hashlib.sha256(json.dumps([self.cluster_id, cuts]).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as written to its file."""
        return document(PLAN, self)


PLAN: tuple[Column[TruncationPlan], ...] = (
    Column("version", Type("integer", "plan version", codes=(_VERSION,)), "version of the format", lambda _: _VERSION),
    *columns_of(TruncationPlan),
)


def read_plan(path: str | Path) -> TruncationPlan:
    """Read and validate a plan. Raises UsageError: the file cannot be read, or is not a plan; says where."""
    try:
        stored = json.loads(read_file(expanded(path, "--plan"), MOST_DOCUMENT_BYTES))
    except OSError as error:
        raise UsageError(f"--plan: cannot read {path}: {error.strerror}", _HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--plan: {path} is not JSON: {error}", _HINT) from None
    try:
        return parse_plan(stored)
    except ValueError as error:
        raise UsageError(f"--plan: {path}: {error}", _HINT) from None


def parse_plan(stored: object) -> TruncationPlan:
    """Return the plan in a JSON document. Raises ValueError with what is wrong."""
    plan = _object(stored, "the plan")
    if plan.get("version") != _VERSION:
        raise ValueError(f"its version is {plan.get('version')!r}, not {_VERSION}")
    listed = plan.get("partitions")
    if not isinstance(listed, list) or not listed:
        raise ValueError("partitions is not a list with at least one entry")
    cuts = tuple(_partition(one, f"partitions[{index}]") for index, one in enumerate(listed))
    partitions = [cut.topic_partition for cut in cuts]
    twice = next((partition for index, partition in enumerate(partitions) if partition in partitions[:index]), None)
    if twice:
        raise ValueError(f"it names {twice} twice")
    return TruncationPlan(
        _text(plan, "clusterId"),
        _text(plan, "mirror"),
        _number(plan, "createdAt"),
        tuple(sorted(cuts, key=lambda cut: cut.topic_partition)),
        None if plan.get("archivesKeptUntil") is None else _number(plan, "archivesKeptUntil"),
    )


def write_plan(plan: TruncationPlan, path: str | Path) -> None:
    """Write a plan's file atomically. Raises UsageError: it cannot be written."""
    parse_plan(plan.to_json())  # never write a plan that cannot be read
    target = expanded(path, "--plan")
    try:
        replace_file(target, json.dumps(plan.to_json(), indent=2) + "\n")
    except OSError as error:
        raise UsageError(
            f"--plan: cannot write {path}: {error.strerror}", "give a file in a writable directory"
        ) from None


def _partition(stored: object, what: str) -> PlannedCut:
    one = _object(stored, what)
    topic, topic_id = _text(one, "topic", what), _text(one, "topicId", what)
    if not is_topic_name(topic):
        raise ValueError(f"{what}.topic is not a topic's name")
    if topic == "__cluster_metadata":
        raise ValueError(f"{what}: the cluster's own metadata is never truncated")
    try:
        parse_topic_id(topic_id)
    except ValueError:
        raise ValueError(f"{what}.topicId is not a topic id") from None
    expected = None if one.get("expectedLogEnd") is None else _number(one, "expectedLogEnd", what)
    epoch = None if one.get("leaderEpoch") is None else _number(one, "leaderEpoch", what)
    return PlannedCut(
        topic, topic_id, _number(one, "partition", what), _number(one, "cutOffset", what), expected, epoch
    )


def _object(stored: object, what: str) -> Mapping[str, Any]:
    if not isinstance(stored, dict):
        raise ValueError(f"{what} is not a JSON object")
    return stored


def _text(stored: Mapping[str, Any], key: str, what: str = "the plan") -> str:
    value = stored.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} of {what} is not a string")
    return value


def _number(stored: Mapping[str, Any], key: str, what: str = "the plan") -> int:
    value = stored.get(key)
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} of {what} is not a number of 0 or more")
    return value
