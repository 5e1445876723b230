"""The trained model as files and in MLflow: weights and preprocessing are plain JSON and NPZ."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import dpcore
from dpcore.preprocess import Column, Encoder, MatrixEncoder
from tasks.kinds.base import Kind
from tasks.record.example import answers, example_columns, in_words
from tasks.record.sources import requirements
from tasks.schema import QUERY, Schema

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from dpcore.train import Planned


MODEL_VERSION = 1
SCORER_FILE = Path(__file__).with_name("scoring.py")
OWN_SCORES = "scores.py"  # the file of a kind that has scores of its own, beside the weights


def label_card(schema: Schema) -> dict[str, Any]:
    """How scores become labels, from the declaration: the texts for +1 and -1, or the scale of a
    regression label.
    """
    label = schema.label
    if label.kind == "relevance":
        return {"kind": "relevance", "high": label.high, "query": QUERY}
    if label.kind == "regression":
        return {
            "kind": "regression",
            "bounds": [label.low, label.high],
            "scaled_to": list(label.scaled_to),
        }
    if label.kind == "classes":
        return {"kind": "classes", "levels": list(label.levels)}
    if label.positive and label.negative:
        return {"kind": "binary", "positive": label.positive[0], "negative": label.negative[0]}
    return {
        "kind": "binary",
        "positive": f">= {label.positive_from:g}",
        "negative": f"< {label.positive_from:g}",
    }


def probability_card(planned: Planned) -> dict[str, Any]:
    """What ``model.json`` says of probabilities, from public facts; nothing where the loss states
    none.

    A logistic loss takes its scores for log-odds, a softmax for log-probabilities up to a constant.
    Class weights move both, so a weighted loss states none.
    """
    problem = planned.problem
    if problem.kind == "network" or problem.loss.name == "softmax":
        stated = "softmax"
    elif problem.kind == "linear" and problem.loss.name == "logistic":
        stated = "logistic" if problem.outputs == 1 else "one_vs_rest"
    else:
        return {}
    return {"probability": {"from": stated, "calibrated": planned.algorithm.calibrates}}


def save_model(
    folder: Path,
    weights: np.ndarray,
    encoder: Encoder | MatrixEncoder,
    schema: Schema,
    loss: str,
    of_kind: Mapping[str, Any] | None = None,
) -> None:
    """Write ``weights.npz``, ``encoder.json`` and ``model.json`` to ``folder``; ``of_kind``: what
    its kind says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", weights=np.asarray(weights, dtype=np.float64))
    (folder / "encoder.json").write_text(encoder.to_json(), encoding="utf-8")
    card = {
        "schema_version": MODEL_VERSION,
        "data": schema.name,
        "loss": loss,
        "label": {"column": schema.label.column, **label_card(schema)},
        "features": list(encoder.design.names),
        "text": schema.text.model_dump(mode="json"),
    }
    (folder / "model.json").write_text(
        json.dumps({**card, **(of_kind or {})}, indent=2, ensure_ascii=False), encoding="utf-8"
    )


def save_scores(folder: Path, kind: Kind) -> dict[str, Any]:
    """Store the code of a kind's own scores beside the weights; return what ``model.json`` says of
    it: kind and columns of the answer. Nothing for a kind without.
    """
    if kind.scores is None:
        return {}
    shutil.copyfile(kind.scores, folder / OWN_SCORES)
    return {"kind": kind.name, "outputs": dict(run_path(str(kind.scores))["OUTPUTS"])}


def file_hash(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def raw_columns(encoder: Encoder | MatrixEncoder) -> list[str]:
    """Names of the columns that the scorer reads from a table."""
    return list(encoder.inputs)


def declared(encoder: Encoder) -> list[Any]:
    """The encoder's columns as ``Column`` objects."""
    return [
        column if isinstance(column, Column) else Column.from_dict(dict(column))
        for column in encoder.columns
    ]


def synthetic_rows(encoder: Encoder | MatrixEncoder, query: str | None = None) -> pd.DataFrame:
    """Two rows made up from the declaration alone; ``query`` names the column of a ranking's
    queries.
    """
    return pd.DataFrame(example_columns(encoder.to_dict(), query))


def signature(encoder: Encoder | MatrixEncoder, card: Mapping[str, Any]) -> Any:
    """Input and output columns. Inputs are of any type: MLflow has none that takes whole numbers
    and fractions alike; ``columns_in_words`` says what each takes.

    The encoder checks each value itself, by the declared bounds, levels and fills;
    ``read_any_as_text`` of the scorer lets CSV be served. A missing column is named by the scorer
    too, with all that are missing.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec
    from mlflow.types import Schema as MlflowSchema
    from mlflow.types.schema import AnyType

    query = card["label"].get("query")
    names = [*([] if query is None else [query]), *raw_columns(encoder)]
    inputs: list[Any] = [ColSpec(AnyType(), name, required=False) for name in names]
    outputs: list[Any] = [ColSpec(kind, name) for name, (kind, _) in answers(card).items()]
    return ModelSignature(inputs=MlflowSchema(inputs), outputs=MlflowSchema(outputs))


class Portable:
    """MLflow's flavour of Python functions, whose file MLmodel names no place of the machine that
    stored it: not where model and scorer were read, nor where the store keeps them. Loading goes by
    the names inside the folder.
    """

    __name__ = "mlflow.pyfunc"

    @staticmethod
    def save_model(path: str, mlflow_model: Any, **arguments: Any) -> None:
        import mlflow.pyfunc

        mlflow.pyfunc.save_model(path=path, mlflow_model=mlflow_model, **arguments)
        loader = mlflow_model.flavors["python_function"]
        for artifact in loader["artifacts"].values():
            artifact["uri"] = artifact["path"]
        loader["model_code_path"] = Path(loader["model_code_path"]).name
        mlflow_model.artifact_path = "model"
        mlflow_model.save(str(Path(path) / "MLmodel"))


def requirements_of(folder: Path) -> list[str]:
    """The packages of the scorer of the model in ``folder``, and of its own scores."""
    packages = requirements(SCORER_FILE, network=(folder / "state.safetensors").is_file())
    own = folder / OWN_SCORES
    return sorted({*packages, *(requirements(own) if own.is_file() else ())})


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Hold back the log messages below ERROR of some third-party loggers for the length of a
    block.
    """
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def log_model(
    client: MlflowClient,
    run_id: str,
    folder: Path,
    encoder: Encoder | MatrixEncoder,
    schema: Schema,
) -> str:
    """Store the files of ``folder`` with their scorer as a model of the run; return its URI
    (``models:/m-...``).
    """
    from mlflow.models import Model

    card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    # Created here, in the experiment of the run: left to MLflow it would go to the active one, and
    # to ./mlruns.
    experiment = client.get_run(run_id).info.experiment_id
    entry = client.create_logged_model(
        experiment, name="model", source_run_id=run_id, tags={"data": schema.name}
    )
    # The scorer runs here once, to be sure that what is stored can be loaded; its folder of code is
    # dpcore's.
    with quiet(
        "mlflow.pyfunc",
        "mlflow.models.model",
        "mlflow.models.utils",
        "mlflow.utils.requirements_utils",
    ):
        info = Model.log(
            artifact_path=None,
            flavor=Portable,
            model_id=entry.model_id,
            run_id=run_id,
            python_model=str(SCORER_FILE),
            artifacts={"model": str(folder)},
            code_paths=[str(Path(dpcore.__file__).parent)],
            signature=signature(encoder, card),
            metadata=in_words(encoder.to_dict(), card),
            input_example=synthetic_rows(encoder, card["label"].get("query")),
            # Given, so that MLflow need not guess them.
            pip_requirements=requirements_of(folder),
        )
    return str(info.model_uri)
