"""``dpflows verify``: what an outsider can check about a bundle; no pandas, MLflow or Prefect."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np

from dpcore.errors import DPFlowsError, InputError, VerificationFailed
from tasks.release.bundle import Bundle, open_bundle
from tasks.release.keys import trusted_keys
from tasks.release.manifest import ONNX
from tasks.release.verify import Verified, verify_files

UNREAD = (
    f"that {ONNX} answers as the weights do: nothing here reads it (extra onnx); its checksum is "
    "the manifest's"
)
NOT_RUN = (
    f"that {ONNX} answers as the weights do: it is not the graph that this version makes of them, "
    "and is run for a known signer alone (extra onnx, with pandas and MLflow)"
)


def verify_bundle(
    bundle: Path, key: str | None, expect: str | None, as_json: bool, any_signer: bool = False
) -> None:
    """Check a bundle and say in words what was found; raises ``VerificationFailed`` for any
    problem.
    """
    if key is not None and any_signer:
        raise InputError("Expected --key or --any-signer, got both; leave one out.")
    trusted = None if any_signer or key is not None else listed()
    opened = open_bundle(bundle)
    report = verify_files(opened, key, expect, trusted)
    check_graph(opened, report)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n" if as_json else words(report))
    if not report.ok:
        raise VerificationFailed(
            f"The bundle failed: {', '.join(sorted(report.names))}; do not use it."
        )


def check_graph(bundle: Bundle, report: Verified) -> None:
    """Compare the exported graph of a bundle without problems with its weights and preprocessing.

    With ``onnx`` the graph is made again, and equal bytes are the proof. One of another version is
    run (onnxruntime) on made-up rows, where the signer is known. What was not compared is said in
    ``not_shown``.
    """
    if not report.ok or ONNX not in bundle:
        return
    if find_spec("onnx") is None:
        report.not_shown.append(UNREAD)
        return
    try:
        found = _made_again(bundle) or (_run(bundle) if report.known_signer else "")
    except Exception as error:  # whatever a hostile graph does to its reader
        ours = isinstance(error, DPFlowsError)
        what = str(error) if ours else f"it cannot be read ({type(error).__name__})"
        report.problems.append(("graph_changed", f"{ONNX}: {what.rstrip('.')}"))
        return
    (report.verified if found else report.not_shown).append(found or NOT_RUN)


def _model(bundle: Bundle) -> dict[str, bytes]:
    """The files of a bundle's model by their names beside each other."""
    return {name[6:]: bundle[name] for name in bundle if name.startswith("model/")}


def _made_again(bundle: Bundle) -> str:
    """What equal bytes show; empty where the graph is another than this version makes."""
    from tasks.release.onnx_graph import to_onnx

    model = _model(bundle)
    with np.load(BytesIO(model["weights.npz"]), allow_pickle=False) as arrays:
        same = to_onnx(model, arrays["weights"]) == bundle[ONNX]
    return f"{ONNX} is the graph of weights and preprocessing, byte for byte" if same else ""


def _run(bundle: Bundle) -> str:
    """What made-up rows show; empty where a package is missing. Raises ``VerificationFailed``."""
    from tasks.record.example import ROWS, scored_example
    from tasks.release.contents import require_same

    if not all(map(find_spec, ("onnxruntime", "pandas", "mlflow"))):
        return ""
    model = _model(bundle)
    try:
        require_same(bundle[ONNX], model, *scored_example(model))
    except VerificationFailed:
        raise VerificationFailed(
            "it answers made-up rows otherwise than weights and preprocessing do"
        ) from None
    return f"{ONNX}, made by another version, answers {ROWS} made-up rows as the model does"


def listed() -> tuple[str, ...]:
    """The keys that are believed here."""
    from tasks.release.gate import load_policy

    return trusted_keys(load_policy().trusted_keys)


def words(report: Verified) -> str:
    """The report for people."""
    lines = [
        f"Bundle {report.name}@{report.version}"
        if report.name
        else "Bundle (its manifest was not read)"
    ]
    if report.ok:
        lines.append(f"  epsilon {report.epsilon:.6g} at delta {report.delta:g}")
        lines.append(
            f"  signed by {report.signer}"
            + ("" if report.known_signer else " (signer unknown: any was taken)")
        )
    lines += [f"  ok      {text}" for text in report.verified]
    lines += [f"  FAILED  {name}: {what}" for name, what in report.problems]
    lines.append("A bundle cannot show:")
    lines += [f"  -       {text}" for text in report.not_shown]
    return "\n".join(lines) + "\n"
