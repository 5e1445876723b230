"""The page: self-contained, sortable, honest about failures and privacy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks.compare.charge import charge_words
from tasks.compare.figures import write_figures
from tasks.compare.page import write_page
from tests.tasks.compare.cells import cell, failed, grid


def page_of(records: list[dict], facts: dict, folder: Path) -> str:
    files = write_figures(records, folder, facts)
    return write_page(records, facts, files, folder / "index.html").read_text(encoding="utf-8")


def test_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    records = grid(["auto", "dp_sgd"], [0.1, 1.0])
    text = page_of(
        records,
        {"metrics": ["accuracy"], "public": {"adult": True}, "machine": {"cores": 2}},
        tmp_path,
    )
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "url(" not in text
    assert text.count("<img") == len(re.findall(r'<img [^>]*alt="[^"]{20,}"', text)) == 1
    assert "public data, cells are free" in text
    assert "internal" not in text.split("</style>")[-1]
    assert len(re.findall("<tr>", text.split("<tbody>")[1].split("</tbody>")[0])) == 6
    assert "Holm" in text
    assert "Nadeau" in text


def test_private_data_are_said_to_be_internal(tmp_path: Path) -> None:
    text = page_of(
        grid(["auto"], [1.0]),
        {"public": {"a": True, "b": False}, "charge": "charged: 3.0"},
        tmp_path,
    )
    assert "they are internal" in text
    assert "Privacy of the data: charged: 3.0." in text


def test_failures_are_shown_and_escaped(tmp_path: Path) -> None:
    records = grid(["<i>auto</i>"], [1.0])
    text = page_of([failed(records[0]), *records[1:]], {}, tmp_path)
    assert "1 of 18 cells failed" in text
    assert "Expected &lt;b&gt; &amp; more" in text
    assert "<i>auto" not in text


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "No cell has run"),
        ([failed(cell("a", 1.0))], "1 of 1 cells failed"),
        ([cell("a", 1.0)], "there is none"),
    ],
    ids=["none", "failed", "single"],
)
def test_awkward_cells(records: list[dict], said: str, tmp_path: Path) -> None:
    assert said in page_of(records, {"metrics": ["objective"]}, tmp_path)


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        ({}, "seed of its own from the operating system, which is kept nowhere", "fixed seed"),
        (
            {"reproducible": True},
            "a fixed seed of its own (reproducible: true)",
            "operating system",
        ),
        (
            {"libraries": {"opacus": "1.6"}},
            "libraries draw from their own generators",
            "fixed seed",
        ),
    ],
)
def test_the_page_says_where_noise_comes_from(
    tmp_path: Path, facts: dict, said: str, unsaid: str
) -> None:
    text = write_page(grid(["dp_sgd"], [1.0]), facts, [], tmp_path / "page.html").read_text()
    assert said in text and unsaid not in text
    assert ("Noise is fixed by the seed" in text) == ("reproducible" in facts)


def test_the_page_compares_with_other_libraries(tmp_path: Path) -> None:
    records = [*grid(["dp_sgd"], [1.0]), *grid(["opacus"], [1.0])]
    text = write_page(records, {}, [], tmp_path / "page.html").read_text()
    assert "Beside other libraries" in text and "times faster" in text
    assert (
        "Beside other libraries"
        not in write_page(grid(["dp_sgd"], [1.0]), {}, [], tmp_path / "p.html").read_text()
    )


def test_two_pairs_are_too_few_for_an_interval(tmp_path: Path) -> None:
    few = write_page(grid(["aa", "b"], [1.0], 1, 2), {}, [], tmp_path / "few.html").read_text()
    enough = write_page(
        grid(["aa", "b"], [1.0], 1, 3), {}, [], tmp_path / "enough.html"
    ).read_text()
    assert few.count("(too few cells for an interval)") == 1
    assert "too few cells" not in enough
    assert "a cell is one algorithm at one setting on one fold of one repeat" in few


@pytest.mark.parametrize(
    ("private", "said"), [([], "public data, "), (["visits"], "every private cell on visits was")]
)
def test_why_nothing_is_charged_is_said(private: list[str], said: str) -> None:
    assert charge_words({}, private).startswith(said)
