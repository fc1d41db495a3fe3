"""What a streams group reads, from a broker's answer."""

from __future__ import annotations

import pytest

from kmirror.cluster.groups.streams_groups import decode_topics
from kmirror.cluster.protocol.wire import FrameError

#: As Kafka 4.3.1 answers, up to the members: topic `t` into the repartition topic `r`, a store with the changelog `c`.
DESCRIBED = bytes.fromhex(
    "00000003 00 00000000 02"  # correlation id, no tags, no throttle, one group
    "0000 00 02 67 09 4e6f745265616479"  # no error, g, NotReady
    "00000002 00000001 01 00000000 03"  # epochs, a topology with its epoch, two subtopologies
    "02 30  02 02 74  02 02 72  02 02 63 00000000 0001 01 00  01  00"
    "02 31  01  01  01  02 02 72 00000000 0001 02 02 6b 02 76 00 00  00"  # with a setting: k=v
    "00 01 80000000 00 00"
)
NOT_FOUND = bytes.fromhex("00000004 00 00000000 02 0045 00 02 67 01 00000000 00000000 ff 01 80000000 00 00")


def test_an_application_reads_its_sources_its_repartition_topics_and_its_changelogs() -> None:
    assert decode_topics(memoryview(DESCRIBED)) == (0, frozenset({"t", "c", "r"}))
    assert decode_topics(memoryview(NOT_FOUND)) == (69, frozenset())


@pytest.mark.parametrize("size", range(4, len(DESCRIBED) - 8))
def test_an_answer_that_ends_too_early(size: int) -> None:
    with pytest.raises(FrameError):
        decode_topics(memoryview(DESCRIBED[:size]))
