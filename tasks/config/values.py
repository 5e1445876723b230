"""What stands in a configuration: numbers, places of files, lists; no section has unknown keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from dpcore.ranking.losses import TARGETS

# The odds of a guess about a record may change by e^100 here: what is larger is a slip, and
# promises nothing.
MOST_EPSILON = 100.0


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _number(value: object) -> object:
    """Refuse what Python would silently take for a number: True is not 1, and infinity is no
    budget.
    """
    if isinstance(value, bool):
        raise ValueError("a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    if isinstance(value, str) and value.strip().lower().lstrip("+-") in ("inf", "infinity", "nan"):
        raise ValueError("a finite number")
    return value


def _whole(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("a whole number")
    return value


def _number_or_target(value: object) -> object:
    """A number, or the name of what a ranking loss takes from the labels."""
    if isinstance(value, str) and value not in TARGETS:
        try:
            value = float(value)
        except ValueError:
            raise ValueError("a number") from None
    return _number(value)


def _places(value: object) -> object:
    """One place of files (a file, a glob, a folder, a URL), or a list of them."""
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(v, str) and v for v in value):
        return tuple(value)
    raise ValueError("a file, a glob, a folder, a URL, or a list of them")


def _listed(value: Any) -> Any:
    """A single value stands for a list of one."""
    return value if value is None or isinstance(value, (list, tuple)) else (value,)


def named(value: object) -> object:
    """A bare name stands for a section with that name."""
    return tuple({"name": item} if isinstance(item, str) else item for item in _listed(value) or ())


def _unique(values: Sequence[Any]) -> Sequence[Any]:
    if not values:
        raise ValueError("at least one")
    if len(set(map(str, values))) < len(values):
        raise ValueError("each value once")
    return values


Places = Annotated[
    str | tuple[str, ...] | None,
    PlainValidator(_places, json_schema_input_type=str | list[str] | None),
]
Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1)]
NumberOrTarget = Annotated[float | str, BeforeValidator(_number_or_target)]
LIST = (BeforeValidator(lambda value: _unique(_listed(value))),)
Names = Annotated[tuple[str, ...], *LIST]
Values = Annotated[tuple[Any, ...], *LIST]
Positive = Annotated[Number, Field(gt=0)]
Epsilon = Annotated[Number, Field(gt=0, le=MOST_EPSILON)]
Strength = Annotated[Number, Field(ge=0)]
