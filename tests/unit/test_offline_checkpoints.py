"""The text files beside a broker's logs: what is read, what a cut makes of them, what is refused."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.offline.checkpoints import cut_epochs, lowered, parse_offsets, parse_topic_id

OFFSETS = "0\n3\norders 0 120\norders 1 7\nother-topic 0 99\n"
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_offsets_are_read() -> None:
    assert parse_offsets(OFFSETS) == {ORDERS_0: 120, ORDERS_1: 7, TopicPartition("other-topic", 0): 99}
    assert parse_offsets("") == {}
    assert parse_offsets("0\n0\n") == {}


def test_only_higher_offsets_are_lowered() -> None:
    assert lowered(OFFSETS, {ORDERS_0: 100, ORDERS_1: 100}) == "0\n3\norders 0 100\norders 1 7\nother-topic 0 99\n"
    assert lowered(OFFSETS, {TopicPartition("absent", 0): 0}) == OFFSETS
    assert lowered("", {ORDERS_0: 100}) == ""


def test_epochs_that_begin_after_the_cut_are_removed() -> None:
    text = "0\n3\n0 0\n4 50\n7 80\n"
    assert cut_epochs(text, 81) == text
    assert cut_epochs(text, 80) == "0\n2\n0 0\n4 50\n"
    assert cut_epochs(text, 0) == "0\n0\n"
    assert cut_epochs("", 0) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "its version is '1'"),
        ("0\n2\na 0 1\n", "its number of entries is wrong"),
        ("0\n", "its number of entries is wrong"),
        ("0\n1\na 0\n", "it has the line 'a 0'"),
        ("0\n1\na 0 x\n", "it has the line 'a 0 x'"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_offsets(text)
    with pytest.raises(ValueError, match=message):
        lowered(text, {})


def test_topic_id() -> None:
    assert parse_topic_id("version: 0\ntopic_id: NANxui0sRqGcaE7G9dmrvg") == "NANxui0sRqGcaE7G9dmrvg"
    for text in ("", "version: 1\ntopic_id: NANxui0sRqGcaE7G9dmrvg", "version: 0\n"):
        with pytest.raises(ValueError, match="it is not `version: 0` and a topic id"):
            parse_topic_id(text)
