"""Random allocation: every record in one of t batches an epoch, and one price an epoch."""

from __future__ import annotations

import json
from pathlib import Path

import mpmath
import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.accounting.budget import open_door
from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.gaussian_filter import cost_of
from dpcore.errors import InputError, PriceUnknown
from dpcore.losses import Logistic
from dpcore.mechanisms import Composition, Gaussian, Laplace, pairs
from dpcore.mechanisms.pairs import added_gaussian, allocated_gaussian, epoch_added, epoch_removed
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Allocation, Poisson
from dpcore.train import plan, run
from tests.stored.weights import records

BATCH = Allocation(5).amplify(Gaussian(1.0, 2.0))


def test_golden_divergences_of_both_directions(shared: Path) -> None:
    for row in json.loads((shared / "golden/p07_allocation_rdp.json").read_text())["rows"]:
        order, r, t = np.array([float(row["order"])]), row["ratio"], row["bins"]
        both = [row["add"]]
        assert epoch_added(order, r, t)[0] == pytest.approx(row["add"], rel=1e-9)
        if row["remove"] is not None:
            assert epoch_removed(order, r, t)[0] == pytest.approx(row["remove"], rel=1e-9)
            both.append(row["remove"])
        assert allocated_gaussian(order, r, t)[0] >= max(both)


def test_golden_epsilon_of_ten_epochs(shared: Path) -> None:
    for row in json.loads((shared / "golden/p11_allocation_epsilon.json").read_text())["rows"]:
        curve = row["epochs"] * allocated_gaussian(ORDERS, 1 / row["sigma_over_c"], row["bins"])
        found = epsilon_of(curve, row["delta"])
        assert found >= row["lower"]
        assert found == pytest.approx(row["epsilon_rdp"], rel=1e-4)


@pytest.mark.parametrize("r", [1e-9, 0.01, 0.5, 1.0, 3.0, 9.9, 11.0])
@pytest.mark.parametrize("t", [2, 10, 1000])
def test_an_epoch_costs_no_more_than_one_full_release_nor_than_poisson_steps(
    r: float, t: int
) -> None:
    curve = allocated_gaussian(ORDERS, r, t)
    assert np.isfinite(curve).all() and (curve > 0).all()
    assert (np.diff(curve) >= -1e-9 * curve[1:]).all()
    assert (curve <= ORDERS * r * r / 2 * (1 + 1e-12)).all()
    whole = np.floor(ORDERS) == ORDERS
    steps = t * added_gaussian(ORDERS[whole], r, 1 / t)
    assert (epoch_removed(ORDERS[whole], r, t) <= steps * (1 + 1e-8)).all()


def two_bins(order: float, r: float, sign: int) -> float:
    """D_a in the plane: P = N(r e_1)/2 + N(r e_2)/2 against N(0), or the other way round."""
    grid = np.arange(-11.0 - 2 * r * (sign < 0) * order, 11.0 + order * r, 0.1)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    mean = np.logaddexp(r * x - r * r / 2, r * y - r * r / 2) - np.log(2.0)
    logs = (order if sign > 0 else 1 - order) * mean - (x * x + y * y) / 2
    top = logs.max()
    total = np.log(np.exp(logs - top).sum() * 0.01 / (2 * np.pi)) + top
    return float(total / (order - 1))


@pytest.mark.parametrize(
    ("order", "r"), [(2.0, 0.5), (3.0, 1.0), (6.0, 0.7), (2.5, 1.2), (1.5, 1.0)]
)
def test_two_bins_by_quadrature_in_the_plane(order: float, r: float) -> None:
    orders = np.array([order])
    if order == np.floor(order):
        assert epoch_removed(orders, r, 2)[0] == pytest.approx(two_bins(order, r, 1), rel=1e-8)
    assert epoch_added(orders, r, 2)[0] == pytest.approx(two_bins(order, r, -1), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("t", "r", "order"), [(2, 1.0, 1.2), (3, 2.0, 1.05), (10, 0.1, 30.0)])
def test_the_added_direction_to_twenty_digits(t: int, r: float, order: float) -> None:
    """Both integrals by the trapezoid rule, which converges geometrically for such integrands."""
    with mpmath.workdps(20):
        a, ratio = mpmath.mpf(order), mpmath.mpf(r)
        step, wide = mpmath.mpf(1) / 16, mpmath.mpf(1) / 8
        z = [k * step for k in range(-14 * 16, 14 * 16 + 1)]
        lognormal = [mpmath.exp(ratio * one - ratio**2 / 2) for one in z]
        weight = [step * mpmath.npdf(one) for one in z]

        def integrand(x):
            u = mpmath.exp(x)
            psi = mpmath.fsum(
                w * mpmath.exp(-u / t * one) for w, one in zip(weight, lognormal, strict=True)
            )
            return mpmath.exp(x * (a - 1)) * (psi**t - mpmath.exp(-u))

        total = wide * mpmath.fsum(integrand(k * wide) for k in range(-40 * 8, 20 * 8 + 1))
        truth = float(mpmath.log1p(total / mpmath.gamma(a - 1)) / (a - 1))
    assert epoch_added(np.array([order]), r, t)[0] == pytest.approx(truth, rel=1e-9)


def test_the_larger_direction_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the maximum is proved, though the added one was smaller at all orders tried."""
    orders = np.array([2.0, 3.0, 5.0])
    r, t = 0.5, 20
    usual = allocated_gaussian(orders, r, t)
    assert (usual >= epoch_added(orders, r, t)).all()
    more = epoch_removed(orders, r, t) * 1.1
    monkeypatch.setattr(pairs, "epoch_added", lambda alphas, r, t: more[np.isin(orders, alphas)])
    assert (allocated_gaussian(orders, r, t) >= more).all()


def test_the_geometric_mean_bounds_the_added_direction() -> None:
    for r, t in ((0.3, 2), (1.0, 3), (2.0, 50)):
        orders = np.array([2.0, 2.5, 3.5])
        assert (epoch_added(orders, r, t) <= r * r / 2 * (1 + (orders - 1) / t) * (1 + 1e-12)).all()


def test_every_record_is_in_one_batch_of_an_epoch() -> None:
    rng = np.random.default_rng(3)
    batches = Allocation(7).epoch(1000, rng)
    assert len(batches) == 7
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(1000))
    assert all(np.array_equal(np.sort(batch), batch) for batch in batches)
    sizes = np.array([[len(b) for b in Allocation(7).epoch(1000, rng)] for _ in range(200)])
    # independent places: sizes are binomial, of variance n/t (1 - 1/t); the bar fails once in 1e6
    assert sizes.std() == pytest.approx(np.sqrt(1000 / 7 * 6 / 7), rel=0.11)
    assert [len(batch) for batch in Allocation(3).epoch(0, rng)] == [0, 0, 0]


def objective() -> LinearObjective:
    X, y = records()
    return LinearObjective(X, y, Logistic())


def test_the_door_draws_an_epoch_and_then_another() -> None:
    """Batches of one epoch are disjoint and hold all records; an epoch ends with another release."""
    seen: list[list[int]] = []

    class Watch:
        def asked(self, call) -> None: ...

        def released(self, mechanism, rows, query, value) -> None:
            seen.append([] if rows is None else rows.tolist())

    plain = Gaussian(1.0, 3.0)
    planned = Events.of([BATCH] * 7 + [plain] + [BATCH] * 2, adjacency="add_remove")
    door = open_door(planned, objective(), fixed_noise_seed=1, observers=[Watch()])
    for mechanism in planned:
        door.release(mechanism, lambda batch: batch.gradient_sum(np.zeros(5), 1.0))
    first = [row for rows in seen[:5] for row in rows]
    assert sorted(first) == list(range(400))
    assert not set(seen[5]) & set(seen[6])
    assert set(seen[8]) & set(seen[5])  # a new epoch: some record is used again
    assert seen[0] != seen[5]


def test_an_epoch_that_was_begun_is_priced_whole() -> None:
    epoch = BATCH.rdp(ORDERS)
    for steps, epochs in ((1, 1), (5, 1), (6, 2), (10, 2), (11, 3)):
        events = Events.of([BATCH] * steps, adjacency="add_remove")
        np.testing.assert_allclose(events.price(), epochs * epoch)
        np.testing.assert_allclose(Composition((BATCH,), (steps,)).rdp(ORDERS), epochs * epoch)
        assert cost_of(events) == pytest.approx(epochs / 4)
        assert Events.from_json(events.to_json()) == events
    whole = Events.of([BATCH] * 10, adjacency="add_remove")
    np.testing.assert_allclose(whole.prefix(7).price(), 2 * epoch)
    two = Events.of([BATCH] * 2, adjacency="add_remove")
    np.testing.assert_allclose(two.then(two).price(), 2 * epoch)  # of two runs
    broken = Events.of([BATCH, Gaussian(1.0, 9.0), BATCH], adjacency="add_remove")
    np.testing.assert_allclose(broken.price(), 2 * epoch + ORDERS / 162)


def test_it_has_a_price_for_one_record_more_or_less_and_gaussian_noise_alone() -> None:
    with pytest.raises(PriceUnknown, match="Poisson"):
        Allocation(5).amplify(Gaussian(1.0, 2.0), "replace_one")
    with pytest.raises(PriceUnknown, match="Gaussian"):
        Allocation(5).amplify(Laplace(1.0, 2.0))
    with pytest.raises(PriceUnknown, match="Poisson"):
        Events.of([BATCH], adjacency="add_remove").price("replace_one")
    assert Allocation(1).amplify(Gaussian(1.0, 2.0)) == Gaussian(1.0, 2.0)
    assert Target(1.0, 1e-5).accountant_of(Events.of([BATCH] * 5, adjacency="add_remove")) == "rdp"


@pytest.mark.parametrize("name", ["dp_sgd", "dp_adam"])
def test_descent_on_allocated_batches(name: str) -> None:
    problem = Problem(n=400, dimension=5, adjacency="add_remove", loss=Logistic(), l2=0.01)
    settings = {"sampling_rate": 0.05, "steps": 60, "sampler": "allocation"}
    planned = plan(name, settings, problem, Target(1.0, 1e-5))
    assert set(planned.events.table) == {
        Allocation(20).amplify(planned.events.table[0].mechanism, Adjacency.ADD_REMOVE)
    }
    assert planned.events.charged[0][1] == 3
    assert 0.999 < planned.spent_epsilon <= 1.0
    poisson = plan(
        name, {**settings, "sampler": "poisson"}, problem, Target(1.0, 1e-5, accountant="rdp")
    )
    assert planned.algorithm.noise_multiplier < poisson.algorithm.noise_multiplier
    result = run(planned, objective(), fixed_noise_seed=2)
    assert np.isfinite(result.weights).all()
    assert result.events == planned.events
    with pytest.raises(InputError, match="1/t"):
        plan(name, {**settings, "sampling_rate": 0.03}, problem, Target(1.0, 1e-5))
    replaced = Problem(n=400, dimension=5, adjacency="replace_one", loss=Logistic(), l2=0.01)
    with pytest.raises(PriceUnknown, match="Poisson"):
        plan(name, settings, replaced, Target(1.0, 1e-5))


def test_a_batch_alone_is_a_poisson_batch() -> None:
    """Its price says so: an epoch of many bins costs what that many Poisson steps do, or less."""
    epoch, steps = (
        allocated_gaussian(ORDERS, 0.5, 100),
        100 * Poisson(0.01).amplify(Gaussian(1.0, 2.0)).rdp(ORDERS),
    )
    whole = np.floor(ORDERS) == ORDERS
    assert (epoch[whole] <= steps[whole] * (1 + 1e-8)).all()
    assert epsilon_of(epoch, 1e-5) > 0.9 * epsilon_of(steps, 1e-5)
