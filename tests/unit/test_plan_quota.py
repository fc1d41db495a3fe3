"""Which quotas of a source may slow a trial copy down."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.security.client_config import ClientConfig
from kmirror_plan.trial import may_apply

READING = "consumer_byte_rate"


@pytest.mark.parametrize(
    ("entity", "key", "applies"),
    [
        ({"client-id": "kmirror"}, READING, True),
        ({"client-id": ""}, READING, True),
        ({"client-id": "other"}, READING, False),
        ({"user": "mirror"}, READING, True),
        ({"user": ""}, "request_percentage", True),
        ({"user": "mirror", "client-id": "other"}, READING, False),
        ({"user": "", "client-id": ""}, READING, True),
        ({"user": "mirror"}, "producer_byte_rate", False),
        ({"ip": "10.0.0.1"}, READING, False),
    ],
)
def test_a_quota_of_us_or_of_all_may_apply(entity: dict[str, str], key: str, applies: bool) -> None:
    config = ClientConfig((("a", 9092),), username="mirror")
    assert may_apply(Quota(tuple(sorted(entity.items())), key, 1.0), config) is applies


def test_who_does_not_log_in_is_anonymous() -> None:
    config = ClientConfig((("a", 9092),))
    assert may_apply(Quota((("user", "ANONYMOUS"),), READING, 1.0), config)
    assert not may_apply(Quota((("user", "mirror"),), READING, 1.0), config)
