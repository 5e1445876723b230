"""The one rule by which two cells name the same user, session, block, label, level or side of a
split.

A promise is about people in files, so what is charged depends on whose row a row is. Every reader,
the encoder, stored scorers and estimators compare ids by the text that ``canonical`` gives, and by
nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any
from unicodedata import normalize

import numpy as np

from dpcore.errors import InputError

# Version of the rule: a ledger states it in its opening record, for another rule may see other
# people in the same file.
IDENTITY_RULE = 1
# What software writes as text where there was no value; a person, a session or a block is never
# named so.
NO_VALUE = frozenset({"", "nan", "NaN", "NaT", "None", "<NA>"})
# Whole numbers up to here (2^53 for float64) have no neighbour of the same floating-point value.
EXACT = {2: 2.0**11, 4: 2.0**24}
BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
# What is taken from both ends: all that ``str.strip`` takes, and the mark of byte order.
BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
SHOWN = 3
# from so many texts on they are looked at together, with a mark between them; it is no blank
MANY, END = 64, "\0"

Array = np.ndarray


def canonical(value: Any, strip: bool = True, decimal: str = ".", unit: bool = False) -> str:
    """The text that stands for ``value``; two values are the same id if and only if their texts are
    equal.

    - Text is in Unicode's composed form (NFC) and, with ``strip``, without blanks and marks of byte
      order around it.
    - A plain decimal counts by its value: 7, 7.0, 7.00 and the numbers 7 and 7.0 are ``7``; 0.50 is
      ``0.5``. Plain are digits without leading zeros, thousands, exponent or plus, with ``decimal``
      as the mark. 007, +7, 7e0 and 1_000 are texts of their own.
    - Booleans and the texts true, True, TRUE are ``true`` (``false`` alike). Dates are ISO texts,
      zoned moments in UTC. No value at all (None, NaN) is the empty text.

    The rule has the version ``IDENTITY_RULE`` and gives back its own results unchanged. With
    ``unit`` the text names somebody whom a budget protects: raises ``InputError`` for
    floating-point numbers from 2^53 on, which stand for several whole numbers, and, always, for
    values that are no text, number, date or Boolean.
    """
    if type(value) is str:
        return _text(value, strip, decimal)
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return _number(value, unit)
    return _other(value, strip, decimal)


def canonical_texts(
    values: Sequence[Any], strip: bool = True, decimal: str = ".", unit: bool = False
) -> list[str]:
    """``canonical`` of each value; at once for texts among which nothing could change, and for
    numbers.
    """
    kinds = set(map(type, values))
    if kinds == {int}:
        return list(map(str, values))
    if kinds in ({float}, {np.float64}) and len(values) > MANY:
        return _number_texts(np.array(values), unit)
    if kinds == {str} and len(values) > MANY and plain_texts(values, (), decimal):
        return list(values)
    return [canonical(value, strip, decimal, unit) for value in values]


def plain_texts(texts: Iterable[str], nobody: Collection[str], decimal: str = ".") -> bool:
    """Whether all of ``texts`` are surely canonical as they are and none is in ``nobody``; looked
    at together.

    False says nothing: some may be canonical all the same.
    """
    whole = END.join(chain(("",), texts, ("",)))
    if not whole.isascii() or len(whole.split()) > 1:
        return False
    # One letter is found much faster than a word, and mostly it is not there.
    if any(
        text[:1] in whole and f"{END}{text}{END}" in whole for text in (*nobody, *BOOLEANS, "-0")
    ):
        return False
    return decimal not in whole or re.search(rf"[0-9]{re.escape(decimal)}[0-9]", whole) is None


def _text(text: str, strip: bool, decimal: str) -> str:
    ascii = text.isascii()
    if not ascii:
        text = normalize("NFC", text)
    if strip:
        text = text.strip() if ascii else text.strip(BLANKS)
    if decimal in text:
        plain = text if decimal == "." else text.replace(".", "\0").replace(decimal, ".")
        if PLAIN.fullmatch(plain):
            text = plain.rstrip("0").rstrip(".")
            return "0" if text == "-0" else text
    return BOOLEANS.get(text, "0" if text == "-0" else text)


def _number(value: Any, unit: bool) -> str:
    if value != value:
        return ""
    size = abs(float(value))
    if unit and size >= EXACT.get(getattr(value, "itemsize", 8), 2.0**53):
        raise InputError(
            f"Expected ids that can be told apart, got the floating-point number {value!r}, which "
            "stands for several whole numbers; store ids as whole numbers or texts."
        )
    if size < 2.0**53:
        whole = int(value)
        text = str(whole if whole == value else value)
        return text if "e" not in text else np.format_float_positional(value, trim="-")
    return str(float(value)) if size == np.inf else np.format_float_positional(value, trim="-")


def _number_texts(values: Array, unit: bool) -> list[str]:
    """``_number`` of each; shortest decimals are at hand where they have no exponent."""
    size = np.abs(values)
    found = list(map(repr, values.tolist()))
    whole = (size < 2.0**53) & (np.floor(size) == size)
    for k in np.flatnonzero(whole):
        found[k] = str(int(values[k]))
    for k in np.flatnonzero(~whole & ~((size >= 1e-4) & (size < 2.0**53))):
        found[k] = _number(values[k], unit)
    return found


def _other(value: Any, strip: bool, decimal: str) -> str:
    """Of the rarer kinds: no value, exact decimals, dates and moments, subclasses of text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, np.generic) and not isinstance(value, str):
        value = value.item()
        return canonical(value, strip, decimal)
    if isinstance(value, str):
        return _text(str(value), strip, decimal)
    if isinstance(value, Decimal):
        return "" if value.is_nan() else _text(format(value, "f"), True, ".")
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, date):
        return value.isoformat()
    raise InputError(
        f"Expected a text, number, date or Boolean as an id, got {type(value).__name__} "
        f"{str(value)[:40]!r}; store its text in the column, or ignore the column."
    )


def _moment(value: datetime) -> str:
    """A moment of a zone in UTC; one at midnight without a zone is a date."""
    moment = value if value.tzinfo is None else value.astimezone(UTC)
    bare = moment.tzinfo is None and moment.time() == time()
    return moment.date().isoformat() if bare else moment.isoformat(" ")


def column_name(text: Any) -> str:
    """How names of columns compare: in composed letters, without blanks and marks of byte order
    around them.
    """
    return normalize("NFC", str(text)).strip(BLANKS)


def declared_names(names: Iterable[Any], declared: Collection[str]) -> dict[str, Any]:
    """Declared name -> the column of ``names`` that it means: the one of that very text, else the
    one that compares so.

    Names that no column has are left out. Raises ``InputError`` where two columns compare as one
    declared name and neither is it.
    """
    present = list(names)
    exact = set(present)
    found = {name: name for name in declared if name in exact}
    wanted = {column_name(name): name for name in declared if name not in exact}
    for given in present if wanted else ():
        name = wanted.get(column_name(given))
        if name is None:
            continue
        if name in found:
            raise InputError(
                f"Expected one column {name!r}, got {found[name]!r} and {given!r}, which compare "
                "as it; rename one."
            )
        found[name] = given
    return found


def names_nobody(text: str, marks: Collection[str] = ()) -> bool:
    """Whether a canonical text is no id: empty, what software writes for no value, or one of the
    declared ``marks``.
    """
    return text in NO_VALUE or text in marks


def canonical_marks(marks: Iterable[str], strip: bool = True, decimal: str = ".") -> frozenset[str]:
    """Declared texts for no value, as they compare with canonical cells."""
    return frozenset(canonical(mark, strip, decimal) for mark in marks)


def check_distinct(declared: Sequence[Any], what: str, strip: bool = True) -> None:
    """Raise ``InputError`` where two of the declared texts are one id, so that a cell would be
    either of them.
    """
    seen: dict[str, Any] = {}
    for value in declared:
        text = canonical(value, strip)
        if text in seen:
            both = (
                f"{seen[text]!r} twice"
                if seen[text] == value
                else f"{seen[text]!r} and {value!r}, which are one"
            )
            raise InputError(
                f"Expected each of {what} once, got {both} (both read {text!r}); drop one."
            )
        seen[text] = value


def identities(values: Any, strip: bool = True, unit: bool = False) -> tuple[Array, list[str]]:
    """Codes (n,) into the list of distinct canonical texts, in the order of their first
    appearance.
    """
    seen: dict[str, int] = {}
    codes, found = distinct(values)
    names = [seen.setdefault(text, len(seen)) for text in canonical_texts(found, strip, unit=unit)]
    return np.array(names, dtype=np.int64)[codes], list(seen)


def unit_codes(values: Any, what: str, strip: bool = True) -> tuple[Array, list[str]]:
    """As ``identities``, of the units that a budget protects; ``what`` is the argument's name in
    errors.

    Raises ``InputError`` naming the first row (from 0) that names nobody: such rows would be one
    unit of strangers.
    """
    codes, names = identities(values, strip, unit=True)
    nobody = [k for k, name in enumerate(names) if names_nobody(name)]
    if nobody:
        rows = np.flatnonzero(np.isin(codes, nobody))
        shown = ", ".join(str(int(row)) for row in rows[:SHOWN])
        raise InputError(
            f"Expected an id in every row of {what}, got none (empty, NaN or None) in row {shown}"
            f"{' and others' if len(rows) > SHOWN else ''}; name it, or leave these rows out."
        )
    return codes, names


def distinct(values: Any) -> tuple[Array, list[Any]]:
    """Codes (n,) into the distinct values as Python compares them, in the order of their first
    appearance.

    Of canonical texts these are the ids. Booleans are no numbers here.
    """
    array = as_ids(values)
    if array.ndim != 1:
        raise InputError(f"Expected ids of shape (n,), got shape {array.shape}.")
    if array.dtype != object:
        found, first, codes = np.unique(array, return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        ordered = found[order]
        return place[codes], list(ordered) if array.dtype.kind in "fM" else ordered.tolist()
    return _distinct_objects(array.tolist())


def _distinct_objects(items: list[Any]) -> tuple[Array, list[Any]]:
    seen: dict[Any, int] = {}
    try:
        if any(type(item) in (bool, np.bool_) for item in items):
            items = [canonical(item) if type(item) in (bool, np.bool_) else item for item in items]
        codes = np.fromiter(
            (seen.setdefault(item, len(seen)) for item in items), dtype=np.int64, count=len(items)
        )
    except TypeError:
        for item in items:
            canonical(item)
        raise
    return codes, list(seen)


def as_ids(values: Any) -> Array:
    """``values`` (n,) as an array that keeps each value as it is: numpy alone would make texts of a
    mixed list.
    """
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    items = list(values)
    kinds = {type(item) for item in items}
    if len(kinds) > 1:
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array
    return np.asarray(items)


def utc_text(text: str) -> str:
    """An ISO date with a zone as the same moment in UTC without one, as cells are read; any other
    text as it is.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if moment.tzinfo is None:
        return text
    try:
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat()
    except OverflowError:
        raise InputError(
            f"Expected a moment of the years 1 to 9999 in UTC, got {text!r}; leave out the zone."
        ) from None
