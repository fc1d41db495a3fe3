"""What a running engine answers over HTTP, read by third-party parsers, and compared with what the commands say."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from kmirror.errors import NOT_COPYING
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror.status.partition_row import PARTITIONS
from kmirror.web.answers import Service, answer
from tests.support.waiting import PATIENCE_S


class Get(Protocol):
    """Ask an engine: status and body of a path, with an Accept header."""

    def __call__(self, path: str, accept: str = "") -> tuple[int, str]: ...


#: By name and labels, with the current values.
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def asking(service: Service) -> Get:
    """Ask an engine of this process, without a socket."""

    def get(path: str, accept: str = "") -> tuple[int, str]:
        found = answer(service, path, accept)
        return found.status, found.body.decode()

    return get


def fetching(address: str) -> Get:
    """Ask an engine over HTTP."""

    def get(path: str, accept: str = "") -> tuple[int, str]:
        request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return get


def describing(destination: Destination, mirror: str) -> Callable[[], list[dict[str, Any]]]:
    """Return what does the same as `describe --json`."""
    return lambda: [PARTITIONS.document(row) for row in describe(destination, mirror)]


def address_in(log: str) -> str:
    """Return the engine's HTTP address, from its log."""
    found = re.search(r"http://(\S+) answers /healthz", log)
    assert found, log
    return found[1]


def scraped(get: Get, accept: str = "") -> Samples:
    """Return all samples that /metrics serves now."""
    status, text = get("/metrics", accept)
    assert status == HTTPStatus.OK, text
    return read(text, accept)


def read(text: str, accept: str = "") -> Samples:
    """Return all samples in a text; none occurs twice."""
    parsed = (read_openmetrics if accept == OPENMETRICS else read_text)(text)
    samples = [one for family in parsed for one in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(found) == len(samples)
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Return a sample's value, None where it is absent."""
    return samples.get((name, frozenset(labels.items())))


def summary_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of rows of `describe --json`, as metrics have them."""
    lags: defaultdict[str, list[int | None]] = defaultdict(list)
    for row in rows:
        if row["state"] != "STOPPED":
            lags[row["topic"]].append(row["lag"])
    idle = ("STOPPED", "PAUSED_BY_OPERATOR")
    return {
        "lag": {topic: sum(found) for topic, found in lags.items() if None not in found},
        "unknown": sum(row["lag"] is None and not {row["state"], row["reason"]} & {*idle} for row in rows),
        "states": Counter(row["reason"] if row["reason"] in NOT_COPYING else row["state"] for row in rows),
        "reasons": Counter(row["reason"] for row in rows if row["reason"] is not None),
        "topics": Counter({row["topic"]: row["topicState"] for row in rows}.values()),
        "throttle": rows[0]["throttleBytesPerSecond"],
    }


def summary_of_metrics(samples: Samples, mirror: str) -> dict[str, Any]:
    """Return the same from a scrape."""

    def by(name: str, label: str) -> dict[str, float]:
        found = {dict(labels)[label]: one for (n, labels), one in samples.items() if n == name}
        assert all(dict(labels)["mirror"] == mirror for (n, labels) in samples if n == name)
        return found

    def counted(name: str, label: str) -> Counter[str]:
        return Counter({code: int(count) for code, count in by(name, label).items() if count})

    return {
        "lag": by("kmirror_topic_lag_offsets", "topic"),
        "unknown": value(samples, "kmirror_partitions_lag_unknown", mirror=mirror),
        "states": counted("kmirror_partitions", "state"),
        "reasons": counted("kmirror_partitions_by_reason", "reason"),
        "topics": counted("kmirror_topics", "state"),
        "throttle": value(samples, "kmirror_throttle_limit_bytes_per_second", mirror=mirror),
    }


def assert_all_say(
    get: Get,
    described: Callable[[], Sequence[Mapping[str, Any]]],
    is_so: Callable[[Mapping[str, Any]], bool],
    seconds: float = PATIENCE_S,
) -> Samples:
    """Wait until `describe --json` satisfies a condition, and /metrics and /status.json agree with it at that time.

    Copying makes two reads differ, so that some pairs of them are compared.
    """
    until = time.monotonic() + seconds
    while True:
        rows = described()
        by_rows = summary_of_rows(rows)
        samples = scraped(get)
        mirror = rows[0]["mirror"]
        status, body = get("/status.json", "")
        assert status == HTTPStatus.OK, body
        by_status = summary_of_rows([row for row in json.loads(body)["partitions"] if row["mirror"] == mirror])
        by_metrics = summary_of_metrics(samples, mirror)
        if is_so(by_rows) and by_rows == by_metrics == by_status:
            assert summary_of_metrics(scraped(get, OPENMETRICS), mirror)["topics"] == by_rows["topics"]
            return samples
        assert time.monotonic() < until, f"describe: {by_rows}\nmetrics:  {by_metrics}\nstatus:   {by_status}"
        time.sleep(0.5)
