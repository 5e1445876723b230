"""Whatever can be asked of coded, sharded and stored rows moves between neighbours by no more than is charged for it.

Three walks, none of which can miss what is new: every name that an objective answers to is asked here or said to stay
inside; every storage of rows and every compiled pass is reached; every private algorithm is replayed through codes and
through shards, or refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dpcore.algorithms import registry
from dpcore.descent import platt
from dpcore.descent.marginals import Marginals
from dpcore.losses import Array, Logistic, Weighted, losses
from dpcore.objective import LinearObjective, compiled, fused
from dpcore.objective.coded.rows import CodedPick, CodedRows, CodedScaled
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.rows import Dense, Rows, Scaled
from dpcore.objective.shards import ShardedObjective
from dpcore.objective.sparse import Sparse, SparseBatch, SparsePick
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency, Problem
from tasks.kinds.engine import single_rows
from tests.dpcore.algorithms.test_every_algorithm import CASES, small, small_problem
from tests.neighbours import rows as made
from tests.tape import SLACK, ConstantSlope, replay

CLIP, CAP, CLASSES = 0.05, 0.1, 3
LOSSES = [*(kind() for kind in losses.values()), Weighted(Logistic(), 2.0, 0.5)]


@dataclass(frozen=True)
class Question:
    """What is asked of an objective, and how far one record may move the answer: added or removed, and replaced."""

    ask: Callable[[Any, Problem, Array], Array]
    added: float | Callable[[Problem], float]
    replaced: float | Callable[[Problem], float]
    order: float = 2.0  # of the norm
    classes: int = 2

    def bound(self, problem: Problem, removed: bool) -> float:
        most = self.added if removed else self.replaced
        return most if isinstance(most, float) else most(problem)


def weights(problem: Problem, rng: Array, outputs: int = 1) -> Array:
    return np.asarray(rng[: problem.dimension * outputs])


def view(problem: Problem) -> tuple[Array, Array]:
    """A shift and a scale: the same for all who ask."""
    return _view(problem.dimension)


@cache
def _view(d: int) -> tuple[Array, Array]:
    return np.full(d, 0.2), np.linspace(0.5, 3.0, d)


def several(problem: Problem, w: Array, outputs: int = 1) -> Array:
    """Candidates of a line search."""
    return np.outer([0.0, 1.0, -30.0], weights(problem, w, outputs))


def on_line(problem: Problem, w: Array) -> Array:
    """Candidates of a line search that two scores of a record serve."""
    first = weights(problem, w)
    return first - np.outer([0.0, 0.1, 1.0, -30.0, 5.0], first[::-1])


def marginal(relation: Adjacency) -> Callable[[Problem], float]:
    return lambda problem: Marginals.of(problem).sensitivity(relation)


KEEP = np.array([0, 2, 3, 9, 12])
QUESTIONS: dict[str, Question] = {
    "gradient_sum": Question(lambda o, p, w: o.gradient_sum(weights(p, w), CLIP), CLIP, 2 * CLIP),
    "gradient of a view": Question(
        lambda o, p, w: o.within(p.blocks).transform(*view(p)).gradient_sum(weights(p, w), CLIP),
        CLIP,
        2 * CLIP,
    ),
    "gradient in some columns": Question(
        lambda o, p, w: o.columns(KEEP).gradient_sum(weights(p, w)[KEEP], CLIP), CLIP, 2 * CLIP
    ),
    "gradient without class weights": Question(
        lambda o, p, w: o.unweighted().gradient_sum(weights(p, w), CLIP), CLIP, 2 * CLIP
    ),
    "gradient of records": Question(
        lambda o, p, w: o.as_rows()[0].gradient_sum(weights(p, w), CLIP), CLIP, 2 * CLIP
    ),
    "value_sum": Question(lambda o, p, w: o.value_sum(several(p, w), CAP), CAP, CAP, order=np.inf),
    "values of a view": Question(
        lambda o, p, w: o.transform(*view(p)).value_sum(several(p, w), CAP), CAP, CAP, order=np.inf
    ),
    "values along a line": Question(
        lambda o, p, w: o.value_sum(on_line(p, w), CAP), CAP, CAP, order=np.inf
    ),
    "values of a view along a line": Question(
        lambda o, p, w: o.transform(*view(p)).value_sum(on_line(p, w), CAP),
        CAP,
        CAP,
        order=np.inf,
    ),
    "marginals": Question(
        lambda o, p, w: Marginals.of(p).query(o),
        marginal(Adjacency.ADD_REMOVE),
        marginal(Adjacency.REPLACE_ONE),
    ),
    "score_counts": Question(
        lambda o, p, w: o.within(p.blocks).score_counts(weights(p, w), platt.EDGES).ravel(),
        platt.sensitivity(Adjacency.ADD_REMOVE),
        platt.sensitivity(Adjacency.REPLACE_ONE),
    ),
    "softmax gradient": Question(
        lambda o, p, w: o.gradient_sum(weights(p, w, CLASSES), CLIP),
        CLIP,
        2 * CLIP,
        classes=CLASSES,
    ),
    "softmax gradient of a view": Question(
        lambda o, p, w: (
            o.within(p.blocks).transform(*view(p)).gradient_sum(weights(p, w, CLASSES), CLIP)
        ),
        CLIP,
        2 * CLIP,
        classes=CLASSES,
    ),
    "softmax values": Question(
        lambda o, p, w: o.value_sum(several(p, w, CLASSES), CAP),
        CAP,
        CAP,
        order=np.inf,
        classes=CLASSES,
    ),
    "one class against the rest": Question(
        lambda o, p, w: o.against_rest(1, Logistic()).gradient_sum(weights(p, w), CLIP),
        CLIP,
        2 * CLIP,
        classes=CLASSES,
    ),
    "right_count": Question(
        lambda o, p, w: np.array([o.right_count(weights(p, w, CLASSES))]), 1.0, 1.0, classes=CLASSES
    ),
}
# Names that the questions above go through, and those that no query may hand out: what they tell is of single rows,
# and what an algorithm asks of them (``Algorithm.asks``) is replayed with the algorithm.
ASKED = {
    "gradient_sum",
    "value_sum",
    "score_counts",
    "right_count",
    "column_sum",
    "square_sum",
    "within",
    "transform",
    "columns",
    "take",
    "unweighted",
    "against_rest",
    "as_rows",
}
INSIDE = {
    "X",
    "y",
    "n",
    "rows",
    "labels",
    "loss",
    "parts",
    "shift",
    "scale",
    "dimension",
    "row_norms",
    "slopes",
    "values",
    "check",
    "check_rows",
    "with_labels",
}


def public(kind: type) -> set[str]:
    """Names of a class and of its instances."""
    kept = {"rows", "y", "loss", "labels", "n", "rows_per_user"}
    return {name for name in {*dir(kind), *kept} if not name.startswith("_")}


@pytest.mark.parametrize(
    "kind", [LinearObjective, MulticlassObjective, ShardedObjective, UserObjective]
)
def test_every_name_of_an_objective_is_asked_here_or_stays_inside(kind: type) -> None:
    assert public(kind) <= ASKED | INSIDE | {"rows_per_user"}, public(kind) - ASKED - INSIDE
    assert not ASKED - public(LinearObjective) - public(MulticlassObjective)


def subclasses(kind: type) -> set[type]:
    found = set(kind.__subclasses__())
    return found.union(*(subclasses(each) for each in found))


def test_every_storage_of_rows_is_read_here() -> None:
    """A kind of rows that is not listed would be asked by nobody: ``made.KEPT`` and its views and batches have
    these."""
    assert subclasses(Rows) == {
        Dense,
        Sparse,
        SparseBatch,
        SparsePick,
        Scaled,
        CodedRows,
        CodedPick,
        CodedScaled,
    }
    encoder = made.encoder_of("none", "hats(8)")
    frame, some = made.frame(0), np.array([1, 4])
    reached = set()
    for keep in made.KEPT.values():
        one = LinearObjective(keep(encoder, frame), np.ones(made.N), Logistic())
        scaled = one.transform(*_view(one.dimension))
        for fast in (False, compiled.available()):
            compiled.use(fast)
            reached |= {type(o.rows) for o in (one, scaled, one.take(some), scaled.take(some))}
            reached |= {type(o.rows.inner) for o in (scaled, scaled.take(some))}
            compiled.use(False)
    reached |= set() if compiled.available() else {SparsePick, CodedPick}
    assert reached == subclasses(Rows)


def problem_of(encoder: Any, classes: int, loss: Any) -> Problem:
    design = encoder.design
    return Problem(
        n=made.N,
        dimension=design.dimension,
        loss=loss,
        norm_bound=design.norm_bound,
        blocks=design.blocks,
        intercept=True,
        outputs=1 if classes == 2 else classes,
    )


ENCODINGS = {
    "hats": ("none", "hats(8)", {}),
    "fine bins": ("none", "hats(8)+bins(64)", {}),
    "crosses": ("none", "bins(3)", {"crosses": [["a", "d"]]}),
    "cut": ("cap", "minmax", {}),
    "unit": ("unit", "hats(4)", {}),
    "log": ("cap", "log", {}),
}


def kernels() -> dict[str, ModuleType]:
    """Every compiled pass that sums over rows, by name; what Python cannot call is a part of them."""
    from dpcore.objective import kernels as stored
    from dpcore.objective.coded import kernels as coded

    return {
        name: module
        for module in (stored, coded)
        for name, value in vars(module).items()
        if getattr(getattr(value, "py_func", None), "__module__", "") == module.__name__
        and not value.targetoptions.get("no_cpython_wrapper")
    }


@pytest.fixture(params=["plain", "compiled"])
def called(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Passes in numpy, then compiled ones; the names of those that ran."""
    names: set[str] = set()
    passes = {}
    if request.param == "compiled":
        pytest.importorskip("numba")
        passes = kernels()
        for name, module in passes.items():
            monkeypatch.setattr(module, name, watched(name, getattr(module, name), names))
    compiled.use(request.param == "compiled")
    yield names
    compiled.use(False)
    assert names == set(passes), f"never ran: {set(passes) - names}"


def watched(name: str, kernel: Any, names: set[str]) -> Callable[..., Any]:
    def ran(*arguments: Any) -> Any:
        names.add(name)
        return kernel(*arguments)

    return ran


# Storages, in shards or not; the last of the few is enough for further encodings.
FEW = [("coded, double", False), ("coded, single", True)]
ALL = [*((name, False) for name in made.KEPT), *FEW[1:], ("coded, double", True)]


@cache
def encoded(encoding: str) -> Any:
    normalise, numeric, settings = ENCODINGS[encoding]
    return made.encoder_of(normalise, numeric, **settings)


def storages(
    encoder: Any, pair: made.Pair, kind: type[LinearObjective], asked: list[tuple[str, bool]]
) -> Iterator[tuple[str, Any, Any]]:
    """Both tables in each storage."""
    for name, shards in asked:
        first, second = made.KEPT[name](encoder, pair.rows), made.KEPT[name](encoder, pair.other)
        yield (
            name + ", shards" * shards,
            made.over(first, shards, kind),
            made.over(second, shards, kind),
        )


def ratios(
    encoding: str, loss: Any, place: int, removed: bool, seed: int, asked_of: list[tuple[str, bool]]
) -> Iterator[tuple[str, float]]:
    """How far every answer moves over its bound, on all rows and on a batch that holds the record."""
    encoder, classes = encoded(encoding), CLASSES if loss.name == "softmax" else 2
    problem = problem_of(encoder, classes, loss)
    pair, rng = made.pair(place, removed, seed, classes), np.random.default_rng((seed, 2))
    w = rng.normal(size=problem.dimension * CLASSES) * (0.0 if seed == 0 else 2.0)
    batch, other_batch = pair.batch(rng)
    kind = LinearObjective if classes == 2 else MulticlassObjective
    for name, first, second in storages(encoder, pair, kind, asked_of):
        one, other = first(pair.y, loss), second(pair.other_y, loss)
        batches = one.take(batch), other.take(other_batch)
        for asked, question in QUESTIONS.items():
            if question.classes != classes:
                continue
            for full, (a, b) in ((True, (one, other)), (False, batches)):
                moved = np.linalg.norm(
                    question.ask(a, problem, w) - question.ask(b, problem, w), question.order
                )
                ratio = float(moved) / question.bound(problem, removed)
                assert ratio <= 1 + SLACK, (
                    encoding,
                    name,
                    asked,
                    loss.name,
                    "all" if full else "batch",
                    ratio,
                )
                yield asked, ratio


@pytest.mark.parametrize("removed", [True, False], ids=["add_remove", "replace_one"])
def test_a_record_moves_every_answer_by_its_bound_at_most(removed: bool, called: set[str]) -> None:
    """Bounds are reached where a record is gone and come near to where it is another, so no idle clip hides a missing
    one."""
    best: dict[str, float] = dict.fromkeys(QUESTIONS, 0.0)
    several = [Softmax()]
    cases = [("hats", loss, 5, seed, ALL) for seed, loss in enumerate((LOSSES[0], *several))]
    cases += [("hats", LOSSES[0], place, 1, FEW[1:]) for place in (1, made.N - 1)]
    cases += [("hats", loss, 1, 1, FEW[1:]) for loss in several]
    for number, encoding in enumerate(name for name in ENCODINGS if name != "hats"):
        cases += [
            (encoding, loss, 6, number % 2, FEW[1:]) for loss in (LOSSES[1 + number], *several)
        ]
    for encoding, loss, place, seed, storage in cases:
        for asked, ratio in ratios(encoding, loss, place, removed, seed, storage):
            best[asked] = max(best[asked], ratio)
    idle = {asked: ratio for asked, ratio in best.items() if ratio < (0.99 if removed else 0.8)}
    assert not idle


def test_every_loss_is_clipped_in_every_pass(called: set[str]) -> None:
    """The move of one record at weights of any size, also those at which scores are no numbers."""
    encoder = made.encoder_of("none", "hats(8)")
    rows = made.frame(3)
    for loss in LOSSES:
        for keep in made.KEPT.values():
            one = LinearObjective(
                keep(encoder, rows), np.where(np.arange(made.N) % 2, 1.0, -1.0), loss
            )
            for asked in (one, one.transform(*_view(one.dimension))):
                for stretch in (0.0, 1.0, 1e5, 1e200, np.nan):
                    w = np.linspace(-1.0, 1.0, one.dimension) * stretch
                    for place in (np.array([0]), slice(made.N - 1, made.N)):  # picked, and copied
                        alone = asked.take(place)
                        assert np.linalg.norm(alone.gradient_sum(w, CLIP)) <= CLIP * (1 + SLACK)
                        values = alone.value_sum(np.array([w, -w]), CAP)
                        assert np.all((values >= 0.0) & (values <= CAP))
    if called or compiled.in_use():
        several = MulticlassObjective(
            made.KEPT["coded, single"](encoder, rows), np.zeros(made.N), Softmax()
        )
        several.gradient_sum(np.zeros(3 * several.dimension), CLIP)
        several.value_sum(np.zeros((1, 3 * several.dimension)), CAP)


@pytest.mark.parametrize("place", [1, 5, 13])
@pytest.mark.parametrize("removed", [True, False], ids=["add_remove", "replace_one"])
def test_a_user_with_several_records_is_one_term(place: int, removed: bool) -> None:
    """Records 0, 1 / 2, 3 / ... of a user each, in codes; the user of one differing record as a whole is within the
    clip, replaced within twice."""
    encoder = made.encoder_of("none", "hats(8)")
    pair = made.pair(place, False, 4, 2)
    users = np.array([f"u{i // 2:02d}" for i in range(made.N)])
    kept = users != users[place]
    for dtype in (np.float32, np.float64):
        first = made.coded(encoder, pair.rows, dtype)
        other = made.coded(encoder, pair.rows[kept] if removed else pair.other, dtype)
        other_y = pair.y[kept] if removed else pair.other_y
        sums = [
            UserObjective(LinearObjective(rows, y, Logistic()), who, 2)
            for rows, y, who in (
                (first, pair.y, users),
                (other, other_y, users[kept] if removed else users),
            )
        ]
        w = np.zeros(first.width)
        moved = np.linalg.norm(sums[0].gradient_sum(w, CLIP) - sums[1].gradient_sum(w, CLIP))
        assert moved <= (1 if removed else 2) * CLIP * (1 + SLACK)
        assert np.abs(
            sums[0].value_sum(w[None], CAP) - sums[1].value_sum(w[None], CAP)
        ).max() <= CAP * (1 + SLACK)
        if removed:
            assert moved > 0.99 * CLIP


STORED = [
    pytest.param(name, adjacency, id=f"{name}-{adjacency}")
    for name, adjacency in (case.values for case in CASES)
]


def goes_on_shards(name: str) -> bool:
    return not single_rows(name)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize(("name", "adjacency"), STORED)
def test_every_algorithm_keeps_its_bounds_on_codes_and_on_shards(
    name: str, adjacency: Adjacency, fast: bool
) -> None:
    """The Tape through each storage; what does not go on shards is refused by what an algorithm declares."""
    if fast:
        pytest.importorskip("numba")
    best = 0.0
    compiled.use(fast)
    for number, (storage, stored) in enumerate(made.STORED.items()):
        if storage.startswith("shards") and not goes_on_shards(name):
            continue
        loss = Logistic() if fast or number % 2 else ConstantSlope()
        for seed in range(2):
            shown = replay(small(name), small_problem(name, adjacency, loss), seed, stored)
            assert shown.sound, (storage, loss.name, seed, shown)
            best = max(best, *shown.ratios)
    compiled.use(False)
    assert best >= 0.99 or fast, f"no bound is reached (best {best:.3g})"


@pytest.mark.parametrize(
    "name", ["dp_sgd", "dp_adam", "dp_agd", "scaled_gd", "dp_svrg", "dp_blsgd"]
)
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_sampled_steps_keep_their_bounds_on_codes_and_on_shards(
    name: str, adjacency: Adjacency
) -> None:
    if "sampling_rate" not in registry[name].__dataclass_fields__:
        pytest.skip("it reads all rows")
    for storage, stored in made.STORED.items():
        for rate in (0.5, 0.9):
            problem = small_problem(name, adjacency, Logistic())
            shown = replay(small(name, sampling_rate=rate), problem, 0, stored)
            assert shown.sound, (storage, rate, shown)


def test_a_batch_is_its_rows_each_once_wherever_shards_end() -> None:
    """Every record has a column of its own, so that sums say which were counted, and how often."""
    encoder = made.Encoder(
        [{"name": "g", "kind": "categorical", "levels": [f"g{j}" for j in range(made.N)]}],
        normalise="none", numeric="minmax", sparse=True, intercept=False,
    )  # fmt: skip
    rows = made.coded(
        encoder, made.pd.DataFrame({"g": [f"g{j}" for j in range(made.N)]}), np.float64
    )
    sums = made.over(rows, True)(np.ones(made.N), Logistic())
    rng = np.random.default_rng(0)
    assert np.array_equal(sums.column_sum(), np.ones(made.N))
    for _ in range(200):
        drawn = np.flatnonzero(rng.random(made.N) < rng.random())
        wanted = np.zeros(made.N)
        wanted[drawn] = 1.0
        batch = sums.take(drawn)
        assert np.array_equal(batch.column_sum(), wanted) and batch.n == len(drawn)
        assert np.allclose(batch.gradient_sum(np.zeros(made.N), 0.25), -0.25 * wanted, atol=1e-12)
        start, stop, step = *np.sort(rng.integers(0, made.N + 1, 2)), rng.integers(1, 5)
        piece = sums.take(slice(int(start), int(stop), int(step)))
        assert np.array_equal(np.flatnonzero(piece.column_sum()), np.arange(start, stop, step))
        assert piece.n == len(range(start, stop, step))


def test_chunks_count_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled passes cut rows into chunks, blocks and stretches of their own; counts of rows are exact."""
    pytest.importorskip("numba")
    n = 5000
    levels = [f"g{j}" for j in range(250)]
    encoder = made.Encoder(
        [{"name": "g", "kind": "categorical", "levels": levels}],
        normalise="none",
        sparse=True,
        intercept=False,
    )
    codes = np.random.default_rng(1).integers(0, len(levels), n)
    table = made.pd.DataFrame({"g": np.array(levels)[codes]})
    X = encoder.transform(table)
    wanted = -0.25 * np.bincount(codes, minlength=len(levels))
    monkeypatch.setattr(fused, "CHUNK", 1500)
    compiled.use()
    for kept in (made.coded(encoder, table, np.float64), X, X.toarray()):
        one = LinearObjective(kept, np.ones(n), Logistic())
        assert np.allclose(one.gradient_sum(np.zeros(len(levels)), 0.25), wanted, rtol=1e-12)
        assert np.allclose(one.value_sum(np.zeros((2, len(levels))), 0.25), 0.25 * n, rtol=1e-13)
    compiled.use(False)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "compiled"])
def test_rows_that_a_view_shifts_to_nearly_nothing_stay_within_a_clip_of_their_size(
    fast: bool,
) -> None:
    """Norms are differences of large numbers there: one that lacks what rounding took lets a gradient pass."""
    if fast:
        pytest.importorskip("numba")
    rng = np.random.default_rng(4)
    basis = 1.0 - rng.random((40, 3)) * 1e-8
    compiled.use(fast)
    for normalise in ("none", "cap"):
        layout = made.Layout([made.Columns("a", made.csr_array(basis))], np.zeros(3))
        rows = CodedRows(made.Table.of(layout, [np.arange(40)], []), layout, normalise)
        one = LinearObjective(rows, np.ones(40), Logistic())
        factor = 1.0 if normalise == "none" else 1.0 / np.linalg.norm(basis, axis=1)
        shift = np.ones(3) if normalise == "none" else (basis.T * factor).mean(axis=1)
        scaled = one.transform(shift, np.ones(3))
        for i in range(40):
            for clip in (1e-10, 1e-12):
                moved = scaled.take(np.array([i])).gradient_sum(np.zeros(3), clip)
                # the two parts of the sum are subtracted, each rounded: a share of the slope that was let through
                assert np.linalg.norm(moved) <= clip * (1.0 + 1e-4), (normalise, i)
    compiled.use(False)
