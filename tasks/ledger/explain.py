"""What to tell a person who asks what the models say about them, or who asks for erasure."""

from __future__ import annotations

from math import exp
from typing import Any

from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import Dataset
from tasks.ledger.views import entries, promise

# How the neighbours differ, and what an attacker guesses, in the words of a person in the data.
NEIGHBOURS = {
    "add_remove": ("with your {unit} as without it", "whether your {unit} was used"),
    "replace_one": (
        "with your {unit} as with any other in its place (that you are in the table is not hidden)",
        "which of two {unit}s yours is",
    ),
    "replace_labels": (
        "with your labels as with any others (which documents you saw is not hidden)",
        "which of two lists of labels yours is",
    ),
}


def explain(ledger: LedgerReader, name: str, block: str | None = None) -> dict[str, Any]:
    """Return the promise of a data set in words for the people in it, and the models that it covers.

    ``block``: only models that read this block (the one that holds the person's record). No record is looked up: the
    ledger knows none.
    """
    dataset = ledger.dataset(name)
    if block is not None and dataset.limited:
        dataset.blocks.check(block)
    charged = [entry for entry in entries(ledger, name, block) if entry["state"] != "cancelled"]
    models = [entry for entry in charged if entry["state"] == "committed"]
    fields = ("entry", "at", "state", "period", "read", "hashes")
    return promise(dataset) | {
        "block": block,
        "models": [{field: entry[field] for field in fields} for entry in models],
        "without_result": len(charged) - len(models),
        "most_certain": _certainty(dataset),
        "answers": _answers(dataset, len(models), len(charged) - len(models), block),
    }


def _certainty(dataset: Dataset) -> float | None:
    """Return (e^eps + delta) / (1 + e^eps): how often an even guess between two neighbours can be right at most.

    Kairouz, Oh & Viswanath (2015), Theorem 2.1: the sum of both error rates is at least 2 (1 - delta) / (1 + e^eps).
    """
    if dataset.epsilon is None or dataset.delta is None:
        return None
    odds = _odds(dataset)
    return min(1.0, (odds + dataset.delta) / (1 + odds))


def _odds(dataset: Dataset) -> float:
    """Return e^eps, the bound on how much likelier an outcome can become."""
    assert dataset.epsilon is not None
    return exp(min(dataset.epsilon, 700.0))


def _answers(dataset: Dataset, models: int, failed: int, block: str | None) -> dict[str, str]:
    if not dataset.limited:
        return {"promise": f"{dataset.name} was declared public: no promise about single records is made."}
    relation, guess = (words.format(unit=dataset.unit) for words in NEIGHBOURS[str(dataset.adjacency)])
    where = dataset.name if block is None else f"block {block} of {dataset.name}"
    ran = f"{models} models were trained on {where}"
    ran += f", and {failed} trainings ended without one." if failed else "."
    odds = f"{_odds(dataset):.3g}"
    return {
        "promise": (
            f"All models together, past and future, are ({dataset.epsilon:g}, {dataset.delta:g})-differentially "
            f"private: any outcome is at most {odds} times as likely, up to a chance of {dataset.delta:g}, {relation}. "
            "No training is admitted that would break this."
        ),
        "what_models_say_about_you": (
            f"{ran} They were made from many records with noise. Whatever they seem to say about you, they would have "
            f"said without your data too, at least 1/{odds} as often: because people are alike, which is not "
            f"prevented. Somebody who knows every other {dataset.unit}, has all models and guesses {guess} is right at "
            f"most {_certainty(dataset):.1%} of the time, where a coin is right half of the time."
        ),
        "erasure": (
            "Deleting your record from the table ends its part in every later training. Models that exist are not "
            "changed: the promise was made for them with your record in them, and it does not expire. The ledger "
            "holds no record and no reference to one, so nothing in it can or need be deleted; spent budget stays "
            "spent."
        ),
        "if_a_model_must_be_withdrawn": (
            "The list of models names every training that may have read the record, by its ledger entry and the "
            "SHA-256 of its weights. Training again without the record is a new run and costs budget again."
        ),
        "what_is_not_promised": (
            f"The promise covers {dataset.blocks.covers(dataset.unit)}. It does not cover other tables that hold the "
            "same person, numbers marked internal that were computed exactly, or what is true of everybody."
        ),
    }
