"""Which clusters are new enough for what, by the API versions of their brokers."""

from __future__ import annotations

import pytest

from kmirror.ops.base.versions import Role, judged, too_old
from tests.support.kafka_versions import OLDER_VERSIONS, OTHER_VERSIONS, is_older
from tests.support.versions_page import PAGE, STEPS, page, seen

Offered = dict[int, tuple[int, int]]

#: The highest versions of requests that real brokers offer, by release.
OFFERED: dict[str, dict[int, int]] = {
    "2.7": {0: 8, 1: 12, 2: 5, 3: 9, 19: 6, 20: 5, 27: 0, 44: 1},
    "2.8": {0: 9, 1: 12, 2: 6, 3: 11, 19: 7, 20: 6, 27: 1, 44: 1, 61: 0},
    "3.1": {0: 9, 1: 13, 2: 7, 3: 12, 19: 7, 20: 6, 27: 1, 44: 1, 61: 0},
    "3.5": {0: 9, 1: 15, 2: 8, 3: 12, 19: 7, 20: 6, 27: 1, 44: 1, 61: 0},
    "3.9": {0: 11, 1: 17, 2: 9, 3: 12, 19: 7, 20: 6, 27: 1, 44: 1, 61: 0},
    "4.1": {0: 13, 1: 18, 2: 11, 3: 13, 19: 7, 20: 6, 27: 2, 44: 1, 61: 0},
}


def offered(release: str) -> Offered:
    return {key: (0, highest) for key, highest in OFFERED[release].items()}


NEW_ENOUGH = ["2.8", "3.1", "3.5", "3.9", "4.1"]


@pytest.mark.parametrize("role", Role)
def test_a_broker_that_is_new_enough_is_shown_by_release(role: Role) -> None:
    for release in OFFERED:
        found = judged(1, "h:1", offered(release), role)
        assert found.is_supported is (release in NEW_ENOUGH)
        assert (str(found) == f"Kafka {release} or later") is found.is_supported
    assert role.first_version == NEW_ENOUGH[0]


def test_a_broker_that_is_too_old_is_shown_with_what_it_lacks() -> None:
    source = judged(1, "h:1", offered("2.7"), Role.SOURCE)
    assert str(source) == "older than Kafka 2.8: it does not offer ListOffsets 6, Metadata 10"
    assert not source.is_supported
    without = {key: versions for key, versions in offered("3.9").items() if key != 61}
    assert judged(1, "h:1", without, Role.SOURCE).is_supported
    assert judged(1, "h:1", without, Role.DESTINATION).lacking == ("DescribeProducers 0",)
    assert "upgrade the source first" in too_old(Role.SOURCE)


# -- docs/versions.md -------------------------------------------------------------------------------------------------


def test_the_page_lists_the_versions_seen() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(seen()), (
        "run: .venv/bin/python -m tests.support.versions_page --page"
    )


def test_every_supported_version_was_seen_to_work_in_each_role() -> None:
    rows = {(one.version, one.role): one.steps for one in seen()}
    assert set(rows) == {(version, role.name.lower()) for version in OTHER_VERSIONS for role in Role}
    for role in Role:
        taken = [version for version in OLDER_VERSIONS if not is_older(version, role.first_version)]
        assert taken[0].startswith(role.first_version), "the oldest that is taken is not one that was seen"
        assert [rows[version, role.name.lower()] for version in taken] == [dict.fromkeys(STEPS, True)] * len(taken)
