"""Clipped sums of networks: equal to those of linear models, of vmap and of autograd; bounded,
whatever comes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcore.losses import Logistic
from dpcore.network import clipping
from dpcore.network.clipping import Closed, Mapped
from dpcore.network.network import Network, NetworkObjective
from dpcore.network.passes import MARGIN
from dpcore.network.spec import NetworkSpec
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from tests.dpcore.network.small import IMAGE, SPECS, Twice, given, records, spec_of

pytest.importorskip("torch")
pytest.importorskip("safetensors")

RNG = np.random.default_rng(3)


def with_constant(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))])


def to_linear(gradient: np.ndarray, outputs: int, inputs: int) -> np.ndarray:
    """Weights, then biases, of a linear layer as rows (class, feature and constant)."""
    W, b = gradient[: outputs * inputs].reshape(outputs, inputs), gradient[outputs * inputs :]
    return np.hstack([W, b[:, None]]).ravel()


@pytest.mark.parametrize("clip_norm", [np.inf, 0.4])
def test_a_linear_network_has_the_sums_of_softmax_regression(clip_norm: float) -> None:
    network = NetworkSpec(inputs=6, outputs=3, kind="linear", precision="double").build()
    X, y, w = (
        RNG.normal(size=(40, 6)),
        RNG.integers(0, 3, 40).astype(float),
        RNG.normal(size=network.dimension),
    )
    ours, theirs = (
        NetworkObjective(network, X, y),
        MulticlassObjective(with_constant(X), y, Softmax()),
    )
    W = to_linear(w, 3, 6)
    found = to_linear(ours.gradient_sum(w, clip_norm), 3, 6)
    cut = clip_norm * (1.0 - MARGIN[torch.float64])
    assert np.allclose(found, theirs.gradient_sum(W, cut), rtol=1e-9, atol=1e-9)
    assert np.allclose(ours.value_sum(w, clip_norm), theirs.value_sum(W, cut), rtol=1e-12)
    assert np.allclose(
        ours.take(np.array([3, 5])).value_sum(w), theirs.take(np.array([3, 5])).value_sum(W)
    )


@pytest.mark.parametrize("clip_norm", [np.inf, 0.4])
def test_a_linear_network_of_two_classes_has_the_sums_of_logistic_regression(
    clip_norm: float,
) -> None:
    """The scores' difference is the margin; the gradient stands twice, so its norm is sqrt 2 times
    as large.
    """
    network = NetworkSpec(inputs=6, outputs=2, kind="linear", precision="double").build()
    X, y, w = (
        RNG.normal(size=(40, 6)),
        RNG.integers(0, 2, 40).astype(float),
        RNG.normal(size=network.dimension),
    )
    ours, theirs = (
        NetworkObjective(network, X, y),
        LinearObjective(with_constant(X), 2 * y - 1, Logistic()),
    )
    rows = to_linear(w, 2, 6).reshape(2, 7)
    found = to_linear(ours.gradient_sum(w, clip_norm), 2, 6).reshape(2, 7)
    expected = theirs.gradient_sum(
        rows[1] - rows[0], clip_norm * (1.0 - MARGIN[torch.float64]) / np.sqrt(2)
    )
    assert np.allclose(found[1], expected, rtol=1e-9, atol=1e-9)
    assert np.allclose(found[0], -expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_closed_forms_are_the_gradients_of_autograd(name: str) -> None:
    network = spec_of(name).build()
    assert network.closed == (name != "module")
    data, w = records(network, 7), RNG.normal(size=network.dimension) * 0.1
    clip_norm = 0.5
    found = data.gradient_sum(w, clip_norm)
    network.load(w)
    total = np.zeros(network.dimension)
    for x, y in zip(*given(data), strict=True):
        network.body.requires_grad_(True)
        loss = nn.functional.cross_entropy(network.body(x[None]), y[None])
        parts = torch.autograd.grad(loss, list(network.parameters.values()))
        network.body.requires_grad_(False)
        gradient = torch.cat([part.ravel() for part in parts]).numpy()
        total += gradient * min(
            1.0, clip_norm * (1.0 - MARGIN[torch.float64]) / float(np.linalg.norm(gradient))
        )
    # the norm of rows that are taken scaled is a bound: what is projected away is counted
    loose = 0.02 if network.spec.standard_weights else 1e-6
    assert np.allclose(found, total, rtol=loose, atol=loose / 10)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(("formed", "near"), [(0, 1), (64, 1), (64, 500_000)])
def test_norms_are_those_of_vmap(
    name: str, formed: int, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to a convolution's norm: its gradient formed, of one record at a time or of all,
    and products between places.
    """
    monkeypatch.setattr(clipping, "FORMED", formed)
    monkeypatch.setattr(clipping, "NEAR", near)
    network = spec_of(name).build()
    data = records(network, 5)
    network.load(RNG.normal(size=network.dimension) * 0.1)
    own = network.sums.squared_norms(data.records.x, data.records.y)
    mapped = Mapped(network.body).squared_norms(data.records.x, data.records.y)
    assert torch.all(own >= mapped * (1.0 - 1e-12))
    if not network.spec.standard_weights:  # where a bound is taken
        assert torch.allclose(own, mapped, rtol=1e-4)
    assert network.dimension == sum(p.numel() for p in network.module.parameters())


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_norms_are_those_of_opacus() -> None:
    pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModule

    network = spec_of("cnn").build()
    data = records(network, 6)
    module = spec_of("cnn").build().body.requires_grad_(True).train()
    sampled = GradSampleModule(module, loss_reduction="sum")
    nn.functional.cross_entropy(sampled(data.records.x), data.records.y, reduction="sum").backward()
    theirs = sum(
        parameter.grad_sample.flatten(1).square().sum(1) for parameter in sampled.parameters()
    )
    network.load(np.zeros(network.dimension))
    assert torch.allclose(
        network.sums.squared_norms(data.records.x, data.records.y), theirs, rtol=1e-6
    )


def test_passes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    network = spec_of("cnn").build()
    data, w = records(network, 23), RNG.normal(size=network.dimension) * 0.1
    whole, values = data.gradient_sum(w, 0.3), data.value_sum(np.stack([w, 0 * w]), 2.0)
    kept = whole.copy()
    data.gradient_sum(0 * w, 0.3)
    assert np.array_equal(whole, kept), "a sum that was handed out changes with the next one"
    scores = data.scores(w)
    alone = np.concatenate([data.take(np.array([i])).scores(w) for i in range(data.n)])
    assert np.allclose(scores, alone, rtol=1e-12), "scores stand in the order of the records"
    back = np.arange(data.n)[::-1]
    assert np.allclose(data.take(back).scores(w), scores[::-1], rtol=1e-12)
    network.rows = 5
    assert np.allclose(data.gradient_sum(w, 0.3), whole, atol=1e-12)
    assert np.allclose(data.value_sum(np.stack([w, 0 * w]), 2.0), values, rtol=1e-12)
    assert np.array_equal(data.take(slice(0, 0)).gradient_sum(w, 0.3), np.zeros(network.dimension))
    assert np.array_equal(data.take(slice(0, 0)).value_sum(w), [0.0])


@pytest.mark.parametrize("name", ["mlp", "cnn", "module"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_no_record_passes_the_clip_norm(name: str, precision: str) -> None:
    network = spec_of(name, precision=precision).build()
    data, w = records(network, 12), RNG.normal(size=network.dimension)
    norms = [np.linalg.norm(data.take(np.array([i])).gradient_sum(w, 0.01)) for i in range(data.n)]
    assert max(norms) <= 0.01
    assert max(norms) >= 0.01 * 0.994


@pytest.mark.parametrize(
    ("name", "value"), [("mlp", 1e38), ("cnn", 1e38), ("mlp", np.nan), ("module", np.nan)]
)
def test_a_record_that_overflows_contributes_nothing(name: str, value: float) -> None:
    """inf - inf is no number, and scaling does not make it one: without care one record would ruin
    the sum.
    """
    network = spec_of(name, precision="single", activation="relu").build()
    data, w = records(network, 6), RNG.normal(size=network.dimension) * 0.1
    rest = data.take(np.arange(5)).gradient_sum(w, 0.5)
    data.records.x[data._places[5]] = value
    assert np.allclose(data.gradient_sum(w, 0.5), rest, atol=1e-6)
    assert np.all(np.isfinite(data.gradient_sum(w)))
    kept, cut = data.take(np.arange(5)).value_sum(w, 3.0)[0], data.value_sum(w, 3.0)[0]
    assert kept <= cut <= kept + 3.0 + 1e-9


def test_a_layer_in_two_places_has_no_closed_form() -> None:
    spec = NetworkSpec(
        inputs=196,
        outputs=4,
        kind="module",
        path="tests.dpcore.network.small:Twice",
        precision="double",
    )
    network = Network(Twice().body, spec)
    assert isinstance(network.sums, Mapped) and not network.closed
    assert isinstance(spec_of("mlp").build().sums, Closed)


def test_public_features_are_computed_once() -> None:
    network = spec_of("scattering").build()
    data = records(network, 3)
    assert data.records.x.shape == (3, 2025) and network.dimension == 4 * 2026
    assert torch.allclose(data.records.x.norm(dim=1), torch.ones(3, dtype=torch.float64))
    alone = records(network, 3).take(np.array([1]))
    assert torch.equal(alone.records.x[0], given(data)[0][1])


@pytest.mark.parametrize("image", [IMAGE, (3, 14, 14)])
def test_the_first_order_is_that_of_the_scattering_and_computed_once(
    image: tuple[int, ...],
) -> None:
    inputs, colours = image[0] * 196, image[0]
    spec = replace(spec_of("wavelet_cnn", centred=False), inputs=inputs, image=image)
    network = spec.build()
    data = records(network, 3)
    assert network.closed and data.records.x.shape == (3, 17 * colours, 5, 5)
    assert torch.allclose(data.records.x.square().mean((1, 2, 3)), torch.ones(3).double())
    both = replace(spec, kind="scattering").build()
    X = np.random.default_rng(0).uniform(0.0, 1.0, (3, inputs))
    order = both.described(X).reshape(3, colours, 81, 25)[:, :, :17]
    maps = given(data)[0].reshape(order.shape)
    for group in maps.split((1, 8, 8), dim=2):
        assert torch.allclose(group.mean((2, 3)), torch.zeros(3, colours).double(), atol=1e-6)
    found, expected = (nn.functional.layer_norm(x, (25,), eps=0.0) for x in (maps, order))
    assert torch.allclose(found, expected, atol=1e-6)
