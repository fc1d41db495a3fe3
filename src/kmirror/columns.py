"""The columns of tables and the keys of JSON documents, each declared once with its type. Pure.

`docs/json.md` and the schemas in `kmirror/schemas` are generated from these declarations.

A table has the same columns when piped into a script: headers without spaces, `-` for unknown, one row per line. Only
the last column may contain spaces. No cell is longer than any topic's name can be, the last one than any sentence of
ours; control characters are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack, dataclass_transform

from kmirror.errors import Reason
from kmirror.words import UNKNOWN, visible

R = TypeVar("R")
S = TypeVar("S")
Getter = TypeVar("Getter", bound=Callable[[Any], object])

#: Topics have at most 249 characters; groups may have thousands.
_LONGEST_NAME, _LONGEST_TEXT = 256, 4096


class Cell(NamedTuple):
    """The text of one value in a table; `code`, if any, decides its style."""

    text: str
    code: str | None


@dataclass(frozen=True, slots=True)
class Type:
    """The JSON type of a value; `words` says what it stands for, with its unit.

    `null` says when the value is null; empty if it never is.
    """

    json: str
    words: str
    minimum: int | None = None
    #: All possible values, if they are codes.
    codes: tuple[str | int, ...] = ()
    #: The type of the entries of an array, or of the values of an object without fixed keys.
    items: Type | None = None
    fields: tuple[Column[Any], ...] = ()
    null: str = ""

    @property
    def is_nested(self) -> bool:
        """Whether a value has to be taken apart for JSON."""
        return bool(self.fields) or self.json == "array"

    def null_when(self, null: str) -> Type:
        """Return the same type for a value that may be unknown or absent."""
        return replace(self, null=null)


TEXT = Type("string", "text")
FLAG = Type("boolean", "true or false")
COUNT = Type("integer", "number", minimum=0)
#: The offset of a record.
OFFSET = Type("integer", "offset", minimum=0)
#: The offset after the last record, as in Kafka.
END = Type("integer", "offset, exclusive", minimum=0)
TIME = Type("integer", "epoch ms", minimum=0)
DURATION = Type("integer", "ms", minimum=0)
#: An object whose keys are not declared here.
OBJECT = Type("object", "object")


def one_of(words: str, *enums: type[Enum]) -> Type:
    """Return the type for a member of one of these enums."""
    codes = tuple(dict.fromkeys(member.value for enum in enums for member in enum))
    return Type("string" if isinstance(codes[0], str) else "integer", words, codes=codes)


REASON = one_of("reason", Reason)


def object_of(fields: Sequence[Column[Any]]) -> Type:
    """Return the type for an object with these keys."""
    return Type("object", "object", fields=tuple(fields))


def list_of(items: Type) -> Type:
    """Return the type for an array of these."""
    return Type("array", "list", items=items)


@dataclass(frozen=True, slots=True)
class Gauge(Generic[R]):
    """The metric of a column, whose value it has, durations in seconds; it has no sample while that is None.

    `absent` says when that is; `kip_1279` and `cluster_linking` name the closest metric in Apache Kafka's proposal and
    at Confluent. `is_known`, if given, decides for a row whether it has a sample.
    """

    name: str
    unit: str
    meaning: str
    absent: str = ""
    kip_1279: str = ""
    cluster_linking: str = ""
    is_known: Callable[[R], bool] | None = None


@dataclass(frozen=True, slots=True)
class Only(Generic[R]):
    """Which rows have a key: `where` says it in words, `has` decides for one row."""

    where: str
    has: Callable[[R], object]


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One value of a row: `key` in JSON, `header` in tables that show it.

    `cell`, if given, replaces the value in tables. Only a code has a style: an enum member, or what `code` returns.
    """

    key: str
    type: Type
    meaning: str
    value: Callable[[R], object]
    header: str = ""
    cell: Callable[[R], object] | None = None
    code: Callable[[R], str | None] | None = None
    is_number: bool = False
    #: Which rows have the key; None if all do.
    only: Only[R] | None = None
    gauge: Gauge[R] | None = None

    def json(self, row: R) -> object:
        """Return the value as `--json` prints it: what has columns of its own as a document, an array as a list."""
        found: Any = self.value(row)
        if found is None or not self.type.is_nested:
            return found
        fields = (self.type.items or self.type).fields
        if self.type.json == "array":
            return [_document_of(fields, one) for one in found] if fields else list(found)
        return _document_of(fields, found)

    def of_part(self, part: Callable[[S], R | None], key: str = "") -> Column[S]:
        """Return the same column for rows that have such a row as a part; without it: None, and no optional key."""

        def of_whole(read: Callable[[R], Any]) -> Callable[[S], Any]:
            return lambda whole: None if (found := part(whole)) is None else read(found)

        return Column(
            key or self.key,
            self.type,
            self.meaning,
            of_whole(self.value),
            self.header,
            self.cell and of_whole(self.cell),
            self.code and of_whole(self.code),
            self.is_number,
            None if self.only is None else Only(self.only.where, of_whole(self.only.has)),
        )

    def shown(self, row: R, longest: int) -> Cell:
        """Return the cell of a row in this column, of at most `longest` characters."""
        found = (self.cell or self.value)(row)
        code = self.code(row) if self.code else str(found) if isinstance(found, Enum) else None
        text = UNKNOWN if found is None else visible(str(found)[: longest + 1])
        return Cell(text if len(text) <= longest else f"{text[: longest - 1]}…", code)


_COLUMN = "column"


class _How(TypedDict, total=False):
    """What else a column may declare."""

    key: str
    value: Callable[[Any], object]
    cell: Callable[[Any], object]
    of_row: Callable[[Any], object]
    code: Callable[[Any], str | None]
    gauge: Gauge[Any]
    only: Only[Any]
    after: str


def shown(kind: Type, meaning: str, header: str = "", *, default: Any = MISSING, **how: Unpack[_How]) -> Any:
    """Make a field of a row a column: `count: int = shown(COUNT, "how many", "COUNT")`.

    The key is the field's name in camel case, unless one is given. `cell` makes the text in tables of the value
    unless that is None, `of_row` of the whole row, like `code`. `gauge` is the metric of the value. `value` makes
    another one of the row, for `only` those rows that have it. It comes `after` another field, by default after the one
    before.
    """
    return field(default=default, metadata={_COLUMN: (kind, meaning, header, how)})


def showing(kind: Type, meaning: str, header: str = "", **how: Unpack[_How]) -> Callable[[Getter], Getter]:
    """Make a property of a row a column: `@property`, then `@showing(…)`, like `shown`; by default after all fields."""

    def mark(getter: Getter) -> Getter:
        vars(getter)[_COLUMN] = (kind, meaning, header, how)
        return getter

    return mark


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(shown,))
def table_row(declared: type[Any] | None = None, *, kw_only: bool = True) -> Any:
    """Make a class a row: a frozen dataclass, whose values are given by name unless `kw_only` is false.

    Only the type checker sees that it is frozen: refusing changes at run time makes a row of forty values four times as
    slow to make, and there are tens of thousands.
    """
    make = dataclass(slots=True, kw_only=kw_only, unsafe_hash=True)
    return make if declared is None else make(declared)


def columns_of(row: type[R]) -> tuple[Column[R], ...]:
    """Return the columns that a row declares, in the order of its fields."""
    declared: dict[str, Any] = {one.name: one.metadata for one in fields(row)}  # type: ignore[arg-type]
    declared |= {name: vars(one.fget) for name, one in vars(row).items() if isinstance(one, property)}
    names: list[str] = []
    for name, metadata in declared.items():
        if _COLUMN in metadata:
            after = metadata[_COLUMN][-1].get("after")
            names.insert(names.index(after) + 1 if after else len(names), name)
    return tuple(_declared(name, *declared[name][_COLUMN]) for name in names)


def _declared(name: str, kind: Type, meaning: str, header: str, how: _How) -> Column[Any]:
    value: Callable[[Any], Any] = how.get("value") or attrgetter(name)
    first, *others = name.split("_")
    key = how.get("key") or first + "".join(map(str.capitalize, others))
    cell = how.get("cell")

    def cell_of(row: Any) -> object:
        found = value(row)
        return None if cell is None or found is None else cell(found)

    is_number = kind.json in ("integer", "number") and kind.words != TIME.words
    in_table = how.get("of_row") if cell is None else cell_of
    code, only, gauge = how.get("code"), how.get("only"), how.get("gauge")
    return Column(key, kind, meaning, value, header, in_table, code, is_number, only, gauge)


def document(fields: Iterable[Column[R]], row: R) -> dict[str, Any]:
    """Return a row as `--json` prints it."""
    return {
        field.key: field.json(row) if field.type.is_nested else field.value(row)
        for field in fields
        if field.only is None or field.only.has(row)
    }


def _document_of(fields: Iterable[Column[Any]], found: Any) -> Any:
    """Return a row within another as JSON, unless it is JSON already."""
    return found if isinstance(found, dict) else document(fields, found)


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """All columns of one kind of row, in JSON order; `headers` are those a table shows, in its order."""

    columns: tuple[Column[R], ...]
    headers: str
    #: Shown to people if there are no rows.
    none: str = ""
    #: Sentences for people besides the rows.
    notes: Callable[[Sequence[R]], Iterable[str]] | None = None
    #: Those headers that a table shows only if a row has a value for one of them.
    optional: str = ""

    def used_by(self, rows: Iterable[R]) -> Table[R]:
        """Return the table for these rows: without its optional columns if none of them has a value there."""
        optional = self.optional.split()
        columns = [column for column in self.shown if column.header in optional]
        if not columns or any(column.value(row) is not None for row in rows for column in columns):
            return self
        return replace(self, headers=" ".join(one for one in self.headers.split() if one not in optional), optional="")

    @property
    def shown(self) -> list[Column[R]]:
        """The columns that a table shows."""
        by_header = {column.header: column for column in self.columns}
        return [by_header[header] for header in self.headers.split()]

    @property
    def type(self) -> Type:
        """The type of the rows as `--json` prints them."""
        return list_of(object_of(self.columns))

    def cells(self, rows: Iterable[R]) -> list[list[Cell]]:
        """Return the cells of rows; a longer text is cut, and whole in JSON."""
        shown = self.shown
        limits = [*[_LONGEST_NAME] * (len(shown) - 1), _LONGEST_TEXT]
        return [[column.shown(row, longest) for column, longest in zip(shown, limits, strict=True)] for row in rows]

    def document(self, row: R) -> dict[str, Any]:
        """Return a row as `--json` prints it."""
        return document(self.columns, row)
