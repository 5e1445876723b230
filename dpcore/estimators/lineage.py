"""Which fits an estimator and its clones went through: a search is many fits, and its winner was
chosen among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpcore.accounting.limits import Allowance


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
                f"cross-validation) "
                "were not paid by its budget; give budget=Allowance(...), which clones share"
            )
        if self.sent:
            found.append(
                "copies of this estimator went to other processes, where fits are not counted; "
                "search with n_jobs=1 "
                "or a threading backend"
            )
        return tuple(found)

    def chosen(self, member: object) -> tuple[str, ...]:
        """The reason against a fit that begins when others of the family were fitted and scored."""
        if all(who is member for who in self.scored):
            return ()
        return (
            "other fits of clones of this estimator were scored before, so its setting may have "
            "been chosen by exact "
            "numbers on records, which no mechanism paid for; choose it beforehand or by rows that "
            "are public, and "
            "construct the estimator anew",
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
