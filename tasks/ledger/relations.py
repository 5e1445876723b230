"""Which runs a budget takes, and under which adjacency it prices them."""

from dpcore.accounting.events import Events
from dpcore.errors import AssumptionNotMet, PriceUnknown
from dpcore.losses import Array
from dpcore.problem import Adjacency
from tasks.ledger.records import Dataset


def priced_under(dataset: Dataset, events: Events) -> Adjacency:
    """Return the adjacency under which ``events`` are charged to ``dataset``; raises AssumptionNotMet where refused.

    ============================  ==========================================================================
    budget                        takes
    ============================  ==========================================================================
    add_remove                    add_remove
    replace_one                   replace_one; add_remove, re-priced (2C, two-sided selection, Lemma 2.3 at 2C)
    replace_labels                replace_labels; a session-level run at its replace-one price
    unit record, user, session    the same unit
    unit session_labels           session_labels; session
    ============================  ==========================================================================
    """
    budget, run = dataset.adjacency, events.adjacency
    assert budget is not None
    whole_session = dataset.unit == "session_labels" and events.unit == "session"
    if events.unit != dataset.unit and not whole_session:
        raise AssumptionNotMet(
            f"Expected a run whose unit is {dataset.unit!r} for the budget of {dataset.name!r}, got "
            f"unit={events.unit!r}; {_unit_way_out(dataset.unit, events.unit)}"
        )
    if whole_session:
        return Adjacency.REPLACE_ONE
    if budget == Adjacency.ADD_REMOVE and run != Adjacency.ADD_REMOVE:
        raise AssumptionNotMet(
            f"Expected a run proved for add_remove for the budget of {dataset.name!r}, got adjacency={run}; use an "
            "algorithm with an add_remove proof (dp_sgd with Poisson batches); a budget keeps its relation."
        )
    if budget == Adjacency.REPLACE_ONE and run == Adjacency.REPLACE_LABELS:
        raise AssumptionNotMet(
            f"Expected a run that protects whole records for the budget of {dataset.name!r}, got adjacency={run}; "
            "train with adjacency=replace_one; a budget keeps its relation."
        )
    return budget


def price_for(dataset: Dataset, events: Events) -> tuple[Adjacency, Array]:
    """Return (adjacency, Rényi curve on the grid) of ``events`` as ``dataset`` is charged for them."""
    adjacency = priced_under(dataset, events)
    try:
        return adjacency, events.price(adjacency)
    except PriceUnknown as error:
        raise PriceUnknown(
            f"The budget of {dataset.name!r} ({adjacency}) has no price for this run: {error}"
        ) from error


def _unit_way_out(budget: str, run: str) -> str:
    if (budget, run) == ("session", "session_labels"):
        return "a budget for whole sessions is not covered by a proof about labels: train with unit='session'."
    return f"train with unit={budget!r}: put it back in the data schema; a budget keeps its unit."
