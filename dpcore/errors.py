"""Errors that a caller may want to handle. Each message names the argument, its value, the rule and the way out.

``exit_code`` is what the command line returns for the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

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
    """A release or a run costs more than is left. ``asked`` and ``left`` carry the numbers where they exist."""

    exit_code = 3

    def __init__(self, message: str, *, asked: float | None = None, left: float | None = None) -> None:
        super().__init__(message)
        self.asked = asked
        self.left = left


class VerificationFailed(DPFlowsError):
    """An audit, a release gate or a verification found something that must not pass."""

    exit_code = 4


def unknown_name(what: str, name: object, known: Iterable[str], inside: str = "") -> UnknownName:
    """Return the error for a name that is not among ``known``, with the near misses first.

    ``inside`` is the dotted place of the name, shown with it and not part of the likeness.
    """
    names = sorted(known)
    full = f"{inside}." if inside else ""
    near = get_close_matches(str(name), names, n=3, cutoff=NEAR)
    shown = [repr(full + one) for one in near]
    hint = f"did you mean {' or '.join(shown)}?" if near else f"choose one of {', '.join(names)}."
    return UnknownName(f"Unknown {what} {full + str(name)!r}; {hint}")
