"""`kafka-mirrors`: kmirror's verbs in the flag style of Kafka's tools. It never asks for confirmation.

A command line is translated into kmirror's and run: the same operations, errors and exit codes. If no mirror is named,
as in Confluent's scripts, it is looked up by the topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kmirror import __version__
from kmirror.cli import main as kmirror_main
from kmirror.cli.failures import INTERRUPTED
from kmirror.cli.name_cache import cached_mirrors, cached_topics
from kmirror.cli.options import Session, Verb, destination_properties
from kmirror.cli.terminal.screen import Screen
from kmirror.errors import ExitCode, UsageError
from kmirror_compat.kafka_flags import (
    ACTIONS,
    MIRROR_FLAGS,
    OWN,
    TOPIC_FLAGS,
    Request,
    action_of,
    check_replication_factor,
    command_of,
    read,
    source_names,
)

if TYPE_CHECKING:
    from kmirror.state.snapshot import State

_WIDTH = 100


def main(arguments: Sequence[str]) -> int:
    """Carry out one command line of `kafka-mirrors` and return its exit code."""
    session = Session(Screen.of_this_process())
    return kmirror_main.guarded(session, arguments, lambda: _run(session, arguments))


def entry_point() -> None:
    """Run the command line of this process and exit."""
    kmirror_main.run_process(main, kafka_mirrors_command)


def _run(session: Session, arguments: Sequence[str]) -> int:
    if not arguments:
        session.screen.note(help_text().rstrip())
        return ExitCode.USAGE
    if "--version" in arguments:
        session.screen.line(f"kafka-mirrors of kmirror {__version__}")
        return ExitCode.OK
    if {"-h", "--help"} & {*arguments}:
        named = [word for word in arguments if word in ACTIONS]
        session.screen.line((action_help(named[0]) if named else help_text()).rstrip())
        return ExitCode.OK
    _, verb = action_of(arguments)
    session.verb, session.command = command_of(verb), f"kmirror {verb}"
    session.dry_run = "--dry-run" in arguments
    request = _with_topic_configs(read(arguments))
    session.mirror = ",".join(request.mirrors) or None
    lines = command_lines(request, _state(request) if _needs_state(request) else None)
    if len(lines) > 1 and request.value("--report"):
        raise UsageError("--report covers one mirror, but the topics belong to several", "run it once per mirror")
    if len(lines) > 1 and "--together" in request.rest:
        raise UsageError("--together covers one mirror, but the topics belong to several", "run it once per mirror")
    codes: list[int] = []
    for line in lines:
        codes.append(kmirror_main.main(line, kafka_action=request.action))
        if codes[-1] == INTERRUPTED:
            break
    return combined(codes)


def command_lines(request: Request, state: State | None) -> list[list[str]]:
    """Return kmirror's arguments, one list per mirror; `state` is the destination's, if `_needs_state`.

    Raises:
        UsageError: invalid topics or replication factor.
        RefusedError: a topic is not a mirror topic, or cannot have the given name.
    """
    if state is None:
        request = request.whole()
        if not request.mirrors:
            return [request.arguments(None, request.topics)]
        return [request.arguments(mirror, (*request.topics, *request.source_topics)) for mirror in request.mirrors]
    if request.verb == "add":
        from kmirror.settings.parsing import stored_settings

        record = state.mirror(request.mirrors[0])
        settings = stored_settings(record.settings if record else {})
        check_replication_factor(request, settings.replication_factor)
        return [request.arguments(request.mirrors[0], source_names(request, settings.topic_prefix))]
    return [
        request.arguments(mirror, [",".join(topics)]) for mirror, topics in _topics_by_mirror(request, state).items()
    ]


def combined(codes: Sequence[int]) -> int:
    """Return the exit code for commands on several mirrors, as if it were one on all their topics: 7 over 4 over 5."""
    bad = {code for code in codes if code}
    for worst in (INTERRUPTED, ExitCode.UNEXPECTED, ExitCode.HISTORIES_DIFFER):
        if worst in bad:
            return int(worst)
    if not bad or bad == {ExitCode.TIMED_OUT}:
        return max(bad, default=0)
    return bad.pop() if len(bad) == 1 and all(codes) else int(ExitCode.PARTLY_DONE)


def _with_topic_configs(request: Request) -> Request:
    """Return the request with the configs of its file as options. Raises UsageError: the file cannot be read."""
    if request.topic_config_file is None:
        return request
    from kmirror.cluster.security.properties import read_properties

    configs = read_properties(request.topic_config_file)
    # those of the command line come after those of the file, and so win
    given = [word for key, value in configs.items() for word in ("--config", f"{key}={value}")]
    return replace(request, rest=(*given, *request.rest))


def _needs_state(request: Request) -> bool:
    """Return whether the destination's stored state is needed to translate the command."""
    if request.verb == "add":
        return bool(request.mirror_topics or request.replication_factor)
    if not request.topics:
        return False
    return len(request.mirrors) > 1 or (not request.mirrors and request.needs_mirror)


def _state(request: Request) -> State:
    from kmirror.ops.base.context import Destination

    properties = destination_properties(
        request.value("--bootstrap-server"), request.value("--command-config"), request.value("--cluster")
    )
    with Destination.open(properties, request.value("--expect-cluster-id")) as destination:
        return destination.state()


def _topics_by_mirror(request: Request, state: State) -> dict[str, list[str]]:
    """Return the selected topics by the mirror that owns them; a topic's former mirrors do not count."""
    from kmirror.ops.base.context import known_mirror
    from kmirror.ops.base.selection import select_topics
    from kmirror.settings.patterns import TopicSelector
    from kmirror.state.records import DesiredState

    mirrors = [known_mirror(state, name) for name in request.mirrors] or list(state.mirrors)
    known = [topic for mirror in mirrors for topic in state.topics(mirror.name)]
    selector, each = TopicSelector.parse(request.topics), request.verb not in {"describe", "remove"}
    chosen = select_topics(known, selector, "on this destination", each=each)
    living = {topic.topic for topic in chosen if topic.desired is not DesiredState.STOPPED}
    found: dict[str, list[str]] = {}
    for topic in chosen:
        if topic.desired is not DesiredState.STOPPED or topic.topic not in living:
            found.setdefault(topic.mirror, []).append(topic.topic)
    return found


def help_text() -> str:
    """Return the help of `kafka-mirrors`."""
    formatter = _formatter("ACTION [OPTIONS]")
    formatter.write_text(
        "kmirror's verbs in the flag style of Kafka's tools. Connects to the destination and never asks."
    )
    with formatter.section("Actions (give exactly one)"):
        formatter.write_dl([(flag, f"{summary} (kmirror {verb})") for flag, (verb, summary) in ACTIONS.items()])
    with formatter.section("Options"):
        formatter.write_dl([*_own_records(None), ("--version", "Show the version and exit.")])
    formatter.write_paragraph()
    formatter.write_text("`kafka-mirrors ACTION --help` shows the options of an action.")
    return formatter.getvalue()


def action_help(action: str) -> str:
    """Return the help of one action."""
    verb, summary = ACTIONS[action]
    formatter = _formatter(f"{action} [OPTIONS]")
    formatter.write_text(f"{summary} Same as `kmirror {verb}`; see `kmirror {verb} --help` for details and examples.")
    command = command_of(verb)
    context = click.Context(command)
    records = [
        record
        for param in command.get_params(context)
        if not {"--yes", *OWN} & {*param.opts} and (record := param.get_help_record(context))
    ]
    with formatter.section("Options"):
        formatter.write_dl([*_own_records(action), *records])
    return formatter.getvalue()


def kafka_mirrors_command() -> click.Command:
    """Return a command with all actions and options of `kafka-mirrors`, for completion."""
    options = {action: click.Option([action], is_flag=True, help=summary) for action, (_, summary) in ACTIONS.items()}
    for flag, own in OWN.items():
        names = cached_mirrors if flag in MIRROR_FLAGS else cached_topics if flag in TOPIC_FLAGS else None
        takes_value = own.metavar is not None
        options[flag] = click.Option(
            [flag], is_flag=not takes_value, multiple=takes_value, help=own.help, shell_complete=names
        )
    for verb_name in dict.fromkeys(name for name, _ in ACTIONS.values()):
        for option in command_of(verb_name).params:
            if isinstance(option, click.Option) and not {"--yes", *OWN} & {*option.opts}:
                options.setdefault(option.opts[-1], option)
    options["--version"] = click.Option(["--version"], is_flag=True, help="Show the version and exit.")
    return Verb(
        "kafka-mirrors",
        examples=(),
        common=(),
        changes=False,
        params=[*options.values()],
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _formatter(usage: str) -> click.HelpFormatter:
    formatter = click.HelpFormatter(max_width=_WIDTH)
    formatter.write_usage("kafka-mirrors", usage)
    formatter.write_paragraph()
    return formatter


def _own_records(action: str | None) -> list[tuple[str, str]]:
    return [
        (f"{flag} {own.metavar}" if own.metavar else flag, own.help)
        for flag, own in OWN.items()
        if action is None or not own.actions or action in own.actions
    ]
