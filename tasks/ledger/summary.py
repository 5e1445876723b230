"""What people ask a ledger: what was promised, what is left, what ran. Plain values, ready for
JSON.

What to tell a person who asks what the models say about them, or who asks for erasure.

The ledger as JSON lines: everything that a replay needs, and nothing that keys the fingerprints of
files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import exp, sqrt
from typing import Any

from sqlalchemy import func, select

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.events import Events
from dpcore.errors import InputError
from dpcore.mechanisms import gaussian_epsilon
from tasks.ledger import chain, schema
from tasks.ledger.entries import WORTH, best_counting, counting_of, entries, realised_epsilon
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import OF, UNIT, Dataset, Record, canonical
from tasks.ledger.verify import Verification, replay

STATES = ("reserved", *schema.CLOSING)


def promise(dataset: Dataset) -> dict[str, Any]:
    """Return the whole guarantee of a data set."""
    return {
        "dataset": dataset.name,
        "limited": dataset.limited,
        "epsilon": dataset.epsilon,
        "delta": dataset.delta,
        "unit": dataset.unit,
        "adjacency": None if dataset.adjacency is None else str(dataset.adjacency),
        "accountant": "gdp filter" if dataset.filter == "gdp" else "rdp filter at one order",
        "filter": dataset.filter,
        "conversion": dataset.conversion,
        "order": dataset.order,
        "budget": dataset.budget,
        "divided_by": dataset.blocks.words(),
        "bounds": dataset.blocks.covers(dataset.unit),
        "opened_at": dataset.opened_at,
    }


def remaining(
    ledger: LedgerReader, name: str, blocks: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return what is left at the order, in all touched blocks or in those asked for, and the least
    of them.

    ``fits_epsilon`` is the largest epsilon, at the data set's delta, of one run of Gaussian
    releases without sampling that would still be admitted; sampled runs differ a little, `dpflows
    plan` prices them.
    """
    dataset = ledger.dataset(name)
    report = promise(dataset)
    if not dataset.limited:
        return report | {"left": None, "share_left": None, "fits_epsilon": None, "blocks": []}
    assert dataset.budget is not None
    charged = None if blocks is None else dataset.blocks.charged(blocks, dataset.unit)
    spent = ledger.spent(name, charged)
    lefts = {block: dataset.left(units) for block, units in spent.items()}
    rows = [
        {
            "block": block,
            "spent": spent[block] / UNIT,
            "left": left,
            "share_left": left / dataset.budget,
        }
        for block, left in lefts.items()
    ]
    left = min(lefts.values(), default=dataset.budget)
    share = left / dataset.budget
    return report | {
        "left": left,
        "share_left": share,
        "fits_epsilon": _fits(dataset, left),
        "blocks": rows,
    }


def share_left(ledger: LedgerReader, name: str, blocks: Sequence[str]) -> float | None:
    """The least share of its budget that a block of a run has left; None without a limit."""
    left = remaining(ledger, name, None if tuple(blocks) == ("all",) else blocks)["share_left"]
    return None if left is None else max(0.0, float(left))


def _fits(dataset: Dataset, left: float) -> float:
    """Return the epsilon of a Gaussian run that costs ``left`` at the order: its curve is left * a
    / order.
    """
    assert dataset.delta is not None
    if dataset.order is None:
        return gaussian_epsilon(dataset.delta, sqrt(left))
    return epsilon_of(ORDERS * (left / dataset.order), dataset.delta, dataset.conversion)


def overview(ledger: LedgerReader) -> list[dict[str, Any]]:
    """Return one row for each data set: guarantee, what its fullest block has left, entries by
    state.
    """
    rows = []
    counts = _counts(ledger)
    for dataset in ledger.datasets():
        report = remaining(ledger, dataset.name)
        blocks = report.pop("blocks")
        rows.append(
            report
            | {
                "blocks_touched": len(blocks),
                "entries": counts.get(dataset.name, dict.fromkeys(STATES, 0)),
            }
        )
    return rows


def _counts(ledger: LedgerReader) -> dict[str, dict[str, int]]:
    table = schema.records
    grouped = select(table.c.dataset, table.c.kind, func.count()).group_by(
        table.c.dataset, table.c.kind
    )
    found: dict[str, Counter[str]] = {}
    with ledger.store.reading() as connection:
        for dataset, kind, number in connection.execute(grouped) if connection is not None else ():
            found.setdefault(dataset, Counter())[kind] = number
    for counter in found.values():
        # what is open: reserved once and not closed
        counter["reserved"] -= sum(counter[kind] for kind in schema.CLOSING)
    return {
        dataset: {state: counter[state] for state in STATES} for dataset, counter in found.items()
    }


def detail(ledger: LedgerReader, name: str, last: int = 20) -> dict[str, Any]:
    """Return ``remaining`` with the realised epsilon of each block (a diagnostic) and the ``last``
    entries.
    """
    report = remaining(ledger, name)
    everything = entries(ledger, name)
    realised = realised_epsilon(ledger, name, everything)
    for row in report["blocks"]:
        row["realised_epsilon"] = realised.get(row["block"], 0.0)
    return report | {
        "like_last": _like_last(ledger, report, everything),
        "entry_count": len(everything),
        "entries": everything[-last:] if last else [],
    }


def _like_last(
    ledger: LedgerReader, report: Mapping[str, Any], everything: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return how many runs like the last still fit in the fullest block, and how many a whole
    budget admits as it counts and as suits them best. None without a limit or a charged run.
    """
    charged = [entry for entry in everything if entry["state"] != "cancelled"]
    if not report["limited"] or not charged:
        return None
    dataset = ledger.dataset(report["dataset"])
    with ledger.store.reading() as connection:
        assert connection is not None
        texts = [chain.events_text(connection, one["events"]) or "" for one in last_run(charged)]
    events = reduce(Events.then, map(Events.from_json, texts))
    here, best = counting_of(dataset, events), best_counting(dataset, events)
    better = best.runs > WORTH * here.runs
    return {
        "left": here.left(report["left"]),
        "admitted": here.admitted,
        "best_admitted": best.admitted if better else here.admitted,
        "better": best.option if better else None,
    }


def last_run(charged: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries of the newest run, oldest first: the newest entry and, where that is of a number
    about a model, those back to the model's own training. Entries priced in another way are left
    out.
    """
    newest = charged[-1]
    weights = newest["hashes"].get(OF)
    if weights is None:
        return [newest]
    trained = [k for k, one in enumerate(charged) if one["hashes"].get("weights") == weights]
    since = charged[trained[-1] :] if trained else [newest]
    return [one for one in since if _about(one, weights) and _priced_as(one, newest)]


def _about(one: Mapping[str, Any], weights: str) -> bool:
    return weights in (one["hashes"].get(OF), one["hashes"].get("weights"))


def _priced_as(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[key] == other[key] for key in ("unit", "adjacency"))


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
    """Return the promise of a data set in words for the people in it, and the models that it
    covers.

    ``block``: only models that read this block (the one that holds the person's record). No record
    is looked up: the ledger knows none.
    """
    dataset = ledger.dataset(name)
    if block is not None and dataset.limited:
        dataset.blocks.check_block(block)
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
    """Return (e^eps + delta) / (1 + e^eps): how often an even guess between two neighbours can be
    right at most.

    Kairouz, Oh & Viswanath (2015), Theorem 2.1: the sum of both error rates is at least 2 (1 -
    delta) / (1 + e^eps).
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
        return {
            "promise": f"{dataset.name} was declared public: no promise about single records "
            f"is made."
        }
    relation, guess = (
        words.format(unit=dataset.unit) for words in NEIGHBOURS[str(dataset.adjacency)]
    )
    where = dataset.name if block is None else f"block {block} of {dataset.name}"
    ran = f"{models} models were trained on {where}"
    ran += f", and {failed} trainings ended without one." if failed else "."
    odds = f"{_odds(dataset):.3g}"
    return {
        "promise": (
            f"All models together, past and future, are ({dataset.epsilon:g}, "
            f"{dataset.delta:g})-differentially private: any outcome is at most {odds} times as "
            f"likely, up to a chance of {dataset.delta:g}, {relation}. No training is admitted "
            "that would break this."
        ),
        "what_models_say_about_you": (
            f"{ran} They were made from many records with noise. Whatever they seem to say about "
            f"you, they would have said without your data too, at least 1/{odds} as often: because "
            "people are alike, which is not prevented. Somebody who knows every other "
            f"{dataset.unit}, has all models and guesses {guess} is right at most "
            f"{_certainty(dataset):.1%} of the time, where a coin is right half of the time."
        ),
        "erasure": (
            "Deleting your record from the table ends its part in every later training. Models "
            "that exist are not changed: the promise was made for them with your record in them, "
            "and it does not expire. The ledger holds no record and no reference to one, so "
            "nothing in it can or need be deleted; spent budget stays spent."
        ),
        "if_a_model_must_be_withdrawn": (
            "The list of models names every training that may have read the record, by its ledger "
            "entry and the SHA-256 of its weights. Training again without the record is a new run "
            "and costs budget again."
        ),
        "what_is_not_promised": (
            f"The promise covers {dataset.blocks.covers(dataset.unit)}. It does not cover other "
            "tables that hold the same person, numbers marked internal that were computed "
            "exactly, or what is true of everybody."
        ),
    }


FORMAT = 1


def export_lines(ledger: LedgerReader) -> Iterator[str]:
    """Yield a heading, each list of mechanisms, then each record of the chain, one JSON object a
    line.
    """
    with ledger.store.reading() as connection:
        yield canonical({"type": "ledger", "schema_version": FORMAT})
        if connection is None:
            return
        for row in connection.execute(select(schema.events).order_by(schema.events.c.sha256)):
            yield canonical({"type": "events", **row._mapping})
        for row in connection.execute(select(schema.records).order_by(schema.records.c.seq)):
            yield canonical({"type": "record", **row._mapping})


def verify_lines(lines: Iterable[str], head: str | None = None) -> Verification:
    """Replay an export without the database; raises InputError for lines that are no export."""
    texts: dict[str, str] = {}
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        item = _item(number, line)
        kind = item.pop("type")
        try:
            if kind == "events":
                texts[item["sha256"]] = item["text"]
            elif kind == "record":
                records.append(Record(**item))
            elif kind != "ledger" or item.get("schema_version") != FORMAT:
                raise InputError(
                    f"Expected an export of version {FORMAT}, got {kind!r} in line {number}; "
                    "export it again."
                )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"Expected all fields of {kind!r} in line {number}, got {error}; export it again."
            ) from None
    return replay(records, texts.get, None, head)


def _item(number: int, line: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
        if isinstance(item, dict) and "type" in item:
            return item
    except json.JSONDecodeError:
        pass
    raise InputError(
        f"Expected JSON lines of `dpflows ledger export`, got line {number}: {line[:40]!r}; export "
        "it again."
    )
