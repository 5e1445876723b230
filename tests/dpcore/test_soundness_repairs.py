"""Faults that an independent check of the proofs found, each as a test that the repair holds."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.accounting import Target
from dpcore.algorithms import make
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import make_loss
from dpcore.mechanisms import ObjectivePerturbation, RandomisedSensitivityGaussian
from dpcore.noise import OUTPUT_BITS
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run


@pytest.mark.parametrize("second", ["dp_svrg", "admm_objp", "output_gd"])
def test_a_second_phase_whose_price_needs_the_norm_bound_is_refused(second: str) -> None:
    with pytest.raises(AssumptionNotMet, match="second phase"):
        make("two_phase", {"second": second})


@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
def test_noise_inside_an_objective_lies_on_no_lattice(noise: str) -> None:
    """A lattice would show in the gradient of the released weights, on one of two neighbours
    only.
    """
    mechanism = ObjectivePerturbation(1.0, 0.25, 1.0, 8.0, 3, Adjacency.ADD_REMOVE, noise)
    drawn = mechanism.release(lambda b: b, np.random.default_rng(0))
    steps = drawn / (8.0 / 2**OUTPUT_BITS)
    assert np.abs(steps - np.rint(steps)).max() > 1e-3


def test_the_mixture_profile_counts_the_rounding_of_the_input() -> None:
    plain = RandomisedSensitivityGaussian((1.0, 0.5), (5, 5), 10, 3.0)
    coarse = RandomisedSensitivityGaussian((1.0, 0.5), (5, 5), 10, 3.0, 0.1)
    wider = RandomisedSensitivityGaussian((1.1, 0.6), (5, 5), 10, 3.0)
    assert coarse.permuted_delta(0.5) == pytest.approx(wider.permuted_delta(0.5))
    assert coarse.permuted_delta(0.5) > plain.permuted_delta(0.5)


def test_labels_of_a_margin_loss_are_signs() -> None:
    problem = Problem(n=10, dimension=2, loss=make_loss("logistic"))
    objective = LinearObjective(
        np.full((10, 2), 0.5), np.r_[np.ones(9), 1e4], make_loss("logistic")
    )
    with pytest.raises(InputError, match="-1 and"):
        run(plan("dp_sgd", {"steps": 2}, problem, Target(1.0, 1e-3)), objective)


def test_single_precision_sums_do_not_move_with_the_place_of_a_row() -> None:
    """Without the first record every block starts one row later; the sum may change by that record
    alone.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 20)).astype(np.float32)
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    whole, rest = (LinearObjective(X[k:], y[k:], make_loss("logistic")) for k in (0, 1))
    w = rng.normal(size=20)
    own = whole.take(slice(0, 1)).gradient_sum(w, 0.01)
    change = whole.gradient_sum(w, 0.01) - rest.gradient_sum(w, 0.01)
    np.testing.assert_allclose(change, own, atol=1e-9)
