"""Models of earlier runs as plain arrays, believed only where the ledger holds the hash of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpcore.errors import DPFlowsError, InputError
from tasks.ledger import Ledger
from tasks.ledger.views import entries, entry
from tasks.model import MODEL_TAG, file_hash
from tasks.tracking import OURS_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Stored(NamedTuple):
    """The released weights of a run, with the encoder that they belong to as its JSON text."""

    run_id: str
    weights: np.ndarray
    encoder: str


def newest_run(client: MlflowClient, dataset: str) -> str | None:
    """The newest finished training of a data set that stored a model, None where there is none."""
    experiments = client.search_experiments(filter_string=f"tags.{OURS_TAG} = '1'")
    if not experiments:
        return None
    wanted = f"attributes.status = 'FINISHED' and tags.`dpflows.data` = '{dataset}' and tags.`{MODEL_TAG}` != ''"
    ids = [experiment.experiment_id for experiment in experiments]
    found = client.search_runs(ids, wanted, max_results=1, order_by=["attributes.start_time DESC"])
    return str(found[0].info.run_id) if found else None


def read_stored(client: MlflowClient, run_id: str, ledger: Ledger) -> Stored:
    """Read the weights of a run; raises ``InputError`` where the ledger does not hold their hash as committed.

    MLflow can be edited after the fact. Weights that no ledger entry stands for have no known price, and no code that
    is stored with the model is run.
    """
    tags = client.get_run(run_id).data.tags
    if MODEL_TAG not in tags or "dpflows.ledger_entry" not in tags:
        raise InputError(f"Expected a run with a model and a ledger entry, got {run_id!r}; choose a finished training.")
    folder = model_folder(client, tags[MODEL_TAG])
    try:
        known = entry(ledger, tags["dpflows.ledger_entry"])
        digest = file_hash(folder / "weights.npz")
        if known["state"] != "committed" or known["hashes"].get("weights") != digest:
            raise InputError(f"Expected the weights of run {run_id!r} as its ledger entry holds them, got other ones.")
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
    """The folder with weights and encoder of a stored model, downloaded where the store is elsewhere."""
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    try:
        root = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, tracking_uri=client.tracking_uri))
    except (MlflowException, OSError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"Expected a stored model at {uri}, got: {text}.") from error
    found = sorted(root.rglob("weights.npz"))
    if len(found) != 1:
        raise InputError(f"Expected one weights.npz in the model {uri}, got {len(found)}; train again.")
    return found[0].parent


def start_without_price(start: Sequence[float] | None, dataset: str, ledger: Ledger) -> list[str]:
    """Return why a run with this ``start`` must not be released, or nothing.

    Weights of a committed entry of the data set were paid for. Any others may have been computed from its records.
    """
    if start is None:
        return []
    buffer = BytesIO()
    np.savez(buffer, weights=np.asarray(start, dtype=np.float64))  # the same bytes as in a stored model
    digest = sha256(buffer.getvalue()).hexdigest()
    if any(one["state"] == "committed" and one["hashes"].get("weights") == digest for one in entries(ledger, dataset)):
        return []
    return ["start: these weights belong to no committed ledger entry of the data set, so their price is unknown"]
