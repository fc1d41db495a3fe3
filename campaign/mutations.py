"""Break the product on purpose and see a test fail: `python -m campaign.mutations`, or with words of a mutant's name.

Works in a copy of the tree: applies a mutant, checks that Python imports the changed code, and runs the mutant's tests,
the narrowest first, until one fails; then reverts the mutant, after which the same test must pass. Writes what caught
each mutant to docs/results/mutations.json, and from that the table of docs/mutations.md.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.mutants import MUTANTS, Mutant
from campaign.places import StaleError, changed

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "docs" / "results" / "mutations.json"
PAGE = REPOSITORY / "docs" / "mutations.md"
BEGIN = "<!-- written by: python -m campaign.mutations -->\n"
END = "<!-- end -->\n"
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "site", "build", "*.egg-info", ".*_cache")
_TEST_SECONDS = 120
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)


def mutated(mutant: Mutant, tree: Path) -> str:
    """Return the text of a mutant's module in a copy of the repository, with the mutant in it.

    Raises:
        StaleError: its module, its function or its place there is missing, or its place is not unique.
    """
    product = tree / "src" / "kmirror"
    try:
        return changed((product / mutant.file).read_text(encoding="utf-8"), mutant.function, mutant.old, mutant.new)
    except (FileNotFoundError, StaleError) as error:
        name = mutant.function.rpartition(".")[2]
        named = [one for one in product.rglob("*.py") if re.search(rf"\b{name}\b", one.read_text(encoding="utf-8"))]
        where = ", ".join(sorted(str(one.relative_to(product)) for one in named)) or "nowhere"
        raise StaleError(f"{mutant.name}: {mutant.file}: {error}; the name {name} occurs in: {where}") from None


def digest(mutant: Mutant) -> str:
    """Return a digest of what a mutant changes, so that an old result never counts for a changed mutant."""
    return hashlib.sha256(repr((mutant.function, mutant.old, mutant.new)).encode()).hexdigest()[:12]


class Tree:
    """A copy of the repository in which the product may be broken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "kmirror"
        shutil.copytree(REPOSITORY, self._folder, ignore=_LEFT_OUT, symlinks=True)
        path = os.pathsep.join((str(self._folder / "src"), str(self._folder)))
        self._environment = {**os.environ, "PYTHONPATH": path}
        #: Tests known to pass without a mutant.
        self._passed: set[str] = set()

    def catcher(self, mutant: Mutant) -> str | None:
        """Return the test that fails with this mutant, None where none does.

        Raises:
            StaleError: the mutant does not fit, or that test also fails without it.
        """
        file = self._folder / "src" / "kmirror" / mutant.file
        broken, text = mutated(mutant, self._folder), file.read_text(encoding="utf-8")
        self._write(file, broken)
        try:
            self._require_imported(file)
            found = ((test, caught) for test in mutant.tests if (caught := self._failure(test)))
            test, caught = next(found, (None, None))
        finally:
            self._write(file, text)
        if test is not None and test not in self._passed:
            code, output = self._run(test)
            if code:
                raise StaleError(f"{mutant.name}: {test} fails without it too ({code}):\n{output[-2000:]}")
            self._passed.add(test)
        return caught

    def _write(self, file: Path, text: str) -> None:
        """Write a module and remove its cached bytecode."""
        file.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def _require_imported(self, file: Path) -> None:
        name = ".".join(file.relative_to(self._folder / "src").with_suffix("").parts)
        code = f"import {name} as module; print(module.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or Path(done.stdout.strip()) != file:
            raise StaleError(f"the broken {name} cannot be imported: {done.stdout}{done.stderr[-500:]}")

    def _failure(self, test: str) -> str | None:
        code, output = self._run(test)
        if code not in (0, 1):
            raise StaleError(f"{test} could not be run ({code}):\n{output[-2000:]}")
        if not code:
            return None
        found = _FAILED.search(output)
        return found[1] if found else test

    def _run(self, test: str) -> tuple[int, str]:
        words = (sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "--tb=short", "-p", "no:cacheprovider")
        done = subprocess.run(
            [*words, f"--timeout={_TEST_SECONDS}", test],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


def is_caught(mutant: Mutant, results: Mapping[str, Any]) -> bool:
    """Return whether a test is known to catch the mutant in its current form."""
    known = results.get(mutant.name)
    return known is not None and known["digest"] == digest(mutant) and known["caught_by"] is not None


def table(results: Mapping[str, Any]) -> str:
    """Return the table of what caught each mutant."""
    lines = ["| what was broken | otherwise | caught by |", "|---|---|---|"]
    for mutant in MUTANTS:
        caught_by = "**nothing**"
        if is_caught(mutant, results):
            file, _, name = results[mutant.name]["caught_by"].partition("::")
            caught_by = f"`{file}`: {_sentence(name)}"
        lines.append(f"| {mutant.name} (`{mutant.file}`) | {mutant.why} | {caught_by} |")
    return "".join(line + "\n" for line in lines)


def _sentence(test: str) -> str:
    """Return a test's name as a sentence."""
    return test.partition("[")[0].rpartition("::")[2].removeprefix("test_").replace("_", " ")


def stored() -> dict[str, Any]:
    """Return the results of the last runs, by mutant."""
    if not RESULTS.exists():
        return {}
    return {row["name"]: row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["mutants"]}


def _write_page(results: Mapping[str, Any]) -> None:
    before, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(results) + END + after.partition(END)[2], encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants one by one; return 1 if one is not caught or does not fit."""
    parser = argparse.ArgumentParser(prog="python -m campaign.mutations", description="Break kmirror on purpose.")
    parser.add_argument("names", nargs="*", metavar="WORDS", help="only mutants with these words in their names")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="results file; keeps the results of mutants that do not run"
    )
    parser.add_argument("--missing", action="store_true", help="only mutants that no test is known to catch")
    parser.add_argument("--table", action="store_true", help="only write docs/mutations.md from the stored results")
    options = parser.parse_args(arguments)
    results = stored()
    if options.table:
        _write_page(results)
        return 0
    chosen = [one for one in MUTANTS if not options.names or any(words in one.name for words in options.names)]
    if options.missing:
        chosen = [one for one in chosen if not is_caught(one, results)]
    chosen.sort(key=lambda one: "unit" not in one.tests[0])
    missed = 0
    with tempfile.TemporaryDirectory(prefix="kmirror-mutants-") as name:
        tree = Tree(Path(name))
        for number, mutant in enumerate(chosen, 1):
            began = time.monotonic()
            try:
                caught = tree.catcher(mutant)
            except StaleError as error:
                print(error, file=sys.stderr, flush=True)
                missed += 1
                continue
            seconds = round(time.monotonic() - began, 1)
            missed += caught is None
            print(f"{number}/{len(chosen)}  {mutant.name}: {caught or 'NOT CAUGHT'}  ({seconds:g} s)", flush=True)
            results[mutant.name] = {
                "name": mutant.name,
                "file": mutant.file,
                "digest": digest(mutant),
                "why": mutant.why,
                "caught_by": caught,
                "seconds": seconds,
            }
            kept = [results[one.name] for one in MUTANTS if one.name in results]
            options.output.write_text(json.dumps({"mutants": kept}, indent=1) + "\n", encoding="utf-8")
    if options.output == RESULTS:
        _write_page(results)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
