"""docs/versions.md: `python -m tests.support.versions_page` runs a scenario per Kafka version and writes the page.

It takes some ten minutes. With versions as arguments (`3.3.2 3.6.2`) only theirs run, and the other results stay; with
`--page` none runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kmirror.ops.base.versions import Role
from kmirror_sandbox.cluster_spec import needs_zookeeper
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.clusters import NO_RETENTION, made_clusters
from tests.support.kafka_versions import OTHER_VERSIONS
from tests.support.version_scenario import VersionScenario

_ROOT = Path(__file__).parent.parent.parent
PAGE = _ROOT / "docs" / "versions.md"
RESULTS = _ROOT / "docs" / "results" / "versions.json"

#: The steps of a scenario, and their names on the page.
STEPS = {
    "copies": "copy of every kind of log",
    "forks": "group offsets, failover, fork found",
    "resets": "source topic recreated",
    "returns": "failback",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The result for one version in one role; the other cluster has the newest version."""

    version: str
    role: str
    #: By step, whether it passed.
    steps: dict[str, bool]


def seen(results: Path = RESULTS) -> list[Seen]:
    """Return the committed results."""
    found: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8"))["seen"]
    return [Seen(**one) for one in found]


def page(rows: Sequence[Seen]) -> str:
    """Return the text of docs/versions.md."""
    head = ["Kafka", "with", "as", *STEPS.values()]
    table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for one in rows:
        manager = "ZooKeeper" if needs_zookeeper(one.version) else "KRaft"
        results = ["yes" if one.steps[step] else "**no**" for step in STEPS]
        table.append(f"| {' | '.join([one.version, manager, one.role, *results])} |")
    different = [f"| {version} | {what} |" for version, what in _DIFFERENCES.items()]
    older = ["| brokers before | what is different |", "|---|---|", *different]
    return "\n".join([_INTRODUCTION, *table, "", _NOTES, *older, _END])


_INTRODUCTION = f"""\
# Versions of Kafka

kmirror copies from Kafka {Role.SOURCE.first_version} and later to Kafka {Role.DESTINATION.first_version} and later.
The two sides need not have the same version. For each request kmirror uses the newest version that a broker offers, and
`kmirror check` names what a broker lacks. Older clusters are refused (exit code 3) before anything is changed.

Tested with real brokers, one per cluster; the other cluster was {DEFAULT_KAFKA_VERSION}:
"""

_NOTES = """\
* *copy of every kind of log*: compacted topics, transactions, all codecs and message formats, logs that start above 0:
  what consumers read is compared record by record.
* *group offsets, failover, fork found*: after a failover both sides are written to, and `add --adopt` names the exact
  offset of the fork.
* *source topic recreated*: the topic is deleted and recreated while nothing is fetched, and has more records than
  before: no record of the new topic is copied, and the partition becomes SOURCE_TOPIC_RECREATED.
* *failback*: the old source becomes the destination; records that only it had are archived.

`make test-slow` runs this for the oldest source, and for the newest version as source and as destination;
`make test-long` for all.
`.venv/bin/python -m tests.support.versions_page` writes this page and [its results](results/versions.json).

## What is different with older brokers
"""

#: By the first version without the difference.
_DIFFERENCES = {
    "4.1": "As destination: topics are written by name. The id is checked right before, each answer's offset after.",
    "3.8": "As destination with ACLs: transaction markers need CLUSTER_ACTION on the cluster; ALTER is too little.",
    "3.6": "There is one limit for timestamps, `message.timestamp.difference.max.ms`, instead of two.",
    "3.4": "`transactional.id.expiration.ms`, a week by default, is how long a producer id is remembered.",
    "3.1": "As source: records are fetched by topic name. After each answer kmirror asks for its topics' ids,"
    " and uses nothing that is not proved to be from the same topic.",
    "3.0": "As source: they do not report the newest record's timestamp, so `failover` reports the loss without it."
    " As destination: `failback --offline` is refused, because their logs do not name their topics' ids.",
}

_END = """
A topic needs an id (KIP-516). Brokers assign ids from 2.8 on, once `inter.broker.protocol.version` is 2.8 or later.
Before that `add` refuses, because a recreated topic could not be distinguished from the old one.
That is also why Kafka before 2.8 is refused.
"""


def _scenarios(versions: Sequence[str], folder: Path) -> Iterator[Seen]:
    with made_clusters(folder) as make:
        own = make("own", properties=NO_RETENTION)
        for version in versions:
            with made_clusters(folder) as make_other:
                other = make_other("other", kafka_version=version, heap="256m", properties=NO_RETENTION)
                for role, pair in (("source", (other, own)), ("destination", (own, other))):
                    with closing(VersionScenario(*pair)) as scenario:
                        yield Seen(version, role, {step: _holds(scenario, step) for step in STEPS})


def _holds(scenario: VersionScenario, step: str) -> bool:
    try:
        getattr(scenario, step)()
    except AssertionError as error:
        sys.stderr.write(f"{step}: {error}\n")
        return False
    return True


def _see(versions: Sequence[str]) -> None:
    rows = {(one.version, one.role): one for one in (seen() if RESULTS.exists() else ())}
    with tempfile.TemporaryDirectory() as folder:
        for one in _scenarios(versions, Path(folder)):
            sys.stderr.write(f"{one}\n")
            rows[one.version, one.role] = one
    kept = sorted(rows.values(), key=lambda one: (one.version, one.role == "destination"))
    document = {"newest": DEFAULT_KAFKA_VERSION, "seen": [asdict(one) for one in kept]}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--page"]:
        _see(sys.argv[1:] or OTHER_VERSIONS)
    PAGE.write_text(page(seen()), encoding="utf-8")
