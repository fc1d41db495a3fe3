"""How tables of mirrors, partitions, settings and groups look: to people, and to scripts that read a pipe or JSON."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace

import pytest

from kmirror.cli.terminal.output import JsonOutput, TableOutput
from kmirror.cli.terminal.screen import Screen
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.columns import Table
from kmirror.errors import Reason
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.mirrors.config import MIRROR_SETTINGS, SettingRow
from kmirror.ops.show.describe_groups import GROUPS, GroupRow
from kmirror.ops.show.describe_settings import TOPIC_SETTINGS, TopicSettingRow
from kmirror.state.group_records import GroupReason
from kmirror.state.records import PartitionState
from kmirror.status.mirror_status import MIRRORS, MirrorRow
from kmirror.status.partition_row import (
    FAILED_PARTITIONS,
    KAFKA_FAILED_PARTITIONS,
    PARTITIONS,
    STOPPED_PARTITIONS,
    PartitionRow,
    retried_notes,
)
from kmirror.status.topic_state import TopicState
from kmirror.sync.setting_changes import SettingState
from tests.support.screens import piped, terminal, written

pytestmark = pytest.mark.usefixtures("plain_environment")

ROW = PartitionRow(
    mirror="m",
    topic="orders",
    partition=0,
    source_offset=1_234_567,
    destination_offset=1_234_560,
    lag=7,
    state=PartitionState.MIRRORING,
    retry_attempt=0,
    error_message=None,
    source_topic="orders",
    topic_state=TopicState.ACTIVE,
    reason=None,
    state_time_ms=1_772_366_400_000,
    time_lag_ms=12,
    last_known_lag=7,
    source_log_start=0,
    destination_log_start=0,
    source_high_watermark=1_234_568,
    last_mirrored_offset=None,
    last_mirrored_epoch=None,
    initial_copy_complete=True,
    rebuilt_at_ms=None,
    archive=None,
    as_of_ms=1_772_366_400_000,
)
FAILED = replace(
    ROW,
    topic="a-topic-with-a-long-name",
    partition=10,
    source_offset=None,
    lag=None,
    state=PartitionState.FAILED,
    retry_attempt=3,
    error_message="offset 5 is\nmissing",
    topic_state=TopicState.FAILED,
    reason=Reason.SOURCE_TRUNCATED,
)


def test_describe_in_a_pipe() -> None:
    screen = piped()
    TableOutput(screen).rows(PARTITIONS, [ROW, FAILED])
    assert written(screen) == (
        "MIRROR  TOPIC                     PARTITION  SOURCE-OFFSET  DESTINATION-OFFSET  LAG  STATE\n"
        "m       orders                            0        1234567             1234560    7  MIRRORING\n"
        "m       a-topic-with-a-long-name         10              -             1234560    -  FAILED\n",
        "m: 1 of 2 partitions FAILED; `kmirror describe --mirror m --failed` says why\n",
    )


def test_describe_failed_in_a_pipe() -> None:
    screen = piped()
    TableOutput(screen).rows(FAILED_PARTITIONS, [FAILED])
    assert written(screen) == (
        "MIRROR  TOPIC                     PARTITION  RETRY  REASON            ERROR\n"
        "m       a-topic-with-a-long-name         10      3  SOURCE_TRUNCATED  offset 5 is missing\n",
        "",
    )


def test_what_is_retried_is_named_where_only_failed_partitions_are_shown() -> None:
    forbidden = replace(ROW, reason=Reason.NOT_AUTHORIZED)
    waiting = replace(ROW, reason=Reason.OPEN_TRANSACTION)
    assert [*retried_notes([FAILED, ROW, waiting, forbidden, forbidden])] == [
        "m: 2 more partitions not copied, but not FAILED (yet): NOT_AUTHORIZED; "
        "`kmirror describe --mirror m --wide` shows them"
    ]


def test_kafka_mirrors_counts_attempts_of_as_many_as_there_may_be_where_they_can_help() -> None:
    screen = piped()
    refused = replace(FAILED, partition=11, reason=Reason.NOT_AUTHORIZED, error_message="no right to read")
    TableOutput(screen).rows(KAFKA_FAILED_PARTITIONS, [FAILED, refused])
    assert written(screen)[0] == (
        "MIRROR  TOPIC                     PARTITION  RETRY         ERROR\n"
        "m       a-topic-with-a-long-name         10  NonRetryable  offset 5 is missing\n"
        "m       a-topic-with-a-long-name         11  3/2147483647  no right to read\n"
    )


def test_describe_never_cuts_a_name_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = piped()
    TableOutput(screen).rows(PARTITIONS, [replace(ROW, topic="t" * 249)])
    assert written(screen)[0].splitlines()[1].split() == ["m", "t" * 249, "0", "1234567", "1234560", "7", "MIRRORING"]


def test_describe_on_a_terminal() -> None:
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [ROW, FAILED])
    shown = written(screen)[0]
    assert "\x1b[32mMIRRORING\x1b[0m" in shown
    assert "\x1b[1;31mFAILED" in shown


def test_a_terminal_of_80_characters_shows_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    screen = terminal()
    long = replace(ROW, mirror="orders-dr", topic="payments.refunds.eu-west.of-all-kinds")
    idle = replace(long, reason=Reason.NO_ENGINE, error_message="no engine")
    TableOutput(screen).rows(PARTITIONS, [long, idle, replace(ROW, mirror="orders-dr")])
    assert re.sub("\x1b.*?m", "", written(screen)[0]).splitlines() == [
        "MIRROR     TOPIC              PARTITION  SOURCE-  DESTINATION-  LAG  STATE",
        "                                          OFFSET        OFFSET",
        "orders-dr  payments.refunds.          0  1234567       1234560    7  MIRRORING",
        "           eu-west.of-all-",
        "           kinds",
        "orders-dr  payments.refunds.          0  1234567       1234560    7  NO_ENGINE",
        "           eu-west.of-all-                                           (MIRRORING)",
        "           kinds",
        "orders-dr  orders                     0  1234567       1234560    7  MIRRORING",
    ]


def test_only_codes_have_a_style_whatever_a_text_says() -> None:
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [replace(ROW, topic="FAILED")])
    row = TopicResult("DONE", None, Outcome.REFUSED, "FAILED before")
    TableOutput(screen).result(VerbResult.of("add", "m", [row]))
    shown = written(screen)[0]
    assert "FAILED" in shown
    assert "\x1b[1;31m" not in shown
    assert "\x1b[31mREFUSED" in shown
    assert "\x1b[32mDONE" not in shown


def test_a_terminal_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [ROW])
    shown = [line.split() for line in written(screen)[0].splitlines()]
    assert shown[1] == ["m", "orders", "0", "1234567", "1234560", "7", "MIRRORING"]


def test_a_terminal_that_can_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = terminal()
    TableOutput(screen).rows(PARTITIONS, [ROW])
    assert "\x1b" not in written(screen)[0]


def test_describe_says_why_nothing_moves() -> None:
    screen = piped()
    row = replace(
        ROW, reason=Reason.NO_ENGINE, error_message="no engine copies mirror m", topic_state=TopicState.LINK_FAILED
    )
    silent = replace(ROW, mirror="n", source_offset=None, lag=None, topic_state=TopicState.SOURCE_UNAVAILABLE)
    TableOutput(screen).rows(PARTITIONS, [row, silent, replace(silent, partition=1, last_known_lag=None)])
    assert written(screen)[1].splitlines() == [
        "m: 1 partition not copied: no engine copies mirror m",
        "n: the source does not answer for 2 partitions; the last known lag of these partitions is 7",
    ]


def test_describe_says_that_leaders_are_away_at_the_destination() -> None:
    """Half of a broker's log directories were full: `describe` showed dashes, MIRRORING, and no word about it."""
    screen = piped()
    unknown = replace(ROW, destination_offset=None, lag=None)
    refused = replace(ROW, partition=1, reason=Reason.DESTINATION_UNREACHABLE)
    TableOutput(screen).rows(PARTITIONS, [unknown, refused, replace(ROW, partition=2)])
    assert written(screen)[1] == (
        "m: the destination does not answer for 2 partitions; `kmirror check --mirror m` says why\n"
    )


def test_describe_says_what_a_stopped_topic_has_lost_since() -> None:
    """After a failover an unclean election took 200 records: only `verify` said so."""
    screen = piped()
    lost = replace(ROW, state=PartitionState.STOPPED, reason=Reason.FAILED_OVER, destination_offset=800)
    lost = replace(lost, last_mirrored_offset=1000)
    TableOutput(screen).rows(PARTITIONS, [lost, replace(lost, partition=1, destination_offset=1000)])
    assert written(screen)[1].splitlines() == [
        "m: 1 topic stopped, FAILED_OVER",
        "m: 1 stopped partition ends below the last mirrored offset: orders-0 ends at 800, not 1000;"
        " `kmirror verify --mirror m` says what is missing",
    ]


def test_describe_never_shows_as_mirroring_what_is_not() -> None:
    screen = piped()
    waiting = replace(ROW, topic_state=TopicState.PENDING_STOPPED)
    idle = replace(ROW, reason=Reason.NO_WORKERS)
    both = replace(waiting, reason=Reason.ENGINE_SILENT)
    stopping = replace(waiting, state=PartitionState.STOPPING)
    TableOutput(screen).rows(PARTITIONS, [ROW, waiting, idle, both, stopping])
    heading, *lines = written(screen)[0].splitlines()
    assert [line[heading.index("STATE") :] for line in lines] == [
        "MIRRORING",
        "PENDING_STOPPED",
        "NO_WORKERS (MIRRORING)",
        "ENGINE_SILENT (PENDING_STOPPED)",
        "STOPPING",
    ]


def test_describe_stopped_in_a_pipe() -> None:
    screen = piped()
    stopped = replace(ROW, state=PartitionState.STOPPED, reason=Reason.PROMOTED, last_mirrored_offset=1_234_560)
    TableOutput(screen).rows(STOPPED_PARTITIONS, [stopped])
    assert written(screen) == (
        "MIRROR  TOPIC   PARTITION  LAST-MIRRORED-OFFSET  LAST-MIRRORED-EPOCH  STOPPED               REASON\n"
        "m       orders          0               1234560                    -  2026-03-01T12:00:00Z  PROMOTED\n",
        "",
    )


@pytest.mark.parametrize(
    ("table", "reported"),
    [
        (PARTITIONS, "no topic is mirrored yet; `kmirror add` makes one a mirror topic\n"),
        (FAILED_PARTITIONS, "no partition is FAILED\n"),
        (KAFKA_FAILED_PARTITIONS, "No failed partitions found\n"),
        (STOPPED_PARTITIONS, "no partition is STOPPED\n"),
    ],
)
def test_describe_of_nothing(table: Table[PartitionRow], reported: str) -> None:
    screen = piped()
    TableOutput(screen).rows(table, [])
    out, err = written(screen)
    assert (len(out.splitlines()), err) == (1, reported)


def test_describe_for_scripts() -> None:
    screen = piped()
    JsonOutput(screen).rows(PARTITIONS, [ROW, FAILED])
    out, err = written(screen)
    first, second = json.loads(out)
    assert (first["sourceOffset"], first["lag"], first["state"], first["reason"]) == (1234567, 7, "MIRRORING", None)
    assert (second["sourceOffset"], second["retryAttempt"], second["reason"]) == (None, 3, "SOURCE_TRUNCATED")
    assert err == ""


MIRROR = MirrorRow(
    mirror="m",
    topics=2,
    stopped_topics=1,
    partitions=9,
    source_cluster_id="cluster-a",
    source_bootstrap_server="a:9092",
    state=TopicState.LINK_FAILED,
    engine="host/app-1",
    max_lag=7,
    reason=Reason.ENGINE_SILENT,
    engine_last_seen_ms=1,
    engine_age_ms=65_400,
)
UNKNOWN_MIRROR = MirrorRow(
    mirror="other",
    topics=0,
    stopped_topics=0,
    partitions=0,
    source_cluster_id=None,
    source_bootstrap_server=None,
    state=None,
    engine=None,
    max_lag=None,
)


def test_list() -> None:
    screen = piped()
    TableOutput(screen).rows(MIRRORS, [MIRROR, UNKNOWN_MIRROR])
    assert written(screen) == (
        "MIRROR  TOPICS  STOPPED  PARTITIONS  STATE        MAX-LAG  SOURCE-CLUSTER-ID  SOURCE  ENGINE      "
        "HEARTBEAT-AGE  "
        "REASON\n"
        "m            2        1           9  LINK_FAILED        7  cluster-a          a:9092  host/app-1  "
        "         1m5s  "
        "ENGINE_SILENT\n"
        "other        0        0           0  -                  -  -                  -       -           "
        "            -  -\n",
        "",
    )


def test_a_largest_lag_is_a_lower_bound_while_others_are_unknown() -> None:
    """A partition without a leader at the destination was ignored: `MAX-LAG 0` with thousands of records missing."""
    screen = piped()
    TableOutput(screen).rows(MIRRORS, [replace(MIRROR, max_lag=0, lag_unknown=3)])
    head, row = written(screen)[0].splitlines()
    assert row[: head.index("SOURCE-CLUSTER-ID")].split()[-1] == "≥0"


def test_an_empty_list() -> None:
    table, document = piped(), piped()
    TableOutput(table).rows(MIRRORS, [])
    JsonOutput(document).rows(MIRRORS, [])
    assert written(table)[1] == "no mirrors on this destination; `kmirror create` makes one\n"
    assert written(document) == ("[]\n", "")


def test_topic_settings() -> None:
    row = TopicSettingRow(
        mirror="m",
        topic="b.t",
        source_topic="t",
        key="cleanup.policy",
        source_value="compact, delete",
        destination_value="",
        state=SettingState.PENDING,
        why="it is to be",
    )
    untold = TopicSettingRow(mirror="m", topic="b.u", source_topic="u", why="no one tells")
    screen = piped()
    TableOutput(screen).rows(TOPIC_SETTINGS, [row, untold])
    assert written(screen)[0].splitlines() == [
        "MIRROR  TOPIC  KEY             SOURCE          DESTINATION  STATE    WHY",
        'm       b.t    cleanup.policy  compact,delete  ""           PENDING  it is to be',
        "m       b.u    -               -               -            -        no one tells",
    ]
    screen = piped()
    JsonOutput(screen).rows(TOPIC_SETTINGS, [row])
    assert json.loads(written(screen)[0]) == [
        {
            "mirror": "m",
            "topic": "b.t",
            "sourceTopic": "t",
            "key": "cleanup.policy",
            "sourceValue": "compact, delete",
            "destinationValue": "",
            "state": "PENDING",
            "why": "it is to be",
        }
    ]


def test_settings() -> None:
    screen = piped()
    rows = [
        SettingRow(key="topics.include", value="orders, pay.*", is_default=False, changeable=True, help="h"),
        SettingRow(key="topic.prefix", value="", is_default=True, changeable=False, help="h"),
    ]
    TableOutput(screen).rows(MIRROR_SETTINGS, rows)
    assert written(screen)[0] == (
        "KEY             FROM     VALUE\ntopics.include  set      orders, pay.*\ntopic.prefix    default  -\n"
    )


def test_a_reader_that_has_gone_ends_the_writing_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    err = io.StringIO()
    screen = Screen(open(writing, "w", encoding="utf-8", closefd=False), err, io.StringIO())  # noqa: SIM115
    TableOutput(screen).rows(MIRRORS, [MIRROR])
    screen.note("still here")
    assert err.getvalue() == "still here\n"
    os.close(writing)


GROUP = GroupRow(
    mirror="m",
    group="eu.app",
    source_group="app",
    kind=GroupKind.CONSUMER,
    topic="eu.orders",
    partition=0,
    source_offset=50,
    destination_offset=40,
    last_synced_offset=40,
    last_sync_ms=1_772_366_400_000,
    last_sync_age_ms=65_000,
    reason=GroupReason.HAS_MEMBERS,
)


def test_groups_for_people() -> None:
    screen = piped()
    unknown = replace(GROUP, partition=1, source_offset=None, last_sync_ms=None, last_sync_age_ms=None, reason=None)
    TableOutput(screen).rows(GROUPS, [GROUP, unknown])
    out, err = written(screen)
    assert [line.split() for line in out.splitlines()] == [
        ["MIRROR", "GROUP", "TOPIC", "PARTITION", "SOURCE-OFFSET", "DESTINATION-OFFSET", "LAST-SYNC", "REASON"],
        ["m", "eu.app", "eu.orders", "0", "50", "40", "1m5s", "HAS_MEMBERS"],
        ["m", "eu.app", "eu.orders", "1", "-", "40", "-", "-"],
    ]
    assert err == "m: HAS_MEMBERS: the group has members on the destination\n"


def test_groups_for_scripts() -> None:
    screen = piped()
    JsonOutput(screen).rows(GROUPS, [GROUP])
    assert json.loads(written(screen)[0]) == [
        {
            "mirror": "m",
            "group": "eu.app",
            "sourceGroup": "app",
            "type": "consumer",
            "topic": "eu.orders",
            "partition": 0,
            "sourceOffset": 50,
            "destinationOffset": 40,
            "lastSyncedOffset": 40,
            "lastSyncMs": 1_772_366_400_000,
            "lastSyncAgeMs": 65_000,
            "reason": "HAS_MEMBERS",
            "message": "the group has members on the destination",
        }
    ]


def test_no_groups() -> None:
    screen = piped()
    TableOutput(screen).rows(GROUPS, [])
    assert "no group has committed offsets" in written(screen)[1]
