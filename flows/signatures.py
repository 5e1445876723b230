"""The commands with their arguments and options, those on stored models apart; what they do stands
in ``flows.commands``, imported when they run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flows.exit_codes import alone, begin, needed
from flows.help import AsJson, Config, Fresh, Set


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
        Argument(help="Configuration file; default: conf/retrain.yaml, else the built-in one."),
    ] = None,
    set_: Set = None,
    at: Annotated[
        str | None,
        Option(
            "--at", metavar="TIME", help="The period complete at this time in UTC; default: now."
        ),
    ] = None,
    first: Annotated[
        str | None,
        Option("--from", metavar="PERIOD", help="Backfill from this period on, oldest first."),
    ] = None,
    last: Annotated[
        str | None,
        Option("--to", metavar="PERIOD", help="Its last period; default: the newest complete one."),
    ] = None,
    serve: Annotated[
        bool, Option("--serve", help="Stay and run on the schedule, until interrupted.")
    ] = False,
    unlock: Annotated[
        bool, Option("--unlock", help="Only remove the lock of a machine that is gone for good.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the newest complete period of a schedule, or past ones, each once; on the blocks that
    can pay for it.
    """
    begin("retraining: loading")
    from flows.commands.retrain import run_retraining

    if unlock:
        alone("--unlock", {"--at": at, "--from": first, "--to": last, "--serve": serve})
    run_retraining(config, set_ or [], at, (first, last), serve, unlock, as_json)


def runs(
    data: Annotated[
        str | None, Option("--data", metavar="NAME", help="Only trainings on this data set.")
    ] = None,
    last: Annotated[int, Option("--last", help="How many, the newest first.", min=1)] = 20,
    rebuild: Annotated[
        bool, Option("--rebuild", help="First add what MLflow's store holds and the list lacks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List trainings: when, algorithm, epsilon and delta, metric, whether they may leave, and their
    releases.
    """
    from flows.commands.runs import list_runs

    list_runs(data, last, rebuild, as_json)


def show(
    run: Annotated[str, Argument(help="Run id, or its beginning; `dpflows runs` lists them.")],
    as_json: AsJson = False,
) -> None:
    """Show one training: guarantee, parameters, numbers, releases."""
    from flows.commands.runs import show_run

    show_run(run, as_json)


def algorithms(
    name: Annotated[str | None, Argument(help="Name or alias; default: a table of all.")] = None,
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
        Option(
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
    old: Annotated[Path, Argument(help="Where the home folder was.")],
    new: Annotated[Path, Argument(help="Where it is, or is to be.")],
    as_json: AsJson = False,
) -> None:
    """Move a home folder (DPFLOWS_HOME), or put right one that was moved or restored from a
    backup.
    """
    from flows.commands.recover import move_home

    move_home(old, new, as_json)


def recover(
    run: Annotated[str | None, Argument(help="Run id; default: every one that waits.")] = None,
    as_json: AsJson = False,
) -> None:
    """Store in MLflow what was trained and charged by a process that was killed before it did."""
    from flows.commands.recover import recover as recover_runs

    recover_runs(run, as_json)


def ui(
    run: Annotated[
        str | None, Argument(help="With --report: run id; default: the latest training.")
    ] = None,
    report: Annotated[
        bool, Option("--report", help="Write and show the report of a run instead.")
    ] = False,
    prefect: Annotated[bool, Option("--prefect", help="Start Prefect's UI as well.")] = False,
    port: Annotated[int, Option(min=1, max=65535, help="Port of MLflow's UI.")] = 5000,
    prefect_port: Annotated[int, Option(min=1, max=65535, help="Port of Prefect's UI.")] = 4200,
    as_json: AsJson = False,
) -> None:
    """Open the UIs on this project's store, bound to 127.0.0.1, until interrupted; --report: the
    report of a run.
    """
    from flows.commands.ui import require_report, show_report

    require_report(run, report)
    if report:
        alone("--report", {"--prefect": prefect})
        show_report(run, as_json)
        return
    from flows.commands.ui import serve

    serve(prefect, port, prefect_port, as_json)


def profile(
    file: Annotated[
        str,
        Argument(
            help="Table in any format that trains, also compressed: a file, a folder or glob of "
            "parts, a URL."
        ),
    ],
    label: Annotated[
        str | None, Option("--label", help="Label column; default: the likeliest.")
    ] = None,
    name: Annotated[
        str | None, Option("--name", help="Name of the schema; default: that of the file.")
    ] = None,
    private: Annotated[
        bool, Option("--private", help="Estimate bounds and levels with noise.")
    ] = False,
    epsilon: Annotated[
        float | None, Option("--epsilon", help="Price of --private; default: 0.5.")
    ] = None,
    delta: Annotated[
        float | None, Option("--delta", help="Price of --private; default: 1e-7.")
    ] = None,
    adjacency: Annotated[
        str | None,
        Option(
            "--adjacency", help="add_remove or replace_one; default: the budget's, or add_remove."
        ),
    ] = None,
    charge: Annotated[
        str | None,
        Option("--charge", metavar="NAME", help="Data set whose budget pays for --private."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File to write; default: print.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draft a schema from a file, for a person to review: kinds, bounds, levels, label, quirks."""
    from flows.commands.profile import profile_file

    price = {"--epsilon": epsilon, "--delta": delta, "--adjacency": adjacency}
    if not private:
        needed("--private", price)
    asked = (0.5 if epsilon is None else epsilon, 1e-7 if delta is None else delta, adjacency)
    profile_file(file, label, name, asked if private else None, output, as_json, charge)


def init(
    folder: Annotated[Path, Argument(help="Where conf/ is written.")],
    force: Annotated[bool, Option("--force", help="Overwrite files that exist.")] = False,
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
        Argument(
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
        Argument(help="Configuration file; default: conf/bench.yaml, else the built-in one."),
    ] = None,
    set_: Set = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
    speed: Annotated[
        bool, Option("--speed", help="Sums, fits and encoding on made-up rows, as ratios.")
    ] = False,
) -> None:
    """Compare with diffprivlib, Opacus and DP-EBM on the same folds: quality and speed as ratios;
    they need dpflows[peers]. With --speed: how fast this machine is, to scipy and scikit-learn.
    """
    if speed:
        begin("measuring")
        from flows.commands.compare import show_speed

        alone("--speed", {"CONFIG": config, "--set": set_, "--fresh": fresh})
        show_speed(as_json)
        return
    begin("comparison: loading")
    from flows.commands.compare import run_bench

    raise typer.Exit(run_bench(config, set_ or [], fresh, as_json))


def crossval(
    config: Config = None,
    folds: Annotated[int, Option("--folds", help="Folds; 1 is the declared split.", min=1)] = 5,
    repeats: Annotated[int, Option("--repeats", help="Partitions into folds.", min=1)] = 1,
    draws: Annotated[int, Option("--draws", help="Draws of the noise on each fold.", min=1)] = 1,
    set_: Set = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Cross-validate one training configuration, beside majority and the model without privacy."""
    begin("cross-validation: loading")
    from flows.commands.compare import run_crossval

    sizes = {"folds": folds, "repeats": repeats, "draws": draws}
    raise typer.Exit(run_crossval(config, set_ or [], sizes, fresh, as_json))
