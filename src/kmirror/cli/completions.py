"""Completion for bash, zsh and fish, generated from the commands: `python -m kmirror.cli.completions FOLDER`.

The scripts are static: verbs, options and choices stand in them, and names of mirrors and topics come from the files
of `kmirror.cli.names`. Nothing is started when Tab is pressed. This module says what there is to complete; how each
shell wants it told is in `completion_scripts`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kmirror.cli.completion_scripts import Command, Flag, Kind, bash_script, fish_script, zsh_script
from kmirror.cli.kafka_flags import ACTIONS, MIRROR_FLAGS, OWN, TOPIC_FLAGS, command_of
from kmirror.cli.main import VERBS, kmirror

#: Verbs whose --mirror or --topics are not names that the destination has already.
_NEW_MIRRORS = frozenset({"create"})
_SOURCE_TOPICS = frozenset({"add"})


def kmirror_command() -> Command:
    """Return all that can be typed after `kmirror`."""
    context = click.Context(kmirror)
    verbs = [(name, kmirror.get_command(context, name), summary) for name, (_, summary) in VERBS.items()]
    below = tuple(_command((name,), found, summary) for name, found, summary in verbs if found is not None)
    return Command((), "", _flags((), kmirror), below)


def kafka_mirrors_command() -> Command:
    """Return all that can be typed after `kafka-mirrors`: actions and options in one list."""
    flags = {action: Flag((action,), summary) for action, (_, summary) in ACTIONS.items()}
    for name, own in OWN.items():
        kind = Kind.NONE if own.metavar is None else Kind.WORD
        if name in MIRROR_FLAGS or name in TOPIC_FLAGS:
            kind = Kind.MIRROR if name in MIRROR_FLAGS else Kind.TOPICS
        flags[name] = Flag((name,), own.help, kind, own.metavar or "", repeats=own.metavar is not None)
    for verb in dict.fromkeys(verb for verb, _ in ACTIONS.values()):
        for flag in _command((verb,), command_of(verb), "").flags:
            if not {"--yes", *OWN} & {*flag.names}:
                flags.setdefault(flag.names[-1], flag)
    flags["--version"] = Flag(("--version",), "Show the version and exit.")
    return Command((), "", tuple(flags.values()))


def _command(words: tuple[str, ...], command: click.Command, summary: str) -> Command:
    inner = command.commands if isinstance(command, click.Group) else {}
    below = tuple(_command((*words, name), one, _first_line(one.help)) for name, one in inner.items())
    return Command(words, summary, _flags(words, command), below)


def _flags(words: tuple[str, ...], command: click.Command) -> tuple[Flag, ...]:
    own = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    return (*(_flag(words, option) for option in own), Flag(("-h", "--help"), "Show this message and exit."))


def _flag(words: tuple[str, ...], option: click.Option) -> Flag:
    choices = tuple(option.type.choices) if isinstance(option.type, click.Choice) else ()
    metavar = option.metavar or ("WORD" if choices else "VALUE")
    repeats = option.multiple or option.count
    if option.is_flag or option.count:
        return Flag(tuple(option.opts), _first_line(option.help), repeats=repeats)
    kind = Kind.CHOICE if choices else {"FILE": Kind.FILE, "DIR": Kind.FOLDER}.get(metavar, Kind.WORD)
    if "--mirror" in option.opts and not _NEW_MIRRORS & {*words}:
        kind = Kind.MIRROR
    if metavar == "LIST" and not _SOURCE_TOPICS & {*words}:
        kind = Kind.TOPICS
    return Flag(tuple(option.opts), _first_line(option.help), kind, metavar, choices, repeats)


def _first_line(text: str | None) -> str:
    return (text or "").split("\n")[0]


def scripts() -> dict[str, str]:
    """Return every file of `completions/` by its name."""
    ours, kafkas = kmirror_command(), kafka_mirrors_command()
    return {
        "kmirror.bash": bash_script(ours, kafkas),
        "_kmirror": zsh_script(ours, kafkas),
        "kmirror.fish": fish_script("kmirror", ours),
        "kafka-mirrors.fish": fish_script("kafka-mirrors", kafkas),
    }


def main(folder: str) -> None:
    """Write all scripts into a folder."""
    for name, text in scripts().items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
