"""Models of earlier runs: to score with, or as plain arrays where the ledger holds their hash.

A stored model as a plain function of rows, for what wants one: ``mlflow.models.evaluate`` above
all.

MLflow's evaluator takes one column of predictions and looks at a model's table of label and score
in vain, so it is given a function:
``mlflow.models.evaluate(predict_fn(uri), data=frame, targets="paid", model_type="classifier")``. It
takes arrays too: to ``mlflow.pyfunc.load_model(uri).predict`` columns come by name alone.
``mlflow models serve`` takes JSON and CSV with a line of names; that CSV is read by pandas, where
an empty cell, ``NA``, ``None`` and the like are gaps. ``dpflows predict`` reads a file as the
schema says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from dpcore.errors import DPFlowsError, InputError
from dpcore.preprocess.frames import as_frame
from tasks.ledger import Ledger
from tasks.ledger.entries import entries, entry
from tasks.record import MODEL, OURS
from tasks.record import MODEL as MODEL_TAG
from tasks.record.model import file_hash, quiet

if TYPE_CHECKING:
    from mlflow import MlflowClient


def run_model(client: MlflowClient, run_id: str) -> str:
    """The URI of the model that a training run stored."""
    from mlflow.exceptions import MlflowException

    try:
        tags = client.get_run(run_id).data.tags
    except MlflowException:
        raise InputError(
            f"Expected a run of this store ({client.tracking_uri}), got {run_id!r}; `dpflows ui` "
            "lists them."
        ) from None
    if MODEL_TAG not in tags:
        raise InputError(
            f"Expected a run with a model, got {run_id!r}, which stored none; choose a finished "
            "training."
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


# Name of the hash of weights that a later training may begin with: those of a committed entry whose
# statement says that they may be released. Internal ones hold what no entry paid for. Entries of
# before this name have none, and give no start.
START = "start"


class Stored(NamedTuple):
    """The charged weights of a run, with the encoder that they belong to as its JSON text.

    ``start``: whether later runs on the data may depend on them, since their statement lets them
    out.
    """

    run_id: str
    weights: np.ndarray
    encoder: str
    start: bool = True

    def unfit(self, encoder: str, size: int) -> str:
        """Why a training with that ``encoder`` and ``size`` weights cannot use them; empty where it
        can.
        """
        if self.encoder != encoder or len(self.weights) != size:
            return f"run {self.run_id} has other columns"
        if not self.start:
            return (
                f"run {self.run_id} is internal, or of an earlier version whose ledger entry does "
                "not say that it may be released"
            )
        return ""


def finished_runs(client: MlflowClient, dataset: str, most: int = 100) -> list[tuple[str, str]]:
    """The newest finished trainings of a data set that stored a model, newest first: run and entry
    of the ledger.
    """
    experiments = client.search_experiments(filter_string=f"tags.{OURS} = '1'")
    if not experiments:
        return []
    wanted = (
        f"attributes.status = 'FINISHED' and tags.`dpflows.data` = '{dataset}' and tags.`{MODEL}` "
        "!= ''"
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
            f"Expected a run with a model and a ledger entry, got {run_id!r}; choose a finished "
            "training."
        )
    folder = model_folder(client, tags[MODEL])
    try:
        known = entry(ledger, tags["dpflows.ledger_entry"])
        digest = file_hash(folder / "weights.npz")
        if known["state"] != "committed" or known["hashes"].get("weights") != digest:
            raise InputError(
                f"Expected the weights of run {run_id!r} as its ledger entry holds them, got other "
                "ones."
            )
        if known["hashes"].get("encoder") not in (None, file_hash(folder / "encoder.json")):
            raise InputError(
                f"Expected the encoder of run {run_id!r} as its ledger entry holds it, got another "
                "one."
            )
        with np.load(folder / "weights.npz", allow_pickle=False) as arrays:
            weights = np.asarray(arrays["weights"], dtype=np.float64)
        encoder = (folder / "encoder.json").read_text(encoding="utf-8")
        return Stored(run_id, weights, encoder, known["hashes"].get(START) == digest)
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


def without_price(
    name: str, weights: Sequence[float] | None, dataset: str, ledger: Ledger
) -> list[str]:
    """Return why a run that was given these ``weights`` must not be released, or nothing; ``name``
    is that of its option.

    Weights of a committed entry of the data set whose statement lets them out were paid for. Any
    others may have been computed from its records, an internal model's from bounds that were read
    there.
    """
    if weights is None:
        return []
    buffer = BytesIO()
    # the same bytes as in a stored model
    np.savez(buffer, weights=np.asarray(weights, dtype=np.float64))
    digest = sha256(buffer.getvalue()).hexdigest()
    if any(
        one["state"] == "committed" and one["hashes"].get(START) == digest
        for one in entries(ledger, dataset)
    ):
        return []
    return [
        f"{name}: these weights belong to no committed ledger entry of the data set that may be "
        "released, so their price is unknown"
    ]


def predict_fn(model: str, output: str = "label") -> Callable[[Any], np.ndarray]:
    """A function from rows to one column ``output`` of the stored ``model`` (a URI such as
    ``models:/NAME@ALIAS``).

    Rows: a frame with the model's columns in any order, others are left out; or an array (n,
    columns) in the order of the model's signature. The answer has shape (n,): labels as declared,
    or scores. Raises ``InputError`` where the model has no such output or a column is missing,
    naming it.
    """
    loaded = load_model(model)
    names = [str(name) for name in loaded.metadata.get_input_schema().input_names()]
    known = [str(name) for name in loaded.metadata.get_output_schema().input_names()]
    if output not in known:
        raise InputError(
            f"Expected an output among {', '.join(known)} of {model!r}, got output={output!r}."
        )

    def answer(rows: Any) -> np.ndarray:
        return np.asarray(loaded.predict(_frame(rows, names))[output].to_numpy())

    return answer


def _frame(rows: Any, names: list[str]) -> pd.DataFrame:
    rows = as_frame(rows)
    if isinstance(rows, pd.DataFrame):
        if missing := [name for name in names if name not in rows]:
            raise InputError(
                f"Expected the columns {', '.join(names)}, got none for {', '.join(missing)}; add "
                "them."
            )
        return rows[names]
    table = np.asarray(rows)
    if table.ndim != 2 or table.shape[1] != len(names):
        raise InputError(
            f"Expected rows of {len(names)} columns ({', '.join(names)}), got shape {table.shape}."
        )
    return pd.DataFrame(table, columns=names).infer_objects()
