"""The sections of a schema: one column, one group of numbers, the label, the file, the split,
public counts, blocks.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isinf
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dpcore.errors import InputError
from dpcore.features import Column, FeatureGroup
from dpcore.identity import canonical, check_distinct, utc_text


def _text(value: Any) -> Any:
    """YAML scalars as the text that a file would hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _texts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_text(v) for v in value)
    return (_text(value),)


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Number = Annotated[float, Field(allow_inf_nan=False)]
# Columns of a group: vectors of a training take gigabytes. Blocks: each has a line in the ledger.
MOST_COLUMNS, MOST_BLOCKS = 50_000_000, 100_000


class Strict(BaseModel):
    """Unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnSpec(Strict):
    """One column of the file; ``ignore``, ``id``, ``user`` and ``block`` columns are no
    features. ``levels``: texts, or ``hash(256)``: as many parts into which levels fall by SHA-256
    of their canonical text, for codes of many levels; ``levels_file`` names a public file of them.
    """

    kind: Literal[
        "numeric", "flag", "categorical", "ordinal", "date", "ignore", "id", "user", "block"
    ]
    low: Number | str | None = None
    high: Number | str | None = None
    levels: Texts = ()
    levels_file: str | None = None
    unknown: Literal["refuse", "zeros", "other"] = "refuse"
    missing: Texts | None = None
    fill: Number | str | None = None
    drop_first: bool = False
    numeric: str | None = None
    step: Number | None = None
    format: str = "%Y-%m-%d"
    parts: Texts = ("elapsed",)

    @model_validator(mode="after")
    def _readable_format(self) -> ColumnSpec:
        if self.kind == "date" and read_as(PROBES[0], self.format) is None:
            raise ValueError(
                f"Expected a format that reads dates, got {self.format!r}; write directives of "
                "Python's strptime, for example '%Y-%m-%d'."
            )
        if self.kind == "date" and self.fill not in (None, "zeros"):
            raise ValueError(f"a date is filled by the word zeros alone, not by {self.fill!r}")
        return self

    @model_validator(mode="after")
    def _fits(self) -> ColumnSpec:
        if self.kind == "date" and not self.parts:
            raise ValueError("a date needs parts, as [elapsed, weekday], or kind: ignore")
        known = [v for v in (self.low, self.fill, self.high) if isinstance(v, float | int)]
        beyond = len(known) == 3 and known[0] < known[2] and sorted(known) != known
        if self.kind == "numeric" and beyond:  # of one value nothing is clipped that says anything
            raise ValueError("fill {1:g} lies beyond {0:g} to {2:g}; correct it".format(*known))
        return self

    @property
    def buckets(self) -> int:
        """The parts of the hash in ``levels: hash(256)``; 0 for levels that are listed."""
        listed = self.levels[0] if len(self.levels) == 1 else ""
        found = re.fullmatch(r"hash\(([0-9]{1,7})\)", listed)
        return int(found[1]) if found else 0

    @property
    def feature(self) -> bool:
        return self.kind in ("numeric", "flag", "categorical", "ordinal", "date")

    def column(self, name: str, missing: tuple[str, ...]) -> Column:
        """The declaration as the encoder takes it; raises ``InputError`` where bounds or levels are
        not known.
        """
        given = self.model_dump(exclude={"missing", "levels_file"}, exclude_none=True)
        ends = {k: utc_text(given[k]) for k in ("low", "high") if isinstance(given.get(k), str)}
        if self.buckets:
            given |= {"levels": (), "buckets": self.buckets}
        missing = missing if self.missing is None else self.missing
        return Column(name=name, missing=missing, **given | ends)


class GroupSpec(Strict):
    """``count`` neighbouring columns of a file of numbers, all declared alike; see
    ``FeatureGroup``.
    """

    name: str
    count: int = Field(default=1, ge=1, le=MOST_COLUMNS)
    kind: Literal["numeric", "flag", "one_hot"] = "numeric"
    low: Number = 0.0
    high: Number = 1.0
    fill: Number | None = None
    missing: Texts | None = None

    def group(self, missing: tuple[str, ...]) -> FeatureGroup:
        """The declaration as the encoder takes it; ``missing``: the schema's marks, where the group
        has none.
        """
        return FeatureGroup(
            **{**self.model_dump(), "missing": missing if self.missing is None else self.missing}
        )


class WeightSpec(Strict):
    """What a record's loss is multiplied by, for each class of a binary label: public numbers,
    chosen without looking at the records (the classes' shares among private rows are private)."""

    positive: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    negative: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class LabelSpec(Strict):
    """The target.

    ``binary``: texts for +1 and -1, or numbers from ``positive_from`` on for +1; ``regression``: a
    number with public bounds, scaled to ``scaled_to``; ``classes``: the position in ``levels``;
    ``relevance``: the grade of a document, a whole number up to ``high``. ``strip_end`` is dropped
    from the end of a text. ``undeclared: drop`` leaves out rows whose label is none of the declared
    ones and counts them (add/remove only: the count of the others becomes private).
    ``weights``: public class weights of a binary label. ``ignore_case``: texts that differ in
    capital letters alone are one label.
    """

    column: str = "label"
    kind: Literal["binary", "regression", "classes", "relevance"] = "binary"
    positive: Texts = ()
    negative: Texts = ()
    positive_from: Number | None = None
    low: Number | None = None
    high: Number | None = None
    scaled_to: tuple[Number, Number] = (-1.0, 1.0)
    levels: Texts = ()
    strip_end: str = ""
    ignore_case: bool = False
    undeclared: Literal["refuse", "drop"] = "refuse"
    weights: WeightSpec | None = None

    @model_validator(mode="after")
    def _complete(self) -> LabelSpec:
        if self.weights is not None and self.kind != "binary":
            raise ValueError(f"weights are for a binary label, got kind={self.kind}")
        if self.kind == "classes" and len(self.levels) < 2:
            raise ValueError("a classes label needs at least two levels")
        if (
            self.kind == "binary"
            and self.positive_from is None
            and not (self.positive and self.negative)
        ):
            raise ValueError(
                "a binary label needs both positive and negative texts, or positive_from"
            )
        return self

    @model_validator(mode="after")
    def _bounded(self) -> LabelSpec:
        if self.kind in ("regression", "relevance") and (
            self.low is None or self.high is None or self.low >= self.high
        ):
            raise ValueError(
                f"a {self.kind} label needs bounds low < high, got low={self.low}, high={self.high}"
            )
        if self.low is not None and self.high is not None and isinf(self.high - self.low):
            raise ValueError(f"low={self.low} and high={self.high} are too far apart for a number")
        if self.kind == "regression" and self.scaled_to[0] >= self.scaled_to[1]:
            raise ValueError(f"scaled_to must rise, got scaled_to={list(self.scaled_to)}")
        return self

    @property
    def signs(self) -> tuple[tuple[float, tuple[str, ...]], ...]:
        """The declared texts of a binary label, by target."""
        return (1.0, self.positive), (-1.0, self.negative)

    def check_texts(self, strip: bool) -> None:
        """Raise ``InputError`` where one text of the file would be two targets."""
        levels = [text.casefold() for text in self.levels] if self.ignore_case else self.levels
        check_distinct(levels, "label.levels", strip)
        negative = {self.text_of(text, strip) for text in self.negative}
        both = next((text for text in self.positive if self.text_of(text, strip) in negative), None)
        if both is not None:
            raise InputError(
                f"{both!r} is declared both positive and negative (both read "
                f"{self.text_of(both, strip)!r}); drop one."
            )

    def text_of(self, value: Any, strip: bool) -> str:
        """The text by which a label compares: canonical, and without capitals where they do not
        count.
        """
        text = canonical(value, strip)
        return text.casefold() if self.ignore_case else text


class SourceSpec(Strict):
    """Where the rows come from. ``path``: files, globs or folders of parts, here or as URLs, read
    one after the other;
    ``tag``: a column that says which file a row came from, with one of ``tags`` a file; ``how``:
    how to get a missing file. ``format`` is needed where first bytes do not tell it: of files of
    numbers. ``sheet`` names one of a workbook;
    ``value_labels``: labelled codes of SPSS and Stata are their labels. ``kind: sql``: the rows of
    one ``table`` or plain view that meet ``where``, a condition on the row itself, at the
    SQLAlchemy URL in the environment variable ``url_from``. ``rows_by_user``: each row of the view
    follows from the records of the one person whom it names, however it joins and sums; for
    ``unit: user``, and told in the statement."""

    kind: Literal["file", "sql", "generator", "openml", "kddcup99"] = "file"
    format: Literal[
        "csv", "parquet", "feather", "arff", "excel", "stata", "sas", "spss",
        "svmlight", "letor", "idx", "dat", "cifar10",
    ] = "csv"  # fmt: skip
    path: Texts = ()
    sheet: str | None = None
    value_labels: bool = True
    url_from: str = "DPFLOWS_SOURCE_URL"
    table: str | None = None
    where: str = ""
    rows_by_user: bool = False
    tag: str | None = None
    tags: Texts = ()
    generator: str | None = None
    arguments: dict[str, int] = {}
    data_id: int | None = None
    rename: dict[str, str] = {}
    how: str = ""

    @property
    def stands(self) -> bool:
        """Whether the rows stand somewhere, in files or a database, and are not made or fetched."""
        return self.kind in ("file", "sql")

    @model_validator(mode="after")
    def _one_table(self) -> SourceSpec:
        """A database is named by a variable of the environment: its URL may hold a password."""
        if self.kind == "sql" and not self.table:
            raise ValueError("kind: sql needs table, the name of one table or view")
        if self.kind != "sql" and (self.table or self.where):
            raise ValueError("table and where are of kind: sql, got kind: " + self.kind)
        if self.rows_by_user and self.kind != "sql":
            raise ValueError("rows_by_user is of kind: sql, got kind: " + self.kind)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.url_from):
            raise ValueError(
                "url_from names a variable of the environment that holds the URL, got another "
                "text; write for example DPFLOWS_SOURCE_URL."
            )
        return self

    @model_validator(mode="after")
    def _tagged(self) -> SourceSpec:
        if self.tag and len(self.tags) != len(self.path):
            raise ValueError(
                f"tags must name each of the {len(self.path)} files, got {len(self.tags)}"
            )
        return self


# Blanks that stand between thousands: plain, no-break, thin, narrow no-break.
BLANK_MARKS = " \u00a0\u2009\u202f"


class TextSpec(Strict):
    """How text files are laid out.

    ``skip_lines`` counts the lines of the file, as an editor does, whatever stands in quotes; the
    header is the record after them. ``thousands`` stands before groups of digits; a blank is every
    kind of blank.
    """

    separator: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    quote: str = '"'
    header: bool = True
    names: Texts = ()
    skip_lines: int = Field(default=0, ge=0)
    strip: bool = True

    @model_validator(mode="after")
    def _one_meaning(self) -> TextSpec:
        """Each mark is one character with one meaning."""
        marks = {"decimal": self.decimal, "quote": self.quote, "thousands": self.thousands}
        seen: dict[str, str] = {}
        for name, mark in marks.items():
            if mark is None:
                continue
            if len(mark) != 1 or mark.isalnum() or (mark.isspace() and name != "thousands"):
                raise ValueError(
                    f"{name} is one character, no letter, digit or blank, got {mark!r}"
                )
            if mark in seen:
                raise ValueError(
                    f"{seen[mark]} and {name} are both {mark!r}; a mark has one meaning"
                )
            seen[mark] = name
        if self.separator == self.quote:
            raise ValueError(f"separator and quote are both {self.quote!r}; a mark has one meaning")
        return self


class SplitSpec(Strict):
    """Training and test part.

    ``file``: the test part is a second file; ``hash``: a row goes by a hash of its ``by`` columns
    (of all its columns if none is named), so that it stays on one side for ever; for published rows
    alone (where a row is removed, the others move) ``tail``: rows after the first n are the test
    part, and ``position``: by a hash of the row's number.
    """

    kind: Literal["none", "file", "hash", "tail", "position"] = "none"
    path: Texts = ()
    skip_lines: int | None = Field(default=None, ge=0)
    by: Texts = ()
    test_share: float = Field(default=0.2, gt=0, lt=1)
    salt: str = ""


class PublicSpec(Strict):
    """Public counts. ``n``: rows of the training part, exact under replace-one, nominal under
    add/remove; with blocks ``rows_per_block`` is declared and n = rows_per_block * blocks.
    ``public``: the rows themselves are published. For unit user both count users, and
    ``rows_per_user`` is how many rows of one user a training keeps."""

    n: int | None = Field(default=None, ge=1)
    rows_per_block: int | None = Field(default=None, ge=1)
    rows_per_user: int | None = Field(default=None, ge=1)
    public: bool = False

    @model_validator(mode="after")
    def _counted(self) -> PublicSpec:
        if (self.n is None) == (self.rows_per_block is None):
            raise ValueError("declare n or rows_per_block, one of them")
        return self


# How the blocks of a date are named, and moments by which a format is tried.
DATES = {"year": "%Y", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d"}
PROBES = tuple(
    datetime(*when, tzinfo=UTC) for when in ((2011, 1, 31, 13, 45), (2024, 12, 30, 1, 2))
)
ISO = "ISO8601"  # as pandas calls every form of that standard


def read_as(moment: datetime, form: str) -> datetime | None:
    """What is left of ``moment`` when it is written and read by ``form``; None for no format."""
    try:
        return datetime.strptime(moment.strftime(form), form)
    except (ValueError, re.error):
        return None


class BlockSpec(Strict):
    """The block of a row in the ledger: the value of a column, the year, month, ISO week or day of
    its date, or one of ``count`` parts by a hash of it (which covers all rows of one person when
    the column is the person's id)."""

    column: str
    by: Literal["value", "year", "month", "week", "day", "hash"] = "value"
    count: int = Field(16, ge=2, le=MOST_BLOCKS)
    format: str = "%Y-%m-%d"

    @model_validator(mode="after")
    def _readable_format(self) -> BlockSpec:
        """A format has to say the whole of what a block is named by."""
        part = DATES.get(self.by)
        for moment in PROBES if part is not None and self.format != ISO else ():
            found = read_as(moment, self.format)
            if found is None or found.strftime(str(part)) != moment.strftime(str(part)):
                raise ValueError(
                    f"Expected a block.format from which the {self.by} of a date follows, got "
                    f"{self.format!r}; write directives of Python's strptime, for example "
                    "'%Y-%m-%d', or ISO8601."
                )
        return self
