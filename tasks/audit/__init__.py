"""The audit of a run record: a list of findings, each with what, why and the fix; a blocked run must not leave."""

from tasks.audit.audit import audit
from tasks.audit.findings import Audit, Finding, Severity
from tasks.audit.subject import LedgerFacts, Subject

__all__ = ["Audit", "Finding", "LedgerFacts", "Severity", "Subject", "audit"]
