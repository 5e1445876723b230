"""One list of every function that measures or scales what a price or a clip rests on, and a walk
over all of it.

Each entry gives pairs (bound, exact square) for rows of adversarial magnitude. ``SEEN`` is found
from the sources: a function that measures a norm or scales by one is in ``WALKED`` or has a reason
not to be, or this fails.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

import dpcore
from dpcore.losses import make_loss
from dpcore.network import clipping
from dpcore.network.clipping import Dense, Mapped, Places
from dpcore.network.network import NetworkObjective
from dpcore.network.passes import lengths
from dpcore.network.spec import NetworkSpec
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.rounding import bound_norms, row_norms, shortened
from dpcore.objective.users import UserObjective
from dpcore.preprocess.encoder import shorten
from dpcore.ranking import bounds as ranking
from dpcore.ranking.documents import ScoredDocuments
from dpcore.ranking.losses import BayesRank, ListNet
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.scorers import MLP, Linear
from dpcore.ranking.sessions import LARGEST_FEATURE, Documents, Sessions
from tests.dpcore.objective.test_rounding import FORMS, rows_of, squares

Pairs = Iterator[tuple[float, Fraction]]
CLIP = 0.1


def ones(X: np.ndarray) -> np.ndarray:
    return np.ones(X.shape[0])


def linear(X, y=None, **kwargs) -> LinearObjective:
    return LinearObjective(X, ones(X) if y is None else y, make_loss("logistic"), **kwargs)


def norms(measure: Callable) -> Callable[..., Pairs]:
    return lambda X, form: zip(measure(form(X)), map(squares, X), strict=True)


def at_most(make: Callable, bound: float = 1.0) -> Callable[..., Pairs]:
    """Rows that come out no longer than ``bound``."""

    def pairs(X: np.ndarray, form: Callable) -> Pairs:
        for i in range(len(X)):
            found = make(form(X[[i]]))
            yield bound, squares(found.toarray() if hasattr(found, "toarray") else found)

    return pairs


def shifted(X: np.ndarray, form: Callable) -> Pairs:
    X = X[(np.abs(X) < 1e150).all(axis=1)].astype(np.float64)
    shift, scale = X[-1] * (1 + 2.0**-50), np.geomspace(1e-3, 1e3, X.shape[1])
    found = linear(form(X), shift=shift, scale=scale).row_norms
    for norm, row in zip(found, X, strict=True):
        yield (
            norm,
            sum(
                (
                    (Fraction(s) * (Fraction(x) - Fraction(m))) ** 2
                    for x, m, s in zip(row, shift, scale, strict=True)
                ),
                Fraction(0),
            ),
        )


def encoder(X) -> np.ndarray:
    return shorten(np.abs(X.toarray() if hasattr(X, "toarray") else X), "unit", "float64")


def tensors(X: np.ndarray) -> torch.Tensor:
    return torch.tensor(X[:, :17] if X.shape[1] > 17 else X)


def outer(a: torch.Tensor, d: torch.Tensor, bias: bool) -> Fraction:
    """Exact squared norm of sum over places of d_p a_p', and of the bias' sum of d_p."""
    rows = [[Fraction(float(v)) for v in row] for row in a]
    slopes = [[Fraction(float(v)) for v in row] for row in d]
    places = range(len(rows))
    total = sum(
        (
            sum(slopes[p][j] * rows[p][i] for p in places) ** 2
            for i in range(a.shape[1])
            for j in range(d.shape[1])
        ),
        Fraction(0),
    )
    return total + sum(
        (sum(slopes[p][j] for p in places) ** 2 for j in range(d.shape[1]) if bias), Fraction(0)
    )


def network_rows(X: np.ndarray, form: Callable) -> Pairs:
    """A linear layer at every magnitude of input and of slope."""
    a = tensors(X)
    layer = nn.Linear(a.shape[1], 2)
    for size in (1e-30, 1e-3, 1e20):
        d = torch.tensor([[size, -size / 3.0]], dtype=a.dtype).expand(len(a), 2)
        for i, found in enumerate(Dense(layer, a, d).squared()):
            yield float(found) ** 0.5 * (1 + 1e-15), outer(a[i : i + 1], d[i : i + 1], True)


def network_places(X: np.ndarray, form: Callable) -> Pairs:
    """A layer that is applied at three places whose terms nearly cancel."""
    a = tensors(X)[:, None, :]
    a = torch.cat([a, torch.nextafter(a, 2 * a), a * (1 - 1e-4)], dim=1)
    layer = nn.Linear(a.shape[2], 2)
    for size in (1e-20, 1.0):
        one = torch.tensor([size, -size / 7.0], dtype=a.dtype)
        d = torch.stack([one, -one * (1 + 1e-6), one * 1e-6])[None].expand(len(a), 3, 2)
        for formed in (0, 64):
            before, clipping.FORMED = clipping.FORMED, formed
            part = Places(layer, a, d)
            clipping.FORMED = before
            for i, found in enumerate(part.squared()):
                # What was formed is what is summed, and so is the bias; no number is dropped like
                # infinity.
                weight = outer(a[i], d[i], False) if part.formed is None else None
                if torch.isfinite(found) and (
                    part.formed is None or torch.isfinite(part.formed[i]).all()
                ):
                    own = squares(part.formed[i].numpy()) if weight is None else weight
                    yield float(found) ** 0.5 * (1 + 1e-15), own + squares(part.bias[i].numpy())


def network_sums(X: np.ndarray, form: Callable) -> Pairs:
    """One record's clipped sum, in closed form and by vmap, in both precisions of sums."""
    X, double = X[:, :17], X.dtype == np.float64
    spec = NetworkSpec(
        inputs=X.shape[1], outputs=3, kind="linear", precision="double" if double else "single"
    )
    for mapped in (False, True):
        network = spec.build()
        if mapped:
            network.sums = Mapped(network.module, network.parameters)
        for i in range(0, len(X), 4):
            data = NetworkObjective(network, X[[i]], np.zeros(1))
            yield CLIP, squares(data.gradient_sum(np.zeros(network.dimension), CLIP))


def record_sums(X: np.ndarray, form: Callable) -> Pairs:
    for i in range(0, len(X), 3):
        row, one = form(X[[i]]), np.ones(1)
        w = np.full(X.shape[1], 1e-3)
        yield CLIP, squares(linear(row).gradient_sum(w, CLIP))
        yield (
            CLIP,
            squares(MulticlassObjective(row, 0 * one, Softmax()).gradient_sum(np.tile(w, 3), CLIP)),
        )
        yield CLIP, squares(UserObjective(linear(row), one, 2).gradient_sum(w, CLIP))


def sessions(X: np.ndarray) -> Iterator[np.ndarray]:
    """Documents two at a time and all together, within the features that are allowed."""
    X = np.clip(X[:, :17].astype(np.float64), -LARGEST_FEATURE, LARGEST_FEATURE)
    yield from (X[[i, i + 1]] for i in range(0, len(X) - 1, 4))
    yield X[::4]


def session_sums(X: np.ndarray, form: Callable) -> Pairs:
    for rows in sessions(X):
        documents, y = Documents(rows, np.array([0, len(rows)])), np.arange(len(rows)) % 3 * 1.0
        for scorer in (
            Linear(rows.shape[1]),
            MLP(rows.shape[1], (3,)),
            MLP(rows.shape[1], (90,), "tanh"),
        ):
            data = SessionObjective(Sessions(documents, y, np.zeros(1)), BayesRank(), scorer)
            yield CLIP, squares(data.gradient_sum(np.full(scorer.size, 1e-6), CLIP))
        yield CLIP, squares(data.label_sum(np.eye(rows.shape[1]), CLIP))


def session_labels(X: np.ndarray, form: Callable) -> Pairs:
    """The largest move of a linear score's gradient between one-hot labels, and between all and
    none.
    """
    for rows in sessions(X):
        documents = Documents(rows, np.array([0, len(rows)]))
        for small in (0, 2**14):
            before, ranking.SMALL = ranking.SMALL, small
            for loss in (BayesRank(), BayesRank(1, "simplex"), ListNet()):
                public = ScoredDocuments(documents)
                [bound] = public.label_bounds(np.full(rows.shape[1], 1e-6), loss)
                sums = [
                    SessionObjective(Sessions(documents, y, np.zeros(1)), loss).gradient_sum(
                        np.full(rows.shape[1], 1e-6)
                    )
                    for y in (np.zeros(len(rows)), *2.0 * np.eye(len(rows)))
                ]
                yield bound, max(squares(a - b) for a in sums[:4] for b in sums[:4])
            ranking.SMALL = before


WALKED: dict[str, Callable[..., Pairs]] = {
    "objective.rounding.row_norms": norms(row_norms),
    "objective.rounding.shortened": at_most(lambda X: shortened(X, cap=False)),
    "objective.linear.LinearObjective.row_norms": norms(lambda X: linear(X).row_norms),
    "objective.rows.Dense.scaled_lengths": shifted,
    "objective.rounding.bound_norms": at_most(lambda X: bound_norms(X, 0.7)[0], 0.7),
    "preprocess.encoder.shorten": at_most(encoder),
    "objective.linear.LinearObjective.gradient_sum": record_sums,
    "network.passes.lengths": lambda X, form: zip(
        (float(s) ** 0.5 * (1 + 1e-15) for s in lengths(torch.tensor(X))),
        map(squares, X),
        strict=True,
    ),
    "network.clipping.Dense.squared": network_rows,
    "network.clipping.Places._between": network_places,
    "network.clipping.Mapped.add": network_sums,
    "ranking.objective.SessionObjective.gradient_sum": session_sums,
    "ranking.bounds.label_bounds": session_labels,
}
# Reached by one that is walked.
WITHIN = {
    "objective.rows.Dense._measured": "objective.linear.LinearObjective.row_norms",
    "objective.sparse.Sparse._measured": "objective.linear.LinearObjective.row_norms",
    "objective.sparse.Sparse.scaled_lengths": "objective.rows.Dense.scaled_lengths",
    "network.clipping.Places.__init__": "network.clipping.Places._between",
    "objective.rows.Rows.bounded": "objective.rounding.bound_norms",
    "estimators.rows.RowMap.__call__": "objective.rounding.bound_norms",
    "preprocess.encoder.Encoder.encode": "preprocess.encoder.shorten",
    "preprocess.matrix.MatrixEncoder._encode_dense": "preprocess.encoder.shorten",
    "preprocess.matrix.MatrixEncoder._encode_csr": "preprocess.encoder.shorten",
    "objective.multiclass.MulticlassObjective.gradient_sum": "objective.linear.LinearObjective.gradient_sum",
    "objective.users.UserObjective.gradient_sum": "objective.linear.LinearObjective.gradient_sum",
    "ranking.bounds.session_norms": "ranking.objective.SessionObjective.gradient_sum",
    "ranking.bounds._norms_and_sums": "ranking.objective.SessionObjective.gradient_sum",
    "ranking.bounds.shrunk_vectors": "ranking.objective.SessionObjective.gradient_sum",
    "ranking.bounds.shrunk_sum": "ranking.objective.SessionObjective.gradient_sum",
    "ranking.bounds.clipped_sum": "ranking.objective.SessionObjective.gradient_sum",
    "ranking.objective.SessionObjective.label_sum": "ranking.objective.SessionObjective.gradient_sum",
    "ranking.bounds.bounds_by_products": "ranking.bounds.label_bounds",
    "ranking.bounds.about_mean": "ranking.bounds.label_bounds",
    "ranking.bounds.bounds_of_centred": "ranking.bounds.label_bounds",
    "ranking.bounds.referred": "ranking.bounds.label_bounds",
    "ranking.documents.PaddedBlock.lengths": "ranking.bounds.label_bounds",
}
# What measures, but nothing that a price or a clip rests on; or where a test of its own stands.
OTHERS = {
    "objective.base.line_of": "public weights; losses are cut wherever a point lies, and the margin of a quotient is for float32",
    "objective.rounding.at_most": "released values; tests/dpcore/test_extremes.py",
    "objective.rounding.rounded_sum": "tests/dpcore/algorithms/test_small_parts.py",
    "algorithms.dp_agd.DPAGD._round": "released values",
    "algorithms.dp_blsgd.DPBLSGD._first_step_down": "released values",
    "algorithms.dp_svrg.difference_bound": "tests/dpcore/algorithms/test_small_parts.py",
    "algorithms.sgd_adv.SGDAdv.fit": "released values",
    "descent.marginals.Scaling.stretch": "released values",
    "algorithms.listnet_one_shot.ListNetOneShot.public_side": "tests/dpcore/ranking/test_algorithms.py replays it",
    "algorithms.objective_perturbation.least_tolerance": "tests/dpcore/test_extremes.py",
    "algorithms.objective_perturbation.rounding_of_gradients": "tests/dpcore/test_extremes.py",
    "audit.bounds._statistics": "released values",
    "algorithms.amp.ApproximateMinimaPerturbation.plan": "by least_tolerance, tests/dpcore/test_extremes.py",
    "objective.coded.rows.CodedRows.factors": "tests/dpcore/objective/test_coded.py, exactly",
    "objective.coded.rows.CodedRows.scaled_norms": "tests/dpcore/objective/test_coded.py, exactly",
    "objective.coded.codes.Squares.__init__": "tests/dpcore/objective/test_coded.py, exactly",
    "objective.coded.codes.Squares.roots": "tests/dpcore/objective/test_coded.py, exactly",
    "preprocess.terms._band": "a question of a model, by its encoder's public settings",
    "descent.line_search.angle_between": "released values",
    "descent.minimise._newton": "a solver's progress; rounding_of_gradients covers it",
    "descent.minimise._newton_by_products": "a solver's progress; rounding_of_gradients covers it",
    "descent.minimise._conjugate": "a solver's progress; rounding_of_gradients covers it",
    "descent.minimise._certain": "a solver's progress; rounding_of_gradients covers it",
    "mechanisms.base.l2_distance": "what tests measure releases by",
    "noise.plain_gamma_norm": "a draw of noise",
    "network.layers.by_weights": "public weights; what it gives is measured by Dense and Places",
    "network.layers.directions": "public weights",
    "network.layers.lengths_of": "public weights",
    "network.scattering._unit": "features of one record, which are measured again",
    "objective.rows.bound_blocks": "sums of values in [0, 1], whose tolerance is in the price",
    "penalties.prox_group": "released values",
    "objective.linear.LinearObjective.check_rows": "a refusal, which bound_norms makes good",
    "ranking.documents._squared_directions": "a public scale, of which nothing is promised",
}
MEASURES = {
    *(
        "row_norms",
        "quotients",
        "shortened",
        "shorten",
        "lengths_of",
        "session_norms",
        "vector_norm",
        "UNIT",
    ),
    *("bound_norms", "_norms_and_sums", "hypot"),
}


def measuring() -> set[str]:
    """Functions of dpcore whose source measures a norm, scales by one, or has a margin of rounding
    in it.
    """
    root, found = Path(dpcore.__file__).parent, set()

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, (*names, child.name))
            elif isinstance(child, ast.FunctionDef):
                used = {getattr(n, "id", None) or getattr(n, "attr", None) for n in ast.walk(child)}
                if used & (MEASURES | {"norm"}) - {child.name}:
                    found.add(".".join((*names, child.name)))

    for path in root.rglob("*.py"):
        visit(ast.parse(path.read_text()), path.relative_to(root).with_suffix("").parts)
    return found


def test_every_function_that_measures_is_walked_or_has_a_reason() -> None:
    known = {*WALKED, *WITHIN, *OTHERS}
    assert measuring() - known == set(), (
        "walk them in WALKED, or say in OTHERS why nothing rests on them"
    )
    assert set(WITHIN.values()) <= set(WALKED)


SHAPES = [(1, "dense"), (2, "csr"), (17, "dense"), (17, "csr"), (500, "csr")]


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", WALKED)
@np.errstate(all="ignore")
def test_bounds_are_at_least_the_exact_values(name: str, dtype) -> None:
    for width, form in SHAPES:
        if form == "csr" and name.startswith(("network", "ranking")):
            continue  # dense alone
        for bound, exact in WALKED[name](rows_of(width, dtype), FORMS[form]):
            assert bound == inf or Fraction(float(bound)) ** 2 >= exact


@np.errstate(all="ignore")
def test_bounds_of_five_thousand_columns() -> None:
    X = rows_of(5000)[::6]
    for name in (
        "objective.rounding.row_norms",
        "objective.rounding.shortened",
        "objective.rounding.bound_norms",
    ):
        for bound, exact in WALKED[name](X, csr_array):
            assert bound == inf or Fraction(float(bound)) ** 2 >= exact
