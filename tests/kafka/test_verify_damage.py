"""`verify` on copies of every kind of log on real brokers, right ones and such as a faulty mirror would have made."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.compare.difference import DifferenceKind
from kmirror.errors import ExitCode, Reason
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.verify.verify_results import VerifyOutcome, VerifyRow
from kmirror.state.records import DesiredState, PartitionRecord, PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.copies import make_copy
from tests.support.damage import DAMAGES, Damaged, Original, by_kind, longer
from tests.support.installed_logs import install
from tests.support.logs import LONG_SEEDS, build_log
from tests.support.shared_clusters import revived
from tests.support.stored_mirror import Side, StoredMirror
from tests.support.topics import set_topic

#: In what kind of batch, what goes wrong, and to which of the records that it can happen to.
CASES = (
    ("a batch with holes", "a record is lost inside a run", 0),
    ("a batch with holes", "a record is in the hole behind it", -1),
    ("a delete horizon", "a header is lost", 0),
    ("a committed transaction", "a record is lost", -1),
    ("an aborted transaction", "a record of an aborted transaction is shown", 0),
    ("LogAppendTime", "a timestamp is a millisecond off", -1),
    ("format 0", "a timestamp is a millisecond off", 0),
    ("format 1", "all that follows is one offset further on", 1),
    ("a wrapper", "a record is lost", 1),
    ("a late start", "a record is in the hole before it", 0),
    ("any batch", "a timestamp is a millisecond off", 0),
    ("any batch", "a record is lost", -1),
)
SAMPLED = 10


class Copy(NamedTuple):
    """A topic of the destination, what its source is, and what is wrong with it."""

    topic: str
    source: str
    original: Original
    damaged: Damaged | None


def few_runs(original: Original) -> bool:
    """Tell whether a copy is made soon."""
    offsets = [one.offset for one in original.records]
    runs = sum(later != earlier + 1 for earlier, later in pairwise(offsets))
    return 20 < len(offsets) < 1000 and runs < 60


def damaged_copies() -> tuple[dict[str, Original], list[Copy]]:
    """Return a source for each case, by its topic, with a copy of it that is wrong."""
    originals = [Original(build_log(seed)) for seed in LONG_SEEDS[:80]]
    sources: dict[str, Original] = {}
    copies = []
    for kind, damage, index in CASES:
        for original in originals:
            candidates = by_kind(original, DAMAGES[damage].candidates(original)).get(kind, [])
            if len(candidates) > abs(index) and few_runs(original):
                break
        else:
            raise AssertionError(f"no log has {kind} in which {damage}")
        source = next((topic for topic, known in sources.items() if known is original), unique_topic("source"))
        sources[source] = original
        damaged = DAMAGES[damage].do(original, candidates[index])
        copies.append(Copy(unique_topic(f"{kind}-{damage}".replace(" ", "-")), source, original, damaged))
    copies.append(Copy(unique_topic("longer"), source, original, longer(original)))
    copies += [Copy(unique_topic("right"), topic, original, None) for topic, original in sources.items()]
    return sources, copies


def make(cluster: SandboxCluster, copy: Copy) -> None:
    """Write a copy."""
    log, damaged = copy.original.log, copy.damaged
    records = damaged.records if damaged else copy.original.records
    make_copy(cluster, copy.topic, records, log.log_start_offset, copy.original.end + (damaged.tail if damaged else 0))
    # only now: DeleteRecords is refused on topics that are compacted and no more
    settings = {name: log.settings[name] for name in ("cleanup.policy", "min.compaction.lag.ms")}
    set_topic(cluster, copy.topic, settings)


@dataclass
class Made:
    """A mirror of all these copies, stored on the destination."""

    mirror: StoredMirror
    copies: list[Copy]
    #: Copies of one log above 0: with filler left in different ways.
    filler: dict[str, str]
    start: int


@pytest.fixture(scope="module")
def made(started_mortal_cluster: SandboxCluster, destination_cluster: SandboxCluster) -> Iterator[Made]:
    sources, copies = damaged_copies()
    source = revived(started_mortal_cluster)
    install(source, {topic: original.log for topic, original in sources.items()})
    with ThreadPoolExecutor(4) as pool:  # it is mostly waiting
        list(pool.map(lambda copy: make(destination_cluster, copy), copies))
    mirror = StoredMirror(Side(source), Side(destination_cluster))
    for copy in copies:
        mirror.known(copy.topic, copy.source)
    late = next(copy for copy in copies if copy.damaged is None and copy.original.log.log_start_offset > 1)
    start, records = late.original.log.log_start_offset, late.original.records
    filler = {name: unique_topic(f"filler-{name}") for name in ("all", "last", "stopped", "coming")}
    make_copy(destination_cluster, filler["all"], records, start, late.original.end, trimmed_to=0)
    make_copy(destination_cluster, filler["last"], records, start, late.original.end, trimmed_to=start - 1)
    make_copy(destination_cluster, filler["stopped"], [], start, start, trimmed_to=0)
    # decided to begin further on than the source does, and not there yet
    early = next(copy for copy in copies if copy.damaged is None and copy.original.log.log_start_offset == 0)
    make_copy(destination_cluster, filler["coming"], [], 20, 20, trimmed_to=0)
    for name, topic in filler.items():
        desired = DesiredState.STOPPED if name == "stopped" else DesiredState.ACTIVE
        mirror.known(topic, early.source if name == "coming" else late.source, desired)
        state = PartitionState.STOPPED if name == "stopped" else PartitionState.MIRRORING
        mirror.partitions.append(PartitionRecord(mirror.name, topic, 0, state, 0, aligned=name != "coming"))
    mirror.save()
    yield Made(mirror, copies, filler, start)
    mirror.forget()
    mirror.source.close()
    mirror.destination.created += [copy.topic for copy in copies] + list(filler.values())
    mirror.destination.close()


def row_of(outcome: VerifyOutcome, topic: str) -> VerifyRow:
    (found,) = [row for row in outcome.rows if row.topic == topic]
    return found


@pytest.mark.slow
def test_every_damage_is_found_and_named(made: Made, tmp_path: Path) -> None:
    outcome = made.mirror.verify(master="local[2]", log_file=tmp_path / "spark.log")
    assert outcome.exit_code == ExitCode.HISTORIES_DIFFER
    for topic, source, original, damaged in made.copies:
        row = row_of(outcome, topic)
        if damaged is None:
            assert (row.result, row.message) == (Outcome.DONE, f"equal up to offset {original.end}"), source
            assert row.records == len(original.records)
            continue
        assert row.different, topic
        assert row.first_difference
        assert (row.first_difference.offset, row.first_difference.kind) == (damaged.offset, damaged.kind), topic
        assert row.message.startswith(f"differs at offset {damaged.offset}: ")
        sides = row.first_difference.source, row.first_difference.destination
        assert [bool(side) for side in sides] == [
            damaged.kind in (DifferenceKind.MISSING, DifferenceKind.CONTENT),
            damaged.kind in (DifferenceKind.EXTRA, DifferenceKind.CONTENT),
        ]
        assert row.notes[0].startswith("source: ")
        assert row.notes[1].startswith("destination: ")

    for name, offset in (("all", 0), ("last", made.start - 1), ("stopped", 0)):
        row = row_of(outcome, made.filler[name])
        assert row.first_difference, name
        assert (row.first_difference.offset, row.first_difference.kind) == (offset, DifferenceKind.FILLER), name
        assert row.first_difference.source is None
    row = row_of(outcome, made.filler["coming"])
    assert (row.different, row.message) == (
        False,
        "could not be compared: its log is still being aligned",
    )


@pytest.mark.long
def test_a_sample_finds_what_is_in_it(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.engine.compare.verification._SAMPLE_OFFSETS", SAMPLED)
    ends = made.mirror.verify(master="local[2]", sample=0)
    # enough ranges to leave nothing out
    everything = made.mirror.verify(master="local[2]", sample=5000)
    assert ends.exit_code == everything.exit_code == ExitCode.HISTORIES_DIFFER
    found: list[bool] = []
    for topic, _, original, damaged in made.copies:
        row = row_of(everything, topic)
        assert row.different == (damaged is not None), topic
        if damaged is None:
            assert not row_of(ends, topic).different, topic
            continue
        assert row.first_difference
        assert row.first_difference.offset == damaged.offset, topic
        start, end = original.log.log_start_offset, original.end
        # a log that has shifted differs at its end wherever it shifted
        is_in_reach = damaged.tail > 0 or not start + SAMPLED <= damaged.offset < end - SAMPLED
        assert row_of(ends, topic).different == is_in_reach, topic
        found.append(is_in_reach)
    assert found.count(True) >= 3
    assert found.count(False) >= 3
    assert all(row_of(ends, made.filler[name]).different for name in ("all", "last", "stopped"))


def test_a_stopped_log_that_lost_its_tail_differs_although_its_source_has_deleted_all(
    cluster_pair: ClusterPair,
) -> None:
    mirror = StoredMirror(Side(cluster_pair.source), Side(cluster_pair.destination))
    topic = mirror.topic("lost", desired=DesiredState.STOPPED)
    mirror.stopped_at(topic, 25)
    records = [Record(offset, 0, b"k%d" % offset, b"v") for offset in range(30)]
    mirror.source.append(topic, records)
    mirror.source.delete_records(topic, 30)
    mirror.destination.append(topic, records[:20])
    mirror.save()
    (row,) = mirror.verify().rows
    assert (row.result, row.reason) == (Outcome.FAILED, Reason.DESTINATION_TRUNCATED)
    assert row.message.startswith("differs at offset 20: the destination ends at offset 20")
    mirror.destination.append(topic, records[20:25])
    (row,) = mirror.verify().rows
    assert (row.result, row.message) == (Outcome.DONE, "nothing to compare")
    mirror.forget()
    mirror.source.close()
    mirror.destination.close()
