"""The docs and the code say the same: settings, exit codes, reasons and states, and every kmirror command on a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bench import readme
from kmirror.cli.verbs import VERBS, kmirror
from kmirror.errors import ExitCode, Reason
from kmirror.settings.table import describe
from kmirror.state.records import PartitionState
from kmirror.status.topic_state import TopicState

DOCS = Path(__file__).parent.parent.parent / "docs"
ROOT = DOCS.parent
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
)
#: Modules on pages that are the reader's to write.
NOT_OURS = {
    "archives.md": {"restore.py"},
    "CONTRIBUTING.md": {"src/kmirror/ops/FAMILY/VERB.py", "src/kmirror/cli/commands/FAMILY.py"},
}
TROUBLESHOOTING = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")


def test_the_readme_says_what_was_measured() -> None:
    """`python -m bench --readme` writes it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.BEGIN + readme.stored_table() + readme.END in text


def settings_table() -> str:
    """Return the table of docs/settings.md as the settings themselves tell it."""
    lines = ["| setting | allowed | default | changeable | what it does |", "|---|---|---|---|---|"]
    for row in describe():
        names = f"`{row['key']}`" + "".join(f"<br>`{alias}`" for alias in row["aliases"].split(", ") if alias)
        allowed = row["allowed"].replace("|", "or")
        lines.append(f"| {names} | {allowed} | {row['default'] or '–'} | {row['changeable']} | {row['help']} |")
    return "\n".join(lines)


def section(title: str) -> str:
    """Return what is below a heading of docs/troubleshooting.md."""
    found = re.search(rf"^##+ {title}$(.*?)(?=^##|\Z)", TROUBLESHOOTING, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {title}"
    return found[1]


def states_in(title: str) -> Counter[str]:
    """Return the states that the table below a heading has rows of."""
    return Counter(re.findall(r"^\| `(\w+)` \|", section(title), re.MULTILINE))


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words behind `kmirror` wherever a page shows that command, in a block or within a line."""
    for shown in re.findall(r"^```[^\n]*\n.*?^```$|^ {4}\S.*?$|`[^`\n]+`", text, re.MULTILINE | re.DOTALL):
        for line in shown.strip("`").splitlines():
            for part in re.split(r"&&|\||;|>|#|\s<", line):
                if words := re.match(r"^(?:\s*\$ |\s*)kmirror(\s+.*)?$", part):
                    yield (words[1] or "").split()


def verb_named(words: list[str]) -> click.Command:
    """Return the command that these words begin with; `kmirror COMMAND` means any."""
    name = words[0] if words and not words[0].startswith("-") and words[0] not in {"COMMAND", "VERB"} else None
    if name is None:
        return kmirror
    found = kmirror.get_command(click.Context(kmirror), name)
    assert found is not None, f"there is no kmirror {name}"
    if isinstance(found, click.Group):
        return found.commands[words[1]]
    return found


def unknown_flags(words: list[str]) -> set[str]:
    """Return the flags among these words that their command does not have."""
    command = verb_named(words)
    # as the command line does it: click keeps the help option that it made first
    context = click.Context(command, help_option_names=["-h", "--help"])
    known = {flag for option in command.get_params(context) for flag in option.opts}
    return {word.partition("=")[0].strip("[]") for word in words if re.match(r"\[?--[a-z]", word)} - known


def test_every_setting_is_documented_as_it_is() -> None:
    assert settings_table() in (DOCS / "settings.md").read_text()


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "commands.md").read_text()
    assert [code for code in ExitCode if f"| {int(code)} |" not in text] == []


def test_every_reason_has_its_section_and_every_section_a_reason() -> None:
    assert Counter(re.findall(r"^### (\S+)$", TROUBLESHOOTING, re.MULTILINE)) == Counter(map(str, Reason))


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_says_whether_it_is_retried_and_what_to_type(reason: Reason) -> None:
    text = section(reason)
    assert re.search(r"\bRetried:\s", text)
    assert re.search(r"^\$ k(mirror|afka-\w+)", text, re.MULTILINE)


def test_every_state_has_its_row_and_every_row_a_state() -> None:
    assert states_in("Topic states") == Counter(map(str, TopicState))
    assert states_in("Partition states") == Counter(map(str, PartitionState))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_is_one(page: Path) -> None:
    wrong = {" ".join(words): flags for words in commands_in(page.read_text()) if (flags := unknown_flags(words))}
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_wait_for_the_new_cluster_to_be_in_charge_only_after_a_stop_that_succeeded(page: Path) -> None:
    """Otherwise the old one may be, and `in-charge` ends with 0 for that, too."""
    *before, _ = page.read_text().split("until kmirror in-charge")
    assert [part[-60:] for part in before if not re.search(r"kmirror (promote|failover) [^\n]*&&\n\s*$", part)] == []


def test_commands_are_found_and_wrong_ones_reported() -> None:
    page = "`kmirror list`\n```console\n$ kmirror wait --mirror M --until ok | cat   # so\n```\n    kmirror nonsense\n"
    listing, waiting, nonsense = commands_in(page)
    assert unknown_flags(listing) == set()
    assert unknown_flags(waiting) == {"--until"}
    with pytest.raises(AssertionError, match="no kmirror nonsense"):
        unknown_flags(nonsense)


def test_links_between_pages_lead_somewhere() -> None:
    assert [(page.name, broken) for page in PAGES for broken in broken_links(page, page.read_text())] == []


def broken_links(page: Path, text: str) -> list[str]:
    """Return the links of a page's text to files or headings that are not there."""
    links = re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)", text)
    return [f"{target}#{anchor}" for target, anchor in links if not leads(page.parent / target or page, anchor, page)]


def leads(file: Path, anchor: str, page: Path) -> bool:
    """Return whether a file exists and, if it is a page, has the anchor; a link without a file is one within `page`."""
    file = page if file == page.parent else file
    return file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors_of(file))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_broken_links_are_found_and_comments_in_code_are_no_headings() -> None:
    page = DOCS / "distance.md"
    text = "[a](limits.md#what-it-does-not-do) [b](limits.md#nothing) [c](none.md) [d](#what-to-set) [e](#nothing)"
    assert broken_links(page, text) == ["limits.md#nothing", "none.md#", "#nothing"]
    assert "# at the engine's hosts" in page.read_text()
    assert not any("at-the-engines-hosts" in anchor for anchor in anchors_of(page))


#: Folders whose files name pages, in messages, alerts, comments, help and generators.
NAMING = ("src", "deploy", "tests/support", "bench", "campaign", "completions")


def pages_named(text: str) -> set[tuple[str, str]]:
    """Return the pages that a text names, such as `docs/groups.md`, each with the anchor behind it."""
    return set(re.findall(r"(?<![\w./$}-])((?:[\w-]+/)*[\w-]+\.md)\b(?:#([\w-]+))?", text))


def test_pages_that_code_and_deployments_name_are_there() -> None:
    files = [file for folder in NAMING for file in (ROOT / folder).rglob("*") if file.is_file()]
    texts = {file: file.read_text(errors="ignore") for file in files if "__pycache__" not in file.parts}
    named = {(file.name, *one) for file, text in texts.items() for one in pages_named(text)}
    assert len(named) > 30
    assert [one for one in named if not any(leads(place / one[1], one[2], ROOT) for place in (ROOT, DOCS))] == []


def test_every_alert_leads_to_a_section() -> None:
    urls = re.findall(r"runbook_url: (\S+)", (ROOT / "deploy/prometheus/rules.yml").read_text())
    assert urls
    assert [url for url in urls if not leads(ROOT / url.partition("#")[0], url.partition("#")[2], ROOT)] == []


@pytest.mark.parametrize("name", ["kmirror@.service", "kmirror-rehearse@.service"])
def test_a_unit_names_a_page_where_the_wheel_installs_it(name: str) -> None:
    unit = (ROOT / "deploy/systemd" / name).read_text()
    (page,) = re.findall(r"^Documentation=file:/opt/kmirror/share/doc/kmirror/(\S+)$", unit, re.MULTILINE)
    assert (DOCS / page).is_file()


def test_topics_of_help_on_pages_are_there() -> None:
    topics = {name for page in PAGES for name in re.findall(r"`kmirror help ([a-z][\w/-]*)`", page.read_text())}
    assert topics
    assert {name for name in topics if not (DOCS / f"{name}.md").is_file()} <= set(VERBS)


def missing_modules(text: str) -> set[str]:
    """Return the modules named in a text of which there is none: below src/kmirror, src or the folder of all."""
    named = set(re.findall(r"(?<![\w./-])[\w/-]+\.py\b", text))
    return {name for name in named if not any((ROOT / folder / name).exists() for folder in ("src/kmirror", "src", ""))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_on_a_page_is_there(page: Path) -> None:
    assert missing_modules(page.read_text(encoding="utf-8")) == NOT_OURS.get(page.name, set())


def test_a_module_that_is_named_without_its_room_is_missing() -> None:
    assert missing_modules("`lane.py`, `engine/lane/lane.py` and `tests/unit/test_docs.py`") == {"lane.py"}


def rooms() -> set[str]:
    """Return the folders of src/kmirror, the modules beside them, and the packages beside the core."""
    package = ROOT / "src" / "kmirror"
    folders = {str(init.parent.relative_to(package)) for init in package.glob("*/**/__init__.py")}
    beside = package.parent.glob("kmirror_*/**/__init__.py")
    folders |= {str(init.parent.relative_to(package.parent)) for init in beside}
    return folders | {module.name for module in package.glob("*.py") if not module.name.startswith("__")}


def test_the_table_of_rooms_has_them_all() -> None:
    table = "".join(re.findall(r"^\| (.*?) \|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {name.rstrip("/") for name in re.findall("`([^`]+)`", table)} == rooms()


def named_in(nav: Any) -> Iterator[str]:
    """Yield the pages that a part of mkdocs.yml's nav names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from named_in(part)


def test_the_site_names_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named_in(nav)) == sorted(["index.md", *pages])


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors are looked at, those of README.md too."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="operating/' in first
    assert 'href="https://github.com/kmirror/kmirror/blob/main/CONTRIBUTING.md' in first


def test_every_verb_is_in_some_page() -> None:
    named = {words[0] for page in PAGES for words in commands_in(page.read_text()) if words}
    assert set(VERBS) <= named
