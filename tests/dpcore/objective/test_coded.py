"""Coded rows answer what the matrix of the same rows answers, plain and compiled; their norms never
lack anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dpcore.features import Column
from dpcore.losses import Hinge, HuberHinge, HuberRegression, Logistic, Sigmoid, Squared, Weighted
from dpcore.objective import LinearObjective, compiled, fused
from dpcore.objective.coded import CodedRows, Columns, Layout, Table
from dpcore.objective.coded.rows import CodedPick
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.users import UserObjective
from dpcore.preprocess import Encoder
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import EncodingReport
from tests.tape import ConstantSlope

RNG = np.random.default_rng(0)
N = 3000
LOSSES = (
    Logistic(),
    Hinge(),
    HuberHinge(),
    Sigmoid(),
    Squared(),
    HuberRegression(),
    Weighted(Logistic(), 2.0, 0.5),
)
COLUMNS = (
    Column(
        name="a",
        kind="categorical",
        levels=tuple("abcdefg"),
        unknown="other",
        fill="zeros",
        missing=("?",),
    ),
    Column(name="b", kind="numeric", low=0, high=10),
    Column(name="c", kind="ordinal", levels=tuple("xyzw"), fill="zeros"),
    Column(name="d", kind="flag"),
    Column(name="e", kind="numeric", low=-1, high=1000, fill="zeros"),
    Column(name="f", kind="categorical", levels=tuple("klm"), drop_first=True),
    Column(name="s", kind="numeric", low=10, high=110, step=0.5, fill="zeros"),
    Column(name="t", kind="numeric", low=-3, high=156, step=3, fill=4.0),
    Column(name="h", kind="categorical", levels=tuple(f"h{j}" for j in range(300))),
    Column(name="k", kind="numeric", low=0, high=1, numeric="hats(300)"),
    Column(
        name="g",
        kind="date",
        low="2020-01-01",
        high="2024-01-01",
        parts=("month", "elapsed", "weekday", "day"),
    ),
)
FRAME = pd.DataFrame(
    {
        "a": RNG.choice(list("abcdefgh?"), N),
        "b": RNG.uniform(-1, 11, N),
        "c": RNG.choice(list("xyzw"), N),
        "d": RNG.integers(0, 2, N).astype(float),
        "e": np.where(RNG.random(N) < 0.1, np.nan, RNG.uniform(-1, 1100, N)),
        "f": RNG.choice(list("klm"), N),
        "s": np.where(RNG.random(N) < 0.1, np.nan, RNG.uniform(0, 120, N)),
        "t": np.where(RNG.random(N) < 0.1, np.nan, RNG.uniform(-10, 170, N)),
        "h": RNG.choice([f"h{j}" for j in range(300)], N),
        "k": RNG.random(N),
        "g": pd.to_datetime("2020-01-01") + pd.to_timedelta(RNG.integers(0, 1500, N), "D"),
    }
)
Y = RNG.choice([-1.0, 1.0], N)


def encoded(
    normalise: str = "none",
    numeric: str = "hats(8)",
    intercept: bool = True,
    n: int = N,
    single: bool | None = None,
):
    """Encoder, matrix and coded rows. With fractions in single precision, as trainings store them
    and compiled passes take them, the matrix is that of the rows.
    """
    crosses = [["a", "f"], ["a", "b"], [{"e": "bins(3)"}, "c"], ["f", {"k": "minmax"}]]
    encoder = Encoder(
        COLUMNS,
        normalise=normalise,
        numeric="hats(8)" if numeric == "crossed" else numeric,
        sparse=True,
        intercept=intercept,
        crosses=crosses if numeric == "crossed" else (),
    )
    coding = Coding.of(encoder)
    if single or (single is None and compiled.in_use()):
        rows = coding.rows(coding.table(FRAME[:n], EncodingReport()))
        return encoder, rows.X, rows
    rows = coding.rows(coding.table(FRAME[:n], EncodingReport(), np.float64))
    return encoder, encoder.transform(FRAME[:n]), rows


def same(found, wanted) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert np.abs(found - wanted).max() <= 1e-12 * max(np.abs(wanted).max(), 1.0)


@pytest.fixture(params=["plain", "compiled"])
def passes(request) -> Iterator[str]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    compiled.use(request.param == "compiled")
    yield request.param
    compiled.use(False)


NUMERIC = ("hats(8)", "minmax", "log", "centred", "bins(5)", "hats(8)+bins(64)", "crossed")


@pytest.mark.parametrize("numeric", NUMERIC)
@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
def test_a_coded_table_answers_what_the_matrix_answers(normalise: str, numeric: str) -> None:
    intercept = (len(normalise) + NUMERIC.index(numeric)) % 2 == 0  # each way has both
    n = 800
    encoder, X, rows = encoded(normalise, numeric, intercept, n)
    rng, labels = np.random.default_rng(1), Y[:n]
    w, W, some = rng.normal(size=X.shape[1]), rng.normal(size=(3, X.shape[1])), rng.choice(n, 200)
    shift, scale, keep = rng.random(len(w)), rng.uniform(0.5, 3, len(w)), np.array([0, 2, 8, 11])
    classes = rng.integers(0, 3, n).astype(float)
    made = [LinearObjective(x, labels, Logistic()) for x in (X, rows)]
    several = [MulticlassObjective(x, classes, Softmax()) for x in (X, rows)]
    users = [UserObjective(x, np.arange(n) // 3, 2) for x in made]
    views = [x.transform(shift, scale) for x in made]
    same(rows.X.toarray(), X.toarray())
    edges = np.linspace(-3, 3, 5)
    for ask in (
        lambda k: made[k].row_norms,
        lambda k: made[k].gradient_sum(w, 0.3),
        lambda k: made[k].gradient_sum(w),
        lambda k: made[k].value_sum(W, 0.8),
        lambda k: made[k].values(W),
        lambda k: made[k].column_sum(0.3),
        lambda k: made[k].square_sum(),
        lambda k: made[k].score_counts(w, edges),
        lambda k: made[k].take(some).gradient_sum(w, 0.3),
        lambda k: made[k].columns(keep).gradient_sum(w[keep]),
        lambda k: made[k].within(encoder.design.blocks).column_sum(),
        lambda k: views[k].row_norms,
        lambda k: views[k].gradient_sum(w, 0.3),
        lambda k: views[k].value_sum(W),
        lambda k: views[k].square_sum(),
        lambda k: views[k].take(some).gradient_sum(w, 0.3),
        lambda k: several[k].gradient_sum(np.tile(w, 3), 0.3),
        lambda k: several[k].value_sum(np.tile(W, 3), 2.0),
        lambda k: several[k].against_rest(1, Hinge()).gradient_sum(w, 0.3),
        lambda k: users[k].gradient_sum(w, 0.3),
    ):
        same(ask(1), ask(0))
    # rows that are nearly empty: what rounding may hide is a larger share
    few = [x.columns(keep) for x in made]
    assert (
        np.abs(few[0].gradient_sum(w[keep], 0.3) - few[1].gradient_sum(w[keep], 0.3)).max() <= 1e-9
    )


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
def test_compiled_passes_give_the_sums_of_plain_ones(normalise: str) -> None:
    pytest.importorskip("numba")
    _, X, coded = encoded(normalise, single=True)
    rng = np.random.default_rng(2)
    w, W = rng.normal(size=X.shape[1]), rng.normal(size=(3, X.shape[1]))
    shift, scale = rng.random(len(w)), rng.uniform(0.5, 3, len(w))
    # each further precision is compiled anew
    for rows in (coded, X, X.toarray().astype(np.float32)):
        for loss in LOSSES:
            made = LinearObjective(rows, Y, loss)
            view = made.transform(shift, scale)
            asked = [(made, 0.3), (made, inf), (view, 0.3)]
            found = []
            for on in (False, True):
                compiled.use(on)
                found.append(
                    [o.gradient_sum(w, c) for o, c in asked] + [o.value_sum(W, c) for o, c in asked]
                )
                compiled.use(False)
            for wanted, got in zip(*found, strict=True):
                same(got, wanted)


@pytest.mark.parametrize("on", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("storage", ["coded", "csr64", "csr32"])
def test_columns_of_scale_0_are_left_out_and_no_bit_changes(
    monkeypatch: pytest.MonkeyPatch, storage: str, on: bool
) -> None:
    """Fine bins that stay unused have scale 0: a pass is as long as without them."""
    if on:
        pytest.importorskip("numba")
    encoder, X, coded = encoded(numeric="hats(8)+bins(256)", single=on)
    fine = [j for block in encoder.design.blocks if block.fine for j in block.columns]
    assert len(fine) == 256
    rng = np.random.default_rng(2)
    w, shift, scale = rng.normal(size=X.shape[1]), rng.random(X.shape[1]), np.ones(X.shape[1])
    scale[fine] = 0.0
    stored = np.arange(len(coded.layout.sizes))
    [left] = set(stored) - set(coded.layout.active(scale))
    assert coded.layout.sizes[left] == 257  # one for cells without a value
    assert np.array_equal(coded.layout.active(np.ones(len(scale))), stored)
    rows = coded if storage == "coded" else csr_array(X).astype(f"float{storage[-2:]}")

    def everything(view: LinearObjective) -> list[np.ndarray]:
        found = [view.row_norms, view.column_sum(), view.square_sum(), view.slopes(w)]
        for records in (view, view.take(slice(5, 900)), view.take(np.arange(0, N, 7))):
            found += [records.gradient_sum(w, clip) for clip in (0.3, inf)]
            found.append(records.value_sum(np.stack([w, 3.0 * w])))
        return found

    compiled.use(on)
    view = LinearObjective(rows, Y, Logistic()).transform(shift, scale)
    without = everything(view)
    monkeypatch.setattr(Layout, "active", lambda self, scale: stored)
    monkeypatch.setattr("dpcore.objective.sparse.LEFT_OUT", 2.0)
    every = LinearObjective(rows, Y, Logistic()).transform(shift, scale)
    if storage == "coded":
        assert set(every.rows.inner.seen) - set(view.rows.inner.seen) == {left}
    else:
        inside, whole = set(view.rows.inner.X.indices), set(every.rows.inner.X.indices)
        assert whole & set(fine) and inside == whole - set(fine)
    for found, wanted in zip(without, everything(every), strict=True):
        assert np.array_equal(found, wanted)
    compiled.use(False)
    assert np.all(view.gradient_sum(w, 0.3)[fine] == 0.0)
    alone = LinearObjective(X, Y, Logistic()).transform(shift, scale).gradient_sum(w, 0.3)
    assert np.allclose(view.gradient_sum(w, 0.3), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
def test_the_compiled_softmax_is_the_plain_one(normalise: str) -> None:
    pytest.importorskip("numba")
    _, X, coded = encoded(normalise, single=True)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, N).astype(float)
    shift, scale = rng.random(X.shape[1]), rng.uniform(0.5, 3, X.shape[1])
    made = MulticlassObjective(coded, labels, Softmax())
    for w in (rng.normal(size=4 * X.shape[1]), rng.normal(size=4 * X.shape[1]) * 1e200):
        for one in (made, made.transform(shift, scale), made.take(np.arange(0, N, 7))):
            for clip in (0.3, inf):
                found = []
                for on in (False, True):
                    compiled.use(on)
                    found.append(one.gradient_sum(w, clip))
                    compiled.use(False)
                same(found[1], found[0])
    compiled.use()
    assert fused.softmax_gradient(coded, made.labels, np.zeros((X.shape[1], 4)), 0.3) is not None
    compiled.use(False)


def test_a_compiled_pass_over_picked_codes_is_that_over_their_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit, over some blocks, in any order and with rows twice; all else copies them."""
    pytest.importorskip("numba")
    _, X, coded = encoded("cap", single=True)
    rng = np.random.default_rng(6)
    w, shift, scale = rng.normal(size=X.shape[1]), rng.random(X.shape[1]), np.ones(X.shape[1])
    _, matrix, plain = encoded(single=True)
    compiled.use(True)
    for rows, view in ((coded, False), (plain, False), (plain, True)):
        made = LinearObjective(rows, Y, Logistic())
        for picked in (rng.choice(N, 2500), np.arange(0, N, 3, dtype=np.int32), np.empty(0, int)):
            one, copied = (
                made.take(picked),
                LinearObjective(rows.take(picked), Y[picked], made.loss),
            )
            assert type(one.rows) is CodedPick and type(copied.rows) is CodedRows
            if view:
                one, copied = (o.transform(shift, scale) for o in (one, copied))
            assert np.array_equal(one.gradient_sum(w, 0.3), copied.gradient_sum(w, 0.3))
            assert np.array_equal(one.value_sum(w[None], 0.8), copied.value_sum(w[None], 0.8))
    monkeypatch.setattr(fused, "CHUNK", 700)
    picked = rng.choice(N, 2500)
    many = LinearObjective(plain, Y, Logistic()).take(picked).gradient_sum(w, 0.3)
    compiled.use(False)
    same(many, LinearObjective(matrix, Y, Logistic()).take(picked).gradient_sum(w, 0.3))


@pytest.mark.parametrize("storage", ["coded", "csr", "dense"])
def test_a_slope_is_the_same_bits_wherever_its_record_stands(storage: str) -> None:
    """A record that is added moves all after it by one place, into another lane of a register or
    out of the last whole one; only its own part may change.
    """
    pytest.importorskip("numba")
    n = 700
    _, _, rows = encoded(n=n, single=True)
    width = rows.width
    own = Columns("own", csr_array(np.pad(np.eye(n), ((0, 0), (width, 0)))))  # a column a record
    padded = [
        Columns(c.name, *(None if t is None else csr_array(np.pad(t.toarray(), ((0, 0), (0, n))))
                          for t in (c.basis, c.slopes)))
        for c in rows.layout.columns
    ]  # fmt: skip
    layout = Layout([*padded, own], np.append(rows.layout.constant, np.zeros(n)))
    wide = np.concatenate([rows.table.wide, np.arange(n, dtype=np.uint16)[None]])
    coded = CodedRows(Table(rows.table.narrow, wide, rows.table.fractions), layout)
    matrix = coded.X if storage == "csr" else coded.X.toarray().astype(np.float32)
    w = np.append(np.random.default_rng(1).normal(size=width), np.zeros(n))
    compiled.use()
    for loss in LOSSES:
        made = LinearObjective(coded if storage == "coded" else matrix, Y[:n], loss)
        for clip in (0.3, inf):
            slopes = made.gradient_sum(w, clip)[width:]
            for start in range(1, 10):
                rest = made.take(slice(start, None)).gradient_sum(w, clip)[width:]
                assert np.array_equal(rest[start:], slopes[start:]) and not rest[:start].any()
    compiled.use(False)


def test_one_record_moves_a_sum_by_its_clip_and_no_more(passes: str) -> None:
    """Add or remove: the largest move comes to C itself, so a missing clip would show; scores of
    any size, too.
    """
    clip, largest = 0.05, 0.0
    for normalise in ("none", "cap"):
        _, X, rows = encoded(normalise)
        for stretch in (1.0, 1e3, 1e200):
            w = np.random.default_rng(3).normal(size=X.shape[1]) * stretch
            shift, scale = np.full(len(w), 0.2), np.linspace(0.1, 9.0, len(w))
            for loss in (Logistic(), Squared(), ConstantSlope()):
                made = LinearObjective(rows.take(slice(0, 40)), Y[:40], loss)
                for one in (made, made.transform(shift, scale)):
                    whole = one.gradient_sum(w, clip)
                    for i in range(0, 40, 7):
                        rest = one.take(np.delete(np.arange(40), i))
                        moved = np.linalg.norm(whole - rest.gradient_sum(w, clip)) / clip
                        assert moved <= 1 + 1e-9
                        largest = max(largest, float(moved))
    assert largest >= 0.99


def test_norms_never_lack_what_rounding_takes() -> None:
    """Columns that cancel: values and shift are equal up to a few units, so that squares are
    differences of large numbers; bounds are held against exact arithmetic."""
    from fractions import Fraction

    rng = np.random.default_rng(4)
    basis = csr_array(1.0 - rng.random((5, 3)) * 1e-9)
    layout = Layout([Columns("a", basis)], np.zeros(3))
    rows = CodedRows(Table.of(layout, [np.arange(5)], []), layout)
    for scale in (np.ones(3), np.array([1e-3, 1.0, 1e3])):
        lengths = rows.scaled_lengths(np.ones(3), scale)
        for row, length in zip(basis.toarray(), lengths, strict=True):
            terms = (
                Fraction(s) ** 2 * (Fraction(v) - 1) ** 2 for v, s in zip(row, scale, strict=True)
            )
            assert Fraction(float(length)) ** 2 >= sum(terms)


def test_kept_machine_code_is_that_of_these_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that calls another one has that one's machine code within it, and numba looks at the
    first one's file alone.
    """
    (tmp_path / "coded").mkdir()
    files = tmp_path / "kernels.py", tmp_path / "coded" / "kernels.py"
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    names = []
    for texts in (("a", "b"), ("a", "c"), ("d", "b"), ("a", "b")):
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        monkeypatch.setattr(compiled, "cache_folder", None)
        compiled.use(True, tmp_path / "home")
        names.append(compiled.cache_folder)
    compiled.use(False)
    assert len(set(names)) == 3 and names[0] == names[3]
    assert all(name.stat().st_mode & 0o777 == 0o700 for name in names)


def test_what_is_no_number_moves_nothing(passes: str) -> None:
    _, X, rows = encoded()
    w = np.full(X.shape[1], np.nan)
    for loss in LOSSES:
        made = LinearObjective(rows, Y, loss)
        assert np.isfinite(made.gradient_sum(w, 0.3)).all()
        assert np.isfinite(made.gradient_sum(np.full(len(w), 1e308), 0.3)).all()
        assert np.isfinite(made.value_sum(np.full((1, len(w)), 1e308), 0.3)).all()
