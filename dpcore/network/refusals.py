"""Layers and networks that cannot be trained record by record, refused by name before anything is
spent.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from dpcore.errors import AssumptionNotMet
from dpcore.network.clipping import Mapped

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


# A product of float32 matrices errs by at most the sum's length in units of 2^-24; coarser digits
# begin at 2^-11 a factor.
COARSE = 2.0**-16


def refuse_coarse_products() -> None:
    """Raise ``AssumptionNotMet`` where torch multiplies float32 matrices in fewer digits: no bound
    here covers it. Asked of a product of made-up numbers, whichever switch it is.
    """
    rows = torch.linspace(0.1, 1.0, 24 * 32, dtype=torch.float64).reshape(24, 32).float()
    images = rows[:, :27].reshape(1, 3, 8, 27)
    found = {
        "mm": (rows @ rows.T, rows.double() @ rows.double().T),
        "bmm": (rows[None] @ rows.T[None], (rows.double() @ rows.double().T)[None]),
        "conv2d": (
            nn.functional.conv2d(images, images[..., :3]),
            nn.functional.conv2d(images.double(), images[..., :3].double()),
        ),
    }
    for name, (single, double) in found.items():
        if not bool(((single.double() - double).abs() <= COARSE * double).all()):
            raise AssumptionNotMet(
                f"Expected products of float32 matrices in float32, got fewer digits from "
                f"torch's {name}; call torch.set_float32_matmul_precision('highest') and leave "
                "torch.backends.*.fp32_precision at 'ieee'."
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
