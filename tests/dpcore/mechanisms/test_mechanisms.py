"""What every mechanism keeps: storage, equality, bounds on its fields, and its price against its
exact density.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.accounting.curves import ORDERS
from dpcore.accounting.events import from_dict
from dpcore.errors import InputError
from dpcore.mechanisms import (
    AMP,
    MECHANISMS,
    AboveThreshold,
    Composition,
    Exact,
    Exponential,
    GammaNorm,
    Gaussian,
    Laplace,
    NoisyMax,
    ObjectivePerturbation,
    RandomisedSensitivityGaussian,
    RepeatNegativeBinomial,
    RepeatPoisson,
    renyi,
    to_dict,
)
from dpcore.noise import plain_generator
from dpcore.sampling import Permuted, Poisson, WithoutReplacement

RSG = RandomisedSensitivityGaussian((0.1, 0.2), (3, 4), 8, 0.5)
OBJECTIVE = ObjectivePerturbation(1.0, 0.25, 5.0, 7.0, 3, "replace_one")
TRIAL = Composition((Gaussian(1.0, 8.0), Laplace(1.0, 30.0)), (4, 1))
EXAMPLES = [
    Exact(),
    Gaussian(1.0, 3.0),
    Gaussian(1.0, 3.0, 2.0**-10),
    Laplace(0.3, 0.7),
    Laplace(0.3, 0.7, 0.01),
    GammaNorm(2.0, 3.0),
    Exponential(1.0, 4.0, False),
    NoisyMax(1.0, 4.0),
    AboveThreshold(1.0, 5.0, 10.0, 7, -0.5, "gaussian"),
    RSG,
    OBJECTIVE,
    replace(OBJECTIVE, noise="gamma"),
    AMP(OBJECTIVE, 1e-6, 0.01),
    Poisson(0.1).amplify(Gaussian(0.1, 0.3)),
    Poisson(0.1).amplify(Laplace(0.1, 0.3), "replace_labels", "triangle"),
    WithoutReplacement(3, 10).amplify(Laplace(1.0, 2.0)),
    Permuted(RSG.sizes, RSG.n).amplify(RSG),
    TRIAL,
    RepeatNegativeBinomial((TRIAL,), 1.0, 0.2),
    RepeatPoisson((TRIAL, Composition((Gaussian(1.0, 9.0),), (3,), cap=True)), 6.0),
]
IDS = [f"{i}-{example.kind}" for i, example in enumerate(EXAMPLES)]


def test_every_kind_is_among_the_examples() -> None:
    assert {example.kind for example in EXAMPLES} == set(MECHANISMS)


def test_kinds_in_stored_events_never_change() -> None:
    assert set(MECHANISMS) == {
        "exact",
        "gaussian",
        "laplace",
        "gamma_norm",
        "exponential",
        "noisy_max",
        "above_threshold",
        "randomised_sensitivity_gaussian",
        "objective_perturbation",
        "amp",
        "sampled",
        "composition",
        "repeat_negative_binomial",
        "repeat_poisson",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_json_gives_back_the_same_object_and_price(example) -> None:
    again = from_dict(json.loads(json.dumps(to_dict(example))))
    assert again == example
    assert hash(again) == hash(example)
    assert np.array_equal(again.rdp(ORDERS), example.rdp(ORDERS))
    assert pickle.loads(pickle.dumps(example)) == example  # noqa: S301


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_unknown_and_missing_fields_are_refused(example) -> None:
    stored = to_dict(example)
    with pytest.raises(InputError, match="sigmma"):
        from_dict({**stored, "sigmma": 1.0})
    with pytest.raises(InputError, match="kind"):
        from_dict({**stored, "kind": stored["kind"] + "x"})
    required = [
        name
        for name in stored
        if name in ("sigma", "scale", "mechanism", "perturbation", "sensitivity")
    ]
    for name in required:
        with pytest.raises(InputError, match=name):
            from_dict({key: value for key, value in stored.items() if key != name})


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_curves_have_the_shape_of_the_orders_and_never_fall(example) -> None:
    curve = example.rdp(ORDERS)
    assert curve.shape == ORDERS.shape
    assert np.all(curve > 0)
    assert np.all(np.isinf(curve)) or np.all(np.diff(curve) >= -1e-9 * curve[:-1])
    assert np.all(curve <= example.pure_epsilon * (1 + 1e-12))


def test_numbers_of_any_type_are_one_mechanism() -> None:
    plain = Gaussian(1.0, 2.0)
    other = Gaussian(np.float32(1.0), np.int64(2))  # type: ignore[arg-type]
    assert plain == other
    assert json.dumps(to_dict(other)) == json.dumps(to_dict(plain))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0, 1.0),
        lambda: Gaussian(1.0, -1.0),
        lambda: Gaussian(1.0, float("nan")),
        lambda: Gaussian(1.0, 1.0, 1.0),
        lambda: Laplace(1.0, float("inf")),
        lambda: GammaNorm(-1.0, 1.0),
        lambda: Exponential(1.0, 1.0, "no"),  # type: ignore[arg-type]
        lambda: AboveThreshold(1.0, 1.0, 1.0, 0),
        lambda: AboveThreshold(1.0, 1.0, 1.0, 5, float("nan")),
        lambda: AboveThreshold(1.0, 1.0, 1.0, 5, noise="uniform"),
        lambda: RandomisedSensitivityGaussian((0.1,), (3, 4), 8, 0.5),
        lambda: RandomisedSensitivityGaussian((0.1, 0.2), (5, 4), 8, 0.5),
        lambda: RandomisedSensitivityGaussian((-0.1, 0.2), (3, 4), 8, 0.5),
        lambda: ObjectivePerturbation(1.0, 0.25, 0.0, 7.0, 3, "add_remove"),
        lambda: ObjectivePerturbation(1.0, 0.25, 1.0, 7.0, 3, "replace_labels"),
        lambda: ObjectivePerturbation(1.0, 0.25, 1.0, 7.0, 3, "add"),
        lambda: AMP(OBJECTIVE, 0.0, 1.0),
        lambda: Poisson(0.0),
        lambda: WithoutReplacement(0, 5),
        lambda: Permuted((3, 4), 6),
    ],
)
def test_values_out_of_range_are_refused_before_anything_runs(make) -> None:
    with pytest.raises(InputError):
        make()


# ---- exact densities in one dimension

STEP = 1e-3


def divergence(p: np.ndarray, q: np.ndarray, order: float, step: float = STEP) -> float:
    return float(np.log(np.sum(p**order * q ** (1 - order)) * step) / (order - 1))


@pytest.mark.parametrize("order", [1.5, 2.0, 5.0, 12.0])
@pytest.mark.parametrize("scale", [0.7, 1.0, 3.0])
def test_gaussian_and_laplace_are_exact_on_their_densities(order: float, scale: float) -> None:
    z = np.arange(-40 * scale, 40 * scale + order, STEP)
    orders = np.array([order])
    logs = -(z**2) / (2 * scale**2) + order * (2 * z - 1) / (2 * scale**2)
    top = logs.max()
    exact = (top + np.log(np.sum(np.exp(logs - top)) * STEP / (scale * np.sqrt(2 * np.pi)))) / (
        order - 1
    )
    assert Gaussian(1.0, scale).rdp(orders)[0] == pytest.approx(exact, rel=1e-6)
    base, moved = (np.exp(-np.abs(z - shift) / scale) / (2 * scale) for shift in (0.0, 1.0))
    assert Laplace(1.0, scale).rdp(orders)[0] == pytest.approx(
        divergence(moved, base, order), rel=1e-4
    )
    assert GammaNorm(1.0, scale).rdp(orders)[0] >= divergence(moved, base, order) * (1 - 1e-4)


@pytest.mark.parametrize("epsilon", [1e-7, 1e-3, 0.3, 1.0, 5.0, 60.0])
def test_pure_is_randomised_response(epsilon: float) -> None:
    import mpmath

    orders = np.array([1.01, 2.0, 7.5, 300.0])
    with mpmath.workdps(60):
        p = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
        exact = [
            float(mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1))
            for a in map(mpmath.mpf, orders.tolist())
        ]
    np.testing.assert_allclose(renyi.pure(orders, epsilon), exact, rtol=1e-9)


@pytest.mark.parametrize("loss", [1e-7, 1e-4, 0.01, 1.0, 30.0, 900.0])
def test_laplace_keeps_its_digits(loss: float) -> None:
    import mpmath

    orders = np.array([1.01, 2.0, 7.5, 16384.0])
    with mpmath.workdps(60):
        exact = []
        for a in map(mpmath.mpf, orders.tolist()):
            value = a / (2 * a - 1) * mpmath.exp((a - 1) * loss) + (a - 1) / (
                2 * a - 1
            ) * mpmath.exp(-a * loss)
            exact.append(float(mpmath.log(value) / (a - 1)))
    assert np.all(renyi.laplace(orders, loss) >= np.array(exact) * (1 - 1e-9))
    # Below 1e-5 the quadratic bound stands in; it is tight to its own order.
    small = orders * loss < 1e-3
    np.testing.assert_allclose(
        renyi.laplace(orders, loss)[small], np.array(exact)[small], rtol=1e-5
    )


@given(shift=st.lists(st.floats(0.0, 2.0), min_size=2, max_size=6), order=st.floats(1.01, 50.0))
def test_a_laplace_shift_spread_over_coordinates_costs_no_more(
    shift: list[float], order: float
) -> None:
    orders = np.array([order])
    apart = sum(renyi.laplace(orders, part)[0] for part in shift)
    assert apart <= renyi.laplace(orders, sum(shift))[0] * (1 + 1e-9) + 1e-12


@given(first=st.floats(0.05, 3.0), second=st.floats(0.05, 3.0), epsilon=st.floats(-3.0, 3.0))
@settings(max_examples=40)
def test_one_laplace_coordinate_tells_more_than_two_that_share_its_shift(
    first, second, epsilon
) -> None:
    """delta(eps) of the pair on a grid of both losses against the closed form of one coordinate."""

    def losses(shift: float) -> tuple[np.ndarray, np.ndarray]:
        """Values t of the cut variable and their chances under the moved law: atoms at both ends,
        density between.
        """
        edges = np.linspace(0.0, shift, 401)
        inner = np.exp(-edges[:-1]) - np.exp(-edges[1:])
        values = np.concatenate([[0.0], (edges[:-1] + edges[1:]) / 2, [shift]])
        return 2 * values - shift, np.concatenate([[0.5], inner / 2, [np.exp(-shift) / 2]])

    def delta(loss: np.ndarray, chance: np.ndarray) -> float:
        return float(np.sum(chance * np.maximum(np.exp(loss) - np.exp(epsilon), 0.0)))

    one, chance_one = losses(first)
    two, chance_two = losses(second)
    apart = np.add.outer(one, two).ravel(), np.multiply.outer(chance_one, chance_two).ravel()
    assert delta(*apart) <= delta(*losses(first + second)) + 1e-4


@given(
    eta=st.floats(0.02, 8.0),
    order=st.floats(1.05, 60.0),
    values=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8),
)
@settings(max_examples=200)
def test_no_bounded_range_pair_beats_the_closed_form(
    eta: float, order: float, values: list[float]
) -> None:
    """Any law of the loss on an interval of length eta, normalised: e^{-loss} has mean 1 under
    P.
    """
    loss = eta * np.array(values)
    q = np.ones(len(loss)) / len(loss)
    p = q * np.exp(loss)
    p /= p.sum()
    assert (
        divergence(p, q, order, 1.0)
        <= renyi.bounded_range(np.array([order]), eta)[0] * (1 + 1e-9) + 1e-12
    )


def test_exact_returns_the_value_itself() -> None:
    value = np.array([1.0, 2.0])
    assert Exact().release(value, plain_generator(0)) is value


@pytest.mark.parametrize(
    "example",
    [Gaussian(1.0, 0.5), Laplace(1.0, 0.5), GammaNorm(1.0, 0.5), Gaussian(1.0, 0.5, 0.01)],
)
def test_release_keeps_the_shape_and_does_not_touch_the_value(example) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = value.copy()
    noisy = example.release(value, plain_generator(1))
    assert noisy.shape == (2, 3) and noisy.dtype == np.float64
    assert np.array_equal(value, before)
    assert example.distance(value, value) == 0.0
    scalar = example.release(np.array(2.0), plain_generator(1))
    assert scalar.shape == ()


def test_distances() -> None:
    a, b = np.array([0.0, 0.0]), np.array([3.0, 4.0])
    assert Gaussian(1.0, 1.0).distance(a, b) == 5.0
    assert GammaNorm(1.0, 1.0).distance(a, b) == 5.0
    assert Laplace(1.0, 1.0).distance(a, b) == 7.0
    assert Exponential(1.0, 1.0).distance(a, b) == 4.0
    assert Exponential(1.0, 1.0, two_sided=False).distance(a, b) == 4.0
    assert (
        Exponential(1.0, 1.0, two_sided=False).distance(np.array([0.0, 4.0]), np.array([3.0, 0.0]))
        == 7.0
    )
