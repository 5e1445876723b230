"""The privacy statement for people: the same facts as the JSON, as Markdown and as HTML.

The headings follow what NIST SP 800-226 asks of a differential privacy guarantee: its parameters,
the unit of privacy, neighbours, trust model, mechanisms and sensitivity, composition,
implementation, handling of data, what stays outside.

The guarantee in words that need no formula: what an attacker may learn at most.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from math import exp, inf

import numpy as np

from dpcore.accounting.curves import epsilon_of
from dpcore.accounting.events import Events
from dpcore.algorithms import registry
from dpcore.errors import DPFlowsError, InputError
from tasks.drawing import html, percent, percent_in_words
from tasks.record.statement import PACKAGES, Guarantee, LedgerEntry, Statement

Section = tuple[str, list[tuple[str, str]]]

NEIGHBOURS = {
    "add_remove": "two tables that differ by one {unit} being there or not",
    "replace_one": "two tables of the same public size that differ by one {unit}, replaced by "
    "another",
    "replace_labels": "two collections of sessions in which one session has other labels; "
    "documents are public",
}
UNITS = {"user": "user with all their records"}
DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def plain_words(statement: Statement) -> str:
    """The guarantee in two sentences that need no formula."""
    promise = statement.guarantee
    odds = "an unlimited factor, in practice"
    if promise.epsilon < 20:
        odds = f"a factor of {exp(promise.epsilon):.3g}"
    return (
        "Whoever sees what is released can hardly tell whether it came from one or the other of "
        f"{neighbours(promise)}: the odds of any conclusion about one {promise.unit} change by at "
        f"most {odds} (epsilon = {promise.epsilon:.6g}), except with probability delta = "
        f"{promise.delta:g}."
    )


def two_epsilons(epsilon: float, delta: float, accountant: str, curve: float) -> str:
    """Which of two epsilons is the promise and which the ledger charges; ``curve`` is that of the
    Rényi curve.
    """
    if curve <= epsilon * 1.001:
        return (
            f"The promise, epsilon = {epsilon:.6g} at delta = {delta:g}, follows from what the "
            "ledger charges."
        )
    return (
        f"The promise is epsilon = {epsilon:.6g} at delta = {delta:g} (accountant {accountant}); "
        "the ledger charges the Rényi curve of the same releases, which alone would state "
        f"{curve:.6g}: the looser bound, in which all kinds of runs add up."
    )


def promise_and_charge(statement: Statement) -> str:
    """``two_epsilons`` of a statement."""
    promise = statement.guarantee
    return two_epsilons(promise.epsilon, promise.delta, promise.accountant, statement.renyi.epsilon)


def spent_words(ledger: LedgerEntry) -> list[str]:
    """What each block has spent after the run, as a share of its budget; as a Rényi cost where
    there is no limit.
    """
    # with the ledger comes SQLAlchemy, which a reader of bundles has no use for
    from tasks.ledger.records import UNIT

    limit = ledger.limit_units
    where = "of mu^2" if ledger.order is None else f"at Rényi order {ledger.order:g}"
    if not limit:
        return [
            f"{block}: a Rényi cost of {units / UNIT:.4g}"
            for block, units in ledger.spent_units.items()
            if units
        ]
    return [
        f"{block}: {percent(units / limit)} of its budget ({units / UNIT:.4g} of "
        f"{limit / UNIT:.4g} {where})"
        for block, units in ledger.spent_units.items()
    ]


def neighbours(promise: Guarantee) -> str:
    """Which two data sets the guarantee cannot tell apart."""
    return NEIGHBOURS[promise.adjacency].format(unit=UNITS.get(promise.unit, promise.unit))


def epsilon_table(statement: Statement) -> list[tuple[str, str]]:
    """Epsilon of the stored Rényi curve at several deltas."""
    curve = np.array([inf if value is None else value for value in statement.renyi.curve])
    orders = np.array(statement.renyi.orders)
    deltas = sorted({*DELTAS, statement.guarantee.delta}, reverse=True)
    found = []
    for delta in deltas:
        with suppress(InputError):
            epsilon = epsilon_of(curve, delta, statement.guarantee.conversion, orders)
            found.append((f"{delta:g}", f"{epsilon:.6g}"))
    return found


def mechanism_lines(statement: Statement) -> list[str]:
    """Each run of equal releases in order: how many, of which kind, with which fields."""
    table = statement.mechanisms["mechanisms"]
    runs = [f"{count} x {_fields(table[index])}" for index, count in statement.mechanisms["order"]]
    rounds = statement.mechanisms.get("rounds", 1)
    return runs if rounds == 1 else [f"{rounds} rounds, in each", *runs]


def _fields(item: dict[str, object]) -> str:
    plain = {
        key: value
        for key, value in item.items()
        if key != "kind" and (key, value) != ("rounding", 0)
    }
    inner = ", ".join(f"{key} {_value(value)}" for key, value in plain.items())
    return f"{item['kind']} ({inner})"


def _value(value: object) -> str:
    """A field as text; the releases inside a trial one after the other."""
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{'; '.join(map(_fields, value))}]"
    return _short(value)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def sections(statement: Statement) -> list[Section]:
    """All facts under their headings."""
    s, promise, data = statement, statement.guarantee, statement.data
    lines = mechanism_lines(statement)
    shown = (
        lines
        if len(lines) <= 12
        else [*lines[:11], f"... and {len(lines) - 11} more runs, in the JSON"]
    )
    return [
        (
            "Guarantee",
            [
                ("unit of privacy", f"one {promise.unit}"),
                ("neighbours", f"{promise.adjacency}: {neighbours(promise)}"),
                ("epsilon", f"{promise.epsilon:.6g} (asked: {promise.target_epsilon:g})"),
                ("delta", f"{promise.delta:g}"),
                ("promise and charge", promise_and_charge(statement)),
                ("accountant", promise.accountant),
                ("conversion", promise.conversion),
                (
                    "Rényi curve",
                    f"{len(s.renyi.orders)} orders; epsilon {s.renyi.epsilon:.6g} at "
                    f"{s.renyi.best_order:g}",
                ),
                ("trust model", s.trust_model),
            ],
        ),
        (
            "Mechanisms and sensitivity",
            [
                (
                    "algorithm",
                    ", ".join(filter(None, (s.training.algorithm, s.training.reason))),
                ),
                ("loss", f"{s.training.loss}, l1 = {s.training.l1:g}, l2 = {s.training.l2:g}"),
                *[(f"releases {index}", line) for index, line in enumerate(shown, start=1)],
                ("sampler", ", ".join(s.samplers)),
                ("sensitivity", s.sensitivity),
            ],
        ),
        (
            "Data",
            [
                ("data set", f"{data.name}{', declared public' if data.public else ', private'}"),
                ("public n", f"{data.public_n} ({data.n_kind})"),
                ("dimension, norm bound", f"{data.dimension}, {data.norm_bound:g}"),
                ("bounds", data.bounds),
            ],
        ),
        (
            "What is released",
            [("released", "; ".join(s.released)), ("not released", "; ".join(s.not_released))],
        ),
        (
            "Composition and ledger",
            [
                ("composition", s.composition),
                ("tuning", s.tuning),
                (
                    "ledger entry",
                    f"{s.ledger.entry} of {s.ledger.dataset}, blocks {', '.join(s.ledger.blocks)}",
                ),
                ("head", s.ledger.head),
                (
                    "spent after it",
                    "; ".join(spent_words(s.ledger))
                    or "no limit: runs are recorded, none is refused",
                ),
            ],
        ),
        (
            "Implementation",
            [
                ("noise", s.noise),
                ("source of randomness", s.noise_source),
                ("versions", ", ".join(f"{name} {number}" for name, number in s.versions.items())),
                ("lock file", s.lock_sha256 or "none"),
                ("git commit", s.git_commit or "none"),
                (
                    "hashes",
                    f"weights {s.weights_sha256}, config {s.config_sha256}, mechanisms "
                    f"{s.mechanisms_sha256}",
                ),
                ("created", s.created),
            ],
        ),
        (
            "Limits",
            [
                ("may be released", "yes" if s.releasable else f"no: {'; '.join(s.reasons)}"),
                *[(f"limit {index}", text) for index, text in enumerate(s.limits, start=1)],
            ],
        ),
    ]


def to_markdown(statement: Statement) -> str:
    """The statement as Markdown."""
    lines = ["# Privacy statement", "", plain_words(statement), ""]
    for title, pairs in sections(statement):
        lines += [f"## {title}", "", *[f"- **{name}**: {value}" for name, value in pairs], ""]
    lines += ["## Epsilon against delta (Rényi curve)", "", "| delta | epsilon |", "|---|---|"]
    lines += [f"| {delta} | {epsilon} |" for delta, epsilon in epsilon_table(statement)]
    return "\n".join(lines) + "\n"


def to_html(statement: Statement) -> str:
    """The statement as one self-contained page."""
    parts = [html.paragraph(plain_words(statement), "note")]
    for title, pairs in sections(statement):
        parts += [html.heading(title), html.rows(pairs)]
    parts.append(html.heading("Epsilon against delta"))
    parts.append(
        html.grid("Conversions of the Rényi curve", ("delta", "epsilon"), epsilon_table(statement))
    )
    return html.page("Privacy statement", parts)


def rendered_again(statement: Statement, name: str) -> bytes:
    """A readable form made again from a statement that was read from a file, as the training wrote
    it.

    JSON keeps its names sorted; the text has mechanisms and versions in the order of their
    declaration.
    """
    try:
        mechanisms = json.loads(Events.from_json(json.dumps(statement.mechanisms)).to_json())
    except (DPFlowsError, ValueError, TypeError, KeyError):
        mechanisms = statement.mechanisms
    names = sorted(
        statement.versions,
        key=lambda one: PACKAGES.index(one) if one in PACKAGES else len(PACKAGES),
    )
    versions = {one: statement.versions[one] for one in names}
    again = statement.model_copy(update={"mechanisms": mechanisms, "versions": versions})
    return RENDERED[name](again).encode()


# The readable forms of the statement by their path in a run and in a bundle.
RENDERED = {"privacy/statement.md": to_markdown, "privacy/statement.html": to_html}

FALSE_ALARM = 0.05
# An attacker who is right this often learns nearly everything.
NEARLY_SURE = 0.99
UNITS_IN_WORDS = {
    "record": "one record",
    "user": "one user, all rows together",
    "session": "one session",
    "session_labels": "the labels of one session",
}
# What tells two neighbours apart, and what the attacker would claim.
PAIRS = {
    "add_remove": (
        "one with a certain {unit} in it, the other without",
        "that this {unit} is in the data",
    ),
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
    """Why the Rényi curve, ``renyi`` at the stated delta, lies above the stated epsilon; None where
    it does not.
    """
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
    return UNITS_IN_WORDS.get(promise.unit, f"one {promise.unit}")


def right_guess(epsilon: float, delta: float) -> float:
    """Largest chance of naming the right one of two neighbours, chosen by a fair coin: (e^eps +
    delta) / (1 + e^eps).

    An (epsilon, delta) guarantee bounds the total variation by (e^eps - 1 + 2 delta) / (e^eps + 1);
    the chance is (1 + that) / 2. Kairouz, Oh & Viswanath (2015), Theorem 2.1 and its region of
    error rates.
    """
    small = exp(-epsilon)
    return min(1.0, (1.0 + delta * small) / (1.0 + small))


def detection(epsilon: float, delta: float, false_alarm: float = FALSE_ALARM) -> float:
    """Largest power of a test of one neighbour against the other whose rate of false alarms is
    ``false_alarm``.

    min(e^eps a + delta, 1 - e^-eps (1 - delta - a)). Wasserman & Zhou (2010), Theorem 2.4, with
    delta; Kairouz et al. (2015).
    """
    room = max(0.0, 1.0 - delta - false_alarm)
    other = 1.0 - exp(-epsilon) * room
    first = false_alarm * exp(epsilon) + delta if epsilon < 50.0 else 1.0
    return max(0.0, min(1.0, first, other))


def in_words(promise: Guarantee) -> str:
    """One paragraph: what somebody who sees the release, and knows everything else, can find out
    about one person.
    """
    pair, claim = (text.format(unit=promise.unit) for text in PAIRS[str(promise.adjacency)])
    guess, found = (
        right_guess(promise.epsilon, promise.delta),
        detection(promise.epsilon, promise.delta),
    )
    text = (
        "Take an attacker who sees all that this run releases, knows every other record, and has "
        f"any computing power. The model was trained on one of two versions of the data, {pair}, "
        "chosen by the toss of a coin. The attacker names the right version with probability at "
        f"most {percent_in_words(guess)}; without looking it would be 50 %. At a false alarm rate "
        f"of {percent_in_words(FALSE_ALARM)} the attacker tells in at most "
        f"{percent_in_words(found)} of the cases {claim}. In numbers: epsilon = "
        f"{promise.epsilon:.6g} and delta = {promise.delta:g} for {unit_words(promise)}, under "
        f"{promise.adjacency}."
    )
    if guess >= NEARLY_SURE:
        text += " An epsilon this large promises next to nothing against such an attacker."
    return text
