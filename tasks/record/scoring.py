"""The scorer that MLflow stores with a model, as readable code; weights and preprocessing are plain
files beside it.

MLflow runs this file when the model is loaded. Nothing is unpickled: JSON is parsed, and the
weights are read with ``allow_pickle=False``. A kind of model with scores of its own stores a second
file of code beside the weights (``scores.py``); it runs where this one does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import BAD_REQUEST, MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel
from mlflow.pyfunc.model import PythonModelContext
from mlflow.types import Schema
from mlflow.types.schema import AnyType
from scipy.sparse import issparse
from scipy.special import expit, log_expit, logsumexp

from dpcore.errors import InputError
from dpcore.identity import declared_names, unit_codes
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.ranking.model import RankingModel
from dpcore.ranking.sessions import Documents, offsets_of

OWN_SCORES = "scores.py"
# Columns of the answer by name, each (n,), from the card, the weights (d,) and encoded rows (n, d).
Scored = Callable[[Mapping[str, Any], np.ndarray, Any], Mapping[str, np.ndarray]]


class RefusedRows(MlflowException, InputError):
    """Rows that the model cannot score, in words that a server hands to its caller (status 400)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_code=BAD_REQUEST)


def read_any_as_text() -> None:
    """Let MLflow's reader of CSV take columns of any type, as the text that stands in the file.

    ``mlflow models serve`` asks a signature for the type of every column and has none for ``any``;
    of its own types none takes whole numbers and fractions alike, nor Boolean and nullable columns.
    The encoder reads text as well.
    """
    schema: Any = Schema
    known = schema.pandas_types
    if getattr(known, "reads_any", False):
        return

    def types_of(self: Any) -> list[Any]:
        kinds = self.input_types()
        if not any(isinstance(kind, AnyType) for kind in kinds):
            return list(known(self))
        return [object if isinstance(kind, AnyType) else kind.to_pandas() for kind in kinds]

    pandas_types: Any = types_of
    pandas_types.reads_any = True
    schema.pandas_types = pandas_types


class LinearScorer(PythonModel):
    """score = x @ w for the encoded row x, the margin: the label is the positive one where it is
    >= 0.

    Of several classes the one with the largest score is the label. ``probability`` is that of the
    positive label of two, of the named label of several; models whose loss states none, and those
    from before it was given, have no such column. A regression model has the score in the label's
    own unit and repeats it as the label. ``own``: the scores of a kind that has others.
    """

    own: Scored | None = None

    def load_context(self, context: PythonModelContext) -> None:
        """As MLflow loads a stored model: what is stored as code runs."""
        folder = Path(context.artifacts["model"])
        own = folder / OWN_SCORES
        self.read(folder, run_path(str(own))["scored"] if own.is_file() else None)

    def read(self, folder: Path, own: Scored | None = None) -> None:
        """Read weights, encoder and card; no stored code runs."""
        self.own = own
        text = (folder / "encoder.json").read_text(encoding="utf-8")
        kind = MatrixEncoder if json.loads(text)["encoder"] == "matrix" else Encoder
        self.encoder = kind.from_json(text)
        self.card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        with np.load(folder / "weights.npz", allow_pickle=False) as arrays:
            self.weights = arrays["weights"]
        self.network = (
            stored_network(folder, self.card["network"]) if "network" in self.card else None
        )

    # MLflow hands the arguments over by these names.
    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        try:
            return self.scored(self.complete(pd.DataFrame(model_input)))
        except InputError as error:
            raise RefusedRows(str(error)) from error

    def complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame, if it has every column; MLflow leaves out what the signature does not name."""
        names = self.encoder.inputs
        found = declared_names(frame.columns, names)
        frame = frame.rename(columns={given: name for name, given in found.items()})
        missing = [name for name in names if name not in found]
        if not missing:
            return frame
        told = f"Expected rows with the columns {some_of(names)}, got none for {some_of(missing)}; "
        if len(missing) < len(names):
            raise InputError(f"{told}add {'it' if len(missing) == 1 else 'them'}.")
        raise InputError(
            f"{told}name the columns, those of an array by `pandas.DataFrame(rows, columns=names)`."
        )

    def scored(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Label, probability where the card says what states it, and score of every row."""
        label = self.card["label"]
        if label["kind"] == "relevance":
            return self.ranked(frame, label["query"])
        rows = self.encoder.transform(frame)
        if self.own is not None:
            return pd.DataFrame(dict(self.own(self.card, self.weights, rows)), index=frame.index)
        if label["kind"] == "regression":
            (low, high), (first, last) = label["bounds"], label["scaled_to"]
            value = low + (rows @ self.weights - first) * (high - low) / (last - first)
            return pd.DataFrame({"label": value, "score": value}, index=frame.index)
        names, scores = self.classified(rows)
        found = {"label": names}
        if stated := self.card.get("probability"):
            found["probability"] = chances(scores, stated["from"])
        found["score"] = scores if scores.ndim == 1 else scores.max(axis=1)
        return pd.DataFrame(found, index=frame.index)

    def classified(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Labels (n,), and margins (n,) of two classes or scores (n, K) of several."""
        label = self.card["label"]
        levels = label.get("levels") or [label["negative"], label["positive"]]
        names, several = np.array(levels, dtype=object), label["kind"] == "classes"
        if self.network is None and not several:
            margin = np.asarray(rows @ self.weights, dtype=np.float64)
            return names[(margin >= 0).astype(int)], margin
        if self.network is None:
            scores = np.asarray(rows @ self.weights.reshape(len(names), -1).T, dtype=np.float64)
        else:
            scores = self.network.scores_of(rows)
        return names[scores.argmax(axis=1)], scores if several else scores[:, 1] - scores[:, 0]

    def ranked(self, frame: pd.DataFrame, query: str) -> pd.DataFrame:
        """Query, score (higher is better) and rank within the query, 1 for the best; equal scores
        keep their order.
        """
        if query not in frame:
            raise InputError(
                f"Expected the query of every document in column {query!r}; a rank is one within a "
                "query."
            )
        codes, texts = unit_codes(frame[query], f"column {query!r}")
        names = np.array(texts, dtype=object)[codes]
        order = np.argsort(codes, kind="stable")
        rows: Any = self.encoder.transform(frame.drop(columns=query).iloc[order])
        documents = Documents(
            rows.toarray() if issparse(rows) else rows, offsets_of(np.bincount(codes))
        )
        score = np.empty(len(frame))
        score[order] = RankingModel(**self.card["ranker"]).scores(self.weights, documents)
        rank = pd.Series(-score).groupby(codes).rank(method="first").astype(np.int64)
        return pd.DataFrame(
            {query: names, "score": score, "rank": rank.to_numpy()}, index=frame.index
        )


def chances(scores: np.ndarray, stated: str) -> np.ndarray:
    """Probabilities (n,): of the positive label from margins (n,), of the most likely class from
    scores (n, K).

    ``stated``: ``softmax`` of the scores, or ``one_vs_rest``: log-odds of each class against the
    others, whose probabilities are made to sum to 1.
    """
    if scores.ndim == 1:
        return np.asarray(expit(scores))
    logs = log_expit(scores) if stated == "one_vs_rest" else scores
    return np.asarray(np.exp(logs.max(axis=1) - logsumexp(logs, axis=1)))


def some_of(names: Sequence[str], shown: int = 20) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def stored_network(folder: Path, card: dict[str, Any]) -> Any:
    """The network of the card with its stored parameters. Raises ``InputError`` where they are not
    those of the card.

    safetensors holds plain tensors: reading it runs no code.
    """
    from dpcore.network.spec import NetworkSpec

    network = NetworkSpec(**card["spec"]).build()
    data = (folder / "state.safetensors").read_bytes()
    if sha256(data).hexdigest() != card["state_sha256"]:
        raise InputError(
            "Expected the parameters that the model's card names in state.safetensors, got others."
        )
    from safetensors.numpy import load

    network.load_state(load(data))
    return network


read_any_as_text()
set_model(LinearScorer())
