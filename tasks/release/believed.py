"""Everything that audit, release and verify believe, with who vouches for it.

A file, tag, row or field that a step acts on stands here once. ``by`` says why it can be believed: the hash in the
ledger's commit record, the signature of the bundle, or that it is derived again from something that has one of these.
``SHOWN`` things are for people alone: no step acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class By(StrEnum):
    """Who vouches."""

    COMMIT = "hash in the ledger's commit record"
    LIST = "hash in the list of files, whose own hash is in the commit record"
    CHAIN = "hash chain of the ledger, and the head that the signed manifest holds"
    NOTED = "a note in the ledger that it is kept, and the head that the signed manifest holds"
    SIGNATURE = "signature of the manifest, which holds the file's checksum"
    DERIVED = "derived again"
    PLANNED = "derived again: the stored configuration is planned again, and statement and mechanisms compared with it"
    SHOWN = "nobody: shown to people, compared where a step shows it too"


@dataclass(frozen=True, slots=True)
class Believed:
    """``where`` is a path or a name, ``what`` the step takes from it, ``by`` who vouches for it."""

    kind: str  # run, model, mlflow, bundle, ledger or home
    where: str
    what: str
    by: By


RUN_FILES = (
    Believed("run", "config.json", "what was asked for", By.COMMIT),
    Believed("run", "privacy/statement.json", "guarantee, ledger entry, reasons", By.COMMIT),
    Believed("run", "privacy/statement.md", "what people read", By.COMMIT),
    Believed("run", "privacy/statement.html", "what people read", By.COMMIT),
    Believed("run", "privacy/mechanisms.json", "what was paid for", By.COMMIT),
    Believed("run", "privacy/curve.json", "the Rényi curve", By.COMMIT),
    Believed("run", "privacy/trace.json", "names and values of curves", By.COMMIT),
    Believed("run", "privacy/metrics.json", "metrics that may leave, of this training", By.COMMIT),
    Believed("run", "privacy/files.json", "which files the model has", By.COMMIT),
)
# What follows from configuration and data schema, not from a file alone: seen by ``release`` and ``audit --replan``.
PLAN = (
    Believed("run", "mechanisms and their order", "that they are those of the configuration", By.PLANNED),
    Believed("run", "guarantee, parameters, facts of the data", "that they are those of the configuration", By.PLANNED),
    Believed("home", "data schema", "n, bounds, levels; of the row facts the ledger has its own", By.PLANNED),
)
MODEL_FILES = (
    Believed("model", "artifacts/model/weights.npz", "the model", By.COMMIT),
    Believed("model", "artifacts/model/encoder.json", "preprocessing", By.COMMIT),
    Believed("model", "artifacts/model/model.json", "label, loss, network", By.COMMIT),
    Believed("model", "artifacts/model/state.safetensors", "parameters of a network", By.LIST),
    Believed("model", "scoring.py", "code that MLflow runs", By.LIST),
    Believed("model", "code/dpcore", "code that MLflow runs", By.LIST),
    Believed("model", "requirements.txt", "packages that a server installs", By.LIST),
    Believed("model", "MLmodel", "loader, folder of weights, signature", By.DERIVED),
    Believed("model", "conda.yaml", "packages that a server installs", By.DERIVED),
    Believed("model", "python_env.yaml", "packages that a server installs", By.DERIVED),
    Believed("model", "input_example.json", "an example without real rows", By.DERIVED),
    Believed("model", "serving_input_example.json", "an example without real rows", By.DERIVED),
)
MLFLOW = (
    Believed("mlflow", "runs.status", "that the training ended", By.DERIVED),
    Believed("mlflow", "tag dpflows.model", "which model is the run's", By.DERIVED),
    Believed("mlflow", "tag dpflows.ledger_entry", "which entry is the run's", By.DERIVED),
    Believed("mlflow", "tag dpflows.releasable", "whether it may leave", By.DERIVED),
    Believed("mlflow", "param privacy.epsilon", "the target", By.DERIVED),
    Believed("mlflow", "param privacy.delta", "the target", By.DERIVED),
    Believed("mlflow", "param privacy.adjacency", "the neighbours", By.DERIVED),
    Believed("mlflow", "param config.sha256", "the configuration", By.DERIVED),
    Believed("mlflow", "metric spent.epsilon", "what was spent", By.DERIVED),
    Believed("mlflow", "metric released.accuracy", "a released metric", By.DERIVED),
    Believed("mlflow", "logged_models.artifact_location", "where the model lies", By.DERIVED),
    Believed("mlflow", "logged_models.source_run_id", "whose the model is", By.DERIVED),
    Believed("mlflow", "logged_models.status", "that the model is whole", By.DERIVED),
    Believed("mlflow", "model_versions.source", "which model a version is", By.DERIVED),
    Believed("mlflow", "model_versions.storage_location", "which folder is served", By.DERIVED),
    Believed("mlflow", "model_versions.run_id", "which run a version is", By.DERIVED),
    Believed("mlflow", "alias released", "which version is in front", By.DERIVED),
    Believed("mlflow", "tag dpflows.run_id", "which run a version is", By.DERIVED),
    Believed("mlflow", "tag epsilon", "the price of a release", By.DERIVED),
    Believed(
        "mlflow", "tag dpflows.bundle", "where to look for a bundle, which is believed by its signature", By.SHOWN
    ),
    Believed("mlflow", "tag dpflows.serial", "nothing but the alias's age", By.SHOWN),
    Believed("mlflow", "metric of public data", "quality on rows that anybody has", By.SHOWN),
)
BUNDLE_FILES = (
    Believed("bundle", "manifest.json", "name, version, run, price, approval, ledger's head", By.SIGNATURE),
    Believed("bundle", "signature.json", "who released", By.SIGNATURE),
    Believed("bundle", "README.md", "what people read", By.SIGNATURE),
    Believed("bundle", "config.json", "what was asked for", By.COMMIT),
    Believed("bundle", "model/weights.npz", "the model", By.COMMIT),
    Believed("bundle", "model/encoder.json", "preprocessing", By.COMMIT),
    Believed("bundle", "model/model.json", "label and loss", By.COMMIT),
    Believed("bundle", "privacy/statement.json", "the guarantee", By.COMMIT),
    Believed("bundle", "privacy/statement.md", "what people read", By.COMMIT),
    Believed("bundle", "privacy/statement.html", "what people read", By.COMMIT),
    Believed("bundle", "privacy/mechanisms.json", "what was paid for", By.COMMIT),
    Believed("bundle", "privacy/metrics.json", "released metrics", By.COMMIT),
    Believed("bundle", "privacy/tuning.json", "the runs in the price", By.SIGNATURE),
)
HOME = (Believed("home", "releases/NAME/front.json", "which version is in front", By.SIGNATURE),)
LEDGER = (
    Believed("ledger", "opened", "whether data are private, and their budget", By.CHAIN),
    Believed("ledger", "reserved", "what was charged, on which blocks", By.CHAIN),
    Believed("ledger", "committed", "hashes of the run's files", By.CHAIN),
    Believed("ledger", "last record", "that nothing was taken off the end", By.CHAIN),
    Believed("ledger", "head file", "that nothing which was on disk vanished", By.NOTED),
    Believed("ledger", "events", "mechanisms of an entry", By.CHAIN),
    Believed("ledger", "balances", "what is spent", By.CHAIN),
)
TABLE = (*RUN_FILES, *PLAN, *MODEL_FILES, *MLFLOW, *BUNDLE_FILES, *HOME, *LEDGER)
