"""The networks that have a name, as sequences of layers; parameters come from the public seed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dpcore.errors import InputError
from dpcore.network.scattering import Scattering, Standardise
from dpcore.network.spec import NetworkSpec

ACTIVATION: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
POOL: dict[str, Callable[..., nn.Module]] = {"max": nn.MaxPool2d, "mean": nn.AvgPool2d}


def make_module(spec: NetworkSpec) -> nn.Module:
    """The module of ``spec`` with parameters drawn from its seed; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        module = MAKERS[spec.kind](spec)
    if not spec.standardise:
        return module
    return nn.Sequential(Standardise(), *(module if type(module) is nn.Sequential else [module]))


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that starts at zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def linear(spec: NetworkSpec) -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(zero_linear(spec.inputs, spec.outputs))


def mlp(spec: NetworkSpec) -> nn.Module:
    """Fully connected layers of the ``hidden`` widths."""
    return nn.Sequential(*dense([spec.inputs, *spec.hidden, spec.outputs], spec))


def dense(widths: list[int], spec: NetworkSpec) -> list[nn.Module]:
    """Linear layers between ``widths`` with activations between them."""
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(pairwise(widths)):
        layers += [nn.Linear(a, b)] if number == 0 else [ACTIVATION[spec.activation](), nn.Linear(a, b)]
    return layers


def after(layers: list[nn.Module], spec: NetworkSpec) -> int:
    """How many numbers of a record ``layers`` give."""
    with torch.no_grad():
        try:
            return nn.Sequential(*layers)(torch.zeros(1, spec.inputs)).numel()
        except RuntimeError:
            raise InputError(
                f"Expected images that are large enough for kind={spec.kind!r}, got image={list(spec.image)}; use "
                "kind='mlp' for smaller ones."
            ) from None


def cnn(spec: NetworkSpec) -> nn.Module:
    """Two convolutions (6 and 16 channels, 5 x 5) with pooling, then layers of 256 and 128. Chen (2020), 5.6.7."""
    act, pool = ACTIVATION[spec.activation], POOL[spec.pool]
    layers = [
        nn.Unflatten(1, spec.image),
        nn.Conv2d(spec.image[0], 6, 5, padding=2),
        act(),
        pool(2),
        nn.Conv2d(6, 16, 5),
        act(),
        pool(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, *dense([after(layers, spec), 256, 128, spec.outputs], spec))


def small_cnn(spec: NetworkSpec) -> nn.Module:
    """Two strided convolutions (16 and 32 channels) and a layer of 32: 26,010 parameters on MNIST.

    The shape of Papernot et al. (2021), tempered sigmoids.
    """
    act, pool = ACTIVATION[spec.activation], POOL[spec.pool]
    layers = [
        nn.Unflatten(1, spec.image),
        nn.Conv2d(spec.image[0], 16, 8, stride=2, padding=3),
        act(),
        pool(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        act(),
        pool(2, 1),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, *dense([after(layers, spec), 32, spec.outputs], spec))


def deep_cnn(spec: NetworkSpec) -> nn.Module:
    """Six 3 x 3 convolutions (32 to 256 channels), pooling after each pair, three linear layers. Chen (2020), 5.6.7."""
    act, pool = ACTIVATION[spec.activation], POOL[spec.pool]
    layers: list[nn.Module] = [nn.Unflatten(1, spec.image)]
    channels = [spec.image[0], 32, 64, 128, 128, 256, 256]
    for number, (a, b) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(a, b, 3, padding=1), act()]
        if number % 2:
            layers.append(pool(2))
    layers.append(nn.Flatten())
    return nn.Sequential(*layers, *dense([after(layers, spec), 1024, 512, spec.outputs], spec))


def scattering(spec: NetworkSpec) -> nn.Module:
    """Fixed wavelet features of unit norm, then softmax regression from zero."""
    features = Scattering(spec.image)
    return nn.Sequential(features, zero_linear(features.size, spec.outputs))


def imported(spec: NetworkSpec) -> nn.Module:
    """The user's class at ``path``, made with ``arguments``; raises ``InputError`` where it is no ``nn.Module``.

    Only a class of modules is ever called, with plain values, so that a stored model cannot name any other function.
    """
    module_name, colon, name = str(spec.path).partition(":")
    if not colon or not name:
        raise InputError(f"Expected path 'package.module:Name', got path={spec.path!r}.")
    try:
        found: Any = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Expected a class that can be imported at path={spec.path!r}, got {type(error).__name__}: {error}; put "
            "its package on the Python path."
        ) from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(f"Expected a subclass of torch.nn.Module at path={spec.path!r}, got {found!r}.")
    try:
        return found(**spec.arguments)
    except TypeError as error:
        raise InputError(f"Expected arguments that {spec.path!r} takes, got {dict(spec.arguments)}: {error}.") from None


MAKERS: dict[str, Callable[[NetworkSpec], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "small_cnn": small_cnn,
    "deep_cnn": deep_cnn,
    "scattering": scattering,
    "module": imported,
}
