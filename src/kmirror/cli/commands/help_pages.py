"""`help`: the pages of docs/, which are part of the wheel, and the help of commands; needs no network."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import CompletionItem

import kmirror
from kmirror.cli.options import Call, verb
from kmirror.errors import RefusedError, UsageError

_SHARED = Path("share", "doc", "kmirror")
#: A page that always exists.
_FIRST = "operating.md"


def pages_folder() -> Path:
    """Return the directory of the pages: of a checkout, or where pip installs them.

    Raises:
        RefusedError: they are not installed.
    """
    for folder in _folders():
        if (folder / _FIRST).is_file():
            return folder
    raise RefusedError("the documentation is not installed", "install kmirror's wheel with pip, which has it")


def titles(folder: Path) -> dict[str, str]:
    """Return the title of each page by its topic, such as `operating` or `runbooks/drill`."""
    found = {}
    for page in sorted(folder.rglob("*.md")):
        with page.open(encoding="utf-8") as lines:
            found[page.relative_to(folder).with_suffix("").as_posix()] = next(lines, "").strip("#` \n").replace("`", "")
    return found


def _folders() -> Iterator[Path]:
    package = Path(kmirror.__file__).parent
    if package.parent.name == "src":
        yield package.parent.parent / "docs"
    yield Path(sys.prefix) / _SHARED
    yield package.parent / _SHARED  # pip install --target
    yield Path(site.getuserbase()) / _SHARED


def _offered(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from kmirror.cli.verbs import VERBS

    try:
        pages = titles(pages_folder())
    except RefusedError:
        pages = {}
    offers = {**pages, **{name: summary for name, (_, summary) in VERBS.items()}}
    return [CompletionItem(name, help=text) for name, text in offers.items() if name.startswith(incomplete)]


@verb(
    "help",
    "Show a page of the documentation, or the help of a command.\n\nWithout TOPIC it lists the pages. No network is"
    " needed.",
    click.Argument(["topic"], required=False, shell_complete=_offered),
    examples=("kmirror help", "kmirror help troubleshooting", "kmirror help promote"),
    destination=False,
    documents=False,
)
def help_verb(call: Call, topic: str | None) -> int:
    from kmirror.cli.verbs import VERBS, kmirror

    screen = call.output.screen
    command = kmirror.get_command(click.Context(kmirror), topic) if topic in VERBS else None
    if topic is not None and command is not None:
        context = click.Context(command, info_name=f"kmirror {topic}", help_option_names=["-h", "--help"])
        screen.line(command.get_help(context))
        return 0
    folder = pages_folder()
    known = titles(folder)
    if topic is None:
        width = max(map(len, known))
        for name, title in known.items():
            screen.line(f"{name.ljust(width)}  {title}")
        return 0
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name not in known:
        near = get_close_matches(name, [*known, *VERBS], n=1)
        raise UsageError(f"no such topic {topic}", f"did you mean {near[0]}?" if near else "`kmirror help` lists them")
    text = (folder / f"{name}.md").read_text(encoding="utf-8")
    if screen.is_terminal:
        from rich.markdown import Markdown

        screen.console().print(Markdown(text))
    else:
        screen.line(text.rstrip("\n"))
    return 0
