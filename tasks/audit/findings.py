"""What an audit says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

VERSION = 1
RETRAIN = "Do not release this run; find out who changed it, and train again"


class Severity(StrEnum):
    BLOCK = "block"  # the run must not be released
    WARN = "warn"  # a person should look; no obstacle by itself
    NOTE = "note"  # said for completeness


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. ``code`` is stable and names the rule, ``subject`` the field or
    file it is about.
    """

    code: str
    severity: Severity
    subject: str
    what: str
    why: str
    fix: str

    def line(self) -> str:
        return (
            f"{self.severity}: {self.code} ({self.subject}): {self.what}. {self.why}. {self.fix}."
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings about one run, the worst first."""

    run_id: str
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    seconds: float = 0.0

    @property
    def blocked(self) -> bool:
        return any(finding.severity is Severity.BLOCK for finding in self.findings)

    @property
    def codes(self) -> set[str]:
        """Codes of the findings that block."""
        return {finding.code for finding in self.findings if finding.severity is Severity.BLOCK}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "schema_version": VERSION,
            "run_id": self.run_id,
            "releasable": not self.blocked,
            "findings": [asdict(finding) for finding in self.findings],
            "checks": list(self.checks),
            "seconds": self.seconds,
        }


def block(code: str, subject: str, what: str, why: str, fix: str) -> Finding:
    return Finding(code, Severity.BLOCK, subject, what, why, fix)


def warn(code: str, subject: str, what: str, why: str, fix: str) -> Finding:
    return Finding(code, Severity.WARN, subject, what, why, fix)


def note(code: str, subject: str, what: str, why: str, fix: str) -> Finding:
    return Finding(code, Severity.NOTE, subject, what, why, fix)
