"""What a bundle says: the manifest for programs, and the model card for people.

The manifest of a bundle: what was released, by whom, at what price, and the checksum of every
file.

The model card: front matter as model hubs read it, then what the model is for, its guarantee and
its limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from dpcore.problem import Adjacency
from tasks.record.example import example_columns
from tasks.record.statement import First, Statement
from tasks.record.wording import plain_words, promise_and_charge

if TYPE_CHECKING:
    from tasks.record.explain import Explanation

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
OPENSSF = "model.sig"  # where the release had a key for it
WEIGHTS, ENCODER, CARD = "model/weights.npz", "model/encoder.json", "model/model.json"
STATE = "model/state.safetensors"  # of a network alone
STATEMENT, MECHANISMS, TUNING = (
    "privacy/statement.json",
    "privacy/mechanisms.json",
    "privacy/tuning.json",
)
METRICS, CONFIG, README = "privacy/metrics.json", "config.json", "README.md"
ONNX = "model/model.onnx"  # where the release was asked for it
TERMS = "terms.svg"  # of an additive model alone: what README.md shows
REQUIRED = (WEIGHTS, ENCODER, CARD, STATEMENT, MECHANISMS, TUNING, CONFIG, README)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Price(Strict):
    """What the release costs as a whole: every trial it was chosen from and its noisy metrics."""

    unit: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    conversion: str
    trials: int = Field(
        description="charged runs that the price includes; their mechanisms are in "
        "privacy/tuning.json"
    )
    scope: Literal["dataset", "run", "public"]


class Approval(Strict):
    who: str
    when: str
    note: str = ""


class ReleasedMetric(Strict):
    """A number about quality that may leave: on public data, or from a charged mechanism."""

    name: str
    value: float
    source: Literal["public data", "charged mechanism"]
    standard_error: float | None = Field(default=None, description="of the noise alone")


class File(Strict):
    sha256: str
    bytes: int


class Position(Strict):
    """Where the ledger stood at the release, and what its commit record of the run holds."""

    head: str = Field(
        description="hash of the newest record; the chain of the next release must contain it"
    )
    seq: int = Field(description="number of that record")
    hashes: dict[str, str] = Field(description="SHA-256 of the run's files in its commit record")


class Manifest(Strict):
    schema_version: First = 1
    name: str
    version: str
    created: str
    run_id: str
    price: Price
    approval: Approval
    policy: dict[str, Any]
    metrics: list[ReleasedMetric]
    previous: str | None = Field(description="the version that this one replaces")
    files: dict[str, File]
    ledger: Position | None = Field(
        default=None, description="None in bundles from before it was kept"
    )
    serial: int | None = Field(
        default=None, description="counts the decisions of a name; None in older bundles"
    )
    openssf: str | None = Field(
        default=None,
        description="public key (PEM) whose signature is in model.sig; None where there is none",
    )

    def to_json(self) -> str:
        """Readable JSON with sorted keys; the signature is over exactly these bytes."""
        left_out = {"openssf"} if self.openssf is None else set()
        return json.dumps(
            self.model_dump(mode="json", exclude=left_out),
            indent=1,
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
        )


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
    terms: Explanation | None = None,
    licence: str = "",
    contact: str = "",
    use: Sequence[str] = (),
) -> str:
    """Markdown from public facts and released numbers alone; ``use``: the lines of ``usage``."""
    task = TASKS.get(model["label"]["kind"], "tabular-classification")
    front: dict[str, Any] = {
        **({"license": licence} if licence else {}),
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
        "whose columns follow the declared schema in `model/encoder.json`; other values are "
        "refused. It was not made for decisions about single persons without review.",
        "",
        "## Use",
        "",
        "In the folder of this file, with the fingerprint that you got from whoever released it:",
        "",
        "```text",
        "dpflows verify . --key FINGERPRINT",
        "dpflows predict . rows.csv -o scores.csv",
        "```",
        "",
        *use,
        f"Licence of the model: {licence or 'not stated; ask whoever released it'}. "
        f"Contact: {contact or 'not stated'}.",
        "",
        "## Privacy",
        "",
        plain_words(statement),
        "",
        promise_and_charge(statement),
        "",
        f"The release as a whole, with {price.trials} charged "
        f"run{'s' if price.trials != 1 else ''} that it was chosen from and its noisy metrics: "
        f"epsilon = {price.epsilon:.6g}, delta = {price.delta:g} for one {price.unit} under "
        f"{price.adjacency} ({price.conversion}). The whole statement is in "
        "`privacy/statement.md`, and how it stands to the points of NIST SP 800-226 in "
        "`privacy/evaluation.md`.",
        "",
        "## Data",
        "",
        f"{statement.data.name}: public n = {statement.data.public_n} ({statement.data.n_kind}), "
        f"{columns_of(statement, model)} encoded columns. {statement.data.bounds}. No number "
        "computed on the records stands here unless it passed a charged mechanism.",
        "",
        "## Released metrics",
        "",
        *(_metric_lines(metrics) or ["None."]),
        "",
        "Baselines have the name of what they measure behind their own (`majority_accuracy`, the "
        "share of the larger class). Of baselines, class balance and subgroups that do not stand "
        "here nothing was released: on private records each number has to be charged.",
        "",
        *_terms(terms),
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


def _terms(found: Explanation | None) -> list[str]:
    """What the model says: its terms as a table and a picture; nothing of a model without terms."""
    if found is None:
        return []
    rows = [
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in found.lines()
    ]
    return [
        "## What the model says",
        "",
        f"A score is a constant and one term a column, in {found.unit}. All of it follows from "
        "what was released, and costs nothing.",
        "",
        f"![Terms of the model by column]({TERMS})",
        "",
        "| column | importance | lowest | highest |",
        "|---|---|---|---|",
        *rows,
        "",
        *found.notes,
        "",
    ]


def usage(model: Mapping[str, bytes], exported: bool) -> list[str]:
    """Lines of the card that show how to score rows in Python, on two rows made up from the
    declared bounds and levels; and with the graph, where it was ``exported``.
    """
    encoder, label = json.loads(model["encoder.json"]), json.loads(model["model.json"])["label"]
    rows = example_columns(encoder, label.get("query"))
    table = encoder["encoder"] == "table"
    if table:
        shown = [f"    {name!r}: {values!r}," for name, values in rows.items()]
        frame = ["rows = pd.DataFrame({", *shown, "})"]
    else:
        first = [f"rows[{label['query']!r}] = 'q1'"] if "query" in label else []
        frame = [
            "rows = pd.DataFrame({name: [0.0, 1.0] for name in scorer.encoder.inputs})",
            *first,
        ]
    lines = [
        "In Python, with that fingerprint in `DPFLOWS_TRUSTED_KEYS`:",
        "",
        "```python",
        "from pathlib import Path",
        "",
        "import pandas as pd",
        "",
        "from flows.commands.predict import released_model",
        "",
        'name, scorer = released_model(Path("."), any_signer=False)',
        *frame,
        "print(scorer.predict(None, rows))",
        "```",
        "",
    ]
    if not exported:
        return lines
    cells = (
        "    one.name: rows[[one.name]].to_numpy(dtype=float if 'double' in one.type else object)\n"
        "    for one in session.get_inputs()"
        if table
        else "    'features': rows[list(scorer.encoder.inputs)].to_numpy(dtype=float)"
    )
    return [
        *lines,
        f"`{ONNX}` answers the same without dpflows; it cannot refuse a row and gives NaN instead:",
        "",
        "```python",
        "import onnxruntime",
        "",
        f'session = onnxruntime.InferenceSession("{ONNX}")',
        "cells = {",
        cells,
        "}",
        "names = [one.name for one in session.get_outputs()]",
        "print(dict(zip(names, session.run(names, cells))))",
        "```",
        "",
    ]


def _metric_lines(metrics: Sequence[ReleasedMetric]) -> list[str]:
    if not metrics:
        return []
    rows = [
        f"| {one.name} | {one.value:.4f} | "
        f"{'none' if one.standard_error is None else f'{one.standard_error:.2g}'} | {one.source} |"
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
