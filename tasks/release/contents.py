"""What a bundle holds, made from a run: files and manifest, and the exported graph, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.errors import InputError, VerificationFailed
from dpcore.preprocess.encoder import Encoder
from dpcore.preprocess.matrix import MatrixEncoder
from tasks.audit import Subject
from tasks.home import Home
from tasks.record.example import scored_example
from tasks.record.explain import Explanation
from tasks.record.statement import Statement, now
from tasks.record.wording import RENDERED, rendered_again
from tasks.release import manifest as names
from tasks.release import sheet
from tasks.release.bundle import checksums
from tasks.release.gate import Policy
from tasks.release.manifest import (
    Approval,
    Manifest,
    Position,
    Price,
    ReleasedMetric,
    make_card,
    read_model,
    usage,
)
from tasks.release.onnx_graph import read, to_onnx
from tasks.release.trials import Trial

if TYPE_CHECKING:
    from pandas import DataFrame


INSTALL = "install the extra onnx (`pip install 'dpflows[onnx]'`), or leave --export out"
# How far graph and scorer may differ: by other orders of summing, and where rows are rounded to
# single precision by its steps.
CLOSE = {"float64": 1e-9, "float32": 1e-6}


@dataclass(frozen=True, slots=True)
class Said:
    """What the operator adds to the bundle: words for the card, and the form of an export."""

    licence: str = ""
    contact: str = ""
    export: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operator wants released."""

    run: str
    name: str
    approval: Approval
    policy: Policy
    output: Path | None
    ledger: str | None
    head: str | None = None
    said: Said = Said()

    @property
    def folder(self) -> Path:
        """Where the releases of this name lie."""
        return Home.find().root / "releases" / self.name


def make_bundle(
    asked: Asked,
    version: str,
    subject: Subject,
    statement: Statement,
    price: Price,
    metrics: list[ReleasedMetric],
    trials: list[Trial],
    before: str | None,
    ledger: Position,
    serial: int,
) -> tuple[Manifest, dict[str, bytes]]:
    """Manifest and files of a release, from what the run holds and nothing else."""
    model, stored = subject.model, subject.files
    terms = Explanation.of_files(model)
    exported = exported_model(asked.said.export, model)
    card = make_card(
        asked.name,
        version,
        statement,
        read_model(model["model.json"]),
        price,
        metrics,
        asked.approval,
        terms,
        asked.said.licence.strip(),
        asked.said.contact.strip(),
        usage(model, exported is not None),
    )
    described = (asked.name, version, statement, price, metrics, asked.approval)
    tuning = {"schema_version": 1, "trials": [json.loads(one.events.to_json()) for one in trials]}
    files = {
        names.WEIGHTS: model["weights.npz"],
        names.ENCODER: model["encoder.json"],
        names.CARD: model["model.json"],
        names.STATEMENT: stored["privacy/statement.json"],
        names.MECHANISMS: stored["privacy/mechanisms.json"],
        names.TUNING: json.dumps(tuning, indent=1, sort_keys=True).encode(),
        names.CONFIG: stored["config.json"],
        names.README: card.encode(),
        sheet.SHEET: sheet.evaluation_sheet(*described).encode(),
        sheet.ENTRY: sheet.registry_entry(*described).encode(),
        **({} if exported is None else {names.ONNX: exported}),
        **({} if terms is None else {names.TERMS: terms.picture().encode()}),
        **({names.STATE: model["state.safetensors"]} if "state.safetensors" in model else {}),
        **{name: _readable(name, subject, statement) for name in RENDERED},
        **({names.METRICS: stored[names.METRICS]} if names.METRICS in stored else {}),
    }
    manifest = Manifest(
        name=asked.name,
        version=version,
        created=now(),
        run_id=asked.run,
        price=price,
        approval=asked.approval,
        policy=asked.policy.model_dump(mode="json"),
        metrics=metrics,
        previous=before,
        files=checksums(files),
        ledger=ledger,
        serial=serial,
    )
    return manifest, files


def _readable(name: str, subject: Subject, statement: Statement) -> bytes:
    """A readable form whose hash the ledger holds, as the audit compared it; one without is made
    again.
    """
    held = subject.ledger is not None and name in subject.ledger.hashes
    return subject.files[name] if held else rendered_again(statement, name)


def exported_model(form: str | None, model: Mapping[str, bytes]) -> bytes | None:
    """The graph that was asked for, compared with the model on made-up rows; raises ``InputError``
    for a model that no graph stands for.
    """
    if form is None:
        return None
    with np.load(BytesIO(model["weights.npz"]), allow_pickle=False) as arrays:
        graph = to_onnx(model, arrays["weights"])
    require_same(graph, model, *scored_example(model))
    return graph


def check_export(form: str | None) -> None:
    """Raise ``InputError`` for a form that there is none of, or whose packages are missing."""
    if form not in (None, "onnx"):
        raise InputError(f"Expected onnx for --export, got {form!r}; leave it out.")
    missing = [name for name in ("onnx", "onnxruntime") if form and find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected onnx and onnxruntime for --export, got no {missing[0]}; {INSTALL}."
        )


def require_same(
    graph: bytes, model: Mapping[str, bytes], frame: DataFrame, scored: DataFrame
) -> None:
    """Raise ``VerificationFailed`` where the graph answers the rows of ``frame`` otherwise than the
    scorer did.
    """
    encoder, _ = read(model)
    close = CLOSE[encoder.dtype]
    found = run_onnx(graph, encoder, frame)
    for name, values in found.items():
        expected = scored[name].to_numpy()
        same = (
            np.allclose(values, expected.astype(float), rtol=close, atol=close)
            if values.dtype.kind == "f"
            else list(values) == list(expected)
        )
        if not same:
            raise VerificationFailed(
                f"Expected the exported graph to answer {name} as the model does on made-up rows, "
                "got others; leave --export out, and report the model's columns."
            )


def run_onnx(graph: bytes, encoder: Encoder | MatrixEncoder, frame: DataFrame) -> dict[str, Any]:
    """What onnxruntime answers for the rows of ``frame``, by output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it removes constants that nothing uses, and says so
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    if not isinstance(encoder, Encoder):
        cells: dict[str, Any] = {"features": frame[list(encoder.inputs)].to_numpy(dtype=np.float64)}
    else:
        cells = {one.name: _cells(frame[one.name], one.type) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, cells), strict=True))


def _cells(column: Any, kind: str) -> np.ndarray:
    if kind == "tensor(double)":
        return np.asarray(column.astype(float).to_numpy()[:, None])
    return np.array(
        [["" if one is None or one != one else str(one)] for one in column], dtype=object
    )
