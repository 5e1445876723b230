"""The privacy statement of one run: everything that the guarantee depends on, as plain data with a
versioned schema.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dpcore.accounting.curves import ORDERS, best_order, epsilon_of
from dpcore.noise import FORMS
from dpcore.problem import Adjacency, Problem
from tasks.home import CONF
from tasks.record import sources

if TYPE_CHECKING:
    from dpcore.train import Planned


def _plain(value: Any) -> Any:
    """JSON's true is no number, though it compares equal to 1."""
    if isinstance(value, bool):
        raise ValueError("expected the number 1, got a truth value")
    return value


First = Annotated[Literal[1], BeforeValidator(_plain)]

STATEMENT_VERSION = 1
RULES = "rules"  # among the versions
PACKAGES = (
    "dpflows",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "dp-accounting",
    "randomgen",
    "prefect",
    "mlflow",
)

# Limits that every statement names, unless what was asked for covers one of them.
KNOWN_LIMITS = {
    "numbers": "The guarantee covers the released numbers; run time, memory use and the fact that "
    "a run failed are not covered.",
    "unit": "It holds for one unit as named: a person with several records is covered once for "
    "each.",
    "declared": "Bounds, levels, label values and the count n are taken as public because they are "
    "declared, not read.",
    "choice": "The hyper-parameters are taken as public; choosing them by looking at results on "
    "the same records is not covered.",
}

WARM_START = (
    "The training began with the weights of an earlier, charged run. The epsilon here is that of "
    "this run given those weights; both together are covered by the guarantee of the ledger."
)


# What NIST SP 800-226 asks of a guarantee beside the numbers: who is trusted, how runs add up, what
# choices cost.
TRUST_MODEL = (
    "Central: the operator who trains sees the records and every internal number; the guarantee is "
    "against everybody who sees what is released, whatever else they know and with any computing "
    "power."
)
COMPOSITION = (
    "The epsilon here is of this run alone. Runs on the same records add up; the ledger entry "
    "holds the block totals after this run and the data set's own limit."
)
TUNING = (
    "Choosing this run among others on the same records costs what all of them cost: a release "
    "states that sum as its own epsilon."
)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Guarantee(Strict):
    """What is promised: neighbours under ``adjacency`` give outputs that are (epsilon,
    delta)-indistinguishable.
    """

    unit: str
    adjacency: Adjacency
    epsilon: float = Field(description="epsilon spent by the whole plan, rounded up nowhere")
    delta: float
    target_epsilon: float = Field(
        description="epsilon that was asked for; the plan was calibrated to it"
    )
    accountant: str
    conversion: str


class Renyi(Strict):
    """The Rényi curve of the whole plan; null stands for infinity."""

    orders: list[float]
    curve: list[float | None]
    best_order: float
    epsilon: float = Field(
        description="conversion of this curve at delta, whatever accountant the guarantee uses"
    )


class DataFacts(Strict):
    name: str
    public: bool
    public_n: int
    n_kind: Literal["exact", "declared nominal count"]
    dimension: int
    norm_bound: float
    bounds: str = Field(description="where column bounds, levels and label values come from")


class LedgerEntry(Strict):
    dataset: str
    entry: str
    head: str = Field(
        description="hash of the reserving record: the ledger's chain must contain it"
    )
    blocks: list[str]
    spent_units: dict[str, int] = Field(description="units spent in each block, this run included")
    order: float | None = Field(
        default=None, description="Rényi order of the budget; null: no limit, or not noted"
    )
    limit_units: int | None = Field(
        default=None, description="most units of a block; null: no limit, or not noted"
    )


class Training(Strict):
    algorithm: str
    parameters: dict[str, Any]
    preset: str | None
    reason: str
    loss: str
    l1: float
    l2: float

    @classmethod
    def of(cls, planned: Planned, problem: Problem) -> Training:
        """What is planned, with the loss and penalties of ``problem``."""
        return cls(
            algorithm=planned.name,
            parameters=planned.parameters,
            preset=planned.preset,
            reason=planned.reason,
            loss=problem.loss.name,
            l1=problem.l1,
            l2=problem.l2,
        )


class Statement(Strict):
    """The whole statement; ``schema_version`` changes with its fields, and older versions stay
    readable.
    """

    schema_version: First = 1
    created: str
    guarantee: Guarantee
    renyi: Renyi
    mechanisms: dict[str, Any] = Field(
        description="the releases in order, from which the price can be computed again"
    )
    mechanisms_sha256: str
    samplers: list[str]
    sensitivity: str
    training: Training
    data: DataFacts
    released: list[str]
    not_released: list[str]
    noise: str
    noise_source: str
    ledger: LedgerEntry
    config_sha256: str
    weights_sha256: str
    releasable: bool
    reasons: list[str] = Field(description="why the run must not be released; empty when it may")
    limits: list[str]
    trust_model: str = TRUST_MODEL
    composition: str = COMPOSITION
    tuning: str = TUNING
    versions: dict[str, str]
    lock_sha256: str | None
    git_commit: str | None

    def to_json(self) -> str:
        """Readable JSON with sorted keys; the ledger keeps the SHA-256 of exactly this text."""
        return json.dumps(
            self.model_dump(mode="json"),
            indent=1,
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
        )


def guarantee(planned: Planned) -> Guarantee:
    """The promise of a planned run at the delta of its target: the price of its whole plan."""
    target = planned.target
    if target is None:
        raise ValueError("a private run has a target")
    return Guarantee(
        unit=planned.events.unit,
        adjacency=planned.problem.adjacency,
        epsilon=planned.spent_epsilon,
        delta=target.delta,
        target_epsilon=target.epsilon,
        accountant=target.accountant_of(planned.events),
        conversion=target.conversion,
    )


def note_of(statement: Statement) -> str:
    """What MLflow's page of a run says on top: the guarantee in one sentence."""
    promise = statement.guarantee
    return (
        f"Epsilon {promise.epsilon:.6g} at delta {promise.delta:g} for one {promise.unit}, "
        f"{promise.adjacency}, by {promise.accountant} ({promise.conversion}). Metrics named "
        "internal are exact numbers on records."
    )


def note_with_report(statement: Statement, place: str) -> str:
    """The same with a link to the report among the artifacts of the run at ``place``."""
    return f"{note_of(statement)} [Report, internal]({place}/artifacts/report/report.html)"


def is_note(text: str, statement: Statement, run_id: str) -> bool:
    """Whether a description is the one that a training writes; earlier versions wrote no link."""
    link = re.escape(note_with_report(statement, f"#/experiments/ID/runs/{run_id}"))
    linked = link.replace("experiments/ID/", "experiments/[0-9]{1,20}/")
    return text == note_of(statement) or re.fullmatch(linked, text) is not None


def renyi(planned: Planned) -> Renyi:
    """The curve of the whole plan with its best order at the target's delta."""
    target = planned.target
    if target is None:
        raise ValueError("a private run has a target")
    curve = planned.events.price()
    return Renyi(
        orders=[float(order) for order in ORDERS],
        curve=[float(value) if isfinite(value) else None for value in curve],
        best_order=float(best_order(curve, target.delta, target.conversion)),
        epsilon=float(epsilon_of(curve, target.delta, target.conversion)),
    )


def unreleasable(planned: Planned, *, bounds: tuple[bool, str], fixed_noise: bool) -> list[str]:
    """The reasons why a run must never be released; an empty list where there is none."""
    reasons = []
    target = planned.target
    if target is not None and target.delta >= 1 / planned.problem.n:
        reasons.append(f"delta={target.delta:g} is not below 1/n={1 / planned.problem.n:.3g}")
    if fixed_noise:
        reasons.append(
            "the noise came from a fixed seed (unsafe_fixed_noise_seed), so it can be computed and "
            "removed"
        )
    if not bounds[0]:
        reasons.append(bounds[1])
    return reasons


def sampler_names(mechanisms: Mapping[str, Any]) -> list[str]:
    """Kinds of samplers in stored events, in the order in which they appear; ``full_batch`` where
    there is none.
    """
    found = [str(item["kind"]) for item in walk(mechanisms, "sampler")]
    return list(dict.fromkeys(found)) or ["full_batch"]


def walk(value: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """All mappings stored under ``key``, at any depth."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == key and isinstance(inner, Mapping):
                yield inner
            yield from walk(inner, key)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from walk(inner, key)


def noise_form(mechanisms: Mapping[str, Any]) -> str:
    """Which form of floating-point protection the noise had: ``discrete`` if every mechanism asks
    for it.
    """
    grids = [item.get("rounding", 0) for item in _tables(mechanisms)]
    form = "discrete" if grids and all(grids) else "rounded"
    return f"{form}: {FORMS[form]}"


def _tables(value: Any) -> Iterator[Mapping[str, Any]]:
    """What draws noise: without the batch around it, and one by one where trials hold several."""
    for item in value["mechanisms"]:
        if "trials" in item:
            for trial in item["trials"]:
                yield from _tables(trial)
        else:
            yield item["mechanism"] if isinstance(item.get("mechanism"), Mapping) else item


NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "added or removed",
    Adjacency.REPLACE_ONE: "replaced",
    Adjacency.REPLACE_LABELS: "given other labels",
}


def sensitivity_argument(planned: Planned, arguments: Sequence[str] = ()) -> str:
    """Which bound neighbours obey, and why: the sentence that the algorithm states, with its
    source.

    ``arguments`` are those of releases beside the algorithm's.
    """
    unit = planned.events.unit
    who = {"user": "user, all records together,", "session_labels": "session"}.get(unit, unit)
    stored = (
        f"With one {who} {NEIGHBOURS[planned.problem.adjacency]} a release moves by at most its "
        "stored sensitivity."
    )
    algorithm: Any = planned.algorithm
    parts = [stored]
    if unit == "user":
        parts.append(
            "A user's contribution is the mean over their first records: what holds for a record "
            "holds for it."
        )
    return " ".join([*parts, *arguments, algorithm.argument])


def software() -> dict[str, str]:
    """Versions of the packages that computed the run, and the rules that it was planned by."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "source tree" if package == "dpflows" else "absent"
    return found | {RULES: sources.rules()}


def lock_hash() -> str | None:
    """SHA-256 of the constraints file that the package carries."""
    lock = CONF / "constraints.txt"
    return sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None


def git_commit() -> str | None:
    """The commit of the source tree that runs, with ``+changes`` where files differ; None outside a
    repository.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return (
            f"{commit}+changes"
            if _git(root, "status", "--porcelain", "--untracked-files=no")
            else commit
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
