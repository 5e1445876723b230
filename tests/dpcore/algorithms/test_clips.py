"""Default clips and paces: one public rule for all methods that clip, by the argument of the
loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcore.accounting import Target
from dpcore.algorithms import make, registry
from dpcore.descent.gradient import clip_share, loss_at_start, step_share, usual_cap, usual_clip
from dpcore.losses import HuberRegression, Loss, Squared, Weighted, losses, make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import Softmax
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run

RESIDUAL = [HuberRegression(), Squared()]
CLIPPING = ("dp_sgd", "dp_adam", "ssadmm", "mpadmm", "dp_admm", "dp_svrg")


def facts(loss: Loss, **changes) -> Problem:
    return Problem(
        **({"n": 4000, "dimension": 5, "loss": loss, "norm_bound": 2.0, "outputs": 1} | changes)
    )


@pytest.mark.parametrize(
    "loss", [make_loss(name) for name in sorted(losses)] + [Softmax()], ids=lambda loss: loss.name
)
def test_all_methods_clip_alike(loss: Loss) -> None:
    problem = facts(loss, outputs=3 if loss.argument == "scores" else 1)
    share = {"margin": 0.4, "scores": 0.8, "residual": 0.1}[loss.argument]
    assert usual_clip(problem) == pytest.approx(2.0 * share)
    for name in CLIPPING:
        assert make(name, {}).clip(problem) == usual_clip(problem)
        assert make(name, {"clip_norm": 0.3}).clip(problem) == 0.3
    # slope 1 at margin 0, twice that of logistic
    steep = 2.0 if loss.name in ("hinge", "huber_hinge") else 1.0
    assert make("dp_agd", {}).clips(problem)[0] == steep * usual_clip(problem)
    assert make("dp_blsgd", {}).start(problem).clip_norm == usual_clip(problem)
    assert make("dp_blsgd", {}).start(problem).clip_loss == usual_cap(problem)
    # scaled rows have norm about 1
    assert make("scaled_gd", {}).clip(problem) == clip_share(problem)


def test_class_weights_scale_clips() -> None:
    assert usual_clip(facts(Weighted(make_loss("logistic"), 3.0, 1.0))) == pytest.approx(2.4)


@pytest.mark.parametrize("loss", RESIDUAL)
def test_cap_of_a_residual_loss_is_its_largest_value_at_the_start(loss: Loss) -> None:
    y = np.linspace(-1.0, 1.0, 9)
    rows = LinearObjective(np.ones((9, 5)), y, loss)
    assert loss_at_start(facts(loss)) == max(
        rows.take([i]).value_sum(np.zeros(5))[0] for i in range(9)
    )
    assert usual_cap(facts(loss)) == loss_at_start(facts(loss))
    assert make("dp_agd", {}).clips(facts(loss))[1] == usual_cap(facts(loss))


@pytest.mark.parametrize("loss", RESIDUAL)
def test_summed_steps_of_residuals_are_those_of_margins_for_the_smaller_clip(loss: Loss) -> None:
    residual, margin = facts(loss), facts(make_loss("logistic"))
    assert step_share(residual) / step_share(margin) == pytest.approx(
        usual_clip(residual) / usual_clip(margin)
    )
    assert make("dp_sgd", {}).total_step(residual) == pytest.approx(
        make("dp_sgd", {}).total_step(margin)
    )
    ssadmm = make("ssadmm", {"steps": 4, "noise_multiplier": 4000.0})
    sums = [
        ssadmm.steps_for(replace(p, norm_bound=1.0), 1e-3).sizes.sum() for p in (residual, margin)
    ]
    assert sums[0] == pytest.approx(sums[1])
    assert make("dp_adam", {}).first_step(residual) == pytest.approx(
        make("dp_adam", {}).first_step(margin) / 4
    )


def line(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A target in [-1, 1] about a plane with an offset; its variance is 0.16, that of what no plane
    explains 0.01.
    """
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.random((n, 4)), np.ones(n)])
    y = 1.2 * X[:, 0] - 0.6 * X[:, 1] - 0.5 + 0.1 * rng.normal(size=n)
    return X / np.sqrt(5.0), np.clip(y, -1.0, 1.0)


@pytest.mark.parametrize("name", [*CLIPPING, "dp_agd", "dp_blgd", "dp_blsgd", "scaled_gd"])
@pytest.mark.parametrize("loss", RESIDUAL, ids=lambda loss: loss.name)
def test_defaults_beat_the_mean_at_a_small_epsilon(name: str, loss: Loss) -> None:
    X, y = line(4000)
    cls = registry[name]
    adjacency = "add_remove" if Adjacency.ADD_REMOVE in cls.adjacencies else "replace_one"
    problem = facts(
        loss,
        norm_bound=1.0,
        adjacency=adjacency,
        l2=getattr(cls, "default_l2", 0.0),
        intercept=True,
    )
    planned = plan(name, {}, problem, Target(0.3, 1e-6))
    errors = [
        np.mean(
            (X @ run(planned, LinearObjective(X, y, loss), seed=s, fixed_noise_seed=s).weights - y)
            ** 2
        )
        for s in range(3)
    ]
    assert np.mean(errors) < 0.5 * np.var(y)
