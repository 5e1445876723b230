"""The privacy statement for people: the same facts as the JSON, as Markdown and as HTML.

The headings follow what NIST SP 800-226 asks of a differential privacy guarantee: its parameters, the unit of privacy,
neighbours, trust model, mechanisms and sensitivity, composition, implementation, handling of data, what stays outside.
"""

from __future__ import annotations

import json
from math import exp, inf

import numpy as np

from dpcore.accounting.conversion import epsilon_of
from dpcore.accounting.events import Events
from dpcore.errors import DPFlowsError, InputError
from tasks.release import page
from tasks.statement import PACKAGES, Guarantee, LedgerEntry, Statement

Section = tuple[str, list[tuple[str, str]]]

NEIGHBOURS = {
    "add_remove": "two tables that differ by one {unit} being there or not",
    "replace_one": "two tables of the same public size that differ by one {unit}, replaced by another",
    "replace_labels": "two collections of sessions in which one session has other labels; documents are public",
}
UNITS = {"user": "user with all their records"}
DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def plain_words(statement: Statement) -> str:
    """The guarantee in two sentences that need no formula."""
    promise = statement.guarantee
    odds = f"a factor of {exp(promise.epsilon):.3g}" if promise.epsilon < 20 else "an unlimited factor, in practice"
    return (
        f"Whoever sees what is released can hardly tell whether it came from one or the other of "
        f"{neighbours(promise)}: the odds of any conclusion about one {promise.unit} change by at most "
        f"{odds} (epsilon = {promise.epsilon:.6g}), except with probability delta = {promise.delta:g}."
    )


def two_epsilons(epsilon: float, delta: float, accountant: str, curve: float) -> str:
    """Which of two epsilons is the promise and which the ledger charges; ``curve`` is that of the Rényi curve."""
    if curve <= epsilon * 1.001:
        return f"The promise, epsilon = {epsilon:.6g} at delta = {delta:g}, follows from what the ledger charges."
    return (
        f"The promise is epsilon = {epsilon:.6g} at delta = {delta:g} (accountant {accountant}); the ledger charges "
        f"the Rényi curve of the same releases, which alone would state {curve:.6g}: the looser bound, in which all "
        "kinds of runs add up."
    )


def promise_and_charge(statement: Statement) -> str:
    """``two_epsilons`` of a statement."""
    promise = statement.guarantee
    return two_epsilons(promise.epsilon, promise.delta, promise.accountant, statement.renyi.epsilon)


def spent_words(ledger: LedgerEntry) -> list[str]:
    """What each block has spent after the run, as a share of its budget; as a Rényi cost where there is no limit."""
    from tasks.ledger.orders import UNIT  # with the ledger comes SQLAlchemy, which a reader of bundles has no use for

    limit = ledger.limit_units
    if not limit:
        return [f"{block}: a Rényi cost of {units / UNIT:.4g}" for block, units in ledger.spent_units.items() if units]
    return [
        f"{block}: {percent(units / limit)} of its budget ({units / UNIT:.4g} of {limit / UNIT:.4g} at Rényi order "
        f"{ledger.order:g})"
        for block, units in ledger.spent_units.items()
    ]


def percent(share: float) -> str:
    """A share with three digits; what is not all of it is not called 100 %."""
    text = f"{100 * share:.3g}"
    return f"{text} %" if share >= 1 or text != "100" else "nearly 100 %"


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
        try:
            found.append((f"{delta:g}", f"{epsilon_of(curve, delta, statement.guarantee.conversion, orders):.6g}"))
        except InputError:
            continue
    return found


def mechanism_lines(statement: Statement) -> list[str]:
    """Each run of equal releases in order: how many, of which kind, with which fields."""
    table = statement.mechanisms["mechanisms"]
    return [f"{count} x {_fields(table[index])}" for index, count in statement.mechanisms["order"]]


def _fields(item: dict[str, object]) -> str:
    plain = {key: value for key, value in item.items() if key != "kind" and (key, value) != ("rounding", 0)}
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
    shown = lines if len(lines) <= 12 else [*lines[:11], f"... and {len(lines) - 11} more runs, in the JSON"]
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
                    f"{len(s.renyi.orders)} orders; epsilon {s.renyi.epsilon:.6g} at {s.renyi.best_order:g}",
                ),
                ("trust model", s.trust_model),
            ],
        ),
        (
            "Mechanisms and sensitivity",
            [
                ("algorithm", f"{s.training.algorithm}{f', {s.training.reason}' if s.training.reason else ''}"),
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
        ("What is released", [("released", "; ".join(s.released)), ("not released", "; ".join(s.not_released))]),
        (
            "Composition and ledger",
            [
                ("composition", s.composition),
                ("tuning", s.tuning),
                ("ledger entry", f"{s.ledger.entry} of {s.ledger.dataset}, blocks {', '.join(s.ledger.blocks)}"),
                ("head", s.ledger.head),
                ("spent after it", "; ".join(spent_words(s.ledger)) or "no limit: runs are recorded, none is refused"),
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
                ("hashes", f"weights {s.weights_sha256}, config {s.config_sha256}, mechanisms {s.mechanisms_sha256}"),
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
    parts = [page.paragraph(plain_words(statement), "note")]
    for title, pairs in sections(statement):
        parts += [page.heading(title), page.rows(pairs)]
    parts.append(page.heading("Epsilon against delta"))
    parts.append(page.grid("Conversions of the Rényi curve", ("delta", "epsilon"), epsilon_table(statement)))
    return page.page("Privacy statement", parts)


def rendered_again(statement: Statement, name: str) -> bytes:
    """A readable form made again from a statement that was read from a file, as the training wrote it.

    JSON keeps its names sorted; the text has mechanisms and versions in the order of their declaration.
    """
    try:
        mechanisms = json.loads(Events.from_json(json.dumps(statement.mechanisms)).to_json())
    except (DPFlowsError, ValueError, TypeError, KeyError):
        mechanisms = statement.mechanisms
    names = sorted(statement.versions, key=lambda one: PACKAGES.index(one) if one in PACKAGES else len(PACKAGES))
    versions = {one: statement.versions[one] for one in names}
    return RENDERED[name](statement.model_copy(update={"mechanisms": mechanisms, "versions": versions})).encode()


# The readable forms of the statement by their path in a run and in a bundle.
RENDERED = {"privacy/statement.md": to_markdown, "privacy/statement.html": to_html}
