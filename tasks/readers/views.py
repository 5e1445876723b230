"""What a row of a database's view is made of: of one row of one table, or of one person's rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dpcore.errors import InputError
from tasks.readers.parts import SqlTable

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
