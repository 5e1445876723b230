"""What a fit, or the budget that paid for it and for others, guarantees; and through which fits an
estimator and its clones went: a search is many fits, and its winner was chosen among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dpcore.accounting.limits import Allowance
from dpcore.train import Planned


@dataclass(frozen=True, slots=True)
class Spent:
    """The guarantee of one fit, stated whole; with ``fits`` > 1 of all that one budget has paid
    for.

    Then epsilon is the composition of all ``fits`` at the budget's delta. That is their guarantee
    where their settings were fixed beforehand; where a later fit was chosen by an earlier one's
    result it is ``limit``, the budget's own (epsilon, delta), at which it refuses.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    accountant: str
    conversion: str
    fits: int = 1
    limit: tuple[float, float] | None = None

    def __str__(self) -> str:
        several = ""
        if self.limit is not None:
            several = (
                f" together, for {self.fits} fits that one budget paid; ({self.limit[0]:.6g}, "
                f"{self.limit[1]:g}) however they were chosen"
            )
        return (
            f"({self.epsilon:.6g}, {self.delta:g})-differential privacy for one {self.unit} under "
            f"{self.adjacency} (accountant {self.accountant}, conversion "
            f"{self.conversion}){several}"
        )


def guarantee(planned: Planned, delta: float) -> Spent:
    """The guarantee of the run that is planned."""
    target = planned.target
    accountant = (
        target.accountant_of(planned.events) if target and planned.algorithm.private else "none"
    )
    adjacency, unit = str(planned.problem.adjacency), planned.problem.unit
    return Spent(planned.spent_epsilon, delta, adjacency, unit, accountant, "cks")


def together(own: Spent, budget: Allowance | None) -> Spent:
    """``own``, or what ``budget`` has paid by now where it paid for more fits than this one."""
    if budget is None or len(budget.history) < 2:
        return own
    return replace(
        own,
        epsilon=budget.spent_epsilon,
        delta=budget.delta,
        adjacency=str(budget.adjacency),
        accountant="rdp",
        conversion=budget.conversion,
        fits=len(budget.history),
        limit=(budget.epsilon, budget.delta),
    )


@dataclass(eq=False)
class Lineage:
    """Fits of an estimator and of all clones of it, one by one; clones share this object, like a
    budget.

    ``fits``: (member, the budget that paid or None). ``scored``: members that were asked for
    predictions. ``sent``: a copy was pickled before it was fitted, so that fits in other processes
    are not counted here.
    """

    fits: list[tuple[object, Allowance | None]] = field(default_factory=list)
    scored: list[object] = field(default_factory=list)
    sent: bool = False

    def reasons(self, member: object, budget: Allowance | None) -> tuple[str, ...]:
        """Why the model of ``member``, which ``budget`` paid for, must not be released; empty where
        it may.
        """
        found = []
        unpaid = sum(
            who is not member and (payer is None or payer is not budget) for who, payer in self.fits
        )
        if unpaid:
            found.append(
                f"{unpaid} other fit{'s' * (unpaid > 1)} of clones of this estimator (a search, a "
                "cross-validation) were not paid by its budget; give budget=Allowance(...), which "
                "clones share"
            )
        if self.sent:
            found.append(
                "copies of this estimator went to other processes, where fits are not counted; "
                "search with n_jobs=1 or a threading backend"
            )
        return tuple(found)

    def chosen(self, member: object) -> tuple[str, ...]:
        """The reason against a fit that begins when others of the family were fitted and scored."""
        if all(who is member for who in self.scored):
            return ()
        return (
            "other fits of clones of this estimator were scored before, so its setting may have "
            "been chosen by exact numbers on records, which no mechanism paid for; choose it "
            "beforehand or by rows that are public, and construct the estimator anew",
        )

    def note_scored(self, member: object) -> None:
        """``member`` was asked for predictions."""
        if not any(who is member for who in self.scored):
            self.scored.append(member)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lineage:
        return self

    def __reduce__(self) -> Any:
        self.sent = True
        return _arrived, ()


def _arrived() -> Lineage:
    return Lineage(sent=True)
