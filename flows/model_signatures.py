"""The commands on stored models with their arguments and options; what they do stands in
``flows.commands``, imported when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from flows.exit_codes import begin
from flows.help import CONTACT, EXPORT, OPENSSF_KEY, AsJson, Model, OfBundle, OfRun


def predict(
    model: Model,
    file: Annotated[Path, Argument(help="CSV (also compressed) or Parquet with the raw columns.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="CSV or Parquet; default: standard output.")
    ] = None,
    any_signer: OfBundle = False,
    as_json: AsJson = False,
) -> None:
    """Score a table with a trained model: label, probability and score (a margin) for each row."""
    begin("prediction: loading")
    from flows.commands.predict import predict_file

    predict_file(model, file, output, as_json, any_signer)


def explain(
    model: Model,
    row: Annotated[
        Path | None,
        Option("--row", metavar="FILE", help="A table: why each of its rows got its score."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="SVG file for the picture of the terms.")
    ] = None,
    any_signer: OfBundle = False,
    as_json: AsJson = False,
) -> None:
    """Say what an additive model says: its term for each column, and why a row got its score."""
    begin("explanation: loading")
    from flows.commands.predict import explain_model

    explain_model(model, row, output, as_json, any_signer)


def audit(
    run: Annotated[str, Argument(help="Run id, registered model, or a run record in a JSON file.")],
    ledger: OfRun = None,
    empirical: Annotated[
        bool, Option("--empirical", help="Also attack the algorithm on synthetic neighbours.")
    ] = False,
    any_signer: Annotated[
        bool, Option("--any-signer", help="Of a registered model: take whoever signed its bundle.")
    ] = False,
    replan: Annotated[
        bool,
        Option(
            "--replan", help="Also plan the run again from its stored configuration, and compare."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a run against its statement, its ledger and itself; exit 4 where it must not be
    released.
    """
    begin("audit: loading")
    from flows.commands.audit import audit_run

    audit_run(run, ledger, empirical, as_json, any_signer, replan)


def release(
    run: Annotated[str, Argument(help="Run id of a finished training.")],
    to: Annotated[str, Option("--to", metavar="NAME", help="Name of the registered model.")],
    approved_by: Annotated[str, Option("--approved-by", help="Who decides; stands in the bundle.")],
    policy: Annotated[
        str | None, Option("--policy", help="Policy file; default: conf/release.yaml.")
    ] = None,
    key: Annotated[
        Path | None,
        Option("--key", help="Ed25519 private key (PEM); default: DPFLOWS_SIGNING_KEY."),
    ] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder of the bundle.")] = None,
    note: Annotated[str, Option("--note", help="Why; stands in the bundle.")] = "",
    licence: Annotated[
        str, Option("--licence", help="Licence of the model, as apache-2.0; stands in its card.")
    ] = "",
    ledger: OfRun = None,
    head: Annotated[
        str | None,
        Option("--head", metavar="HASH", help="Head, kept elsewhere, that the ledger must hold."),
    ] = None,
    openssf_key: Annotated[Path | None, Option("--openssf-key", help=OPENSSF_KEY)] = None,
    contact: Annotated[str, Option("--contact", help=CONTACT)] = "",
    export: Annotated[str | None, Option("--export", help=EXPORT)] = None,
    as_json: AsJson = False,
) -> None:
    """Release a run: audit, policy, champion comparison, registry version with aliases, signed
    bundle.
    """
    begin("release: loading")
    from flows.commands.release import Said, release_run

    keys = (key, openssf_key)
    said = Said(licence, contact, export)
    release_run(run, to, approved_by, note, policy, keys, output, ledger, as_json, head, said)


def verify(
    bundle: Annotated[Path, Argument(help="Bundle: a folder or a zip of it.")],
    key: Annotated[
        str | None,
        Option(
            "--key",
            metavar="FINGERPRINT",
            help="Whose signature it must have; default: trusted_keys of conf/release.yaml, "
            "DPFLOWS_TRUSTED_KEYS.",
        ),
    ] = None,
    expect: Annotated[
        str | None, Option("--expect", metavar="NAME@VERSION", help="Which release it must be.")
    ] = None,
    any_signer: Annotated[
        bool, Option("--any-signer", help="Take whoever signed it: intact, but of unknown origin.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a bundle: signature, checksums, statement, epsilon. Needs no data or server; runs
    nothing of it.
    """
    from flows.commands.verify import verify_bundle

    verify_bundle(bundle, key, expect, as_json, any_signer)
