"""The form of the noise is a choice of the run that changes noise and price together."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.accounting.curves import ORDERS
from dpcore.errors import InputError
from dpcore.mechanisms import Exact, Exponential, Gaussian, Laplace, RandomisedSensitivityGaussian
from dpcore.noise import FORMS, plain_generator
from dpcore.sampling import Permuted, Poisson, WithoutReplacement

RSG = RandomisedSensitivityGaussian((0.1, 0.2), (3, 4), 8, 0.5)
WITH_FORM = [
    Gaussian(1.0, 3.0),
    Laplace(1.0, 3.0),
    RSG,
    Poisson(0.1).amplify(Gaussian(1.0, 3.0)),
    WithoutReplacement(2, 10).amplify(Laplace(1.0, 3.0)),
    Permuted(RSG.sizes, RSG.n).amplify(RSG),
]


@pytest.mark.parametrize("mechanism", WITH_FORM, ids=lambda m: m.kind)
def test_the_exact_form_costs_a_thousandth_more_and_is_a_mechanism_of_its_own(mechanism) -> None:
    exact = mechanism.with_noise("discrete")
    assert exact != mechanism
    plain, more = mechanism.rdp(ORDERS), exact.rdp(ORDERS)
    assert np.all(more > plain)
    low = ORDERS <= 8
    assert np.all(more[low] <= plain[low] * 1.02)
    assert exact.with_noise("discrete") == exact
    value = np.linspace(0.0, 1.0, 50)
    assert exact.release(value, plain_generator(1)).shape == value.shape
    assert exact.distance(value, value + 1.0) == mechanism.distance(value, value + 1.0)


@pytest.mark.parametrize(
    "mechanism", [*WITH_FORM, Exponential(1.0, 1.0), Exact()], ids=lambda m: m.kind
)
def test_the_rounded_form_is_the_default_and_changes_nothing(mechanism) -> None:
    assert mechanism.with_noise("rounded") is mechanism


def test_what_has_no_exact_form_says_so() -> None:
    assert Exact().with_noise("discrete") == Exact()
    with pytest.raises(InputError, match="rounded"):
        Exponential(1.0, 1.0).with_noise("discrete")
    with pytest.raises(InputError, match="discrete"):
        Gaussian(1.0, 1.0).with_noise("discreet")


def test_every_form_is_described_for_the_statement() -> None:
    assert set(FORMS) == {"rounded", "discrete"}
    assert all(FORMS.values())


def test_the_released_mixture_in_exact_form_lies_on_its_grid() -> None:
    exact = RSG.with_noise("discrete")
    noisy = exact.release(np.zeros(100), plain_generator(5))
    steps = noisy * 2.0**30
    assert np.array_equal(steps, np.rint(steps))
