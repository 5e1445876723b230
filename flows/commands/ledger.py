"""The commands ``dpflows ledger ...``: open a budget, see what is left, check the chain, answer
people in the data.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dpcore.errors import InputError, UnknownName, VerificationFailed
from dpcore.problem import Adjacency
from flows import budgets
from flows.help import AsJson
from tasks.home import Home
from tasks.ledger import Blocks, Ledger, RowFacts, Verification, ledger_for
from tasks.ledger.records import Dataset
from tasks.schema import Schema, find_schema

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(help="Data set: the name in the ledger, which is that of its data schema.")
]
SomeName = Annotated[str | None, typer.Argument(help="Data set; without one, all of them.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="URL or file; default: the data schema's, then DPFLOWS_LEDGER, then the "
        "home folder's.",
    ),
]
Figure = Annotated[Path | None, typer.Option(help="Draw budget over time to this file.")]
Page = Annotated[Path | None, typer.Option("--html", help="Page over all data sets, a file.")]
SomeBlocks = Annotated[
    list[str] | None,
    typer.Option("--block", help="A block; repeatable. Default: all touched ones."),
]


@app.command()
def init(
    name: Annotated[
        str,
        typer.Argument(
            help="Data schema (name or YAML file), or any name for data without a schema."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Epsilon of the promise, for all runs together.")],
    delta: Annotated[float, typer.Option(help="Delta of the promise, well below 1/n.")],
    adjacency: Annotated[
        str, typer.Option(help="add_remove, replace_one or replace_labels.")
    ] = "add_remove",
    unit: Annotated[
        str | None,
        typer.Option(help="record, user, session or session_labels; default: the schema's."),
    ] = None,
    conversion: Annotated[str, typer.Option(help="cks, or prop21.")] = "cks",
    order: Annotated[
        float | None, typer.Option(help="Another order than the one that follows from the target.")
    ] = None,
    suited_to: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="CONFIG",
            help="Count as admits most runs like that of this configuration (no record is read).",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=1, help="With --for: so many equal runs, with noise that lets all fit."),
    ] = None,
    filter: Annotated[
        str,
        typer.Option(
            help="rdp counts at one Rényi order; gdp adds mu^2: for full-batch Gaussian and pure "
            "releases alone, 5 to 9 % less noise for them."
        ),
    ] = "rdp",
    by: Annotated[
        str | None,
        typer.Option(help="Without schema: value, day, week, month, year or hash of --column."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Without schema: the column that divides the data.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Without schema: number of blocks by hash.")
    ] = None,
    one_block_per_person: Annotated[
        bool,
        typer.Option(
            "--one-block-per-person", help="Declare that all rows of a person are in one block."
        ),
    ] = False,
    rows_per_user: Annotated[
        int | None,
        typer.Option(help="For unit user: the most rows that a training keeps of one user."),
    ] = None,
    user_column: Annotated[
        str | None, typer.Option(help="Without schema: the column that names the user.")
    ] = None,
    confirm_delta: Annotated[
        bool,
        typer.Option(
            "--confirm-delta",
            help="Without schema: I know that delta is below 1/n, though it is large.",
        ),
    ] = False,
    ledger: Url = None,
    as_json: AsJson = False,
) -> None:
    """Open a data set with its budget, once: it is never changed."""
    from tasks.ledger.summary import promise

    schema = _schema(name)
    if schema is None:
        blocks = Blocks(
            by or "one", column, count, None, one_block_per_person, user_column, rows_per_user
        )
    else:
        if any((by, column, count, user_column)):
            raise InputError(
                f"Expected the division of {name!r} from its data schema alone, got --by, "
                "--column, --count or --user-column; write it into the schema."
            )
        blocks = Blocks.of(schema, one_block_per_person, rows_per_user)
    budgets.check_delta(name, schema, delta, confirm_delta)
    known = schema.name if schema else name
    chosen = unit or (budgets.unit_under(schema.unit, adjacency) if schema else "record")
    budgets.check_counting(suited_to, runs, order, filter)
    if suited_to is not None:
        asked = Dataset(
            known, epsilon, delta, Adjacency(adjacency), chosen, conversion, None, None, blocks
        )
        order, filter, words = budgets.suited(asked, suited_to, runs)
        typer.echo(words, err=True)
    with Ledger(ledger or ledger_for(schema, Home.find())) as opened:
        facts = None if schema is None else RowFacts.of(schema)
        dataset = opened.init(
            known, epsilon, delta, adjacency, chosen, conversion, order, blocks, facts, filter
        )
        if filter == "gdp":
            typer.echo(budgets.GDP_ADVICE, err=True)
        if schema is None:
            typer.echo(
                f"No schema is called {name!r} yet: its name must be spelt like this.", err=True
            )
        _answer(
            promise(dataset) | {"ledger": opened.store.shown, "head": opened.head()},
            as_json,
            "Budget opened",
        )


@app.command()
def show(
    name: SomeName = None,
    last: Annotated[
        int, typer.Option(min=0, help="How many of the newest entries are listed.")
    ] = 20,
    figure: Figure = None,
    html: Page = None,
    ledger: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show all data sets, or one with its blocks and newest entries; the target is promised."""
    from flows.commands.ui import draw_blocks, write_page
    from tasks.ledger.summary import detail, overview

    if figure is not None and name is None:
        raise InputError(
            f"Expected a data set with --figure {figure}, got none: a figure shows the blocks of "
            f"one; name it: dpflows ledger show NAME --figure {figure}."
        )
    with _open(name, ledger) as opened:
        if html is not None:
            write_page(opened, html)
        if name is None:
            rows = overview(opened)
            report: dict[str, Any] = {"ledger": opened.store.shown, "head": opened.head()}
            report["datasets"] = rows
            parts = budgets.overview_parts(rows, opened.store.shown)
        else:
            report = detail(opened, _known(name), last) | {"head": opened.head()}
            parts = budgets.detail_parts(report)
            if figure is not None:
                draw_blocks(opened, _known(name), figure)
    _print(report, parts, as_json)


@app.command()
def charge(
    name: Name,
    entry: Annotated[
        str, typer.Option("--for", metavar="ENTRY", help="Entry of a run that read the same file.")
    ],
    block: SomeBlocks = None,
    ledger: Url = None,
    as_json: AsJson = False,
) -> None:
    """Charge a run that another name of the same file paid for to this name too, so that it may be
    released.
    """
    from tasks.ledger.charge import charge_also

    with _open(name, ledger) as opened:
        made = charge_also(opened, entry, _known(name), block or ("all",))
        answer = {"dataset": _known(name), "entry": made, "for": entry, "head": opened.head()}
    _answer(answer, as_json, "Charged")


@app.command()
def remaining(
    name: Name, block: SomeBlocks = None, ledger: Url = None, as_json: AsJson = False
) -> None:
    """Show what is left in the touched blocks, or in those asked for."""
    from tasks.ledger.summary import remaining as left

    with _open(name, ledger) as opened:
        report = left(opened, _known(name), block or None)
    _print(report, budgets.remaining_parts(report), as_json)


@app.command()
def verify(
    head: Annotated[
        str | None,
        typer.Option(help="A hash from a statement or bundle that the chain must contain."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Check an export (JSON lines) instead of the database.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Go on from this ledger where its head file, or its newest records, are "
            "lost for good.",
        ),
    ] = False,
    ledger: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compute hashes, prices, totals and states again; exit code 4 where anything does not fit."""
    if head is not None and not re.fullmatch("[0-9a-f]{12,}", head.strip().lower()):
        raise InputError(
            f"Expected at least 12 hex digits of a hash, got --head {head}; copy it from the "
            "statement."
        )
    if file is not None and keep:
        raise InputError(
            f"Expected --keep with a database, got --file {file}: an export has no head file; "
            "leave it out."
        )
    report, where = _verified(file, head, keep, ledger)
    values = {name: value for name, value in _plain(report).items() if value is not None}
    _answer(
        values | {"ledger": where},
        as_json,
        "Ledger verified" if report.ok else "Ledger NOT verified",
    )
    if not report.ok:
        raise VerificationFailed(
            f"Expected an intact ledger, got {report.problem_count} problems in {where}: "
            f"{'; '.join(report.problems[:3])}; restore a copy that holds your last head."
        )


def _verified(
    file: Path | None, head: str | None, keep: bool, ledger: str | None
) -> tuple[Verification, str]:
    """What was found in an export, or in a database; and where that is."""
    from tasks.ledger.summary import verify_lines

    if file is not None:
        with _text(file) as lines:
            return verify_lines(lines, head), str(file)
    with _open(None, ledger) as opened:
        report = opened.keep_head(head) if keep else opened.verification(head)
        return report, opened.store.shown


@app.command()
def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; default: standard output.")
    ] = None,
    ledger: Url = None,
) -> None:
    """Write the whole ledger as JSON lines, for an auditor: `dpflows ledger verify --file` checks
    them.
    """
    from tasks.ledger.summary import export_lines

    with _open(None, ledger) as opened:
        if output is None:
            for line in export_lines(opened):
                sys.stdout.write(line + "\n")
            return
        try:
            with output.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in export_lines(opened))
        except OSError as error:
            raise InputError(
                f"Expected a file that can be written, got --output {output} ({error.strerror})."
            ) from error


@app.command()
def explain(
    name: Name,
    block: Annotated[
        str | None,
        typer.Option(help="Only models that read this block: the one of the person's record."),
    ] = None,
    ledger: Url = None,
    as_json: AsJson = False,
) -> None:
    """Answer a person in the data: what the models say about them, and what erasure means."""
    from tasks.ledger.summary import explain as explained

    with _open(name, ledger) as opened:
        report = explained(opened, _known(name), block)
    _print(report, budgets.explanation(report), as_json)


@app.command()
def migrate(ledger: Url = None, as_json: AsJson = False) -> None:
    """Bring the tables of an older ledger to this version; records keep their bytes."""
    with _open(None, ledger) as opened:
        applied = opened.store.migrate()
    _answer({"ledger": opened.store.shown, "steps": applied}, as_json, "Ledger migrated")


def _schema(name: str | None) -> Schema | None:
    """Return the data schema of that name; None where there is none."""
    if name is None:
        return None
    try:
        return find_schema(name)
    except UnknownName:
        return None


def _known(name: str) -> str:
    schema = _schema(name)
    return schema.name if schema else name


def _open(name: str | None, given: str | None) -> Ledger:
    opened = Ledger(given or ledger_for(_schema(name), Home.find()))
    path, witness = opened.store.path, opened.store.witness
    # Where a head was kept there was a ledger: reading says that it is lost.
    if path is not None and not path.exists() and not (witness and witness.path.exists()):
        raise InputError(
            f"Expected a ledger at {opened.store.path}, got no file; name it with --ledger or "
            "DPFLOWS_LEDGER, or open a budget with `dpflows ledger init`."
        )
    return opened


def _text(file: Path) -> Any:
    try:
        return file.open(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"Expected a readable export, got --file {file} ({error.strerror})."
        ) from error


def _plain(report: Verification) -> dict[str, Any]:
    return {"ok": report.ok, **vars(report)}


def _answer(values: dict[str, Any], as_json: bool, title: str) -> None:
    _print(values, [budgets.answer_table(values, title)], as_json)


def _print(report: dict[str, Any], parts: list[Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, **report}) + "\n")
        return
    from rich.console import Console

    from flows.terminal import print_part

    for part in parts:
        print_part(Console(), part)
