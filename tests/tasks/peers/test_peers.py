"""Other libraries beside ours: their processes, their settings in a comparison, and the ratios."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpcore.errors import InputError
from dpcore.losses import Hinge, HuberRegression, Logistic, Loss, Squared
from dpcore.problem import Adjacency, Block, Problem
from tasks.compare import load_compare, resume
from tasks.compare.batch import batches_of, run_batch
from tasks.compare.cell import run_cell
from tasks.compare.config import CompareConfig
from tasks.compare.grid import expand
from tasks.compare.ratios import missing_words, peer_settings, ratios
from tasks.home import Home
from tasks.peers import PEERS, PeerRun, check_problem, process, worker
from tasks.peers.process import PeerError, PeerProcess, end_all, peer_process
from tests.tasks.compare.cells import cell, failed
from tests.tasks.compare.test_engine import bench_of, comparison_of, public
from tests.tasks.peers.fake_peer import fake_python

BOTH = {"epsilon": [1.0], "delta": 1e-4, "adjacency": ["add_remove", "replace_one"]}


@pytest.fixture(autouse=True)
def processes_end() -> Iterator[None]:
    yield
    end_all()


def with_peers(schema: Path, python: str, **values: Any) -> CompareConfig:
    section = {
        "python": python,
        "libraries": [{"name": "opacus"}, {"name": "diffprivlib"}, {"name": "dp_ebm"}],
        "timeout": 300,
    }
    base = {
        "peers": section,
        "privacy": BOTH,
        "algorithms": [{"name": "dp_sgd", "parameters": {"steps": 3}}],
    }
    return comparison_of(schema, **(base | values))


def test_a_library_trains_on_the_rows_of_the_fold(small: Path, home: Home) -> None:
    """The fake answers with mean_i y_i x_i: that of the training part, so nothing was lost on the
    way.
    """
    public(small)
    comparison = resume.make_comparison(with_peers(small, fake_python(small.parent / "fake")), home)
    elsewhere = [one for one in comparison.cells if one.setting.peer is not None]
    assert {one.setting.label: str(one.setting.config.privacy.adjacency) for one in elsewhere} == {
        "opacus": "add_remove",
        "diffprivlib": "replace_one",
        "dp_ebm": "add_remove",
    }
    ours = {
        one.fold: comparison.rows.part(one)
        for one in comparison.cells
        if one.setting.label == "dp_sgd steps=3"
    }
    for one in elsewhere:
        record = run_cell(one, comparison.config, comparison.rows, comparison.plans)
        assert (record["status"], record["error"]) == ("done", None)
        assert (record["seconds"], record["spent_epsilon"], record["epsilon"]) == (0.5, 1.0, 1.0)
        additive = one.setting.label == "dp_ebm"  # rows as they are, scores instead of weights
        part = comparison.rows.part(one) if additive else ours[one.fold]
        assert ("objective" in record["metrics"]) is not additive
        X = part.objective.X.toarray() if hasattr(part.objective.X, "toarray") else part.objective.X
        weights = part.objective.y @ X / len(X)
        T = part.test.X.toarray() if hasattr(part.test.X, "toarray") else part.test.X
        exact = float(np.mean(np.where(T @ weights > 0, 1, -1) == part.test.y))
        assert record["metrics"]["accuracy"] == pytest.approx(exact, abs=0.5 / len(T))


def test_a_library_that_cannot_be_imported_is_named_and_the_others_run(
    small: Path, home: Home
) -> None:
    public(small)
    start = "if sys.argv[2] == 'diffprivlib': raise ImportError('no DOUBLE in sklearn.tree')"
    broken = fake_python(small.parent / "fake", start=start)
    comparison = resume.make_comparison(with_peers(small, broken), home)
    assert "opacus" in {one.setting.label for one in comparison.cells}
    [missing] = [item for item in comparison.left_out if item.label == "diffprivlib"]
    assert (
        "diffprivlib cannot be imported (ImportError: no DOUBLE in sklearn.tree)" in missing.reason
    )
    assert "dpflows[peers]" not in missing.reason  # it would bring the same versions again
    assert "'scikit-learn<1.8'" in missing.reason and "--set peers.python=" in missing.reason


def test_an_interpreter_that_is_not_there_is_refused_before_anything_starts(
    small: Path, home: Home
) -> None:
    public(small)
    plain = small.parent / "plain"
    plain.write_text("no program")
    for python in ("/nowhere/python", str(plain), str(small.parent)):
        with pytest.raises(
            InputError,
            match=r"Expected an interpreter that can be run, got "
            r"peers.python='/",
        ):
            resume.make_comparison(with_peers(small, python), home)
    assert not process._missing


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (
            "raise ValueError('a fault of the library')",
            "opacus: ValueError: a fault of the library",
        ),
        (
            "sys.stderr.write('out of memory\\n'); os._exit(9)",
            "its process ended without an answer: out of memory",
        ),
        ("time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_training_that_fails_is_a_failed_cell_and_the_next_one_runs(
    small: Path, home: Home, train: str, words: str
) -> None:
    public(small)
    flag = small.parent / "second"
    first = f"if not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'w').close(); {train}"
    section = {
        "python": fake_python(small.parent / "fake", train=first),
        "libraries": [{"name": "opacus"}],
        "timeout": 1.0 if "sleep" in train else 300,
    }
    comparison = resume.make_comparison(with_peers(small, "", peers=section), home)
    own = [one for one in comparison.cells if one.setting.peer is not None]
    # a new process takes its time
    longer = replace(own[1].setting, peer=replace(own[1].setting.peer, timeout=300.0))
    second = replace(own[1], setting=longer)
    records = [
        run_cell(one, comparison.config, comparison.rows, comparison.plans)
        for one in (own[0], second)
    ]
    assert [record["status"] for record in records] == ["failed", "done"]
    assert words in records[0]["error"]


def test_what_libraries_do_not_allow(small: Path) -> None:
    config = with_peers(small, fake_python(small.parent / "fake"))
    with pytest.raises(InputError, match="public data with peers, got 'small'"):
        peer_settings(config)
    public(small)
    with pytest.raises(InputError, match="runner: threads with peers, got 'processes'"):
        peer_settings(config.model_copy(update={"runner": "processes"}))
    assert config.peers is not None
    for entry, words in (
        ({"name": "opacuss"}, "did you mean 'opacus'"),
        ({"name": "opacus", "parameters": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"name": "opacus", "parameters": {"epochs": 2.5}}, "whole number epochs"),
        ({"name": "opacus", "parameters": {"learning_rate": 0}}, "learning_rate > 0"),
        ({"name": "opacus", "parameters": {"accountant": "best"}}, "prv, rdp, gdp"),
    ):
        bad = with_peers(small, config.peers.python or "", peers={"libraries": [entry]})
        with pytest.raises(InputError, match=words):
            peer_settings(bad)
    with pytest.raises(InputError, match="two are called 'opacus'"):
        with_peers(small, "", peers={"libraries": [{"name": "opacus"}, {"name": "opacus"}]})
    settings, left_out = peer_settings(
        with_peers(small, config.peers.python or "", objective={"l1": 0.01})
    )
    assert not settings and all("without L1" in item.reason for item in left_out)
    alone = {**BOTH, "adjacency": ["add_remove"]}
    _, [missing] = peer_settings(with_peers(small, config.peers.python or "", privacy=alone))
    assert "Expected adjacency replace_one for diffprivlib" in missing.reason


def test_what_a_library_is_asked_for() -> None:
    """diffprivlib minimises sum of losses + ||w||^2 / (2 C) on rows of norm 1, so C = norm_bound^2
    / (n l2).
    """
    problem = Problem(
        n=1000,
        dimension=3,
        loss=Logistic(),
        norm_bound=2.0,
        l2=1e-3,
        adjacency=Adjacency.REPLACE_ONE,
    )
    asked = PEERS["diffprivlib"].request({"C": 1.0, "tol": 1e-4}, problem, 0.5, 1e-6)
    assert (asked["C"], asked["norm_bound"], asked["epsilon"]) == (4.0, 2.0, 0.5)
    free = replace(problem, l2=0.0)
    assert PEERS["diffprivlib"].request({"C": 3.0}, free, 0.5, 1e-6)["C"] == 3.0
    assert PEERS["opacus"].request({}, problem, 0.5, 1e-6) == {
        **{"epsilon": 0.5, "delta": 1e-6, "norm_bound": 2.0, "l2": 1e-3, "loss": "logistic"},
    }


def test_an_additive_library_gets_attributes_and_no_parts_of_numbers(small: Path) -> None:
    blocks = (Block((0, 1, 2)), Block((3,), "numeric"))
    problem = Problem(
        n=9, dimension=6, loss=Logistic(), norm_bound=2.0, blocks=blocks, intercept=True
    )
    found = PEERS["dp_ebm"].request({}, problem, 0.5, 1e-6)["attributes"]
    assert found == [
        {"columns": [0, 1, 2], "nominal": True, "bounds": [0.0, 1.0]},
        {"columns": [3], "nominal": False, "bounds": [0.0, 1.0]},
        {"columns": [4], "nominal": False, "bounds": [-2.0, 2.0]},
    ]
    X = np.array([[0, 1.0, 0, 0.25, -1.5, 1], [0, 0, 0, 1, 0.5, 1], [1.0, 0, 0, 0, 2, 1]])
    assert worker.values(X, found).tolist() == [[1, 0.25, -1.5], [-1, 1, 0.5], [0, 0, 2]]
    public(small)
    python = fake_python(small.parent / "fake")
    for numeric, crosses, named in (
        ("hats(8)", [], "age"),
        ("minmax", [["city", {"age": "bins(3)"}]], "city"),
    ):
        entry = {"name": "dp_ebm", "preprocess": {"numeric": numeric, "crosses": crosses}}
        config = with_peers(small, python, peers={"python": python, "libraries": [entry]})
        settings, [missing] = peer_settings(config)
        assert not settings and "Expected numbers as one column each" in missing.reason
        assert named in missing.reason


@pytest.mark.parametrize("name", ["dp_ebm", "diffprivlib"])
def test_libraries_that_train_regressions(name: str) -> None:
    facts = {"n": 9, "dimension": 3, "adjacency": PEERS[name].adjacency}
    check_problem(PEERS[name], Problem(loss=HuberRegression(), **facts))
    with pytest.raises(InputError, match="loss of one score"):
        check_problem(PEERS["opacus"], Problem(loss=Squared(), **facts))
    with pytest.raises(InputError, match="got loss='hinge'"):
        check_problem(PEERS[name], Problem(loss=Hinge(), **facts))


def test_cells_of_another_version_are_other_cells(small: Path, home: Home) -> None:
    public(small)
    config = with_peers(small, fake_python(small.parent / "fake"))
    comparison = resume.make_comparison(config, home)
    for batch in batches_of(
        [one for one in comparison.cells if one.setting.peer is not None], 1, timed=True
    ):
        assert run_batch(batch, bench_of(comparison))[0]["status"] == "done"
    again = resume.make_comparison(config, home)
    assert {one.setting.label for one in again.to_run} == {
        "majority",
        "non_private minmax cap",
        "non_private minmax",
        "dp_sgd steps=3",
    }
    peer_process(str(small.parent / "fake" / "python"), "opacus").versions["numpy"] = "another"
    assert "opacus" in {one.setting.label for one in resume.make_comparison(config, home).to_run}


def test_a_library_that_is_not_installed_is_an_extra() -> None:
    words = missing_words(
        PEERS["opacus"], "opacus cannot be imported (ModuleNotFoundError: No module named 'opacus')"
    )
    assert (
        "; pip install 'dpflows[peers]', or give an interpreter" in words
        and PEERS["opacus"].install in words
    )


def test_all_lines_take_turns_where_speed_is_compared(small: Path, home: Home) -> None:
    public(small)
    comparison = resume.make_comparison(with_peers(small, fake_python(small.parent / "fake")), home)
    batches = batches_of(comparison.cells, 2, timed=True)
    folds = [batch.cells[0].fold for batch in batches]
    assert folds == sorted(folds) and all(len(batch.cells) == 1 for batch in batches)
    assert len(batches) == len(comparison.cells)


def test_ratios_pair_folds_within_one_guarantee() -> None:
    ours = [
        cell("dp_sgd", 1.0, fold=fold, seconds=0.2 + fold, metrics={"accuracy": 0.8})
        for fold in range(3)
    ]
    theirs = [
        cell("opacus", 1.0, fold=f, seconds=1.0 + f, metrics={"accuracy": 0.4 * (f + 1)})
        for f in range(3)
    ]
    broken = [*theirs[:2], failed(theirs[2])]
    elsewhere = [cell("diffprivlib", 1.0, fold=f, adjacency="replace_one") for f in range(3)]
    [one] = ratios([*ours, *broken, *elsewhere, cell("non_private", None)], {})
    assert (one.label, one.peer, one.metric, one.cells) == ("dp_sgd", "opacus", "accuracy", 2)
    assert one.ours == pytest.approx(0.8) and one.theirs == pytest.approx(0.6)
    assert one.ratio == pytest.approx(0.8 / 0.6)
    assert (one.seconds, one.peer_seconds, one.speed) == (0.2, 1.0, pytest.approx(5.0))
    assert ratios([*ours, *elsewhere], {}) == []
    assert ratios(ours, {}) == []


def test_the_shipped_bench_has_a_grid_and_names_its_libraries() -> None:
    config = load_compare(str(Path(__file__).parents[3] / "conf" / "bench.yaml"))
    settings, _ = expand(config)
    assert {"auto", "dp_sgd", "objective_perturbation"} <= {setting.label for setting in settings}
    assert config.kind == "bench" and config.title == "bench adult"
    assert config.peers is not None
    for entry in config.peers.libraries:
        assert PEERS[entry.name].parameters(entry.parameters)


def test_the_shipped_bench_has_a_line_of_ours_for_each_goal() -> None:
    """Of a regression, which has no ranking, that of ROC AUC is left out with the reason."""
    file = str(Path(__file__).parents[3] / "conf" / "bench.yaml")
    settings, _ = expand(load_compare(file))
    goals = {(s.label, s.parameters().get("goal")) for s in settings if s.label.startswith("auto")}
    assert goals == {("auto", None), ("auto, goal auc", "auc")}
    regression = ["data=[bike]", "objective.loss=[huber_regression]"]
    settings, left_out = expand(load_compare(file, regression))
    assert "auto" in {setting.label for setting in settings}
    reasons = {item.reason for item in left_out if item.label == "auto, goal auc"}
    assert len(reasons) == 1 and "goal='auc'" in reasons.pop()


def real_library(name: str, losses: Loss, rows: Any, settings: dict[str, Any]) -> Any:
    """What trains on ``rows`` by a seed, at epsilon 8: scores of the same rows. Skips where the
    interpreter of DPFLOWS_PEERS (by default this one) lacks the library.
    """
    peer = PEERS[name]
    real = PeerProcess(*key_of(name))
    try:
        real.start()
    except PeerError as error:
        pytest.skip(f"{error}; DPFLOWS_PEERS names an interpreter that has it")
    real.end()
    problem = Problem(
        n=len(rows.y),
        dimension=rows.X.shape[1],
        loss=losses,
        norm_bound=1.0,
        adjacency=peer.adjacency,
    )
    run = PeerRun(peer, peer.parameters(settings), os.environ.get("DPFLOWS_PEERS"), 120.0)

    def scores(seed: int | None) -> np.ndarray:
        found = run.train(rows, problem, (8.0, 1e-5), seed, rows)
        assert 0 < found["spent_epsilon"] <= 8.0
        return np.array(found["scores"]) if peer.additive else rows.X @ np.array(found["weights"])

    return scores


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_real_library_keeps_its_guarantee_and_learns(name: str) -> None:
    """Two classes that a line through the origin separates, epsilon 8: 0.5 would be chance."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, 4))
    # half of the bound: weights come back in our units
    X /= np.linalg.norm(X, axis=1)[:, None] / 0.5
    rows = SimpleNamespace(X=X, y=np.where(X[:, 0] > 0, 1.0, -1.0))
    small = {
        "opacus": {"batch_size": 500, "epochs": 3, "accountant": "rdp"},
        "dp_ebm": {"max_rounds": 60, "learning_rate": 0.1},
    }
    scores = real_library(name, Logistic(), rows, small.get(name, {}))
    first = scores(None)
    assert np.mean(np.sign(first) == rows.y) > 0.9
    assert not np.array_equal(first, scores(None))  # noise comes from the operating system
    assert np.array_equal(scores(5), scores(5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp_ebm", "diffprivlib"])
def test_a_real_library_learns_a_number(name: str) -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-0.5, 0.5, size=(20_000, 3))
    rows = SimpleNamespace(X=X, y=X[:, 0] + X[:, 1])
    small = {"dp_ebm": {"max_rounds": 60, "learning_rate": 0.1}}
    scores = real_library(name, Squared(), rows, small.get(name, {}))
    first = scores(None)
    assert np.mean((first - rows.y) ** 2) < 0.3 * np.var(rows.y)
    assert not np.array_equal(first, scores(None))


def key_of(name: str) -> tuple[str, str]:
    return os.environ.get("DPFLOWS_PEERS") or sys.executable, name
