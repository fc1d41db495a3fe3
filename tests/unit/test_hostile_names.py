"""Names of every character that Kafka allows, up to the longest: they come back from each place where they are put."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from click import Context, Option
from hypothesis import strategies as st

from kmirror.cli.name_cache import cached_mirrors, cached_topics, lines_of, names_folder, write_names
from kmirror.cli.verbs import kmirror
from kmirror.cluster.security.properties import parse_properties, read_properties
from kmirror.engine.driver.engines import NotCopied
from kmirror.java_properties import properties_text
from kmirror.ops.mirrors.create import LONGEST_NAME, check_name
from kmirror.settings.parsing import split
from kmirror.settings.patterns import TopicSelector
from kmirror.web.exposition import exposition
from kmirror.web.live_mirror import live_mirror
from kmirror.web.served import ServedStatus
from tests.support.hostile import AMOUNTS, explore
from tests.support.live_engine import NOW_MS, mirror_record, row, snapshot
from tests.support.scraped import OPENMETRICS, read

LEGAL = string.ascii_letters + string.digits + "._-"
LONGEST_TOPIC = 249


def names(longest: int) -> st.SearchStrategy[str]:
    """Return names as brokers accept them, often as long as they may be, or one character."""
    sizes = st.sampled_from((1, 2, longest)) | st.integers(1, longest)
    made = sizes.flatmap(lambda size: st.text(LEGAL, min_size=size, max_size=size))
    return made.filter(lambda name: name not in {".", ".."})


TOPICS = st.lists(names(LONGEST_TOPIC), min_size=1, max_size=5, unique=True)
MIRROR = names(LONGEST_NAME)


@AMOUNTS
def test_completion_offers_names_as_they_are(amount: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    context, option = Context(kmirror), Option(["--topics"])

    def check(given: tuple[str, list[str]]) -> None:
        mirror, topics = given
        check_name(mirror)
        write_names(
            names_folder({"XDG_CACHE_HOME": str(tmp_path)}), "c", lines_of([mirror], [(mirror, t) for t in topics])
        )
        assert cached_mirrors(context, option, mirror[:-1]) == [mirror]
        assert cached_topics(context, option, "") == topics
        for topic in topics:
            assert f"{topics[0]},{topic}" in cached_topics(context, option, f"{topics[0]},{topic[:-1]}")

    explore(amount, st.tuples(MIRROR, TOPICS), check)


@pytest.mark.slow
@AMOUNTS
def test_metrics_carry_names_as_they_are(amount: int) -> None:
    def check(given: tuple[str, list[str]]) -> None:
        mirror, topics = given
        copied = snapshot(*(row(topic) for topic in topics), mirror=mirror_record(mirror))
        now = ServedStatus("copying", NOW_MS, None, (live_mirror(copied),), {f"{mirror}-": NotCopied("why")})
        for accept in ("", OPENMETRICS):
            text, _ = exposition(now, accept)
            labels = [
                dict(labels) for name, labels in read(text.decode(), accept) if name == "kmirror_topic_lag_offsets"
            ]
            assert sorted((one["mirror"], one["topic"]) for one in labels) == sorted(
                (mirror, topic) for topic in topics
            )

    explore(amount, st.tuples(MIRROR, TOPICS), check)


@AMOUNTS
def test_a_mirror_s_properties_hold_names_as_they_are(amount: int, tmp_path: Path) -> None:
    file, listed = tmp_path / "mirror.properties", tmp_path / "topics"

    def check(topics: list[str]) -> None:
        written = {"bootstrap.servers": "a:1", "topics.include": ",".join(topics), "client.id": topics[0]}
        file.write_text(properties_text(written), encoding="iso-8859-1")
        properties, settings = split(read_properties(file))
        assert (properties["client.id"], settings["topics.include"]) == (topics[0], ",".join(topics))
        listed.write_text("\n".join(topics), encoding="utf-8")
        for selector in (TopicSelector.parse([settings["topics.include"]]), TopicSelector.parse([f"@{listed}"])):
            assert str(selector) == ",".join(topics)
            assert selector.names == tuple(topics)
            assert selector.select(topics) == sorted(topics)
            assert not [topic for topic in topics if selector.matches(f"{topic}x") and f"{topic}x" not in topics]

    explore(amount, TOPICS, check)


@AMOUNTS
def test_any_text_comes_back_from_a_properties_file(amount: int) -> None:
    odd = st.sampled_from(" \t\n\r\f\\:=#!é€😀")
    text = st.text(odd, max_size=5) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

    def check(settings: dict[str, str]) -> None:
        written = properties_text(settings)
        assert written.isascii()
        assert parse_properties(written) == settings

    explore(amount, st.dictionaries(text, text, max_size=4), check)
