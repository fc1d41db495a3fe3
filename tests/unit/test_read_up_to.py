"""What one read of a log proves: every condition of the rule, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey
from kmirror.cluster.protocol.read_up_to import (
    EmptyAnswer,
    LocalStart,
    batches_of,
    is_kept_elsewhere,
    local_start_by_settings,
    useless_part,
    why_unproven,
)
from kmirror.cluster.protocol.topic_configs import TopicSetting
from tests.support.partition_shell import stored

EMPTY = FetchedPartition(FetchKey(b"\x01" * 16, 0, "t"), 0, 20, 20, 0, (), memoryview(b""), None)
ALONE = EmptyAnswer(EMPTY, is_alone=True, is_throttled=False, leader_epoch=3)
LOCAL = LocalStart(10, 3, "its records may be in remote storage")


def settings(**values: str | None) -> dict[str, TopicSetting]:
    names = {key.replace("_", "."): value for key, value in values.items()}
    return {"cleanup.policy": TopicSetting("delete", False)} | {k: TopicSetting(v, True) for k, v in names.items()}


@pytest.mark.parametrize("offset", [10, 11, 19])
def test_an_empty_answer_of_the_local_log_is_proof(offset: int) -> None:
    assert why_unproven(offset, ALONE, LOCAL) is None


@pytest.mark.parametrize(
    ("answer", "local", "why"),
    [
        (ALONE._replace(is_alone=False), LOCAL, "together with other partitions"),
        (ALONE._replace(is_throttled=True), LOCAL, "throttles"),
        (ALONE, LOCAL._replace(is_throttled=True), "throttles"),
        (ALONE._replace(leader_epoch=None), LOCAL._replace(leader_epoch=None), "leader may have changed"),
        (ALONE, LOCAL._replace(leader_epoch=4), "leader may have changed"),
        (ALONE, LOCAL._replace(leader_epoch=None), "leader may have changed"),
        (ALONE, LOCAL._replace(offset=None), "may be in remote storage"),
        (ALONE, LOCAL._replace(offset=11), "offsets below 11 are in remote storage"),
        (ALONE._replace(part=replace(EMPTY, preferred_read_replica=2)), LOCAL, "another replica or epoch"),
        (ALONE._replace(part=replace(EMPTY, diverging_epoch=(2, 5))), LOCAL, "another replica or epoch"),
    ],
)
def test_each_condition_is_needed(answer: EmptyAnswer, local: LocalStart, why: str) -> None:
    found = why_unproven(10, answer, local)
    assert found is not None
    assert why in found


@pytest.mark.parametrize(
    ("found", "start"),
    [
        (settings(), 0),
        (settings(remote_storage_enable="false"), 0),
        (settings(remote_storage_enable="true"), None),
        (settings(confluent_tier_enable="true"), None),
        (settings(redpanda_remote_read="true"), None),
        (settings(inkless_enable="true"), None),
        ({}, None),
        ({"remote.storage.enable": TopicSetting("false", False)}, None),
    ],
)
def test_settings_tell_whether_a_log_is_local(found: dict[str, TopicSetting], start: int | None) -> None:
    assert local_start_by_settings(found) == start


def test_kafka_tells_where_a_tiered_log_is_local_but_other_vendors_may_not() -> None:
    assert not is_kept_elsewhere(settings(remote_storage_enable="true"))
    assert is_kept_elsewhere(settings(confluent_tier_enable="true"))
    assert not is_kept_elsewhere(settings(confluent_tier_enable=None))


# -- answers with records ----------------------------------------------------------------------------------------------


def part(*batches: bytearray) -> FetchedPartition:
    return replace(EMPTY, records=memoryview(b"".join(batches)))


def test_a_later_batch_proves_the_hole_before_it() -> None:
    found = batches_of(part(stored(5, 3), stored(12, 2)), 6)
    assert found is not None
    assert (found.offset, found.next_offset, [h.base_offset for h in found.headers]) == (6, 14, [5, 12])


@pytest.mark.parametrize("records", [(), (stored(5, 3),), (stored(12, 2)[:-1],), (stored(5, 3), stored(12, 2)[:-1])])
def test_what_leads_nowhere_is_no_batch(records: tuple[bytearray, ...]) -> None:
    answer = part(*records)
    assert batches_of(answer, 8) is None
    assert (useless_part(answer, 8) is None) is (not records)


def test_a_corrupt_batch_ends_what_is_known() -> None:
    corrupt = stored(8, 1)
    corrupt[8:12] = b"\x00\x00\x00\x01"
    found = batches_of(part(stored(5, 3), corrupt), 5)
    assert found is not None
    assert found.next_offset == 8
    with pytest.raises(CorruptBatchError):
        batches_of(part(corrupt), 8)
