"""Rules for a registered model: its aliases point where the gate put them, at a bundle that verifies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpcore.errors import InputError
from tasks.audit.findings import Finding, block
from tasks.release import registry
from tasks.release.bundle import read_bundle
from tasks.release.verify import verify_files

if TYPE_CHECKING:
    from mlflow import MlflowClient

AGAIN = "Run `dpflows release` again for the version that shall be in front"


def released(client: MlflowClient, name: str) -> tuple[str, list[Finding]]:
    """The run of the version called released, and what is wrong with alias, version and bundle.

    Raises ``InputError`` where no version was released.
    """
    alias, front = registry.aliases(client, name).get(registry.RELEASED), registry.in_front(client, name)
    if front is None:
        raise InputError(f"Expected a model with a released version, got {name!r}; release a run to it first.")
    found: list[Finding] = []
    if alias != front:
        found.append(
            block(
                "alias_moved",
                f"{name}@{registry.RELEASED}",
                f"the alias points at version {alias or 'none'}, the gate put version {front} in front",
                "Who loads the alias gets a model that did not pass the gate",
                AGAIN,
            )
        )
    version = client.get_model_version(name, front)
    run = version.tags[registry.RUN_TAG]
    if version.run_id != run:
        found.append(
            block("version_run", f"{name}/{front}", "version and tag name other runs", "It was changed", AGAIN)
        )
    if version.source != client.get_run(run).data.tags.get("dpflows.model"):
        found.append(
            block(
                "version_source",
                f"{name}/{front}",
                "the version holds another model than its run",
                "It was changed",
                AGAIN,
            )
        )
    return run, [*found, *_bundle(name, front, version.tags)]


def _bundle(name: str, front: str, tags: dict[str, str]) -> list[Finding]:
    folder = Path(tags.get(registry.DONE_TAG, ""))
    try:
        report = verify_files(read_bundle(folder), expect=f"{name}@{front}")
    except InputError as error:
        return [block("bundle_missing", str(folder), "the bundle cannot be read", str(error).rstrip("."), AGAIN)]
    problems = [
        block(f"bundle_{check}", str(folder), what, "The bundle is not what was signed", AGAIN)
        for check, what in report.problems
    ]
    if report.ok and tags.get("epsilon") != f"{report.epsilon:.6g}":
        problems.append(
            block(
                "version_epsilon",
                f"{name}/{front}",
                "the version shows another epsilon than its bundle",
                "It was changed",
                AGAIN,
            )
        )
    return problems
