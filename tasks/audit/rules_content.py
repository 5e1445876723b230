"""Rules for what a run of this tool holds: names of its files, metrics, model, and files that no
training writes.

The stored parameters of a network against the card of its model.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Container, Iterator, Mapping
from hashlib import sha256
from math import isfinite
from typing import Any

import numpy as np

from dpcore.accounting.events import Events
from dpcore.errors import DPFlowsError
from tasks.audit.findings import RETRAIN, Finding, block, note, warn
from tasks.audit.recompute import close
from tasks.audit.rules_run import entry_of
from tasks.audit.subject import CONFIG, METRICS, TRACE, LedgerFacts, Subject, digest
from tasks.drawing.curves import CURVE_POINTS, curve_name, thin
from tasks.record import sources
from tasks.record.example import is_example
from tasks.record.statement import Statement

STATE = "state.safetensors"


def state_fault(model: Mapping[str, bytes]) -> str:
    """What is wrong with the stored state of a network; empty for none, or where the model is no
    network.
    """
    try:
        card = json.loads(model.get("model.json", b"{}")).get("network")
    except (ValueError, AttributeError):
        return ""
    if card is None:
        return ""
    data = model.get(STATE)
    if data is None:
        return f"model/{STATE} is not stored"
    stated = card.get("state_sha256") if isinstance(card, dict) else None
    if sha256(data).hexdigest() != stated:
        return f"model/{STATE} is not the file whose hash model/model.json holds"
    return ""


# Measured on synthetic data, as often as somebody asks (``tasks.audit.recompute``).
EMPIRICAL = "internal.empirical."
# Measures of quality that a release may carry.
QUALITY = (
    "accuracy",
    "balanced_accuracy",
    "roc_auc",
    "mean_squared_error",
    "root_mean_squared_error",
    "mean_absolute_error",
    "average_precision",
    "brier_score",
    "log_loss",
    "r2",
    "map",
)


# The two that a training writes: under the same word any exact number could be shown.
SPENT = ("spent.epsilon", "spent.delta")


def metrics(run: Subject) -> Iterator[Finding]:
    """Every metric that may leave is public, noted by the algorithm, or released with noise that
    was charged.
    """
    noted = _noted(run)
    yield from _logged(run, noted)
    if run.statement is None:
        return
    yield from _released(run, noted, run.statement.data.public)
    if METRICS in run.files:
        yield from _metric_entry(run)


def _logged(run: Subject, noted: Container[str]) -> Iterator[Finding]:
    """Each metric was logged once, under a word that says whether it may leave."""
    for name, values in run.metrics.items():
        repeated = ".curve." in name or name.startswith(EMPIRICAL)
        if len(values) > 1 and name not in noted and not repeated:
            yield block(
                "metric_changed",
                name,
                f"metric {name} was logged {len(values)} times ({values[0]:.6g}, then "
                f"{values[-1]:.6g})",
                "A number at the end of a run is written once; a later value was added",
                RETRAIN,
            )
        prefix = name.split(".")[0]
        if prefix not in ("internal", "released") and name not in SPENT:
            yield block(
                "metric_unaccounted",
                name,
                f"metric {name} is neither internal nor released",
                "Nothing says whether it was charged",
                "Name it internal., or release it with noise",
            )


def _released(run: Subject, noted: Container[str], public: bool) -> Iterator[Finding]:
    """What is called released is what a charged mechanism gave, where the data are not public."""
    noisy = noisy_metrics(run)
    for name, values in run.metrics.items():
        if not name.startswith("released.") or name in noted:
            continue
        key = name.removeprefix("released.")
        if key in noisy:
            if not close(noisy[key], values[-1], 1e-9):
                yield block(
                    "metric_changed",
                    name,
                    f"{name} shows {values[-1]:.6g}, released was {noisy[key]:.6g}",
                    "It was changed",
                    RETRAIN,
                )
        elif not public:
            yield block(
                "metric_unaccounted",
                name,
                f"metric {name} was not released by a charged mechanism",
                "An exact number on private rows has no guarantee",
                "Ask for evaluate.release, which adds noise and charges it",
            )


def noisy_metrics(run: Subject) -> dict[str, float]:
    """Metrics that a charged mechanism released, by name."""
    try:
        return {
            key: float(value) for key, value in json.loads(run.files[METRICS])["values"].items()
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _metric_entry(run: Subject) -> Iterator[Finding]:
    yield from entry_of(run.metric_ledger, METRICS)
    facts = run.metric_ledger
    if facts is None:
        return
    if facts.hashes.get("metrics") != digest(run.files[METRICS]):
        yield block(
            "metrics_file_changed",
            METRICS,
            "the file is not the one whose hash the ledger holds",
            "It was changed",
            RETRAIN,
        )
    if other := _not_of(run, facts):
        yield block(
            "metrics_of_another_run",
            METRICS,
            f"the released metrics are of another {other}",
            "They say nothing about this model",
            RETRAIN,
        )


def _not_of(run: Subject, facts: LedgerFacts) -> str:
    """What of the training the released metrics do not belong to; empty where they are its own."""
    found = run.statement
    try:
        stored = json.loads(run.files[METRICS])
        events = Events.from_json(json.dumps(stored["mechanisms"])).to_json().encode()
        of = stored.get("of")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, DPFlowsError):
        return "kind: they cannot be read"
    if found is None:
        return ""
    if run.ledger is not None and facts.seq <= run.ledger.seq:
        return "training: they were charged before it"
    pairs: dict[str, tuple[Any, Any]] = {
        "data set": (facts.dataset, found.ledger.dataset),
        "charge": (facts.events_sha256, digest(events)),
        "configuration": (facts.hashes.get("config", found.config_sha256), found.config_sha256),
        "part of the data": (facts.blocks, run.ledger.blocks if run.ledger is not None else ()),
    }
    pairs |= _named_by(of, run, found)
    return next((what for what, (given, own) in pairs.items() if given != own), "")


def _named_by(of: Any, run: Subject, found: Statement) -> dict[str, tuple[Any, Any]]:
    """What the metrics name of their training, beside its own; runs from before their hashes were
    kept have metrics that name nothing.
    """
    listed = run.ledger is not None and sources.INVENTORY_KEY in run.ledger.hashes
    if of is None and not listed:
        return {}
    named = of if isinstance(of, dict) else {}
    return {
        "model": (named.get("weights_sha256"), found.weights_sha256),
        "configuration": (named.get("config_sha256"), found.config_sha256),
        "training": (named.get("training_entry"), found.ledger.entry),
    }


def asked(run: Subject) -> Iterator[Finding]:
    """Metrics that the configuration asked to release are there."""
    try:
        wanted = (json.loads(run.files[CONFIG]).get("evaluate") or {}).get("release")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return
    if wanted is None or METRICS in run.files:
        return
    if run.ledger is not None and run.ledger.undrawn:
        yield note(
            "metric_not_drawn",
            METRICS,
            f"the released metric that was asked for was never drawn: {run.ledger.undrawn}",
            "The training ended before it; no number about the records left, and what was reserved "
            "stays charged",
            "Release the model without it, or train again for one with a metric",
        )
    else:
        yield block(
            "metrics_missing",
            METRICS,
            "the configuration asked for a released metric, and its file is not stored",
            "What was paid for it is not in the price of a release",
            RETRAIN,
        )


def curves(run: Subject) -> Iterator[Finding]:
    """Curves of the training show what its trace holds."""
    rows = _trace(run)
    for key in dict.fromkeys(key for row in rows for key in row if key != "release"):
        name = curve_name(key)
        expected = sorted(
            float(row[key]) for row in thin(rows, CURVE_POINTS) if key in row and isfinite(row[key])
        )
        shown = sorted(run.metrics.get(name, ()))
        if shown != expected and not _thinned_alike(shown, expected):
            yield block(
                "curve_metric_changed",
                name,
                f"the curve {name} differs from the trace of the training",
                "Values were logged or removed after the training",
                RETRAIN,
            )


def _thinned_alike(shown: list[float], expected: list[float]) -> bool:
    same = len(shown) == len(expected)
    return same and all(close(*pair, 1e-9) for pair in zip(shown, expected, strict=True))


def _trace(run: Subject) -> list[dict[str, float]]:
    """The rows of the training's trace; empty where it cannot be read."""
    try:
        rows = json.loads(run.files[TRACE])
        return [{str(key): float(value) for key, value in row.items()} for row in rows]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return []


def is_quality(name: str) -> bool:
    """Whether a metric says how good the model is."""
    return name in QUALITY or name.startswith("ndcg_at_")


def _noted(run: Subject) -> set[str]:
    """Names of the curves that the algorithm noted; no measure of quality is among them.

    An algorithm sees no metric, so a name of one in the trace was written there by somebody else.
    """
    keys = {key for row in _trace(run) for key in row if key not in ("release", "spent_epsilon")}
    return {"spent.epsilon", *(f"released.{key}" for key in keys if not is_quality(key))}


def second_names(run: Subject) -> Iterator[Finding]:
    """The files of the run have no other name, or its budget paid for the run, and for its noisy
    metrics, too.
    """
    entry = run.statement.ledger.entry if run.statement else "ENTRY"
    metrics = run.metric_ledger.entry if run.metric_ledger is not None else ""
    for facts, paying, what in (
        (run.ledger, entry, "this run"),
        (run.metric_ledger, metrics, "its noisy metrics"),
    ):
        for name in () if facts is None else facts.unpaid:
            yield block(
                "second_name",
                name if facts is run.ledger else f"{name} ({METRICS})",
                f"the file was also read as {name!r}, whose budget did not pay for {what}",
                "Both budgets are about the same records, and each promises what only their sum "
                "keeps",
                f"Charge it there too: `dpflows ledger charge {name} --for {paying}`",
            )
    for name in () if run.ledger is None else run.ledger.public_names:
        yield warn(
            "second_name_public",
            name,
            f"the file was also read as {name!r}, which was declared public",
            "What was computed there on the same records has no guarantee",
            "Correct the declaration of that name, and release nothing of its runs",
        )


def model(run: Subject) -> Iterator[Finding]:
    """The model belongs to the run, its weights are finite numbers, its example holds no row of the
    data.
    """
    if run.model_run and run.model_run != run.run_id:
        yield block(
            "model_of_another_run",
            "model",
            f"the model was stored by run {run.model_run}",
            "Its guarantee is that of the other run",
            RETRAIN,
        )
    weights = run.model.get("weights.npz")
    if weights is not None:
        try:
            with np.load(io.BytesIO(weights), allow_pickle=False) as arrays:
                finite = all(np.isfinite(arrays[name]).all() for name in arrays.files)
        except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile):
            yield block(
                "weights_unreadable",
                "weights",
                "the weights cannot be read as plain arrays",
                "",
                RETRAIN,
            )
            return
        if not finite:
            yield block(
                "weights_not_finite",
                "weights",
                "a weight is infinite or NaN",
                "The model cannot score",
                RETRAIN,
            )
    fault = state_fault(run.model)
    if fault:
        yield block(
            "state_changed", STATE, fault, "The parameters are not those that were trained", RETRAIN
        )
    example = run.model.get("input_example.json")
    if example is not None and not _synthetic(run, example):
        yield block(
            "input_example_not_synthetic",
            "input_example.json",
            "the input example is not the synthetic one of the declared schema",
            "It may hold a real row",
            "Delete the model from the store, and train again",
        )


def _synthetic(run: Subject, example: bytes) -> bool:
    try:
        label = json.loads(run.model.get("model.json", b"{}")).get("label") or {}
        return is_example(example, json.loads(run.model["encoder.json"]), label.get("query"))
    except (KeyError, ValueError, TypeError, DPFlowsError):
        return False


RULES = (second_names, metrics, asked, curves, model)
