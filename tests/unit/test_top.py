"""What `top` and `describe --watch` show, and the keys that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import pytest

from kmirror.cli.terminal.keyboard import keys_of
from kmirror.cli.terminal.layout import Line
from kmirror.cli.terminal.observation import Observation
from kmirror.cli.terminal.table_view import TableView
from kmirror.cli.terminal.top_view import TopView
from kmirror.errors import Reason
from kmirror.ops.show.listing import Overview
from kmirror.state.records import PartitionState
from kmirror.status.mirror_status import MirrorRow
from kmirror.status.partition_row import PARTITIONS, PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus, shown_state, totals
from tests.unit.test_ops_speed import DONE, LACKING, STOPPED

M = MirrorRow(
    mirror="m",
    topics=3,
    stopped_topics=1,
    partitions=4,
    source_cluster_id="A",
    source_bootstrap_server="a:1",
    state=TopicState.ACTIVE,
    engine="h1/app-1",
    max_lag=10,
    engine_age_ms=500,
)
FAILED = replace(
    DONE,
    topic="a.failed",
    state=PartitionState.FAILED,
    topic_state=TopicState.FAILED,
    reason=Reason.SOURCE_TRUNCATED,
    bytes_per_second=0,
)
ROWS = (LACKING, replace(LACKING, partition=1), replace(DONE, topic="a.done", bytes_per_second=5_000_000), FAILED)


def topics_of_rows(rows: Sequence[PartitionRow]) -> list[TopicStatus]:
    return [TopicStatus.of(list(own)) for _, own in groupby(rows, lambda row: (row.mirror, row.topic))]


def picture(*rows: PartitionRow, mirrors: Sequence[MirrorRow] = (M,)) -> Overview:
    return Overview(tuple(mirrors), tuple(topics_of_rows(rows)), totals(rows))


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def shown(
    seen: Observation[Overview],
    *keys: str,
    at: float = 101.0,
    width: int = 80,
    height: int = 14,
    view: TopView | None = None,
) -> list[str]:
    view = view or TopView("b:9092")
    for key in keys:
        assert view.press(key)
    lines = view.lines(seen, at, width, height)
    assert len(lines) == height
    return texts(lines)


SEEN = Observation(picture(*ROWS), 100.0)


def topics_of(lines: list[str]) -> list[str]:
    begin = next(index for index, line in enumerate(lines) if "TOPIC" in line.split())
    return [line.split()[0] for line in lines[begin + 1 :] if line.startswith("a.")]


def test_the_terminal_shows_mirrors_sums_and_topics() -> None:
    assert shown(SEEN) == [
        "kmirror top  b:9092                                               updated 1s ago",
        "3 topics, 4 partitions  1 FAILED  2 ACTIVE",
        "rate 5.0MB/s  total lag 20  time lag 10m  ETA 2s",
        "m  ACTIVE  engine h1/app-1, last heartbeat 1s ago",
        "",
        "TOPIC        RATE  LAG  TIME-LAG  ETA  STATE",
        "a.failed     0B/s    0        0s   0s  FAILED (SOURCE_TRUNCATED)",
        "a.orders  2.0KB/s   20       10m   2s  ACTIVE",
        "a.done    5.0MB/s    0        0s   0s  ACTIVE",
        "",
        "",
        "",
        "",
        "q quit  s sort: lag  / filter   3 topics",
    ]


def test_s_sorts_by_lag_rate_and_name() -> None:
    assert topics_of(shown(SEEN)) == ["a.failed", "a.orders", "a.done"]
    assert topics_of(shown(SEEN, "s")) == ["a.done", "a.orders", "a.failed"]
    assert topics_of(shown(SEEN, "s", "s")) == ["a.done", "a.failed", "a.orders"]
    assert topics_of(shown(SEEN, "s", "s", "s")) == topics_of(shown(SEEN))


def test_unknown_lags_come_before_known_ones() -> None:
    unknown = replace(LACKING, topic="a.unknown", lag=None, time_lag_ms=None, bytes_per_second=None)
    lines = shown(Observation(picture(*ROWS, unknown, STOPPED), 100.0))
    assert topics_of(lines)[:3] == ["a.failed", "a.unknown", "a.orders"]
    assert lines[2] == "rate 5.0MB/s  total lag ≥20  time lag -  ETA -"
    assert next(line for line in lines if "a.unknown" in line).split() == ["a.unknown", "-", "-", "-", "-", "ACTIVE"]


def test_slash_filters_what_is_typed_and_escape_shows_all_again() -> None:
    view = TopView("b:9092")
    assert shown(SEEN, "/", view=view)[-1] == "/_   3 topics"
    assert topics_of(shown(SEEN, "q", view=view)) == [], "q is a letter there"
    found = shown(SEEN, "backspace", "O", "R", view=view)
    assert (topics_of(found), found[-1]) == (["a.orders"], "/OR_   1 of 3 topics")
    assert found[1].startswith("3 topics"), "the sums are of all topics"
    kept = shown(SEEN, "enter", view=view)
    assert (topics_of(kept), kept[-1]) == (["a.orders"], "q quit  s sort: lag  /OR (Esc: all)   1 of 3 topics")
    assert len(topics_of(shown(SEEN, "escape", view=view))) == 3
    assert not view.press("q")


def test_old_numbers_are_never_shown_as_new() -> None:
    failing = Observation(SEEN.snapshot, 100.0, None, "the destination: connection refused", 102.0)
    lines = TopView("b:9092").lines(failing, 145.0, 80, 14)
    assert texts(lines)[:3] == [
        "kmirror top  b:9092                                              updated 45s ago",
        "no answer for 43s: the destination: connection refused; what is shown is 45s old",
        "3 topics, 4 partitions  1 FAILED  2 ACTIVE",
    ]
    assert "last heartbeat 45s ago" in texts(lines)[4], "it grows older, too"
    assert lines[0][-1][1] == lines[1][0][1] == "bold red"
    assert all(style.startswith("dim") for line in lines[2:] for text, style in line if text.strip())
    hanging = replace(SEEN, polling_since=103.0)
    assert texts(TopView("b:9092").lines(hanging, 109.0, 80, 14))[1].startswith("3 topics")
    assert shown(hanging, at=115.0)[1] == "no answer for 12s; what is shown is 15s old"


def test_before_the_first_look_comes_back_there_are_no_numbers() -> None:
    assert shown(Observation(), height=4) == ["kmirror top  b:9092", "loading …", "", "q quit"]
    failing: Observation[Overview] = Observation(error="refused", failing_since=99.0)
    assert shown(failing, height=5)[1:3] == ["no answer for 2s: refused", "loading …"]


def test_a_mirror_that_is_not_copied_says_so_first() -> None:
    idle = replace(M, mirror="z", engine=None, reason=Reason.NO_ENGINE, engine_age_ms=7_200_000)
    fresh = replace(idle, mirror="y", state=None, reason=None, engine_age_ms=None)
    row = replace(LACKING, mirror="z", reason=Reason.NO_ENGINE, topic_state=TopicState.LINK_FAILED)
    lines = shown(Observation(picture(LACKING, row, mirrors=(M, fresh, idle)), 100.0), height=20)
    assert lines[1] == "2 topics, 2 partitions  1 ACTIVE  1 NO_ENGINE"
    assert lines[3:6] == [
        "z  NO_ENGINE  no engine, last heartbeat 2h ago",
        "m  ACTIVE  engine h1/app-1, last heartbeat 1s ago",
        "y  -  no engine yet",
    ]
    assert "MIRROR  TOPIC" in lines[7]
    assert [line.split()[0] for line in lines[8:10]] == ["m", "z"]
    assert shown(Observation(picture(LACKING, row, mirrors=(M, fresh, idle)), 100.0), height=8)[3:5] == [
        "z  NO_ENGINE  no engine, last heartbeat 2h ago",
        "and 2 other mirrors",
    ]


def test_many_topics_fill_the_terminal_and_not_more() -> None:
    rows = [replace(LACKING, topic=f"a.topic-{number:04}", lag=number) for number in range(5_000)]
    lines = shown(Observation(picture(*rows), 100.0), height=24)
    assert topics_of(lines) == [f"a.topic-{number}" for number in range(4_999, 4_999 - 17, -1)]
    assert lines[-1].endswith("17 shown of 5,000 topics")
    assert all(len(line) <= 80 for line in lines)
    for height in range(1, 9):
        shown(Observation(picture(*rows), 100.0), height=height, width=20)


@pytest.mark.parametrize(
    ("state", "reason", "shown_as"),
    [
        (TopicState.ACTIVE, None, "ACTIVE"),
        (TopicState.LINK_FAILED, Reason.NO_WORKERS, "NO_WORKERS"),
        (TopicState.FAILED, Reason.OFFSET_MISMATCH, "FAILED (OFFSET_MISMATCH)"),
        (TopicState.SOURCE_UNAVAILABLE, Reason.SOURCE_UNREACHABLE, "SOURCE_UNAVAILABLE"),
        (TopicState.PAUSED, Reason.PAUSED_BY_OPERATOR, "PAUSED"),
        (None, None, None),
    ],
)
def test_a_state_says_why(state: TopicState | None, reason: Reason | None, shown_as: str | None) -> None:
    assert shown_state(state, reason) == shown_as


def test_a_topic_says_first_why_it_failed() -> None:
    idle = replace(LACKING, reason=Reason.NO_ENGINE)
    blocked = replace(LACKING, partition=1, reason=Reason.OPEN_TRANSACTION)
    failed = replace(FAILED, topic=LACKING.topic, partition=2)
    reasons = [
        TopicStatus.of(rows).reason
        for rows in ([blocked, idle, failed], [blocked, idle], [blocked, LACKING], [LACKING])
    ]
    assert reasons == [Reason.SOURCE_TRUNCATED, Reason.NO_ENGINE, Reason.OPEN_TRANSACTION, None]


def test_unreadable_records_are_reported() -> None:
    unread = replace(picture(*ROWS), unreadable=("the record x cannot be read", "another"))
    assert shown(Observation(unread, 100.0))[1] == "not complete: the record x cannot be read, and 1 more"


def watched(rows: Sequence[PartitionRow], height: int, *, at: float = 101.0) -> list[str]:
    lines = TableView("kmirror describe  m  b:9092", PARTITIONS).lines(Observation((rows, ()), 100.0), at, 80, height)
    assert len(lines) == height
    return texts(lines)


def test_a_table_is_watched_with_what_people_should_know() -> None:
    assert watched([LACKING, FAILED], 9) == [
        "kmirror describe  m  b:9092                                       updated 1s ago",
        "m: 1 of 2 partitions FAILED; `kmirror describe --mirror m --failed` says why",
        "",
        "MIRROR  TOPIC     PARTITION  SOURCE-OFFSET  DESTINATION-OFFSET  LAG  STATE",
        "m       a.orders          0            100                  90   10  MIRRORING",
        "m       a.failed          0            100                  90    0  FAILED",
        "",
        "",
        "q quit   2 rows",
    ]
    assert (
        watched([LACKING] * 100, 10)[-1]
        == "q quit   6 of 100 rows; enlarge the terminal or use --topics to see the others"
    )
    assert watched([], 5)[1] == "no topic is mirrored yet; `kmirror add` makes one a mirror topic"
    assert watched([LACKING], 7, at=200.0)[0].endswith("updated 1m40s ago")


def test_watching_ends_with_q() -> None:
    view = TableView("t", PARTITIONS)
    assert [view.press(key) for key in ("x", "escape", "q")] == [True, True, False]


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"/\xc3\xb6r\r", ["/", "ö", "r", "enter"]),
        (b"\x7f\b\n", ["backspace", "backspace", "enter"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1b[1;5C\x1bOPs", ["s"]),  # arrows and function keys
        (b"\x01\xff", []),
    ],
)
def test_bytes_become_keys(typed: bytes, keys: list[str]) -> None:
    assert keys_of(typed) == keys
