"""The model card: front matter as model hubs read it, then what the model is for, its guarantee and
its limits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from tasks.record.statement import Statement
from tasks.record.wording import plain_words, promise_and_charge
from tasks.release.manifest import Approval, Price, ReleasedMetric

TASKS = {
    "binary": "tabular-classification",
    "classes": "tabular-classification",
    "regression": "tabular-regression",
    "relevance": "text-ranking",
}


def make_card(
    name: str,
    version: str,
    statement: Statement,
    model: dict[str, Any],
    price: Price,
    metrics: Sequence[ReleasedMetric],
    approval: Approval,
) -> str:
    """Markdown from public facts and released numbers alone."""
    task = TASKS.get(model["label"]["kind"], "tabular-classification")
    front: dict[str, Any] = {
        "library_name": "dpflows",
        "pipeline_tag": task,
        "tags": ["differential-privacy", f"{kind_of(model)}-model", statement.training.algorithm],
        "model-index": [
            {
                "name": f"{name}-{version}",
                "results": [
                    {
                        "task": {"type": task},
                        "dataset": {"name": statement.data.name, "type": statement.data.name},
                        "metrics": [{"type": one.name, "value": one.value} for one in metrics],
                    }
                ],
            }
        ],
    }
    label = model["label"]
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        "---",
        f"# {name}, version {version}",
        "",
        "## Intended use",
        "",
        f"A {kind_of(model)} model ({model['loss']} loss) that {purpose(label)} of tables like "
        f"{statement.data.name!r} from {len(model['features'])} encoded features. Use it for rows "
        f"whose columns follow "
        "the declared schema in `model/encoder.json`; other values are refused. It was not made "
        "for decisions about "
        "single persons without review.",
        "",
        "## Privacy",
        "",
        plain_words(statement),
        "",
        promise_and_charge(statement),
        "",
        f"The release as a whole, with {price.trials} charged "
        f"run{'s' if price.trials != 1 else ''} that it was "
        f"chosen from and its noisy metrics: epsilon = {price.epsilon:.6g}, delta = "
        f"{price.delta:g} for one "
        f"{price.unit} under {price.adjacency} ({price.conversion}). The whole statement is in "
        f"`privacy/statement.md`.",
        "",
        "## Data",
        "",
        f"{statement.data.name}: public n = {statement.data.public_n} ({statement.data.n_kind}), "
        f"{columns_of(statement, model)} encoded columns. {statement.data.bounds}. No number "
        f"computed on the records "
        "stands here unless it passed a charged mechanism.",
        "",
        "## Released metrics",
        "",
        *(_metric_lines(metrics) or ["None."]),
        "",
        "## Limits",
        "",
        *[f"- {text}" for text in statement.limits],
        "",
        "## Approval",
        "",
        f"{approval.who}, {approval.when}{f': {approval.note}' if approval.note else ''}",
        "",
        "Check it with `dpflows verify` before use.",
    ]
    return "\n".join(lines) + "\n"


def _metric_lines(metrics: Sequence[ReleasedMetric]) -> list[str]:
    if not metrics:
        return []
    rows = [
        f"| {one.name} | {one.value:.4f} | "
        f"{'none' if one.standard_error is None else f'{one.standard_error:.2g}'} "
        f"| {one.source} |"
        for one in metrics
    ]
    return ["| metric | value | standard error of its noise | source |", "|---|---|---|---|", *rows]


def read_model(text: bytes) -> dict[str, Any]:
    """The model's description."""
    found: dict[str, Any] = json.loads(text)
    return found


def kind_of(model: dict[str, Any]) -> str:
    """``linear``, ``neural-network``, or the scorer of a ranking."""
    if "network" in model:
        return "neural-network"
    return str(model.get("ranker", {}).get("scorer", "linear"))


def columns_of(statement: Statement, model: dict[str, Any]) -> int:
    """Columns of an encoded record; the dimension of a network counts its weights."""
    return len(model["features"]) if "network" in model else statement.data.dimension


def purpose(label: dict[str, Any]) -> str:
    """What the scores are for."""
    if label["kind"] == "relevance":
        return f"ranks the documents of one {label['query']} by column {label['column']!r}"
    return f"predicts column {label['column']!r}"
