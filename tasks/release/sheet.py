"""What a reviewer, a registry and a data protection officer ask of a release, from its statement.

The sheet goes through the points of NIST SP 800-226 (Near, Darais, Lefkovitz & Howarth 2025,
"Guidelines for Evaluating Differential Privacy Guarantees"): what the statement does not say stands
there as not said. The entry has the three tiers of the registry of differential privacy deployments
(Nanayakkara, Ghazi & Vadhan 2025). All of it is public: nothing is computed on a record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tasks.record.statement import Statement
from tasks.record.wording import (
    mechanism_lines,
    neighbours,
    plain_words,
    promise_and_charge,
)
from tasks.release.manifest import Approval, Price, ReleasedMetric

SHEET, ENTRY = "privacy/evaluation.md", "privacy/registry.json"
NOT_SAID = "Not said: nothing about this stands in the statement."
# Mechanisms that are listed one by one; a run of thousands of different ones is in the file.
MOST_LINES = 12

Point = tuple[str, list[str]]


def evaluation_sheet(
    name: str,
    version: str,
    statement: Statement,
    price: Price,
    metrics: Sequence[ReleasedMetric],
    approval: Approval,
) -> str:
    """The sheet as Markdown: every point with what is known, or the words that it is not."""
    lines = [
        f"# Evaluation of the privacy of {name}, version {version}",
        "",
        "Filled from `privacy/statement.json` and the manifest, by the points of NIST SP 800-226.",
        "",
    ]
    for title, texts in points(statement, price, metrics, approval):
        lines += [f"## {title}", "", *[f"- {text}" for text in texts or [NOT_SAID]], ""]
    lines += ["## For a data protection officer", "", officer_paragraph(statement, price), ""]
    return "\n".join(lines)


def points(
    statement: Statement, price: Price, metrics: Sequence[ReleasedMetric], approval: Approval
) -> list[Point]:
    """Title and sentences of each point; an empty list where the statement says nothing."""
    promise, data, training = statement.guarantee, statement.data, statement.training
    return [
        (
            "Epsilon and delta",
            [
                f"epsilon = {promise.epsilon:.6g}, delta = {promise.delta:g}, for this training.",
                plain_words(statement),
                promise_and_charge(statement),
                f"The whole release, with {price.trials} charged "
                f"run{'' if price.trials == 1 else 's'} that it was chosen from and its noisy "
                f"metrics: epsilon = {price.epsilon:.6g}, delta = {price.delta:g}.",
            ],
        ),
        (
            "Unit of privacy and neighbours",
            [
                f"One {promise.unit}; neighbours are {neighbours(promise)} ({promise.adjacency}).",
                f"Public count: n = {data.public_n} ({data.n_kind}).",
            ],
        ),
        (
            "Composition over releases",
            [
                statement.composition,
                f"Data set {statement.ledger.dataset!r} in the ledger, entry "
                f"{statement.ledger.entry}, blocks {', '.join(statement.ledger.blocks)}.",
            ],
        ),
        ("Mechanisms", _mechanisms(statement)),
        ("Sensitivity", [text for text in [statement.sensitivity] if text]),
        (
            "Bounds and clipping",
            [
                f"{data.bounds[:1].upper()}{data.bounds[1:]}.",
                f"Norm of a record at most {data.norm_bound:g}; longer ones are cut."
                if data.norm_bound is not None
                else "No bound on the norm of a record: what it contributes is clipped.",
            ],
        ),
        (
            "What was tuned",
            [
                f"Algorithm {training.algorithm}"
                + (f": {training.reason}." if training.reason else ", as configured."),
                statement.tuning,
                f"The release is priced with every charged run of its search ({price.scope}); what "
                "was tried outside the ledger is not seen.",
            ],
        ),
        ("Trust model", [statement.trust_model]),
        (
            "Floating point and random numbers",
            [f"Noise {statement.noise}.", f"Random numbers: {statement.noise_source}."],
        ),
        ("Side channels", [text for text in statement.limits if "run time" in text]),
        ("Utility", [_metric(one) for one in metrics]),
        ("Data bias, and accuracy for groups", []),
        (
            "Data security and exposure",
            [f"Not released: {text}." for text in statement.not_released],
        ),
        (
            "What a reader must not conclude",
            [
                *statement.limits,
                "That nothing is learned about a person: what is true of people like them can be.",
                "That the epsilon of another release can be compared, unless unit and neighbours "
                "are the same.",
            ],
        ),
        ("Who decided", [f"{approval.who}, {approval.when}."]),
    ]


def _mechanisms(statement: Statement) -> list[str]:
    lines = mechanism_lines(statement)
    rest = len(lines) - MOST_LINES
    return lines if rest <= 0 else [*lines[:MOST_LINES], f"{rest} more in the statement."]


def _metric(one: ReleasedMetric) -> str:
    error = "" if one.standard_error is None else f" +- {one.standard_error:.2g} (its noise)"
    return f"{one.name} = {one.value:.4f}{error}, {one.source}."


def officer_paragraph(statement: Statement, price: Price) -> str:
    """Whether the model is personal data, for somebody who has to judge that under the GDPR.

    Recital 26 asks for means reasonably likely to be used; the European Data Protection Board
    (Opinion 28/2024) asks of a model that the likelihood of extracting data of the people it was
    trained on, and of obtaining them by queries, be insignificant. A bound is an argument for that,
    and the judgement stays with whoever makes it.
    """
    unit = statement.guarantee.unit
    return (
        f"The model was trained with differential privacy. For every {unit} among the training "
        "data, anything that can be extracted from the model, by whatever means and with whatever "
        f"other knowledge, would have come out nearly as likely had this {unit} been "
        f"{'another' if 'replace' in str(statement.guarantee.adjacency) else 'left out'}: odds "
        f"change by at most e^{price.epsilon:.3g}, but for a chance of {price.delta:g}. This is "
        "evidence for the test of Opinion 28/2024 of the European Data Protection Board, that "
        "data of the people a model was trained on cannot be obtained from it with more than "
        "insignificant likelihood; how much epsilon supports that is a judgement. It covers what "
        f"is released, for one {unit}: not the training data themselves, which stay personal data "
        "where they are kept, not numbers marked internal, and not what the model says about a "
        "person whose values are put into it."
    )


def registry_entry(
    name: str,
    version: str,
    statement: Statement,
    price: Price,
    metrics: Sequence[ReleasedMetric],
    approval: Approval,
) -> str:
    """An entry for a registry of deployments as JSON; null is for people to fill in."""
    promise, data = statement.guarantee, statement.data
    entry: dict[str, Any] = {
        "schema_version": 1,
        "tier": 3,
        "deployment": {
            "name": f"{name} {version}",
            "data_curator": None,
            "intended_use": None,
            "data_product": "machine learning model",
            "description": f"{statement.training.algorithm}, {statement.training.loss} loss, on "
            f"{data.name}",
            "publication_date": approval.when,
        },
        "dp_flavor": {
            "name": "pure" if promise.delta == 0 else "approximate",
            "neighbours": neighbours(promise),
            "adjacency": str(promise.adjacency),
            "data_domain": data.bounds,
            "unprotected_quantities": f"n = {data.public_n}"
            if "exact" in data.n_kind
            else "declared facts of the schema",
        },
        "privacy_loss": {
            "privacy_unit": promise.unit,
            "parameters": {"epsilon": price.epsilon, "delta": price.delta},
            "of_the_training_alone": {"epsilon": promise.epsilon, "delta": promise.delta},
        },
        "model": {"name": "central", "description": statement.trust_model},
        "accounting": {
            "accountant": promise.accountant,
            "conversion": promise.conversion,
            "composition": statement.composition,
            "post_processing": "everything that is made from the released values",
        },
        "implementation": {
            "mechanisms": mechanism_lines(statement)[:MOST_LINES],
            "hyperparameter_tuning": f"{price.trials} charged runs ({price.scope})",
            "noise": statement.noise,
            "random_numbers": statement.noise_source,
            "software": {**statement.versions, "git_commit": statement.git_commit},
            "released_metrics": [one.model_dump(mode="json") for one in metrics],
        },
        "limits": list(statement.limits),
    }
    return json.dumps(entry, indent=1, ensure_ascii=False) + "\n"
