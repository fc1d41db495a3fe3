"""The tree of src: few modules in a room, few lines in a module, no name used twice.

What breaks a rule is listed here, and what no longer breaks it must be removed from the list.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from kmirror.beside import USED, beside

SRC = Path(__file__).parent.parent.parent / "src"
MOST_MODULES, MOST_LINES = 25, 500

SHARED_MODULE_NAMES = {"facts", "steps", "work"}
SHARED_CLASS_NAMES = {"Report"}


def modules() -> list[Path]:
    """Return the modules of all packages, without those that every package has."""
    found = [path for path in SRC.rglob("*.py") if not path.name.startswith("__")]
    assert len(found) > 300
    return found


def shared(places: Iterable[tuple[str, Path]]) -> Mapping[str, list[str]]:
    """Return the names that several places have."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, place in places:
        found[name].append(str(place.relative_to(SRC)))
    return {name: sorted(named) for name, named in found.items() if len(named) > 1}


def test_a_room_has_few_modules() -> None:
    rooms: dict[str, int] = defaultdict(int)
    for module in modules():
        rooms[str(module.parent.relative_to(SRC))] += 1
    assert {room for room, count in rooms.items() if count > MOST_MODULES} == set()


def test_a_module_has_few_lines() -> None:
    found = {str(one.relative_to(SRC)): len(one.read_text(encoding="utf-8").splitlines()) for one in modules()}
    assert {name for name, lines in found.items() if lines > MOST_LINES} == set()


def test_no_two_modules_have_one_name() -> None:
    found = shared((one.stem, one) for one in modules())
    assert found.keys() == SHARED_MODULE_NAMES, found


@pytest.mark.slow
def test_no_two_public_classes_have_one_name() -> None:
    found = shared(
        (node.name, one)
        for one in modules()
        for node in ast.parse(one.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert found.keys() == SHARED_CLASS_NAMES, found


def test_the_door_names_what_is_there_and_what_is_used() -> None:
    """Nothing else would notice a name that is wrong until a command needs it."""
    assert all(callable(beside(name)) for name in USED)
    opened = {
        argument.value
        for one in modules()
        for node in ast.walk(ast.parse(one.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "beside"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert opened == USED.keys()
