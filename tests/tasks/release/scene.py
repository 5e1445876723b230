"""What tamperings are made on: a released run, another one, and the places that an insider may
write to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.audit.subject import local
from tests.tasks.release.runs import World


@dataclass(frozen=True)
class Scene:
    """A released run, another one, and everything that an insider without the key may write to."""

    world: World
    name: str
    run: str
    other: str
    bundle: Path
    other_bundle: Path
    attacker: Path  # a key of their own

    @property
    def database(self) -> Path:
        return self.world.home.root / "mlflow.db"

    @property
    def ledger(self) -> Path:
        return self.world.folder / "ledger.db"

    def files_of(self, run: str) -> Path:
        found = local(self.world.client.get_run(run).info.artifact_uri)
        assert found is not None
        return found

    def model_of(self, run: str) -> Path:
        uri = self.world.client.get_run(run).data.tags["dpflows.model"]
        found = local(
            self.world.client.get_logged_model(uri.removeprefix("models:/")).artifact_location
        )
        assert found is not None
        return found
