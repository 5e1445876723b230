"""Plan a private training from public facts: which algorithm ``auto`` stands for, and with how much
noise; steps on batches in place of full ones, where these cost next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log1p, sqrt
from typing import Any

from dpcore.accounting.calibrate import calibrate, check_limits, planned_events
from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK, Limit, LimitAfter, PriceCap, Room, Target, target_among
from dpcore.algorithms import Algorithm, check_assumptions, make
from dpcore.algorithms.base import Trainer
from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.errors import InputError
from dpcore.losses import plain_name
from dpcore.problem import Adjacency, Problem
from dpcore.train.one_vs_rest import OneVsRest

# Losses of linear models for which the descent on scaled columns was measured ahead of plain noisy
# descent: logistic on Adult, a9a, Bank and credit, hinges on Adult, softmax on MNIST, residual
# losses on bike and wine.
SCALED = ("logistic", "softmax", "hinge", "huber_hinge", "squared", "huber_regression")
# Public encoding that each was measured with: whole rows and hat functions where columns are scaled
# by themselves, with fine bins of wide columns that are used where nearly all rows lie in one.
HATS = {"normalise": "none", "numeric": "hats(8)+bins(256)"}
PLAIN = {"normalise": "cap", "numeric": "minmax"}
# Clipped ListNet on [raw, rank] features: the setting that was best at every epsilon where
# documents are private.
CLIPPED_LISTNET: dict[str, Any] = {
    "steps": 10,
    "clip_norm": 0.3,
    "learning_rate": 1.0,
    "momentum": 0.8,
    "schedule": "linear",
    "average": 0.5,
}


# Clipped descent on a network, from held-out MNIST images: many steps on large batches, a small
# clip norm, a step size times clip norm of about 1, momentum. The batch is one of NETWORK_BATCH
# records in expectation.
NETWORK: dict[str, Any] = {
    "steps": 300,
    "clip_norm": 1.0,
    "learning_rate": 1.0,
    "momentum": 0.9,
    "schedule": "linear",
}
NETWORK_BATCH = 4096


def resolve(
    name: str, parameters: dict[str, Any], problem: Problem, target: Target | None
) -> tuple[str, dict[str, Any], str]:
    """Return (name, parameters, reason); names other than ``auto`` pass through with an empty
    reason.

    The rule reads the loss, the kind of model, the unit and the adjacency, and no record.
    """
    if name != "auto":
        return name, parameters, ""
    loss = plain_name(problem.loss)
    if problem.kind.startswith("ranking"):
        return ranking_default(parameters, problem)
    if problem.kind == "network":
        sizes = {"sampling_rate": min(1.0, NETWORK_BATCH / problem.n)}
        return (
            "dp_sgd",
            NETWORK | sizes | parameters,
            "clipped gradients are all that the proof needs of a network",
        )
    chosen = resolve_name(name, loss, problem.kind, problem.unit)
    if problem.unit == "user":
        return (
            chosen,
            parameters,
            "clipped steps: all rows of a user are one term, which is clipped as a whole",
        )
    if chosen == "scaled_gd":
        return (
            chosen,
            parameters,
            f"descent on columns scaled by noisy variances, measured best for loss {loss!r}",
        )
    return (
        chosen,
        parameters,
        f"noisy gradient descent needs no more of loss {loss!r} than clipped gradients",
    )


def ranking_default(
    parameters: dict[str, Any], problem: Problem
) -> tuple[str, dict[str, Any], str]:
    """What ``auto`` is for sessions: one noisy vector where documents are public, clipped steps
    otherwise.
    """
    public = problem.adjacency is Adjacency.REPLACE_LABELS
    if public and problem.kind == "ranking" and problem.loss.name == "listnet":
        return (
            "listnet_one_shot",
            parameters,
            "documents are public: labels enter a linear ListNet through one vector",
        )
    reason = "the model is no linear ListNet" if public else "documents are private"
    return "dp_sgd", CLIPPED_LISTNET | parameters, f"clipped steps: {reason}"


def resolve_name(name: str, loss: str, kind: str = "linear", unit: str = "record") -> str:
    """The algorithm that ``name`` stands for with this loss, kind of model and unit of privacy.

    Column sums of single rows know no user, so for users it is the descent on clipped terms.
    """
    if name != "auto":
        return name
    return "scaled_gd" if kind == "linear" and loss in SCALED and unit != "user" else "dp_sgd"


def encoding(name: str, loss: str, kind: str = "linear", unit: str = "record") -> dict[str, str]:
    """Settings of the encoder to use where the caller named none; a choice among public maps, so it
    costs nothing.
    """
    return dict(HATS if resolve_name(name, loss, kind, unit) == "scaled_gd" else PLAIN)


# Noise multipliers outside this range are no noise, or nothing but noise.
NOISE = 1e-12, 1e12


@dataclass(frozen=True)
class Planned:
    """A calibrated algorithm, what it will release and why it was chosen. No record has been read.

    ``events`` is all that is charged. Where releases ``before`` the training belong to it, they
    come first in it, and the training's ``own`` are known (``replan``) once they are made.
    """

    name: str
    algorithm: Trainer
    problem: Problem
    events: Events
    limits: tuple[Limit, ...] = ()
    preset: str | None = None
    reason: str = ""
    noise: str = "rounded"
    before: Events | None = None
    own: Events | None = None

    @property
    def target(self) -> Target | None:
        """The run's own (epsilon, delta), if one was given."""
        return target_among(self.limits)

    @property
    def spent_epsilon(self) -> float:
        """Epsilon of the whole plan at the target's delta; infinity without a target or for a
        baseline.
        """
        return (
            self.target.spent(self.events)
            if self.target and self.algorithm.private
            else float("inf")
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The hyper-parameters that will be used, by name; those left out with what they come to,
        where that is one.
        """
        return self.algorithm.parameters(self.problem)

    @property
    def phases(self) -> list[dict[str, Any]]:
        """What an algorithm of several phases does in each, from public facts; empty for the
        others.
        """
        return self.algorithm.outline(self.problem)

    @property
    def warning(self) -> str:
        """What public facts say against this plan (too little signal to learn from); empty where
        nothing.
        """
        return self.algorithm.advice(self.problem)


def plan(
    name: str,
    parameters: dict[str, Any],
    problem: Problem,
    *limits: Limit,
    preset: str | None = None,
    noise: str = "rounded",
    before: Events | None = None,
) -> Planned:
    """Choose and calibrate an algorithm from public facts; no record is read.

    ``auto`` is resolved here. ``noise_multiplier`` is calibrated to all ``limits`` unless
    ``parameters`` give it, in which case it must fit. Raises ``InputError`` for names, ranges and
    unmet assumptions, ``BudgetExceeded`` where the limits do not admit the run. ``noise``:
    ``rounded``, or ``discrete`` for exact integer noise (``dpcore.noise``).
    ``before``: releases under the same guarantee that come first and that the problem may depend
    on; the limits are then met by both together, and ``replan`` follows when they are made.
    """
    target = target_among(limits)
    chosen, (name, parameters, reason) = name, resolve(name, parameters, problem, target)
    single = make(name, parameters, preset)
    check_assumptions(single, problem)
    check_noise(single)
    algorithm: Trainer = OneVsRest.of(single) if _by_class(problem) else single
    curve_only = algorithm.adaptive or before is not None
    limits = tuple(_by_accountant(algorithm, limit, curve_only) for limit in limits)
    asked = _after(before, limits)
    if algorithm.private and "noise_multiplier" not in parameters and limits:
        algorithm = calibrate(algorithm, problem, *asked, noise=noise)
        if chosen == "auto" and "sampling_rate" not in parameters and not curve_only:
            whole, algorithm = algorithm, on_batches(algorithm, problem, asked, noise)
            reason += "" if algorithm is whole else ", on batches, which cost next to nothing"
    events = planned_events(algorithm, problem, noise)
    if algorithm.private:
        check_limits(events, *asked)
    events = events if before is None else before.then(events)
    return Planned(
        algorithm.name, algorithm, problem, events, limits, preset, reason, noise, before
    )


def _after(before: Events | None, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """``limits`` on what follows the releases ``before``."""
    return limits if before is None else tuple(LimitAfter(limit, before) for limit in limits)


def _by_class(problem: Problem) -> bool:
    """Whether a model of each class against the rest is trained: a loss of one score, and several
    classes.
    """
    return problem.outputs > 1 and problem.loss.argument in ("margin", "residual")


def check_noise(algorithm: Algorithm) -> None:
    """Raise ``InputError`` for a ``noise_multiplier`` whose squares leave the numbers that prices
    are formed in.
    """
    least, most = NOISE
    multiplier = algorithm.noise_multiplier
    if not least <= multiplier <= most:
        raise InputError(
            f"Expected noise_multiplier from {least:g} to {most:g}, got "
            f"noise_multiplier={multiplier:g}; leave it out to have it calibrated, or use a "
            "non-private baseline for none."
        )


def _by_accountant(algorithm: Trainer, limit: Limit, curve_only: bool) -> Limit:
    """The limit itself; a target that leaves the accountant open takes the one that the algorithm
    stands for.

    An adaptive run, or one that is chosen after other releases, keeps below the Rényi curve of its
    plan and nothing else (``curve_only``), so only that curve may be converted.
    """
    wanted = "rdp" if curve_only else algorithm.accountant
    if wanted is None or not isinstance(limit, Target) or limit.accountant == wanted:
        return limit
    if limit.accountant != "auto":
        if not curve_only:
            return limit
        kind = "adaptive" if algorithm.adaptive else "a training after estimated bounds with"
        raise InputError(
            f"Expected accountant auto or rdp for {kind} {algorithm.name!r}, got "
            f"accountant={limit.accountant!r}: its releases are not known beforehand; use "
            "accountant='auto'."
        )
    return replace(limit, accountant=wanted)


def replan(planned: Planned, problem: Problem, keep_noise: bool = False) -> Planned:
    """``planned`` on the ``problem`` that is known when the releases ``planned.before`` are made;
    no record is read.

    The training that was reserved is a cap on its price at every order (``PriceCap``). Its noise
    stays where it meets that exactly (with ``keep_noise``, where a user gave it: meets it at all),
    else it is calibrated anew to the cap; ``events``, what was charged, stay. Raises ``InputError``
    where the algorithm cannot be used on ``problem``.
    """
    check_assumptions(planned.algorithm, problem)
    reserved = planned_events(planned.algorithm, planned.problem, planned.noise)
    caps: list[Limit] = [PriceCap(reserved)]
    for room in planned.limits:
        if isinstance(room, Room) and room.order is None:  # a ledger that counts mu^2 reserved that
            caps.append(replace(room, left=room.cost(reserved)))
    algorithm = planned.algorithm
    own = planned_events(algorithm, problem, planned.noise)
    ratio = max(cap.ratio(own) for cap in caps)
    if not (ratio <= 1.0 + SLACK if keep_noise else abs(ratio - 1.0) <= SLACK):
        algorithm = calibrate(algorithm, problem, *caps, noise=planned.noise)
        own = planned_events(algorithm, problem, planned.noise)
    check_limits(own, *caps)
    return replace(planned, algorithm=algorithm, problem=problem, own=own)


# A sixteenth of the records a step: a training takes a third of the time of one on full steps.
RATE = 1.0 / 16.0
# What full steps must have to learn from (n * mu), and how many records a batch then holds.
SIGNAL, ROWS = 7000.0, 2000.0
# How much more noise a mean over a batch may have, and how much more a ledger may be charged.
DEARER = 1.05


def on_batches(full: Trainer, problem: Problem, limits: tuple[Limit, ...], noise: str) -> Trainer:
    """``full``, calibrated to ``limits``, or the same on batches of ``RATE`` where that is as good:
    from public facts alone.

    n * mu >= ``SIGNAL`` and q n >= ``ROWS``; no limit that counts mu^2, in which a batch costs more
    than it saves; and, with its own noise, no more than ``DEARER`` times the noise of a full mean,
    nor that much more at the order of a ledger.
    """
    if not isinstance(full, ScaledGD) or full.sampling_rate < 1.0:
        return full
    if full.signal(problem) < SIGNAL or RATE * problem.n < ROWS or _roughly(full) > DEARER:
        return full
    rooms = [limit.limit if isinstance(limit, LimitAfter) else limit for limit in limits]
    if any(isinstance(room, PriceCap) or _counts_mu(room) for room in rooms):
        return full
    sampled = calibrate(replace(full, sampling_rate=RATE), problem, *limits, noise=noise)
    if sampled.noise_multiplier > DEARER * RATE * full.noise_multiplier:
        return full
    whole, parts = (planned_events(one, problem, noise) for one in (full, sampled))
    return full if any(_dearer(room, whole, parts) for room in rooms) else sampled


def _counts_mu(limit: Limit) -> bool:
    return isinstance(limit, Room) and limit.order is None


def _dearer(limit: Limit, whole: Events, parts: Events) -> bool:
    """Whether a ledger is charged more for ``parts`` by a share that counts."""
    return isinstance(limit, Room) and limit.cost(parts) > DEARER * limit.cost(whole)


def _roughly(full: ScaledGD) -> float:
    """The ratio of noises for many small steps, mu^2 = q^2 T (e^(1/s^2) - 1) (Bu, Dong, Long & Su
    2020, Theorem 5), which spares most searches for noise. It prices nothing.
    """
    share = 1.0 / (RATE * full.noise_multiplier) ** 2
    return sqrt(share / log1p(share))
