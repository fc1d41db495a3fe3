"""`report`: an HTML page about a mirror, to send or to keep."""

from __future__ import annotations

import click

from kmirror.beside import beside
from kmirror.cli.commands.evidence_files import AtomicFile
from kmirror.cli.options import Call, folder_option, mirror_option, verb
from kmirror.words import byte_count

_FLAG = "--html"
#: A page names its generator within this many bytes.
_HEAD_BYTES = 2_000


@verb(
    "report",
    "Write an HTML report about a mirror.\n\nIt has a summary, lag and rates of the last two days, topics, stops with"
    " their losses, archives and events, all in one file. Works with the source down and without a running engine."
    " Overwrites an earlier report, but no other file.",
    mirror_option(),
    click.Option(["--html"], metavar="FILE", required=True, help="File to write the page to; - is standard output."),
    folder_option("--plan", text="Directory of a plan: show beside it how long its waves took."),
    examples=(
        "kmirror report --mirror dr --html dr.html --bootstrap-server b:9092",
        "kmirror report --mirror dr --html - --bootstrap-server b:9092",
    ),
)
def report_verb(call: Call, mirror: str, html: str, plan: str | None) -> int:
    from kmirror.ops.base.results import VerbResult
    from kmirror.ops.base.topic_results import Outcome, TopicResult
    from kmirror.web.look import GENERATOR
    from kmirror.web.report_facts import report_facts
    from kmirror.web.report_page import page

    file = None if html == "-" else AtomicFile.at(html, _FLAG, "the report")
    if file is not None:
        file.require_own(_FLAG, "a kmirror report", _HEAD_BYTES, lambda head: GENERATOR.encode() in head)
    planned = beside("plan_in")(plan, "--plan") if plan else None
    with call.destination() as destination:
        facts = report_facts(destination, mirror)
    tables = [beside("plan_outcomes")(planned, facts.topics, facts.status.partitions)] if planned else []
    text = page(facts, tables)
    if file is None:
        call.output.screen.line(text.rstrip("\n"))
        return 0
    file.write(text)
    wrote = f"wrote {file.path} ({byte_count(len(text.encode()))})"
    return call.show(VerbResult.of("report", mirror, [TopicResult(None, None, Outcome.DONE, wrote)]))
