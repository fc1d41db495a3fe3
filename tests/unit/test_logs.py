"""The random logs: the same for the same seed, and together rich in everything a log can hold."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise

import pytest

from tests.support.log_features import FEATURES
from tests.support.logs import LONG_SEEDS, QUICK_SEEDS, build_log

AT_LEAST = 20


def test_the_same_seed_builds_the_same_bytes() -> None:
    def digest(seed: int) -> str:
        log = build_log(seed)
        return hashlib.sha256(repr((sorted(log.segments.items()), log.expected)).encode()).hexdigest()

    assert digest(7) == digest(7) != digest(8)


@pytest.mark.slow
def test_the_campaign_holds_every_feature_often() -> None:
    held = Counter(name for seed in LONG_SEEDS for name in build_log(seed).features)
    assert {name: held[name] for name in FEATURES if held[name] < AT_LEAST} == {}


def test_the_quick_seeds_hold_every_feature() -> None:
    assert set().union(*(build_log(seed).features for seed in QUICK_SEEDS)) == set(FEATURES)


def test_what_is_expected_is_within_the_log_in_order() -> None:
    for seed in QUICK_SEEDS:
        log = build_log(seed)
        offsets = [record.offset for record in log.expected]
        assert all(earlier < later for earlier, later in pairwise(offsets))
        assert all(log.log_start_offset <= offset < log.last_stable_offset for offset in offsets)
        assert min(log.segments) <= log.log_start_offset <= log.last_stable_offset <= log.log_end_offset
