"""The commands of a plan, wave by wave, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kmirror.commands import Arguments, command_line, option, options
from kmirror.settings.parsing import is_setting, parse_settings, setting_of, split
from kmirror.words import at_time, byte_count, counted, visible
from kmirror_plan.migration_plan import MigrationPlan
from kmirror_plan.waves import Wave, duration_text


def wave_file(wave: Wave) -> str:
    """Return the name of the file with a wave's topics."""
    return f"wave-{wave.number:02}.topics"


def copies_file(wave: Wave) -> str:
    """Return the name of the file with the names of a wave's topics at the destination, if they have a prefix there."""
    return f"wave-{wave.number:02}-copies.topics"


def wave_files(plan: MigrationPlan) -> dict[str, str]:
    """Return the content of these files by name, for `--topics @FILE`: each line is the exact name of a topic."""
    prefix = parse_settings(split(plan.mirror_config)[1]).topic_prefix
    files = {wave_file(wave): _listed(wave.topics) for wave in plan.waves}
    if prefix:
        files |= {copies_file(wave): _listed(prefix + topic for topic in wave.topics) for wave in plan.waves}
    return files


def _listed(topics: Iterable[str]) -> str:
    return "".join(f"{topic}\n" for topic in topics)


def runbook(plan: MigrationPlan, mirror: str, source: Arguments, destination: Arguments) -> str:
    """Return the runbook; `source` are the options of `create` that name it, `destination` those that name that."""
    return "\n".join(_lines(plan, mirror, source, destination)) + "\n"


def _lines(plan: MigrationPlan, mirror: str, source: Arguments, destination: Arguments) -> Iterator[str]:
    settings = parse_settings(split(plan.mirror_config)[1])
    # topics that a filter names would all be copied at once
    names = {"topics_include": "", "auto_create_mirror_topics_enable": "false", "auto_create_mirror_topics_filters": ""}
    filters = [(key, setting_of(key).attribute) for key in sorted(plan.mirror_config) if is_setting(key)]
    by_wave = [f"{key}={names[attribute]}" for key, attribute in filters if attribute in names]

    def on(verb: str, *more: str) -> str:
        return command_line("kmirror", verb, *option("--mirror", mirror), *more, *destination)

    yield f"# Migration of {counted(len(plan.topics), 'topic')} in {counted(len(plan.waves), 'wave')}"
    yield ""
    yield f"Made {at_time(plan.made_ms)} by `kmirror plan`. Source {visible(plan.inventory.cluster_id)}, destination"
    yield f"{visible(plan.room.cluster_id)}. Run the commands in this folder. What has changed since the plan was made:"
    yield ""
    yield from _block(command_line("kmirror", "plan", "--against", ".", *destination))
    for heading, sentences in _worries(plan):
        yield f"## {heading}"
        yield ""
        for sentence in sentences:
            yield f"- {sentence}"
        yield ""
    yield "## Once"
    yield ""
    yield from _block(on("create", *source, *options("--config", by_wave)), on("check"))
    yield "Start an engine, beside the destination, and leave it running until the last wave has moved:"
    yield ""
    yield from _block(on("run"))
    for wave in plan.waves:
        yield f"## Wave {wave.number}: {counted(len(wave.applications), 'application')}"
        yield ""
        yield f"{', '.join(map(visible, wave.applications))}: {_size_of(wave)}."
        yield ""
        yield "Copy, and compare:"
        yield ""
        topics = ("--topics", f"@{copies_file(wave) if settings.topic_prefix else wave_file(wave)}")
        yield from _block(
            on("add", "--topics", f"@{wave_file(wave)}"),
            on("wait", *topics, "--for", "caught-up", "--timeout", _patience(wave)),
            on("verify", *topics),
        )
        yield "Stop the producers of these applications. Then stop mirroring, and start all clients at the destination:"
        yield ""
        yield from _block(
            on("promote", *topics, "--timeout", "30m", "--together", "--report", f"wave-{wave.number:02}.json")
        )
    yield "## Last"
    yield ""
    yield "When no client uses the source any more:"
    yield ""
    yield from _block(on("delete", "--dry-run"))


def _block(*commands: str) -> Iterator[str]:
    yield "```sh"
    yield from commands
    yield "```"
    yield ""


def _size_of(wave: Wave) -> str:
    size = "of unknown size" if wave.size is None else byte_count(wave.size)
    text = f"{counted(len(wave.topics), 'topic')}, {counted(wave.partitions, 'partition')}, {size}"
    if wave.never_catches_up:
        return f"{text}; **records are written at least as fast as they can be copied: this wave never catches up**"
    if wave.caught_up_seconds is not None:
        return f"{text}; predicted to be caught up {duration_text(wave.caught_up_seconds)} after `add`"
    return f"{text}; how long it takes is not known"


def _patience(wave: Wave) -> str:
    """Return how long to wait: three times as long as predicted, an hour at least; a day if nothing is."""
    predicted = wave.caught_up_seconds or wave.copy_seconds
    return duration_text(86_400.0 if predicted is None else max(3600.0, 3 * predicted))


def _worries(plan: MigrationPlan) -> Iterator[tuple[str, list[str]]]:
    """Yield what must be looked at first, under headings."""
    bad = [f"{line.what} ({line.cluster}): {visible(line.message)}" for line in plan.findings if not line.ok]
    bad += [f"{need.what}: {need.message}" for need in plan.needs if need.is_enough is False]
    if bad:
        yield "In the way", bad
    if plan.hubs:
        yield "Used by many applications", [visible(hub.reason) for hub in plan.hubs]
    if plan.inventory.unseen:
        yield "Not known", [f"{visible(one.what)}: {visible(one.why)}" for one in plan.inventory.unseen]
