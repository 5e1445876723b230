"""The networks that have a name, as sequences of layers; parameters come from the public seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import nn

from dpcore.errors import InputError
from dpcore.losses import Loss
from dpcore.network.images import Standardise, Upright
from dpcore.network.layers import StandardConv2d, StandardLinear
from dpcore.network.scattering import STROKES, Scattering, shape_of, strokes

ACTIVATION: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
}
POOL: dict[str, Callable[..., nn.Module]] = {"max": nn.MaxPool2d, "mean": nn.AvgPool2d}


# Weights of our own kinds at most: two gigabytes in single precision.
MOST_WEIGHTS = 500_000_000
# Orders of the kinds of wavelet features, and pixels a side that these are made for at most: their
# 16 filters are as large as the image, and take half a minute to make at that size.
ORDERS, MOST_SIDE = {"scattering": 2, "wavelet_cnn": 1}, 1024


class Described(Protocol):
    """A network as its layers are made: the public fields of ``dpcore.network.spec.NetworkSpec``,
    which builds one.
    """

    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def loss(self) -> Loss: ...
    @property
    def kind(self) -> str: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def image(self) -> tuple[int, ...]: ...
    @property
    def group_norm(self) -> bool: ...
    @property
    def standard_weights(self) -> bool: ...
    @property
    def upright(self) -> bool: ...
    @property
    def standardise(self) -> bool: ...
    @property
    def shrink(self) -> int: ...
    @property
    def copies(self) -> int: ...
    @property
    def shift(self) -> int: ...
    @property
    def mirror(self) -> bool: ...
    @property
    def centred(self) -> bool: ...
    @property
    def path(self) -> str | None: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def seed(self) -> int: ...
    @property
    def precision(self) -> str: ...


def make_module(spec: Described) -> nn.Module:
    """The module of ``spec`` with parameters drawn from its seed; torch's own generator is left as
    it was.
    """
    before, seen = before_layers(spec), shrunk(spec)
    with torch.random.fork_rng(devices=[]):
        refuse_huge(seen)
        torch.manual_seed(spec.seed)
        module = MAKERS[spec.kind](seen)
    if not before:
        return module
    return nn.Sequential(*before, *(module if type(module) is nn.Sequential else [module]))


def refuse_huge(spec: Described) -> None:
    """Raise ``InputError`` where our own kinds have more weights, or larger wavelets, than memory
    could hold; counted without making them.
    """
    if spec.kind == "module":
        return
    if spec.kind in ORDERS:
        weights = weights_on_wavelets(spec)
    else:
        with torch.device("meta"):
            weights = sum(p.numel() for p in MAKERS[spec.kind](spec).parameters())
    if weights > MOST_WEIGHTS:
        of = f"image={list(spec.image)}" if spec.image else f"{spec.inputs} inputs"
        raise InputError(
            f"Expected a network of at most {MOST_WEIGHTS:,} weights, got {weights:,} of "
            f"kind={spec.kind!r} with {of} and hidden={list(spec.hidden)}; choose smaller layers, "
            "or shrink images."
        )


def weights_on_wavelets(spec: Described) -> int:
    """Weights of a kind of wavelet features; raises ``InputError`` where these cannot be made."""
    side, channels, cells = shape_of(spec.image, ORDERS[spec.kind])
    if side > MOST_SIDE:
        raise InputError(
            f"Expected images of less than {MOST_SIDE - 3} pixels a side for kind={spec.kind!r}, "
            f"whose filters are as large, got image={list(spec.image)}; shrink them (shrink=2 "
            "takes the means of 2 x 2 pixels)."
        )
    drawn = STROKES * max(channels * cells**2, spec.inputs)
    if spec.centred and drawn > MOST_WEIGHTS:
        raise InputError(
            f"Expected features of {STROKES} drawn strokes of at most {MOST_WEIGHTS:,} numbers "
            f"together for centred=true, got {drawn:,} for image={list(spec.image)}; shrink images "
            "(shrink=2 takes the means of 2 x 2 pixels), or leave centred out."
        )
    if spec.kind == "scattering":
        return (channels * cells**2 + 1) * spec.outputs
    width, inner = 32, max(cells - 2, 0)
    return width * (9 * channels + 1) + (width * inner**2 + 1) * spec.outputs


def before_layers(spec: Described) -> list[nn.Module]:
    """What is done to each record by itself before the first layer of its kind."""
    layers: list[nn.Module] = [Upright(spec.image)] if spec.upright else []
    layers += [Standardise()] if spec.standardise else []
    if spec.shrink > 1:
        layers += [nn.Unflatten(1, spec.image), nn.AvgPool2d(spec.shrink), nn.Flatten()]
    return layers


def shrunk(spec: Described) -> Described:
    """``spec`` as the layers of its kind see it: with the image that is left of a record's."""
    if spec.shrink == 1:
        return spec
    channels, high, wide = spec.image
    image = (channels, high // spec.shrink, wide // spec.shrink)
    given: Any = spec
    seen: Described = replace(
        given,
        image=image,
        inputs=channels * image[1] * image[2],
        shrink=1,
        **dict.fromkeys(("upright", "mirror"), False),
        copies=1,
        shift=0,
    )
    return seen


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that starts at zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def linear(spec: Described) -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(zero_linear(spec.inputs, spec.outputs))


def mlp(spec: Described) -> nn.Module:
    """Fully connected layers of the ``hidden`` widths."""
    return nn.Sequential(*dense([spec.inputs, *spec.hidden, spec.outputs], spec))


def dense(widths: list[int], spec: Described) -> list[nn.Module]:
    """Linear layers between ``widths`` with activations between them."""
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(pairwise(widths)):
        hidden = StandardLinear if spec.standard_weights and number < len(widths) - 2 else nn.Linear
        layers += [hidden(a, b)] if number == 0 else [*between(a, spec), hidden(a, b)]
    return layers


def conv(
    spec: Described, a: int, b: int, size: int, stride: int = 1, padding: int = 0
) -> nn.Conv2d:
    """A convolution, its weights centred and scaled where ``standard_weights`` asks for it."""
    kind = StandardConv2d if spec.standard_weights else nn.Conv2d
    return kind(a, b, size, stride=stride, padding=padding)


# Channels that are centred and scaled together where ``group_norm`` is on: the first of these that
# divides a layer's. De et al. (2022), section 3.1, take 16 groups in wider layers.
GROUPS = (4, 3, 2, 1)


def between(width: int, spec: Described, image: bool = False) -> list[nn.Module]:
    """What follows a layer of ``width`` outputs, channels of an ``image`` or numbers: its
    normalisation within the record, without parameters (Wu & He 2018), and the activation.
    """
    act = ACTIVATION[spec.activation]()
    if not spec.group_norm:
        return [act]
    size = next(size for size in GROUPS if width % size == 0) if image else width
    return [nn.GroupNorm(width // size, width, affine=False), act]


def after(layers: list[nn.Module], spec: Described) -> int:
    """How many numbers of a record ``layers`` give."""
    with torch.no_grad():
        try:
            width: int = nn.Sequential(*layers)(torch.zeros(1, spec.inputs)).numel()
            return width
        except RuntimeError:
            raise InputError(
                f"Expected images that are large enough for kind={spec.kind!r}, got "
                f"image={list(spec.image)}; use kind='mlp' for smaller ones."
            ) from None


def cnn(spec: Described) -> nn.Module:
    """Two convolutions (6 and 16 channels, 5 x 5) with pooling, then layers of 256 and 128. Chen
    (2020), 5.6.7.
    """
    pool = POOL[spec.pool]
    layers = [
        nn.Unflatten(1, spec.image),
        conv(spec, spec.image[0], 6, 5, padding=2),
        *between(6, spec, image=True),
        pool(2),
        conv(spec, 6, 16, 5),
        *between(16, spec, image=True),
        pool(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, *dense([after(layers, spec), 256, 128, spec.outputs], spec))


def small_cnn(spec: Described) -> nn.Module:
    """Two strided convolutions (16 and 32 channels) and a layer of 32: 26,010 parameters on MNIST.

    The shape of Papernot et al. (2021), tempered sigmoids.
    """
    pool = POOL[spec.pool]
    layers = [
        nn.Unflatten(1, spec.image),
        conv(spec, spec.image[0], 16, 8, stride=2, padding=3),
        *between(16, spec, image=True),
        pool(2, 1),
        conv(spec, 16, 32, 4, stride=2),
        *between(32, spec, image=True),
        pool(2, 1),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, *dense([after(layers, spec), 32, spec.outputs], spec))


def deep_cnn(spec: Described) -> nn.Module:
    """Six 3 x 3 convolutions (32 to 256 channels), pooling after each pair, three linear layers.
    Chen (2020), 5.6.7.
    """
    pool = POOL[spec.pool]
    layers: list[nn.Module] = [nn.Unflatten(1, spec.image)]
    channels = [spec.image[0], 32, 64, 128, 128, 256, 256]
    for number, (a, b) in enumerate(pairwise(channels)):
        layers += [conv(spec, a, b, 3, padding=1), *between(b, spec, image=True)]
        if number % 2:
            layers.append(pool(2))
    layers.append(nn.Flatten())
    return nn.Sequential(*layers, *dense([after(layers, spec), 1024, 512, spec.outputs], spec))


def scattering(spec: Described) -> nn.Module:
    """Fixed wavelet features of unit norm, then softmax regression from zero."""
    features = wavelets(spec, 2)
    return nn.Sequential(features, zero_linear(features.size, spec.outputs))


def wavelets(spec: Described, order: int) -> Scattering:
    """Wavelet features of ``order``; ``centred`` takes off their mean over drawn strokes that are
    prepared as records are.
    """
    features = Scattering(spec.image, order)
    if spec.centred:
        drawn = nn.Sequential(*before_layers(spec))(strokes(spec.image))
        features.centre_on(drawn)
    return features


def wavelet_cnn(spec: Described) -> nn.Module:
    """The first order of the wavelet features in the place of a first layer, on it one convolution
    (32 channels, 3 x 3) and a layer from zero: 12,938 parameters on MNIST.

    The maps of an image are brought to variance 1, so that the convolution sees numbers as large
    as pixels. Tramer & Boneh (2021) train a network on both orders.
    """
    maps = wavelets(spec, 1)
    layers = [
        maps,
        Standardise(),
        nn.Unflatten(1, (maps.channels, maps.cells, maps.cells)),
        conv(spec, maps.channels, 32, 3),
        *between(32, spec, image=True),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, zero_linear(after(layers, spec), spec.outputs))


def imported(spec: Described) -> nn.Module:
    """The user's class at ``path``, made with ``arguments``; raises ``InputError`` where it is no
    ``nn.Module``.

    Only a class of modules is ever called, with plain values, so that a stored model cannot name
    any other function.
    """
    module_name, colon, name = str(spec.path).partition(":")
    if not colon or not name:
        raise InputError(f"Expected path 'package.module:Name', got path={spec.path!r}.")
    try:
        found: Any = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Expected a class that can be imported at path={spec.path!r}, got "
            f"{type(error).__name__}: {error}; put its package on the Python path."
        ) from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(
            f"Expected a subclass of torch.nn.Module at path={spec.path!r}, got {found!r}."
        )
    try:
        return found(**spec.arguments)
    except TypeError as error:
        raise InputError(
            f"Expected arguments that {spec.path!r} takes, got {dict(spec.arguments)}: {error}."
        ) from None


MAKERS: dict[str, Callable[[Described], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "small_cnn": small_cnn,
    "deep_cnn": deep_cnn,
    "scattering": scattering,
    "wavelet_cnn": wavelet_cnn,
    "module": imported,
}
