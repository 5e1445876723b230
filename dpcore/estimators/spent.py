"""What a fit, or the budget that paid for it and for others, guarantees."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
                f"{self.limit[1]:g}) "
                "however they were chosen"
            )
        return (
            f"({self.epsilon:.6g}, {self.delta:g})-differential privacy for one {self.unit} under "
            f"{self.adjacency} "
            f"(accountant {self.accountant}, conversion {self.conversion}){several}"
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
