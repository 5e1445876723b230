"""The guarantee in words that need no formula: what an attacker may learn at most."""

from __future__ import annotations

import sys
from math import exp

from dpcore.algorithms import registry
from tasks.release.statement_text import two_epsilons
from tasks.statement import Guarantee

FALSE_ALARM = 0.05
# An attacker who is right this often learns nearly everything.
NEARLY_SURE = 0.99
UNITS = {
    "record": "one record",
    "user": "one user, all rows together",
    "session": "one session",
    "session_labels": "the labels of one session",
}
# What tells two neighbours apart, and what the attacker would claim.
PAIRS = {
    "add_remove": ("one with a certain {unit} in it, the other without", "that this {unit} is in the data"),
    "replace_one": (
        "one with a certain {unit}, the other with another in its place",
        "that this {unit} is the one in the data",
    ),
    "replace_labels": ("the same but for the labels of one session", "that the labels are these"),
}
ACCOUNTANTS = {
    "rdp": "Rényi curves, added up",
    "pld": "privacy-loss distributions, composed by numbers",
    "gdp": "Gaussian noise on the full data, composed exactly",
    "profile": "the exact curve of one release",
    "pure": "pure epsilons, added up",
    "advanced": "advanced composition",
}
CONVERSIONS = {"cks": "Canonne, Kamath & Steinke 2020", "prop21": "Mironov 2017"}


def accountant_words(promise: Guarantee) -> str:
    """How the releases were added up, and how a Rényi curve became (epsilon, delta)."""
    name, conversion = promise.accountant, promise.conversion
    text = f"{name} ({ACCOUNTANTS[name]})" if name in ACCOUNTANTS else name
    if name != "rdp":
        return text
    return f"{text}, conversion {conversion} ({CONVERSIONS.get(conversion, 'as declared')})"


def curve_words(promise: Guarantee, renyi: float) -> str | None:
    """Why the Rényi curve, ``renyi`` at the stated delta, lies above the stated epsilon; None where it does not."""
    if renyi <= promise.epsilon * 1.001:
        return None
    return two_epsilons(promise.epsilon, promise.delta, promise.accountant, renyi)


def algorithm_words(name: str) -> str:
    """What an algorithm does, in one sentence; empty for a name that no registry holds."""
    if name not in registry:
        return ""
    return str(sys.modules[registry[name].__module__].__doc__).splitlines()[0].rstrip(".")


def unit_words(promise: Guarantee) -> str:
    """What the guarantee is for, as a person says it."""
    return UNITS.get(promise.unit, f"one {promise.unit}")


def right_guess(epsilon: float, delta: float) -> float:
    """Largest chance of naming the right one of two neighbours, chosen by a fair coin: (e^eps + delta) / (1 + e^eps).

    An (epsilon, delta) guarantee bounds the total variation by (e^eps - 1 + 2 delta) / (e^eps + 1); the chance is
    (1 + that) / 2. Kairouz, Oh & Viswanath (2015), Theorem 2.1 and its region of error rates.
    """
    small = exp(-epsilon)
    return min(1.0, (1.0 + delta * small) / (1.0 + small))


def detection(epsilon: float, delta: float, false_alarm: float = FALSE_ALARM) -> float:
    """Largest power of a test of one neighbour against the other whose rate of false alarms is ``false_alarm``.

    min(e^eps a + delta, 1 - e^-eps (1 - delta - a)). Wasserman & Zhou (2010), Theorem 2.4, with delta; Kairouz et al.
    (2015).
    """
    room = max(0.0, 1.0 - delta - false_alarm)
    other = 1.0 - exp(-epsilon) * room
    first = false_alarm * exp(epsilon) + delta if epsilon < 50.0 else 1.0
    return max(0.0, min(1.0, first, other))


def percent(share: float) -> str:
    """A share as a person reads it; what is not certain is not called 100 %."""
    text = f"{100.0 * share:.1f}"
    return "more than 99.9 %" if text == "100.0" and share < 1.0 else f"{text.removesuffix('.0')} %"


def in_words(promise: Guarantee) -> str:
    """One paragraph: what somebody who sees the release, and knows everything else, can find out about one person."""
    pair, claim = (text.format(unit=promise.unit) for text in PAIRS[str(promise.adjacency)])
    guess, found = right_guess(promise.epsilon, promise.delta), detection(promise.epsilon, promise.delta)
    text = (
        f"Take an attacker who sees all that this run releases, knows every other record, and has any computing power. "
        f"The model was trained on one of two versions of the data, {pair}, chosen by the toss of a coin. The attacker "
        f"names the right version with probability at most {percent(guess)}; without looking it would be 50 %. At a "
        f"false alarm rate of {percent(FALSE_ALARM)} the attacker tells in at most {percent(found)} of the cases "
        f"{claim}. In numbers: epsilon = {promise.epsilon:.6g} and delta = {promise.delta:g} for "
        f"{unit_words(promise)}, under {promise.adjacency}."
    )
    if guess >= NEARLY_SURE:
        text += " An epsilon this large promises next to nothing against such an attacker."
    return text


def odds(epsilon: float) -> str:
    """The factor by which a conclusion may become more likely, e^epsilon."""
    return f"{exp(epsilon):.3g}" if epsilon < 20.0 else "more than 4e8"
