"""What Tab does: the scripts in `completions/`, in the real shells, on terminals; and the names they offer."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from kmirror.cli.completions import kafka_mirrors_command, kmirror_command, main, scripts
from kmirror.cli.kafka_flags import ACTIONS
from kmirror.cli.main import VERBS, kmirror
from kmirror.cli.names import MOST_DESTINATIONS, MOST_LINES, lines_of, names_folder, write_names
from tests.support.shells import Terminal, find_shell

COMPLETIONS = Path(__file__).parent.parent.parent / "completions"

#: The commands as functions of the shell: what was typed and completed is what they are called with.
STUBS = 'kmirror() { printf \'RAN:%s:END\\n\' "$*"; }; function kafka-mirrors { kmirror "$@"; }'

TYPED = [
    ("kmirror desc\t", "describe"),
    ("kmirror sandbox sta\t", "sandbox status"),
    ("kmirror pause --mir\tor\t", "pause --mirror orders-mirror"),
    ("kmirror pause --mirror=or\t", "pause --mirror=orders-mirror"),
    ("kmirror describe --topics cli\t", "describe --topics clicks"),
    ("kmirror failover --topics clicks,pay\t", "failover --topics clicks,payments.eu"),
    ("kmirror describe --mirror users-mirror --topics ord\t", "describe --mirror users-mirror --topics ord"),
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
    topics = [("orders-mirror", "orders"), ("orders-mirror", "clicks"), ("users-mirror", "users")]
    write_names(folder, "one", lines_of(["orders-mirror", "users-mirror"], topics))
    write_names(folder, "two", lines_of(["far-mirror"], [("far-mirror", "payments.eu"), ("far-mirror", "clicks")]))
    (tmp_path / "source.properties").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_the_scripts_are_those_of_the_commands(tmp_path: Path) -> None:
    main(str(tmp_path))
    kept = {path.name: path.read_text(encoding="utf-8") for path in COMPLETIONS.iterdir()}
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert made.keys() == kept.keys()
    differing = [name for name in made if made[name] != kept[name]]
    assert differing == [], "run `python -m kmirror.cli.completions completions`"


def test_every_verb_and_option_is_completed() -> None:
    context = click.Context(kmirror)
    told = {" ".join(command.words): command for command in kmirror_command().walk()}
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
            assert options <= {flag for known in told[name].flags for flag in known.names}
    of_kafka_mirrors = {name for flag in kafka_mirrors_command().flags for name in flag.names}
    assert {*ACTIONS, "--link", "--accept-loss", "--timeout", "--version"} <= of_kafka_mirrors
    assert "--yes" not in of_kafka_mirrors


@contextmanager
def started(name: str, home: Path) -> Iterator[Terminal]:
    """Start a shell as a user has it, with the completion loaded and no command of kmirror's in PATH."""
    shell = find_shell(name)
    environment = {"HOME": str(home), "ZDOTDIR": str(home), "PS1": "", "PROMPT": ""}
    if name == "bash":
        arguments = ["--norc", "--noprofile", "-i"]
        setup = f"set +o history; bind 'set bell-style none'; source {COMPLETIONS}/kmirror.bash"
    else:
        arguments = ["-f", "-i"]
        setup = f"fpath=({COMPLETIONS} $fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep promptsp"
    with Terminal(shell, *arguments, environment=environment) as terminal:
        terminal.type(f"cd {home}; {setup}; {STUBS}\n")
        terminal.type("echo REA''DY\n")
        terminal.read_until("(READY)")
        yield terminal


@pytest.mark.parametrize("name", ["bash", pytest.param("zsh", marks=pytest.mark.long)])
def test_tab(name: str, home: Path) -> None:
    with started(name, home) as terminal:
        for typed, expected in TYPED:
            terminal.type(f"{typed}\n")
            ran = terminal.read_until("RAN:(.*?):END")
            # zsh completes an option that takes a value with the = before it
            assert ran.rstrip("/ ").replace("=", " ") == expected.replace("=", " "), typed


@pytest.mark.long
def test_tab_in_fish(home: Path) -> None:
    shell = find_shell("fish")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **shell.environment}
    lines = [f"source {COMPLETIONS}/kmirror.fish", f"source {COMPLETIONS}/kafka-mirrors.fish"]
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


@pytest.mark.parametrize("name", ["kmirror.bash", "_kmirror", "kmirror.fish", "kafka-mirrors.fish"])
def test_tab_starts_no_python(name: str) -> None:
    code = [line for line in scripts()[name].splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in code if "python" in line.lower() or "$(kmirror" in line or "(kmirror " in line] == []


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
