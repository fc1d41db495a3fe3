"""The flags and sentences of `kafka-mirrors`, and how a command line translates into kmirror's. Pure.

Two tools have this style: Apache Kafka's cluster mirroring (KIP-1279; its verbs are --start and --stop, its mirrors
--mirror), and Confluent Platform's kafka-mirrors (its mirrors are --link, its topics --mirror-topic). Both spellings
are accepted. Besides its own flags, an action accepts the options of the kmirror verb that it becomes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from kmirror.cli.arguments import require_value
from kmirror.cli.options import IRREVERSIBLE, Verb
from kmirror.cli.verbs import kmirror
from kmirror.commands import on_mirror, option, options
from kmirror.errors import RefusedError, UsageError
from kmirror.settings.patterns import is_plain_name

if TYPE_CHECKING:
    from kmirror.ops.base.results import VerbResult

#: By action, the kmirror verb it becomes and its help. --create becomes `add` if topics are named.
ACTIONS = {
    "--create": ("create", "Create a mirror; with --mirror-topic, a mirror topic."),
    "--add": ("add", "Add source topics to a mirror."),
    "--start": ("add", "Same as --add."),
    "--list": ("list", "List the mirrors; with --link, the topics of one."),
    "--describe": ("describe", "Show offsets, lag and state of each mirrored partition."),
    "--pause": ("pause", "Pause copying."),
    "--resume": ("resume", "Resume copying."),
    "--unpause": ("resume", "Same as --resume."),
    "--recover": ("recover", "Retry FAILED partitions now."),
    "--promote": ("promote", "Wait until topics are fully copied, then stop mirroring them."),
    "--failover": ("failover", "Stop mirroring immediately and make the topics writable."),
    "--stop": ("failover", "Same as --failover, for the named topics."),
    "--remove": ("remove", "Remove topics from a mirror and make them writable."),
    "--truncate-and-restore": ("failback", "Make the old source a mirror of the new primary."),
    "--reverse-and-start": ("switchover", "Swap source and destination (planned)."),
    "--delete": ("delete", "Delete a mirror but keep its topics."),
}
_ADDING = ("--create", "--add", "--start")
_STARTING = ("--add", "--start")
_SHOWING = ("--list", "--describe")
#: kmirror's verbs that ask for confirmation.
_ASKING = frozenset({"recover", "failover", "failback", "remove", "delete"})

MIRROR_FLAGS = ("--mirror", "--link", "--links")
TOPIC_FLAGS = ("--topics", "--topic", "--mirror-topic")
_SOURCE_TOPIC, _REPLICATION_FACTOR, _MIRROR_CONFIG = "--source-topic", "--replication-factor", "--mirror-config"
_CONFIG_FILE, _ALL_TOPICS, _FROM_LINK = "--config-file", "--all-topics", "--from-link"
#: Actions that need a file about the other cluster.
_WITH_CONFIG = ("--create", "--truncate-and-restore", "--reverse-and-start")
_TOPIC_WORDS = (*TOPIC_FLAGS, _SOURCE_TOPIC)


@dataclass(frozen=True, slots=True)
class OwnFlag:
    """One flag that only `kafka-mirrors` has; `metavar` is None if it takes no value."""

    metavar: str | None
    help: str
    #: The actions that accept it; all of them when empty.
    actions: tuple[str, ...] = ()


OWN = {
    "--mirror": OwnFlag("M", "Name of the mirror."),
    "--link": OwnFlag("M", "Same as --mirror."),
    "--links": OwnFlag("M", "Same as --mirror, comma-separated."),
    "--topics": OwnFlag("LIST", "Topic names and regular expressions, comma-separated."),
    "--topic": OwnFlag("LIST", "Same as --topics."),
    "--mirror-topic": OwnFlag("LIST", "Mirror topics (names on the destination)."),
    _SOURCE_TOPIC: OwnFlag("LIST", "Source topics (names on the source).", _ADDING),
    _REPLICATION_FACTOR: OwnFlag("N", "Replication factor of the topics that are created.", _ADDING),
    _CONFIG_FILE: OwnFlag(
        "FILE",
        "Same as --mirror-config. With --create: with --link the configuration of a Confluent cluster link, with topics"
        " configs of the topics that are created.",
        _WITH_CONFIG,
    ),
    _ALL_TOPICS: OwnFlag(None, "Same as --topics '.*'."),
    "--include-partition-data": OwnFlag(
        None, "Accepted but not needed: every partition is shown.", ("--describe", "--truncate-and-restore")
    ),
    "--pending-stopped-only": OwnFlag(None, "Show only topics that are being promoted.", ("--describe",)),
    "--include-stopped": OwnFlag(None, "Accepted but not needed: stopped topics are always shown.", _SHOWING),
    "--force": OwnFlag(None, "Accepted but not needed: kafka-mirrors never asks."),
}

#: Actions that users may expect here, and what to type instead.
_INSTEAD = {
    "--reverse-and-pause": "give --reverse-and-start; then, at the old source, --pause",
    "--failback": "against the old source: kafka-mirrors --truncate-and-restore --mirror M --mirror-config FILE,"
    " with a FILE that points at the new primary",
    "--switchover": "give --reverse-and-start --mirror M --mirror-config FILE",
}
#: Never suggested for a mistyped word, because nothing asks for confirmation here.
_NEVER_SUGGESTED = frozenset(
    {flag for flag, (verb, _) in ACTIONS.items() if verb in IRREVERSIBLE}
    | {"--accept-loss", "--accept-reset", "--accept-divergence", "--trim", "--discard", "--recreate"}
    | {"--allow-producers", "--fence-with-record"}
)


@dataclass(frozen=True, slots=True)
class Request:
    """One command line in kmirror's terms."""

    action: str
    verb: str
    mirrors: tuple[str, ...] = ()
    #: As --topics and --topic give them.
    topics: tuple[str, ...] = ()
    #: As --mirror-topic gives them; among `topics` for every verb but `add`, which takes source names.
    mirror_topics: tuple[str, ...] = ()
    source_topics: tuple[str, ...] = ()
    replication_factor: str | None = None
    #: A file with configs of the topics that are created.
    topic_config_file: str | None = None
    #: Passed on unchanged.
    rest: tuple[str, ...] = ()

    @property
    def needs_mirror(self) -> bool:
        """Return whether the verb requires `--mirror`."""
        named = any("--mirror" in param.opts and param.required for param in command_of(self.verb).params)
        return named or self.verb == "create"

    def arguments(self, mirror: str | None, topics: Sequence[str]) -> list[str]:
        """Return kmirror's arguments for one mirror (None: for all) and these topics."""
        words = [self.verb]
        if mirror is not None:
            words += option("--mirror", mirror)
        words += options("--topics", topics)
        words += self.rest
        if self.verb == "create" and self.replication_factor is not None:
            words += ["--config", f"replication.factor={self.replication_factor}"]
        return [*words, "--yes"] if self.verb in _ASKING else words

    def value(self, flag: str) -> str | None:
        """Return the value that a flag in `rest` has."""
        found = None
        for word, following in zip(self.rest, (*self.rest[1:], ""), strict=False):
            name, equals, value = word.partition("=")
            if name == flag:
                found = value if equals else following
        return found

    def whole(self) -> Request:
        """Return this request, with a stop of all topics as a failover of the mirror, which also ends discovery."""
        if self.verb in {"failover", "remove"} and self.topics == (".*",):
            return Request(self.action, "failover", self.mirrors, rest=self.rest)
        return self


def command_of(verb: str) -> Verb:
    """Return a kmirror verb."""
    found = kmirror.get_command(click.Context(kmirror), verb)
    if not isinstance(found, Verb):
        raise TypeError(f"{verb} is not a verb of kmirror")
    return found


def options_of(verb: str) -> dict[str, bool]:
    """Return the flags of a kmirror verb, and whether each takes a value."""
    options = [param for param in command_of(verb).params if isinstance(param, click.Option)]
    return {flag: not (option.is_flag or option.count) for option in options for flag in option.opts}


def action_of(arguments: Sequence[str]) -> tuple[str, str]:
    """Return the action in the arguments, and the kmirror verb it becomes. Raises UsageError."""
    words = [word.partition("=")[0] for word in arguments]
    for word in words:
        if word in _INSTEAD:
            raise UsageError(f"{word} is not supported", _INSTEAD[word])
    given = list(dict.fromkeys(word for word in words if word in ACTIONS))
    if not given:
        known = {*OWN, *_options_of_all()}
        unknown = [word for word in words if word.startswith("--") and word not in known]
        hints = [hint for word in unknown if (hint := _suggestion(word, {*ACTIONS, *_INSTEAD}))]
        raise UsageError("the action is missing", hints[0] if hints else f"give one of {', '.join(ACTIONS)}")
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other: both are actions", "give one of them")
    verb = ACTIONS[given[0]][0]
    if verb == "create" and any(word in _TOPIC_WORDS for word in words):
        verb = "add"
    if verb == "list" and any(word in (*MIRROR_FLAGS, *TOPIC_FLAGS) for word in words):
        verb = "describe"
    return given[0], verb


def read(arguments: Sequence[str]) -> Request:
    """Parse a command line.

    Raises:
        UsageError: it is invalid, contradictory or incomplete; the message names kafka-mirrors' flags.
    """
    action, verb = action_of(arguments)
    passed = options_of(verb)
    own: dict[str, list[str]] = {}
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == action:
            continue
        if re.fullmatch("-v+", word):
            rest.append(word)
            continue
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            raise UsageError(f"got unexpected argument {word}", f"name topics with --topics {word}")
        if flag in OWN and (not OWN[flag].actions or action in OWN[flag].actions):
            takes_value = OWN[flag].metavar is not None
            is_own = flag in {*MIRROR_FLAGS, *TOPIC_FLAGS} or flag not in passed
        elif flag in passed and flag not in {"--yes", *OWN}:
            takes_value, is_own = passed[flag], False
        else:
            raise _unknown(flag, action, passed)
        if takes_value and not equals:
            if not words:
                raise UsageError(f"{flag} needs a value", f"see `kafka-mirrors {action} --help`")
            value = words.pop(0)
            require_value(flag, value, passed)
        if equals and not takes_value:
            raise UsageError(f"{flag} takes no value", f"write {flag} without a value")
        if is_own:
            own.setdefault(flag, []).append(value)
        else:
            rest += option(flag, value) if takes_value else [flag]
    return _checked(action, verb, own, rest)


def _checked(action: str, verb: str, own: Mapping[str, Sequence[str]], rest: Sequence[str]) -> Request:
    mirrors = [name.strip() for flag in MIRROR_FLAGS for value in own.get(flag, ()) for name in value.split(",")]
    topics = [value for flag in ("--topics", "--topic") for value in own.get(flag, ())]
    if _ALL_TOPICS in own:
        topics.append(".*")
    config_files = own.get(_CONFIG_FILE, ())
    is_of_link = verb == "create" and not {"--link", "--links"}.isdisjoint(own)
    config_flag = _FROM_LINK if is_of_link else _MIRROR_CONFIG
    # with topics the file has their configs, and is read by the caller
    rest = [*rest, *(word for file in config_files if verb != "add" for word in (config_flag, file))]
    # Kafka's --start also restarts a topic that exists already, if its log is a prefix of the source's
    if action in _STARTING and "--adopt" not in rest:
        rest.append("--adopt")
    mirror_topics = list(own.get("--mirror-topic", ()))
    if verb != "add":
        topics, mirror_topics = [*topics, *mirror_topics], []
    factors = own.get(_REPLICATION_FACTOR, ())
    request = Request(
        action,
        verb,
        tuple(dict.fromkeys(mirrors)),
        tuple(topics),
        tuple(mirror_topics),
        tuple(own.get(_SOURCE_TOPIC, ())),
        factors[-1] if factors else None,
        config_files[-1] if config_files and verb == "add" else None,
        tuple(rest),
    )
    _require(request)
    return request


def _require(request: Request) -> None:
    """Raise UsageError for anything missing or superfluous."""
    action, verb = request.action, request.verb
    named = [*request.topics, *request.mirror_topics, *request.source_topics]
    if "" in request.mirrors:
        raise UsageError("the mirror name is empty", "give --mirror M, or --link M")
    if len(request.mirrors) > 1 and verb in {"create", "add", "failback", "switchover"}:
        first, second = request.mirrors[:2]
        raise UsageError(f"{action} takes one mirror: {first} and {second} are given", "name one of them")
    if named and "--topics" not in options_of(verb):
        raise UsageError(f"{action} takes no topics", f"leave them out; see `kafka-mirrors {action} --help`")
    if verb == "add" and not named:
        raise UsageError(f"{action} needs --topics", "name topics of the source, or regular expressions")
    if verb == "remove" and not named:
        raise UsageError(f"{action} needs --topics", "name mirror topics, or regular expressions")
    if action == "--stop" and not named:
        raise UsageError("--stop needs --topics", "to stop the whole mirror give --failover --mirror M")
    if not request.mirrors and request.needs_mirror:
        if verb in {"create", "add", "delete", "failback"}:
            raise UsageError(f"{action} needs --mirror", "give --mirror M, or --link M")
        if not named:
            raise UsageError(f"{action} needs --mirror or --topics", "give one of them; --link M means --mirror M")
    has_config = request.value(_MIRROR_CONFIG) is not None or request.value(_FROM_LINK) is not None
    if verb in {"create", "failback", "switchover"} and not has_config:
        says = {
            "create": "FILE describes the source connection; to add topics to a mirror, name them with --topics",
            "failback": "FILE describes the connection to the new primary",
            "switchover": "FILE describes how the other side reaches this cluster",
        }
        raise UsageError(f"{action} needs --mirror-config FILE", says[verb])


def source_names(request: Request, prefix: str) -> tuple[str, ...]:
    """Return the source topics for `add`, from the mirror topics of a mirror with this topic.prefix.

    Raises:
        UsageError: --mirror-topic is not a plain name, or not paired with --source-topic.
        RefusedError: a mirror topic cannot have that name in this mirror.
    """
    if not request.mirror_topics:
        return (*request.topics, *request.source_topics)
    mirror_topics, sources = (
        _plain(request.mirror_topics, "--mirror-topic"),
        _plain(request.source_topics, _SOURCE_TOPIC),
    )
    if sources and len(sources) != len(mirror_topics):
        raise UsageError("--mirror-topic and --source-topic name different numbers of topics", "name them in pairs")
    for place, topic in enumerate(mirror_topics):
        wanted = f"{prefix}{sources[place]}" if sources else topic
        if topic != wanted or not topic.startswith(prefix) or topic == prefix:
            rule = f"start with {prefix}, this mirror's topic.prefix" if prefix else "equal its source topic's name"
            hint = f"name it {wanted}" if sources else f"name it {prefix}{topic}, or name source topics with --topics"
            raise RefusedError(
                f"mirror topic cannot be named {topic}: its name must {rule}",
                f"{hint}; topic.prefix is fixed when the mirror is created",
            )
    return (*request.topics, *(topic.removeprefix(prefix) for topic in mirror_topics))


def _plain(values: Sequence[str], flag: str) -> list[str]:
    names = [name.strip() for value in values for name in value.split(",")]
    for name in names:
        if not is_plain_name(name):
            raise UsageError(f"{flag}: {name!r} is not a topic name", "give regular expressions with --topics")
    return names


def check_replication_factor(request: Request, setting: int) -> None:
    """Refuse a replication factor that differs from the mirror's setting; it cannot be set per topic.

    Raises:
        UsageError: it is not a number.
        RefusedError: it differs.
    """
    wanted = request.replication_factor
    if wanted is None:
        return
    if not re.fullmatch("-1|[1-9][0-9]*", wanted):
        raise UsageError(f"--replication-factor: {wanted!r} is not a replication factor", "give 1 or more")
    if int(wanted) != setting:
        now = "the brokers' default" if setting == -1 else str(setting)
        raise RefusedError(
            f"--replication-factor {wanted} differs from the mirror's replication.factor, which is {now}",
            f"leave it out, or `{on_mirror('config', request.mirrors[0])} --set replication.factor={wanted}` first",
        )


def _unknown(flag: str, action: str, passed: Mapping[str, bool]) -> UsageError:
    here = {*(name for name in OWN if not OWN[name].actions or action in OWN[name].actions), *passed} - {"--yes"}
    if action == "--create" and flag == _MIRROR_CONFIG:
        return UsageError(
            "--mirror-config and topics exclude each other: one creates a mirror, the other mirror topics",
            "run two commands: first --create --mirror-config, then --create with topics",
        )
    see = f"see `kafka-mirrors {action} --help`"
    if flag in OWN or flag in _options_of_all():
        return UsageError(f"{flag} cannot be used with {action}", see)
    return UsageError(f"no such option {flag}", _suggestion(flag, here) or see)


def _options_of_all() -> set[str]:
    return {flag for verb, _ in ACTIONS.values() for flag in options_of(verb)} - {"--yes"}


def _suggestion(word: str, known: set[str]) -> str | None:
    """Return a hint for a mistyped word, None if there is none or it must not be suggested."""
    near = next(iter(get_close_matches(word, sorted(known), n=1)), None)
    if near is None or near in _NEVER_SUGGESTED:
        return None
    return _INSTEAD.get(near, f"did you mean {near}?")


# The sentences with which Kafka's own tools report success, for scripts that look for them: those of Apache Kafka's
# `kafka-cluster-mirrors.sh` (KIP-1279), and of Confluent's `kafka-mirrors` where only that has the action.

#: By action, with the topics' number and names.
_ON_TOPICS = {
    "--add": "Started {count} topic(s) in mirror {mirror}: {topics}",
    "--start": "Started {count} topic(s) in mirror {mirror}: {topics}",
    "--pause": "Paused {count} topic(s) in mirror {mirror}: {topics}",
    "--resume": "Resumed {count} topic(s) in mirror {mirror}: {topics}",
    "--unpause": "Resumed {count} topic(s) in mirror {mirror}: {topics}",
    "--recover": "Recovered {count} topic(s) in mirror {mirror}: {topics}",
    "--stop": "Stopped {topics} topic(s) in mirror {mirror}",
    "--remove": "Stopped {topics} topic(s) in mirror {mirror}",
}
#: By action, a line for each topic.
_PER_TOPIC = {
    "--create": "Created topic {topic}.",
    "--promote": "Request for stopping topic {topic}'s mirror was successfully scheduled.",
    "--failover": "Request for stopping topic {topic}'s mirror was successfully scheduled.",
}


def success_of(action: str, done: VerbResult) -> str | None:
    """Return what Kafka's tool says when an action has succeeded, None if it has no sentence for it."""
    names = sorted({row.topic for row in done.results if row.topic is not None})
    if done.verb == "create":
        return f"Created mirror {done.mirror}"
    if done.verb == "delete":
        return f"Deleted mirror {done.mirror}"
    if done.verb == "add" and not names:
        return f"No matching topics found yet. Patterns saved to mirror {done.mirror} for auto-discovery."
    if action in _ON_TOPICS:
        return _ON_TOPICS[action].format(count=len(names), mirror=done.mirror, topics=f"[{', '.join(names)}]")
    if action in _PER_TOPIC and names:
        return "\n".join(_PER_TOPIC[action].format(topic=name) for name in names)
    return None
