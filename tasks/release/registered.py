"""Rules for a registered model: its aliases point where the gate put them, at a bundle that
verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpcore.errors import InputError, VerificationFailed
from tasks.audit.findings import Finding, block
from tasks.audit.subject import Subject
from tasks.release import front, registry

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tasks.release.front import Released


AGAIN = "Run `dpflows release` again for the version that shall be in front"


def released(
    client: MlflowClient, folder: Path, name: str, trusted: Sequence[str] | None
) -> tuple[Released, list[Finding]]:
    """The version of ``name`` in front by its signed bundle, and what MLflow shows otherwise.

    Raises ``InputError`` where no version was released, ``VerificationFailed`` where no bundle
    proves one.
    """
    _, found = front.in_front(client, folder, name, trusted)
    if found is None:
        raise InputError(
            f"Expected a model with a released version, got {name!r}; release a run to it first."
        )
    return found, list(_shown(client, name, found))


def _shown(client: MlflowClient, name: str, found: Released) -> Sequence[Finding]:
    """Differences between MLflow's registry and the signed bundle."""
    where, problems = f"{name}/{found.version}", []
    alias, shown = (
        registry.aliases(client, name).get(registry.RELEASED),
        registry.in_front(client, name),
    )
    if alias != found.version or shown != found.version:
        problems.append(
            block(
                "alias_moved",
                f"{name}@{registry.RELEASED}",
                f"the alias points at version {alias or 'none'}, the gate put version "
                f"{found.version} in front",
                "Who loads the alias gets a model that did not pass the gate",
                AGAIN,
            )
        )
    version = registry.find_version(client, name, found.version)
    if version is None:
        return [
            *problems,
            block(
                "version_missing",
                where,
                "MLflow does not hold the version",
                "It was deleted",
                AGAIN,
            ),
        ]
    run = found.manifest.run_id
    if version.run_id != run or version.tags.get(registry.RUN_TAG) != run:
        problems.append(
            block(
                "version_run",
                where,
                "version and bundle are of other runs",
                "It was changed",
                AGAIN,
            )
        )
    if version.tags.get("epsilon") != f"{found.manifest.price.epsilon:.6g}":
        problems.append(
            block(
                "version_epsilon",
                where,
                "the version shows another epsilon than its bundle",
                "It was changed",
                AGAIN,
            )
        )
    return problems


def same_run(found: Released, run: Subject) -> list[Finding]:
    """The run as it is now is the one that was released."""
    other = found.differs(run)
    if not other:
        return []
    what = f"the bundle holds another {other} than the run"
    return [
        block(
            "bundle_of_another_run",
            str(found.folder),
            what,
            "It was changed after the release",
            AGAIN,
        )
    ]


def same_chain(found: Released, ledger: str) -> list[Finding]:
    """The ledger goes on from the head that the bundle states."""
    from tasks.ledger import Ledger
    from tasks.release.trials import require_chain

    with Ledger(ledger) as opened:
        try:
            require_chain(opened, f"{found.manifest.name}@{found.version}", found.manifest.ledger)
        except VerificationFailed as error:
            fix = "Restore the newest copy of the ledger"
            return [
                block(
                    "ledger_rolled_back",
                    "ledger",
                    str(error).rstrip("."),
                    "Budget was given back",
                    fix,
                )
            ]
    return []
