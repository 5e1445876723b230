"""The privacy statement: complete, recomputable from its own text, and honest about what must not
be released.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.curves import epsilon_of
from dpcore.accounting.events import Events
from dpcore.accounting.limits import Target
from tasks import training
from tasks.drawing.curves import budget_figure, changing
from tasks.ledger import Ledger
from tasks.options.base import Run
from tasks.record import run
from tasks.record import statement as words
from tests.tasks.training.test_training import config_of


@pytest.fixture
def stated(small: Path, tmp_path: Path) -> words.Statement:
    """The statement of a run on the small table, with its files in the working directory."""
    job = training.prepare(config_of(small, algorithm={"sampling_rate": 0.1}))
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.init("small", 3.0, 1e-4, "add_remove")
        planned = training.fit_to_ledger(job, training.plan_training(job), ledger)
        loaded = training.load_records(job)
        objective = training.build_objective(job, loaded)
        with training.reserve_budget(job, planned, ledger) as reservation:
            result = training.fit_model(job, planned, objective, reservation)
            price = run.convert(planned)
            folder = tmp_path / "out"
            trained = Run(job, planned, loaded, objective, objective, (), (), result, folder)
            return run.commit(trained, price, ledger, reservation)


def test_price_can_be_computed_again_from_the_text_alone(stated: words.Statement) -> None:
    read = words.Statement.model_validate_json(stated.to_json())
    assert read == stated
    events = Events.from_json(json.dumps(read.mechanisms))
    curve = events.price()
    assert [value if math.isfinite(value) else None for value in curve] == read.renyi.curve
    assert epsilon_of(curve, read.guarantee.delta, read.guarantee.conversion) == read.renyi.epsilon
    assert 0 < read.guarantee.epsilon <= read.renyi.epsilon  # the least accountant speaks
    again = Target(1.0, read.guarantee.delta, accountant=read.guarantee.accountant)
    assert again.spent(events) == pytest.approx(read.guarantee.epsilon, rel=1e-9)
    assert read.samplers == ["poisson"]


def test_statement_is_whole(stated: words.Statement) -> None:
    assert (stated.guarantee.unit, stated.guarantee.adjacency) == ("record", "add_remove")
    assert (stated.data.public_n, stated.data.n_kind) == (300, "declared nominal count")
    assert stated.ledger.spent_units["all"] > 0
    assert len(stated.ledger.head) == 64
    assert stated.sensitivity.startswith(
        "With one record added or removed a release moves by at most its stored"
    )
    assert "Abadi et al. 2016" in stated.sensitivity
    assert stated.noise.startswith("rounded")
    assert stated.releasable
    assert "NaN" not in stated.to_json()
    assert "Infinity" not in stated.to_json()


def test_every_reason_against_a_release_is_named(small: Path) -> None:
    values = config_of(small, privacy={"delta": 0.01}, algorithm={"preset": "paper"})
    planned = training.plan_training(training.prepare(values))
    reasons = words.unreleasable(planned, bounds=(False, "bounds were read"), fixed_noise=True)
    assert len(reasons) == 3
    assert "delta=0.01 is not below 1/n" in reasons[0]
    planned = training.plan_training(training.prepare(config_of(small)))
    assert words.unreleasable(planned, bounds=(True, ""), fixed_noise=False) == []


def test_schema_of_the_statement_is_published_json() -> None:
    schema = words.Statement.model_json_schema()
    assert schema["properties"]["schema_version"]["const"] == 1
    assert schema["additionalProperties"] is False


def test_figure_shows_the_numbers_that_change(tmp_path: Path) -> None:
    trace = [
        {"release": k, "spent_epsilon": np.sqrt(k), "step_size": 1 / k, "noise_scale": 2.0}
        for k in range(1, 9)
    ]
    assert changing(trace) == ["step_size"]
    budget_figure(trace, "a run", 1e-6, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
