"""What a stored additive model says: terms in the column's own units, and why a row got its score.

All of it follows from the model's files, which hold weights, declarations and released marginals:
it costs nothing and may leave wherever the model may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.errors import InputError
from dpcore.preprocess import Encoder, MatrixEncoder, encoder_from_json
from dpcore.preprocess.terms import Additive, Term, additive
from dpcore.train import Planned, Result
from tasks.drawing.terms import point_name, sheet_svg

if TYPE_CHECKING:
    import pandas as pd

KEY = "explain"
FILES = ("model.json", "encoder.json", "weights.npz")
TERMS, PICTURE = "report/terms.json", "figures/terms.svg"
# Terms that are drawn, and that stand in a table; the rest is counted.
MOST_DRAWN = 24
MOST_LINES = 40
# What a row's score is made of: terms that are named, in order of size.
MOST_NAMED = 10


def of_training(planned: Planned, result: Result) -> dict[str, Any]:
    """What the card of a linear model keeps for its explanation, from public facts and released
    values alone.
    """
    problem = planned.problem
    if problem.kind != "linear":
        return {}
    noise = planned.algorithm.weight_noise(problem)
    kept: dict[str, Any] = {"intercept": problem.intercept, "noise": noise}
    if noise is None:
        kept["why"] = planned.algorithm.hidden_noise
    if result.marginals:
        kept["marginals"] = {
            name: [float(x) for x in values] for name, values in result.marginals.items()
        }
    return {KEY: kept}


def unit_of(card: Mapping[str, Any]) -> str:
    """What a term is measured in."""
    label = card["label"]
    if label["kind"] == "regression":
        return f"units of {label['column']}"
    if card["loss"] == "logistic" and label["kind"] == "binary":
        return f"log-odds of {label['positive']!r}"
    return (
        "score of each class" if label["kind"] == "classes" else f"score for {label['positive']!r}"
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """An additive model in words, numbers and panels; ``notes`` say what a reader has to know of
    it.
    """

    model: Additive
    unit: str
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    data: str

    @classmethod
    def of(
        cls, encoder: Encoder | MatrixEncoder, card: Mapping[str, Any], weights: np.ndarray
    ) -> Explanation:
        """From what is stored with a model. Raises ``InputError`` for a network or a ranker."""
        if reason := why_not(card):
            raise InputError(
                f"Expected a linear model of a table to explain, got {reason}; choose another "
                "model."
            )
        label, kept = card["label"], card.get(KEY, {})
        scale, shift = 1.0, 0.0
        if label["kind"] == "regression":
            (low, high), (first, last) = label["bounds"], label["scaled_to"]
            scale = (high - low) / (last - first)
            shift = low - first * scale
        outputs = tuple(label["levels"]) if label["kind"] == "classes" else ("",)
        weights = weights.reshape(len(outputs), -1)
        made = additive(
            encoder,
            weights,
            encoder.design.intercept,
            kept.get("marginals"),
            kept.get("noise"),
            scale,
            shift,
        )
        notes = (*_notes(encoder, kept), *_left_out(encoder, weights))
        return cls(made, unit_of(card), outputs, notes, card["data"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema_version": 1,
            "data": self.data,
            "unit": self.unit,
            "outputs": list(self.outputs),
            "constant": self.model.constant.tolist(),
            "terms": [term.to_dict() for term in self.model.terms],
            "notes": list(self.notes),
        }

    @property
    def drawn(self) -> Sequence[Term]:
        """The terms that get a panel: the most important ones."""
        return self.model.terms[:MOST_DRAWN]

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> Explanation | None:
        """From the files of a stored model by their names; None for a network or a ranker."""
        card = json.loads(files["model.json"])
        if why_not(card):
            return None
        with np.load(BytesIO(files["weights.npz"]), allow_pickle=False) as arrays:
            weights = arrays["weights"]
        return cls.of(encoder_from_json(files["encoder.json"].decode()), card, weights)

    def picture(self) -> str:
        """All panels as one SVG document."""
        return sheet_svg(
            self.drawn, f"{self.data}: terms of the model, in {self.unit}", self.outputs
        )

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Column, importance, where it is lowest and highest; the most important first."""
        return [_line(term) for term in self.model.terms[:MOST_LINES]]

    def text(self) -> str:
        """The table for a terminal."""
        head = ("column", "importance", "lowest", "highest")
        table = [head, *self.lines()]
        widths = [max(len(row[k]) for row in table) for k in range(3)]
        shown = [
            "  ".join([*(row[k].ljust(widths[k]) for k in range(3)), row[3]]).rstrip()
            for row in table
        ]
        left = len(self.model.terms) - MOST_LINES
        more = [f"and {left} more"] if left > 0 else []
        return (
            "\n".join(
                [f"Terms of the model of {self.data}, in {self.unit}", *shown, *more, *self.notes]
            )
            + "\n"
        )

    def rows(
        self, encoder: Encoder | MatrixEncoder, frame: pd.DataFrame, scale: float = 1.0
    ) -> list[dict[str, Any]]:
        """Why each row of ``frame`` got its score: what every term adds, largest first; they add up
        to the score.
        """
        constants, added = self.model.contributions(encoder.transform(frame))
        found = []
        for k in range(len(frame)):
            scores = constants[k] + added[k].sum(axis=0)
            best = int(np.argmax(scores))
            order = np.argsort(-np.abs(added[k][:, best]))
            terms = [
                {
                    "term": self.model.terms[i].name,
                    "value": _cells(frame.iloc[k], self.model.terms[i]),
                    "adds": float(added[k][i, best]),
                }
                for i in order
            ]
            row = {
                "row": k + 1,
                "score": float(scores[best]),
                "constant": float(constants[k][best]),
            }
            found.append(
                row
                | ({"output": self.outputs[best]} if len(self.outputs) > 1 else {})
                | {"terms": terms}
            )
        return found

    def row_text(self, row: Mapping[str, Any]) -> str:
        """One row of ``rows`` for a terminal, with a bar for each term."""
        named, rest = row["terms"][:MOST_NAMED], row["terms"][MOST_NAMED:]
        most = max((abs(one["adds"]) for one in named), default=0.0) or 1.0
        whose = f" for {row['output']!r}" if "output" in row else ""
        lines = [f"Row {row['row']}: score {row['score']:+.3f}{whose} in {self.unit}"]
        shown = [(f"{one['term']} = {one['value']}", one["adds"]) for one in named]
        shown.append(("all other columns", sum(one["adds"] for one in rest)))
        shown.append(("constant (an average row)", row["constant"]))
        width = max(len(name) for name, _ in shown)
        for name, adds in shown:
            bar = ("+" if adds >= 0 else "-") * round(20 * min(abs(adds) / most, 1.0))
            lines.append(f"  {name.ljust(width)}  {adds:+8.3f}  {bar}".rstrip())
        return "\n".join(lines) + "\n"


def write_terms(folder: Path) -> list[str]:
    """Terms of the model in ``folder`` of a run as JSON and as one picture; the names of the files,
    none of a network or a ranker.
    """
    stored = {name: (folder / "model" / name).read_bytes() for name in FILES}
    found = Explanation.of_files(stored)
    if found is None:
        return []
    texts = {TERMS: json.dumps(found.to_dict()), PICTURE: found.picture()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return list(texts)


def why_not(card: Mapping[str, Any]) -> str:
    """What a model is that has no terms; empty for an additive one."""
    if "network" in card:
        return "a network"
    return "a ranking model" if card["label"]["kind"] == "relevance" else ""


def _notes(encoder: Encoder | MatrixEncoder, kept: Mapping[str, Any]) -> list[str]:
    """Where importance comes from, what the band covers, and what the encoding does to sums."""
    if "marginals" in kept:
        weighed = "Importance: the standard deviation of a term under the released noisy marginals."
    else:
        weighed = (
            "Importance: the standard deviation of a term where every declared level or stretch "
            "counts alike."
        )
    if kept.get("noise"):
        band = (
            "Band: two standard deviations of the noise; it covers neither what clipping cost nor "
            "who happened to be in the data."
        )
    else:
        why = kept.get("why", "the model is from before its noise was kept")
        band = f"No band is drawn: {why}."
    notes = [weighed, band]
    if encoder.normalise != "none":
        notes.append(
            "Rows longer than 1 are shortened before they are scored, all terms of a row and its "
            "constant by one factor."
        )
    return notes


def _left_out(encoder: Encoder | MatrixEncoder, weights: np.ndarray) -> list[str]:
    """Which columns' fine bins were not used, and why that may be."""
    parts = () if isinstance(encoder, MatrixEncoder) else encoder.parts
    idle = [
        part.name
        for part in parts
        if part.fine and not weights[:, part.start : part.start + part.width].any()
    ]
    if not idle:
        return []
    return [
        "Fine bins left out, where no bin holds nearly all rows or single bins told no more than "
        f"chance: {', '.join(idle)}."
    ]


def _line(term: Term) -> tuple[str, str, str, str]:
    values = term.values.reshape(len(term.values), -1)
    output = int(np.argmax(np.ptp(values, axis=1)))
    low, high = int(np.argmin(values[output])), int(np.argmax(values[output]))
    ends = [f"{values[output][place]:+.2f} at {point_name(term, place)}" for place in (low, high)]
    return term.name, f"{term.importance:.3f}", ends[0], ends[1]


def _cells(row: pd.Series, term: Term) -> str:
    """The raw cells behind a term."""
    found = []
    for axis in term.axes:
        name = axis.name if axis.name in row.index else axis.name.rpartition(".")[0]
        found.append(str(row[name]) if name in row.index else "")
    return " x ".join(text for text in found if text) or "several"
