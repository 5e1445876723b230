"""The commands with their arguments and options; what they do stands in ``flows.commands``,
imported when they run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.exit_codes import begin
from flows.help import CONTACT, EXPORT, OPENSSF_KEY

Config = Annotated[
    str | None,
    typer.Argument(help="Configuration file; default: conf/train.yaml, else the built-in one."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value; repeatable."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run finished cells again.")]
Model = Annotated[
    str,
    typer.Argument(
        help="Run id, models:/... URI, folder, NAME[@ALIAS] of a registered model, or a signed "
        "bundle."
    ),
]
OfBundle = Annotated[
    bool,
    typer.Option("--any-signer", help="Of a bundle: take any valid signature, whoever it is of."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def train(config: Config = None, set_: Set = None, as_json: AsJson = False) -> None:
    """Train one private model: plan, reserve budget, fit, and record it in ledger and MLflow."""
    begin("training: loading")
    from flows.commands.train import run_training

    run_training(config, set_ or [], as_json)


def plan(config: Config = None, set_: Set = None, as_json: AsJson = False) -> None:
    """Show price, noise and what the ledger would have left; no record is read, nothing is
    charged.
    """
    begin("plan: loading")
    from flows.commands.train import show_plan

    show_plan(config, set_ or [], as_json)


def retrain(
    config: Annotated[
        str | None,
        typer.Argument(
            help="Configuration file; default: conf/retrain.yaml, else the built-in one."
        ),
    ] = None,
    set_: Set = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="The period complete at this time in UTC; default: now."
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PERIOD", help="Backfill from this period on, oldest first."
        ),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="PERIOD", help="Its last period; default: the newest complete one."
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Stay and run on the schedule, until interrupted.")
    ] = False,
    unlock: Annotated[
        bool,
        typer.Option("--unlock", help="Only remove the lock of a machine that is gone for good."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the newest complete period of a schedule, or past ones, each once; on the blocks that
    can pay for it.
    """
    begin("retraining: loading")
    from flows.commands.retrain import run_retraining

    run_retraining(config, set_ or [], at, (first, last), serve, unlock, as_json)


def runs(
    data: Annotated[
        str | None, typer.Option("--data", metavar="NAME", help="Only trainings on this data set.")
    ] = None,
    last: Annotated[int, typer.Option("--last", help="How many, the newest first.", min=1)] = 20,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="First add what MLflow's store holds and the list lacks."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List trainings: when, algorithm, epsilon and delta, metric, whether they may leave, and their
    releases.
    """
    from flows.commands.runs import list_runs

    list_runs(data, last, rebuild, as_json)


def show(
    run: Annotated[
        str, typer.Argument(help="Run id, or its beginning; `dpflows runs` lists them.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show one training: guarantee, parameters, numbers, releases."""
    from flows.commands.runs import show_run

    show_run(run, as_json)


def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="Name or alias; default: a table of all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or show one: parameters with defaults, adjacencies, losses, source, an
    example.
    """
    begin("algorithms: loading")
    from flows.commands.about import show_algorithms

    show_algorithms(name, as_json)


def config(
    config: Config = None,
    set_: Set = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="KIND",
            help="JSON schema: train, retrain, compare, release or data.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a configuration with all its defaults, or the JSON schema of a kind, which editors
    complete by.
    """
    from flows.commands.about import show_config

    show_config(config, set_ or [], schema, as_json)


def move(
    old: Annotated[Path, typer.Argument(help="Where the home folder was.")],
    new: Annotated[Path, typer.Argument(help="Where it is, or is to be.")],
    as_json: AsJson = False,
) -> None:
    """Move a home folder (DPFLOWS_HOME), or put right one that was moved or restored from a
    backup.
    """
    from flows.commands.recover import move_home

    move_home(old, new, as_json)


def recover(
    run: Annotated[
        str | None, typer.Argument(help="Run id; default: every one that waits.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store in MLflow what was trained and charged by a process that was killed before it did."""
    from flows.commands.recover import recover as recover_runs

    recover_runs(run, as_json)


def predict(
    model: Model,
    file: Annotated[
        Path, typer.Argument(help="CSV (also compressed) or Parquet with the raw columns.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="CSV or Parquet; default: standard output."),
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
        typer.Option("--row", metavar="FILE", help="A table: why each of its rows got its score."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="SVG file for the picture of the terms.")
    ] = None,
    any_signer: OfBundle = False,
    as_json: AsJson = False,
) -> None:
    """Say what an additive model says: its term for each column, and why a row got its score."""
    begin("explanation: loading")
    from flows.commands.explain import explain_model

    explain_model(model, row, output, as_json, any_signer)


def ui(
    run: Annotated[
        str | None, typer.Argument(help="With --report: run id; default: the latest training.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write and show the report of a run instead.")
    ] = False,
    prefect: Annotated[bool, typer.Option("--prefect", help="Start Prefect's UI as well.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of MLflow's UI.")] = 5000,
    prefect_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of Prefect's UI.")
    ] = 4200,
    as_json: AsJson = False,
) -> None:
    """Open the UIs on this project's store, bound to 127.0.0.1, until interrupted; --report: the
    report of a run.
    """
    from flows.commands.ui import require_report, show_report

    require_report(run, report)
    if report:
        show_report(run, as_json)
        return
    from flows.commands.ui import serve

    serve(prefect, port, prefect_port, as_json)


def audit(
    run: Annotated[
        str, typer.Argument(help="Run id, registered model, or a run record in a JSON file.")
    ],
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="URL or file; default: that of the run.")
    ] = None,
    empirical: Annotated[
        bool, typer.Option("--empirical", help="Also attack the algorithm on synthetic neighbours.")
    ] = False,
    any_signer: Annotated[
        bool,
        typer.Option("--any-signer", help="Of a registered model: take whoever signed its bundle."),
    ] = False,
    replan: Annotated[
        bool,
        typer.Option(
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
    run: Annotated[str, typer.Argument(help="Run id of a finished training.")],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Name of the registered model.")],
    approved_by: Annotated[
        str, typer.Option("--approved-by", help="Who decides; stands in the bundle.")
    ],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy file; default: conf/release.yaml.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Ed25519 private key (PEM); default: DPFLOWS_SIGNING_KEY."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the bundle.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Why; stands in the bundle.")] = "",
    licence: Annotated[
        str,
        typer.Option("--licence", help="Licence of the model, as apache-2.0; stands in its card."),
    ] = "",
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="URL or file; default: that of the run.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="HASH", help="Head, kept elsewhere, that the ledger must hold."
        ),
    ] = None,
    openssf_key: Annotated[Path | None, typer.Option("--openssf-key", help=OPENSSF_KEY)] = None,
    contact: Annotated[str, typer.Option("--contact", help=CONTACT)] = "",
    export: Annotated[str | None, typer.Option("--export", help=EXPORT)] = None,
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
    bundle: Annotated[Path, typer.Argument(help="Bundle: a folder or a zip of it.")],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="FINGERPRINT",
            help="Whose signature it must have; default: trusted_keys of conf/release.yaml, "
            "DPFLOWS_TRUSTED_KEYS.",
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="NAME@VERSION", help="Which release it must be."),
    ] = None,
    any_signer: Annotated[
        bool,
        typer.Option("--any-signer", help="Take whoever signed it: intact, but of unknown origin."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a bundle: signature, checksums, statement, epsilon. Needs no data or server; runs
    nothing of it.
    """
    from flows.commands.verify import verify_bundle

    verify_bundle(bundle, key, expect, as_json, any_signer)


def profile(
    file: Annotated[
        str,
        typer.Argument(
            help="Table in any format that trains, also compressed: a file, a folder or glob of "
            "parts, a URL."
        ),
    ],
    label: Annotated[
        str | None, typer.Option("--label", help="Label column; default: the likeliest.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the schema; default: that of the file.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Estimate bounds and levels with noise.")
    ] = False,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Price of --private.")] = 0.5,
    delta: Annotated[float, typer.Option("--delta", help="Price of --private.")] = 1e-7,
    adjacency: Annotated[
        str | None,
        typer.Option(
            "--adjacency", help="add_remove or replace_one; default: the budget's, or add_remove."
        ),
    ] = None,
    charge: Annotated[
        str | None,
        typer.Option("--charge", metavar="NAME", help="Data set whose budget pays for --private."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: print.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draft a schema from a file, for a person to review: kinds, bounds, levels, label, quirks."""
    from flows.commands.profile import profile_file

    profile_file(
        file, label, name, (epsilon, delta, adjacency) if private else None, output, as_json, charge
    )


def init(
    folder: Annotated[Path, typer.Argument(help="Where conf/ is written.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the configuration files to DIR/conf, to be edited there."""
    from flows.commands.profile import copy_configs, init_words

    written = copy_configs(folder, force)
    if as_json:
        typer.echo(json.dumps({"written": [str(path) for path in written]}))
    else:
        typer.echo(init_words(folder, len(written)))


def compare(
    config: Annotated[
        str | None,
        typer.Argument(
            help="Configuration file; default: conf/compare_adult.yaml, else the built-in one."
        ),
    ] = None,
    set_: Set = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Compare algorithms on folds: a grid of private runs, resumable, with tables, figures and one
    MLflow run each.
    """
    begin("comparison: loading")
    from flows.commands.compare import run_comparison

    raise typer.Exit(run_comparison(config, set_ or [], fresh, as_json))


def bench(
    config: Annotated[
        str | None,
        typer.Argument(help="Configuration file; default: conf/bench.yaml, else the built-in one."),
    ] = None,
    set_: Set = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
    speed: Annotated[
        bool, typer.Option("--speed", help="Sums, fits and encoding on made-up rows, as ratios.")
    ] = False,
) -> None:
    """Compare with diffprivlib, Opacus and DP-EBM on the same folds: quality and speed as ratios;
    they need dpflows[peers]. With --speed: how fast this machine is, to scipy and scikit-learn.
    """
    if speed:
        begin("measuring")
        from flows.commands.compare import show_speed

        show_speed(as_json)
        return
    begin("comparison: loading")
    from flows.commands.compare import run_bench

    raise typer.Exit(run_bench(config, set_ or [], fresh, as_json))


def crossval(
    config: Config = None,
    folds: Annotated[
        int, typer.Option("--folds", help="Folds; 1 is the declared split.", min=1)
    ] = 5,
    repeats: Annotated[int, typer.Option("--repeats", help="Partitions into folds.", min=1)] = 1,
    draws: Annotated[
        int, typer.Option("--draws", help="Draws of the noise on each fold.", min=1)
    ] = 1,
    set_: Set = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Cross-validate one training configuration, beside majority and the model without privacy."""
    begin("cross-validation: loading")
    from flows.commands.compare import run_crossval

    sizes = {"folds": folds, "repeats": repeats, "draws": draws}
    raise typer.Exit(run_crossval(config, set_ or [], sizes, fresh, as_json))
