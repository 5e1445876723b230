"""The declared facts of a data set: columns, labels, layout of the file, split, unit of privacy,
public counts.

A schema is written by people who know the data's documentation, not read from the rows; every
width, level and bound of a run comes from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dpcore.errors import InputError
from dpcore.features import Column, FeatureGroup
from dpcore.identity import canonical_marks, check_distinct
from tasks.schema.sections import (
    BlockSpec,
    ColumnSpec,
    GroupSpec,
    LabelSpec,
    PublicSpec,
    SourceSpec,
    SplitSpec,
    Strict,
    Texts,
    TextSpec,
)

if TYPE_CHECKING:
    from dpcore.preprocess import Encoder, MatrixEncoder


class Schema(Strict):
    """All that is declared about a data set.

    ``bounds``: where bounds and levels of the columns come from. ``declared``; ``private``: those
    that are left open are estimated with noise within the run's own (epsilon, delta), of which the
    estimate alone takes ``bounds_share``;
    ``from_data``: read from the rows, for experiments that are never released.
    ``drafted: from_rows`` marks a schema that `dpflows profile` drafted by reading rows: it trains,
    and is not releasable until a person has reviewed every bound and level and taken the mark away.
    """

    labelled: ClassVar[bool] = True  # whether rows have the label column

    schema_version: Literal[1]
    name: str
    description: str = ""
    licence: str = ""
    unit: Literal["record", "user", "session", "session_labels"] = "record"
    ledger: str | None = None
    public: PublicSpec
    source: SourceSpec = SourceSpec()
    text: TextSpec = TextSpec()
    missing: Texts = ()
    columns: dict[str, ColumnSpec] = Field(default={})
    features: tuple[GroupSpec, ...] = ()
    label: LabelSpec
    split: SplitSpec = SplitSpec()
    crosses: tuple[tuple[Any, ...], ...] = ()  # pairs of columns that are encoded as products
    bounds: Literal["declared", "private", "from_data"] = "declared"
    bounds_share: float = 0.1
    drafted: Literal["from_rows"] | None = None
    block: BlockSpec | None = None
    undeclared: Literal["refuse", "ignore"] = "refuse"
    relevant: Texts = ()  # columns that are known to matter: the truth behind generated data

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        """A name stands in the ledger, in tags and in names of folders."""
        if (
            not 0 < len(name) <= 200
            or not name.isprintable()
            or name != name.strip()
            or name[0] == "."
        ):
            raise ValueError(
                "name is 1 to 200 printable characters, no blank around and no dot first, got "
                f"{name!r}"
            )
        if set(name) & set("/\\'`"):
            raise ValueError(
                f"name has no slash and no quote, which would name other places, got {name!r}"
            )
        return name

    @field_validator("bounds_share", mode="before")
    @classmethod
    def _part_of_the_budget(cls, value: Any) -> Any:
        try:
            share = nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            share = nan
        if not 0.0 < share < 1.0:
            raise ValueError(
                "Expected a share of the run's epsilon and delta strictly between 0 and 1, got "
                f"{value!r}; for example 0.1."
            )
        return share

    @model_validator(mode="after")
    def _known_truth(self) -> Schema:
        groups = self.groups
        known = {name for name, c in self.columns.items() if c.feature} | {
            n for g in groups for n in g.names
        }
        unknown = [name for name in self.relevant if name not in known]
        if unknown:
            raise ValueError(f"relevant names {unknown[0]!r}, which is no feature column")
        return self

    @model_validator(mode="after")
    def _columns_fit(self) -> Schema:
        if bool(self.columns) == bool(self.features):
            raise ValueError(
                "declare columns (a table) or features (a file of numbers), one of them"
            )
        declared = self.columns.get(self.label.column)
        if declared is not None and declared.feature:
            raise ValueError(
                f"the label {self.label.column!r} is also declared as a feature; leave it out of "
                "columns"
            )
        if self.block and self.columns and self.block.column not in self.columns:
            raise ValueError(f"the block column {self.block.column!r} is not among the columns")
        if self.block and not self.columns:
            raise ValueError(
                "block needs declared columns: a file of numbers has no column "
                f"{self.block.column!r}"
            )
        return self

    @model_validator(mode="after")
    def _rows_fit(self) -> Schema:
        if self.unit == "user" and not any(c.kind == "user" for c in self.columns.values()):
            raise ValueError("unit: user needs a column of kind user")
        if self.source.rows_by_user and self.unit != "user":
            raise ValueError(
                f"source.rows_by_user is for unit: user, got unit: {self.unit}: what one record "
                "moves in a view of several tables could not be told"
            )
        self._distinct_texts()
        if self.split.kind in ("tail", "position") and not (self.public.public and self.public.n):
            raise ValueError(
                f"split.kind {self.split.kind} needs public.n and public.public: true; private "
                "rows need hash or file"
            )
        return self

    @model_validator(mode="after")
    def _bounds_fit(self) -> Schema:
        if self.bounds == "declared":
            self.declared_columns()
        for name in self.undeclared_columns:
            if self.columns[name].kind not in ("numeric", "categorical"):
                raise ValueError(
                    f"column {name!r} is of kind {self.columns[name].kind}, for which bounds: "
                    f"{self.bounds} finds nothing; declare its levels in their order, or low and "
                    "high"
                )
        return self

    def _distinct_texts(self) -> None:
        """Raise ``ValueError`` where two declared levels or labels are one by the identity rule."""
        self.label.check_texts(self.text.strip)
        for name, column in self.columns.items():
            check_distinct(column.levels, f"the levels of column {name!r}", self.text.strip)

    def marks(self, name: str) -> frozenset[str]:
        """The declared marks of no value in a column, by the identity rule."""
        spec = self.columns.get(name)
        own = None if spec is None else spec.missing
        return canonical_marks(
            self.missing if own is None else own, self.text.strip, self.text.decimal
        )

    def declared_columns(self) -> tuple[Column, ...]:
        """The feature columns as the encoder takes them."""
        return tuple(c.column(name, self.missing) for name, c in self.columns.items() if c.feature)

    @property
    def groups(self) -> tuple[FeatureGroup, ...]:
        """The groups of a file of numbers as the encoder takes them."""
        return tuple(g.group(self.missing) for g in self.features)

    def encoder(
        self,
        normalise: str = "cap",
        numeric: str = "minmax",
        intercept: bool = True,
        sparse: bool | str = "auto",
        dtype: str = "float64",
        crosses: Sequence[Any] | None = None,
        cross_width: int | None = None,
    ) -> Encoder | MatrixEncoder:
        """The encoder of this schema: its ``design`` is complete before any file is opened.

        ``crosses``: pairs of columns in place of those that the schema declares.
        """
        # a schema alone is read without scikit-learn
        from dpcore.preprocess import Encoder, MatrixEncoder

        common: dict[str, Any] = {
            "normalise": normalise,
            "numeric": numeric,
            "intercept": intercept,
            "sparse": sparse,
            "dtype": dtype,
        }
        pairs = self.crosses if crosses is None else crosses
        if self.columns:
            common |= {"crosses": tuple(pairs)}
            common |= {} if cross_width is None else {"cross_width": cross_width}
            return Encoder(self.declared_columns(), strip=self.text.strip, **common).fit()
        if pairs:
            raise InputError(
                f"Expected no crosses for {self.name!r}, a file of numbers without named columns; "
                "leave crosses out."
            )
        return MatrixEncoder(self.groups, **common).fit()

    def estimated(self, found: dict[str, dict[str, Any]]) -> Schema:
        """This schema with the bounds and levels of ``found`` (column -> fields) put where none
        were declared.
        """
        columns = {k: c.model_copy(update=found.get(k, {})) for k, c in self.columns.items()}
        return self.model_copy(update={"columns": columns})

    @property
    def undeclared_columns(self) -> tuple[str, ...]:
        """Columns that need bounds or levels from a source other than declaration."""
        return tuple(name for name, c in self.columns.items() if c.feature and _open(c))

    @property
    def releasable(self) -> tuple[bool, str]:
        """Whether the source of bounds and levels allows a release, and the reason for the
        statement.
        """
        if self.drafted is not None and not self.public.public:
            return False, (
                "bounds and levels were drafted by reading private rows (drafted: from_rows); "
                "review them, then remove the mark"
            )
        if self.bounds == "from_data":
            return (
                False,
                "bounds and levels were read from the private rows (bounds: from_data); epsilon "
                "omits that",
            )
        if self.bounds == "private":
            return (
                True,
                "bounds and levels: private (estimated with noise; the estimate is part of the "
                "price)",
            )
        return True, f"bounds and levels: {self.bounds}"

    def n(self, blocks: int = 1) -> int:
        """The public count of the training part; with declared ``rows_per_block``, for that many
        blocks.
        """
        if self.public.n is not None:
            return self.public.n
        return (self.public.rows_per_block or 0) * blocks


class Unlabelled(Schema):
    """Rows to score: those of a data set, whose label column may be there and is not read."""

    labelled: ClassVar[bool] = False


def _open(column: ColumnSpec) -> bool:
    if column.kind in ("categorical", "ordinal"):
        return not column.levels
    return column.kind in ("numeric", "date") and (column.low is None or column.high is None)
