"""Text from brokers and from stored state on a terminal, in a pipe, in logs, pages, metrics and JSON.

Anybody who may commit an offset on the source chooses a group's name: one that clears the screen, names another topic
than it is, or fakes a line of kmirror's own output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import strategies as st
from py_mini_racer import MiniRacer
from rich.text import Text

from kmirror.cli.commands.log_file import LogFile
from kmirror.cli.main import main
from kmirror.cli.terminal.output import JsonOutput, TableOutput, show_error
from kmirror.cli.terminal.run_log import Entry
from kmirror.cli.terminal.screen import Screen
from kmirror.cluster.client import require
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission, Operation, PatternType, ResourceType
from kmirror.columns import Table
from kmirror.engine.status.journal import Level
from kmirror.errors import BrokerError, ExitCode, Reason, RefusedError
from kmirror.ops.base.blocked_producers import BlockedTopic, Denial, blocked_sentences
from kmirror.ops.base.client_gaps import ClientGaps, gap_sentences
from kmirror.ops.base.context import Destination
from kmirror.ops.base.converted_keys import KEYS, KeyRow
from kmirror.ops.base.results import ErrorInfo
from kmirror.ops.base.topic_results import PARTITION_RESULTS, RESULTS, TopicResult
from kmirror.ops.check.findings import CHECKS, AllFindings, CheckLine
from kmirror.ops.check.powers import Power
from kmirror.ops.mirrors.config import MIRROR_SETTINGS, SettingRow
from kmirror.ops.show.describe_groups import GROUPS, GroupRow
from kmirror.ops.show.describe_settings import TOPIC_SETTINGS, TopicSettingRow
from kmirror.ops.show.events import EVENTS
from kmirror.ops.verify.verify_results import VERIFIED, VerifyRow
from kmirror.settings.patterns import TopicSelector
from kmirror.state.event_records import Event
from kmirror.status.mirror_status import KAFKA_MIRRORS, MIRRORS, MirrorRow
from kmirror.status.partition_row import (
    FAILED_PARTITIONS,
    KAFKA_FAILED_PARTITIONS,
    PARTITIONS,
    STOPPED_PARTITIONS,
    WIDE_PARTITIONS,
    PartitionRow,
)
from kmirror.status.topic_status import TOPICS, TOPICS_OF_MIRRORS, TopicStatus
from kmirror.sync.client_rights import LackingRight
from kmirror.web.exposition import exposition
from kmirror.web.live_mirror import live_mirror
from kmirror.web.look import script
from kmirror.web.report_page import page
from kmirror.web.served import ServedStatus
from kmirror.words import json_text, listed, one_line, visible, visible_lines
from tests.support.clusters import ClusterPair
from tests.support.groups import GroupScene, commit, committed
from tests.support.hostile import AMOUNTS, explore
from tests.support.hostile_text import HOSTILE_NAMES, hostile_text
from tests.support.live_engine import NOW_MS, mirror_record, row, snapshot
from tests.support.made_rows import made
from tests.support.mirrors import properties_of
from tests.support.page_script import drawn
from tests.support.report_facts import report_facts
from tests.support.scraped import OPENMETRICS, read
from tests.support.screens import Terminal, piped, terminal, written
from tests.support.strict_html import StrictHtml

#: What rich itself writes: colours, and moves of the cursor.
_OWN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
TABLES: list[tuple[Table[Any], Any]] = [
    (PARTITIONS, PartitionRow),
    (WIDE_PARTITIONS, PartitionRow),
    (STOPPED_PARTITIONS, PartitionRow),
    (FAILED_PARTITIONS, PartitionRow),
    (KAFKA_FAILED_PARTITIONS, PartitionRow),
    (MIRRORS, MirrorRow),
    (KAFKA_MIRRORS, MirrorRow),
    (TOPICS, TopicStatus),
    (TOPICS_OF_MIRRORS, TopicStatus),
    (GROUPS, GroupRow),
    (EVENTS, Event),
    (RESULTS, TopicResult),
    (PARTITION_RESULTS, TopicResult),
    (CHECKS, CheckLine),
    (VERIFIED, VerifyRow),
    (KEYS, KeyRow),
    (MIRROR_SETTINGS, SettingRow),
    (TOPIC_SETTINGS, TopicSettingRow),
]


def obeyed(text: str) -> set[str]:
    """Return the characters that a terminal would obey, besides line breaks."""
    return {one for one in text if not one.isprintable() and one != "\n"}


def shown(screen: Screen) -> str:
    """Return what a screen got, without what rich adds for a terminal."""
    text = "".join(written(screen))
    return _OWN.sub("", text) if isinstance(screen.out, Terminal) else text


# -- the one sanitiser -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@AMOUNTS
def test_what_is_shown_is_only_shown(amount: int) -> None:
    def check(text: str) -> None:
        assert visible(text).isprintable()
        assert one_line(text).isprintable()
        assert listed([text, text], 1).isprintable()
        assert not obeyed(visible_lines(text))
        assert visible_lines(text).count("\n") == text.count("\n")
        if text.isprintable():
            assert visible(text) == text

    explore(amount, hostile_text, check)


@AMOUNTS
def test_json_keeps_the_truth_escaped(amount: int) -> None:
    documents = st.dictionaries(hostile_text, hostile_text | st.lists(hostile_text), max_size=3)

    def check(document: dict[str, Any]) -> None:
        for indent in (None, 2):
            text = json_text(document, indent)
            assert not obeyed(text)
            assert visible_lines(text) == text
            assert json.loads(text) == document

    explore(amount, documents, check)


# -- tables and messages -----------------------------------------------------------------------------------------------


def made_row(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the rows of a table; a topic has partitions."""
    if kind is TopicStatus:
        return st.lists(made(PartitionRow), min_size=1, max_size=2).map(TopicStatus.of)
    return made(kind)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "kind"), TABLES)
@AMOUNTS
def test_no_cell_is_obeyed(amount: int, table: Table[Any], kind: Any) -> None:
    def check(rows: list[Any]) -> None:
        for screen in (piped(), terminal()):
            TableOutput(screen).rows(table, rows)
            assert not obeyed(shown(screen))
        screen = piped()
        TableOutput(screen).rows(table, rows)
        out, _ = written(screen)
        assert len(out.splitlines()) == len(rows) + 1
        assert max(map(len, out.splitlines())) < 8192

    explore(amount // 5, st.lists(made_row(kind), min_size=1, max_size=3), check)


@pytest.mark.parametrize(("table", "kind"), TABLES)
@AMOUNTS
def test_documents_are_the_truth(amount: int, table: Table[Any], kind: Any) -> None:
    def check(rows: list[Any]) -> None:
        screen = piped()
        JsonOutput(screen).rows(table, rows)
        out, _ = written(screen)
        assert not obeyed(out)
        expected = [table.document(row) for row in rows]
        assert json.loads(out) == json.loads(json.dumps(expected))

    explore(amount // 5, st.lists(made_row(kind), min_size=1, max_size=3), check)


@pytest.mark.slow
@AMOUNTS
def test_no_sentence_is_obeyed(amount: int) -> None:
    def check(text: str) -> None:
        for screen in (piped(), terminal("n\n")):
            output = TableOutput(screen)
            screen.line(text)
            screen.note(text)
            if screen.is_terminal:
                screen.status(text)
            screen.ask(text)
            show_error(screen, ErrorInfo(ExitCode.UNEXPECTED, text, text, Reason.FENCED))
            output.check_line(CheckLine(cluster="source", what=text, ok=False, message=text, hint=text))
            with output.waiting(text) as waits:
                waits(text)
            screen.console().print(text)
            screen.console().print(Text(text))
            assert not obeyed(shown(screen).replace("\r", ""))

    explore(amount, hostile_text, check)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_error_stays_one_line(name: str) -> None:
    screen = piped()
    show_error(screen, ErrorInfo(ExitCode.UNEXPECTED, f"group {name} is unknown", None, None))
    assert len(written(screen)[1].splitlines()) == 1


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_broker_s_own_message_fakes_no_line(name: str) -> None:
    """Brokers explain their refusals in text, which becomes part of sentences that may have lines of commands."""
    with pytest.raises(BrokerError) as refusal:
        require(42, "creating topics", name)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_sentences_with_lines_of_commands_get_no_further_line(name: str) -> None:
    """Their line breaks are ours, and what follows looks like a command to copy: a name must not add one."""
    lacking = LackingRight(name, name, Operation.READ, ResourceType.GROUP, PatternType.LITERAL, (name,))
    gaps = ClientGaps(found_ms=0, rights=(lacking,))
    binding = AclBinding(ResourceType.GROUP, name, PatternType.LITERAL, name, name, Operation.READ, AclPermission.ALLOW)
    blocked = BlockedTopic(topic=name, denial=Denial.KEPT, since_ms=0, until_ms=1)
    texts = [
        *gap_sentences(gaps),
        str(binding),
        str(Power({name: [f"READ on {name}"]})),
        blocked_sentences([blocked], "")[0].rstrip("\n"),
    ]
    for text in texts:
        assert text.isprintable(), text


def test_what_a_check_failed_with_is_one_line() -> None:
    shown: list[CheckLine] = []

    def fail() -> None:
        raise RefusedError("no\nkafka-acls --add --allow-principal User:evil", "a hint")

    with AllFindings(shown.append).source.catching("connection"):
        fail()
    (line,) = shown
    assert line.message.isprintable()


# -- logs, pages, metrics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_line_of_the_log_is_one_line(name: str, tmp_path: Any) -> None:
    entry = Entry(NOW_MS, Level.WARNING, name, f"group {name} has members", {"group": name})
    assert entry.text().isprintable()
    assert entry.json().isprintable()
    assert json.loads(entry.json())["group"] == name
    file = LogFile.at(str(tmp_path / "log"), lambda text: None)
    file.write(entry.text())
    file.close()
    assert (tmp_path / "log").read_text(encoding="utf-8") == f"{entry.text()}\n"


def poisoned(value: Any, text: str) -> Any:
    """Return a value in which every text is this one."""
    if isinstance(value, str):
        return value if isinstance(value, Enum) else text
    if isinstance(value, Mapping):
        return {poisoned(key, text): poisoned(one, text) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: poisoned(getattr(value, one.name), text) for one in fields(value) if one.init}
        )
    if isinstance(value, tuple):
        parts = [poisoned(one, text) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


@pytest.mark.slow
def test_a_report_shows_names_as_text() -> None:
    facts = replace(report_facts(topics=2), history=())
    sound = StrictHtml(page(facts))
    for name in HOSTILE_NAMES[:-1]:
        text = page(poisoned(facts, name))
        for markup in (text, drawn(text)):
            assert not obeyed(markup), name
            found = StrictHtml(markup)
            assert found.count("script") <= sound.count("script")
            assert found.count("img") == sound.count("img")
            assert not [one for _, attributes in found.found for one in attributes if one.startswith("on")]


def test_the_page_of_a_running_engine_shows_names_as_text() -> None:
    """Its script makes markup of the documents."""
    engine = MiniRacer()
    engine.eval(script())
    for name in HOSTILE_NAMES:
        markup = str(engine.eval(f"escaped({json.dumps(name)})"))
        assert not obeyed(markup)
        assert "<" not in markup
        assert '"' not in markup


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_metrics_stay_lines(name: str) -> None:
    copied = snapshot(row(name), mirror=mirror_record(name or "m"))
    status = ServedStatus("copying", NOW_MS, None, (live_mirror(copied),), {})
    for accept in ("", OPENMETRICS):
        text = exposition(status, accept)[0].decode()
        assert not obeyed(text)
        labels = [dict(labels) for metric, labels in read(text, accept) if metric == "kmirror_topic_lag_offsets"]
        assert [one["topic"] for one in labels] == [visible_lines(name)]


# -- a cluster ---------------------------------------------------------------------------------------------------------

CLEARING = "\x1b[2J\x1b[Hall topics caught up\nkmirror: done\u202e"


@pytest.fixture
def scene(cluster_pair: ClusterPair) -> Iterator[GroupScene]:
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        made_scene = GroupScene(cluster_pair, destination)
        yield made_scene
        made_scene.close()


def test_a_hostile_group_is_synced_and_shown_harmlessly(scene: GroupScene, capsys: pytest.CaptureFixture[str]) -> None:
    """`.*`, the default, means every group: also one with a line break in its name."""
    group = f"{scene.group}{CLEARING}"
    commit(scene.pair.source, group, scene.source_topic, {0: 40})
    scene.sync()
    assert committed(scene.pair.destination, group, scene.topic) == {0: 40}
    where = ("--mirror", scene.mirror, "--bootstrap-server", scene.pair.destination.bootstrap_servers)
    assert main(["describe", "--groups", *where]) == 0
    out = capsys.readouterr().out
    assert not obeyed(out)
    assert len(out.splitlines()) == 2
    assert visible(group).replace(" ", "·") in out
    assert main(["describe", "--groups", "--json", *where]) == 0
    out = capsys.readouterr().out
    assert not obeyed(out)
    assert [one["group"] for one in json.loads(out)] == [group]


def test_patterns_match_and_exclude_names_with_line_breaks() -> None:
    assert TopicSelector((".*",)).matches("a\nb")
    assert TopicSelector(("secret.*",)).matches("secret\n")
