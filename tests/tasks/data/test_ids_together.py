"""Ids of a whole column are looked at together: they are those that the identity rule gives one by
one, or none.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpcore.identity import NO_VALUE, canonical, names_nobody
from tasks.data import units
from tests.tasks.readers.test_readers import schema_of

WORDS = (
    *(
        "7",
        "7.0",
        " 7 ",
        "07",
        "07.0",
        "0.0",
        "0",
        "-0.0",
        "-0",
        "-7.0",
        "7.00",
        "1e3.0",
        "a.0",
        "x1.0",
        ".0",
        "1.0.0",
    ),
    *(
        "p1",
        "p1 ",
        "\tq",
        "a b",
        " a b",
        "Zo\u00eb",
        "zoe\u0308",
        "\u00a0z",
        "\ufeffz",
        "\u0663.0",
        "1.5",
        "+7.0",
        "p\x1c",
    ),
    *("p\x1c", "true", "True", "FALSE", "?", "nan", "NaN", "", " ", "None", "n", "1,5", "1,0"),
)


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("decimal", [".", ","])
def test_ids_of_a_column_are_those_of_its_cells(strip: bool, decimal: str) -> None:
    schema = schema_of(text={"strip": strip, "decimal": decimal, "separator": ";"}, missing=["?"])
    rng, sure = np.random.default_rng(0), 0
    none = NO_VALUE | {"?"}
    for _ in range(700):
        cells = [
            *rng.choice(WORDS, rng.integers(1, 4)),
            *(f"p{k}" for k in range(int(rng.integers(0, 3)))),
        ]
        series = pd.Series(cells, dtype=pd.StringDtype("pyarrow", na_value=np.nan))
        if rng.random() < 0.3:  # a piece of a longer array, as batches are
            series = pd.concat([series, series], ignore_index=True).iloc[len(cells) :]
        found = units._plain(schema, series, none)
        if found is None:
            continue
        sure += 1
        expected = [canonical(cell, strip, decimal) for cell in cells]
        assert list(found) == expected and not any(names_nobody(text, {"?"}) for text in expected)
    assert sure > 100


@pytest.mark.parametrize(
    "cells", [["p1", "p2 "], ["7.0", "8"], ["Zo\u00eb", "a b"], ["00af", "nanny"], ["\tx", "y\r"]]
)
def test_common_ids_are_looked_at_together(cells: list[str]) -> None:
    series = pd.Series(cells, dtype=pd.StringDtype("pyarrow", na_value=np.nan))
    found = units._plain(schema_of(), series, NO_VALUE)
    assert found is not None and list(found) == [canonical(cell) for cell in cells]
