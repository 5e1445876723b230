"""Modules of a user: frozen and tied parameters, memory between calls, and batches without a
record.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpcore.accounting import Target
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.network.network import Network, NetworkObjective
from dpcore.network.spec import NetworkSpec
from dpcore.problem import Problem
from dpcore.train import plan, run
from tests.dpcore.network.small import INPUTS, SPECS, spec_of

SPEC = NetworkSpec(inputs=6, outputs=4, kind="mlp", precision="double")


def data_of(network: Network, n: int = 5) -> NetworkObjective:
    rng = np.random.default_rng(0)
    return NetworkObjective(
        network, rng.random((n, network.spec.inputs)), rng.integers(0, 4, n).astype(float)
    )


def by_autograd(module: nn.Module, data: NetworkObjective) -> list[Tensor]:
    """The gradient of the summed loss by torch itself, one a trained parameter."""
    parameters = [p for p in module.parameters() if id(p) in data.network.added.shapes]
    with torch.enable_grad():
        for parameter in parameters:
            parameter.requires_grad_()
        loss = F.cross_entropy(module(data.records.x), data.records.y, reduction="sum")
        found = torch.autograd.grad(loss, parameters)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return list(found)


class Frozen(nn.Module):
    """A frozen layer among trained ones, in a structure of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.middle.requires_grad_(False)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def frozen_sequence() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    module[0].weight.requires_grad_(False)
    return module


@pytest.mark.parametrize(("make", "trained"), [(Frozen, 35 + 20), (frozen_sequence, 5 + 24)])
def test_frozen_parameters_stay_and_are_not_counted(make, trained: int) -> None:
    module = make()
    frozen = {
        name: p.detach().double().clone()
        for name, p in module.named_parameters()
        if not p.requires_grad
    }
    network = Network(module, SPEC)
    data = data_of(network)
    assert network.dimension == trained == len(data.gradient_sum(np.zeros(trained)))
    expected = torch.cat([g.ravel() for g in by_autograd(network.module, data)]).numpy()
    assert data.gradient_sum(np.zeros(trained)) == pytest.approx(expected, abs=1e-12)
    problem = Problem(n=5, dimension=trained, loss=data.loss, kind="network")
    planned = plan(
        "dp_sgd", {"steps": 3, "sampling_rate": 0.5, "clip_norm": 1.0}, problem, Target(1.0, 1e-5)
    )
    weights = run(planned, data).weights
    state = network.state(weights)
    assert weights.any() and all(
        np.array_equal(state[name], value.numpy()) for name, value in frozen.items()
    )


def test_a_network_of_frozen_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="parameters that are trained"):
        Network(nn.Sequential(nn.Linear(6, 4)).requires_grad_(False), SPEC)


def tied_weights() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 4))
    module[2].weight = module[0].weight
    return module


def layer_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 4))


@pytest.mark.parametrize("make", [tied_weights, layer_twice])
def test_tied_weights_have_the_gradient_of_both_places(make) -> None:
    network = Network(make(), SPEC)
    data = data_of(network)
    expected = torch.cat([g.ravel() for g in by_autograd(network.module, data)]).numpy()
    assert data.gradient_sum(np.zeros(network.dimension)) == pytest.approx(expected, abs=1e-12)
    assert (
        np.linalg.norm(data.take(slice(0, 1)).gradient_sum(np.zeros(network.dimension), 1e-3))
        <= 1e-3
    )


def test_two_parameters_in_one_memory_are_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 4))
    module[2].weight = nn.Parameter(module[0].weight.data)
    with pytest.raises(AssumptionNotMet, match=r"'2.weight' and '0.weight' in the same memory"):
        Network(module, SPEC)


class Counting(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


class Keeping(nn.Module):
    """Keeps the last record in a tensor that is no buffer, and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.last, self.kept = torch.zeros(6), [0.0]

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            self.last = x[-1].detach().clone()
        return self.layer(x)


def test_modules_with_memory_are_refused() -> None:
    with pytest.raises(
        AssumptionNotMet, match="Counting, whose forward pass changes its attribute 'calls'"
    ):
        Network(Counting(), SPEC)
    with pytest.raises(AssumptionNotMet, match="attribute 'last'"):
        Network(Keeping(), SPEC)


HIDDEN: list[int] = []


class Hiding(nn.Module):
    """Keeps its memory outside of itself, where nothing sees it but by what it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        HIDDEN.append(len(x))
        return self.layer(x) + 1e-9 * len(HIDDEN)


def test_memory_elsewhere_is_seen_by_the_scores() -> None:
    with pytest.raises(AssumptionNotMet, match="from call to call"):
        Network(Hiding(), SPEC)


def test_no_module_is_called_with_zero_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty Poisson batches: some modules fail there, after the charge, and so tell that nobody was
    drawn.
    """
    call = nn.Module.__call__

    def watched(self: nn.Module, x: Tensor, *rest: object) -> object:
        assert len(x) > 0, f"{type(self).__name__} was called with zero rows"
        return call(self, x, *rest)

    monkeypatch.setattr(nn.Module, "__call__", watched)
    for name in SPECS:
        network = spec_of(name).build()
        empty = NetworkObjective(network, np.zeros((3, INPUTS.get(name, 196))), np.zeros(3)).take(
            np.zeros(0, dtype=int)
        )
        w = np.zeros(network.dimension)
        assert not empty.gradient_sum(w, 1.0).any() and empty.value_sum(w, 1.0) == 0.0
        assert empty.scores(w).shape == (0, 4)
        assert (
            NetworkObjective(network, np.zeros((0, network.spec.inputs)), np.zeros(0)).value_sum(w)
            == 0.0
        )
