"""What one person, session or record can move in any released value is what was charged, from raw
files on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.neighbours import schemas
from tests.neighbours.doors import training_door
from tests.neighbours.replay import Compared, compare
from tests.neighbours.spellings import PEOPLE, WHOLE, number, spelled
from tests.neighbours.world import (
    Row,
    World,
    Writer,
    typed,
    write_arff,
    write_csv,
    write_letor,
    write_parquet,
)

TEXTS: dict[str, Writer] = {"csv": write_csv, "parquet": write_parquet}
NUMBERS: dict[str, Writer] = {
    "csv": write_csv,
    "arff": write_arff,
    **{
        f"parquet:{kinds}": typed(kinds)
        for kinds in ("int+float", "float32+text", "decimal+int", "text+float")
    },
}
some = settings(
    max_examples=8,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.generate,),
)


@st.composite
def worlds(
    draw: st.DrawFn, names: tuple[str, ...], spell: Any, unit: str, documents: bool = False
) -> World:
    """Some people, each with one to six rows wherever in two files, and each row with a spelling of
    its own.
    """
    people = draw(st.lists(st.sampled_from(names), min_size=4, max_size=6, unique=True))
    order = [
        k for k in range(len(people)) for _ in range(draw(st.integers(2 if documents else 1, 6)))
    ]
    rows = []
    for place, who in enumerate(draw(st.permutations(order))):
        x = (draw(st.floats(0.5, 1.0)), draw(st.floats(0.0, 1.0)))
        y = draw(st.integers(0, 2)) if documents else place % 2
        rows.append(Row(who, draw(spell(people[who])), x, y, part=draw(st.integers(0, 1))))
    return World(tuple(rows), unit)


def checked(
    door: Any, world: World, neighbour: World, write: Writer, schema: dict[str, Any]
) -> Compared:
    with tempfile.TemporaryDirectory() as folder:
        found = compare(door, world, neighbour, write, schema, Path(folder))
    found.check()
    return found


@pytest.mark.parametrize("reader", TEXTS)
@given(data=st.data())
@some
def test_a_user_however_spelled_moves_a_training_by_what_one_user_pays(
    reader: str, data: Any
) -> None:
    world = data.draw(worlds(PEOPLE, spelled, "user"))
    found = checked(training_door(), world, world.without(0), TEXTS[reader], schemas.table("user"))
    assert found.first.refused is None and len(found.ratios) == 2


@pytest.mark.parametrize("reader", NUMBERS)
@given(data=st.data())
@some
def test_a_user_with_ids_of_two_types_is_one_user(reader: str, data: Any) -> None:
    world = data.draw(worlds(WHOLE, number, "user"))
    schema = (
        schemas.table("user", source={"format": "arff"})
        if reader == "arff"
        else schemas.table("user")
    )
    found = checked(training_door(), world, world.without(0), NUMBERS[reader], schema)
    assert found.first.refused is None and len(found.ratios) == 2


@pytest.mark.parametrize("form", ["letor", "svmlight"])
@given(data=st.data())
@some
def test_a_session_however_spelled_moves_a_training_by_what_one_session_pays(
    form: str, data: Any
) -> None:
    world = data.draw(worlds(WHOLE, number, "session", documents=True))
    door = training_door(objective={"loss": "listnet"}, privacy={"adjacency": "add_remove"})
    found = checked(door, world, world.without(0), write_letor, schemas.sessions(form))
    assert found.first.refused is None and len(found.ratios) == 2
