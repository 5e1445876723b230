"""Small networks and data sets for the tests, and modules that stand for a user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from dpcore.network.network import Network, NetworkObjective
from dpcore.network.spec import NetworkSpec

IMAGE = (1, 14, 14)
SPECS = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", "hidden": (9, 7)},
    "mlp_relu_standardised": {
        "kind": "mlp",
        "hidden": (9,),
        "activation": "relu",
        "standardise": True,
    },
    "cnn": {"kind": "cnn", "image": IMAGE},
    "cnn_mean": {"kind": "cnn", "image": IMAGE, "pool": "mean", "activation": "relu"},
    "small_cnn": {"kind": "small_cnn", "image": (1, 16, 16)},
    "deep_cnn": {"kind": "deep_cnn", "image": (3, 8, 8)},
    "scattering": {"kind": "scattering", "image": IMAGE},
    "wavelet_cnn": {"kind": "wavelet_cnn", "image": IMAGE, "centred": True},
    "normed": {
        "kind": "small_cnn",
        "image": (1, 16, 16),
        "activation": "elu",
        "group_norm": True,
        "standard_weights": True,
    },
    "prepared": {
        "kind": "mlp",
        "image": IMAGE,
        "hidden": (9, 7),
        "group_norm": True,
        "standard_weights": True,
        "upright": True,
        "standardise": True,
        "shrink": 2,
    },
    "module": {
        "kind": "module",
        "path": "tests.dpcore.network.small:Residual",
        "arguments": {"width": 5},
    },
}
INPUTS = {"small_cnn": 256, "normed": 256, "deep_cnn": 192}


def spec_of(name: str, **changes: Any) -> NetworkSpec:
    """One of the networks above, in double precision unless told otherwise."""
    return NetworkSpec(
        inputs=INPUTS.get(name, 196), outputs=4, **({"precision": "double"} | SPECS[name] | changes)
    )


def records(network: Network, n: int, seed: int = 0) -> NetworkObjective:
    """``n`` random records."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 1.0, (n, network.spec.inputs))
    return NetworkObjective(network, X, rng.integers(0, network.spec.outputs, n).astype(float))


class Residual(nn.Module):
    """A module whose structure is no sequence: a skip connection around a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(196, width),
            nn.LayerNorm(width),
            nn.Linear(width, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(hidden + self.norm(hidden))


class Batched(nn.Module):
    """Normalises over the batch, a few levels down."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(196, 4), nn.Sequential(nn.BatchNorm1d(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Centred(nn.Module):
    """Subtracts the mean over the batch by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(196, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x - x.mean(dim=0))


class Remembering(nn.Module):
    """Keeps a running mean of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(196, 4)
        self.register_buffer("seen", torch.zeros(196))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.mean(dim=0).detach()
        return self.layer(x)


class Dropping(nn.Sequential):
    """Dropout between two layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(196, 8), nn.Dropout(0.5), nn.Linear(8, 4))


class TwoOutputs(nn.Sequential):
    """Too few scores for four classes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(196, 2))


class Twice(nn.Module):
    """One layer in two places of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(196, 196)
        self.body = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(196, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Branching(nn.Module):
    """Takes another path where the mean is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(196, 4), nn.Linear(196, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.mean() > 10.0 else self.other(x)


def nothing() -> None:
    """No class of modules."""


def given(data: NetworkObjective) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and labels in the order in which the records were given."""
    return data.records.x[data._places], data.records.y[data._places]
