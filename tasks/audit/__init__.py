"""The audit of a run record: a list of findings, each with what, why and the fix; a blocked run
must not leave.

All rules on one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from tasks.audit import rules_content, rules_derived, rules_model, rules_record, rules_run
from tasks.audit.findings import RETRAIN, Audit, Finding, Severity, block
from tasks.audit.subject import LedgerFacts, Subject

WORST_FIRST = list(Severity)
OWN_RULES = (
    *rules_run.RULES,
    *rules_derived.RULES,
    *rules_derived.TEXT_RULES,
    *rules_content.RULES,
    *rules_derived.NAME_RULES,
    *rules_model.RULES,
)


def audit(run: Subject, more: Sequence[Finding] = ()) -> Audit:
    """Check ``run``; nothing is changed, and no record of the data is read. ``more`` are findings
    made elsewhere.

    A record of another tool is checked by its names and values, a run of this one also against
    statement and ledger.
    """
    started = perf_counter()
    rules = (*rules_record.RULES, *(OWN_RULES if run.own else ()))
    found = [*more, *(finding for rule in rules for finding in _findings(rule, run))]
    unique = list({(item.code, item.subject): item for item in found}.values())
    unique.sort(key=lambda item: WORST_FIRST.index(item.severity))
    checks = tuple((rule.__doc__ or rule.__name__).strip().splitlines()[0] for rule in rules)
    return Audit(run.run_id, tuple(unique), checks, perf_counter() - started)


def _findings(rule: Callable[[Subject], Iterator[Finding]], run: Subject) -> Iterator[Finding]:
    """What a rule finds; a file that breaks its reader is a finding too, for the others must still
    be looked at.
    """
    try:
        yield from rule(run)
    except Exception as error:  # whatever a damaged or hostile file does to a parser
        what = f"something cannot be read ({type(error).__name__}: {error})"[:200]
        yield block("unreadable", rule.__name__, what, "It is not what a training writes", RETRAIN)


__all__ = ["Audit", "Finding", "LedgerFacts", "Severity", "Subject", "audit"]
