"""Terms of an additive model: they add up to the score, say what the encoder does, and the band is
the noise's.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpcore.algorithms.output_gd import OutputGD
from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.errors import InputError
from dpcore.features import Column, FeatureGroup
from dpcore.losses import make_loss
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.preprocess.terms import Term, additive, pieces_of
from dpcore.problem import Problem

COLUMNS = (
    Column(name="age", low=18, high=90),
    Column(name="gain", low=0, high=99_999),
    Column(name="city", kind="categorical", levels=("north", "south", "west"), unknown="other"),
    Column(name="size", kind="ordinal", levels=("small", "middle", "large")),
    Column(name="paid", kind="flag"),
    Column(
        name="day", kind="date", low="2020-01-01", high="2021-12-31", parts=("month", "elapsed")
    ),
)
MAPS = ("minmax", "log", "centred", "hats(8)", "bins(6)", "hats(8)+bins(32)", "minmax+bins(9)")
CROSSES = (["city", {"gain": "bins(4)"}], ["size", {"age": "hats(3)"}], ["paid", "day.month"])


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 730, rows), unit="D")
    return pd.DataFrame(
        {
            "age": rng.uniform(10, 95, rows).round(1),
            "gain": np.where(rng.random(rows) < 0.6, 0.0, rng.uniform(0, 1e5, rows)),
            "city": rng.choice(["north", "south", "west", "elsewhere"], rows),
            "size": rng.choice(["small", "middle", "large"], rows),
            "paid": rng.integers(0, 2, rows),
            "day": days.strftime("%Y-%m-%d"),
        }
    )


def encoder(numeric: str, normalise: str = "none") -> Encoder:
    crosses = () if numeric == "centred" else CROSSES
    return Encoder(COLUMNS, numeric=numeric, normalise=normalise, crosses=crosses)


def weights_for(made: Encoder | MatrixEncoder, outputs: int = 1) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(outputs, made.design.dimension))


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
@pytest.mark.parametrize("numeric", MAPS)
def test_what_the_terms_add_is_the_score(numeric: str, normalise: str) -> None:
    made, rows = encoder(numeric, normalise), frame()
    X = made.transform(rows)
    W = weights_for(made, 3)
    constants, added = additive(made, W, True, scale=2.0, shift=0.5).contributions(X)
    assert np.allclose(constants + added.sum(axis=1), 2.0 * (X @ W.T) + 0.5, atol=1e-9)


@pytest.mark.parametrize("numeric", MAPS)
def test_a_term_is_drawn_where_the_encoder_puts_its_values(numeric: str) -> None:
    """A point of an axis, written into a row, changes the score by what the curve says."""
    made, row = encoder(numeric), frame(1)
    W = weights_for(made)
    found = additive(made, W, True)
    for term in found.terms:
        if term.kind == "map" or term.name.startswith("day"):
            continue
        at = [p for p in term.points() if p != "(other)"]
        rows = pd.concat([row] * len(at), ignore_index=True).assign(**{term.name: at})
        place = found.terms.index(term)
        added = found.contributions(made.transform(rows))[1][:, place, 0]
        assert np.allclose(added, term.values[0][: len(at)], atol=1e-6), (numeric, term.name)


def test_a_cross_is_drawn_where_the_encoder_puts_its_pairs() -> None:
    made, row = encoder("hats(8)"), frame(1)
    found = additive(made, weights_for(made), True)
    [place] = [k for k, term in enumerate(found.terms) if term.name == "city x gain"]
    term = found.terms[place]
    assert term.kind == "map" and term.values.shape[1:] == (4, len(term.axes[1]))
    pairs = [pair for pair in term.points() if pair[0] != "(other)"]
    rows = pd.concat([row] * len(pairs), ignore_index=True)
    rows = rows.assign(city=[a for a, _ in pairs], gain=[b for _, b in pairs])
    added = found.contributions(made.transform(rows))[1][:, place, 0]
    assert np.allclose(added, term.values[0].ravel()[: len(pairs)], atol=1e-9)


def test_the_band_is_two_standard_deviations_of_what_noise_in_the_weights_does() -> None:
    """400 draws: a standard deviation is off by a fifth with a chance below 1e-6."""
    made, rng = encoder("hats(8)"), np.random.default_rng(2)
    W, sigma = weights_for(made), 0.3
    calm = additive(made, W, True, noise=sigma)
    pieces = pieces_of(made)
    draws = [additive(pieces, W + rng.normal(scale=sigma, size=W.shape), True) for _ in range(400)]
    for term in calm.terms:
        seen = [next(t for t in one.terms if t.name == term.name).values[0] for one in draws]
        moved = np.std(np.array(seen) - term.values[0], axis=0)
        assert term.band is not None
        assert np.allclose(2.0 * moved, term.band, rtol=0.2, atol=1e-12)
    turned = additive(made, W, True, noise=sigma, scale=-3.0)  # a label's unit may turn it around
    bands = {term.name: term.band for term in turned.terms}
    for term in calm.terms:
        assert np.allclose(bands[term.name], 3.0 * term.band)


def test_terms_are_centred_and_weighed_by_marginals() -> None:
    made = Encoder(COLUMNS[2:3])
    W = np.array([[1.0, 3.0, -1.0, 0.0, 0.5]])
    share = np.array([0.5, 0.25, 0.25, 0.0])
    marginals = {"means": share, "variances": share * (1 - share)}
    [term] = additive(made, W, True, marginals).terms
    middle = 0.5 * 1 + 0.25 * 3 - 0.25
    assert term.mean == pytest.approx([middle])
    assert term.values[0] == pytest.approx(np.array([1, 3, -1, 0]) - middle)
    expected = np.sqrt(0.5 * 1 + 0.25 * 9 + 0.25 - middle**2)
    assert term.importance == pytest.approx(expected)


@pytest.mark.parametrize(("middle", "width"), [(0.5, 0.1), (0.2, 0.06)])
def test_bins_without_sums_weigh_as_the_hats_beside_them_say(middle: float, width: float) -> None:
    """Their stored means are a guess: the largest hat's, and the rest evenly."""
    made = Encoder(
        (Column(name="x", low=0, high=1000),), numeric="hats(8)+bins(64)", normalise="none"
    )
    u = np.clip(np.random.default_rng(0).normal(middle, width, 4000), 0.0, 1.0)
    X = made.transform(pd.DataFrame({"x": np.expm1(u * np.log1p(1000.0))}))
    hats = np.asarray(X[:, :8].mean(axis=0)).ravel()
    means = np.append(hats, np.full(64, (1.0 - hats.max()) / 63))
    means[8 + int(hats.argmax() * 64 // 7)] = hats.max()
    W = np.zeros((1, made.design.dimension))
    W[0, :8] = np.arange(8) / 7
    marginals = {"means": means, "variances": means * (1.0 - means)}
    [term] = additive(made, W, True, marginals).terms
    assert u.std() <= term.importance <= 1.8 * u.std()  # hats of a seventh blur it; evenly: 0.25


def test_a_term_is_read_as_it_was_written() -> None:
    made = encoder("hats(8)+bins(32)")
    for term in additive(made, weights_for(made, 2), True, noise=0.1).terms:
        again = Term.from_dict(term.to_dict())
        assert again.kind == term.kind and again.points() == term.points()
        assert np.array_equal(again.values, term.values)
        assert again.band is not None and np.array_equal(again.band, term.band)


def test_groups_of_numbers_have_a_line_or_a_bar_a_column() -> None:
    groups = (FeatureGroup(name="x", low=2, high=6), FeatureGroup(name="p", count=3))
    made = MatrixEncoder(groups, normalise="none")
    found = additive(made, np.array([[4.0, 1.0, 2.0, 3.0, 0.5]]), True)
    shown = {term.name: term for term in found.terms}
    assert shown["x"].points() == [2.0, 6.0] and np.ptp(shown["x"].values) == pytest.approx(4.0)
    assert shown["p"].kind == "bars" and np.ptp(shown["p"].values) == pytest.approx(2.0)
    X = np.array([[3.0, 0.1, 0.2, 0.3]])
    score = sum(part.sum() for part in found.contributions(made.transform(X)))
    assert score == pytest.approx(0.25 * 4 + 0.1 + 0.4 + 0.9 + 0.5)


def test_noise_of_a_weight_is_what_output_perturbation_adds() -> None:
    problem = Problem(
        n=100, dimension=3, loss=make_loss("logistic"), adjacency="replace_one", l2=0.1
    )
    algorithm = OutputGD(noise_multiplier=3.0, steps=2)
    [release] = algorithm.plan(problem)
    assert algorithm.weight_noise(problem) == pytest.approx(release.sigma)
    assert ScaledGD().weight_noise(problem) is None
    assert "curvature" in ScaledGD.hidden_noise


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (["city"], "two columns"),
        (["city", "city"], "twice"),
        (["city", "town"], "town"),
        (["city", {"size": "bins(3)+bins(4)"}], "one map"),
        (["city", {"paid": "bins(3)"}], "numeric or ordinal"),
        (["city", {"age": "centred"}], "in [0, 1]"),
        ([{"gain": "bins(300)"}, "city"], "cross_width"),
    ],
)
def test_crosses_that_are_none_are_refused_in_one_line(pair: list, said: str) -> None:
    with pytest.raises(InputError) as refused:
        _ = Encoder(COLUMNS, crosses=[pair]).design
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "again", [["city", "size"], ["size", "city"], ["size", {"age": "bins(3)"}]]
)
def test_a_pair_is_crossed_once(again: list) -> None:
    crosses = [["size", "city"], ["size", {"age": "bins(4)"}], again]
    with pytest.raises(InputError, match="Expected each pair of columns in one cross"):
        _ = Encoder(COLUMNS, crosses=crosses).design


@pytest.mark.parametrize("name", ["city x size", "day.month"])
def test_a_column_named_as_a_part_or_a_cross_is_refused(name: str) -> None:
    columns = [*COLUMNS, Column(name=name, low=0, high=1)]
    with pytest.raises(InputError, match=f"got two of '{name}'; rename"):
        _ = Encoder(columns, crosses=[["city", "size"]]).design


def test_a_column_without_encoded_columns_has_no_term() -> None:
    one = Column(name="only", kind="categorical", levels=("x",), drop_first=True)
    made = Encoder([one, *COLUMNS], crosses=[["only", "city"]])
    found = additive(made, weights_for(made), True)
    assert {term.name for term in found.terms} == {
        "age", "gain", "city", "size", "paid", "day.month", "day.elapsed"
    }  # fmt: skip


@pytest.mark.parametrize("numeric", ["hats(8)+bins(256)", "bins(5)"])
def test_crosses_and_fine_bins_are_blocks(numeric: str) -> None:
    """Parts are >= 0 and sum to at most 1 in every row: what the price of a block rests on."""
    made = encoder(numeric)
    X = made.transform(frame(300))
    X = X.toarray() if hasattr(X, "toarray") else X
    assert Encoder.from_json(made.to_json()).design == made.design
    named = [column for block in made.design.blocks for column in block.columns]
    assert sorted(named) == list(range(made.design.dimension - 1))
    for block in made.design.blocks:
        part = X[:, list(block.columns)]
        assert part.min() >= 0.0 and part.sum(axis=1).max() <= 1.0 + 1e-12
    fine = [block for block in made.design.blocks if block.fine]
    assert len(fine) == (1 if "+" in numeric else 0)  # of the wide column alone
    size = 5 if numeric == "bins(5)" else 8
    widths = {"city x gain": 16, "size x age": 3 * size, "paid x day.month": 12}
    assert made.crossed == widths
