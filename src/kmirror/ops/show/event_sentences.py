"""Events as sentences: who did what to which topics, with what result. Pure.

An event's details are what some version of kmirror stored, or another client wrote: any key may be absent or of another
type. Kinds that are not known here read well too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kmirror.errors import ExitCode
from kmirror.settings.durations import format_duration
from kmirror.state.event_records import Event
from kmirror.words import counted, listed, one_line

#: How many names a sentence has, and how many characters.
_NAMED, _LONGEST = 3, 400
#: What an exit code adds to the sentence about a command.
_ENDS = {
    ExitCode.UNEXPECTED.name: "it failed unexpectedly",
    ExitCode.USAGE.name: "it was refused",
    ExitCode.REFUSED.name: "it was refused",
    ExitCode.PARTLY_DONE.name: "only a part was done",
    ExitCode.TIMED_OUT.name: "it timed out",
    ExitCode.UNREACHABLE.name: "a cluster did not answer",
    ExitCode.HISTORIES_DIFFER.name: "the histories differ",
}


@dataclass(frozen=True, slots=True)
class _Facts:
    """An event, and its details in words; what is absent, or of another type, is the text `default`."""

    event: Event

    @property
    def actor(self) -> str:
        return one_line(self.event.actor)

    @property
    def mirror(self) -> str:
        return one_line(self.event.mirror)

    @property
    def message(self) -> str:
        """What the event itself says, with the colon before it."""
        return self.after(": ", "message")

    @property
    def partition(self) -> str:
        return f"{self.text('topic', 'a topic')}-{self.text('partition', '?')}"

    def raw(self, key: str) -> Any:
        return self.event.details.get(key) if isinstance(self.event.details, Mapping) else None

    def text(self, key: str, default: str = "") -> str:
        found = self.raw(key)
        return default if found is None or found == "" or isinstance(found, list | dict) else one_line(str(found))

    def after(self, words: str, key: str) -> str:
        """Return a detail after these words; nothing if it is absent."""
        found = self.text(key)
        return f"{words}{found}" if found else ""

    def count(self, key: str) -> int | None:
        found = self.raw(key)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def number(self, key: str, noun: str) -> str:
        found = self.count(key)
        return f"an unknown number of {noun}s" if found is None else counted(found, noun)

    def duration(self, key: str) -> str:
        found = self.count(key)
        if found is None or found < 0:
            return "an unknown time"
        return format_duration(found // 1000 * 1000) if found >= 1000 else "less than 1s"

    def names(self, key: str) -> list[str]:
        found = self.raw(key)
        return [str(one) for one in found] if isinstance(found, list) else []

    def named(self, noun: str, key: str) -> str:
        """Return `topic a` or `120 topics: a, b, c and 117 more`."""
        names = self.names(key)
        count = max(self.count("count") or 0, len(names))
        if not names:
            return counted(count, noun)
        if count == 1:
            return f"{noun} {listed(names)}"
        more = count - min(len(names), _NAMED)
        return f"{counted(count, noun)}: {listed(names[:_NAMED])}{f' and {more:,} more' if more else ''}"

    def did(self, what: str) -> str:
        """Return that the actor did this; with the result, unless all was done."""
        end = _ENDS.get(self.event.result, "" if self.event.result == "OK" else self.event.result)
        return f"{self.actor} {what}{f' ({one_line(end)})' if end else ''}"

    def joined(self, key: str) -> str:
        """Return a list of texts, or an object as `key=value`, after a colon."""
        found = self.raw(key)
        parts = [f"{k}={v}" for k, v in found.items()] if isinstance(found, dict) else self.names(key)
        return f": {'; '.join(map(one_line, parts))}" if parts else ""


_Say = Callable[[_Facts], str]


def sentence(event: Event) -> str:
    """Return one sentence about an event, on one line, without its time and a full stop."""
    say = _SENTENCES.get((event.what, event.result)) or _COMMANDS.get(event.what) or _unknown
    text = one_line(say(_Facts(event)))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def is_known(what: str, result: str) -> bool:
    """Return whether there is a sentence of its own for these events."""
    return (what, result) in _SENTENCES or what in _COMMANDS


def _unknown(facts: _Facts) -> str:
    event = facts.event
    return f"{facts.actor}: {one_line(event.what)} {one_line(event.result)}{_topic(facts)}{facts.message}"


def _topic(facts: _Facts) -> str:
    if (topic := facts.text("topic")) and facts.text("partition"):
        return f" of {facts.partition}"
    return f" of {topic}" if topic else f" of {facts.named('topic', 'topics')}" if facts.names("topics") else ""


def _create(facts: _Facts) -> str:
    settings = facts.raw("settings")
    how = f", with {counted(len(settings), 'setting')}" if isinstance(settings, dict) and settings else ""
    return facts.did(f"created mirror {facts.mirror}{facts.after(' of cluster ', 'sourceClusterId')}{how}")


def _add(facts: _Facts) -> str:
    if facts.names("topics") or facts.count("count"):
        return facts.did(f"added {facts.named('topic', 'topics')}")
    return facts.did(f"changed which topics are mirrored{facts.after(': ', 'filters')}")


def _of_all(verb: str) -> _Say:
    def say(facts: _Facts) -> str:
        return facts.did(f"{verb} {'the mirror' if facts.raw('all') is True else facts.named('topic', 'topics')}")

    return say


def _delete(facts: _Facts) -> str:
    kept = counted(facts.count("count") or 0, "topic")
    return facts.did(f"deleted mirror {facts.mirror}; its {kept} {'is' if kept == '1 topic' else 'are'} kept")


def _recovered(facts: _Facts) -> str:
    results = facts.raw("results")
    parts = [f"{number} {name}" for name, number in results.items()] if isinstance(results, dict) else []
    end = _ENDS.get(facts.event.result)
    text = f"the engine answered the request of {facts.actor} to recover: {', '.join(parts) or facts.event.result}"
    return f"{text} ({end})" if end else text


def _requested(facts: _Facts) -> str:
    accepted = facts.raw("accepted")
    lost = ", and accepted to continue without records that the source lost" if accepted else ""
    rebuilt = facts.names("rebuilds")
    rebuild = f", and accepted that {listed(rebuilt)} {'is' if len(rebuilt) == 1 else 'are'} rebuilt" if rebuilt else ""
    return f"{facts.actor} requested that {facts.named('partition', 'partitions')} be copied again{lost}{rebuild}"


def _settings(facts: _Facts) -> str:
    done = facts.raw("set")
    parts = [f"{key}={value}" for key, value in done.items()] if isinstance(done, dict) else []
    parts += [f"{key} removed" for key in facts.names("removed")]
    deferred = facts.raw("heldBack")
    if isinstance(deferred, dict) and deferred:
        parts.append(f"deferred until the stop: {', '.join(map(str, deferred))}")
    return f"settings of {facts.text('topic', 'a topic')} synced from its source: {', '.join(parts) or 'none'}"


def _loss_accepted(facts: _Facts) -> str:
    lost, until = facts.number("records", "offset"), facts.count("until")
    where = f": {facts.text('from', '?')} to {until - 1}" if until is not None else ""
    return f"{facts.partition} continues without {lost} that its source had lost{where}"


def _truncated(facts: _Facts) -> str:
    until = facts.count("until")
    where = f"the offsets {facts.text('from', '?')} to {until - 1}" if until is not None else "records"
    return f"{facts.partition} lost {where} at the destination; they are copied again from the source"


def _group(what: str) -> _Say:
    def say(facts: _Facts) -> str:
        return what.format(facts.named("group", "groups"), facts.text("reason", "unknown reason"))

    return say


def _said(facts: _Facts) -> str:
    return facts.text("message") or _unknown(facts)


def _stopped(verb: str) -> _Say:
    return lambda facts: facts.did(f"{verb} {facts.named('topic', 'topics')}; writable now")


def _fact(words: str, *keys: str) -> _Say:
    """Return a sentence with details at its places; one that is absent becomes a question mark."""
    return lambda facts: words.format(
        *(facts.text(key, "?") for key in keys), partition=facts.partition, actor=facts.actor, mirror=facts.mirror
    )


def _with_message(words: str, *keys: str) -> _Say:
    return lambda facts: _fact(words, *keys)(facts) + facts.message


def _archived(words: str, *, before: str = "", after: str = "") -> _Say:
    """Return a sentence about records of a topic and their archive, if there is one: also how long it keeps them."""

    def say(facts: _Facts) -> str:
        topic, archive = facts.text("topic", "?"), facts.text("archive")
        if not archive:
            return f"{before}no records of {topic} are archived{after}"
        kept = f", which keeps them for {facts.duration('retentionMs')}" if facts.raw("retentionMs") is not None else ""
        saved = words.format(archive, topic=topic, records=facts.number("records", "record"))
        return f"{before}{saved}{kept}{after}"

    return say


#: Sentences about commands, whatever their result is.
_COMMANDS: Mapping[str, _Say] = {
    "create": _create,
    "add": _add,
    "config": lambda facts: facts.did(f"changed the mirror{facts.joined('changed')}"),
    "pause": _of_all("paused"),
    "resume": _of_all("resumed"),
    "delete": _delete,
    "remove": _stopped("removed from the mirror"),
    "failover": _stopped("failed over"),
    "promote": _stopped("promoted"),
    "recover": _recovered,
    "append": lambda facts: facts.did(f"appended records to {facts.named('partition', 'partitions')}"),
    "failback": lambda facts: facts.did("prepared the old source to mirror the new primary (failback)"),
    "switchover": lambda facts: facts.did("switched over: the clusters have changed their roles"),
    # of the engine's background requests: what is not added, and why, by topic
    "discovery": _with_message("source topic {0} is not mirrored", "sourceTopic"),
    "rights": _said,
}
_SENTENCES: Mapping[tuple[str, str], _Say] = {
    ("promote", "WAITING"): lambda f: f"{f.actor} waits to promote {f.named('topic', 'topics')} until fully copied",
    ("promote", "GIVEN_BACK"): lambda f: (
        f"{f.actor} gave up promoting {f.named('topic', 'topics')}: mirrored as before"
    ),
    ("recover", "REQUESTED"): _requested,
    ("discovery", "ADDED"): lambda f: f"the engine began to mirror {f.named('new source topic', 'topics')}",
    ("discovery", "UNKNOWN"): lambda f: (
        f"whether mirroring {f.named('source topic', 'sourceTopics')} makes a loop is unknown{f.message}"
    ),
    ("discovery", "RECREATING"): lambda f: f"{f.named('source topic', 'sourceTopics')} {f.message.removeprefix(': ')}",
    ("rebuild", "BEGUN"): _fact(
        "{actor} began to rebuild {0} ({1}); its records go to {2}", "topic", "reason", "archive"
    ),
    ("rebuild", "ARCHIVED"): _archived("the records of {topic} are archived in {0}", after="; the rebuild continues"),
    ("rebuild", "OK"): _fact("{actor} rebuilt {0} ({1}): it is copied again from its source", "topic", "reason"),
    ("block-producers", "BLOCKED"): lambda f: (
        f"{f.actor} denied producers WRITE on the source for {f.named('topic', 'topics')}"
    ),
    ("block-producers", "UNBLOCKED"): lambda f: (
        f"{f.actor} let producers WRITE on the source again for {f.named('topic', 'topics')}"
    ),
    ("settings", "CHANGED"): _settings,
    ("settings", "FAILED"): _with_message("the settings of {0} cannot be synced from its source", "topic"),
    ("groups", "DROPPED"): _group("committed offsets of {0} deleted here: the source has them no longer"),
    ("groups", "NOT_DROPPED"): _group(
        "committed offsets of {0} could not be deleted here, although the source has them no longer"
    ),
    ("groups", "SKIPPED"): _group("committed offsets of {0} are not synced: {1}"),
    ("groups", "METADATA_REFUSED"): _group("committed offsets of {0} are synced without their metadata: {1}"),
    ("partitions", "added"): _fact("{0} has {1} partitions now, as its source", "topic", "partitions"),
    ("partitions", "refused"): _with_message("{0} lacks partitions of its source", "topic"),
    ("failback", "BEGUN"): lambda f: f"{f.actor} began the failback of {counted(f.count('count') or 0, 'topic')}",
    ("failback", "RESUMED"): lambda f: f"{f.actor} resumed the failback of {counted(f.count('count') or 0, 'topic')}",
    ("failback", "PLANNED"): _fact("{actor} planned the cuts for the failback; truncate-logs carries them out"),
    ("failback", "MIRROR"): _fact("{actor} created mirror {mirror} of cluster {0} for the failback", "sourceClusterId"),
    ("failback", "ARCHIVE"): _archived("archiving what only {topic} has, in {0}", before="failback: "),
    ("failback", "SAVED"): _archived("{records} that only {topic} has are archived in {0}", before="failback: "),
    ("failback", "CREATE"): _fact("failback: {0} was deleted and is created again", "topic"),
    ("failback", "DIFFERS"): _fact("failback: a full comparison of {0} found more differences", "topic"),
    ("switchover", "PROMOTE"): _fact("{actor} began the switchover: the topics are promoted first"),
    ("switchover", "RETURN"): _fact("switchover: the topics are writable here; the way back is set up"),
    ("run", "started"): _fact("{actor} started an engine ({0})", "master"),
    ("run", "stopped"): _fact("{actor} stopped the engine"),
    ("source", "LINK_FAILED"): _with_message("the source cannot be mirrored"),
    ("source", "SOURCE_UNAVAILABLE"): _with_message("the source does not answer"),
    ("source", "ANSWERS_AGAIN"): _fact("the source answers again"),
    ("source", "CHANGED"): lambda f: f"the source is reached in another way{f.joined('changes')}",
    ("source", "LOGIN_RENEWED"): _fact("the source accepts the current login: lanes log in again"),
    ("workers", "NO_WORKERS"): lambda f: (
        f"nothing is copied: no worker reports for {f.named('lane', 'lanes')}{f.after(' on ', 'master')}"
    ),
    ("workers", "REPORT_AGAIN"): _fact("all lanes report again"),
    ("lane", "MOVED"): _fact("lane {0} moved from {1} to {2}", "lane", "from", "to"),
    ("lane", "GIVEN_MORE"): lambda f: f"{f.number('partitions', 'partition')} moved to lane {f.text('lane', '?')}",
    ("lane", "replaced"): _fact("lane {0} was replaced by its generation {1}", "lane", "generation"),
    ("lane", "died"): lambda f: f"lane {f.text('lane', '?')} died{f.after(': ', 'error')}",
    ("offsets", "FILLED_BY_TRANSACTIONS"): _fact(
        "lane {0} fills offsets by empty transactions, which is slower: {1} is missing", "lane", "missing"
    ),
    ("partition", "FAILED"): lambda f: f"{f.partition} FAILED{f.after(' ', 'reason')}{f.message}",
    ("partition", "RESUMED"): lambda f: f"{f.partition} resumed copying{f.after('; it was FAILED ', 'reason')}",
    ("partition", "ALIGNED"): _fact("{partition} begins at offset {0}", "offset"),
    ("partition", "LOSS_ACCEPTED"): _loss_accepted,
    ("partition", "DESTINATION_TRUNCATED"): _truncated,
    ("objective", "BREACHED"): lambda f: (
        f"{f.text('topic', 'a topic')} breached its objective of {f.duration('objectiveMs')}"
        f"{f.after(', cause ', 'cause')}{f.message}"
    ),
    ("objective", "MET"): lambda f: (
        f"{f.text('topic', 'a topic')} meets its objective again, after {f.duration('lastedMs')}"
    ),
    ("standby", "RECORDED"): lambda f: (
        f"{f.actor} recorded here that cluster {f.text('clusterId', '?')} may take over {f.number('count', 'topic')}"
    ),
    ("events", "DROPPED"): lambda f: (
        f"{f.number('events', 'event')} not stored, because the destination took none for too long"
    ),
    ("unreadable", "UNREADABLE"): lambda f: f"an event that this kmirror cannot read{f.after(': ', 'problem')}",
}
