"""DescribeConfigs of topics as it is encoded and decoded by hand, against the codec of another library."""

from __future__ import annotations

import random

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from kmirror.cluster.protocol import topic_configs
from kmirror.cluster.protocol.topic_configs import TopicConfigs, TopicSetting
from kmirror.cluster.protocol.wire import FrameError
from tests.unit.test_markers_and_log_end import framed

VERSION = topic_configs.VERSION
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult
_Synonym = _Config.DescribeConfigsSynonym
_LONG = "x" * 300


@pytest.mark.parametrize("keys", [None, [], ["cleanup.policy", "retention.ms"]])
@pytest.mark.parametrize("topics", [[], ["orders"], ["orders", "b" * 249]])
def test_settings_of_topics_are_asked_for(topics: list[str], keys: list[str] | None) -> None:
    data = topic_configs.request(7, VERSION, "kmirror", topics, keys)
    read = DescribeConfigsRequest.decode(data, version=VERSION, header=True, framed=True)
    assert (read.header.correlation_id, read.header.client_id) == (7, "kmirror")
    assert [(one.resource_type, one.resource_name, one.configuration_keys) for one in read.resources] == [
        (2, topic, keys) for topic in topics
    ]
    assert not read.include_synonyms
    assert not read.include_documentation


def config(name: str, value: str | None, source: int = 5, synonyms: tuple[str, ...] = ()) -> object:
    return _Config(
        name=name,
        value=value,
        read_only=False,
        config_source=source,
        is_sensitive=False,
        synonyms=[_Synonym(name=one, value=value, source=source) for one in synonyms],
        config_type=2,
        documentation=None,
    )


def made() -> memoryview:
    def result(topic: str, code: int, message: str | None, *configs: object) -> object:
        return _Result(
            error_code=code, error_message=message, resource_type=2, resource_name=topic, configs=list(configs)
        )

    results = [
        result(
            "orders",
            0,
            None,
            config("cleanup.policy", "compact", 1),
            config("retention.ms", "1", 4, ("log.retention.ms", "log.retention.hours")),
            config("secret", None),
            config("long", _LONG),
            config("empty", ""),
        ),
        result("gone", 3, "no such topic"),
        result("alike", 0, "", config("cleanup.policy", "compact", 1), config("cleanup.policy.of", "compact", 5)),
        result("same", 0, None, config("cleanup.policy", "compact", 1), config("cleanup.policy.of", "compact", 5)),
        result("less", 0, None, config("cleanup.policy", "compact", 1)),
        result("other", 0, None, config("cleanup.policy", "compact", 1), config("cleanup.policy.of", "compact", 1)),
        result("gone too", 3, "no such topic"),
    ]
    return framed(DescribeConfigsResponse(throttle_time_ms=40, results=results), VERSION)


def test_settings_are_read() -> None:
    compact = TopicSetting("compact", is_override=True)
    orders = {
        "cleanup.policy": compact,
        "retention.ms": TopicSetting("1", is_override=False),
        "secret": TopicSetting(None, is_override=False),
        "long": TopicSetting(_LONG, is_override=False),
        "empty": TopicSetting("", is_override=False),
    }
    alike = {"cleanup.policy": compact, "cleanup.policy.of": TopicSetting("compact", is_override=False)}
    assert topic_configs.answer(made(), VERSION) == (
        [
            TopicConfigs("orders", 0, orders),
            TopicConfigs("gone", 3, {}),
            TopicConfigs("alike", 0, alike),
            TopicConfigs("same", 0, alike),
            TopicConfigs("less", 0, {"cleanup.policy": compact}),
            TopicConfigs("other", 0, {"cleanup.policy": compact, "cleanup.policy.of": compact}),
            TopicConfigs("gone too", 3, {}),
        ],
        40,
    )


def test_an_answer_cut_off_anywhere_is_a_frame_error() -> None:
    data = made()
    for cut in range(4, len(data)):
        with pytest.raises(FrameError):
            topic_configs.answer(data[:cut], VERSION)


def test_garbage_is_an_answer_or_a_frame_error() -> None:
    rng, whole, refused = random.Random(5), bytes(made()), 0
    for position in range(4, len(whole)):
        for garbage in (b"\xff", b"\xff\xff\xff\xff\x0f", b"\x00", rng.randbytes(4)):
            data = whole[:position] + garbage + whole[position + len(garbage) :]
            try:
                topic_configs.answer(memoryview(data), VERSION)
            except FrameError:
                refused += 1
    assert refused > len(whole)
