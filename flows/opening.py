"""What is checked and chosen when a budget is opened: delta, unit, and how it is counted."""

from __future__ import annotations

from dataclasses import replace

from dpcore.errors import InputError
from tasks.ledger.records import Dataset, choose_order, price_for
from tasks.schema import Schema


def check_counting(
    suited_to: str | None, runs: int | None, order: float | None, filter: str
) -> None:
    """Raise ``InputError`` for options of counting that do not go together."""
    if suited_to is None and runs is not None:
        raise InputError(f"Expected --for CONFIG with --runs, got --runs {runs} alone; name a run.")
    if suited_to is not None and (order is not None or filter != "rdp"):
        raise InputError(
            "Expected --for CONFIG to choose the counting, got --order or --filter beside it; "
            "leave one of them out."
        )


def suited(asked: Dataset, config: str, runs: int | None) -> tuple[float | None, str, str]:
    """Return order and filter that admit most runs like that of ``config`` under the promise that
    is ``asked``, and what is said of them; no record is read.

    With ``runs`` as many equal runs fill the budget, each with the least noise that lets all fit.
    """
    from dpcore.accounting.calibrate import calibrate, planned_events
    from dpcore.accounting.curves import epsilon_of
    from tasks import training
    from tasks.config import load_config
    from tasks.ledger.counting import Counting, ManyRuns, best_counting

    planned = training.plan_training(training.prepare(load_config(config, [])))
    events = planned.events
    if runs is not None:
        if planned.before is not None or "noise_multiplier" not in planned.parameters:
            raise InputError(
                f"Expected a plan with one noise multiplier for --runs, got {planned.name!r}; "
                "leave --runs out."
            )
        made = calibrate(
            planned.algorithm, planned.problem, ManyRuns(asked, runs), noise=planned.noise
        )
        events = planned_events(made, planned.problem, planned.noise)
    best = best_counting(asked, events)
    usual_order, budget = choose_order(
        asked.epsilon or 0.0, asked.delta or 0.0, asked.conversion, None
    )
    usual = Counting(
        usual_order, budget, price_for(replace(asked, order=usual_order, budget=budget), events)[1]
    )
    words = (
        f"Suited to {planned.name}: {best.option} admits {best.admitted} such runs, the usual "
        f"order {usual_order:g} {usual.admitted}."
    )
    if runs is not None:
        target = planned.target
        assert target is not None
        alone = epsilon_of(events.price(), target.delta, target.conversion)
        words += (
            f" Each of {runs} runs then has noise_multiplier {made.noise_multiplier:.6g} (by its "
            f"curve epsilon {alone:.4g} at delta {target.delta:g}): set privacy.epsilon to that."
        )
    return best.order, "gdp" if best.order is None else "rdp", words


GDP_ADVICE = (
    "This budget counts mu^2: full-batch Gaussian and pure releases fit it best. Training on "
    "random batches is charged as if on all rows; for that open data with the default filter."
)
# The largest delta of a budget for data whose n is not declared yet: up to 100,000 units it is
# below 1/n.
UNKNOWN_N_DELTA = 1e-5


def check_delta(name: str, schema: Schema | None, delta: float, confirmed: bool) -> None:
    """Raise ``InputError`` where publishing one unit would satisfy the promise, as far as
    declarations tell.

    Every reservation asks again with the n of its run.
    """
    n = None if schema is None else schema.n()
    if n is None and delta > UNKNOWN_N_DELTA and not confirmed:
        raise InputError(
            f"Expected --delta of at most {UNKNOWN_N_DELTA:g} for {name!r}, which has no data "
            f"schema that says its n, got {delta:g}: delta must stay below 1/n; lower it, write "
            "the schema first, or add --confirm-delta."
        )
    if n is not None and delta >= 1.0 / n:
        per = "" if schema is None or schema.public.n is not None else " (rows_per_block)"
        raise InputError(
            f"Expected --delta below 1/n={1.0 / n:.3g} for the public n={n}{per} of {name!r}, got "
            f"{delta:g}: it would allow a record to be published; for example --delta "
            f"{0.1 / n:.1g}."
        )


def unit_under(unit: str, adjacency: str) -> str:
    """The unit that a schema's one stands for: of sessions, replace_labels protects the labels
    alone.
    """
    return "session_labels" if (unit, adjacency) == ("session", "replace_labels") else unit
