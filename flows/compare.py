"""The flow of a comparison: cells, affordable?, load, reserve, cells in batches, report.

Workers answer with plain records; only this process writes to MLflow and ledger.
"""

# No postponed annotations here: a deployed flow is rebuilt from its annotations where this module
# has no name yet.

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from time import perf_counter
from typing import Any

from prefect import flow

from dpcore.errors import DPFlowsError
from flows import story
from flows.compare_cells import run_cells, task_runner
from flows.exit_codes import heed
from flows.server import living
from flows.steps import StepFailed, Store, completed, open_store, reporter, step
from flows.steps import arrived as arrived_at_end
from tasks.compare import charge as compare_charge
from tasks.compare import resume
from tasks.compare import tracking as children
from tasks.compare.cell import SUPPORT, CellRecord
from tasks.compare.charge import Charge, charge_words
from tasks.compare.config import CompareConfig
from tasks.compare.export import summary
from tasks.compare.folds import is_redrawn
from tasks.compare.page import report
from tasks.compare.resume import Comparison
from tasks.compare.tracking import write_view
from tasks.compare.variants import spread_out
from tasks.home import Home
from tasks.kinds.charge import charge_of
from tasks.ledger import Ledger, Reservation, ledger_url
from tasks.record import outbox, tracking
from tasks.record.sources import code_version
from tasks.report.facts import machine


def grouped_reasons(comparison: Comparison) -> dict[str, str]:
    """Why parts of the grid were left out: reason -> where."""
    found: dict[str, list[str]] = {}
    for item in comparison.left_out:
        found.setdefault(item.reason, []).append(f"{item.label} ({item.where})")
    return {
        reason: ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        for reason, labels in found.items()
    }


def make_facts(
    comparison: Comparison, charges: dict[str, Charge], seconds: float
) -> dict[str, Any]:
    """What stands beside the numbers in tables, figures and page."""
    config, protocol = comparison.config, comparison.config.protocol
    redrawn = sorted({setting.data for setting in comparison.settings if is_redrawn(setting.job)})
    public = {setting.data: setting.job.public for setting in comparison.settings}
    left_out = [f"left out: {who}: {why}" for why, who in grouped_reasons(comparison).items()]
    return {
        "title": config.title,
        "protocol": f"{protocol.name}: {protocol.words}",
        "folds": protocol.folds,
        "repeats": protocol.partitions,
        "draws": protocol.noise_draws,
        "metrics": named_metrics(config),
        "printed": [line.model_dump() for line in config.printed],
        "effects": [effect.to_dict() for effect in spread_out(config.algorithms)[1]],
        "public": public,
        "generated anew for each repeat": (", ".join(redrawn) or None)
        if protocol.partitions > 1
        else None,
        "charge": charge_words(charges, list(comparison.private_jobs)),
        "paired": "every algorithm and epsilon meets the same folds and the same public seeds; "
        "noise is its own",
        "reproducible": config.reproducible,
        "seed": config.seed,
        "seconds": round(seconds, 3),
        "libraries": libraries(comparison) or None,
        "machine": machine(),
        "config": config.model_dump_json(),
        "warnings": [*comparison.warnings, *left_out],
        "code": code_version(),
    }


def named_metrics(config: CompareConfig) -> list[str]:
    """The metrics that the configuration names, ``coverage`` by each of its numbers."""
    named = [name for name in config.metrics or () if name != "coverage"]
    if config.coverage is None or "coverage" not in (config.metrics or ()):
        return named
    return [*named, *(f"coverage_at_{k}" for k in config.coverage.counts), *SUPPORT]


def libraries(comparison: Comparison) -> dict[str, str]:
    """The libraries that trained some of the settings: versions, and what is peculiar to their
    guarantee.
    """
    runs = {
        setting.peer.peer.name: setting.peer
        for setting in comparison.settings
        if setting.peer is not None
    }
    return {name: run.words for name, run in runs.items()}


def load_rows(comparison: Comparison) -> None:
    """Read every data set that has cells to run, once for each encoding."""
    for setting in {id(cell.setting): cell.setting for cell in comparison.to_run}.values():
        comparison.rows.table(setting)
        comparison.rows.check_classes(setting)


grid_step = step(resume.make_comparison, "list the cells")
afford_step = step(compare_charge.charges, "ask the budget")
load_step = step(load_rows, "read the records")
report_step = step(report, "write the report")
view_step = step(write_view, "set MLflow's view")


@flow(
    name="dpflows-compare",
    flow_run_name=story.comparison_name,
    retries=0,
    persist_result=False,
    log_prints=False,
)
def compare_flow(config: CompareConfig, fresh: bool = False) -> dict[str, Any]:
    """Run every cell that is not finished, and report on all of them; returns the numbers of the
    summary.
    """
    # Prefect carries this function to worker processes by value, so what it names has to be found
    # by name there.
    return run_all(config, fresh)


def run_all(config: CompareConfig, fresh: bool) -> dict[str, Any]:
    """The steps of the flow, in the home that it prepares for itself."""
    with Home.find().adopted() as home, living(home, story.flow_run_id()):
        return _steps(config, fresh)


def _steps(config: CompareConfig, fresh: bool) -> dict[str, Any]:
    """Cells that fail are recorded as failed and do not stop the others."""
    started = perf_counter()
    store = open_store(config.tracking.experiment)
    comparison = grid_step(config, store.home, fresh)
    charges = afford_step(comparison, store.home)
    say_first(comparison, charges)
    if config.runner == "threads":
        load_step(comparison)
    with ExitStack() as stack:
        parent = stack.enter_context(parent_run(store, comparison))
        reservations = reserve_all(stack, comparison, charges, store.home)
        seconds = {"load": perf_counter() - started}
        records = run_cells(store, parent, comparison, reservations)
        for setting, reservation in reservations.items():
            reservation.commit(result_hashes(comparison, records, setting))
        seconds["cells"] = perf_counter() - started - seconds["load"]
        facts = make_facts(comparison, charges, perf_counter() - started)
        files = report_step(store.client, parent, store.home.outbox / parent, records, facts)
        by_key = {cell.key: cell.setting for cell in comparison.cells}
        cells = [(by_key[record["cell"]], record) for record in records]
        view_step(store.client, store.experiment, parent, cells, config)
    seconds["flow"] = perf_counter() - started
    return arrived_at_end(summary(comparison, records, charges, parent, files, seconds))


def say_first(comparison: Comparison, charges: dict[str, Charge]) -> None:
    """What a person should know before cells run: what is left out, resumed and charged."""
    say = reporter.get().say
    for warning in comparison.warnings:
        say(f"Warning: {warning}")
    for reason, labels in grouped_reasons(comparison).items():
        say(f"Left out: {labels}: {reason}")
    if comparison.finished:
        say(
            f"{len(comparison.finished)} of {len(comparison.cells)} cells are finished already and "
            "are kept."
        )
    if comparison.begun and charges:
        say(
            f"{comparison.begun} cells had begun and did not end: their settings stay charged as "
            "they were, and what is left of them is charged again."
        )
    for charge in charges.values():
        say(f"Charge: {charge.words}")


@contextmanager
def parent_run(store: Store, comparison: Comparison) -> Iterator[str]:
    """The parent MLflow run: FINISHED, FAILED, or KILLED where the process was told to end."""
    config = comparison.config
    tags = {
        "dpflows.flow_run": story.flow_run_id(),
        "dpflows.kind": "comparison",
    }
    run_id = tracking.open_run(
        store.client, store.experiment, config.title, tags | {"dpflows.command": config.kind}
    )
    try:
        counts = {"all": len(comparison.cells), "kept": len(comparison.finished)}
        tracking.log_params(store.client, run_id, children.parent_params(config, counts))
        store.client.log_text(run_id, config.model_dump_json(indent=1), "config.json")
        yield run_id
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        tracking.close_run(store.client, run_id, status, type(error).__name__)
        raise
    tracking.close_run(store.client, run_id, "FINISHED")


def reserve_all(
    stack: ExitStack, comparison: Comparison, charges: dict[str, Charge], home: Home
) -> dict[int, Reservation]:
    """A reservation for each private setting, by its ``id``, all of them before a cell runs.

    Where the block does not end well, those are forfeited of which noise was drawn, and the budget
    of the others is given back.
    """
    found: dict[int, Reservation] = {}
    stack.enter_context(told_together(found))
    config = sha256(comparison.config.model_dump_json().encode()).hexdigest()
    for data, charge in charges.items():
        job = comparison.private_jobs[data]
        ledger = stack.enter_context(Ledger(ledger_url(job.config, job.schema, home)))
        ledger.reap(kept=outbox.entries())
        own = charge_of(job, as_read=comparison.rows.read_of(job.schema.name))
        settings = [setting for setting, _ in charge.parts]
        each = replace(own, config_sha256=config).reserve_each(ledger, [e for _, e in charge.parts])
        for setting, reservation in zip(settings, each, strict=True):
            found[id(setting)] = stack.enter_context(reservation)
        heed()
    for note in dict.fromkeys(note for made in found.values() for note in made.notes):
        reporter.get().say(f"Warning: {note}")
    return found


@contextmanager
def told_together(reservations: Mapping[int, Reservation]) -> Iterator[None]:
    """Words about the budget where the block fails, when every reservation in it has ended."""
    try:
        yield
    except BaseException:
        states = Counter(made.state for made in reservations.values())
        if reservations:
            free = states.pop("cancelled", 0)
            reporter.get().say(
                f"Budget: of {len(reservations)} settings {states.total()} stay charged in full, "
                f"for noise was drawn, and {free} had not begun and are charged nothing."
            )
        raise


def result_hashes(
    comparison: Comparison, records: Sequence[CellRecord], setting: int
) -> dict[str, str]:
    """What closes a setting's entry: the hash of the records of its charged cells."""
    charged = {cell.key for cell in comparison.to_run if id(cell.setting) == setting}
    own = [record for record in records if record["cell"] in charged]
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    return {"results": sha256(text.encode()).hexdigest()}


def compare(config: CompareConfig, fresh: bool = False) -> dict[str, Any]:
    """Run the flow and raise what really went wrong, which the orchestrator does not get to see."""
    run: Callable[..., dict[str, Any]] = compare_flow.with_options(task_runner=task_runner(config))
    try:
        return completed(lambda: run(config, fresh))
    except StepFailed as failed_:
        if isinstance(failed_.error, DPFlowsError):
            raise failed_.error from None
        raise failed_.error from failed_
