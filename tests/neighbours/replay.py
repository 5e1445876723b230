"""One door of the product on two neighbouring sets of files, and what of it may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpcore.errors import DPFlowsError
from tests.neighbours.schemas import write_schema
from tests.neighbours.tape import SLACK, Release, Tape
from tests.neighbours.world import World, Writer

# A door takes the schema file and the files of rows, runs the product, and gives back what leaves,
# as plain values.
Door = Callable[[Path, list[Path]], Any]


@dataclass
class Outcome:
    """What a run released on the way, what left at its end, and whether it was refused."""

    log: list[Release]
    left: Any
    refused: str | None


@dataclass
class Compared:
    """A run and its replay on the neighbour."""

    first: Outcome
    second: Outcome
    charged: bool

    @property
    def ratios(self) -> list[float]:
        """Distance over sensitivity, by release."""
        return [a.ratio(b) for a, b in zip(self.first.log, self.second.log, strict=False)]

    def check(self) -> None:
        """Raise ``AssertionError`` where a value moves by more than was charged, or anything else
        moves at all.
        """
        assert (self.first.refused is None) == (self.second.refused is None), (
            "a refusal depends on one unit"
        )
        assert [r.mechanism for r in self.first.log] == [r.mechanism for r in self.second.log], (
            "mechanisms differ"
        )
        bound = (1.0 + SLACK) if self.charged else 0.0
        assert max(self.ratios, default=0.0) <= bound, (
            f"moved by {max(self.ratios):.4g} of {bound:.4g} sensitivities"
        )
        assert self.first.left == self.second.left, (
            "what left is not a function of what was released"
        )


def chosen(cases: Iterable[tuple[str, ...]], default: Callable[..., bool]) -> list[Any]:
    """Parameters of a test: the cases that ``default`` picks run always, the others are slow."""
    return [pytest.param(*case, marks=() if default(*case) else pytest.mark.slow) for case in cases]


def run(
    door: Door, world: World, write: Writer, schema: dict[str, Any], folder: Path, tape: Tape
) -> Outcome:
    """Write the files of ``world`` and send them through ``door``."""
    folder.mkdir(parents=True)
    paths = write(world.rows, folder)
    source = dict(schema.get("source", {}))
    if source.get("kind", "file") == "file":
        source["path"] = [path.name for path in paths]
    declared = write_schema(schema | {"source": source}, folder)
    refused, left = None, None
    with tape.running():
        try:
            left = door(declared, paths)
        except DPFlowsError as error:
            refused = str(error)
    return Outcome(tape.log, left, refused)


def compare(
    door: Door,
    world: World,
    neighbour: World,
    write: Writer,
    schema: dict[str, Any],
    folder: Path,
    charged: bool = True,
) -> Compared:
    """Record ``door`` on ``world`` and replay it on ``neighbour``; ``charged``: the unit's blocks
    were charged.
    """
    first = run(door, world, write, schema, folder / "first", Tape())
    second = run(door, neighbour, write, schema, folder / "second", Tape(recorded=first.log))
    return Compared(first, second, charged)
