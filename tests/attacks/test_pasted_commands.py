"""Commands that operators copy into a shell, with names in them that an attacker chose.

Names come from the source, the destination and the state on it: an ACL's host may be `1.2.3.4; touch owned #`.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

import kmirror
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission, Operation, PatternType, ResourceType
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acl_commands import Grant, alter_topic, grant_line
from kmirror.cluster.rights.acls import kafka_acls_line
from kmirror.cluster.security.client_config import client_config
from kmirror.commands import command_line, on_mirror, on_topics, option, options
from kmirror.errors import Reason
from kmirror.ops.base.client_gaps import grant_command
from kmirror.ops.rights.producer_block import unblocking_lines
from kmirror.ops.show.open_transactions import abort_command
from kmirror.status.next_steps import next_step, refused_text
from kmirror.sync.client_rights import LackingRight
from tests.support.hostile import AMOUNTS, explore
from tests.support.hostile_text import HOSTILE_NAMES, hostile_text

PLAIN = client_config({"bootstrap.servers": "b:9092"})
CLUSTER = ("--bootstrap-server", "b:9092")


def binding(
    name: str, principal: str, host: str, kind: ResourceType = ResourceType.GROUP, *, prefixed: bool = False
) -> AclBinding:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(kind, name, pattern, principal, host, Operation.READ, AclPermission.ALLOW)


#: Each way to build a command from three texts: the command, and those of its arguments that hold the texts.
BUILDERS: list[tuple[str, Callable[[str, str, str], str], Callable[[str, str, str], list[tuple[str, ...]]]]] = [
    (
        "kafka_acls_line",
        lambda a, b, c: kafka_acls_line(binding(a, b, c), CLUSTER),
        lambda a, b, c: [option("--group", a), option("--allow-principal", b), option("--allow-host", c)],
    ),
    (
        "kafka_acls_line, to remove",
        lambda a, b, c: kafka_acls_line(binding(a, b, c, prefixed=True), option("--bootstrap-server", c), remove=True),
        lambda a, b, c: [option("--group", a), option("--allow-principal", b), option("--bootstrap-server", c)],
    ),
    (
        "unblocking_lines",
        lambda a, b, c: unblocking_lines([binding(a, b, c)], CLUSTER),
        lambda a, b, c: [option("--group", a), option("--allow-principal", b), option("--allow-host", c)],
    ),
    (
        "grant_command",
        lambda a, b, c: grant_command(
            LackingRight(b, c, Operation.READ, ResourceType.GROUP, PatternType.LITERAL, (a, b)), CLUSTER
        ),
        lambda a, b, c: [options("--group", (a, b)), option("--allow-principal", b), option("--allow-host", c)],
    ),
    (
        "grant_line",
        lambda a, b, c: grant_line(PLAIN, ("READ",), *options("--topic", (a, b, c))),
        lambda a, b, c: [options("--topic", (a, b, c))],
    ),
    (
        "Grant.line",
        lambda a, b, c: Grant(option("--topic", a), ("READ",), prefixed=True).line(PLAIN),
        lambda a, b, c: [option("--topic", a)],
    ),
    (
        "alter_topic",
        lambda a, b, c: alter_topic(PLAIN, a, f"x={b}"),
        lambda a, b, c: [option("--entity-name", a), option("--add-config", f"x={b}")],
    ),
    (
        "abort_command",
        lambda a, b, c: abort_command({"bootstrap.servers": a}, TopicPartition(b, 1), 7),
        lambda a, b, c: [option("--bootstrap-server", a), option("--topic", b)],
    ),
    (
        "on_mirror",
        lambda a, b, c: on_mirror("describe", a, "--groups"),
        lambda a, b, c: [option("--mirror", a)],
    ),
    (
        "on_topics",
        lambda a, b, c: on_topics("recover", a, [b, c]),
        lambda a, b, c: [option("--mirror", a), option("--topics", f"{b},{c}")],
    ),
]


def contains(arguments: list[str], part: tuple[str, ...]) -> bool:
    return any(tuple(arguments[at : at + len(part)]) == part for at in range(len(arguments)))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "expected"), [one[1:] for one in BUILDERS], ids=[one[0] for one in BUILDERS])
@AMOUNTS
def test_a_shell_reads_the_arguments_back(
    amount: int,
    build: Callable[[str, str, str], str],
    expected: Callable[[str, str, str], list[tuple[str, ...]]],
) -> None:
    def check(texts: tuple[str, str, str]) -> None:
        a, b, c = ("".join(one if one.isprintable() else "?" for one in text) for text in texts)
        c = f"host {c}"  # `*` alone is every host, which no option names
        line = build(a, b, c)
        arguments = shlex.split(line)
        assert command_line(*arguments) == line
        for part in expected(a, b, c):
            assert contains(arguments, part)
        assert build(*texts).isprintable()

    explore(amount, st.tuples(hostile_text, hostile_text, hostile_text), check)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_the_user_name_of_our_login_is_quoted(name: str) -> None:
    login = replace(PLAIN, sasl_mechanism="SCRAM-SHA-512", username=name)
    line = grant_line(login, ("READ",), "--cluster")
    assert line.isprintable()
    assert command_line(*option("--allow-principal", f"User:{name}")) in line


def test_bash_reads_back_what_no_other_quotes_can_hold() -> None:
    """Names with control characters need $'…', which shlex does not know; bash is asked about all of them at once."""
    names = [name for name in HOSTILE_NAMES if "\0" not in name]
    assert any(not name.isprintable() for name in names)
    script = "\n".join(f"printf '%s\\0' {command_line(name)}" for name in names)
    found = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert [one.decode(errors="surrogatepass") for one in found.split(b"\0")[:-1]] == names


def test_no_name_becomes_an_option() -> None:
    """Kafka's tools would take `--topic --force` for two options."""
    assert option("--topic", "--force") == ("--topic=--force",)
    assert on_topics("recover", "-m", ["--yes"]) == "kmirror recover --mirror=-m --topics=--yes"


def test_no_argument_ends_early() -> None:
    """An argument ends at NUL: a group `a\\0b` must not become the group `a`."""
    assert command_line("a\0b").isprintable()
    assert "\N{REPLACEMENT CHARACTER}" in command_line("a\0b")


def test_a_poisoned_host_runs_nothing(tmp_path: Path) -> None:
    poisoned = binding("orders", "User:app", "1.2.3.4; touch owned #")
    line = kafka_acls_line(poisoned, CLUSTER)
    (tmp_path / "kafka-acls").write_text("#!/bin/sh\n")
    (tmp_path / "kafka-acls").chmod(0o755)
    subprocess.run(["bash", "-c", line], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka-acls"]


@pytest.mark.parametrize("reason", [None, *Reason])
def test_next_steps_quote_their_names(reason: Reason | None) -> None:
    for name in HOSTILE_NAMES:
        step = next_step(reason, name, name, name)
        assert step.isprintable()
        assert refused_text("refused", reason, name).isprintable()
        built = [on_topics(verb, name, [name]) for verb in ("recover", "add")]
        assert reason is Reason.FENCED or any(one in step for one in built)


# -- the source code ---------------------------------------------------------------------------------------------------

#: A command with an option whose value comes next.
_UNQUOTED = re.compile(r"(kmirror|kafka-[a-z-]+(\.sh)?) [^`]*--[a-z-]+[ =]['\"]?(\{|$)")


def unquoted() -> Iterator[str]:
    """Yield where a command is put together without quoting."""
    for path in sorted(Path(kmirror.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts: list[str] = []
            if isinstance(node, ast.JoinedStr):
                text = ""
                for part in node.values:
                    text += str(part.value) if isinstance(part, ast.Constant) else ""
                    parts += [text] if isinstance(part, ast.FormattedValue) else []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "{" in node.value:
                parts = [node.value]
            yield from (f"{path.name}: {part}" for part in parts if _UNQUOTED.search(part))


def test_commands_are_put_together_in_one_place() -> None:
    assert list(unquoted()) == []


def test_only_one_module_quotes() -> None:
    sources = Path(kmirror.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "import shlex" in path.read_text(encoding="utf-8")] == ["commands.py"]
