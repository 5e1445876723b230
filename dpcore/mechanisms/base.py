"""What every mechanism is, and how it is stored as JSON.

A mechanism is a frozen, hashable dataclass of plain fields. From the same fields it adds its noise
(``release``), states its Rényi curve (``rdp``) and measures how far two values lie apart
(``distance``), so that noise, price and test cannot differ. Neighbours move the value by at most
``sensitivity`` in ``distance``; the price holds for the adjacency under which that bound was made,
which the list of events around it names.

Baselines without noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice, repeat
from math import inf
from operator import eq
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from dpcore.errors import InputError, PriceUnknown, unknown_name
from dpcore.noise import FORMS
from dpcore.problem import Adjacency

Array = np.ndarray

# Share of the sensitivity that rounding the input costs in the exact form: 0.1 % more noise.
ROUNDING = 2.0**-10
# Share of delta for what a profile of discrete noise lacks: in one dimension it exceeds that of the
# Gaussian by 1.5 / g^2 of it at most, g >= 1024 grid steps a sigma (numeric; many are not proved).
GRID_SHARE = 1e-5


class Mechanism(ABC):
    """Base of all mechanisms. ``kind`` is the stable name in stored events and is never changed."""

    __slots__ = ()

    kind: ClassVar[str]

    @abstractmethod
    def release(self, value: Any, rng: np.random.Generator) -> Any:
        """Return ``value`` with noise from ``rng``."""

    @abstractmethod
    def rdp(self, alphas: Array) -> Array:
        """Rényi divergence at each order > 1, shape (k,); infinity where unknown."""

    @abstractmethod
    def distance(self, value: Any, other: Any) -> float:
        """How far two values of neighbours lie apart, in the norm of ``sensitivity``."""

    def replaced(self) -> Mechanism:
        """The same release bounded for a replaced record, where this one is bounded for an added or
        removed one.
        """
        raise PriceUnknown(
            f"No price under replace_one is known for {self.kind!r} built for add_remove: build it "
            "for replace_one, or use a budget with adjacency=add_remove."
        )

    def with_noise(self, noise: str) -> Self:
        """Itself with its noise in the form ``noise``: "rounded" (no change) or "discrete"
        (``rounding`` set to 2^-10).

        Of a release on a batch or a mechanism made of others, the inner ones change; one without
        noise stays. A plan and the door that runs it must use one form, so that price and noise
        agree. Raises ``InputError`` where there is no exact form.
        """
        if noise not in FORMS:
            raise unknown_name("form of noise", noise, FORMS)
        return self if noise == "rounded" else self._discrete()

    def _discrete(self) -> Self:
        item: Any = self
        names = {field.name for field in fields(item)}
        if "mechanism" in names:
            return cast(Self, replace(item, mechanism=item.mechanism.with_noise("discrete")))
        if "rounding" not in names:
            raise InputError(
                f"Expected a mechanism with an exact form for noise='discrete', got {self.kind!r}; "
                "use noise='rounded' for this algorithm."
            )
        return cast(Self, replace(item, rounding=item.rounding or ROUNDING))

    def charges(self, count: int) -> int:
        """How many times its price ``count`` releases in a row cost: ``count``, unless they share
        one (an epoch)."""
        return count

    @property
    def proved_for(self) -> Adjacency | None:
        """The only adjacency that this object is priced for; None where the bound may be made for
        any.
        """
        return None

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of a pure guarantee (delta = 0); infinity where there is none."""
        return inf


MECHANISMS: dict[str, type[Mechanism]] = {}
SAMPLERS: dict[str, type] = {}

Class = TypeVar("Class", bound=type)


def mechanism(kind: str) -> Callable[[Class], Class]:
    """Enter a mechanism class under the stable name ``kind``."""
    return _enter(MECHANISMS, kind)


def sampler(kind: str) -> Callable[[Class], Class]:
    """Enter a sampler class under the stable name ``kind``."""
    return _enter(SAMPLERS, kind)


def _enter(registry: dict[str, Any], kind: str) -> Callable[[Class], Class]:
    def enter(cls: Class) -> Class:
        if kind in registry:
            raise InputError(
                f"Expected one class for kind={kind!r}, got {registry[kind].__name__} and "
                f"{cls.__name__}."
            )
        entered: Any = cls
        entered.kind = kind
        registry[kind] = cls
        return cls

    return enter


CASTS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "str": str,
    "Adjacency": Adjacency,
    "tuple[float, ...]": lambda values: tuple(float(v) for v in values),
    "tuple[int, ...]": lambda values: tuple(_whole(v) for v in values),
    "int": lambda value: _whole(value),
}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def settle(item: Any) -> None:
    """Turn numpy scalars, integers given as floats and lists into the declared plain types.

    Two mechanisms of equal numbers are then equal, hash alike and are stored as the same text.
    """
    for field in fields(item):
        cast = CASTS.get(str(field.type))
        if cast is not None:
            value = getattr(item, field.name)
            try:
                object.__setattr__(item, field.name, cast(value))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"Expected {field.type} for {field.name} of {type(item).__name__}, got "
                    f"{field.name}={value!r}."
                ) from error


def to_dict(item: Any) -> dict[str, Any]:
    """Return ``{"kind": ..., field: value, ...}`` in plain JSON types; samplers and inner
    mechanisms nested alike.
    """
    stored: dict[str, Any] = {"kind": item.kind}
    for field in fields(item):
        value = getattr(item, field.name)
        if isinstance(value, Mechanism) or type(value) in tuple(SAMPLERS.values()):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = [to_dict(part) if isinstance(part, Mechanism) else part for part in value]
        elif isinstance(value, Adjacency):
            value = str(value)
        stored[field.name] = value
    return stored


def on_grid(item: Any) -> bool:
    """Whether the noise of a mechanism, or of one inside it, is discrete."""
    if isinstance(item, tuple):
        return any(on_grid(part) for part in item)
    if not isinstance(item, Mechanism):
        return False
    inside = any(on_grid(getattr(item, field.name)) for field in fields(item))  # type: ignore[arg-type]
    return inside or getattr(item, "rounding", 0.0) > 0.0


def l2_distance(value: Any, other: Any) -> float:
    """Euclidean norm of the difference of two arrays of one shape."""
    return float(
        np.linalg.norm(
            np.ravel(np.asarray(value, dtype=np.float64) - np.asarray(other, dtype=np.float64))
        )
    )


def l1_distance(value: Any, other: Any) -> float:
    """Sum of the absolute differences of two arrays of one shape."""
    return float(
        np.abs(np.asarray(value, dtype=np.float64) - np.asarray(other, dtype=np.float64)).sum()
    )


class Releases(Sequence[Mechanism]):
    """A list of releases that is not written out; it equals any sequence of the same ones."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(map(eq, self, other))


@dataclass(frozen=True, eq=False)
class Rounds(Releases):
    """The releases of ``block``, ``times`` times: a plan of many rounds that is no list of them."""

    block: Sequence[Mechanism]
    times: int

    def __len__(self) -> int:
        return len(self.block) * self.times

    def __iter__(self) -> Iterator[Mechanism]:
        return chain.from_iterable(repeat(self.block, self.times))

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        if isinstance(places, int):
            return self.block[places % len(self.block)]
        return [self.block[place % len(self.block)] for place in places]


@dataclass(frozen=True, eq=False)
class InTurn(Releases):
    """The releases of ``parts``, one after the other, none of them written out."""

    parts: tuple[Sequence[Mechanism], ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Mechanism]:
        return chain.from_iterable(self.parts)

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        if isinstance(places, int):
            return next(islice(self, places, None))
        return [*self][index]


@mechanism("exact")
@dataclass(frozen=True, slots=True)
class Exact(Mechanism):
    """No noise and an infinite price: for baselines in a door without limit, never for a releasable
    model.
    """

    @property
    def sensitivity(self) -> float:
        """Unbounded."""
        return float("inf")

    def release(self, value: Any, rng: np.random.Generator) -> Any:
        """Return ``value`` itself."""
        return value

    def rdp(self, alphas: Array) -> Array:
        """Infinity at every order."""
        return np.full(np.shape(alphas), np.inf)

    def _discrete(self) -> Exact:
        return self

    def replaced(self) -> Exact:
        """Itself: the price stays infinite."""
        return self

    def distance(self, value: Any, other: Any) -> float:
        """Euclidean distance; it has no bound."""
        return l2_distance(value, other)
