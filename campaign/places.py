"""Change one place of a module, found by its function and by the shape of its code.

A place is the one expression, or the one run of statements, with the shape of some given code in a function. Layout and
comments do not count. Neither do names that the function no longer has: each means one that the given code does
not have, so that a rename leaves the place where it is. Builtins are never renamed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

#: The fields of a syntax tree that hold names.
_NAMES = ("id", "attr", "arg", "name")


class StaleError(Exception):
    """A mutant no longer fits the code, or its test fails without it too."""


def changed(text: str, function: str, old: str, new: str) -> str:
    """Return a module's code with `new` in the place of `old`, without comments and laid out again.

    Args:
        text: the module.
        function: where the place is: a function, `Class.method`, or a name that the module assigns to.
        old: an expression, or statements; `if condition: ...` whatever the condition guards.
        new: what replaces it; `pass` for no statement, `if condition: ...` to keep what is guarded.

    Raises:
        StaleError: there is no such function, or not exactly one such place in it.
    """
    module = ast.parse(text)
    owner = _owner(module, function)
    sought, replacement = _code(old, new)
    names = {name: name for name in _names(*sought) if name in _names(owner) or hasattr(builtins, name)}
    places = [
        (found, renamed, put)
        for found, put in _places(owner, len(sought))
        if (renamed := _renamed(sought, found, names)) is not None
    ]
    if len(places) != 1:
        raise StaleError(f"{function} has {len(places)} places like this: {old}")
    found, renamed, put = places[0]
    for node in replacement:
        for one in ast.walk(node):
            for field, name in _named_fields(one):
                setattr(one, field, renamed.get(name, name))
    match found, replacement:
        case [ast.If() as before], [ast.If() as after] if _is_any(after.body):
            after.body = before.body
    put(replacement)
    return ast.unparse(ast.fix_missing_locations(module)) + "\n"


def _owner(module: ast.Module, function: str) -> ast.AST:
    """Return what a qualified name names in a module."""
    owner: ast.AST = module
    for name in function.split("."):
        owner = next((one for one in ast.iter_child_nodes(owner) if name in _defined(one)), ast.Pass())
    if isinstance(owner, ast.Pass):
        raise StaleError(f"there is no {function}")
    return owner


def _defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for one in targets if isinstance(one, ast.Name)]


def _code(old: str, new: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return what is sought and what replaces it: two expressions if both are, statements otherwise."""
    sought, replacement = ast.parse(old).body, ast.parse(new).body
    match sought, replacement:
        case [ast.Expr(expression)], [ast.Expr(other)]:
            return [expression], [other]
    return [*sought], [*replacement]


def _places(owner: ast.AST, length: int) -> Iterator[tuple[list[ast.AST], Callable[[list[ast.AST]], None]]]:
    """Yield each run of so many neighbours below a node, and what puts others in their place."""
    for node in ast.walk(owner):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                for at in range(len(value) - length + 1):
                    span = slice(at, at + length)
                    yield value[span], partial(value.__setitem__, span)
            elif isinstance(value, ast.AST) and length == 1:
                yield [value], partial(_put, node, field)


def _put(node: ast.AST, field: str, nodes: list[ast.AST]) -> None:
    (one,) = nodes
    setattr(node, field, one)


def _renamed(sought: list[ast.AST], found: list[ast.AST], names: dict[str, str]) -> dict[str, str] | None:
    """Return what the names of the sought code are in the found one, None if the two differ in more than names."""
    renamed = dict(names)
    if not _fits(sought, found, renamed):
        return None
    new = [after for before, after in renamed.items() if before not in names]
    return None if len(set(new)) < len(new) or _names(*sought) & set(new) else renamed


def _fits(sought: object, found: object, renamed: dict[str, str]) -> bool:
    """Return whether two pieces of code have the same shape; adds to `renamed` what a name is called."""
    if isinstance(sought, list):
        return _is_any(sought) or (
            isinstance(found, list)
            and len(sought) == len(found)
            and all(_fits(one, other, renamed) for one, other in zip(sought, found, strict=True))
        )
    if not isinstance(sought, ast.AST):
        return type(sought) is type(found) and sought == found
    if type(sought) is not type(found):
        return False
    for field in sought._fields:
        one, other = getattr(sought, field, None), getattr(found, field, None)
        if field in _NAMES and isinstance(one, str) and isinstance(other, str):
            if renamed.setdefault(one, other) != other:
                return False
        elif not _fits(one, other, renamed):
            return False
    return True


def _is_any(body: list[Any]) -> bool:
    """Return whether a body is `...`, which means any."""
    match body:
        case [ast.Expr(ast.Constant(value))]:
            return value is ...
    return False


def _names(*nodes: ast.AST) -> set[str]:
    return {name for node in nodes for one in ast.walk(node) for _, name in _named_fields(one)}


def _named_fields(node: ast.AST) -> list[tuple[str, str]]:
    """Return the fields of a node that hold a name, with the name."""
    return [(field, name) for field in _NAMES if isinstance(name := getattr(node, field, None), str)]
