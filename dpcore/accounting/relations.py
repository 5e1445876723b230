"""The price of a mechanism under another relation than the one it was built for.

| built for      | asked for      | price                                                                        |
|----------------|----------------|------------------------------------------------------------------------------|
| add/remove     | replace-one    | a replacement is a removal and an addition: twice the sensitivity, the       |
|                |                | two-sided form of a selection; on a Poisson batch Lemma 2.3's form over      |
|                |                | three points, never Lemma 2.4                                                |
| replace-one    | replace-labels | the same: other labels are another record                                    |
| add/remove     | replace-labels | by way of replace-one                                                        |
| replace-one    | add/remove     | refused: n, and with it every divisor and rate, would change                 |
| replace-labels | any other      | refused: nothing is proved about the documents                               |
"""

from __future__ import annotations

from dpcore.errors import PriceUnknown
from dpcore.mechanisms.base import Mechanism
from dpcore.mechanisms.repeated import Composition, Repeated
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson, Sampled


def restate(mechanism: Mechanism, own: Adjacency | str, wanted: Adjacency | str) -> Mechanism:
    """The mechanism whose price, under ``wanted``, bounds ``mechanism`` that was built under ``own``.

    For pricing, not for release: the noise stays that of the original. Raises ``PriceUnknown`` where no theorem
    gives the price, with the way out.
    """
    own, wanted = Adjacency(own), Adjacency(wanted)
    if own is wanted:
        return mechanism
    if own is Adjacency.REPLACE_LABELS:
        raise PriceUnknown(
            f"A run proved for replace_labels protects labels only and has no price under {wanted!s}: "
            "use an algorithm that clips whole records, or a data set with a replace_labels budget."
        )
    if wanted is Adjacency.ADD_REMOVE:
        raise PriceUnknown(
            "A run proved for replace_one treats the number of records as public and has no price under add_remove: "
            "set adjacency=add_remove in the run, or create the budget with adjacency=replace_one."
        )
    return mechanism if own is Adjacency.REPLACE_ONE else _replaced(mechanism)


def _replaced(mechanism: Mechanism) -> Mechanism:
    """Add/remove to replace-one.

    With D the add/remove bound of any function f, f(S + u) and f(S + v) lie within D of f(S), so within 2D of each
    other: on a Poisson batch the contributions lie in a ball of radius D = half the new sensitivity.
    """
    if isinstance(mechanism, Sampled):
        if not isinstance(mechanism.sampler, Poisson):
            raise PriceUnknown(f"No price under replace_one for {mechanism!r}, which was built for add_remove.")
        inner = mechanism.mechanism.replaced()
        return Sampled(inner, mechanism.sampler, Adjacency.REPLACE_ONE, "ball")
    if isinstance(mechanism, Composition | Repeated):
        return mechanism.mapped(_replaced)
    return mechanism.replaced()
