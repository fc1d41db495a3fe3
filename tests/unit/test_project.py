"""What the project says of itself in several places is the same: versions, supported Pythons, and make's targets."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from kmirror import __version__

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
#: `kmirror:0.1.0` and `kmirror-executor:0.1.0`, `newTag: 0.1.0`, `version="0.1.0"`, `v0.1.0`.
NAMED_VERSION = re.compile(r"(?:kmirror(?:-executor)?:|newTag: |version=\"|\bv)(\d+\.\d+\.\d+)\b")


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert version("kmirror") == __version__, "run make again: .venv has another version"
    files = [*(ROOT / "deploy").rglob("*"), *(ROOT / "docs").glob("*.md"), ROOT / "RELEASING.md"]
    named = {
        str(file.relative_to(ROOT)): set(NAMED_VERSION.findall(file.read_text(encoding="utf-8")))
        for file in files
        if file.is_file() and file.suffix != ".pyc"
    }
    found = {file: versions for file, versions in named.items() if versions}
    assert {"deploy/kubernetes/base/deployment.yaml", "docs/deploying.md", "RELEASING.md"} <= found.keys()
    assert {file: versions for file, versions in found.items() if versions != {__version__}} == {}


def test_the_changelog_begins_with_what_is_released_next_or_was_last() -> None:
    heading = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading
    assert heading[1] == "Unreleased" or heading[1].startswith(__version__)


def test_hosted_ci_runs_with_each_supported_python_and_java() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    check, test = (WORKFLOW["jobs"][name]["strategy"]["matrix"] for name in ("check", "test"))
    assert check["python"] == versions
    assert versions[0] == least
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {least} or later, Java {check['java'][0]} or later" in readme
    ends = [(least, check["java"][0]), (versions[-1], check["java"][-1])]
    assert [(row["python"], row["java"]) for row in test["include"]] == ends


def made(text: str) -> set[str]:
    """Return the targets of the `make` commands in a text."""
    return set(re.findall(r"(?:^|[`$ ])make ([a-z-]+)\b", text, re.MULTILINE))


@pytest.mark.parametrize("file", ["CONTRIBUTING.md", "RELEASING.md", ".ci/run", ".github/workflows/ci.yml"])
def test_make_knows_each_target_that_is_named(file: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = made((ROOT / file).read_text(encoding="utf-8"))
    assert named
    assert named - targets == set()


def test_hooks_before_a_commit_run_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [one["repo"] for one in hooks] == ["local"], "nothing is fetched"
    entries = [hook["entry"].replace(" --force-exclude", "") for one in hooks for hook in one["hooks"]]
    lint = re.search(r"^lint: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert lint
    assert entries == [line.replace("@$(BIN)", ".venv/bin").strip() for line in lint[1].splitlines()]
