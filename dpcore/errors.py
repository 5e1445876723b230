"""Errors that a caller may want to handle. Each message names the argument, its value, the rule and
the way out.

``exit_code`` is what the command line returns for the error.

Range checks that name the argument, the value and the rule.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from secrets import token_hex

# How alike two names are to be taken for one misspelt: 0.6 would still take "select" for "seed".
NEAR = 0.65


class DPFlowsError(Exception):
    """Base of every error that this project raises on purpose."""

    exit_code = 1


class InputError(DPFlowsError, ValueError):
    """An argument, a configuration or a file does not follow its rule; nothing was spent."""

    exit_code = 2


class AssumptionNotMet(InputError):
    """The privacy proof of an algorithm needs something that the problem does not have."""


class UnknownName(InputError):
    """A name that no registry holds; the message lists near misses."""


class PriceUnknown(InputError):
    """No theorem that is implemented here gives a price for this mechanism in this place."""


class BudgetExceeded(DPFlowsError):
    """A release or a run costs more than is left. ``asked`` and ``left`` carry the numbers where
    they exist.
    """

    exit_code = 3

    def __init__(
        self, message: str, *, asked: float | None = None, left: float | None = None
    ) -> None:
        super().__init__(message)
        self.asked = asked
        self.left = left


class VerificationFailed(DPFlowsError):
    """An audit, a release gate or a verification found something that must not pass."""

    exit_code = 4


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Those that differ in capitals and blanks alone, however short; else up to three alike."""
    plain = "".join(name.split()).casefold()
    same = [one for one in names if "".join(one.split()).casefold() == plain]
    return same or get_close_matches(name, names, n=3, cutoff=NEAR)


def unknown_name(what: str, name: object, known: Iterable[str], inside: str = "") -> UnknownName:
    """Return the error for a name that is not among ``known``, with the near misses first.

    ``inside`` is the dotted place of the name, shown with it and not part of the likeness.
    """
    full = f"{inside}." if inside else ""
    return UnknownName(f"Unknown {what} {full + str(name)!r}; {hint(str(name), known, full)}")


def hint(name: str, known: Iterable[str], before: str = "") -> str:
    """The near misses of ``name`` with ``before`` before each, or all ``known`` names."""
    names = sorted(known)
    near = [repr(before + one) for one in near_names(name, names)]
    return f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(names)}."


def number_bounds(name: str, low: object, high: object) -> tuple[float, float]:
    """Both bounds of the column ``name`` as numbers; raises ``InputError`` for a text that is
    none.
    """
    try:
        return float(str(low)), float(str(high))
    except ValueError:
        raise InputError(
            f"Expected numbers as low and high of column {name!r}, got low={low!r}, high={high!r}; "
            "correct them, or set kind: date for dates."
        ) from None


# A word that no other process has: a child of a fork draws its own, whatever number it gets.
_word = token_hex(16)


def _after_fork() -> None:
    global _word
    _word = token_hex(16)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def here() -> tuple[int, str]:
    """What tells the running process from every other one, a forked copy of it included."""
    return os.getpid(), _word


def require_maker(maker: tuple[int, str], what: str) -> None:
    """Raise ``DPFlowsError`` unless the running process is ``maker``, the one that made ``what``.

    A fork copies memory: a budget in it could be spent twice, and a stream of secret noise would be
    drawn twice.
    """
    if here() != maker:
        raise DPFlowsError(
            f"Expected {what} to be used by the process that made it (pid {maker[0]}), got process "
            f"{os.getpid()}: a copy would be spent or drawn a second time; use threads, or send "
            "the data and make a new one there."
        )


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"Expected a finite number for {name}, got {name}={value!r}.")
    return float(value)


def require_positive(**named: object) -> None:
    """Raise ``InputError`` unless every value is a finite number above 0."""
    for name, value in named.items():
        if _finite(name, value) <= 0:
            raise InputError(f"Expected {name} > 0, got {name}={value!r}.")


def require_nonnegative(**named: object) -> None:
    """Raise ``InputError`` unless every value is a finite number of at least 0."""
    for name, value in named.items():
        if _finite(name, value) < 0:
            raise InputError(f"Expected {name} >= 0, got {name}={value!r}.")


def require_count(**named: object) -> None:
    """Raise ``InputError`` unless every value is an integer of at least 1."""
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            way_out = ""
            if isinstance(value, float) and value >= 1 and value.is_integer():
                way_out = f"; write it without point or exponent: {int(value)}"
            raise InputError(f"Expected a whole number {name} >= 1, got {name}={value!r}{way_out}.")


# The most releases that a plan lists one by one, and steps that it walks to find a sensitivity.
MOST_RELEASES, MOST_WALKED = 10_000_000, 1_000_000


def require_plannable(count: float, most: int, **named: object) -> None:
    """Raise ``InputError`` where the settings ``named`` make a plan of more than ``most`` steps."""
    if count > most:
        given = ", ".join(f"{name}={value!r}" for name, value in named.items())
        raise InputError(
            f"Expected a plan of at most {most} steps, got {count:.3g} by {given}; lower it."
        )


def require_fraction(**named: object) -> None:
    """Raise ``InputError`` unless every value lies in (0, 1]."""
    for name, value in named.items():
        if not 0 < _finite(name, value) <= 1:
            raise InputError(f"Expected {name} in (0, 1], got {name}={value!r}.")


def require_below_one(**named: object) -> None:
    """Raise ``InputError`` unless every value lies in [0, 1)."""
    for name, value in named.items():
        if not 0 <= _finite(name, value) < 1:
            raise InputError(f"Expected {name} in [0, 1), got {name}={value!r}.")


def require_open_unit(**named: object) -> None:
    """Raise ``InputError`` unless every value lies strictly between 0 and 1."""
    for name, value in named.items():
        if not 0 < _finite(name, value) < 1:
            raise InputError(f"Expected {name} strictly between 0 and 1, got {name}={value!r}.")


def require_choice(choices: tuple[str, ...], **named: object) -> None:
    """Raise ``InputError`` unless every value is one of ``choices``."""
    for name, value in named.items():
        if value not in choices:
            raise InputError(
                f"Expected {name} to be one of {', '.join(choices)}, got {name}={value!r}."
            )


def require_word(**named: object) -> None:
    """Raise ``InputError`` unless every value is a text."""
    for name, value in named.items():
        if not isinstance(value, str):
            raise InputError(
                f"Expected a name for {name}, got {name}={' '.join(repr(value).split())[:80]}."
            )


def if_given(require: Callable[..., None], **named: object) -> None:
    """Check by ``require`` the values that are not None: an argument that may be left out follows
    from public facts.
    """
    require(**{name: value for name, value in named.items() if value is not None})


def finite_tuple(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return ``values`` as a tuple of floats; raise ``InputError`` unless all are finite
    numbers.
    """
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InputError(f"Expected a list of numbers for {name}, got {name}={values!r}.")
    return tuple(_finite(name, value) for value in values)
