"""Raw table to design matrix: an encoder that is complete before any row is seen.

Names, widths, blocks and the norm bound follow from the declared columns alone, so they are public
facts. A row never changes how another row is encoded, and every row is brought within the declared
bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin

from dpcore.errors import InputError, unknown_name
from dpcore.features import Column, numeric_maps
from dpcore.identity import check_distinct, declared_names
from dpcore.objective.rounding import shortened
from dpcore.preprocess.column_encoders import ColumnEncoder
from dpcore.preprocess.design import Design, EncodingReport
from dpcore.preprocess.frames import as_frame
from dpcore.preprocess.parts import (
    CROSS_WIDTH,
    Cross,
    CrossPart,
    Slots,
    build_parts,
    check_terms,
    cross_parts,
    place,
)
from dpcore.problem import Block

NORMALISE = ("none", "cap", "unit")
SPARSE_BELOW = 0.4  # share of slots to columns under which products on CSR are the faster ones


class Encoder(TransformerMixin, BaseEstimator):
    """Encode declared columns as numbers in [0, 1], with ||x||_2 <= ``design.norm_bound`` for every
    row.

    ``columns``: declared ``Column`` objects (or their dicts), in output order. ``numeric``:
    ``minmax`` (one column), ``log`` (one column, on the signed log scale where the declared span is
    at least 200), ``hats(k)`` (k overlapping parts that sum to 1; ``hats`` is 8 of them),
    ``bins(k)`` (k parts, one of which is 1) or ``centred`` (one column onto [-1, 1], which is in no
    block). ``+bins(k)`` behind one of them adds k fine bins for columns of a declared span of at
    least 200, on the signed log scale. ``crosses``: pairs of columns whose product is encoded
    beside them, as in ``[["month", {"duration": "bins(6)"}]]``; none has more than ``cross_width``
    columns. ``intercept`` appends a constant 1 *before* the rows are normalised. ``normalise``:
    ``none`` (bound sqrt(attributes + 1): each attribute's parts have norm at most 1), ``cap`` (rows
    longer than 1 are shortened to 1) or ``unit`` (rows have length 1; a zero row stays zero).
    ``sparse``: CSR or dense; ``auto`` decides from the declared widths. ``strip``: ignore blanks
    around text.

    ``fit`` learns nothing. Refused values raise ``InputError`` naming row, column, value, rule and
    way out.
    """

    def __init__(
        self,
        columns: Sequence[Column | Mapping[str, Any]] = (),
        normalise: str = "cap",
        numeric: str = "minmax",
        intercept: bool = True,
        sparse: bool | str = "auto",
        strip: bool = True,
        dtype: str = "float64",
        crosses: Sequence[Any] = (),
        cross_width: int = CROSS_WIDTH,
    ) -> None:
        self.columns = columns
        self.normalise = normalise
        self.numeric = numeric
        self.intercept = intercept
        self.sparse = sparse
        self.strip = strip
        self.dtype = dtype
        self.crosses = crosses
        self.cross_width = cross_width

    def fit(self, X: Any = None, y: Any = None) -> Encoder:
        """Check the declarations; rows are not looked at."""
        _ = self.design
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def design(self) -> Design:
        """Names, blocks and norm bound, from the declarations alone."""
        return self._compiled().design

    @property
    def parts(self) -> tuple[ColumnEncoder, ...]:
        """The parts that fill the slots, in their order; crosses last."""
        plan = self._compiled()
        return (*plan.parts, *plan.crosses)

    @property
    def crossed(self) -> dict[str, int]:
        """How many columns each cross adds, from the declarations alone."""
        return {cross.name: cross.width for cross in self._compiled().crosses}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that are read, in declared order."""
        return tuple(_column(column).name for column in self.columns)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.array(self.design.names, dtype=object)

    def transform(self, X: pd.DataFrame) -> np.ndarray | csr_array:
        """Encode a frame that has the declared columns by name, shape (n, d); other columns are not
        read.
        """
        return self.encode(X, EncodingReport())

    def encode(self, frame: pd.DataFrame, tally: EncodingReport) -> np.ndarray | csr_array:
        """As ``transform``; counts what was clipped, filled and unknown in ``tally``, which also
        names file and row.
        """
        index, value = self.slots(frame, tally)
        plan = self._compiled()
        return assemble(
            index, shorten(value, self.normalise, self.dtype), plan.design.dimension, plan.sparse
        )

    def slots(
        self, frame: pd.DataFrame, tally: EncodingReport, by_column: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Columns and values, (rows, slots) each, of rows that are not shortened yet; in memory row
        by row, or ``by_column`` slot by slot.

        The constant is the last slot.
        """
        frame = as_frame(frame)
        if not isinstance(frame, pd.DataFrame):
            raise InputError(
                f"Expected a pandas DataFrame with named columns, got {type(frame).__name__}; name "
                "them."
            )
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise InputError(
                f"Expected each column once, got two columns named {twice!r}; rename one."
            )
        plan = self._compiled()
        rows = len(frame)
        order: Literal["C", "F"] = "F" if by_column else "C"
        index = np.empty((rows, plan.slots), dtype=np.int32, order=order)
        value = np.zeros((rows, plan.slots), order=order)
        found = declared_names(frame.columns, self.inputs)
        for part in plan.parts:
            name = part.column.name
            if name not in found:
                raise unknown_column(name, frame.columns)
            if not part.fine:  # a fine part follows a part of the same column
                points, blank = part.points(_cells(frame, found, name), tally, self.strip)
            here = slice(part.slot, part.slot + part.slots)
            part.write(points, blank, index[:, here], value[:, here])
        tally.raise_faults()
        for cross in plan.crosses:
            sides = [
                self._slots(side, frame, found, index, value) for side in (cross.one, cross.other)
            ]
            columns, values = cross.product(*sides)
            here = slice(cross.slot, cross.slot + cross.slots)
            index[:, here], value[:, here] = cross.start + columns, values
        if self.intercept:
            index[:, -1] = plan.design.dimension - 1
            value[:, -1] = 1.0
        return index, value

    def _slots(
        self,
        part: ColumnEncoder,
        frame: pd.DataFrame,
        found: Any,
        index: np.ndarray,
        value: np.ndarray,
    ) -> Slots:
        """Columns and values of one side of a cross: those of its own part, or cut anew for the
        cross.
        """
        if any(part is own for own in self._compiled().parts):
            here = slice(part.slot, part.slot + part.slots)
            return index[:, here] - part.start, value[:, here]
        # what is clipped or filled was counted where the column itself was encoded
        points, blank = part.points(
            _cells(frame, found, part.column.name), EncodingReport(), self.strip
        )
        columns, values = part.basis(points)
        if blank is not None:
            values[blank] = 0.0
        return columns, values

    def to_dict(self) -> dict[str, Any]:
        """Settings and columns as plain JSON values; crosses only where there are some."""
        left_out = {"columns", "crosses", "cross_width"}
        settings = {k: v for k, v in self.get_params(deep=False).items() if k not in left_out}
        if self.crosses:
            pairs = [_cross(pair).to_list() for pair in self.crosses]
            settings |= {"crosses": pairs, "cross_width": self.cross_width}
        return {
            "encoder": "table",
            **settings,
            "columns": [_column(c).to_dict() for c in self.columns],
        }

    def to_json(self) -> str:
        """The whole encoder as plain JSON, to be stored with a model."""
        return json.dumps({"schema_version": 1, **self.to_dict()}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Encoder:
        """Exact inverse of ``to_json``; raises ``InputError`` on unknown fields or another
        version.
        """
        settings = read_settings(text, "table", cls._get_param_names())
        return cls(
            **{**settings, "columns": tuple(Column.from_dict(c) for c in settings["columns"])}
        )

    def _compiled(self) -> _Plan:
        settings = (
            self.normalise,
            self.numeric,
            self.intercept,
            self.sparse,
            self.dtype,
            self.strip,
            self.cross_width,
        )
        key = (self.columns, self.crosses, *settings)
        cached: tuple[tuple[Any, ...], _Plan] | None = self.__dict__.get("_cache")
        if (
            cached is None
            or any(old is not new for old, new in zip(cached[0][:2], key, strict=False))
            or (cached[0][2:] != settings)
        ):
            cached = self.__dict__["_cache"] = (key, _Plan(self))
        return cached[1]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_cache"}


def _check_columns(columns: list[Column], strip: bool) -> None:
    names = [column.name for column in columns]
    for column in columns:
        if names.count(column.name) > 1:
            raise InputError(
                f"Expected each column once, got {column.name!r} twice; drop one declaration."
            )
        check_distinct(column.levels, f"the levels of column {column.name!r}", strip)


class _Plan:
    """What the declarations of an encoder come to: parts with their places, the design, the
    layout.
    """

    def __init__(self, encoder: Encoder) -> None:
        check_settings(encoder.normalise, encoder.sparse, encoder.dtype)
        numeric_maps(encoder.numeric)
        columns = [_column(c) for c in encoder.columns]
        _check_columns(columns, encoder.strip)
        self.parts: list[ColumnEncoder] = build_parts(columns, encoder.numeric, encoder.strip)
        crosses = [_cross(pair) for pair in encoder.crosses]
        self.crosses: list[CrossPart] = cross_parts(
            crosses, columns, self.parts, encoder.cross_width, encoder.strip
        )
        every = [*self.parts, *self.crosses]
        check_terms(every)
        place(every)
        intercept = bool(encoder.intercept)
        self.slots = sum(p.slots for p in every) + intercept
        attributes = len(every) + intercept
        labels = (*chain.from_iterable(p.names for p in every), *["intercept"] * intercept)
        if not labels:
            raise InputError(
                "Expected at least one column to encode, got none; declare columns or an intercept."
            )
        # rows can only grow under "unit" without a constant column, and then hats no longer sum to
        # at most 1
        whole = encoder.normalise != "unit" or encoder.intercept
        blocks = tuple(chain.from_iterable(part_blocks(p, whole) for p in every))
        bound = math.sqrt(attributes) if encoder.normalise == "none" else 1.0
        self.design = Design(names=labels, blocks=blocks, norm_bound=bound, intercept=intercept)
        self.sparse = (
            self.slots <= SPARSE_BELOW * len(labels)
            if encoder.sparse == "auto"
            else bool(encoder.sparse)
        )


def part_blocks(part: ColumnEncoder, whole: bool) -> tuple[Block, ...]:
    """The blocks of one part: its columns together where their sum is at most 1, else one by
    one.
    """
    columns = tuple(range(part.start, part.start + part.width))
    if not columns or not part.block:
        return ()
    if part.block == "numeric" or (part.slots > 1 and not whole):
        return tuple(Block((j,), "numeric") for j in columns)
    return (Block(columns, "one_hot", part.fine),)


def shorten(value: Any, normalise: str, dtype: str) -> Any:
    """Scale rows as ``normalise`` says, so that their norm is at most 1, rounding included.

    In float32 a relative margin of 5e-7 keeps the rounded rows within the bound.
    """
    if normalise != "none":
        value = shortened(value, normalise == "cap")
    if dtype == "float32":
        return (value * (1.0 - 5e-7)).astype(np.float32)
    return value


def assemble(
    index: np.ndarray, value: np.ndarray, dimension: int, sparse: bool
) -> np.ndarray | csr_array:
    """Rows of (column, value) slots, in column order, as CSR without stored zeros, or as a dense
    matrix.
    """
    rows = len(value)
    if sparse:
        kept = value != 0.0
        ends = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(kept.sum(axis=1), out=ends[1:])
        matrix = csr_array((value[kept], index[kept], ends), shape=(rows, dimension))
        matrix.has_canonical_format = True
        return matrix
    dense = np.zeros((rows, dimension), dtype=value.dtype)
    dense[np.arange(rows)[:, None], index] = value
    return dense


def check_settings(normalise: str, sparse: bool | str, dtype: str) -> None:
    if normalise not in NORMALISE:
        raise unknown_name("normalise", normalise, NORMALISE)
    if sparse not in ("auto", True, False):
        raise InputError(f"Expected sparse to be auto, true or false, got sparse={sparse!r}.")
    if dtype not in ("float64", "float32"):
        raise InputError(f"Expected dtype float64 or float32, got dtype={dtype!r}.")


def read_settings(text: str, kind: str, names: Sequence[str]) -> dict[str, Any]:
    """Parse a stored encoder of ``kind`` and check version and fields."""
    settings: dict[str, Any] = json.loads(text)
    version, stored = settings.pop("schema_version", None), settings.pop("encoder", None)
    if version != 1 or stored != kind:
        raise InputError(
            f"Expected a stored {kind} encoder of schema_version 1, got {stored!r} of version "
            f"{version!r}."
        )
    for name in settings:
        if name not in names:
            raise unknown_name("field of a stored encoder", name, names)
    return settings


def unknown_column(name: str, present: Any) -> InputError:
    """The error for a declared column that a table lacks."""
    near = str(unknown_name("column", name, [str(c) for c in present])).partition(";")[2]
    return InputError(f"Expected column {name!r}, which the table lacks; its columns differ:{near}")


def _cells(frame: pd.DataFrame, found: Mapping[str, Any], name: str) -> pd.Series:
    """The declared column ``name`` of a table, under that name; ``found`` says how the table spells
    it.
    """
    cells: pd.Series = frame[found[name]]
    return cells if found[name] == name else cells.rename(name)


def _cross(pair: Any) -> Cross:
    return pair if isinstance(pair, Cross) else Cross.of(pair)


def _column(column: Column | Mapping[str, Any]) -> Column:
    return column if isinstance(column, Column) else Column.from_dict(dict(column))
