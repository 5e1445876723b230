"""Rules for the folder of the stored model: what MLflow serves is what was trained, file by file.

The ledger's commit record vouches for the list of files, the list for weights, preprocessing,
scorer and the code that travels with it. What MLflow writes beside them is derived again. Runs from
before the list was kept are compared with what this version writes, and where that differs the
audit says what it cannot vouch for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpcore.errors import DPFlowsError
from tasks.audit.findings import RETRAIN, Finding, block, warn
from tasks.audit.rules_content import STATE
from tasks.audit.rules_run import MODEL_FILES
from tasks.audit.subject import Subject, digest
from tasks.record import MODEL, sources
from tasks.record.example import answers, example_columns, in_words, is_example

# What MLflow itself writes into the folder of a model.
CARD, CONDA, PYTHON, PACKAGES = "MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt"
EXAMPLE, SERVING = "input_example.json", "serving_input_example.json"
DERIVED = (CARD, CONDA, PYTHON, PACKAGES, EXAMPLE, SERVING)
WRITTEN_LATER = "registered_model_meta"  # by MLflow, when it downloads a registered version
COMPILED = "__pycache__/"
PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==[0-9][0-9A-Za-z.+]*")
# Packages of the scorer in runs from before the list of files, which names them.
FIRST_PACKAGES = (
    "mlflow",
    "mlflow-skinny",
    "numpy",
    "pandas",
    "scipy",
    "scikit-learn",
    "torch",
    "safetensors",
)
BUILD = re.compile(r"(pip|setuptools|wheel)((==|<=)[0-9][0-9A-Za-z.]*)?")
PLAIN_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
# Keys of MLmodel that change nothing about what is loaded, and the others with the value that ours
# have.
CARD_FREE = {
    "artifact_path",
    "mlflow_version",
    "model_size_bytes",
    "saved_input_example_info",
    "utc_time_created",
    "signature",
    "flavors",
    "run_id",
    "model_id",
    "model_uuid",
    "metadata",
}
CARD_FIXED: dict[str, Any] = {
    "is_signature_from_type_hint": False,
    "prompts": None,
    "type_hint_from_example": False,
}
LOADER = {
    "code": "code",
    "env": {"conda": CONDA, "virtualenv": PYTHON},
    "loader_module": "mlflow.pyfunc.loaders.code_model",
    "streamable": False,
}
LOADER_FREE = {"artifacts", "cloudpickle_version", "model_code_path", "python_version"}
SERVED = "MLflow would serve something that was not trained and charged"


def links(run: Subject) -> Iterator[Finding]:
    """Run and model are plain files: what a link points at can be exchanged afterwards."""
    for path in run.odd:
        yield block(
            "link_stored",
            path,
            f"{path} is no plain file",
            "What is behind it can change unseen",
            RETRAIN,
        )


def folder(run: Subject) -> Iterator[Finding]:
    """The model's folder holds the files of the committed list and what MLflow writes itself, and
    nothing else.
    """
    if not run.folder:
        return
    committed = dict(run.ledger.hashes) if run.ledger is not None else {}
    if sources.INVENTORY_KEY in committed:
        yield from _listed(run, committed[sources.INVENTORY_KEY])
    else:
        yield from _unlisted(run)
    for path in DERIVED:
        if path not in run.folder:
            yield block(
                "model_file_missing", path, f"{path} is not in the model's folder", SERVED, RETRAIN
            )


def _listed(run: Subject, expected: str) -> Iterator[Finding]:
    text = run.files.get(sources.INVENTORY)
    if text is None or digest(text) != expected:
        state = "is not stored" if text is None else "is not the one whose hash the ledger holds"
        yield block(
            "model_list_changed",
            sources.INVENTORY,
            f"the list of the model's files {state}",
            SERVED,
            RETRAIN,
        )
        return
    files, packages = sources.read_inventory(text)
    yield from _compared(run.folder, files)
    if PACKAGES in run.folder and run.folder[PACKAGES].decode(errors="replace").split() != list(
        packages
    ):
        yield block(
            "model_file_changed", PACKAGES, "it names other packages than the list", SERVED, RETRAIN
        )


def _unlisted(run: Subject) -> Iterator[Finding]:
    """A run from before the list: weights and cards by the ledger's hashes, code by what this
    version writes.
    """
    ours = sources.code_hashes()
    own = {f"{sources.WEIGHTS_FOLDER}/{name}" for name in (*MODEL_FILES.values(), STATE)}
    code = {path: digest(data) for path, data in run.folder.items() if _is_code(path)}
    unknown = run.folder.keys() - own - code.keys()
    yield from _compared({p: data for p, data in run.folder.items() if p in unknown}, {})
    if code != ours:
        other = sorted(path for path in {*code, *ours} if code.get(path) != ours.get(path))
        more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
        yield warn(
            "model_code_unvouched",
            "model",
            f"the run has no list of its model's files, and {other[0]} is not as this version "
            f"writes it{more}",
            "Nothing vouches for the code that MLflow runs when it loads this model",
            "Compare it with the version that the statement names, or train again",
        )


def _is_code(path: str) -> bool:
    return path == sources.SCORER or (
        path.startswith(f"{sources.CODE_FOLDER}/") and path.endswith((".py", ".typed"))
    )


def _compared(found: Mapping[str, bytes], expected: Mapping[str, str]) -> Iterator[Finding]:
    for path in sorted({*found, *expected} - {*DERIVED, WRITTEN_LATER}):
        if path not in found:
            yield block(
                "model_file_missing", path, f"{path} is not in the model's folder", SERVED, RETRAIN
            )
        elif path not in expected:
            if COMPILED in path:
                fix = (
                    "Delete the folders __pycache__ of the model: Python makes them again from the "
                    "source"
                )
                yield block(
                    "model_file_added",
                    path,
                    f"{path} is compiled code",
                    "It runs in place of the source",
                    fix,
                )
            else:
                yield block(
                    "model_file_added", path, f"no training wrote {path} there", SERVED, RETRAIN
                )
        elif digest(found[path]) != expected[path]:
            yield block(
                "model_file_changed", path, f"{path} is not the file of the list", SERVED, RETRAIN
            )


def derived(run: Subject) -> Iterator[Finding]:
    """What MLflow writes beside the model is derived again: loader, signature, packages, input
    example.
    """
    for path, rule in (
        (CARD, _card),
        (CONDA, _conda),
        (PYTHON, _python),
        (PACKAGES, _packages),
        (SERVING, _serving),
    ):
        if path in run.folder and (fault := _fault(rule, run)):
            yield block("model_file_changed", path, fault, SERVED, RETRAIN)


def _fault(rule: Any, run: Subject) -> str:
    try:
        return str(rule(run))
    except (
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        yaml.YAMLError,
        DPFlowsError,
    ):
        return "it cannot be read as what MLflow writes"


def _without(card: Mapping[str, Any], free: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key not in free}


def _card(run: Subject) -> str:
    card = yaml.safe_load(run.folder[CARD])
    [(flavor, loader)] = card["flavors"].items()
    fixed = _without(card, CARD_FREE)
    if CARD_FIXED | fixed != CARD_FIXED:
        return "it holds settings that no training of dpflows writes"
    plain = _without(loader, LOADER_FREE)
    [(name, artifact)] = loader["artifacts"].items()
    served = (flavor, plain, name, artifact["path"])
    if served != ("python_function", LOADER, "model", sources.WEIGHTS_FOLDER):
        return "it names another loader, or another folder of weights"
    if Path(loader["model_code_path"]).name != sources.SCORER:
        return "it names another scorer"
    if _pythons(run) != {str(loader["python_version"])}:
        return "it names another Python than the environments"
    uri = run.tags.get(MODEL, "").removeprefix("models:/")
    if (card["run_id"], card["model_id"], card["model_uuid"]) != (run.run_id, uri, uri):
        return "it belongs to another run or model"
    if card["signature"] != _signature(run):
        return "its signature is not the one of the declared columns"
    if card.get("metadata") not in (None, in_words(*_declared(run))):  # None in older runs
        return "it says something else of the columns than the model's own files"
    return ""


def _pythons(run: Subject) -> set[str]:
    """The versions of Python that the two environments name: one, that of the training."""
    conda, plain = (yaml.safe_load(run.folder[name]) for name in (CONDA, PYTHON))
    return {str(conda["dependencies"][0]).removeprefix("python="), str(plain["python"])}


def _signature(run: Subject) -> dict[str, Any]:
    """Input and output columns as MLflow stores them."""
    encoder, card = _declared(run)
    columns = example_columns(encoder, card["label"].get("query"))
    inputs = [{"type": "any", "name": name, "required": False} for name in columns]
    shown = [
        {"type": kind, "name": name, "required": True} for name, (kind, _) in answers(card).items()
    ]
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(shown), "params": None}


def _declared(run: Subject) -> tuple[dict[str, Any], dict[str, Any]]:
    """Encoder and card of the model."""
    return json.loads(run.model["encoder.json"]), json.loads(run.model["model.json"])


def _requirements(run: Subject) -> list[str]:
    return run.folder[PACKAGES].decode().split()


def _conda(run: Subject) -> str:
    found = yaml.safe_load(run.folder[CONDA])
    python, pip, packages = found["dependencies"]
    plain = (
        set(found) == {"channels", "dependencies", "name"}
        and found["channels"] == ["conda-forge"]
        and PLAIN_VERSION.fullmatch(python.removeprefix("python="))
        and BUILD.fullmatch(pip)
        and packages == {"pip": _requirements(run)}
    )
    return "" if plain else "it installs something else"


def _python(run: Subject) -> str:
    found = yaml.safe_load(run.folder[PYTHON])
    plain = (
        set(found) == {"python", "build_dependencies", "dependencies"}
        and PLAIN_VERSION.fullmatch(str(found["python"]))
        and all(BUILD.fullmatch(one) for one in found["build_dependencies"])
        and found["dependencies"] == [f"-r {PACKAGES}"]
    )
    return "" if plain else "it installs something else"


def _packages(run: Subject) -> str:
    lines: Sequence[str] = run.folder[PACKAGES].decode().splitlines()
    listed = run.ledger is not None and sources.INVENTORY_KEY in run.ledger.hashes
    pinned = [PINNED.fullmatch(line) for line in lines]
    plain = all(one is not None and (listed or one[1] in FIRST_PACKAGES) for one in pinned)
    return "" if plain else "it installs something else"


def _serving(run: Subject) -> str:
    [(form, table)] = json.loads(run.folder[SERVING]).items()
    label = json.loads(run.model["model.json"])["label"]
    encoder = json.loads(run.model["encoder.json"])
    same = form == "dataframe_split" and is_example(
        json.dumps(table).encode(), encoder, label.get("query")
    )
    return "" if same else "it is not the synthetic example of the declared schema"


def registry(run: Subject) -> Iterator[Finding]:
    """A registered version of the run serves the folder that was audited."""
    uri = run.tags.get(MODEL, "")
    for one in run.versions:
        where = f"{one.name}/{one.number}"
        if one.source != uri:
            yield block(
                "version_source",
                where,
                "the version names another model than its run",
                SERVED,
                RETRAIN,
            )
        if _plain(one.location) not in (_plain(run.place), uri):
            yield block(
                "version_location",
                where,
                f"MLflow serves {one.location}, not the model's own folder",
                SERVED,
                "Correct the registry's storage_location",
            )


def _plain(uri: str) -> str:
    return uri.removeprefix("file://").rstrip("/")


RULES = (links, folder, derived, registry)
