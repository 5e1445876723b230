"""Case 08: a budget over scheduled retrainings; the numbers are those of its expect.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpcore.accounting import ORDERS, Events
from dpcore.errors import BudgetExceeded
from dpcore.mechanisms import Gaussian
from tasks.config.read import load_yaml
from tasks.ledger import Ledger
from tasks.ledger.entries import realised_epsilon

CASE = Path("cases") / "08-ledger-retraining"


def executions(shared: Path, steps: str) -> Iterator[tuple[str, str, Events]]:
    """Data set, state and mechanisms of each execution; a line that was written twice counts
    once.
    """
    lines = [json.loads(line) for line in (shared / CASE / "ledger.jsonl").read_text().splitlines()]
    unique = {(line["execution"], line["query"]): line for line in lines}
    for execution in dict.fromkeys(line["execution"] for line in lines):
        parts = [line for (name, _), line in unique.items() if name == execution]
        mechanisms = [
            Gaussian(1.0, part["noise_multiplier"]) for part in parts for _ in range(part[steps])
        ]
        yield parts[0]["dataset"], parts[0]["status"], Events.of(mechanisms, adjacency="add_remove")


@pytest.fixture
def budget(shared: Path) -> dict:
    text = (shared / CASE / "budget.yaml").read_text()
    return load_yaml(text, "budget.yaml")


def opened(ledger: Ledger, shared: Path, budget: dict, steps: str) -> None:
    assert budget["conversion"] == "rdp_prop_2_1"
    for name in ("east", "west"):
        ledger.init(
            name,
            budget["epsilon_per_dataset"],
            float(budget["delta"]),
            "add_remove",
            conversion="prop21",
        )
    for dataset, status, events in executions(shared, steps):
        reservation = ledger.reserve(dataset, events)
        reservation.on_charge()
        if status == "FINISHED":
            reservation.commit()
        else:
            reservation.forfeit("died after 30 of 50 steps")


@pytest.mark.parametrize(
    ("steps", "east"),
    [("steps_done", (3.2349, 3.2391)), ("steps_planned", (3.4439, 3.4447))],
    ids=["ran", "planned"],
)
def test_the_realised_epsilon_and_the_refusal(
    ledger: Ledger, shared: Path, budget: dict, steps: str, east
) -> None:
    """Expectations 1 to 6. ``planned`` is what the ledger does: a training that died is charged in
    full.
    """
    opened(ledger, shared, budget, steps)
    realised = realised_epsilon(ledger, "east")["all"], realised_epsilon(ledger, "west")["all"]
    assert east[0] - 1e-3 <= realised[0] <= east[1] + 1e-3
    assert 1.7590 - 1e-3 <= realised[1] <= 1.7599 + 1e-3

    proposal = json.loads((shared / CASE / "proposal.json").read_text())
    steps_of_x5 = [Gaussian(1.0, proposal["noise_multiplier"])] * proposal["steps_planned"]
    before = ledger.head(), ledger.spent("east"), ledger.spent("west")
    with pytest.raises(BudgetExceeded) as refused:
        ledger.reserve(proposal["dataset"], Events.of(steps_of_x5, adjacency="add_remove"))
    assert refused.value.exit_code == 3 and "nothing was reserved" in str(refused.value)
    assert (ledger.head(), ledger.spent("east"), ledger.spent("west")) == before

    again = realised_epsilon(ledger, "east")["all"], realised_epsilon(ledger, "west")["all"]
    ledger.close()
    with Ledger(ledger.store.url.render_as_string(hide_password=False)) as restarted:
        after = (
            realised_epsilon(restarted, "east")["all"],
            realised_epsilon(restarted, "west")["all"],
        )
        assert realised == again == after
        assert restarted.verify(before[0]).ok


def test_prices_add_as_curves_before_they_are_converted(shared: Path) -> None:
    """Expectation 2: cost over order is 0.2 for east and 0.0625 for west."""
    slopes: dict[str, float] = {}
    for dataset, _, events in executions(shared, "steps_done"):
        per_order = events.price() / ORDERS
        assert per_order == pytest.approx(per_order[0], rel=1e-12)
        slopes[dataset] = slopes.get(dataset, 0.0) + float(per_order[0])
    assert slopes == pytest.approx({"east": 0.2, "west": 0.0625}, rel=1e-9)
