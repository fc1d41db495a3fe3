"""A partition's state is changed by its own methods only: the other parts of a lane read it, and call these."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kmirror.engine.lane

FOLDER = Path(next(iter(kmirror.engine.lane.__path__)))
#: The room of what makes up the state of one partition.
STATE = FOLDER / "partition"
#: What shells call a partition or a part of its state.
NAMES = frozenset({"copy", "intake", "p", "partition", "progress", "source"})
MUTATING = frozenset({"append", "appendleft", "clear", "extend", "insert", "pop", "popleft", "remove", "update"})


def root_of(node: ast.expr) -> str | None:
    """Return the name that a chain of attributes and indexes begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def writes_of(source: str) -> list[str]:
    """Return the places where attributes or collections of a partition are changed."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [one for target in node.targets for one in getattr(target, "elts", [target])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
            # of a partition's parts, not of the name itself
            targets = [node.func.value] if isinstance(node.func.value, ast.Attribute) else []
        found += [
            f"{ast.unparse(target)} in line {target.lineno}"
            for target in targets
            if isinstance(target, ast.Attribute | ast.Subscript) and root_of(target) in NAMES
        ]
    return found


@pytest.mark.parametrize(
    "module", sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py") if STATE not in path.parents)
)
def test_no_other_module_changes_it(module: str) -> None:
    assert writes_of((FOLDER / module).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "partition.source.seen_at = 1",
        "partition.source.node_id, partition.source.role = 1, 'main'",
        "source.seen_at, other = 1, 2",
        "copy.progress.bytes_copied += 1",
        "del partition.queue[0]",
        "partition.queue.popleft()",
        "p.source.log_start = None",
    ],
)
def test_a_change_is_found(line: str) -> None:
    assert len(writes_of(line)) in {1, 2}
