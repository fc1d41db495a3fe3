"""What cannot be saved is not archived, and an archive in which anything is wrong is never taken for a true one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import cast

import pytest

from kmirror.engine.clock import now_ms
from kmirror.errors import RefusedError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import check, make_archive, save
from tests.support.clusters import unique_topic
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import librdkafka_records
from tests.support.producers import whole_batches
from tests.support.real_logs import CompactedTopic, delete_records, write
from tests.support.saved_topics import assert_saved, cluster, make_topic, quick_to_believe, short_memory
from tests.support.topics import set_topic
from tests.support.transactions import OpenTransaction
from tests.support.visible import bounds_of, shown
from tests.support.waiting import wait_until

__all__ = ["cluster", "quick_to_believe", "short_memory"]


# -- what cannot be saved ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_to_believe")
def test_an_open_transaction_hides_what_is_to_be_saved(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 5)
    archive = make_archive(cluster, topic)
    with OpenTransaction(cluster, topic) as transaction:
        write(cluster, topic, 5)
        with pytest.raises(RefusedError, match="shows consumers nothing from offset 5 on: a transaction is open"):
            save(cluster, topic, archive, [(0, 20)])
        transaction.abort()
    wait_until(lambda: bounds_of(cluster, topic, isolation="read_committed").end == 21)
    assert save(cluster, topic, archive, [(0, 21)]).records == 10
    assert_saved(cluster, topic, archive, [(0, 21)])


@pytest.mark.usefixtures("quick_to_believe")
def test_a_log_that_ends_too_early(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 5)
    with pytest.raises(RefusedError, match="ends at offset 5, before 6"):
        save(cluster, topic, make_archive(cluster, topic), [(0, 6)])


def test_another_topics_records_are_never_built_upon(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 10)
    foreign = make_topic(cluster, 3)
    with pytest.raises(RefusedError, match="not an archived"):
        save(cluster, topic, foreign, [(0, 10)])
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(5, 9)])
    with pytest.raises(RefusedError, match="ends with the record of offset 8"):
        save(cluster, topic, archive, [(0, 5)])


# -- comparing ---------------------------------------------------------------------------------------------------------


Copy = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Copies = list[Copy]


def left_out(copies: Copies) -> None:
    del copies[4]


def doubled(copies: Copies) -> None:
    copies.insert(4, copies[4])


def swapped(copies: Copies) -> None:
    copies[4], copies[5] = copies[5], copies[4]


def cut_off(copies: Copies) -> None:
    del copies[4:]


def replaced(index: int, content: object) -> Callable[[Copies], None]:
    def change(copies: Copies) -> None:
        copies[4] = cast("Copy", (*copies[4][:index], content, *copies[4][index + 1 :]))

    return change


def copies_of(cluster: SandboxCluster, topic: str) -> Copies:
    """Save eight records, and return what is in the archive."""
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 8)])
    saved = librdkafka_records(cluster.bootstrap_servers, archive)
    return [(one.timestamp, one.key, one.value, list(one.headers)) for one in saved]


def archive_with(cluster: SandboxCluster, topic: str, copies: Copies) -> str:
    """Make an archive that holds this."""
    archive = make_archive(cluster, topic)
    producer = whole_batches(archive, {"bootstrap.servers": cluster.bootstrap_servers})
    for timestamp, key, value, headers in copies:
        producer.produce(archive, value, key, 0, timestamp=timestamp, headers=headers)
    assert producer.flush(30) == 0
    return archive


@pytest.fixture(scope="module")
def eight(cluster: SandboxCluster) -> tuple[str, Copies]:
    """Return a topic of eight records, and what its archive holds."""
    topic = make_topic(cluster, 8)
    return topic, copies_of(cluster, topic)


@pytest.mark.parametrize(
    ("damage", "offset", "what"),
    [
        (left_out, 4, "is that of offset 5"),
        (doubled, 5, "is that of offset 4"),
        (swapped, 4, "is that of offset 5"),
        (cut_off, 4, "which ends before it"),
        (lambda copies: copies.append(copies[0]), 0, "an extra record"),
        (lambda copies: copies.append((5, b"k", b"v", [])), None, "an extra record"),
        (replaced(0, 1234), 4, "timestamp of the record"),
        (replaced(1, b"another"), 4, "key of the record"),
        (replaced(2, None), 4, "value of the record"),
        (replaced(3, [("n", b"4")]), 4, "has no header with its original offset"),
        (lambda copies: copies[4][3].insert(1, ("more", b"")), 4, "headers of the record"),
        (
            lambda copies: copies[4][3].__setitem__(-2, ("kmirror.leader.epoch", b"99")),
            4,
            "added headers of the record",
        ),
    ],
)
def test_whatever_is_wrong_is_found(
    cluster: SandboxCluster,
    eight: tuple[str, Copies],
    damage: Callable[[Copies], None],
    offset: int | None,
    what: str,
) -> None:
    topic, copies = deepcopy(eight)
    damage(copies)
    bad = archive_with(cluster, topic, copies)
    found = check(cluster, topic, bad, [(0, 8)])
    assert found.first_difference is not None
    assert found.first_difference.offset == offset
    assert what in found.first_difference.what


def test_a_log_that_loses_records_after_they_were_saved(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 20)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 3), (4, 9)])
    delete_records(cluster, topic, 6)
    found = check(cluster, topic, archive, [(0, 3), (4, 9)])
    assert found.equal
    assert (found.records, found.only_archived) == (3, 5)
    # and continues
    save(cluster, topic, archive, [(0, 3), (4, 20)])
    found = check(cluster, topic, archive, [(0, 3), (4, 20)])
    assert (found.equal, found.records, found.only_archived) == (True, 14, 5)


def test_a_cleaner_that_removes_records_after_they_were_saved(busy_cluster: SandboxCluster) -> None:
    compacted = CompactedTopic(busy_cluster, unique_topic("compacted"), {})
    compacted.write_and_clean()
    topic, cluster = compacted.topic, busy_cluster
    archive, end = make_archive(cluster, topic), bounds_of(cluster, topic).end
    saved = save(cluster, topic, archive, [(0, end)]).records
    for _ in range(2):
        compacted.write_round()
    compacted.wait_until_cleaned(compacted.write_round())
    compacted.freeze()
    left = sum(record.offset < end for record in shown(cluster, topic))
    assert left < saved
    found = check(cluster, topic, archive, [(0, end)])
    assert (found.equal, found.records, found.only_archived) == (True, left, saved - left)
    # what an archive lacks, or has twice, is found nevertheless
    copies = [(one.timestamp, one.key, one.value, list(one.headers)) for one in shown(cluster, archive)]
    present = {record.offset for record in shown(cluster, topic)}
    index = next(i for i, (*_, headers) in enumerate(copies) if int(dict(headers)["kmirror.offset"] or b"") in present)
    for wrong in ([*copies[:index], *copies[index + 1 :]], [*copies[:1], *copies]):
        found = check(cluster, topic, archive_with(cluster, topic, wrong), [(0, end)])
        assert not found.equal
        assert str(found).startswith("at offset ")


def test_a_cleaner_that_removes_records_without_a_key_after_they_were_saved(busy_cluster: SandboxCluster) -> None:
    cluster, topic = busy_cluster, unique_topic("compacted")
    compacted = CompactedTopic(cluster, topic, {"cleanup.policy": "delete"})
    write(cluster, topic, [VisibleRecord(0, now_ms(), None, b"value %d" % n, ()) for n in range(20)])
    end = compacted.write_round()
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, end)])
    set_topic(cluster, topic, {"cleanup.policy": "compact"})
    compacted.wait_until_cleaned(compacted.write_round())
    compacted.freeze()
    assert not [record for record in shown(cluster, topic) if record.offset < end]
    found = check(cluster, topic, archive, [(0, end)])
    assert (found.equal, found.records, found.only_archived) == (True, 0, 20)


@pytest.mark.parametrize("damage", [doubled, swapped])
def test_what_the_log_has_lost_is_to_be_in_order_all_the_same(
    cluster: SandboxCluster, damage: Callable[[Copies], None]
) -> None:
    topic = make_topic(cluster, 8)
    copies = copies_of(cluster, topic)
    damage(copies)
    bad = archive_with(cluster, topic, copies)
    delete_records(cluster, topic, 6)
    found = check(cluster, topic, bad, [(0, 8)])
    assert found.first_difference is not None
    assert "is that of offset 4" in found.first_difference.what
