"""``dpflows verify``: what an outsider can check about a bundle; no pandas, MLflow or Prefect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpcore.errors import InputError, VerificationFailed
from tasks.release.bundle import open_bundle
from tasks.release.keys import trusted_keys
from tasks.release.verify import Verified, check_graph, verify_files


def verify_bundle(
    bundle: Path, key: str | None, expect: str | None, as_json: bool, any_signer: bool = False
) -> None:
    """Check a bundle and say in words what was found; raises ``VerificationFailed`` for any
    problem.
    """
    if key is not None and any_signer:
        raise InputError("Expected --key or --any-signer, got both; leave one out.")
    trusted = None if any_signer or key is not None else listed()
    opened = open_bundle(bundle)
    report = verify_files(opened, key, expect, trusted)
    check_graph(opened, report)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n" if as_json else words(report))
    if not report.ok:
        raise VerificationFailed(
            f"The bundle failed: {', '.join(sorted(report.names))}; do not use it."
        )


def listed() -> tuple[str, ...]:
    """The keys that are believed here."""
    from tasks.release.gate import load_policy

    return trusted_keys(load_policy().trusted_keys)


def words(report: Verified) -> str:
    """The report for people."""
    lines = [
        f"Bundle {report.name}@{report.version}"
        if report.name
        else "Bundle (its manifest was not read)"
    ]
    if report.ok:
        lines.append(f"  epsilon {report.epsilon:.6g} at delta {report.delta:g}")
        lines.append(
            f"  signed by {report.signer}"
            + ("" if report.known_signer else " (signer unknown: any was taken)")
        )
    lines += [f"  ok      {text}" for text in report.verified]
    lines += [f"  FAILED  {name}: {what}" for name, what in report.problems]
    lines.append("A bundle cannot show:")
    lines += [f"  -       {text}" for text in report.not_shown]
    return "\n".join(lines) + "\n"
