"""The trained model as files, in MLflow, and back: weights and preprocessing are plain JSON and
NPZ, never a pickle.

Models of earlier runs as plain arrays, believed only where the ledger holds the hash of their
weights.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from dpcore.errors import DPFlowsError, InputError
from dpcore.preprocess import Column, Encoder, MatrixEncoder
from tasks.ledger import Ledger
from tasks.ledger.summary import entries, entry
from tasks.readers.open import QUERY
from tasks.record import MODEL, OURS
from tasks.record import MODEL as MODEL_TAG
from tasks.record.example import example_columns
from tasks.record.requirements import requirements
from tasks.schema import Schema

if TYPE_CHECKING:
    from mlflow import MlflowClient


MODEL_VERSION = 1
SCORER = Path(__file__).with_name("scoring.py")


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


def signature(encoder: Encoder | MatrixEncoder, kind: str) -> Any:
    """Input and output columns. Inputs are of any type: MLflow has none that takes whole numbers
    and fractions alike.

    The encoder checks each value itself, by the declared bounds, levels and fills;
    ``read_any_as_text`` of the scorer lets CSV be served. A missing column is named by the scorer
    too, with all that are missing.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec
    from mlflow.types import Schema as MlflowSchema
    from mlflow.types.schema import AnyType

    inputs: list[Any] = [ColSpec(AnyType(), name, required=False) for name in raw_columns(encoder)]
    if kind == "relevance":
        inputs = [ColSpec(AnyType(), QUERY, required=False), *inputs]
        outputs: list[Any] = [
            ColSpec("string", QUERY),
            ColSpec("double", "score"),
            ColSpec("long", "rank"),
        ]
        return ModelSignature(inputs=MlflowSchema(inputs), outputs=MlflowSchema(outputs))
    label = ColSpec("double" if kind == "regression" else "string", "label")
    return ModelSignature(
        inputs=MlflowSchema(inputs), outputs=MlflowSchema([label, ColSpec("double", "score")])
    )


def requirements_of(folder: Path) -> list[str]:
    """The packages of the scorer of the model in ``folder``."""
    return list(requirements(SCORER, network=(folder / "state.safetensors").is_file()))


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
    import mlflow.pyfunc
    from mlflow.models import Model

    import dpcore

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
            flavor=mlflow.pyfunc,
            model_id=entry.model_id,
            run_id=run_id,
            python_model=str(SCORER),
            artifacts={"model": str(folder)},
            code_paths=[str(Path(dpcore.__file__).parent)],
            signature=signature(encoder, schema.label.kind),
            input_example=synthetic_rows(encoder, label_card(schema).get("query")),
            # Given, so that MLflow need not guess them.
            pip_requirements=requirements_of(folder),
        )
    return str(info.model_uri)


def run_model(client: MlflowClient, run_id: str) -> str:
    """The URI of the model that a training run stored."""
    from mlflow.exceptions import MlflowException

    try:
        tags = client.get_run(run_id).data.tags
    except MlflowException:
        raise InputError(
            f"Expected a run of this store ({client.tracking_uri}), got {run_id!r}; `dpflows ui` "
            f"lists them."
        ) from None
    if MODEL_TAG not in tags:
        raise InputError(
            f"Expected a run with a model, got {run_id!r}, which stored none; choose "
            f"a finished training."
        )
    return tags[MODEL_TAG]


def load_model(uri: str) -> Any:
    """Load a stored model for scoring; pickle stays forbidden. Raises ``InputError`` where it
    cannot be loaded.
    """
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    try:
        with quiet("mlflow.pyfunc", "mlflow.utils.requirements_utils"):
            return mlflow.pyfunc.load_model(uri)
    except (MlflowException, OSError) as error:
        text = " ".join(str(error).split())[:200]
        if text.endswith("No such artifact: ''"):
            text = (
                "its files are not where the store says; `dpflows move` puts places right after a "
                "move"
            )
        raise InputError(
            f"Expected a model that can be loaded, got {uri!r}: {text}; check its name."
        ) from error


class Stored(NamedTuple):
    """The released weights of a run, with the encoder that they belong to as its JSON text."""

    run_id: str
    weights: np.ndarray
    encoder: str


def finished_runs(client: MlflowClient, dataset: str, most: int = 100) -> list[tuple[str, str]]:
    """The newest finished trainings of a data set that stored a model, newest first: run and entry
    of the ledger.
    """
    experiments = client.search_experiments(filter_string=f"tags.{OURS} = '1'")
    if not experiments:
        return []
    wanted = (
        f"attributes.status = 'FINISHED' and tags.`dpflows.data` = '{dataset}' and tags.`{MODEL}` "
        f"!= ''"
    )
    ids = [experiment.experiment_id for experiment in experiments]
    found = client.search_runs(
        ids, wanted, max_results=most, order_by=["attributes.start_time DESC"]
    )
    return [
        (str(run.info.run_id), str(run.data.tags.get("dpflows.ledger_entry", ""))) for run in found
    ]


def read_stored(client: MlflowClient, run_id: str, ledger: Ledger) -> Stored:
    """Read the weights of a run; raises ``InputError`` where the ledger does not hold their hash as
    committed.

    MLflow can be edited after the fact. Weights that no ledger entry stands for have no known
    price, and no code that is stored with the model is run.
    """
    tags = client.get_run(run_id).data.tags
    if MODEL not in tags or "dpflows.ledger_entry" not in tags:
        raise InputError(
            f"Expected a run with a model and a ledger entry, got {run_id!r}; choose "
            f"a finished training."
        )
    folder = model_folder(client, tags[MODEL])
    try:
        known = entry(ledger, tags["dpflows.ledger_entry"])
        digest = file_hash(folder / "weights.npz")
        if known["state"] != "committed" or known["hashes"].get("weights") != digest:
            raise InputError(
                f"Expected the weights of run {run_id!r} as its ledger entry holds "
                f"them, got other ones."
            )
        if known["hashes"].get("encoder") not in (None, file_hash(folder / "encoder.json")):
            raise InputError(
                f"Expected the encoder of run {run_id!r} as its ledger entry holds "
                f"it, got another one."
            )
        with np.load(folder / "weights.npz", allow_pickle=False) as arrays:
            weights = np.asarray(arrays["weights"], dtype=np.float64)
        return Stored(run_id, weights, (folder / "encoder.json").read_text(encoding="utf-8"))
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, DPFlowsError):
            raise
        raise InputError(
            f"Expected readable weights of run {run_id!r}, got {type(error).__name__}: {error}."
        ) from error


def model_folder(client: MlflowClient, uri: str) -> Path:
    """The folder with weights and encoder of a stored model, downloaded where the store is
    elsewhere.
    """
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    try:
        root = Path(
            mlflow.artifacts.download_artifacts(artifact_uri=uri, tracking_uri=client.tracking_uri)
        )
    except (MlflowException, OSError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"Expected a stored model at {uri}, got: {text}.") from error
    found = sorted(root.rglob("weights.npz"))
    if len(found) != 1:
        raise InputError(
            f"Expected one weights.npz in the model {uri}, got {len(found)}; train again."
        )
    return found[0].parent


def start_without_price(start: Sequence[float] | None, dataset: str, ledger: Ledger) -> list[str]:
    """Return why a run with this ``start`` must not be released, or nothing.

    Weights of a committed entry of the data set were paid for. Any others may have been computed
    from its records.
    """
    if start is None:
        return []
    buffer = BytesIO()
    # the same bytes as in a stored model
    np.savez(buffer, weights=np.asarray(start, dtype=np.float64))
    digest = sha256(buffer.getvalue()).hexdigest()
    if any(
        one["state"] == "committed" and one["hashes"].get("weights") == digest
        for one in entries(ledger, dataset)
    ):
        return []
    return [
        "start: these weights belong to no committed ledger entry of the data set, so their "
        "price is unknown"
    ]
