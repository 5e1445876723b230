"""The networks that have a name, as sequences of layers; parameters come from the public seed.

Layers that cannot be trained record by record, refused by name before anything is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import Loss
from dpcore.network.clipping import Mapped
from dpcore.network.scattering import Scattering, Standardise

ACTIVATION: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
POOL: dict[str, Callable[..., nn.Module]] = {"max": nn.MaxPool2d, "mean": nn.AvgPool2d}


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
    def standardise(self) -> bool: ...
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
        layers += (
            [nn.Linear(a, b)] if number == 0 else [ACTIVATION[spec.activation](), nn.Linear(a, b)]
        )
    return layers


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


def small_cnn(spec: Described) -> nn.Module:
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


def deep_cnn(spec: Described) -> nn.Module:
    """Six 3 x 3 convolutions (32 to 256 channels), pooling after each pair, three linear layers.
    Chen (2020), 5.6.7.
    """
    act, pool = ACTIVATION[spec.activation], POOL[spec.pool]
    layers: list[nn.Module] = [nn.Unflatten(1, spec.image)]
    channels = [spec.image[0], 32, 64, 128, 128, 256, 256]
    for number, (a, b) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(a, b, 3, padding=1), act()]
        if number % 2:
            layers.append(pool(2))
    layers.append(nn.Flatten())
    return nn.Sequential(*layers, *dense([after(layers, spec), 1024, 512, spec.outputs], spec))


def scattering(spec: Described) -> nn.Module:
    """Fixed wavelet features of unit norm, then softmax regression from zero."""
    features = Scattering(spec.image)
    return nn.Sequential(features, zero_linear(features.size, spec.outputs))


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
    "module": imported,
}

# Sizes of made-up batches whose scores are compared with those of each record alone.
PROBES = (2, 5, 16)


def refuse_layers(module: nn.Module) -> None:
    """Raise ``AssumptionNotMet`` for the first layer that mixes records or draws random numbers."""
    for name, layer in module.named_modules():
        kind, where = (
            type(layer).__name__,
            f"{type(layer).__name__}{f' at {name!r}' if name else ''}",
        )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(
            layer, nn.modules.instancenorm._InstanceNorm
        ):
            raise AssumptionNotMet(
                f"Expected layers that treat every record by itself, got {where}, which mixes the "
                "records of a batch; use GroupNorm or LayerNorm."
            )
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            raise AssumptionNotMet(
                f"Expected layers without memory of records, got {where} with track_running_stats; "
                "set it to False."
            )
        if (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0) or kind == "RReLU":
            raise AssumptionNotMet(
                f"Expected layers that draw no random numbers, got {where}; leave it out: the "
                "noise of the gradients regularises already."
            )


def refuse_ties(module: nn.Module) -> None:
    """Raise ``AssumptionNotMet`` for two parameters that share their numbers without being one
    parameter.

    One parameter in two places has one gradient, the sum over both; two of them in one memory would
    be set twice.
    """
    seen: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first, other = seen.setdefault(parameter.data_ptr(), (name, parameter))
        if other is not parameter and parameter.numel():
            raise AssumptionNotMet(
                f"Expected tied weights to be one parameter, got {name!r} and {first!r} in the "
                "same memory; assign the parameter itself, or copy its values."
            )


def refuse_coarse_products() -> None:
    """Raise ``AssumptionNotMet`` where torch may multiply float32 matrices in fewer digits: no
    bound here covers it.
    """
    found = torch.get_float32_matmul_precision()
    if found != "highest":
        raise AssumptionNotMet(
            "Expected products of float32 matrices in float32, got "
            f"torch.get_float32_matmul_precision() = {found!r}; call "
            "torch.set_float32_matmul_precision('highest')."
        )


def refuse_mixing(module: nn.Module, inputs: int, outputs: int) -> None:
    """Raise ``AssumptionNotMet`` where made-up records change buffers or each other's scores, or
    scores have another shape than (n, ``outputs``).

    ``module`` is used as training uses it, in its evaluation mode. The probe is fixed and public.
    """
    dtype = next(module.parameters()).dtype
    x = torch.tensor(np.random.default_rng(0).uniform(-1, 1, (max(PROBES), inputs)), dtype=dtype)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    kept = {name: _kept(layer) for name, layer in module.named_modules()}
    with torch.no_grad():
        alone = torch.cat([_scores(module, row[None], outputs) for row in x])
        together = [_scores(module, x[:size], outputs) for size in PROBES]
    _refuse_mixed_rows(alone, together)
    _refuse_changed_attributes(module, kept)
    with torch.no_grad():
        again = torch.cat([_scores(module, row[None], outputs) for row in x])
    if not torch.equal(alone, again):
        raise AssumptionNotMet(
            "Expected a network without memory of records, got one whose scores of the same record "
            "change from call to call; remove what is kept between records, or what draws random "
            "numbers."
        )
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise AssumptionNotMet(
                f"Expected a network without memory of records, got buffer {name!r}, which the "
                "forward pass changes; remove it."
            )


def _refuse_mixed_rows(alone: Tensor, together: list[Tensor]) -> None:
    close = partial(torch.allclose, rtol=1e-3, atol=1e-5)
    if not all(close(scores, alone[: len(scores)]) for scores in together):
        raise AssumptionNotMet(
            "Expected a network whose scores of a record depend on that record alone, got one "
            "whose scores change with the other records of a batch; remove what averages over the "
            "batch."
        )


def _refuse_changed_attributes(module: nn.Module, kept: dict[str, dict[str, object]]) -> None:
    for name, layer in module.named_modules():
        changed = sorted(
            key for key, value in _kept(layer).items() if kept[name].get(key, _ABSENT) != value
        )
        if changed:
            raise AssumptionNotMet(
                "Expected a network without memory of records, got "
                f"{type(layer).__name__}{f' at {name!r}' if name else ''}, whose forward pass "
                f"changes its attribute {changed[0]!r}; remove what is kept between records."
            )


_ABSENT = object()


def _kept(layer: nn.Module) -> dict[str, object]:
    """What ``layer`` itself holds beside parameters, buffers and submodules, in a form that can be
    compared.
    """
    own = {key: value for key, value in vars(layer).items() if key not in _MACHINERY}
    return {key: _comparable(value) for key, value in own.items()}


_MACHINERY = frozenset(vars(nn.Module()))


def _comparable(value: object) -> object:
    # by its numbers: what is computed anew from the parameters is no memory
    if isinstance(value, Tensor):
        return tuple(value.shape), hash(value.detach().numpy().tobytes())
    if isinstance(value, dict):
        return [(repr(key), _comparable(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [_comparable(item) for item in value]
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return value
    return id(value)


def refuse_branches(mapped: Mapped, inputs: int, dtype: torch.dtype) -> None:
    """Raise ``AssumptionNotMet`` where the gradient of single records cannot be taken: the path
    depends on values.
    """
    x = torch.tensor(np.random.default_rng(1).uniform(-1, 1, (2, inputs)), dtype=dtype)
    try:
        mapped.squared_norms(x, torch.zeros(2, dtype=torch.int64))
        mapped.scores(x)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        text = " ".join(str(error).split())[:160]
        raise AssumptionNotMet(
            "Expected a network whose computation does not branch on values, got one that "
            f"torch.func.vmap refuses: {text}; use torch.where in place of if."
        ) from None


def _scores(module: nn.Module, x: Tensor, outputs: int) -> Tensor:
    try:
        found = module(x)
    except (RuntimeError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())[:160]
        raise AssumptionNotMet(
            f"Expected a network that takes rows of {x.shape[1]} numbers, got an error from it: "
            f"{text}; reshape them in its first layer, for example by nn.Unflatten."
        ) from None
    if not isinstance(found, Tensor) or found.shape != (len(x), outputs):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise AssumptionNotMet(
            f"Expected scores of shape (n, {outputs}), one for each class, got {shape}; give the "
            f"last layer {outputs} outputs."
        )
    return found
