"""What Tab does: the scripts in `completions/`, in the real shells, on terminals; and the names they offer."""

from __future__ import annotations

import os
import stat
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from kmirror.cli.commands.completion import answer
from kmirror.cli.name_cache import MOST_DESTINATIONS, MOST_LINES, lines_of, names_folder, write_names
from kmirror.cli.verbs import VERBS, kmirror
from kmirror_compat.kafka_flags import ACTIONS, OWN
from kmirror_compat.kafka_mirrors import kafka_mirrors_command
from tests.support.shells import Terminal, find_shell

if TYPE_CHECKING:
    from .conftest import Run

COMPLETIONS = Path(__file__).parent.parent.parent / "completions"
FILES = {"bash": "kmirror.bash", "zsh": "_kmirror", "fish": "kmirror.fish"}

#: The commands as functions of the shell: what was typed and completed is what they are called with.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
STUBS = 'kmirror() { printf \'RAN:%s:END\\n\' "$*"; }; function kafka-mirrors { kmirror "$@"; }'

#: Every character that a name may have, as often as it may have characters.
LONG_NAME = ("Z" + string.ascii_letters + string.digits + "._-" * 70)[:249]

TYPED = [
    ("kmirror desc\t", "describe"),
    ("kmirror sandbox sta\t", "sandbox status"),
    ("kmirror pause --mir\tor\t", "pause --mirror orders-mirror"),
    ("kmirror pause --mirror=or\t", "pause --mirror=orders-mirror"),
    ("kmirror describe --topics cli\t", "describe --topics clicks"),
    ("kmirror failover --topics clicks,pay\t", "failover --topics clicks,payments.eu"),
    ("kmirror describe --mirror users-mirror --topics ord\t", "describe --mirror users-mirror --topics ord"),
    ("kmirror describe --mirror=users-mirror --topics \t", "describe --mirror=users-mirror --topics users"),
    ("kmirror describe --topics Zab\t", f"describe --topics {LONG_NAME}"),
    ("kmirror wait --for hea\t", "wait --for healthy"),
    ("kmirror create --mirror-c\tsour\t", "create --mirror-config source.properties"),
    ("kmirror truncate-logs --log-dir fol\t", "truncate-logs --log-dir folder"),
    ("kafka-mirrors --prom\t--link or\t", "--promote --link orders-mirror"),
    ("kafka-mirrors --failover --mirror-topic cli\t", "--failover --mirror-topic clicks"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home where names were remembered: of one destination with two mirrors, and of another."""
    folder = names_folder({"XDG_CACHE_HOME": str(tmp_path / ".cache")})
    topics = [
        ("orders-mirror", "orders"),
        ("orders-mirror", LONG_NAME),
        ("orders-mirror", "clicks"),
        ("users-mirror", "users"),
    ]
    write_names(folder, "one", lines_of(["orders-mirror", "users-mirror"], topics))
    write_names(folder, "two", lines_of(["far-mirror"], [("far-mirror", "payments.eu"), ("far-mirror", "clicks")]))
    (tmp_path / "source.properties").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("shell", FILES)
def test_the_kept_scripts_are_those_that_are_printed(run: Run, shell: str) -> None:
    kept = (COMPLETIONS / FILES[shell]).read_text(encoding="utf-8")
    shown = run("completion", shell)
    assert (shown.code, shown.out, shown.err) == (0, kept, ""), (
        f"kmirror completion {shell} >completions/{FILES[shell]}"
    )


def test_click_is_asked_for_a_script_in_its_own_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(kmirror, "zsh_source") == 0
    assert capsys.readouterr().out == (COMPLETIONS / "_kmirror").read_text(encoding="utf-8")
    assert answer(kmirror, "tcsh_source") == 1


def test_there_is_a_file_for_each_command_and_shell() -> None:
    assert {path.name for path in COMPLETIONS.iterdir()} == {*FILES.values(), "kafka-mirrors.fish"}
    # fish looks for a file of the command's name
    assert (COMPLETIONS / "kafka-mirrors.fish").read_text() == "source (status dirname)/kmirror.fish\n"


Offers = Callable[..., dict[str, str]]


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offers:
    """Ask what may follow these words, the last of which is unfinished: values with their help."""

    def ask(*words: str) -> dict[str, str]:
        monkeypatch.setenv("COMP_WORDS", "".join(f"{word}\n" for word in words))
        command = kmirror if words[0] == "kmirror" else kafka_mirrors_command()
        assert answer(command, "bash_complete") == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        lines = [line.split("\t") for line in shown.out.splitlines() if line]
        return {value: summary for _, value, summary in lines}

    return ask


def test_every_verb_and_option_is_completed(offers: Offers) -> None:
    context = click.Context(kmirror)
    assert list(offers("kmirror", "")) == list(VERBS)
    assert offers("kmirror", "pau") == {"pause": VERBS["pause"][1]}
    assert {"--version", "--help"} <= offers("kmirror", "--").keys()
    for verb in VERBS:
        command = kmirror.get_command(context, verb)
        assert command is not None
        inner = command.commands.items() if isinstance(command, click.Group) else ()
        for name, one in [(verb, command), *((f"{verb} {name}", one) for name, one in inner)]:
            options = {
                flag
                for option in one.params
                if isinstance(option, click.Option) and not option.hidden
                for flag in option.opts
            }
            assert options | {"--help"} <= offers("kmirror", *name.split(), "-").keys()
    of_kafka_mirrors = offers("kafka-mirrors", "-")
    assert {*ACTIONS, *OWN, "--accept-loss", "--timeout", "--version", "--help"} <= of_kafka_mirrors.keys()
    assert of_kafka_mirrors["--unpause"] == "Same as --resume."
    assert "--yes" not in of_kafka_mirrors


def test_options_are_offered_before_a_dash_is_typed(offers: Offers) -> None:
    assert offers("kmirror", "pause", "") == offers("kmirror", "pause", "-")
    assert offers("kafka-mirrors", "") == offers("kafka-mirrors", "-")
    assert set(offers("kmirror", "sandbox", "")) == {"up", "down", "status", "produce", "challenge"}
    assert list(offers("kmirror", "completion", "")) == list(FILES)


@pytest.mark.parametrize("words", [("nonsense", "--"), ("sandbox", "nonsense", ""), ("--nonsense", "x", "")])
def test_what_is_not_understood_is_passed_over_in_silence(offers: Offers, words: tuple[str, ...]) -> None:
    assert offers("kmirror", *words).keys() <= {
        *VERBS,
        "--version",
        "--help",
        "-h",
        "up",
        "down",
        "status",
        "produce",
        "challenge",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("create", "--mirror", ""), set()),
        (("add", "--mirror", "m", "--topics", ""), set()),
        (("add", "--mirror", "m", "--exclude", ""), set()),
        (("promote", "--exclude", "us"), {"users"}),
        (("run", "--mirror", "orders-mirror", "--mirror", "u"), {"users-mirror"}),
        (("describe", "--mirror", "users-mirror", "--topics", ""), {"users"}),
        (("describe", "--mirror", "=", "users-mirror", "--topics", "="), {"users"}),
        (("describe", "--mirror='users-mirror'", "--topics='us"), {"users"}),
        (("pause", "--topics", "@none", "--mirror", "or"), {"orders-mirror"}),
        (("--version", "pause", "--mirror", "or"), {"orders-mirror"}),
    ],
)
def test_names_are_offered_where_they_are_meant(
    offers: Offers, home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: set[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    assert offers("kmirror", *words).keys() == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--pause", "--links", "far-mirror,us"), {"far-mirror,users-mirror"}),
        (("--pause", "--links", "far-mirror,users-mirror", "--topic", "c"), {"clicks"}),
        (("--failover", "--link", "far-mirror", "--mirror-topic", "clicks,"), {"clicks,payments.eu", "clicks,clicks"}),
        (("--add", "--source-topic", ""), set()),
    ],
)
def test_names_are_offered_to_kafka_mirrors(
    offers: Offers, home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: set[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    assert offers("kafka-mirrors", *words).keys() == expected


@contextmanager
def started(name: str, home: Path) -> Iterator[Terminal]:
    """Start a shell as a user has it, with the completion loaded and no command of kmirror's in PATH."""
    shell = find_shell(name.split(maxsplit=1)[0])
    environment = {"HOME": str(home), "PATH": PATH, "PS1": "", "PROMPT": ""}
    if name == "bash":
        arguments = ["--norc", "--noprofile", "-i"]
        setup = f"set +o history; bind 'set bell-style none'; source {COMPLETIONS}/kmirror.bash"
    elif name == "zsh sourced":
        (home / ".zshrc").touch()
        arguments = ["-d", "-i"]
        setup = "autoload -Uz compinit; compinit -u -D; source <(kmirror completion zsh); unsetopt beep promptsp"
    else:
        (home / ".zshrc").touch()  # else it asks what to put there
        arguments = ["-d", "-i"]
        setup = f"fpath=({COMPLETIONS} $fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep promptsp"
    with Terminal(shell, *arguments, environment=environment) as terminal:
        terminal.type(f"cd {home}; {setup}; {STUBS}\n")
        terminal.type("echo REA''DY\n")
        terminal.read_until("(READY)")
        yield terminal


@pytest.mark.parametrize(
    "name", ["bash", *(pytest.param(name, marks=pytest.mark.long) for name in ("zsh", "zsh sourced"))]
)
def test_tab(name: str, home: Path) -> None:
    with started(name, home) as terminal:
        for typed, expected in TYPED:
            terminal.type(f"{typed}\n")
            ran = terminal.read_until("RAN:(.*?):END")
            assert ran.rstrip("/ ") == expected, typed


@pytest.mark.long
def test_tab_in_fish(home: Path) -> None:
    shell = find_shell("fish")
    environment = {"PATH": PATH, "HOME": str(home), **shell.environment}
    lines = ["kmirror completion fish | source"]
    # what Tab offers for the last word; where a line has several Tabs, each is the end of a line of its own
    asked = [(typed.split("\t")[0], expected) for typed, expected in TYPED if typed.count("\t") == 1]
    asked += [("kmirror pause --mir", "--mirror"), ("kafka-mirrors --promote --link or", "orders-mirror")]
    for typed, _ in asked:
        lines += [f"complete -C '{typed}'", "echo ---"]
    done = subprocess.run(
        [shell.path, "--no-config", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    offers = [{line.split("\t")[0] for line in part.splitlines()} for part in done.stdout.split("---\n")]
    for (typed, expected), offered in zip(asked, offers, strict=False):
        last = expected.split(" ")[-1]
        wanted = set() if typed.endswith(last) else {last}
        assert {word.rstrip("/") for word in offered} == wanted, typed


def test_names_are_for_the_user_alone(home: Path) -> None:
    folder = home / ".cache/kmirror/names"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert (folder / "two").read_text() == "far-mirror \nfar-mirror payments.eu\nfar-mirror clicks\n"


def test_what_is_no_name_is_not_written(tmp_path: Path) -> None:
    assert lines_of(["m", "$(x)", "a b"], [("m", "t"), ("m", "t;x"), ("a b", "t")]) == "m \nm t\n"
    many = lines_of(["m"], (("m", f"t{number}") for number in range(MOST_LINES)))
    assert many.startswith("m \nm t0\n")
    assert many.count("\n") == MOST_LINES
    write_names(tmp_path, "../up", "m\n")
    assert [path.name for path in tmp_path.iterdir()] == ["___up"]


def test_only_the_destinations_looked_at_last_are_known(tmp_path: Path) -> None:
    for number in range(MOST_DESTINATIONS):
        write_names(tmp_path, f"c{number}", "m\n")
        os.utime(tmp_path / f"c{number}", (number, number))
    write_names(tmp_path, "c0", "m\n")
    write_names(tmp_path, "new", "m\n")
    assert {path.name for path in tmp_path.iterdir()} == {
        "new",
        "c0",
        *(f"c{number}" for number in range(2, MOST_DESTINATIONS)),
    }
