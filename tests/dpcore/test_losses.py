"""Every loss: slope is the derivative of value, and the stated bounds hold and are met."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.errors import InputError, UnknownName
from dpcore.losses import HuberHinge, HuberRegression, losses, make_loss

GRID = np.linspace(-30.0, 30.0, 60_001)


@pytest.mark.parametrize("name", sorted(losses))
@given(z=st.floats(-20, 20))
def test_slope_is_the_derivative(name: str, z: float) -> None:
    loss, h = make_loss(name), 1e-6
    low, high = loss.value(np.array([z - h, z + h]))
    slopes = loss.slope(np.array([z - h, z, z + h]))
    assert slopes.min() - 1e-3 <= (high - low) / (2 * h) <= slopes.max() + 1e-3


@pytest.mark.parametrize("name", sorted(losses))
def test_bounds_hold_and_are_met(name: str) -> None:
    loss = make_loss(name)
    slope = loss.slope(GRID)
    if np.isfinite(loss.lipschitz):
        assert np.abs(slope).max() <= loss.lipschitz * (1 + 1e-12)
        assert np.abs(slope).max() >= 0.99 * loss.lipschitz
    if np.isfinite(loss.smoothness):
        curvature = np.diff(slope) / np.diff(GRID)
        assert np.abs(curvature).max() <= loss.smoothness * (1 + 1e-9)
        assert np.abs(curvature).max() >= 0.99 * loss.smoothness


@pytest.mark.parametrize("name", sorted(losses))
def test_convexity_is_as_stated(name: str) -> None:
    loss = make_loss(name)
    assert bool(np.all(np.diff(loss.slope(GRID)) >= -1e-12)) is loss.convex


@pytest.mark.parametrize(
    "name", [name for name in sorted(losses) if hasattr(losses[name], "curvature")]
)
def test_curvature_is_the_derivative_of_the_slope(name: str) -> None:
    loss, z, h = make_loss(name), np.linspace(-5, 5, 1001) + 1e-3, 1e-6
    numeric = (loss.slope(z + h) - loss.slope(z - h)) / (2 * h)
    assert np.mean(np.abs(numeric - loss.curvature(z)) > 1e-4) < 0.01  # kinks only


def test_unknown_loss_names_its_near_miss() -> None:
    with pytest.raises(UnknownName, match="logistic"):
        make_loss("logistc")


@pytest.mark.parametrize("loss", [HuberHinge, HuberRegression])
def test_width_must_be_positive(loss: type) -> None:
    with pytest.raises(InputError, match="h > 0"):
        loss(h=0.0)


@pytest.mark.parametrize("name", sorted(losses))
def test_whole_numbers_have_the_losses_of_the_same_floats(name: str) -> None:
    loss = make_loss(name)
    if loss.argument == "scores":
        pytest.skip("its argument is a vector of scores")
    whole = np.arange(-3, 4)
    for form in (loss.value, loss.slope):
        assert np.array_equal(form(whole), form(whole.astype(np.float64)))
