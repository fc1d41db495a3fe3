"""Which destination is meant, and which output: a flag, then the environment, then `kmirror.toml`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import pytest

from kmirror.cli.main import main
from kmirror.cli.options import Call, Verb, chosen_output, destination_properties
from kmirror.cli.terminal.output import JsonOutput
from kmirror.cli.terminal.screen import Screen
from kmirror.cli.verbs import kmirror
from kmirror.errors import RefusedError, UsageError
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.value_types import StartFrom
from tests.support.screens import Terminal

TOML = """
[clusters.prod]
bootstrap-server = "prod:9092"
command-config = "prod.properties"

[clusters.test]
bootstrap-server = "test:9092"

[defaults]
cluster = "prod"
output = "json"
"""


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kmirror.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "prod.properties").write_text("security.protocol=SSL\nbootstrap.servers=old:1\n", encoding="utf-8")
    (tmp_path / "mine.properties").write_text("client.id=mine\nbootstrap.servers=mine:9092\n", encoding="utf-8")
    (tmp_path / "bare.properties").write_text("client.id=bare\n", encoding="utf-8")
    monkeypatch.delenv("KMIRROR_COMMAND_CONFIG", raising=False)
    monkeypatch.setenv("KMIRROR_CONFIG", str(tmp_path / "kmirror.toml"))
    monkeypatch.setenv("KMIRROR_BOOTSTRAP_SERVER", "environment:9092")
    monkeypatch.chdir(tmp_path)


def test_a_flag_goes_first() -> None:
    assert destination_properties("flag:9092", None, None) == {"bootstrap.servers": "flag:9092"}
    assert destination_properties(None, None, "test") == {"bootstrap.servers": "test:9092"}


def test_then_the_environment() -> None:
    assert destination_properties(None, None, None) == {"bootstrap.servers": "environment:9092"}
    assert destination_properties(None, "mine.properties", None) == {
        "bootstrap.servers": "environment:9092",
        "client.id": "mine",
    }


def test_the_login_of_the_environment_is_for_its_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMIRROR_COMMAND_CONFIG", "mine.properties")
    assert destination_properties(None, None, None)["client.id"] == "mine"
    assert destination_properties(None, "bare.properties", None)["client.id"] == "bare"
    assert destination_properties("flag:9092", None, None) == {"bootstrap.servers": "flag:9092"}
    assert destination_properties(None, None, "test") == {"bootstrap.servers": "test:9092"}


def test_then_the_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMIRROR_BOOTSTRAP_SERVER", "")
    assert destination_properties(None, None, None) == {"security.protocol": "SSL", "bootstrap.servers": "prod:9092"}


def test_a_named_file_goes_before_the_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KMIRROR_BOOTSTRAP_SERVER")
    mine = {"client.id": "mine", "bootstrap.servers": "mine:9092"}
    assert destination_properties(None, "mine.properties", None) == mine
    assert destination_properties(None, "mine.properties", "test")["bootstrap.servers"] == "test:9092"
    assert destination_properties(None, "bare.properties", None)["bootstrap.servers"] == "prod:9092"


def test_a_named_clusters_file_can_be_replaced() -> None:
    assert destination_properties(None, "bare.properties", "prod") == {
        "client.id": "bare",
        "bootstrap.servers": "prod:9092",
    }


def test_the_file_alone_may_name_the_destination(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KMIRROR_BOOTSTRAP_SERVER")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("KMIRROR_CONFIG")
    assert destination_properties(None, "mine.properties", None)["bootstrap.servers"] == "mine:9092"
    with pytest.raises(UsageError, match="the destination is missing"):
        destination_properties(None, "bare.properties", None)


def test_verbose_output_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["list", "-v", "--bootstrap-server", "nowhere"]) == 2
    assert f"configuration: {tmp_path}/kmirror.toml\n" in capsys.readouterr().err


def test_a_login_that_is_sent_unencrypted_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    clear = tmp_path / "clear.properties"
    clear.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n", encoding="utf-8")
    assert main(["list", "--bootstrap-server", "a:1", "--command-config", str(clear)]) == 2
    warning = "security.protocol=SASL_PLAINTEXT with PLAIN sends the password to the brokers unencrypted"
    assert f"kmirror: warning: {clear}: {warning}: set security.protocol=SASL_SSL\n" in capsys.readouterr().err


def test_output_is_the_flags_or_the_files(tmp_path: Path) -> None:
    assert chosen_output("table") == "table"
    assert chosen_output(None) == "json"
    (tmp_path / "kmirror.toml").write_text("", encoding="utf-8")
    assert chosen_output(None) == "table"


def _parsed(*arguments: str) -> dict[str, object]:
    command = kmirror.get_command(click.Context(kmirror), arguments[0])
    assert isinstance(command, Verb)
    return dict(command.make_context(arguments[0], [*arguments[1:]]).params)


def test_topics_are_taken_from_every_flag_that_names_some(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# mine\norders\n", encoding="utf-8")
    given = _parsed("add", "--mirror", "m", "--topics", "a,b", "--topic", "c.*", "--topics", "@list")
    assert given["topics"] == TopicSelector(("a", "b", "c.*", "orders"))
    assert given["exclude"] is None
    assert given["start_from"] is None


def test_where_copies_begin_is_read_at_once() -> None:
    given = _parsed("add", "--mirror", "m", "--topics", "a", "--start-from", "timestamp:2025-01-01T00:00:00Z")
    assert given["start_from"] == StartFrom("timestamp", 1_735_689_600_000)


def test_durations_and_assignments() -> None:
    given = _parsed(
        "run", "--mirror", "m", "--mirror", "n", "--for", "1m30s", "--spark-conf", "a=b=c", "--spark-conf", "d="
    )
    assert (given["mirror"], given["for_ms"], given["timeout_ms"]) == (("m", "n"), 90_000, None)
    assert given["spark_conf"] == {"a": "b=c", "d": ""}
    assert given["master"] == "local[*]"


def test_without_a_terminal_nothing_irreversible_is_done_unasked() -> None:
    screen = Screen(io.StringIO(), Terminal(), io.StringIO("y\n"))
    with pytest.raises(RefusedError, match="there is no terminal to ask on"):
        Call(JsonOutput(screen)).confirm("Sure?")
    assert Call(JsonOutput(screen), yes=True).confirm("Sure?")


def test_the_question_keeps_clear_of_the_document() -> None:
    out, err = io.StringIO(), Terminal()
    assert not Call(JsonOutput(Screen(out, err, Terminal("n\n")))).confirm("Sure?")
    assert (out.getvalue(), err.getvalue()) == ("", "Sure? [y/N] ")


def test_a_broken_toml_is_reported_with_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KMIRROR_BOOTSTRAP_SERVER")
    (tmp_path / "kmirror.toml").write_text("[clusters\n", encoding="utf-8")
    assert main(["list", "--json"]) == 2
    assert "not valid TOML" in json.loads(capsys.readouterr().out)["error"]["message"]
