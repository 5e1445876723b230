"""Which form of noise a run uses: floating point with rounded output, or exact integer noise on a grid."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from dpcore.errors import InputError, unknown_name
from dpcore.mechanisms.base import Mechanism
from dpcore.mechanisms.laplace import Laplace
from dpcore.noise import FORMS

# Share of the sensitivity that rounding the input costs in the exact form: 0.1 % more noise.
ROUNDING = 2.0**-10


def in_form(mechanism: Mechanism, form: str) -> Mechanism:
    """``mechanism`` with its noise in ``form``: "rounded" (itself) or "discrete" (its ``rounding`` set to 2^-10).

    The mechanism on a batch is changed inside it; one without noise stays. A plan and the door that runs it must use
    one form, so that price and noise agree. Raises ``InputError`` for a mechanism that has no exact form.
    """
    if form not in FORMS:
        raise unknown_name("form of noise", form, FORMS)
    if form == "rounded" or mechanism.kind == "exact":
        return mechanism
    item: Any = mechanism
    if hasattr(item, "mapped"):  # a mechanism made of others
        return item.mapped(lambda inner: in_form(inner, form))
    names = {field.name for field in fields(item)}
    if "mechanism" in names:
        return replace(item, mechanism=in_form(item.mechanism, form))
    if "rounding" not in names:
        raise InputError(
            f"Expected a mechanism with an exact form for noise='discrete', got {mechanism.kind!r}; "
            "use noise='rounded' for this algorithm."
        )
    return replace(item, rounding=item.rounding or ROUNDING)


def laplace_for(sensitivity: float, epsilon: float, form: str) -> Laplace:
    """Laplace noise in ``form`` of pure ``epsilon`` for a value of L1 ``sensitivity``, the rounding paid by scale."""
    made = in_form(Laplace(sensitivity, sensitivity / epsilon), form)
    assert isinstance(made, Laplace)
    return replace(made, scale=sensitivity * (1.0 + made.rounding) / epsilon)
