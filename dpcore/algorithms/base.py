"""What every algorithm declares, and the registry that finds it by name."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.errors import MOST_RELEASES, AssumptionNotMet, InputError, unknown_name
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism
from dpcore.problem import Adjacency, Problem, Requires


class Trainer(Protocol):
    """What a plan trains with: an algorithm, one run of it for each class, or a search among its
    settings.
    """

    @property
    def name(self) -> str: ...

    @property
    def requires(self) -> Requires: ...

    @property
    def adjacencies(self) -> frozenset[Adjacency]: ...

    @property
    def asks(self) -> frozenset[str]: ...

    @property
    def releases(self) -> str: ...

    @property
    def argument(self) -> str: ...

    @property
    def adaptive(self) -> bool: ...

    @property
    def private(self) -> bool: ...

    @property
    def accountant(self) -> str | None: ...

    @property
    def noise_multiplier(self) -> float: ...

    @property
    def hidden_noise(self) -> str: ...

    @property
    def calibrates(self) -> bool: ...

    def marginals(self, problem: Problem, first: Any) -> dict[str, Array]: ...

    def weight_noise(self, problem: Problem) -> float | None: ...

    def plan(self, problem: Problem) -> Sequence[Mechanism]: ...

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array: ...

    def parameters(self, problem: Problem) -> dict[str, Any]: ...

    def outline(self, problem: Problem) -> list[dict[str, Any]]: ...

    def advice(self, problem: Problem) -> str: ...

    def check(self, problem: Problem) -> None: ...


BOTH = frozenset({Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE})

# How the source of a value begins that no text at hand prints, and that of one which is ours alone.
NOT_PRINTED = "not printed; "
OURS = "ours: "


class Preset(dict[str, Any]):
    """Settings by name, and in ``sources`` where each stands: the section and page that print it,
    or ``NOT_PRINTED`` and what it was taken from.

    Written as ``Preset(steps=(400, "Chen (2020), 6.6.3, pp. 98-100"))``.
    """

    def __init__(self, **settings: tuple[Any, str]) -> None:
        super().__init__({name: value for name, (value, _) in settings.items()})
        self.sources = {name: source for name, (_, source) in settings.items()}

    def but(self, **changes: tuple[Any, str]) -> Preset:
        """These settings with ``changes``."""
        own = {name: (value, self.sources[name]) for name, value in self.items()}
        return Preset(**own | changes)


class Algorithm(ABC):
    """A frozen dataclass of public hyper-parameters with a plan (from public facts alone) and a fit
    (through the door).

    ``noise_multiplier`` scales all its noise: sigma = noise_multiplier * sensitivity, other scales
    are ratios to it. A class says at least ``requires`` (what its proof needs of the loss),
    ``adjacencies`` (those it has a proof for), ``releases`` (what leaves), ``argument`` (why a
    record moves a release by no more than its sensitivity, in one sentence, and after whom) and
    ``small`` (settings for six records, every clip active); the rest has defaults.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    name: ClassVar[str]  # given by ``register``
    requires: ClassVar[Requires]
    adjacencies: ClassVar[frozenset[Adjacency]]
    releases: ClassVar[str]
    small: ClassVar[dict[str, Any]]
    argument: ClassVar[str] = ""
    # may run other mechanisms than the plan lists, within its price
    adaptive: ClassVar[bool] = False
    private: ClassVar[bool] = True
    selects: ClassVar[bool] = False  # made to select columns
    # reads rows in an order of its own, which sums over shards do not know
    orders_rows: ClassVar[bool] = False
    # the one whose statement it is known for, None where any will do
    accountant: ClassVar[str | None] = None
    # of records, beside the sums that every objective has (``OFFERED``)
    asks: ClassVar[frozenset[str]] = frozenset()
    default_l2: ClassVar[float] = 0.0  # the ridge where the caller names none
    bounds_rows_by: ClassVar[str] = (
        "norm"  # what the price rests on, the norm of rows or their "blocks"
    )
    # Why ``weight_noise`` gives nothing, in one sentence.
    hidden_noise: ClassVar[str] = (
        "noise enters every step, and how much of it later steps take back follows from the "
        "curvature at the records, for which there is no public number"
    )
    presets: ClassVar[dict[str, Preset]] = {}
    # parameters by the name that they had until the last minor version
    renamed: ClassVar[dict[str, str]] = {}
    small_problem: ClassVar[dict[str, Any]] = {}  # fields of the problem that ``small`` needs
    # settings under which it reaches the optimum without noise
    limit: ClassVar[dict[str, Any]] = {}
    limit_gap: ClassVar[float] = 0.02  # the share of the possible decrease that it may leave there

    @property
    @abstractmethod
    def noise_multiplier(self) -> float: ...  # a field of every class: calibration sets it

    @abstractmethod
    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        """The releases in order, from public facts alone; an adaptive algorithm lists the mix that
        it expects.
        """

    @abstractmethod
    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """The weights, from released values alone; ``rng`` is for starts and mutations, not for
        noise.
        """

    @property
    def calibrates(self) -> bool:
        """Whether a charged release fits the probabilities that scores state to what happened."""
        return False

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``, where that is one number."""
        return {}

    def given(self) -> dict[str, Any]:
        """The fields by name, None for what was left out."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def parameters(self, problem: Problem) -> dict[str, Any]:
        """The fields by name; those left out with what they come to."""
        return self.given() | self.resolved(problem)

    def outline(self, problem: Problem) -> list[dict[str, Any]]:
        """What an algorithm of several phases does in each, from public facts; empty for the
        others.
        """
        return []

    def marginals(self, problem: Problem, first: Any) -> dict[str, Array]:
        """Column ``means`` and ``variances`` (features,) where the ``first`` release tells them;
        else empty.
        """
        return {}

    def weight_noise(self, problem: Problem) -> float | None:
        """Standard deviation of the noise in each weight, where it is independent and public; None
        elsewhere.
        """
        return None

    def advice(self, problem: Problem) -> str:
        """What public facts say against a run (too little signal to learn from); empty where
        nothing.
        """
        return ""

    def check(self, problem: Problem) -> None:
        """Raise ``AssumptionNotMet`` where a setting needs more than ``requires``."""
        return


def registry_name(name: str) -> str:
    """A paper's name as a registry name: SGD-MA is sgd_ma."""
    return name.lower().replace("-", "_")


class Registry(dict[str, Any]):
    """Algorithms by name; the papers' names are aliases, also spelled as there (SGD-MA,
    bolt-on).
    """

    def __init__(self) -> None:
        super().__init__()
        self.aliases: dict[str, str] = {}

    def __missing__(self, name: str) -> Any:
        plain = registry_name(name)
        if plain in self or plain in self.aliases:
            return self[self.aliases.get(plain, plain)]
        raise unknown_name("algorithm", name, [*self, *self.aliases])

    def knows(self, name: Any) -> bool:
        """Whether ``name`` is that of an algorithm or an alias."""
        return isinstance(name, str) and (
            registry_name(name) in self or registry_name(name) in self.aliases
        )


registry = Registry()

# The smallest size of a number that is not 0, and one over the largest: products of three are
# numbers.
TINY = 1e-100

Class = TypeVar("Class", bound=type[Algorithm])

# What records can be asked beside ``n``, ``take``, ``gradient_sum`` and ``value_sum``, by who is
# one term of the sum.
ROWS = frozenset({"X", "as_rows", "column_sum", "square_sum", "within", "transform", "columns"})
OFFERED: dict[str, frozenset[str]] = {
    "record": ROWS,
    "user": frozenset({"as_rows"}),
    "session": frozenset({"capped_gradient_sum", "label_sum", "feature_precision_sum"}),
    "network": frozenset(),
}


def offered(problem: Problem) -> str:
    """The kind of objective that a problem has, a name of ``OFFERED``."""
    if problem.kind.startswith("ranking"):
        return "session"
    if problem.kind == "network":
        return "network"
    return "user" if problem.unit == "user" else "record"


def register(name: str, *aliases: str) -> Callable[[Class], Class]:
    """Enter a class under ``name`` (and the papers' ``aliases``)."""

    def enter(algorithm: Class) -> Class:
        algorithm.name = name
        registry[name] = algorithm
        registry.aliases.update(dict.fromkeys(aliases, name))
        return algorithm

    return enter


def make(name: str, parameters: dict[str, Any], preset: str | None = None) -> Algorithm:
    """Build the algorithm called ``name``; ``parameters`` win over those of ``preset``, these over
    an alias's own.

    Takes a parameter by the name that it had before (``renamed``) with a ``DeprecationWarning``.
    Raises ``UnknownName`` with near misses for a name, a preset or a parameter that does not exist.
    """
    cls = registry[name]
    alias = registry_name(name)
    chosen: dict[str, Any] = dict(cls.presets.get(alias, {})) if alias in registry.aliases else {}
    if preset is not None:
        chosen.update(_preset(name, preset))
    chosen.update(_given(name, parameters))
    known = {field.name: field for field in fields(cls)}
    for parameter in chosen:
        if parameter not in known:
            raise unknown_name(f"parameter of {name!r}", parameter, known)
    try:
        made: Algorithm = cls(**chosen)
    except TypeError as error:
        raise InputError(
            f"Expected values of the right type for the parameters of {name!r}, got {chosen}: "
            f"{error}."
        ) from error
    _require_usable(
        chosen, {name for name, field in known.items() if "int" in str(field.type)} - {"batch_size"}
    )
    return made


def under_new_names(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """``parameters`` of the algorithm called ``name`` by the names they have now, for comparisons
    with stored ones.
    """
    renamed = registry[name].renamed if registry.knows(name) else {}
    return {renamed.get(key, key): value for key, value in parameters.items()}


def _preset(name: str, preset: str) -> dict[str, Any]:
    presets = registry[name].presets
    if not presets:
        raise InputError(
            f"Expected no preset for {name!r}, which has only its defaults, got preset={preset!r}; "
            "leave it out or name an algorithm with presets, such as dp_sgd."
        )
    if preset not in presets:
        raise unknown_name(f"preset of {name!r}", preset, presets)
    return dict(presets[preset])


def _given(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """``parameters`` under their new names; warns of old ones, and refuses one that is given
    twice.
    """
    for old, new in registry[name].renamed.items():
        if old in parameters and new in parameters:
            raise InputError(
                f"Expected {old} of {name!r} once, got it as {new}, its name now, too; leave {old} "
                "out."
            )
        if old in parameters:
            told = (
                f"{old} of {name!r} is called {new} now; the old name goes with the next minor "
                "version."
            )
            warnings.warn(told, DeprecationWarning, stacklevel=3)
    return under_new_names(name, parameters)


def _require_usable(chosen: dict[str, Any], counts: set[str]) -> None:
    """Refuse what only a slip asks for: a loop whose plan fills the memory, a number whose products
    are 0 or infinite.

    A class says what its own values may be; this holds for those of all. ``counts`` names the whole
    ones.
    """
    for name, value in chosen.items():
        if name in counts and isinstance(value, Integral) and int(value) > MOST_RELEASES:
            raise InputError(
                f"Expected {name} of at most {MOST_RELEASES}, got {name}={value!r}; lower it."
            )
        if isinstance(value, float | int) and value != 0 and not TINY <= abs(value) <= 1.0 / TINY:
            raise InputError(
                f"Expected {name} of a size from {TINY:g} to {1.0 / TINY:g}, got {name}={value!r}; "
                "leave it out for the default."
            )


def check_assumptions(algorithm: Trainer, problem: Problem) -> None:
    """Raise ``AssumptionNotMet`` unless the proof of ``algorithm`` covers ``problem``."""
    if problem.adjacency not in algorithm.adjacencies:
        allowed = " or ".join(sorted(algorithm.adjacencies))
        raise AssumptionNotMet(
            f"Expected adjacency {allowed} for {algorithm.name!r}, got "
            f"adjacency={str(problem.adjacency)!r}; set "
            f"privacy.adjacency={sorted(algorithm.adjacencies)[0]} or choose another algorithm."
        )
    algorithm.requires.check(algorithm.name, problem)
    kind = offered(problem)
    if lacking := sorted(algorithm.asks - OFFERED[kind]):
        raise AssumptionNotMet(
            f"Expected an algorithm that asks what sums over each {kind} can tell, got "
            f"{algorithm.name!r}, which asks for {', '.join(lacking)}; use dp_sgd or dp_adam, "
            "which ask for clipped gradients alone."
        )
    algorithm.check(problem)
