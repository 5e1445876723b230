"""Users with several rows: what one adds is bounded as a whole, truncation is deterministic, the
rest is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.errors import DPFlowsError, InputError
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan
from tasks import training as training_steps
from tasks.config import TrainConfig, parse_config
from tasks.ledger import Blocks, Ledger
from tasks.schema import find_schema
from tests.flows.small import small_frame

SCHEMA = """\
schema_version: 1
name: visits
unit: user
ledger: {ledger}
public: {{n: 100, rows_per_user: 3}}
source: {{path: visits.csv}}
columns:
  age: {{kind: numeric, low: 0, high: 100}}
  city: {{kind: categorical, levels: [north, south]}}
  patient: {{kind: user}}
label: {{column: paid, positive: "yes", negative: "no"}}
split: {{kind: none}}
"""
MOST = 3


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """A table of 400 visits by about 100 patients with its schema, in the working directory."""
    rng = np.random.default_rng(3)
    frame = small_frame(rng, 400)
    frame["patient"] = [f"p{number}" for number in rng.integers(0, 100, 400)]
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "visits.yaml").write_text(
        SCHEMA.format(ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    )
    return tmp_path / "visits.yaml"


def config_of(schema: Path, **sections: dict[str, object]) -> TrainConfig:
    values: dict[str, dict[str, object]] = {
        "data": {"name": str(schema), "path": str(schema.with_name("visits.csv"))},
        "privacy": {"delta": 1e-4},
        "algorithm": {"name": "dp_sgd", "steps": 8},
    }
    return parse_config(values | sections)


def table(seed: int, sparse: bool = False) -> tuple[LinearObjective, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 3))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    y, users = rng.choice([-1.0, 1.0], 40), rng.integers(0, 9, 40)
    return LinearObjective(csr_array(X) if sparse else X, y, make_loss("logistic")), users


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("clip", [0.05, np.inf])
def test_sums_are_those_of_the_users_one_by_one(sparse: bool, clip: float) -> None:
    rows, users = table(1, sparse)
    objective = UserObjective(rows, users, MOST)
    w = np.array([0.5, -1.0, 2.0])
    gradients, values = [], []
    for user in np.unique(users):
        first = np.flatnonzero(users == user)[:MOST]
        gradient = rows.take(first).gradient_sum(w) / MOST
        gradients.append(gradient * min(1.0, clip / np.linalg.norm(gradient)))
        values.append(min(rows.take(first).value_sum(w)[0] / MOST, clip))
    assert objective.n == len(gradients)
    assert objective.gradient_sum(w, clip) == pytest.approx(np.sum(gradients, axis=0), abs=1e-12)
    assert objective.value_sum(w, clip) == pytest.approx([np.sum(values)])
    chosen = np.array([4, 0, 7])
    expected = np.sum([gradients[one] for one in chosen], axis=0)
    assert objective.take(chosen).gradient_sum(w, clip) == pytest.approx(expected, abs=1e-12)
    assert objective.take(np.array([], dtype=int)).n == 0
    assert np.all(objective.take(np.array([], dtype=int)).gradient_sum(w, clip) == 0)


def test_a_user_with_many_rows_moves_a_clipped_sum_by_the_clip_norm_and_no_more() -> None:
    rows, users = table(2)
    clip, w = 0.1, np.array([0.5, -1.0, 2.0])
    with_all = UserObjective(rows, users, MOST).gradient_sum(w, clip)
    moves = []
    for user in np.unique(users):
        kept = np.flatnonzero(users != user)
        without = UserObjective(rows.take(kept), users[kept], MOST).gradient_sum(w, clip)
        moves.append(np.linalg.norm(with_all - without))
    assert 0.99 * clip <= max(moves) <= clip * (1 + 1e-9)


def test_descent_moves_by_at_most_the_sensitivity_of_one_unit() -> None:
    """Output perturbation: a replaced user with m rows against 2 eta R T / users, with rows that
    make it tight.
    """
    users_n, steps, eta = 5, 3, 0.1
    loss = make_loss("huber_hinge")
    problem = Problem(
        n=users_n, dimension=1, loss=loss, adjacency=Adjacency.REPLACE_ONE, unit="user"
    )
    planned = plan("output_gd", {"steps": steps, "learning_rate": eta}, problem)
    users = np.repeat(np.arange(users_n), MOST)
    X, y = np.ones((users_n * MOST, 1)), np.tile([1.0, -1.0, 1.0], users_n)

    def descend(labels: np.ndarray) -> np.ndarray:
        objective = UserObjective(LinearObjective(X, labels, loss), users, MOST)
        w = np.zeros(1)
        for _ in range(steps):
            w = w - eta * objective.gradient_sum(w) / users_n
        return w

    all_up, all_down = y.copy(), y.copy()
    all_up[:MOST], all_down[:MOST] = 1.0, -1.0
    moved = float(np.abs(descend(all_up) - descend(all_down))[0])
    bound = planned.algorithm.sensitivity(problem)
    assert 0.5 * bound < moved <= bound * (1 + 1e-12)


def test_truncation_follows_the_order_of_a_users_own_rows_alone() -> None:
    rows, users = table(4)
    w = np.ones(3)
    whole = UserObjective(rows, users, 2).gradient_sum(w)
    order = np.argsort(users, kind="stable")
    assert UserObjective(rows.take(order), users[order], 2).gradient_sum(w) == pytest.approx(whole)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_a_training_by_users_is_charged_at_the_level_of_users(
    visits: Path, tmp_path: Path, adjacency: str
) -> None:
    schema = find_schema(visits)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("visits", 3.0, 1e-4, adjacency, unit="user", blocks=Blocks.of(schema))
    job = training_steps.prepare(config_of(visits, privacy={"delta": 1e-4, "adjacency": adjacency}))
    assert (job.problem.unit, job.problem.n) == ("user", 100)
    planned = training_steps.fit_to_ledger(job, training_steps.plan_training(job), ledger)
    loaded = training_steps.load_records(job)
    if adjacency == "replace_one":
        frame = (tmp_path / "visits.csv").read_text().splitlines()
        missing = 100 - len(np.unique(loaded.open().users))
        if missing:
            with pytest.raises(InputError, match="Expected exactly 100 users under replace_one"):
                training_steps.build_objective(job, loaded)
            frame += [f"50,north,yes,new{number}" for number in range(missing)]
            (tmp_path / "visits.csv").write_text("\n".join(frame) + "\n")
            loaded = training_steps.load_records(job)
    objective = training_steps.build_objective(job, loaded)
    with training_steps.reserve_budget(job, planned, ledger) as reservation:
        result = training_steps.fit_model(job, planned, objective, reservation)
        reservation.commit()
    assert result.weights.shape == (4,)
    assert set(ledger.spent("visits")) == {"all"}
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"algorithm": {"name": "objective_perturbation"}, "objective": {"l2": 0.01}}, "rank one"),
        ({"algorithm": {"name": "scaled_gd"}}, "single rows"),
        ({"evaluate": {"release": {"epsilon": 0.1}}}, "no evaluate.release for unit user"),
    ],
)
def test_what_has_no_user_level_bound_is_refused(visits: Path, sections: dict, words: str) -> None:
    with pytest.raises(DPFlowsError) as raised:
        training_steps.plan_training(training_steps.prepare(config_of(visits, **sections)))
    assert words in str(raised.value)


def test_rows_without_a_user_and_undeclared_rows_per_user_are_refused(visits: Path) -> None:
    table_ = visits.with_name("visits.csv")
    text = table_.read_text()
    table_.write_text(text + "50,north,yes,\n")
    with pytest.raises(
        InputError,
        match=r"data row 401, column 'patient': no value; every row "
        r"needs its user",
    ):
        training_steps.load_records(training_steps.prepare(config_of(visits)))
    visits.write_text(visits.read_text().replace(", rows_per_user: 3", ""))
    with pytest.raises(InputError, match=r"public\.rows_per_user"):
        training_steps.prepare(config_of(visits))


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("loss", ["logistic", "huber_hinge"])
def test_auto_chooses_an_algorithm_that_has_a_proof_for_users(
    visits: Path, loss: str, adjacency: str
) -> None:
    """Planned, encoded and regularised as dp_sgd is where it is named, and the reason is said."""
    sections = {"privacy": {"delta": 1e-4, "adjacency": adjacency}, "objective": {"loss": loss}}
    chosen, named = (
        training_steps.prepare(config_of(visits, algorithm={"name": name}, **sections))
        for name in ("auto", "dp_sgd")
    )
    planned = training_steps.plan_training(chosen)
    assert planned.name == "dp_sgd" and "all rows of a user are one term" in planned.reason
    assert chosen.encoder.to_json() == named.encoder.to_json() and chosen.problem == named.problem
    assert planned.events.to_json() == training_steps.plan_training(named).events.to_json()
