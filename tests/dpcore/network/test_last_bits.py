"""Inputs, derivatives, gradients and norms of a record are the same bits whoever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpcore.network import clipping
from dpcore.network.layers import StandardConv2d, StandardLinear, applied
from dpcore.network.network import Network, NetworkObjective
from dpcore.network.passes import MARGIN, Records
from dpcore.network.spec import NetworkSpec
from tests.dpcore.network.small import Twice
from tests.dpcore.network.test_rounding import LARGE

pytest.importorskip("torch")
pytest.importorskip("safetensors")


@pytest.mark.parametrize("name", LARGE)
def test_the_last_digits_of_a_record_do_not_depend_on_who_else_is_there(name: str) -> None:
    network, rng = LARGE[name].build(), np.random.default_rng(4)
    X = rng.uniform(size=(network.rows + 40, network.spec.inputs)).astype(np.float32)
    data = NetworkObjective(network, X, rng.integers(0, 3, len(X)).astype(float))
    network.load(0.3 * rng.normal(size=network.dimension))

    copies, order = network.spec.copies, network.order(np.zeros(network.dimension))

    def slopes(start: int, stop: int) -> list[torch.Tensor]:
        part = network.moved(data.records[start:stop], order)
        found = [d for _, _, d in network.sums.backward(part.x, part.y)]
        return [d.view(stop - start, copies, *d.shape[1:]) for d in found]

    for place in (0, 1, 5, 17):
        whole = slopes(place, network.rows + place)
        for n in (1, 2, 7, 15, 16, 31):
            part = slopes(19, 19 + n)
            for d, e in zip(whole, part, strict=True):
                assert torch.equal(d[19 - place : 19 - place + n], e)


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(("inputs", "hidden"), [(785, ()), (333, (101,)), (64, (32,))])
def test_a_record_moves_a_pass_by_its_own_part_wherever_the_others_stand(
    precision: str, inputs: int, hidden: tuple[int, ...]
) -> None:
    """Rows of odd lengths: what rounding adds is far below what clips keep for it."""
    kind = {"kind": "mlp", "hidden": hidden} if hidden else {"kind": "linear"}
    network = NetworkSpec(inputs=inputs, outputs=10, precision=precision, **kind).build()
    rng, clip = np.random.default_rng(0), 0.1
    w = rng.normal(size=network.dimension) * 0.2
    x = torch.as_tensor(rng.random((600, inputs)) / inputs**0.5, dtype=network.dtype)
    y = torch.as_tensor(rng.integers(0, 10, 600))

    def total(kept: np.ndarray) -> np.ndarray:
        return network.gradient_sum(w, network.records(x[kept], y[kept])[0], clip)

    everyone = np.arange(600)
    for leaves in (0, 17, 400):
        rest = np.delete(everyone, leaves)
        moved = total(everyone) - total(rest) - total(everyone[leaves : leaves + 1])
        assert np.linalg.norm(moved) < MARGIN[network.dtype] * clip / 50.0


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(("side", "channels", "pool"), [(11, 7, 1), (19, 7, 2), (19, 10, 2)])
def test_a_record_moves_a_pass_by_its_own_part_where_derivatives_cancel(
    side: int, channels: int, pool: int, copies: int
) -> None:
    """Large weights that sum to nothing, an activation that is nearly straight: last bits of others
    would count a thousandfold (1.01 C in all, where products depend on a row's place).
    """
    spec = NetworkSpec(inputs=3 * side**2, outputs=2, kind="mlp")
    places = ((side - 1) // 2 // pool) ** 2
    layers = [nn.Unflatten(1, (3, side, side)), nn.Conv2d(3, channels, 3, stride=2), nn.Tanh()]
    layers += [nn.AvgPool2d(pool), nn.Flatten(), nn.Linear(channels * places, 2)]
    network = Network(nn.Sequential(*layers), spec)
    rng, clip, n = np.random.default_rng(0), 0.25, 300
    large = rng.normal(size=(channels, places))
    large = 1e4 * (large - large.mean(axis=1, keepdims=True)).ravel()
    w = np.zeros(network.dimension)
    w[: 27 * channels] = -network._start[: 27 * channels].numpy()  # a kernel of 0
    w[-2 * len(large) - 2 : -2] = np.append(large, -large)
    network.load(w)
    x = network.described(0.5 + 1e-4 * rng.random((n * copies, spec.inputs)))
    y = torch.as_tensor(rng.integers(0, 2, n))

    def total(kept: np.ndarray) -> np.ndarray:
        rows = (kept[:, None] * copies + np.arange(copies)).ravel()
        sums = network.added
        sums.start()
        network.sums.add(Records(x[rows], y[kept], np.empty(0)), clip, [slice(0, len(kept))], sums)
        return sums.total.numpy().copy()

    everyone = np.arange(n)
    rest, first = total(everyone[1:]), total(everyone[:1])
    assert np.linalg.norm(total(everyone) - rest - first) < MARGIN[network.dtype] * clip / 100.0


@pytest.mark.parametrize("conv", [nn.Conv2d, StandardConv2d])
@pytest.mark.parametrize("pool", [nn.Identity(), nn.MaxPool2d(2), nn.AvgPool2d(3, 2)])
@pytest.mark.parametrize(("channels", "stride", "side"), [(5, 1, 11), (7, 2, 19), (9, 2, 12)])
def test_inputs_and_derivatives_have_the_same_bits_whoever_stands_beside(
    channels: int, stride: int, side: int, pool: nn.Module, conv: type[nn.Conv2d]
) -> None:
    """Layers of odd sizes, one record fewer in front of all others."""
    torch.manual_seed(0)
    layers = [conv(3, channels, 3, stride=stride, padding=1), nn.Tanh(), pool]
    layers += [conv(channels, 5, 2), nn.ELU(), nn.Flatten()]
    with torch.no_grad():
        inputs = nn.Sequential(*layers)(torch.zeros(2, 3, side, side)).shape[1]
    layers += [StandardLinear(inputs, 11), nn.Tanh(), nn.Linear(11, 3)]
    x, y = torch.randn(90, 3, side, side), torch.randint(0, 3, (90,))
    closed = clipping.Closed(layers)
    for (_, a, d), (_, b, e) in zip(
        closed.backward(x, y), closed.backward(x[1:], y[1:]), strict=True
    ):
        assert torch.equal(a[1:], b) and torch.equal(d[1:], e)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "side"),
    [(1, 6, 5, 12), (1, 1, 3, 19), (3, 7, 3, 12), (9, 200, 5, 7), (65, 33, 3, 4), (10, 50, 5, 7)],
)
def test_gradients_and_norms_have_the_same_bits_whoever_stands_beside(
    channels: int, outputs: int, kernel: int, side: int, copies: int
) -> None:
    """Of a convolution of odd sizes, formed or by products between places."""
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, outputs, kernel)
    x = 0.5 + 1e-4 * torch.randn(65 * copies, channels, side, side)
    d = torch.randn(65 * copies, outputs, side - kernel + 1, side - kernel + 1)
    d -= d.mean((2, 3), keepdim=True)
    full = clipping.part_of(layer, x, d, copies)
    rest = clipping.part_of(layer, x[copies:].clone(), d[copies:].clone(), copies)
    assert torch.equal(full.squared()[1:], rest.squared())
    if full.formed is not None:
        assert torch.equal(full.formed[1:], rest.formed)


@pytest.mark.parametrize(("inputs", "outputs"), [(845, 2), (16, 32), (3, 17)])
def test_rows_of_a_linear_layers_products_are_whole_registers(
    inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    plain = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda *given: seen.extend(given[:2]) or plain(*given)
    )
    x = torch.rand(7, inputs)
    for layer in (nn.Linear(inputs, outputs), StandardLinear(inputs, outputs, bias=False)):
        found = applied(layer, x)
        assert all(part.shape[-1] % 16 == 0 for part in seen) and seen[1].shape[0] % 16 == 0
        assert found.is_contiguous() and torch.allclose(found, layer(x), rtol=1e-5, atol=1e-6)
        seen.clear()


def test_modules_without_a_closed_form_compute_in_double() -> None:
    spec = NetworkSpec(
        inputs=196, outputs=4, kind="module", path="tests.dpcore.network.small:Twice"
    )
    network = Network(Twice().body, spec)
    assert network.dtype == torch.float64 and not network.closed
    assert all(value.dtype == torch.float64 for value in network.parameters.values())
