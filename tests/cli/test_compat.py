"""`kafka-mirrors`: command lines as both ecosystems document them, and the kmirror command lines they become."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import pytest

from kmirror.cli.verbs import VERBS, kmirror
from kmirror.errors import RefusedError, UsageError
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State
from kmirror_compat import kafka_mirrors as compat
from kmirror_compat.kafka_flags import ACTIONS, OWN, TOPIC_FLAGS, command_of, options_of, read
from kmirror_compat.kafka_mirrors import combined, command_lines

from .conftest import Ran

if TYPE_CHECKING:
    from .conftest import Run

B = "--bootstrap-server localhost:9092"


def remembered(*topics: tuple[str, str, DesiredState], **settings: str) -> State:
    """Return a destination with mirrors of these topics, `m` among them; settings with `_` for `.`."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    mirrors = [
        MirrorRecord(name, {"bootstrap.servers": "a:9092"}, given, "A", "me", 1)
        for name in sorted({"m", *(mirror for mirror, _, _ in topics)})
    ]
    return State.of(
        [*mirrors, *(TopicRecord(m, t, t, None, None, desired, 1, TopicOrigin.CREATED) for m, t, desired in topics)]
    )


ACTIVE, STOPPED = DesiredState.ACTIVE, DesiredState.STOPPED


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        # Apache Kafka's cluster mirroring
        (
            f"{B} --create --mirror a-to-b --mirror-config a.properties --command-config b.properties",
            f"create --mirror a-to-b {B} --mirror-config a.properties --command-config b.properties",
        ),
        (
            f"{B} --start --topics 'my-topic.*' --mirror a-to-b",
            f"add --mirror a-to-b --topics 'my-topic.*' {B} --adopt",
        ),
        (
            f"{B} --start --mirror m --topics 'my-topic,orders-.*' --exclude orders-old",
            f"add --mirror m --topics 'my-topic,orders-.*' {B} --exclude orders-old --adopt",
        ),
        (f"{B} --add --topics t --mirror m", f"add --mirror m --topics t {B} --adopt"),
        (f"{B} --stop --mirror m --topics orders", f"failover --mirror m --topics orders {B} --yes"),
        (f"{B} --stop --mirror m --topics '.*'", f"failover --mirror m {B} --yes"),
        (f"{B} --remove --topics t --mirror m", f"remove --mirror m --topics t {B} --yes"),
        (f"{B} --pause --mirror m --topics 't.*'", f"pause --mirror m --topics 't.*' {B}"),
        (f"{B} --resume --mirror m --topics t", f"resume --mirror m --topics t {B}"),
        (f"{B} --recover --mirror m --topics t", f"recover --mirror m --topics t {B} --yes"),
        (f"{B} --list", f"list {B}"),
        (f"{B} --describe", f"describe {B}"),
        (f"{B} --describe --json --command-config b.properties", f"describe {B} --json --command-config b.properties"),
        (f"{B} --describe --mirror m --failed", f"describe --mirror m {B} --failed"),
        (f"{B} --delete --mirror m", f"delete --mirror m {B} --yes"),
        # as KIP-1279's examples have it
        (
            "--bootstrap-server :9094 --create --mirror my-mirror --mirror-config /tmp/my-mirror.properties",
            "create --mirror my-mirror --bootstrap-server :9094 --mirror-config /tmp/my-mirror.properties",
        ),
        (
            "--bootstrap-server :9094 --add --topic .* --mirror my-mirror",
            "add --mirror my-mirror --topics .* --bootstrap-server :9094 --adopt",
        ),
        (
            "--bootstrap-server :9094 --remove --topic .* --mirror my-mirror",
            "failover --mirror my-mirror --bootstrap-server :9094 --yes",
        ),
        (
            "--bootstrap-server :9094 --remove --all-topics --mirror my-mirror",
            "failover --mirror my-mirror --bootstrap-server :9094 --yes",
        ),
        (
            "--bootstrap-server :9094 --describe --mirror a --json",
            "describe --mirror a --bootstrap-server :9094 --json",
        ),
        # Confluent Platform's Cluster Linking
        (
            f"{B} --create --link demo-link --config-file link.properties",
            f"create --mirror demo-link {B} --from-link link.properties",
        ),
        (
            f"{B} --truncate-and-restore --topics d --link l --include-partition-data --config-file dr.properties",
            f"failback --mirror l --topics d {B} --mirror-config dr.properties --yes",
        ),
        (f"--create --mirror m --config-file m.properties {B}", f"create --mirror m {B} --mirror-config m.properties"),
        (f"--create --mirror m --from-link l.properties {B}", f"create --mirror m --from-link l.properties {B}"),
        (f"--create --topics demo --link demo-link {B}", f"add --mirror demo-link --topics demo {B}"),
        (f"--create --source-topic demo --link demo-link {B}", f"add --mirror demo-link --topics demo {B}"),
        (
            f"--create --topics t --link l --config segment.ms=1 {B}",
            f"add --mirror l --topics t --config segment.ms=1 {B}",
        ),
        (f"--list {B}", f"list {B}"),
        (f"--list --link demo-link {B}", f"describe --mirror demo-link {B}"),
        (f"--describe --links demo-link {B}", f"describe --mirror demo-link {B}"),
        (f"--describe --link demo-link {B} --include-stopped", f"describe --mirror demo-link {B}"),
        (f"--describe --topics demo {B}", f"describe --topics demo {B}"),
        (f"--describe --mirror-topic demo {B}", f"describe --topics demo {B}"),
        (f"--describe --topics t --pending-stopped-only {B}", f"describe --topics t --pending-stopped-only {B}"),
        (f"--pending-stopped-only {B} --describe", f"describe --pending-stopped-only {B}"),
        (f"--describe --links demo-link --topics demo {B}", f"describe --mirror demo-link --topics demo {B}"),
        (f"{B} --link demo-link --failover", f"failover --mirror demo-link {B} --yes"),
        (f"{B} --link demo-link --promote", f"promote --mirror demo-link {B}"),
        (f"{B} --pause --link demo-link", f"pause --mirror demo-link {B}"),
        (f"{B} --unpause --link demo-link --topics demo", f"resume --mirror demo-link --topics demo {B}"),
        (
            f"{B} --truncate-and-restore --topics demo --link l --mirror-config dr.properties",
            f"failback --mirror l --topics demo {B} --mirror-config dr.properties --yes",
        ),
        (
            f"--reverse-and-start --link l {B} --force --mirror-config dr.properties",
            f"switchover --mirror l {B} --mirror-config dr.properties",
        ),
        # what only kmirror has, and other ways to write
        (f"--promote --link=l --timeout=30m -vv {B}", f"promote --mirror l --timeout 30m -vv {B}"),
        (
            f"--failover --mirror m --dry-run --report r.json {B}",
            f"failover --mirror m --dry-run --report r.json {B} --yes",
        ),
        (f"--add --mirror m --topic a --topic b --adopt {B}", f"add --mirror m --topics a --topics b --adopt {B}"),
        (
            f"--create --mirror m --mirror-config f --config k=v --replication-factor 3 --if-not-exists {B}",
            f"create --mirror m --mirror-config f --config k=v --if-not-exists {B} --config replication.factor=3",
        ),
    ],
)
def test_what_a_command_line_becomes(line: str, becomes: str) -> None:
    (arguments,) = command_lines(read(shlex.split(line)), None)
    assert arguments == shlex.split(becomes)
    command = kmirror.get_command(click.Context(kmirror), arguments[0])
    assert command is not None
    assert command.make_context("kafka-mirrors", arguments[1:]).args == []


@pytest.mark.parametrize("action", ACTIONS)
def test_no_option_takes_another_one_for_its_value(action: str) -> None:
    verb, _ = ACTIONS[action]
    passed = {flag: takes_value for flag, takes_value in options_of(verb).items() if flag not in {*OWN, "--yes"}}
    own = {flag: one for flag, one in OWN.items() if not one.actions or action in one.actions}
    with_value = [flag for flag in passed if passed[flag]] + [flag for flag in own if own[flag].metavar]
    for flag in with_value:
        for other in {*passed, *own, "--dryrun", "--report=r"} - {"-v"}:
            # further actions, and topics beside --create, are refused before
            message = "--" if {flag, other} & {*ACTIONS, *TOPIC_FLAGS, "--source-topic"} else f"{flag} needs a value"
            with pytest.raises(UsageError, match=message):
                read([action, "--mirror", "m", flag, other])


def test_a_value_may_begin_with_dashes() -> None:
    request = read(["--failover", "--mirror=--m", "--topics=--t", "--report=--dry-run", "--cluster", "c"])
    words = ["failover", "--mirror=--m", "--topics=--t", "--report=--dry-run", "--cluster", "c", "--yes"]
    assert command_lines(request, None) == [words]
    assert [request.value(flag) for flag in ("--report", "--cluster", "--expect-cluster-id")] == [
        "--dry-run",
        "c",
        None,
    ]


TWO_LINKS = remembered(("m", "orders", ACTIVE), ("m", "users", STOPPED), ("n", "users", ACTIVE), ("n", "late", STOPPED))


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        # Confluent's scripts name topics alone: whose they are is looked up
        (f"--promote --topics orders {B}", [f"promote --mirror m --topics orders {B}"]),
        (f"--failover --topics orders {B}", [f"failover --mirror m --topics orders {B} --yes"]),
        (f"--failover --mirror-topic orders {B}", [f"failover --mirror m --topics orders {B} --yes"]),
        (f"{B} --unpause --topics users", [f"resume --mirror n --topics users {B}"]),
        (f"--failover --topics late {B}", [f"failover --mirror n --topics late {B} --yes"]),
        (
            f"--failover --topics orders,users {B}",
            [f"failover --mirror m --topics orders {B} --yes", f"failover --mirror n --topics users {B} --yes"],
        ),
        (
            f"--describe --links m,n --topics 'o.*,u.*' {B}",
            [f"describe --mirror m --topics orders {B}", f"describe --mirror n --topics users {B}"],
        ),
        (f"--create --mirror-topic clicks --link m {B}", [f"add --mirror m --topics clicks {B}"]),
        (f"--create --mirror-topic c --source-topic c --link m {B}", [f"add --mirror m --topics c {B}"]),
    ],
)
def test_what_it_becomes_where_the_destination_knows_more(line: str, becomes: list[str]) -> None:
    assert command_lines(read(shlex.split(line)), TWO_LINKS) == [shlex.split(one) for one in becomes]


def test_several_links_are_described_one_after_another() -> None:
    lines = command_lines(read(shlex.split(f"--describe --links l1,l2 {B}")), None)
    assert lines == [shlex.split(f"describe --mirror {link} {B}") for link in ("l1", "l2")]


def test_a_mirror_topic_is_named_with_the_prefix_of_its_mirror() -> None:
    prefixed = remembered(topic_prefix="left.", replication_factor="3")

    def becomes(line: str) -> list[list[str]]:
        return command_lines(read(shlex.split(f"--create --link m {line} {B}")), prefixed)

    added = [shlex.split(f"add --mirror m --topics clicks {B}")]
    assert becomes("--mirror-topic left.clicks") == added
    assert becomes("--source-topic clicks --mirror-topic left.clicks --replication-factor 3") == added
    for line, hint in (
        ("--mirror-topic clicks", "name it left.clicks, or name source topics with --topics"),
        ("--mirror-topic right.clicks --source-topic clicks", "name it left.clicks"),
    ):
        with pytest.raises(
            RefusedError, match=r"its name must start with left\., this mirror's topic\.prefix"
        ) as refused:
            becomes(line)
        assert refused.value.hint == f"{hint}; topic.prefix is fixed when the mirror is created"
    with pytest.raises(
        RefusedError, match=r"--replication-factor 1 differs from the mirror's replication\.factor, which is 3"
    ):
        becomes("--mirror-topic left.clicks --replication-factor 1")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--mirror m", "the action is missing", "give one of --create, --add"),
        ("--describ --mirror m", "the action is missing", "did you mean --describe?"),
        # what ends mirroring is done without a question, and so never guessed
        ("--failove --mirror m", "the action is missing", "give one of --create, --add"),
        ("--promot --mirror m", "the action is missing", "give one of --create, --add"),
        ("--stopp --mirror m --topics t", "the action is missing", "give one of --create, --add"),
        ("--recover --mirror m --accept-los", "no such option --accept-los", "see `kafka-mirrors --recover --help`"),
        ("--failback --mirror m", "--failback is not supported", "kafka-mirrors --truncate-and-restore --mirror M"),
        ("--failbak --mirror m", "the action is missing", "kafka-mirrors --truncate-and-restore --mirror M"),
        ("--switchover --mirror m", "--switchover is not supported", "give --reverse-and-start"),
        ("--create --list", "--create and --list exclude each other", "give one of them"),
        ("--start --add --mirror m", "--start and --add exclude each other", "give one of them"),
        ("--describe --mirrr m", "no such option --mirrr", "did you mean --mirror?"),
        ("--describe --xyzzy", "no such option --xyzzy", "see `kafka-mirrors --describe --help`"),
        ("--list --exclude t", "--exclude cannot be used with --list", "see `kafka-mirrors --list --help`"),
        ("--failover --link l --source-topic t", "--source-topic cannot be used with --failover", "see `"),
        ("--delete --mirror m --topics t", "--delete takes no topics", "leave them out"),
        ("--failover orders --link l", "got unexpected argument orders", "name topics with --topics orders"),
        ("--describe --topics", "--topics needs a value", "see `kafka-mirrors --describe --help`"),
        ("--topics --describe", "--topics needs a value", "a variable may not be set; a value that begins with a dash"),
        ("--describe --json=yes", "--json takes no value", "write --json without a value"),
        ("--create --link l", "--create needs --mirror-config FILE", "to add topics to a mirror, name them with"),
        ("--create --mirror-config f", "--create needs --mirror", "give --mirror M, or --link M"),
        (
            "--create --mirror m --mirror-config f --topics t",
            "--mirror-config and topics exclude each other",
            "run two commands",
        ),
        ("--start --mirror m", "--start needs --topics", "name topics of the source"),
        ("--stop --mirror m", "--stop needs --topics", "give --failover --mirror M"),
        ("--remove --mirror m", "--remove needs --topics", "name mirror topics"),
        ("--failover", "--failover needs --mirror or --topics", "--link M means --mirror M"),
        ("--delete", "--delete needs --mirror", "give --mirror M, or --link M"),
        ("--add --mirror a --link b --topics t", "--add takes one mirror: a and b are given", "name one of them"),
        (
            "--truncate-and-restore --link l",
            "--truncate-and-restore needs --mirror-config",
            "connection to the new primary",
        ),
        ("--reverse-and-start --link l", "--reverse-and-start needs --mirror-config", "reaches this cluster"),
        ("--reverse-and-pause --link l", "--reverse-and-pause is not supported", "at the old source, --pause"),
        ("--delete --mirror m --yes", "no such option --yes", "`kafka-mirrors --delete --help`"),
    ],
)
def test_usage(run: Run, capsys: pytest.CaptureFixture[str], line: str, message: str, hint: str) -> None:
    code = compat.main(shlex.split(line))
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    first, second = captured.err.splitlines()
    assert first.startswith(f"kmirror: {message}")
    assert hint in second


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--create --link m --mirror-topic 'a.*'", r"--mirror-topic: 'a\.\*' is not a topic name"),
        ("--create --link m --mirror-topic a,b --source-topic a", "name different numbers of topics"),
        ("--create --link m --mirror-topic a --replication-factor many", "'many' is not a replication factor"),
    ],
)
def test_values_that_are_looked_at_late(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command_lines(read(shlex.split(line)), TWO_LINKS)


def test_topics_of_two_mirrors_are_not_promoted_together(
    mirrors: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "_state", lambda _: TWO_LINKS)
    shown = mirrors("--promote", "--topics", "orders,users", "--together")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("kmirror: --together covers one mirror, but the topics belong to several\n")


def test_topics_that_no_one_mirrors_are_refused() -> None:
    with pytest.raises(RefusedError, match="order: no such mirror topic on this destination") as refused:
        command_lines(read(["--promote", "--topics", "order"]), TWO_LINKS)
    assert refused.value.hint == "did you mean orders?"


@pytest.fixture
def mirrors(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `kafka-mirrors ARGUMENTS` where `run` runs kmirror."""

    def run_mirrors(*arguments: str) -> Ran:
        code = compat.main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_mirrors


def test_errors_are_those_of_the_verbs(mirrors: Callable[..., Ran]) -> None:
    assert mirrors("--list") == Ran(
        2,
        "",
        "kmirror: the destination is missing\n"
        "  give --bootstrap-server HOST:PORT, set KMIRROR_BOOTSTRAP_SERVER, or give --cluster NAME from kmirror.toml\n",
    )
    document = json.loads(mirrors("--start", "--mirror", "m", "--topcs", "t", "--json").out)
    assert document["error"]["message"] == "no such option --topcs"
    assert (document["verb"], document["exitCode"], document["results"]) == ("add", 2, [])
    unreachable = mirrors("--promote", "--topics", "t", "--bootstrap-server", "127.0.0.1:1", "--json")
    assert unreachable.code == 6
    assert json.loads(unreachable.out)["error"]["reason"] == "DESTINATION_UNREACHABLE"


def test_help_and_version(mirrors: Callable[..., Ran]) -> None:
    shown = mirrors("--help")
    assert (shown.code, shown.err) == (0, "")
    assert [flag for flag in (*ACTIONS, *OWN, "--version") if f"  {flag} " not in shown.out] == []
    assert mirrors() == Ran(2, "", shown.out)
    one = mirrors("--promote", "--help")
    assert one.out.startswith("Usage: kafka-mirrors --promote [OPTIONS]\n")
    assert "--allow-producers" in one.out
    assert "--source-topic" not in one.out
    assert mirrors("--version").out.startswith("kafka-mirrors of kmirror ")


def test_every_option_of_a_verb_can_be_given_but_yes(mirrors: Callable[..., Ran]) -> None:
    assert {verb for verb, _ in ACTIONS.values()} <= VERBS.keys()
    for action, (verb, _) in ACTIONS.items():
        shown = mirrors(action, "--help").out
        hidden = {flag for param in command_of(verb).params if getattr(param, "hidden", False) for flag in param.opts}
        missing = [flag for flag in options_of(verb).keys() - hidden if f"{flag}" not in shown]
        assert missing == (["--yes"] if "--yes" in options_of(verb) else []), action


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([0, 3], 4),
        ([3, 3], 3),
        ([5, 0], 5),
        ([5, 4], 4),
        ([5, 7, 4], 7),
        ([6, 6], 6),
        ([6, 3], 4),
        ([0, 1], 1),
    ],
)
def test_the_code_for_several_mirrors(codes: list[int], code: int) -> None:
    assert combined(codes) == code
