"""What an inspection finds out about logs that begin above 0, have holes, or are of any kind."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from confluent_kafka import Producer

from kmirror.cluster.protocol.batch import SEQUENCE_MASK, batch_headers
from kmirror.cluster.protocol.filler import filler_batch
from kmirror.engine.clock import now_ms
from kmirror.engine.histories.judge import AdvanceStart, Copy, ForeignWriters, TailMatch, Wait
from kmirror.errors import Reason
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.inspected import Pair, delete_records, failure, fill, produce, transact
from tests.support.leader import Leader, batch_of
from tests.support.logs import BuiltLog
from tests.support.mirrors import create_again
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.waiting import wait_until

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}


# -- a log that starts above 0 -----------------------------------------------------------------------------------------


def test_a_log_start_is_built_step_by_step_and_may_move_on_meanwhile(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 900)
    delete_records(pair.source, topic, 500)
    assert pair.inspect(topic)[1] == AdvanceStart(500)
    with pair.at_copy(topic) as copy:
        fill(copy, 200)
        assert pair.inspect(topic)[1] == AdvanceStart(500)
        fill(copy, 500)
        assert pair.inspect(topic)[1] == AdvanceStart(500)
        delete_records(pair.source, topic, 600)
        assert pair.inspect(topic)[1] == AdvanceStart(600)
        fill(copy, 600)
        delete_records(pair.destination, topic, 600)
        assert pair.inspect(topic)[1] == Copy(600)
        delete_records(pair.source, topic, 650)
        assert pair.inspect(topic)[1] == AdvanceStart(650)
        fill(copy, 650)
        delete_records(pair.destination, topic, 650)
    pair.copy(topic, 700)
    facts, verdict = pair.inspect(topic)
    assert (facts.tail, verdict) == (TailMatch.SAME, Copy(700))
    delete_records(pair.source, topic, 750)
    assert failure(pair.inspect(topic)[1]) == (Reason.SOURCE_TRUNCATED, 700)


def test_filler_that_is_back_is_trimmed_again_whatever_follows_it(pair: Pair) -> None:
    records, silent = pair.topic(), pair.topic()
    for topic in (records, silent):
        produce(pair.source, topic, 500)
        delete_records(pair.source, topic, 500)
    produce(pair.source, records, 10)
    transact(pair.source, silent, 10, commit=False)
    for topic in (records, silent):
        with pair.at_copy(topic) as copy:
            fill(copy, 500)
        # as a broker has it that died before it had noted the trim
        pair.copy(topic, 510)
        facts, verdict = pair.inspect(topic)
        assert (facts.only_filler, facts.filler_end) == (False, 500)
        assert isinstance(verdict, Copy)
        assert verdict.trim_to == 500
        delete_records(pair.destination, pair.copy_of(topic), 500)
        facts, verdict = pair.inspect(topic)
        assert isinstance(verdict, Copy)
        assert verdict.trim_to is None


@pytest.mark.parametrize("start", [0, 500])
def test_copied_records_that_look_like_filler_are_kept(pair: Pair, start: int) -> None:
    """A client of the source can write the same bytes."""
    topic = pair.topic()
    if start:
        produce(pair.source, topic, start)
        delete_records(pair.source, topic, start)
    produce(pair.source, topic, 10)
    with pair.at_copy(topic) as copy:
        fill(copy, start)
    pair.copy(topic, start + 10)
    planted = filler_batch(20, now_ms())
    with pair.at(topic) as source, pair.at_copy(topic) as copy:
        assert source.append_as_is(bytearray(planted)).error_code == 0
        assert copy.append(planted, start + 10) == (0, start + 10)
    facts, verdict = pair.inspect(topic)
    assert (facts.tail, facts.filler_end) == (TailMatch.SAME, start or None)
    assert verdict == Copy(start + 30, trim_to=start or None)
    delete_records(pair.source, topic, start + 30)
    facts, verdict = pair.inspect(topic)
    assert (facts.only_filler, facts.filler_end) == (False, start or None)
    assert verdict == Copy(start + 30, trim_to=start or None)
    produce(pair.source, topic, 5)
    delete_records(pair.source, topic, start + 31)
    assert failure(pair.inspect(topic)[1]) == (Reason.SOURCE_TRUNCATED, start + 30)


def test_filler_is_not_built_upon_where_the_source_has_records(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 100)
    with pair.at_copy(topic) as copy:
        fill(copy, 40)
    facts, verdict = pair.inspect(topic)
    assert facts.only_filler
    assert isinstance(verdict, Wait)
    assert verdict.trouble.permanent_after_retries


# -- compaction --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cleaned(forgetful: ForgetfulCluster) -> Iterator[Pair]:
    """Return a pair of topics of one cluster, whose cleaner does not wait."""
    with closing(Pair(forgetful.cluster, forgetful.cluster)) as made:
        yield made


def written(leader: Leader, sequence: Iterator[int] | None, key: bytes, at: int) -> None:
    """Append one record, in a segment of its own sooner or later."""
    batch = batch_of(1, key=key, value=b"at %d" % at, timestamp=at)
    if sequence is None:
        assert leader.append_as_is(batch).error_code == 0
    else:
        assert leader.append(batch, next(sequence))[0] == 0


def stored_batches(leader: Leader) -> int:
    return len(list(batch_headers(leader.fetch(0).records)))


def test_both_cleaners_may_have_been_at_work(cleaned: Pair) -> None:
    """First on records that were copied, then on the copy, which has markers where the source's cleaner was first."""
    topic = cleaned.topic(settings=COMPACTED)
    clock, sequence = count(time.time_ns() // 1_000_000 - 10_000_000, 1000), count()
    with cleaned.at(topic) as source, cleaned.at_copy(topic) as copy:
        for index in range(30):
            at, key = next(clock), b"same" if index % 3 else b"key-%d" % index
            written(source, None, key, at)
            written(copy, sequence, key, at)
        assert cleaned.inspect(topic)[1] == Copy(30)

        def is_source_cleaned() -> bool:
            written(source, None, b"another", next(clock))
            time.sleep(0.1)
            return stored_batches(source) < source.log_end - 15

        wait_until(is_source_cleaned)
        facts, verdict = cleaned.inspect(topic)
        assert (facts.tail, verdict) == (TailMatch.SAME, Copy(30))

        def is_copy_cleaned() -> bool:
            written(source, None, b"another", next(clock))
            cleaned.copy(topic, source.log_end)
            return stored_batches(copy) < copy.log_end - 15

        wait_until(is_copy_cleaned)
        facts, verdict = cleaned.inspect(topic)
        assert isinstance(verdict, Copy)
        assert (facts.tail, verdict.offset) == (TailMatch.SAME, source.log_end)


def test_foreign_records_do_not_hide_in_holes(cleaned: Pair) -> None:
    """Where another client wrote to the copy, the source had records that compaction has removed since."""
    topic = cleaned.topic(settings=COMPACTED)
    clock = count(time.time_ns() // 1_000_000 - 10_000_000, 1000)
    with cleaned.at(topic) as source, cleaned.at_copy(topic) as copy:
        sequence = count()
        for index in range(6):
            at = next(clock)
            written(source, None, b"key-%d" % index, at)
            written(copy, sequence, b"key-%d" % index, at)
        foreign = Producer({"bootstrap.servers": cleaned.destination.bootstrap_servers})
        foreign.produce(cleaned.copy_of(topic), b"not copied", b"foreign", 0)
        assert foreign.flush(30) == 0
        written(source, None, b"same", next(clock))  # at the same offset

        def is_gone() -> bool:
            written(source, None, b"same", next(clock))
            time.sleep(0.1)
            return 6 not in [header.base_offset for header in batch_headers(source.fetch(6).records)]

        wait_until(is_gone)
        facts, verdict = cleaned.inspect(topic)
        assert failure(verdict) == (Reason.DESTINATION_WRITTEN, 6)
        assert (facts.tail_producer_id, facts.foreign_writers) == (-1, ForeignWriters(-1, 1, -1))


# -- logs of all kinds -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_true_copy_of_any_log_is_found_to_be_one(
    forgetful: ForgetfulCluster, installed_logs: dict[str, BuiltLog], destination_cluster: SandboxCluster
) -> None:
    """Holes, old formats, transactions, LogAppendTime, starts above 0: as a real broker reads them from its disk."""
    with closing(Pair(forgetful.cluster, destination_cluster)) as pair:
        for topic, log in installed_logs.items():
            create_again(destination_cluster, topic, {"max.message.bytes": "20000000"})
            with pair.at_copy(topic) as copy:
                fill(copy, log.log_start_offset)
                if log.log_start_offset:
                    delete_records(destination_cluster, topic, log.log_start_offset)
                end = random.Random(log.seed).randint(log.log_start_offset, log.last_stable_offset)
                pair.copy(topic, end)
                facts, verdict = pair.inspect(topic)
                assert isinstance(verdict, Copy), (topic, end, facts, verdict)
                shown = any(record.offset < end for record in log.expected)
                assert facts.tail is (TailMatch.SAME if shown else TailMatch.NOTHING), (topic, end, facts)
                known = copy.producer()
                assert known is None or (end - verdict.filled_offsets) & SEQUENCE_MASK == known.last_sequence + 1
