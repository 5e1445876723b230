"""An algorithm once more with other values of its parameters, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from dpcore.algorithms import make
from dpcore.errors import InputError
from tasks.compare.config import LINES, Entry


@dataclass(frozen=True)
class Effect:
    """One parameter of the entry ``of``: its ``values`` in order, with the entry's own, and the ``labels`` of the runs.

    A value that the algorithm derives from public facts when it is left out is None.
    """

    of: str
    parameter: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the facts of a comparison."""
        return asdict(self)


def spread_out(entries: Iterable[Entry]) -> tuple[list[Entry], list[Effect]]:
    """The entries, each followed by one for every other value under its ``vary``, and what is varied.

    Raises ``InputError`` for a parameter that the algorithm lacks, for a line without privacy and for equal labels.
    """
    found: list[Entry] = []
    effects: list[Effect] = []
    for entry in entries:
        found.append(entry)
        if not entry.vary:
            continue
        if entry.name in (*LINES, "auto"):
            raise InputError(f"Expected an algorithm with parameters to vary, got name={entry.name!r}; leave vary out.")
        for parameter, values in entry.vary.items():
            others, effect = _one_parameter(entry, parameter, values)
            found += others
            effects.append(effect)
    labels = [entry.shown for entry in found if entry.name not in LINES]
    double = next((label for label in labels if labels.count(label) > 1), None)
    if double is not None:
        raise InputError(
            f"Expected a label of its own for each algorithm and each varied value, but two are called {double!r}; "
            "give `label`, or leave one out."
        )
    return found, effects


def _one_parameter(entry: Entry, parameter: str, values: tuple[Any, ...]) -> tuple[list[Entry], Effect]:
    make(entry.name, entry.parameters | {parameter: values[0]}, entry.preset)  # names an unknown parameter
    own = getattr(make(entry.name, entry.parameters, entry.preset), parameter)
    others = [_with(entry, parameter, value) for value in values if value != own]
    labels = {repr(other.parameters[parameter]): other.shown for other in others} | {repr(own): entry.shown}
    order = [*([] if own in values else [own]), *(own if value == own else value for value in values)]
    if all(_is_number(value) for value in order):
        order.sort()
    return others, Effect(entry.shown, parameter, tuple(order), tuple(labels[repr(value)] for value in order))


def _with(entry: Entry, parameter: str, value: Any) -> Entry:
    label = f"{entry.label} {parameter}={value}" if entry.label else None
    changes = {"parameters": entry.parameters | {parameter: value}, "label": label, "vary": {}}
    return entry.model_copy(update=changes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
