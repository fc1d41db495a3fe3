"""Many histories at once in one mirror: each partition is judged by itself, and nothing is repaired unasked.

What differs is reported with offsets and numbers; what only looks odd raises no alarm. Two brokers are shared by
the cases on single brokers; each has a mirror of its own, worked through the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.foreign import labelled, write_and_abort, write_idempotently, write_plainly
from tests.support.installed_logs import create_topics
from tests.support.log_batches import VisibleRecord
from tests.support.mirrored import Mirrored, recover
from tests.support.mirrors import delete_topic, make_topic
from tests.support.real_logs import BUSY, CompactedTopic, delete_records, write
from tests.support.still_logs import FOREVER
from tests.support.visible import COMMITTED, Bounds, assert_mirrored, assert_shows, bounds_of, shown, unsuperseded
from tests.support.waiting import wait_until

Row = dict[str, Any]


@pytest.fixture(scope="module")
def source(make_module_cluster: MakeCluster) -> SandboxCluster:
    return make_module_cluster("source", properties=BUSY)


@pytest.fixture(scope="module")
def destination(make_module_cluster: MakeCluster) -> SandboxCluster:
    return make_module_cluster("destination", properties=BUSY)


def archived(mirror: Mirrored, topic: str, number: int = 1) -> list[VisibleRecord]:
    """Return the records of an archive as they were: at their old offsets, without the headers that say so."""
    found = []
    for record in shown(mirror.destination, f"{topic}.kmirror-archive.{number}"):
        headers = dict(record.headers[-3:])
        assert int(headers["kmirror.timestamp"] or b"") == record.timestamp
        offset = int(headers["kmirror.offset"] or b"")
        found.append(record._replace(offset=offset, headers=record.headers[:-3]))
    return found


def topic_id(cluster: SandboxCluster, topic: str) -> str | None:
    """Return a topic's id as it is printed; None where there is no topic of that name."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    if topic not in admin.list_topics(timeout=30).topics:
        return None
    found = str(admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id)
    return found.translate(str.maketrans("+/", "-_"))


def is_failed(row: Row) -> bool:
    """Tell whether a partition is FAILED, and the engine has noted since when."""
    return row["state"] == "FAILED" and "; FAILED since " in row["errorMessage"]


def said(row: Row) -> str:
    """Return what is reported of a FAILED partition, without since when and what to type."""
    assert row["state"] == "FAILED", row
    reported, _, rest = row["errorMessage"].partition("; FAILED since ")
    assert re.match("[0-9-]+T[0-9:]+Z; ", rest), row["errorMessage"]
    return str(reported)


# -- one of each -------------------------------------------------------------------------------------------------------


class Histories:
    """A mirror with a topic for each thing that may happen to it; `happen` has it happen."""

    def __init__(self, mirror: Mirrored, prefix: str) -> None:
        self.mirror, self.source, self.destination = mirror, mirror.source, mirror.destination
        self._prefix = prefix
        self.compacted = CompactedTopic(self.source, self.name("compacted"), {})
        names = ["truncated", "aborted", "emptied", "anonymous", "idempotent", "in_transaction", "grown", "replaced",
                 "deleted", "larger", "gone"]  # fmt: skip
        create_topics(self.source, {self.name(name): FOREVER for name in [*names, *EARLY]}, 2)
        mirror.topics |= {self.name(name): 2 for name in [*names, *EARLY]} | {self.name("compacted"): 1}
        for name in [*names, "early"]:
            write(self.source, self.name(name), 1000)
        write(self.source, self.name("truncated"), 100, partition=1)
        for _ in range(2):
            self.compacted.write_round()
        write_and_abort(self.source, self.name("aborted"), 20)
        self.before: dict[str, list[VisibleRecord]] = {}
        #: Who wrote to a mirror topic, as it is reported.
        self.writers: dict[str, str] = {}
        self.ids: dict[str, str | None] = {}

    def begin(self) -> None:
        """Create the mirror, have another client write to it before its engine does, and copy."""
        self.mirror.create("refresh.interval.seconds=1", "retry.timeout.ms=3000", "follow.log.start=false")
        self.writers["early"] = write_idempotently(self.destination, self.name("early"), 7)
        self.writers["early_and_alone"] = write_plainly(self.destination, self.name("early_and_alone"), 7)
        self.before |= {which: shown(self.destination, self.name(which)) for which in EARLY}
        self.mirror.copy(exit_codes=(7,))
        assert {which for (which, _), row in self.rows().items() if row["state"] == "FAILED"} == EARLY

    def name(self, which: str) -> str:
        return f"{which}-{self._prefix}"

    def rows(self) -> dict[tuple[str, int], Row]:
        """Return what `describe` says, by the case and partition."""
        return {(topic.split("-")[0], partition): row for (topic, partition), row in self.mirror.rows().items()}

    def happen(self) -> None:
        """Have everything happen at once."""
        self.ids = {name: topic_id(self.destination, self.name(name)) for name in ("replaced", "deleted")}
        self.ids["gone"] = topic_id(self.source, self.name("gone"))
        foreign: Mapping[str, Callable[[SandboxCluster, str, int], object]] = {
            "anonymous": write_plainly, "idempotent": write_idempotently, "in_transaction": write_and_abort,
            "grown": write_idempotently,
        }  # fmt: skip
        for which, write_so in foreign.items():
            self.writers[which] = str(write_so(self.destination, self.name(which), 20))
            self.before[which] = shown(self.destination, self.name(which))
        self.before["larger"] = shown(self.destination, self.name("larger"))
        write(self.source, self.name("grown"), labelled("grown", 300))
        write(self.source, self.name("in_transaction"), labelled("grown", 300))
        write(self.source, self.name("truncated"), 50, partition=1)
        write(self.source, self.name("truncated"), 200)
        delete_records(self.source, self.name("truncated"), 1150)
        delete_records(self.source, self.name("emptied"), 1000)
        write_and_abort(self.source, self.name("aborted"), 30)
        delete_topic(self.source, self.name("larger"))
        create_topics(self.source, {self.name("larger"): FOREVER}, 2)
        write(self.source, self.name("larger"), labelled("anew", 1500))
        delete_records(self.source, self.name("larger"), 1200)
        delete_topic(self.source, self.name("gone"))
        for which in ("deleted", "replaced"):
            delete_topic(self.destination, self.name(which))
        make_topic(self.destination, self.name("replaced"), 2)
        self.compacted.write_and_clean(transactions=True)
        self.compacted.freeze()

    def wait_until_judged(self) -> None:
        """Wait until every topic that cannot be copied is FAILED, while an engine runs."""
        wait_until(lambda: {row[0] for row, reported in self.rows().items() if is_failed(reported)} == FAILED, 90)

    def assert_judged(self) -> None:
        """Check what is reported of each, word for word, and that nothing else was done."""
        rows = self.rows()
        names = {which: self.name(which) for which, _ in rows}
        assert {which for (which, _), row in rows.items() if row["state"] == "FAILED"} == FAILED
        new_id = topic_id(self.destination, names["replaced"])
        partition = {which: f"{name}-0" for which, name in names.items()}
        wanted = {
            "truncated": (
                "SOURCE_TRUNCATED",
                "source log truncation detected at position 1000: the source starts at offset 1150 and ends at "
                "1200; its 150 offsets 1000 to 1149 were deleted before they were copied",
            ),
            "anonymous": (
                "DESTINATION_WRITTEN",
                f"another client wrote to mirror topic {partition['anonymous']} (20 records, from offset 1000 on, "
                "a producer without an id): it ends at offset 1020, and its source at 1000",
            ),
            "idempotent": (
                "DESTINATION_WRITTEN",
                f"another client wrote to mirror topic {partition['idempotent']} (20 records, from offset 1000 on, "
                f"{self.writers['idempotent']}): it ends at offset 1020, and its source at 1000",
            ),
            "grown": (
                "DESTINATION_WRITTEN",
                f"another client wrote to mirror topic {partition['grown']} (20 records, from offset 1000 on, "
                f"{self.writers['grown']}): it differs from {partition['grown']} there",
            ),
            "replaced": (
                "DESTINATION_TOPIC_DELETED",
                f"the mirror topic {names['replaced']} ({self.ids['replaced']}) was deleted; topic {new_id} now has "
                "its name",
            ),
            "deleted": (
                "DESTINATION_TOPIC_DELETED",
                f"the mirror topic {names['deleted']} ({self.ids['deleted']}) was deleted; no topic has its name now",
            ),
            "gone": (
                "SOURCE_TOPIC_DELETED",
                f"source topic {names['gone']} ({self.ids['gone']}) no longer exists",
            ),
            "early": (
                "DESTINATION_WRITTEN",
                f"another client wrote to mirror topic {partition['early']} (7 records, from offset 0 on, "
                f"{self.writers['early']}): it differs from {partition['early']} there",
            ),
            "early_and_alone": (
                "DESTINATION_WRITTEN",
                f"another client wrote to mirror topic {partition['early_and_alone']} (7 records, from offset 0 on, "
                "a producer without an id): it ends at offset 7, and its source at 0",
            ),
        }
        for which, (reason, message) in wanted.items():
            row = rows[which, 0]
            assert (row["reason"], said(row)) == (reason, message)
        row = rows["in_transaction", 0]
        assert row["reason"] == "DESTINATION_WRITTEN", row
        assert re.match(r"another client wrote .*\(20 records, from offset 1000 on, producer id [0-9]+\)", said(row))
        # nothing was done about it
        assert rows["truncated", 0]["destinationOffset"] == 1000
        for which in WRITTEN:
            assert shown(self.destination, names[which]) == self.before[which]
        assert topic_id(self.destination, names["deleted"]) is None
        assert bounds_of(self.destination, names["replaced"]) == Bounds(0, 0)
        assert bounds_of(self.destination, names["gone"]) == Bounds(0, 1000)
        # and the others were still copied
        assert_mirrored(self.source, self.destination, names["truncated"], 1)
        assert_mirrored(self.source, self.destination, names["larger"])
        assert archived(self.mirror, names["larger"]) == self.before["larger"]
        self.assert_odd_ones_go_on()

    def assert_odd_ones_go_on(self) -> None:
        """Check the topics that only look odd."""
        rows = self.rows()
        for which in ("compacted", "aborted", "emptied"):
            assert (rows[which, 0]["state"], rows[which, 0]["reason"]) in (
                ("MIRRORING", None),
                ("MIRRORING", "NO_ENGINE"),
            )
        here, there = (shown(cluster, self.name("compacted")) for cluster in (self.destination, self.source))
        assert unsuperseded(there, here) is None
        assert bounds_of(self.destination, self.name("compacted")) == (
            bounds_of(self.source, self.name("compacted"))._replace(start=0)
        )
        assert_shows(self.destination, self.name("aborted"), 0, shown(self.source, self.name("aborted")))
        assert bounds_of(self.destination, self.name("aborted")).end == (
            bounds_of(self.source, self.name("aborted"), isolation=COMMITTED).end
        )
        assert bounds_of(self.source, self.name("emptied")) == Bounds(1000, 1000)
        assert bounds_of(self.destination, self.name("emptied")).end == 1000

    def assert_recovered(self) -> None:
        """Check that what was accepted was done, and what was not accepted was not."""
        for which in WRITTEN:
            assert_mirrored(self.source, self.destination, self.name(which))
            assert_mirrored(self.source, self.destination, self.name(which), 1)
        for which in WRITTEN - {"in_transaction"}:
            foreign = self.before[which][0 if which in EARLY else 1000 :]
            assert archived(self.mirror, self.name(which)) == foreign
        offsets = [record.offset for record in shown(self.destination, self.name("truncated"))]
        assert offsets == [*range(1000), *range(1150, 1200)]
        assert_mirrored(self.source, self.destination, self.name("deleted"))
        assert bounds_of(self.destination, self.name("replaced")) == Bounds(0, 0)
        rows = self.rows()
        assert {which for (which, _), row in rows.items() if row["state"] == "FAILED"} == HOPELESS


#: To which another client wrote, before the first copy or later.
EARLY = {"early", "early_and_alone"}
WRITTEN = EARLY | {"anonymous", "idempotent", "in_transaction", "grown"}
#: What cannot be copied, and what is not helped by anything that is done here.
FAILED = WRITTEN | {"truncated", "replaced", "deleted", "gone"}
HOPELESS = {"replaced", "gone"}


@pytest.fixture
def histories(source: SandboxCluster, destination: SandboxCluster, tmp_path: Path) -> Iterator[Histories]:
    """Return a mirror of topics that are copied; no engine runs."""
    with Mirrored(source, destination, tmp_path, {}, with_spark=True) as mirror:
        made = Histories(mirror, unique_topic())
        made.begin()
        yield made


def help_as_told(histories: Histories) -> dict[str, Any]:
    """Do what the next steps of FAILED say; return what `recover` says."""
    mirror, deleted = histories.mirror, histories.name("deleted")
    assert f"kmirror add --mirror {mirror.name} --topics {deleted}" in histories.rows()["deleted", 0]["errorMessage"]
    mirror.run("add", "--topics", deleted)
    topics = ",".join(histories.name(which) for which in sorted(WRITTEN | {"truncated"}))
    refused = recover(mirror, "--topics", topics, code=3)
    assert {row["result"] for row in refused["results"]} == {"REFUSED"}
    return recover(mirror, "--topics", topics, "--accept-loss", "--accept-divergence", "--yes")


@pytest.mark.long
def test_all_that_can_happen_while_no_engine_runs(histories: Histories) -> None:
    mirror = histories.mirror
    histories.happen()
    mirror.copy(exit_codes=(7,))
    histories.assert_judged()
    help_as_told(histories)
    mirror.copy(exit_codes=(4, 7))
    histories.assert_recovered()


@pytest.mark.long
def test_all_that_can_happen_while_an_engine_runs(histories: Histories) -> None:
    mirror = histories.mirror
    engine = mirror.engine()
    wait_until(lambda: {row["reason"] for row in mirror.rows().values()} == {None, "DESTINATION_WRITTEN"}, 60)
    # an engine would copy in a moment what is deleted in the next, and append behind what another client wrote
    raced = ",".join(histories.name(which) for which in ("truncated", "grown", "in_transaction"))
    mirror.run("pause", "--topics", raced)
    histories.happen()
    mirror.run("resume", "--topics", raced)
    histories.wait_until_judged()
    mirror.wait_until_equal(engine, [histories.name("larger")])
    histories.assert_judged()
    done = help_as_told(histories)
    assert {row["result"] for row in done["results"]} == {"DONE"}, done
    mirror.wait_until_equal(engine, [histories.name(which) for which in (*WRITTEN, "truncated", "deleted")])
    histories.assert_recovered()
    assert engine.stop() == 4  # some are FAILED still
