"""Declared columns and the public maps from a raw value to numbers in [0, 1].

Everything here follows from declarations alone: bounds, levels, formats. No width, level or bound
is read from rows.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import numpy as np

from dpcore.errors import InputError, number_bounds, require_count, unknown_name
from dpcore.identity import canonical, check_distinct

KINDS = ("numeric", "flag", "categorical", "ordinal", "date")
GROUP_KINDS = ("numeric", "flag", "one_hot")
UNKNOWN_RULES = ("refuse", "zeros", "other")
DATE_PARTS = ("year", "month", "day", "weekday", "hour", "elapsed")
# The finest split of one column by ``hats(k)``.
MOST_HATS = 10_000
# The most parts of a hash that levels fall into.
MOST_BUCKETS = 2**20
# The most steps of a declared grid.
MOST_STEPS = 16_383
WIDE_SPAN = 200.0  # from this declared span on, "log" and "hats" work on the signed log scale
ZEROS = "zeros"
# What a text has to be to be read as a number: ASCII digits, one point, an exponent; no marks of
# thousands.
NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)


def number_of(text: str) -> float:
    """The number that ``text`` is, correctly rounded; blanks around it do not count.

    The same in every file format and in a stored model: what Python alone reads (1_000, digits of
    other scripts) is no number. Raises ``ValueError`` for other texts.
    """
    bare = text.strip()
    if not NUMBER.fullmatch(bare):
        raise ValueError(f"{text!r} is no number")
    return float(bare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One declared column of a raw table.

    ``low``/``high``: public bounds of a numeric column (of a date: ISO texts), in the column's own
    unit; values beyond are clipped. ``levels``: texts, in their order; or ``buckets``
    parts into which levels fall by a hash of their text. ``unknown``: what an
    undeclared level becomes: ``refuse``, ``zeros`` (all parts 0) or ``other`` (one more column).
    ``missing``: texts that stand for no value, beside an empty cell.
    ``fill``: what a missing or non-finite value becomes: a number, a level or ``zeros``; None
    refuses it.
    ``drop_first``: leave out the column of the first level. ``numeric``: a map of its own (else the
    encoder's). ``step``: numbers stand on the grid low, low + step, ..., high, and one between two
    points is read as the nearer: such a column is stored as one level a row.
    """

    name: str
    kind: str = "numeric"
    low: float | str | None = None
    high: float | str | None = None
    levels: tuple[str, ...] = ()
    buckets: int = 0
    unknown: str = "refuse"
    missing: tuple[str, ...] = ()
    fill: float | str | None = None
    drop_first: bool = False
    numeric: str | None = None
    step: float | None = None
    format: str = "%Y-%m-%d"
    parts: tuple[str, ...] = ("elapsed",)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name(f"kind of column {self.name!r}", self.kind, KINDS)
        if self.unknown not in UNKNOWN_RULES:
            raise unknown_name(
                f"unknown-level rule of column {self.name!r}", self.unknown, UNKNOWN_RULES
            )
        if self.numeric is not None:
            numeric_maps(self.numeric)
        if self.step is not None and self.kind != "numeric":
            raise InputError(
                f"Expected a step for a numeric column alone, got step={self.step!r} for the "
                f"{self.kind} column {self.name!r}; leave it out."
            )
        if self.kind in ("categorical", "ordinal"):
            self._check_levels()
        elif self.kind in ("numeric", "date"):
            self._check_bounds()
        self._check_fill()

    def _check_fill(self) -> None:
        level = self.kind in ("categorical", "ordinal")
        if isinstance(self.fill, str) and self.fill != ZEROS and not level:
            known = "the word zeros" if self.kind == "date" else "a number or zeros"
            raise InputError(
                f"Expected {known} as fill of column {self.name!r}, got fill={self.fill!r}."
            )
        if isinstance(self.fill, float | int) and not math.isfinite(self.fill):
            raise InputError(
                f"Expected a finite fill of column {self.name!r}, got fill={self.fill!r}."
            )

    def _check_buckets(self) -> None:
        """A column whose levels are parts of a hash has no levels of its own, and no first one."""
        require_count(buckets=self.buckets)
        if self.kind != "categorical" or self.levels or self.drop_first:
            raise InputError(
                "Expected a categorical column without drop_first and listed levels for the "
                f"hashed levels of {self.name!r}, got kind={self.kind!r}, {len(self.levels)} "
                f"levels and drop_first={self.drop_first}; leave the others out."
            )
        if self.buckets > MOST_BUCKETS or self.fill not in (None, ZEROS):
            raise InputError(
                f"Expected at most {MOST_BUCKETS} buckets and the fill zeros for the hashed levels "
                f"of {self.name!r}, got {self.buckets} and fill={self.fill!r}; a level that is "
                "missing has no hash."
            )

    def _check_levels(self) -> None:
        if self.buckets:
            self._check_buckets()
            return
        if not self.levels:
            raise InputError(
                f"Expected declared levels for column {self.name!r}, got none; list them, or set "
                "the source of bounds and levels to private (charged) or from_data (never "
                "releasable)."
            )
        check_distinct(self.levels, f"the levels of column {self.name!r}", strip=False)
        if self.kind == "ordinal" and self.unknown == "other":
            raise InputError(
                f"Expected unknown refuse or zeros for the ordinal column {self.name!r}, got "
                "unknown='other': there is no place for it in the order."
            )
        if self.fill == ZEROS and ZEROS in self.levels:
            raise InputError(
                f"Column {self.name!r} has a level named zeros, so fill={ZEROS!r} is ambiguous; "
                "rename it."
            )
        self._check_fill_is_level()

    def _check_fill_is_level(self) -> None:
        known = {canonical(level, strip=False) for level in self.levels}
        if (
            isinstance(self.fill, str)
            and self.fill != ZEROS
            and canonical(self.fill, strip=False) not in known
        ):
            raise InputError(
                f"Expected fill of column {self.name!r} to be zeros or a declared level, got "
                f"fill={self.fill!r}."
            )

    def _check_bounds(self) -> None:
        if self.low is None or self.high is None:
            raise InputError(
                f"Expected declared bounds low and high for column {self.name!r}, got "
                f"low={self.low!r}, high={self.high!r}; declare them, or set the source of bounds "
                "to private (charged) or from_data (never releasable)."
            )
        if self.kind == "date":
            for part in self.parts:
                if part not in DATE_PARTS:
                    raise unknown_name(f"date part of column {self.name!r}", part, DATE_PARTS)
            low, high = date_bound(self, "low"), date_bound(self, "high")
        else:
            low, high = number_bounds(self.name, self.low, self.high)
            if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
                raise InputError(
                    f"Expected finite bounds of column {self.name!r} a finite distance apart, got "
                    f"low={low!r}, high={high!r}."
                )
        if low > high:
            raise InputError(
                f"Expected low <= high for column {self.name!r}, got low={self.low!r} > "
                f"high={self.high!r}; swap them."
            )
        if self.step is not None:
            self._check_step(low, high, float(self.step))

    def _check_step(self, low: float, high: float, step: float) -> None:
        steps = (high - low) / step if step > 0.0 else math.inf
        if steps > MOST_STEPS or abs(steps - round(steps)) > 1e-6:
            raise InputError(
                f"Expected a step > 0 that goes into high - low a whole number of times, at most "
                f"{MOST_STEPS}, for column {self.name!r}, got step={self.step!r} from {low:g} to "
                f"{high:g}; correct it or the bounds, or leave it out."
            )

    @property
    def grid(self) -> np.ndarray | None:
        """The points of a column with a step, rising; None of the others."""
        if self.step is None:
            return None
        low, high = float(self.low or 0.0), float(self.high or 0.0)
        return low + (high - low) * np.linspace(0.0, 1.0, round((high - low) / self.step) + 1)

    def on_grid(self, numbers: np.ndarray) -> np.ndarray:
        """Each of ``numbers`` or, with a step, the nearest point of the grid."""
        grid = self.grid
        if grid is None:
            return numbers
        place = np.rint((numbers - grid[0]) / float(self.step or 1.0))
        return np.asarray(grid[np.clip(place, 0, len(grid) - 1).astype(np.int64)])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; only what differs from the defaults, beside name and kind."""
        default = Column(name="", kind="flag")
        keep = {
            k: v
            for k, v in asdict(self).items()
            if k in ("name", "kind") or v != getattr(default, k)
        }
        return {k: list(v) if isinstance(v, tuple) else v for k, v in keep.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Column:
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise unknown_name("field of a column", key, known)
        plain: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGroup:
    """``count`` neighbouring columns. ``numeric``: each scaled from [low, high] to [0, 1];
    ``flag``: each 0 or 1;
    ``one_hot``: parts of one attribute, >= 0 with sum <= 1 (a row with a larger sum is scaled down
    and counted).
    ``fill``: what a missing or non-finite value becomes, None refuses it; ``missing``: texts that
    stand for no value.
    """

    name: str
    count: int = 1
    kind: str = "numeric"
    low: float = 0.0
    high: float = 1.0
    fill: float | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_count(count=self.count)
        object.__setattr__(self, "missing", tuple(self.missing))
        if self.fill is not None and not math.isfinite(self.fill):
            raise InputError(f"Expected a finite fill of {self.name!r}, got fill={self.fill!r}.")
        if self.kind not in GROUP_KINDS:
            raise unknown_name(f"kind of feature group {self.name!r}", self.kind, GROUP_KINDS)
        if not (math.isfinite(self.high - self.low) and self.low <= self.high):
            raise InputError(
                f"Expected finite bounds low <= high for {self.name!r}, got low={self.low!r}, "
                f"high={self.high!r}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (
            (self.name,)
            if self.count == 1
            else tuple(f"{self.name}{j + 1}" for j in range(self.count))
        )

    @property
    def attributes(self) -> int:
        """Largest possible squared norm of the group's scaled columns."""
        return 1 if self.kind == "one_hot" else self.count

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a fill and its marks only where there is a fill."""
        values = asdict(self)
        if self.fill is None:
            return {key: value for key, value in values.items() if key not in ("fill", "missing")}
        return values | {"missing": list(self.missing)}


def date_bound(column: Column, side: str) -> float:
    """A declared date bound as days since 1970-01-01."""
    text = str(getattr(column, side))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"Expected an ISO date as {side} of column {column.name!r}, got {side}={text!r}; write "
            "it as 2011-01-31."
        ) from None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() / 86400.0


def numeric_map(text: str) -> tuple[str, int]:
    """Parse one map into (name, number of columns): ``minmax``, ``log``, ``centred``, ``hats(k)``,
    ``bins(k)``.

    ``hats`` is ``hats(8)``. Raises ``InputError`` for anything else.
    """
    if text in ("minmax", "log", "centred"):
        return text, 1
    if text == "hats":
        return "hats", 8
    name, digits = text[:4], text[5:-1] if text[4:5] == "(" and text.endswith(")") else ""
    known = name in ("hats", "bins") and digits.isascii() and digits.isdigit() and len(digits) < 10
    if known and 2 <= int(digits) <= MOST_HATS:
        return name, int(digits)
    raise InputError(
        "Expected numeric to be minmax, log, centred, hats, hats(k) or bins(k) with k >= 2, at "
        f"most {MOST_HATS}, or one of these with +bins(k), got numeric={text!r}."
    )


def numeric_maps(text: str) -> tuple[str, int]:
    """Parse ``MAP`` or ``MAP+bins(k)`` into the first map and the number of fine bins that go with
    it (0: none).

    Fine bins are a second map of the same column, for those of a declared span of ``WIDE_SPAN`` or
    more.
    """
    first, plus, second = text.partition("+")
    numeric_map(first)
    if not plus:
        return first, 0
    name, count = numeric_map(second)
    if name != "bins" or first == "centred":
        raise InputError(
            "Expected bins(k) after the + and a map onto [0, 1] before it, as in "
            f"hats(8)+bins(256), got numeric={text!r}."
        )
    return first, count


def signed_log(values: np.ndarray, low: float) -> np.ndarray:
    """sign(v) * log(1 + |v|), with v = value - low where low > 0, so that 0 of a wide column stays
    on an end.
    """
    shifted = values - low if low > 0 else values
    return np.sign(shifted) * np.log1p(np.abs(shifted))


def unit_interval(values: np.ndarray, low: float, high: float, log: bool = False) -> np.ndarray:
    """Clip to [low, high] and map linearly, or on the signed log scale, onto [0, 1]; a width of 0
    gives 0.

    The result lies in [0, 1] in floating point too: numerator and denominator are the same function
    of clipped values, and division of a smaller by a larger non-negative number does not round
    above 1.
    """
    if high <= low:
        return np.zeros(np.shape(values))
    clipped = np.clip(values, low, high)
    if log:
        bounds = signed_log(np.array([low, high]), low)
        clipped, low, high = signed_log(clipped, low), float(bounds[0]), float(bounds[1])
    share: np.ndarray = np.clip((clipped - low) / (high - low), 0.0, 1.0)
    return share


def from_unit(u: np.ndarray, low: float, high: float, log: bool = False) -> np.ndarray:
    """The values in [low, high] that ``unit_interval`` maps to ``u``, up to rounding."""
    if not log or high <= low:
        return np.asarray(np.clip(low + u * (high - low), low, high))
    first, last = signed_log(np.array([low, high]), low)
    scaled = first + u * (last - first)
    values = np.sign(scaled) * np.expm1(np.abs(scaled)) + (low if low > 0 else 0.0)
    return np.asarray(np.clip(values, low, high))


def bins(u: np.ndarray, count: int) -> np.ndarray:
    """The bin (n,) of each u in [0, 1] among ``count`` of equal width; 1 belongs to the last."""
    return np.minimum((u * count).astype(np.int32), count - 1)


def hats(u: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two non-zero hat functions at u in [0, 1], of max(0, 1 - |(count - 1) u - j|), j = 0 ..
    count - 1.

    Returns (j, left, right): value ``left`` at hat j and ``right`` at hat j + 1. Both are >= 0 and
    they sum to 1.
    """
    scaled = (count - 1) * u
    j = np.minimum(scaled.astype(np.int32), count - 2)
    right = scaled - j
    return j, 1.0 - right, right


MISSING = -1  # the place of a cell without a value among levels
