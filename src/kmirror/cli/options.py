"""The options that verbs share, and the decorator `verb` that makes a click command of a function.

Such a function is `f(call, …) -> exit code`: `call` holds the common options, the verb's own are keyword arguments. A
flag overrides an environment variable, which overrides a default in `kmirror.toml`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kmirror.beside import beside
from kmirror.cli.arguments import check_arguments
from kmirror.cli.name_cache import cached_mirrors, cached_topics
from kmirror.cli.terminal.output import Output, output_for
from kmirror.cli.terminal.screen import Screen
from kmirror.commands import command_line
from kmirror.errors import RefusedError, UsageError
from kmirror.settings.durations import parse_duration

if TYPE_CHECKING:
    from pathlib import Path

    from kmirror.ops.base.context import Destination
    from kmirror.ops.base.results import VerbResult
    from kmirror.settings.patterns import TopicSelector

#: Set by a shell that asks for completions; `kmirror.cli.commands.completion` answers.
COMPLETE_VARIABLE = "_KMIRROR_COMPLETE"
BOOTSTRAP_ENVIRONMENT = "KMIRROR_BOOTSTRAP_SERVER"
#: Used only with the address from the environment: the login is not meant for a cluster that a flag names.
COMMAND_CONFIG_ENVIRONMENT = "KMIRROR_COMMAND_CONFIG"

#: Verbs that end mirroring, or can lose records.
IRREVERSIBLE = frozenset({"promote", "failover", "failback", "switchover", "remove", "delete", "recover"})
#: Such a verb is suggested only for a word this similar (of 1): one letter too many, too few or changed.
_ALMOST_THE_SAME = 0.85

_LOG_LEVELS = {1: logging.INFO, 2: logging.DEBUG}


@dataclass(slots=True)
class Session:
    """What is known of one command so far, to report its failure."""

    screen: Screen
    verb: Verb | None = None
    command: str = "kmirror"
    output: Output | None = None
    verbosity: int = 0
    dry_run: bool = False
    mirror: str | None = None
    #: The action of `kafka-mirrors` that is carried out: its columns and sentences are those of Kafka's own tools.
    kafka_action: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """The common options of one call of a verb."""

    output: Output
    dry_run: bool = False
    yes: bool = False
    bootstrap_server: str | None = None
    command_config: str | None = None
    cluster: str | None = None
    expect_cluster_id: str | None = None
    kafka_action: str | None = None

    def properties(self) -> dict[str, str]:
        """Return the destination's client properties, as `destination_properties` does."""
        return destination_properties(self.bootstrap_server, self.command_config, self.cluster, self.read_properties)

    def read_properties(self, path: str) -> dict[str, str]:
        """Read a file of client properties, and warn of secrets that others can read. Raises UsageError."""
        from kmirror.cluster.security.exposure import cleartext_logins, exposed_files
        from kmirror.cluster.security.properties import read_properties

        properties = read_properties(path)
        for file in exposed_files(path, properties):
            command = command_line("chmod", "o-rwx", str(file))
            self.output.screen.note_once(f"kmirror: warning: any local user can read the secrets in {file}: {command}")
        for warning, hint in cleartext_logins(properties):
            self.output.screen.note_once(f"kmirror: warning: {path}: {warning}: {hint}")
        return properties

    def destination(self) -> Destination:
        """Open the destination, for a `with` block or for the caller to close."""
        from kmirror.ops.base.context import Destination

        return Destination.open(self.properties(), self.expect_cluster_id)

    def confirm(self, question: str) -> bool:
        """Ask before something with consequences; `--yes` is a yes.

        Raises:
            RefusedError: there is no terminal to ask on.
        """
        if self.yes:
            return True
        if not self.output.screen.can_ask:
            raise RefusedError("this must be confirmed, and there is no terminal to ask on", "add --yes to proceed")
        return self.output.screen.ask(question)

    def require_yes(self, question: str) -> None:
        """Ask as `confirm`, and raise RefusedError unless the answer is yes."""
        if not self.confirm(question):
            raise RefusedError("not confirmed: nothing was changed")

    def show(self, done: VerbResult) -> int:
        """Show what a verb did, and return its exit code."""
        if self.kafka_action is None or done.exit_code or done.dry_run:
            self.output.result(done)
        else:
            self.output.result(done, beside("kafka_success")(self.kafka_action, done))
        return done.exit_code


class Verb(click.Command):
    """A command whose help lists the common options separately and ends with examples."""

    def __init__(
        self, name: str, *, examples: Sequence[str], common: Sequence[click.Option], changes: bool, **rest: Any
    ) -> None:
        super().__init__(name, **rest)
        self.examples = tuple(examples)
        self.common = {option.name for option in common}
        self.changes = changes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, after noting the verb in the session for errors."""
        if session := ctx.find_object(Session):
            session.verb, session.command = self, ctx.command_path
        if not ctx.resilient_parsing:
            check_arguments(self.params, args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete options also before a dash is typed."""
        return super().shell_complete(ctx, incomplete or "-")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verb's own options, then the common ones."""
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                (common if parameter.name in {*self.common, "help"} else own).append(record)
        for title, records in (("Options", own), ("Common options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each example on one line, however long, so that it can be copied."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")


class VerbGroup(click.Group):
    """A group of verbs in the given order, which suggests one for a mistyped word."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs' names."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb at the start of the arguments. Raises UsageError."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], known, n=1)
            if near and near[0] in IRREVERSIBLE:
                near = get_close_matches(args[0], near, cutoff=_ALMOST_THE_SAME)
            hint = f"did you mean {near[0]}?" if near else f"`{ctx.command_path} --help` lists the commands"
            raise UsageError(f"no such command {args[0]}", hint)
        return super().resolve_command(ctx, args)


def verb(
    name: str,
    summary: str,
    *options: click.Parameter,
    examples: Sequence[str],
    changes: bool = False,
    dry_run: bool = True,
    destination: bool = True,
    documents: bool = True,
    default_output: bool = True,
) -> Callable[[Callable[..., int]], Verb]:
    """Make a verb of a function; the flags select its common options.

    A verb that `changes` something accepts `--yes` and `--dry-run`, and with `--json` prints a VerbResult also when it
    fails. Without `default_output` only a flag makes it print a document.
    """
    common = [
        *(_DESTINATION if destination else ()),
        *((_DRY_RUN,) if changes and dry_run else ()),
        *((_YES,) if changes else ()),
        *(_DOCUMENTS if documents else ()),
        _VERBOSE,
    ]

    in_call = _CALLS & {option.name for option in common}  # a verb may have an option of its own with such a name

    def decorate(function: Callable[..., int]) -> Verb:
        @click.pass_obj
        def invoke(session: Session, /, **given: Any) -> int:
            session.verbosity = given.pop("verbose")
            session.dry_run = given.get("dry_run", False)
            session.mirror = _one_name(given.get("mirror"))
            kind = _output(given, default_output) if documents else "table"
            session.output = output_for(kind, session.screen, session.verbosity)
            action = session.kafka_action
            call = Call(session.output, kafka_action=action, **{key: given.pop(key) for key in in_call})
            with _logging(session):
                if session.verbosity:
                    _log_config_files()
                return function(call, **given)

        return Verb(
            name,
            callback=invoke,
            params=[*options, *common],
            help=summary,
            examples=examples,
            common=common,
            changes=changes,
        )

    return decorate


def mirror_option(
    text: str = "Name of the mirror.", *, required: bool = True, multiple: bool = False, new: bool = False
) -> click.Option:
    """Return `--mirror M`; the name of a `new` mirror is not completed."""
    names = None if new else cached_mirrors
    return click.Option(
        ["--mirror"], metavar="M", required=required, multiple=multiple, help=text, shell_complete=names
    )


def topics_option(
    text: str, *, required: bool = False, flags: Sequence[str] = ("--topics", "--topic"), of_source: bool = False
) -> click.Option:
    """Return an option whose value is a TopicSelector, or None; completes mirror topics unless it is `of_source`."""
    names = None if of_source else cached_topics
    return click.Option(
        [*flags],
        metavar="LIST",
        required=required,
        multiple=True,
        callback=_selector,
        help=text,
        shell_complete=names,
    )


def flag_option(flag: str, text: str, *, name: str | None = None) -> click.Option:
    """Return an option without a value."""
    return click.Option([*filter(None, (flag, name))], is_flag=True, help=text)


def file_option(flag: str, text: str, *, required: bool = False, short: str | None = None) -> click.Option:
    """Return an option whose value is a file name."""
    return click.Option(
        [*filter(None, (short, flag))], metavar="FILE", required=required, help=text, shell_complete=offered_files
    )


def folder_option(*declared: str, text: str, required: bool = False, multiple: bool = False) -> click.Option:
    """Return an option whose value is a directory name."""
    return click.Option(
        [*declared], metavar="DIR", required=required, multiple=multiple, help=text, shell_complete=_folders
    )


#: For `mirror_option` of verbs that do without.
ALL_MIRRORS = "Name of the mirror. Default: all mirrors."

HTTP_HOST = click.Option(
    ["--http-host"],
    metavar="NAME",
    multiple=True,
    help="A name under which clients ask, besides localhost, this machine's name, HOST and addresses. Repeatable.",
)

#: `--master MASTER`, for the verbs that use Spark.
MASTER = click.Option(
    ["--master"],
    default="local[*]",
    show_default=True,
    metavar="MASTER",
    help="Spark master URL, as for spark-submit.",
)


def duration_option(flag: str, text: str, *, name: str | None = None, required: bool = False) -> click.Option:
    """Return an option whose value is milliseconds."""
    declared = filter(None, (flag, name))
    return click.Option([*declared], metavar="D", required=required, callback=_milliseconds, help=text)


def assignments_option(flag: str, text: str) -> click.Option:
    """Return a repeatable option `k=v` whose value is a dict."""
    return click.Option([flag], metavar="K=V", multiple=True, callback=_assignments, help=text)


def destination_properties(
    bootstrap_server: str | None,
    command_config: str | None,
    cluster: str | None,
    read: Callable[[str], dict[str, str]] | None = None,
) -> dict[str, str]:
    """Return the client properties of the destination, from flags, environment and `kmirror.toml`.

    `read` reads the properties file, by default without warnings. Its `bootstrap.servers` counts before the
    default cluster.

    Raises:
        UsageError: no destination is named, or two are, or a file cannot be read.
    """
    from kmirror.cluster.security.properties import read_properties
    from kmirror.config_file import load_config_file

    if bootstrap_server and cluster:
        raise UsageError("--bootstrap-server and --cluster exclude each other", "give one of them")
    read = read or read_properties
    properties = read(command_config) if command_config else {}
    server = bootstrap_server or (None if cluster else os.environ.get(BOOTSTRAP_ENVIRONMENT))
    path: str | Path | None = None if bootstrap_server or not server else os.environ.get(COMMAND_CONFIG_ENVIRONMENT)
    if not server and (cluster or not properties.get("bootstrap.servers", "").strip()):
        config = load_config_file()
        if name := cluster or config.default_cluster:
            named = config.cluster(name)
            server, path = named.bootstrap_server, named.command_config
    if path and not command_config:
        properties = read(str(path))
    if server:
        properties["bootstrap.servers"] = server
    if not properties.get("bootstrap.servers", "").strip():
        raise UsageError(
            "the destination is missing",
            f"give --bootstrap-server HOST:PORT, set {BOOTSTRAP_ENVIRONMENT}, or give --cluster NAME from kmirror.toml",
        )
    return properties


def chosen_output(flag: str | None) -> str:
    """Return `table` or `json`: from the flag, else from `kmirror.toml`, else `table`. Raises UsageError."""
    from kmirror.config_file import load_config_file

    return flag or load_config_file().default_output or "table"


def _output(given: dict[str, Any], default_output: bool) -> str:
    kind, as_json = given.pop("output"), given.pop("as_json")
    flag = "json" if as_json else kind
    return chosen_output(flag) if default_output else flag or "table"


class _ScreenHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.note(self.format(record))


def _log_config_files() -> None:
    from kmirror.config_file import load_config_file

    files = ", ".join(map(str, load_config_file().files))
    logging.getLogger("kmirror").info("configuration: %s", files or "there is no kmirror.toml")


@contextmanager
def _logging(session: Session) -> Iterator[None]:
    """Log to standard error at the level that `-v` asks for."""
    if not session.verbosity:
        yield
        return
    logger = logging.getLogger("kmirror")
    handler = _ScreenHandler(session.screen)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(_LOG_LEVELS[min(session.verbosity, 2)])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def offered_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what makes the shell offer files."""
    return [CompletionItem(incomplete, type="file")]


def _folders(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _selector(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> TopicSelector | None:
    if not values or ctx.resilient_parsing:
        return None
    from kmirror.settings.patterns import TopicSelector

    return TopicSelector.parse(values, _flag(param))


def _milliseconds(_: click.Context, param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_duration(value, _flag(param))


def _assignments(_: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{_flag(param)}: {value!r} is not key=value", f"write {_flag(param)} KEY=VALUE")
        found[key.strip()] = text.strip()
    return found


def _spark_conf(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = _assignments(ctx, param, values)
    if found:
        from kmirror.cluster.security.properties import is_reference
        from kmirror.engine.spark.conf import holds_secret

        for key, value in found.items():
            if holds_secret(key) and not is_reference(value):
                raise UsageError(
                    f"{_flag(param)}: {key} would be in the list of processes, which every user of this machine sees",
                    f"put it into a file: {_flag(param)} '{key}=${{file:/etc/kmirror/spark.properties:secret}}'",
                )
    return found


#: `--spark-conf K=V`, for the verbs that use Spark.
SPARK_CONF = click.Option(
    ["--spark-conf"], metavar="K=V", multiple=True, callback=_spark_conf, help="Set a Spark property. Repeatable."
)


def _flag(param: click.Parameter) -> str:
    return param.opts[0]


def _one_name(mirror: str | tuple[str, ...] | None) -> str | None:
    return mirror if isinstance(mirror, str) else ",".join(mirror or ()) or None


_DESTINATION = (
    click.Option(
        ["--bootstrap-server"],
        metavar="HOST:PORT",
        help=f"Brokers of the destination, comma-separated. Default: {BOOTSTRAP_ENVIRONMENT}.",
    ),
    file_option(
        "--command-config",
        f"Client properties for the destination, as for Kafka's tools. Default: {COMMAND_CONFIG_ENVIRONMENT}.",
    ),
    click.Option(["--cluster"], metavar="NAME", help="Name of the destination in kmirror.toml."),
    click.Option(["--expect-cluster-id"], metavar="ID", help="Fail unless the destination has this cluster ID."),
)
REPORT = file_option("--report", "Write a JSON report (evidence) to this file.")
_DRY_RUN = click.Option(["--dry-run"], is_flag=True, help="Show what would be done and change nothing.")
_YES = click.Option(["--yes"], is_flag=True, help="Do not ask for confirmation.")
_DOCUMENTS = (
    click.Option(["--output"], type=click.Choice(["table", "json"]), help="Output format. Default: table."),
    click.Option(["--json", "as_json"], is_flag=True, help="Short for --output json."),
)
_VERBOSE = click.Option(["-v", "--verbose"], count=True, help="Log to stderr; -vv logs debug messages and tracebacks.")
_CALLS = {"dry_run", "yes", *(str(option.name) for option in _DESTINATION)}
