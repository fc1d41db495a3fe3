"""`apply` and `export` on real brokers: a file becomes mirrors, and mirrors become a file."""

from __future__ import annotations

import itertools
import json
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kmirror
from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import delete_topics
from kmirror.errors import ExitCode, Reason
from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import VerbResult
from kmirror.ops.declare.apply import ApplyRequest, apply
from kmirror.ops.declare.mirrors_file import read_mirrors_file
from kmirror.settings.parsing import stored_settings
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import command, run_to_its_end, typed
from tests.support.mirrors import make_topic, produce, properties_of, settings_of
from tests.support.screens import terminal, written


@dataclass(slots=True)
class Site:
    """A destination without mirrors, its source, and the file of mirrors."""

    pair: ClusterPair
    file: Path

    @property
    def servers(self) -> str:
        return self.pair.source.bootstrap_servers

    def write(self, text: str) -> None:
        """Write the file; SERVERS is where the source is."""
        self.file.write_text(text.replace("SERVERS", self.servers), encoding="utf-8")

    def apply(self, *more: str, file: Path | None = None) -> tuple[int, dict[str, Any]]:
        """Apply the file; return the exit code and the document."""
        done = typed(self.pair.destination, "apply", "--file", str(file or self.file), "--json", *more)
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exitCode"] == done.returncode
        return done.returncode, document

    def export(self) -> str:
        done = typed(self.pair.destination, "export")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def mirrors(self) -> dict[str, MirrorRecord]:
        return {record.name: record for record in self.state().mirrors}

    def topics(self, mirror: str) -> dict[str, DesiredState]:
        """Return the desired states of a mirror's topics that are completely added."""
        return {one.topic: one.desired for one in self.state().topics(mirror) if one.pending_operation is None}

    def state(self) -> State:
        with Destination.open(properties_of(self.pair.destination)) as destination:
            return destination.state()


@pytest.fixture
def site(cluster_pair: ClusterPair, tmp_path: Path) -> Site:
    with ClusterClient(client_config(cluster_pair.destination.client_properties())) as client:
        delete_topics(client, [STATE_TOPIC, EVENTS_TOPIC])
    return Site(cluster_pair, tmp_path / "mirrors.toml")


def lines(document: dict[str, Any], *, result: str | None = None) -> list[str]:
    """Return the changes of a document, or those that ended so."""
    return [row["change"] for row in document["changes"] if result in (None, row["result"])]


def new_topics(source: SandboxCluster, *prefixes: str) -> list[str]:
    found = [unique_topic(prefix) for prefix in prefixes]
    for topic in found:
        make_topic(source, topic)
    return found


TWO = """
# why this is so is said in a comment
[variables]
retry = 60000

[mirrors.first]
topics = ["{a}", '{family}-\\d']
exclude = ["test-.*"]
source = {{ "bootstrap.servers" = "SERVERS" }}
settings = {{ "retry.timeout.ms" = "{{{{retry}}}}" }}

[mirrors.second]
topics = ["{b}"]
paused = true
source = {{ "bootstrap.servers" = "SERVERS", "client.id" = "second" }}
settings = {{ "topic.prefix" = "copy.", "groups.exclude" = [] }}
"""


def test_a_file_becomes_mirrors_and_changes_with_them(site: Site) -> None:
    a, b = new_topics(site.pair.source, "a", "b")
    family = unique_topic("family")
    make_topic(site.pair.source, f"{family}-1")
    text = TWO.format(a=a, b=b, family=family)
    site.write(text)

    code, tried = site.apply("--dry-run")
    assert (code, tried["error"], tried["dryRun"]) == (0, None, True)
    assert site.mirrors() == {}
    code, done = site.apply()
    assert (code, done["error"]) == (0, None)
    assert lines(done) == lines(tried)
    assert [row["topic"] for row in done["results"]] == [row["topic"] for row in tried["results"]]
    assert lines(done)[1:3] == [f"+ add topic {a}", f"+ add pattern {family}-\\d"]

    found = site.mirrors()
    assert list(found) == ["first", "second"]
    assert stored_settings(found["first"].settings).retry_timeout_ms == 60000
    assert found["first"].settings["topics.include"] == f"{family}-\\d"
    assert found["first"].settings["topics.exclude"] == "test-.*"
    assert found["second"].paused
    assert site.topics("first") == {a: DesiredState.ACTIVE, f"{family}-1": DesiredState.ACTIVE}
    assert site.topics("second") == {f"copy.{b}": DesiredState.PAUSED}

    # of the file itself nothing is stored
    stored = repr(site.state().records)
    assert "in a comment" not in stored
    assert str(site.file) not in stored

    again = typed(site.pair.destination, "apply", "--file", str(site.file))
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"nothing to change: 2 mirrors are as they are in {site.file}\n"

    site.write(
        text.replace("60000", "70000")
        .replace('"second"', '"changed"')
        .replace("paused = true", f'paused-topics = ["copy.{b}"]')
        .replace(f'topics = ["{a}"', f'paused-topics = ["{a}"]\ntopics = ["{a}"')
    )
    plan = [
        f"first: ~ pause topic {a}",
        "first: ~ retry.timeout.ms: 60000 → 70000",
        "second: ~ client.id: second → changed",
        "second: ~ resume mirror second",
        f"second: ~ pause topic copy.{b}",
    ]
    rehearsed = typed(site.pair.destination, "apply", "-f", str(site.file), "--dry-run")
    assert (rehearsed.returncode, rehearsed.stderr) == (0, "dry run: nothing was changed\n")
    table = [line.split(maxsplit=2) for line in rehearsed.stdout.splitlines()]
    assert table[:6] == [["MIRROR", "RESULT", "CHANGE"], *([m, "OK", c] for m, c in (p.split(": ", 1) for p in plan))]
    shown = typed(site.pair.destination, "apply", "-f", str(site.file))
    assert (shown.returncode, shown.stderr.splitlines()) == (0, plan)
    assert [line.split()[1] for line in shown.stdout.splitlines()[1:6]] == ["DONE"] * 5
    assert site.topics("first")[a] is DesiredState.PAUSED
    assert site.topics("second") == {f"copy.{b}": DesiredState.PAUSED}
    assert not site.mirrors()["second"].paused
    assert site.apply()[1]["changes"] == []


def test_what_is_exported_changes_nothing_when_it_is_applied(site: Site) -> None:
    a, b, c = new_topics(site.pair.source, "a", "b", "c")
    site.write(
        f"""
        [mirrors."with.dots"]
        topics = ["{a}", "{b}", '{c[:-1]}\\w']
        paused-topics = ["{b}"]
        exclude = ['x{{1,3}}', "y"]
        [mirrors."with.dots".source]
        "bootstrap.servers" = "SERVERS"
        [mirrors."with.dots".settings]
        "groups.include" = ['a\\.b', "it's"]
        "copy.lanes" = 3
        "sync.group.offsets.enabled" = false
        "acls.include" = 'TOPIC;orders-.*;READ'
        [mirrors.paused]
        paused = true
        source = {{ "bootstrap.servers" = "SERVERS" }}
        """.replace('"it\'s"', "'its.*'")
    )
    code, tried = site.apply("--dry-run")
    assert code == 0, tried
    code, done = site.apply()
    assert code == 0, done
    assert lines(tried) == lines(done)
    assert f"~ pause topic {b}" in lines(done)
    before = site.mirrors()
    exported = site.export()
    other = site.file.with_name("other.toml")
    written = typed(site.pair.destination, "export", "--mirror", "paused", "-f", str(other))
    assert (written.returncode, written.stdout) == (0, f"wrote {other}\n")
    assert "[mirrors.paused]" in other.read_text()
    assert "with.dots" not in other.read_text()
    assert typed(site.pair.destination, "export", "--mirror", "none").returncode == 3
    as_json = json.loads(typed(site.pair.destination, "export", "--json").stdout)
    assert as_json == tomllib.loads(exported)
    client = kmirror.Client(site.pair.destination.bootstrap_servers)
    assert client.export() == exported
    assert client.apply(other).changes == ()
    site.file.write_text(exported, encoding="utf-8")
    for more in ((), ("--prune",)):
        code, done = site.apply(*more)
        assert (code, done["changes"]) == (0, []), exported
    assert site.mirrors() == before
    assert site.export() == exported
    assert f'topics = ["{a}", "{b}", \'{c[:-1]}\\w\']' in exported


def test_what_is_not_in_the_file_stays_unless_it_is_pruned(site: Site) -> None:
    a, b = new_topics(site.pair.source, "a", "b")
    whole = f"""
        [mirrors.kept]
        topics = ["{a}", "{b}"]
        source = {{ "bootstrap.servers" = "SERVERS", "client.id" = "x" }}
        settings = {{ "retry.timeout.ms" = 60000 }}
        [mirrors.empty]
        source = {{ "bootstrap.servers" = "SERVERS" }}
        [mirrors.old]
        topics = ["{b}"]
        source = {{ "bootstrap.servers" = "SERVERS" }}
        settings = {{ "topic.prefix" = "old." }}
        """
    site.write(whole)
    assert site.apply()[0] == 0
    site.write(f'[mirrors.kept]\ntopics = ["{a}"]\nsource = {{ "bootstrap.servers" = "SERVERS" }}')

    done = typed(site.pair.destination, "apply", "--file", str(site.file))
    assert done.returncode == 0
    for left in (
        f"mirrored as before: {b}",
        "client.id, retry.timeout.ms",
        "mirror empty: not in",
        "mirror old: not in",
    ):
        assert left in done.stderr

    code, pruned = site.apply("--prune")
    assert code == 4
    assert lines(pruned, result="DONE") == [
        "~ client.id: x → default",
        "~ retry.timeout.ms: 60000 → default",
        "- delete mirror empty",
    ]
    assert lines(pruned, result="REFUSED") == [f"- remove topic {b}", "- delete mirror old"]
    assert list(site.mirrors()) == ["kept", "old"]
    hints = [
        f"add `--prune-topics {b}` to remove it, or list it in the file",
        "add `--prune-mirror old` to delete it, or list it in the file",
    ]
    assert [row["hint"] for row in pruned["changes"] if row["result"] == "REFUSED"] == hints
    shown = typed(site.pair.destination, "apply", "--file", str(site.file), "--prune")
    assert shown.returncode == 3
    assert [line.strip() for line in shown.stdout.splitlines() if line.startswith("  ")] == hints

    naming = ("--prune", "--prune-topics", b, "--prune-mirror", "old")
    code, refused = site.apply(*naming)
    assert (code, refused["error"]["hint"]) == (3, "add --yes to proceed")
    assert site.topics("kept")[b] is DesiredState.ACTIVE
    code, tried = site.apply(*naming, "--dry-run")
    assert code == 0
    code, pruned = site.apply(*naming, "--yes")
    assert (code, pruned["error"]) == (0, None)
    assert lines(pruned) == lines(tried)
    assert list(site.mirrors()) == ["kept"]
    assert site.topics("kept") == {a: DesiredState.ACTIVE, b: DesiredState.STOPPED}
    code, again = site.apply("--prune")
    assert (code, again["changes"]) == (0, [])

    # what was removed is not mirrored again because a file has it
    site.write(f'[mirrors.kept]\ntopics = ["{a}", "{b}"]\nsource = {{ "bootstrap.servers" = "SERVERS" }}')
    code, back = site.apply()
    assert code == 3
    assert "--adopt" in back["error"]["hint"]
    assert site.apply("--prune-topics", a, "--yes")[0] == 2


def test_topics_are_added_with_their_options(site: Site) -> None:
    clicks, there, later, kept, last = (unique_topic(one) for one in ("clicks", "there", "later", "kept", "last"))
    for topic in (clicks, there, kept, last):
        make_topic(site.pair.source, topic)
        produce(site.pair.source, topic, ["one", "two", "three"])
    make_topic(site.pair.destination, there)
    site.write(
        f"""
        [mirrors.m]
        source = {{ "bootstrap.servers" = "SERVERS" }}
        settings = {{ "start.from" = "earliest" }}
        [[mirrors.m.add]]
        topics = ["{clicks}"]
        start-from = "latest"
        [[mirrors.m.add]]
        topics = ["{there}"]
        adopt = true
        [[mirrors.m.add]]
        topics = ["{later}"]
        allow-missing = true
        [[mirrors.m.add]]
        topics = ["{kept}"]
        config = {{ "retention.ms" = 3600000 }}
        """
    )
    code, done = site.apply()
    assert (code, done["error"]) == (0, None)
    assert f"+ add topic {clicks}, from latest" in lines(done)
    state = site.state()
    partition = state.partition("m", clicks, 0)
    adopted = state.topic("m", there)
    assert partition is not None
    assert adopted is not None
    assert (partition.first_offset, adopted.origin) == (3, TopicOrigin.ADOPTED)
    assert site.mirrors()["m"].settings["topics.include"] == later
    assert settings_of(site.pair.destination, kept)["retention.ms"] == "3600000"
    assert site.apply()[1]["changes"] == []

    # what is refused for a topic stops nothing else
    source = 'source = { "bootstrap.servers" = "SERVERS" }'
    groups = "".join(f'[[mirrors.m.add]]\ntopics = ["{name}"]\n' for name in (there, "none", last))
    site.write(f"[mirrors.m]\npaused = true\n{source}\n{groups}")
    code, partly = site.apply()
    assert code == 4
    assert lines(partly, result="DONE") == ["~ pause mirror m", f"+ add topic {last}"]
    assert lines(partly, result="REFUSED") == ["+ add topic none"]

    site.write('[mirrors.m]\ntopics = ["none"]\nsource = { "bootstrap.servers" = "SERVERS" }')
    code, refused = site.apply()
    assert (code, lines(refused)) == (3, ["+ add topic none"])
    assert refused["error"]["message"] == "the source has no topic none"


def test_a_pattern_that_adopts_takes_no_topic_that_was_stopped(site: Site) -> None:
    stopped, there = new_topics(site.pair.source, "family", "family")
    source = 'source = { "bootstrap.servers" = "SERVERS" }'
    site.write(f'[mirrors.m]\ntopics = ["{stopped}"]\n{source}')
    assert site.apply()[0] == 0
    assert typed(site.pair.destination, "failover", "--mirror", "m", "--topics", stopped, "--yes").returncode == 0
    make_topic(site.pair.destination, there)

    site.write(f'[mirrors.m]\n{source}\n[[mirrors.m.add]]\ntopics = ["{stopped}|{there}"]\nadopt = true')
    code, done = site.apply()
    assert (code, done["error"]) == (0, None)
    assert site.topics("m") == {stopped: DesiredState.STOPPED, there: DesiredState.ACTIVE}


def test_what_ends_mirroring_is_asked_about_on_a_terminal(site: Site) -> None:
    (a,) = new_topics(site.pair.source, "a")
    source = 'source = { "bootstrap.servers" = "SERVERS" }'
    site.write(f'[mirrors.old]\ntopics = ["{a}"]\n{source}\n[mirrors.kept]\n{source}')
    assert site.apply()[0] == 0
    site.write(f"[mirrors.kept]\n{source}")
    words = ["apply", "-f", str(site.file), "--prune-mirror", "old"]
    words += ["--bootstrap-server", site.pair.destination.bootstrap_servers]
    for answer, code in (("n\n", 3), ("y\n", 0)):
        screen = terminal(answer)
        assert main(words, screen) == code
        asked = written(screen)[1]
        assert (
            "old: - fail over mirror old: its topics become writable\nold: - delete mirror old\nRemove these?" in asked
        )
        assert site.pair.source.cluster_id in asked
    assert list(site.mirrors()) == ["kept"]
    # done before: nothing is asked
    assert main(words, terminal()) == 0


#: Four records: that it begins, then three changes.
ONE = """
[mirrors.m1]
paused = true
source = { "bootstrap.servers" = "SERVERS" }
settings = { "retry.timeout.ms" = 1000 }
[mirrors.m2]
source = { "bootstrap.servers" = "SERVERS" }
settings = { "copy.lanes" = 1 }
"""
#: On its own it would find nothing to do with the second mirror.
OTHER = """
[mirrors.m1]
paused = false
source = { "bootstrap.servers" = "SERVERS" }
settings = { "retry.timeout.ms" = 2000 }
[mirrors.m2]
source = { "bootstrap.servers" = "SERVERS" }
settings = { "copy.lanes" = "auto" }
"""


@pytest.mark.parametrize(("when", "number"), [*itertools.product(("before", "after"), (1, 2, 3, 4))])
def test_of_two_at_once_the_later_one_decides(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, number: int
) -> None:
    """The first is held at one of its records while the other begins and ends."""
    site.write(OTHER.replace("2000", "3000"))
    code, document = site.apply()
    assert code == 0, document
    site.write(OTHER)
    first = tmp_path / "first.toml"
    first.write_text(ONE.replace("SERVERS", site.servers), "utf-8")
    done = held_meanwhile(site, first, monkeypatch, when, number)
    last = first if (when, number) == ("before", 1) else site.file
    if (when, number) in (("before", 1), ("after", 4)):
        assert done.exit_code is ExitCode.OK
    else:
        assert done.error is not None
        assert done.error.reason is Reason.FENCED
        assert "another apply has begun" in str(done.results[-1].message)
    # the order of the two explains what is stored
    assert site.apply("--dry-run", file=last)[1]["changes"] == []


@pytest.mark.parametrize(("when", "number"), [("before", 2), ("after", 2), ("after", 3)])
def test_topics_that_are_being_added_are_paused_with_their_mirror(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, number: int
) -> None:
    """`add` claims its topics, as they are to be, under a lock of its own, and completes them later."""
    (a,) = new_topics(site.pair.source, "a")
    empty = '[mirrors.m]\nsource = { "bootstrap.servers" = "SERVERS" }\n'
    site.write(empty)
    assert site.apply()[0] == 0
    site.write(f"{empty}paused = true")
    first = tmp_path / "first.toml"
    first.write_text(f'{empty}topics = ["{a}"]'.replace("SERVERS", site.servers), "utf-8")
    done = held_meanwhile(site, first, monkeypatch, when, number)
    assert (done.exit_code, done.error and done.error.reason) == (ExitCode.REFUSED, Reason.FENCED)
    assert site.apply("--dry-run")[1]["changes"] == []
    assert site.mirrors()["m"].paused
    assert set(site.topics("m").values()) <= {DesiredState.PAUSED}
    assert site.apply(file=first)[0] == 0
    assert site.topics("m") == {a: DesiredState.PAUSED}


def held_meanwhile(site: Site, first: Path, monkeypatch: pytest.MonkeyPatch, when: str, number: int) -> VerbResult:
    """Apply a file, and that of the site while the first is held at one of its records; return how the first ended."""
    reached, released = threading.Event(), threading.Event()
    numbers, commit = itertools.count(1), StateWriter.commit

    def held(self: StateWriter, changes: Changes, deadline: Deadline) -> None:
        at = next(numbers) if threading.current_thread() is not threading.main_thread() else None
        for moment in ("before", "after"):
            if (moment, at) == (when, number):
                reached.set()
                assert released.wait(60)
            if moment == "before":
                commit(self, changes, deadline)

    monkeypatch.setattr(StateWriter, "commit", held)
    with ThreadPoolExecutor(1) as other:
        running = other.submit(apply_file, site, first)
        assert reached.wait(60)
        code, second = site.apply()
        assert code == 0, second
        released.set()
        return running.result(60)


def apply_file(site: Site, file: Path) -> VerbResult:
    with Destination.open(properties_of(site.pair.destination)) as destination:
        return apply(destination, ApplyRequest(read_mirrors_file(file)))


def test_two_that_race_leave_what_one_of_them_says(site: Site, tmp_path: Path) -> None:
    files = [tmp_path / "one.toml", tmp_path / "other.toml"]
    for file, text in zip(files, (ONE, OTHER), strict=True):
        file.write_text(text.replace("SERVERS", site.servers), "utf-8")
    lines_of_both = [command(site.pair.destination, "apply", "-f", str(file)) for file in files]
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(run_to_its_end, lines_of_both))
    assert 0 in [one.returncode for one in done], [one.stderr for one in done]
    left = [site.apply("--dry-run", file=file)[1]["changes"] for file in files]
    assert [] in left


def test_one_source_that_does_not_answer_stops_no_other_mirror(site: Site) -> None:
    (a,) = new_topics(site.pair.source, "a")
    text = f"""
        [mirrors.dead]
        topics = ["{a}"]
        source = {{ "bootstrap.servers" = "127.0.0.1:1" }}
        settings = {{ "topic.prefix" = "dead." }}
        """
    living = f'[mirrors.living]\ntopics = ["{a}"]\nsource = {{ "bootstrap.servers" = "SERVERS" }}\n'
    site.write(text + living)
    for more in (("--dry-run",), ()):
        code, done = site.apply(*more)
        assert code == 4
        assert [(row["mirror"], row["result"], row["reason"]) for row in done["changes"]] == [
            ("dead", "FAILED", "SOURCE_UNREACHABLE"),
            ("dead", "FAILED", "SOURCE_UNREACHABLE"),
            ("living", "DONE", None),
            ("living", "DONE", None),
        ]
        assert done["changes"][1]["message"].startswith("not attempted: ")
    assert list(site.mirrors()) == ["living"]
    assert site.apply()[0] == 6


def test_what_cannot_change_is_refused_by_name_and_the_rest_is_done(site: Site) -> None:
    site.write('[mirrors.m]\nsource = { "bootstrap.servers" = "SERVERS" }')
    assert site.apply()[0] == 0
    site.write(
        """
        [mirrors.m]
        source = { "bootstrap.servers" = "SERVERS" }
        settings = { "topic.prefix" = "p.", "copy.lanes" = 5 }
        """
    )
    code, done = site.apply()
    assert code == 4
    assert lines(done, result="DONE") == ["~ copy.lanes: auto → 5"]
    assert lines(done, result="REFUSED") == ["~ topic.prefix: empty → p."]
    assert done["error"]["message"] == "mirror m: topic.prefix cannot be changed once the mirror exists"
    code, done = site.apply()
    assert (code, lines(done)) == (3, ["~ topic.prefix: empty → p."])

    # the destination is another cluster than the source that the mirror was created from
    site.file.write_text(
        f'[mirrors.m]\nsource = {{ "bootstrap.servers" = "{site.pair.destination.bootstrap_servers}" }}', "utf-8"
    )
    code, done = site.apply()
    assert (code, done["changes"][0]["reason"]) == (3, "LOOP")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mirrors.m]\ntopic = []", "{file}: unknown key mirrors.m.topic"),
        ("[mirrors.m.source]\nbootstrap.servers = 'x'", "{file}: mirrors.m.source.bootstrap is a table"),
        (
            '[mirrors.m]\nsource = { "bootstrap.servers" = "x" }\nsettings = { "retry.timeout" = 1 }',
            "{file}: mirrors.m.settings: unknown setting retry.timeout",
        ),
    ],
)
def test_an_error_names_the_file_the_table_and_the_key(site: Site, text: str, message: str) -> None:
    site.write(text)
    code, done = site.apply()
    assert (code, done["error"]["message"]) == (2, message.format(file=site.file))


def test_a_plaintext_secret_is_refused_and_never_shown(site: Site) -> None:
    site.write(
        '[variables]\nword = "hunter2"\n[mirrors.m]\n'
        'source = { "bootstrap.servers" = "SERVERS", "ssl.key.password" = "{{word}}" }'
    )
    done = typed(site.pair.destination, "apply", "--file", str(site.file))
    assert done.returncode == 3
    assert "ssl.key.password: plaintext secrets are not stored" in done.stderr
    assert "${env:NAME}" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
