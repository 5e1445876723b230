"""One table or view of a database, read as it stands: row by row, read-only, without a password in
any store.

A row of the result has to be a row of one record, or a price would be paid for other rows. So a
source is a table or a plain view and a condition on the row itself; joins, aggregates, windows,
DISTINCT, LIMIT and sub-queries are refused. Where whole persons are protected (``unit: user``) and
the schema declares ``source.rows_by_user``, a view may join and sum what belongs to one person;
LIMIT and its kin and windows, which look at the rows of others, stay refused.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
from sqlalchemy import (
    URL,
    Connection,
    and_,
    column,
    create_engine,
    inspect,
    not_,
    or_,
    select,
    table,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from dpcore.errors import InputError, hint
from tasks.readers.arrow import needed, with_numbers
from tasks.readers.chunk import Chunk, Mine, chunk_rows, is_nested, no_rows
from tasks.readers.declared import as_declared, check_names, dtype_of, text_marks
from tasks.readers.parts import SqlTable, plain_url, secrets_of
from tasks.schema import Schema


def sql_table(schema: Schema) -> SqlTable:
    """The declared source; raises ``InputError`` for no address, without showing it."""
    return SqlTable(plain_url(_url(schema)), str(schema.source.table), schema.source.where)


def _url(schema: Schema) -> URL:
    variable = schema.source.url_from
    if not os.environ.get(variable):
        raise InputError(
            f"Expected the SQLAlchemy URL of {schema.name!r} in the environment variable "
            f"{variable}, got none; set it, for example to "
            "postgresql+psycopg2://user:password@host/database."
        )
    try:
        return make_url(os.environ[variable])
    except (ArgumentError, ValueError):
        raise InputError(
            f"Expected an SQLAlchemy URL in the environment variable {variable}, got a text that "
            "is none; correct it."
        ) from None


def read_sql(schema: Schema, part: SqlTable, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield the rows that meet the condition, streamed; columns that nothing is made of are not
    asked for.
    """
    with _connected(schema) as connection:
        names, given, kind = _described(schema, part, connection)
        wanted = [k for k, n in enumerate(names) if dtype_of(schema, n) or needed(schema, n)]
        columns: list[Any] = [column(given[k]) for k in wanted]
        query = select(*columns).select_from(kind)
        if part.where.strip():
            query = query.where(condition(part.where, given))
        step = chunk_rows(len(wanted))
        found = connection.execution_options(stream_results=True, yield_per=step).execute(query)
        start = 0
        for rows in found.partitions(step):
            cells = zip(*rows, strict=True)
            frame = pd.DataFrame(
                {names[k]: _series(list(values)) for k, values in zip(wanted, cells, strict=True)}
            )
            nested = next((name for name in frame if is_nested(frame[name])), None)
            if nested is not None:
                raise InputError(
                    f"{part}: Expected texts, numbers, dates or Booleans in column {nested!r}, got "
                    "lists or the like; store one value a cell, or ignore the column."
                )
            yield with_numbers(schema, Chunk(frame), text_marks(schema, frame), mine)
            start += len(frame)
    if not start:
        raise no_rows(part)


def _series(values: list[Any]) -> Any:
    """The cells as they are: whole numbers beside gaps would become others."""
    return pd.Series(values, dtype=object if None in values else None)


@contextmanager
def _connected(schema: Schema) -> Iterator[Connection]:
    """A connection that only reads; errors of the database lose the password."""
    url = _url(schema)
    try:
        engine = create_engine(url)
        try:
            with engine.connect() as connection:
                if url.get_backend_name() == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                elif url.get_backend_name() == "sqlite":
                    connection.exec_driver_sql("PRAGMA query_only = ON")
                yield connection
        finally:
            engine.dispose()
    except (SQLAlchemyError, NoSuchModuleError, ImportError) as error:
        words = " ".join(str(getattr(error, "orig", None) or error).split())
        for secret in secrets_of(url):
            words = words.replace(secret, "***")
        raise InputError(
            f"Expected to read {schema.source.table!r} at {plain_url(url)}, got: {words[:200]}; "
            f"correct the environment variable {schema.source.url_from}, or the table."
        ) from None


def _described(
    schema: Schema, part: SqlTable, connection: Connection
) -> tuple[list[str], list[str], Any]:
    """Names of the columns as the schema spells them and as the database does, and the table."""
    place, _, name = part.table.rpartition(".")
    asked = inspect(connection)
    home = place or None
    known = {*asked.get_view_names(schema=home), *asked.get_table_names(schema=home)}
    if name not in known:
        raise InputError(
            f"Expected a table or view at {part}, got none of that name; {hint(name, known)} It "
            "stands in source.table without quotes."
        )
    if schema.source.rows_by_user:
        require_own_rows(asked, part, name, home)
    else:
        require_plain_view(asked, part, name, home)
    given = [str(column["name"]) for column in asked.get_columns(name, schema=home)]
    names = as_declared(schema, given)
    check_names(schema, str(part), names)
    return names, given, table(name, *(column(g) for g in given), schema=home)


TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|'(?P<text>(?:[^']|'')*)'"""
    r"""|"(?P<quoted>(?:[^"]|"")+)"|(?P<word>[^\W\d]\w*)|(?P<mark><=|>=|<>|!=|[=<>(),]))"""
)
COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def condition(text: str, columns: Sequence[str]) -> Any:
    """A condition on one row as an expression with its values bound, never as text.

    Comparisons of a column with a value, IN, BETWEEN, LIKE, IS [NOT] NULL, joined by AND, OR, NOT
    and brackets. Raises ``InputError`` for anything else.
    """
    return _Condition(text, columns).whole()


WAY = (
    "compare columns with values by =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS NULL, joined by "
    "AND, OR and NOT."
)


class _Condition:
    """A reader of conditions, by recursive descent."""

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        self.text, self.columns, self.place = text, set(columns), 0
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            found = TOKEN.match(text, place)
            if found is None:
                raise self.refused(text[place:].strip()[:20])
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            place = found.end()

    def refused(self, what: str, way: str = WAY) -> InputError:
        return InputError(
            f"Expected a condition on the row itself in source.where, got {self.text!r} with "
            f"{what!r}; {way}"
        )

    def next(self, *kinds: str) -> tuple[str, str]:
        kind, token = (
            self.tokens[self.place] if self.place < len(self.tokens) else ("end", "the end")
        )
        if kinds and kind not in kinds:
            raise self.refused(token)
        self.place += 1
        return kind, token

    def takes(self, *words: str) -> bool:
        """Whether the next tokens are these; they are passed over then."""
        found = [
            token.upper()
            for kind, token in self.tokens[self.place : self.place + len(words)]
            if kind not in ("text", "quoted")
        ]
        if found != list(words):
            return False
        self.place += len(words)
        return True

    def must(self, word: str) -> None:
        if not self.takes(word):
            raise self.refused(self.next()[1])

    def whole(self) -> Any:
        found = self.either()
        if self.place < len(self.tokens):
            raise self.refused(self.next()[1])
        return found

    def either(self) -> Any:
        parts = [self.both()]
        while self.takes("OR"):
            parts.append(self.both())
        return or_(*parts) if len(parts) > 1 else parts[0]

    def both(self) -> Any:
        parts = [self.one()]
        while self.takes("AND"):
            parts.append(self.one())
        return and_(*parts) if len(parts) > 1 else parts[0]

    def one(self) -> Any:
        if self.takes("NOT"):
            return not_(self.one())
        if self.takes("("):
            found = self.either()
            self.must(")")
            return found
        kind, name = self.next("word", "quoted")
        name = name.replace('""', '"') if kind == "quoted" else name
        if name not in self.columns:
            quotes = "a name of more than letters, digits and _ stands in double quotes"
            raise self.refused(name, f"{quotes}; {hint(name, self.columns)}")
        return self.compared(column(name))

    def compared(self, cells: Any) -> Any:
        if self.takes("IS", "NOT", "NULL"):
            return cells.is_not(None)
        if self.takes("IS", "NULL"):
            return cells.is_(None)
        negated = self.takes("NOT")
        found = self.ranged(cells)
        if found is not None:
            return not_(found) if negated else found
        _, mark = self.next("mark")
        if negated or mark not in COMPARISONS:
            raise self.refused(mark)
        return COMPARISONS[mark](cells, self.value())

    def ranged(self, cells: Any) -> Any:
        if self.takes("IN", "("):
            values = [self.value()]
            while self.takes(","):
                values.append(self.value())
            self.must(")")
            return cells.in_(values)
        if self.takes("BETWEEN"):
            low = self.value()
            self.must("AND")
            return cells.between(low, self.value())
        return cells.like(str(self.value())) if self.takes("LIKE") else None

    def value(self) -> Any:
        if self.takes("TRUE") or self.takes("FALSE"):
            return self.tokens[self.place - 1][1].upper() == "TRUE"
        kind, token = self.next("number", "text")
        if kind == "text":
            return token.replace("''", "'")
        return int(token) if re.fullmatch(r"[+-]?\d+", token) else float(token)


# What takes a row of a view from more than one row, or fewer rows than there are.
CUT = "limit|top|fetch|offset|tablesample"
MIXING = re.compile(
    rf"\b(join|group|having|distinct|over|union|intersect|except|minus|with|lateral|{CUT})\b",
    re.IGNORECASE,
)


# What is no person's own, whatever was declared: which rows are there, or come first.
SHARED = re.compile(rf"\b(over|window|{CUT})\b", re.IGNORECASE)
CALLS = (
    "cast coalesce nullif lower upper trim ltrim rtrim btrim round abs substr substring length "
    "date extract in and or not as varchar varying numeric decimal char bpchar timestamp time "
    "interval when then else between from where select view replace date_part concat left right any"
)


ROWWISE = frozenset(CALLS.split())
LITERALS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)


IDENTIFIER = r'("(?:[^"]|"")+"|`[^`]+`|\[[^\]]+\]|[^\W\d]\w*)'
ONE_TABLE = re.compile(
    rf"\s*(?:{IDENTIFIER}\s*\.\s*)?{IDENTIFIER}(?:\s+(?:as\s+)?{IDENTIFIER})?\s*", re.IGNORECASE
)


def require_plain_view(asked: Any, part: SqlTable, name: str, home: str | None) -> None:
    """Raise ``InputError`` for a view of which a row may be more than one row of one table."""
    if _among(asked.get_view_names(schema=home), name) is None:
        if _among(asked.get_table_names(schema=home), name) is None:
            raise _mixed(part, f"{name!r}, which is no table")
        return
    body = _body(asked, name, home)
    calls = {word.lower() for word in re.findall(r"([A-Za-z_]\w*)\s*\(", body)} - ROWWISE
    found = [*(word.upper() for word in MIXING.findall(body)), *sorted(calls)]
    source = ONE_TABLE.fullmatch(_source(body))
    if found or source is None or len(re.findall(r"(?i)\bselect\b", body)) != 1:
        raise _mixed(part, [*found, "several tables or queries"][0])
    inner, below = (word and word.strip('"`[]') for word in source.groups()[:2])
    require_plain_view(asked, part, str(below), inner or home)


def require_own_rows(
    asked: Any,
    part: SqlTable,
    name: str,
    home: str | None,
    seen: frozenset[tuple[str | None, str]] = frozenset(),
) -> None:
    """Raise ``InputError`` for a view, or one that it reads, whose rows cannot be one person's
    whatever was declared.
    """
    view = _among(asked.get_view_names(schema=home), name)
    if view is None or (home, view) in seen:
        return
    body = _body(asked, view, home)
    if shared := SHARED.search(body):
        raise InputError(
            f"Expected a view whose rows each follow from the records of one person, at {part}, "
            f"got one with {shared[0].upper()}, for which the rows of others count; leave it out "
            "of the view."
        )
    homes = {*asked.get_schema_names()}
    for inner, dot, below in re.findall(rf"(?:{IDENTIFIER}\s*(\.)\s*)?{IDENTIFIER}", body):
        inner, below = (word.strip('"`[]') for word in (inner, below))
        place = inner if dot and inner in homes else home
        require_own_rows(asked, part, below, place, seen | {(home, view)})


def _among(names: Sequence[str], name: str) -> str | None:
    """The one of ``names`` that is called so, whatever its capitals, as databases fold them."""
    return next((known for known in names if known.casefold() == name.casefold()), None)


def _body(asked: Any, name: str, home: str | None) -> str:
    """The query of a view without its texts and comments."""
    name = _among(asked.get_view_names(schema=home), name) or name
    text = asked.get_view_definition(name, schema=home) or ""
    bare = LITERALS.sub(lambda found: {"'": "''", '"': found[0]}.get(found[0][0], " "), text)
    return re.sub(r"(?is)^\s*create\b.*?\bas\b\s*(?=select\b|with\b|\()", "", bare, count=1)


def _source(body: str) -> str:
    """What stands after FROM outside of brackets, up to WHERE or the end."""
    depth, start = 0, None
    for word in re.finditer(r"[()]|;|\b(?:from|where)\b", body, re.IGNORECASE):
        depth += {"(": 1, ")": -1}.get(word[0], 0)
        if depth == 0 and word[0].lower() == "from" and start is None:
            start = word.end()
        elif depth == 0 and word[0].lower() in ("where", ";") and start is not None:
            return body[start : word.start()]
    return "" if start is None else body[start:]


def _mixed(part: SqlTable, found: str) -> InputError:
    return InputError(
        f"Expected a table, or a view whose rows are rows of one table, at {part}, got a view "
        f"with {found}: what one record moves could not be told; export its result as a table "
        "with one record a row, or, where each row follows from the records of the one person "
        "whom it names, declare unit: user with source.rows_by_user: true, which is told in the "
        "statement."
    )
