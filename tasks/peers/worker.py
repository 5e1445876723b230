"""Trains linear and additive models with another library: ``python worker.py NAME``.

It imports nothing of dpflows, so the interpreter that runs it needs numpy and the library alone.
The first line that it writes is {"ready": versions} or {"missing": reason}; then it answers each
line of JSON that it reads with one of its own, until its input ends. A request names an NPZ file
with ``X`` (n, d), ``y`` (n,), which is -1 or +1 or a number, and for an additive model rows ``T``
(m, d); the answer holds ``weights`` (d,) or the ``scores`` (m,) of ``T``, the ``seconds`` of the
training alone, and what the library says about the run.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

# The folder of this program must not stand in for packages of the same names.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]


class Opacus:
    """DP-SGD on a torch linear layer: Poisson batches, calibrated by Opacus' accountant, one record
    more or fewer.
    """

    packages = ("opacus", "torch", "numpy")

    def __init__(self) -> None:
        import opacus
        import torch

        torch.set_num_threads(1)
        self.torch, self.opacus = torch, opacus

    @lru_cache(maxsize=256)  # noqa: B019 - one object lives as long as the program
    def noise(
        self, epsilon: float, delta: float, rate: float, epochs: int, accountant: str
    ) -> float:
        """The noise multiplier at which Opacus' own accountant comes to ``epsilon``, to a
        thousandth of it.
        """
        from opacus.accountants.utils import get_noise_multiplier

        target = {
            "target_epsilon": epsilon,
            "target_delta": delta,
            "epsilon_tolerance": 1e-3 * epsilon,
        }
        return float(
            get_noise_multiplier(sample_rate=rate, epochs=epochs, accountant=accountant, **target)
        )

    def train(self, X: Any, y: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """``asked``: epsilon, delta, batch_size, epochs, learning_rate, momentum, clip_norm, l2,
        accountant, loading, seed.
        """
        torch = self.torch
        columns = torch.from_numpy(X.astype("float32"))
        labels = torch.from_numpy((y > 0).astype("float32"))
        size = min(asked["batch_size"], len(X))
        if asked["loading"] == "rows":
            rows = torch.utils.data.TensorDataset(columns, labels)
            loader = torch.utils.data.DataLoader(rows, batch_size=size)
        else:
            loader = torch.utils.data.DataLoader(
                Rows(columns, labels), batch_size=size, collate_fn=lambda batch: batch
            )
        # Calibrated outside of the measured time and once for equal folds, as ours is.
        noise = self.noise(
            asked["epsilon"], asked["delta"], 1 / len(loader), asked["epochs"], asked["accountant"]
        )
        torch.manual_seed(
            int.from_bytes(os.urandom(7), "big") if asked["seed"] is None else asked["seed"]
        )
        start = perf_counter()
        layer = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=columns.dtype)
        torch.nn.init.zeros_(layer.weight)
        optimizer = torch.optim.SGD(
            layer.parameters(),
            lr=asked["learning_rate"],
            momentum=asked["momentum"],
            weight_decay=asked["l2"],
        )
        engine = self.opacus.PrivacyEngine(accountant=asked["accountant"])
        model, optimizer, loader = engine.make_private(
            module=layer,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=noise,
            max_grad_norm=asked["clip_norm"],
        )
        loss = torch.nn.BCEWithLogitsLoss()
        for _ in range(asked["epochs"]):
            for features, labels in loader:
                optimizer.zero_grad()
                loss(model(features).squeeze(1), labels).backward()
                optimizer.step()
        seconds = perf_counter() - start
        weights = layer.weight.detach().reshape(-1).tolist()
        spent = float(engine.get_epsilon(asked["delta"]))
        return {
            "weights": weights,
            "seconds": seconds,
            "spent_epsilon": spent,
            "noise_multiplier": noise,
        }


class Rows:
    """A data set whose batches are cut in one piece: row by row, reading would take most of the
    time.
    """

    def __init__(self, X: Any, y: Any) -> None:
        self.X, self.y = X, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.X[row], self.y[row]

    def __getitems__(self, rows: list[int]) -> tuple[Any, Any]:
        return self.X[rows], self.y[rows]


class Diffprivlib:
    """Its LogisticRegression: objective perturbation after Chaudhuri et al. (2011), delta = 0, one
    record replaced; or its LinearRegression, the functional mechanism of Zhang et al. (2012).
    """

    packages = ("diffprivlib", "scikit-learn", "numpy")

    def __init__(self) -> None:
        from diffprivlib.models import LinearRegression, LogisticRegression

        self.model, self.linear = LogisticRegression, LinearRegression

    def train(self, X: Any, y: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """``asked``: epsilon, norm_bound, loss, labels, C, max_iter, tol, seed."""
        fit = self.classes if asked["loss"] == "logistic" else self.numbers
        return fit(X.astype("float64"), y, asked)

    def numbers(self, X: Any, y: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """Least squares. No value exceeds 1 in size; the bounds are -1 and 1 even where columns are
        declared from 0 on, for the library takes the lower bound as the size of a square, and would
        release sums of squares without noise (0.6.6).
        """
        model = self.linear(
            epsilon=asked["epsilon"],
            bounds_X=(-1.0, 1.0),
            bounds_y=tuple(asked["labels"]),
            fit_intercept=False,
            random_state=asked["seed"],
        )
        start = perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - start
        weights = model.coef_.reshape(-1).tolist()
        return {"weights": weights, "seconds": seconds, "spent_epsilon": asked["epsilon"]}

    def classes(self, X: Any, y: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """Logistic regression.

        The bound that the library takes from ``data_norm`` is right for rows of norm 1, so rows are
        scaled to that and the weights scaled back.
        """
        scale = asked["norm_bound"]
        X = X / scale
        model = self.model(
            epsilon=asked["epsilon"],
            data_norm=1.0,
            C=asked["C"],
            fit_intercept=False,
            max_iter=asked["max_iter"],
            tol=asked["tol"],
            random_state=asked["seed"],
        )
        start = perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - start
        weights = (model.coef_.reshape(-1) / scale).tolist()
        return {
            "weights": weights,
            "seconds": seconds,
            "spent_epsilon": asked["epsilon"],
            "C": asked["C"],
        }


class DPEBM:
    """InterpretML's DP-EBM (Nori et al. 2021): noisy bins, then additive boosting on random splits,
    one record more or fewer.
    """

    packages = ("interpret-core", "numpy")

    def __init__(self) -> None:
        from interpret.privacy import (
            DPExplainableBoostingClassifier,
            DPExplainableBoostingRegressor,
        )

        self.classes, self.numbers = DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    def train(self, X: Any, y: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """``asked``: epsilon, delta, loss, labels, attributes, T, max_bins, learning_rate,
        max_rounds, max_leaves, bin_budget_frac, seed.
        """
        columns = asked["attributes"]
        names = ("epsilon", "delta", "max_bins", "learning_rate", "max_rounds", "max_leaves")
        settings = {name: asked[name] for name in (*names, "bin_budget_frac")} | {
            "feature_types": ["nominal" if one["nominal"] else "continuous" for one in columns],
            "privacy_bounds": {
                place: tuple(one["bounds"])
                for place, one in enumerate(columns)
                if not one["nominal"]
            },
            "random_state": asked["seed"],
            "n_jobs": 1,
        }
        rows, test = (values(table, columns) for table in (X, asked["T"]))
        start = perf_counter()
        if asked["loss"] == "logistic":
            score = self.classes(**settings).fit(rows, y).decision_function
        else:
            low, high = asked["labels"]
            ends = {"privacy_target_min": low, "privacy_target_max": high}
            score = self.numbers(**settings, **ends).fit(rows, y).predict
        seconds = perf_counter() - start
        return {
            "scores": score(test).tolist(),
            "seconds": seconds,
            "spent_epsilon": asked["epsilon"],
        }


def values(X: Any, attributes: Any) -> Any:
    """Attributes (n, k) from their columns (n, d): the number itself, or the place of the level
    that is 1, -1 where none is.
    """
    import numpy as np

    found = np.empty((len(X), len(attributes)))
    for place, one in enumerate(attributes):
        part = X[:, one["columns"]]
        level = np.where(part.any(axis=1), part.argmax(axis=1), -1)
        found[:, place] = level if one["nominal"] else part[:, 0]
    return found


PEERS: dict[str, Any] = {"opacus": Opacus, "diffprivlib": Diffprivlib, "dp_ebm": DPEBM}


def answer(peer: Any, line: str) -> dict[str, Any]:
    """The answer to one request; an error becomes its text."""
    import numpy as np

    try:
        asked = json.loads(line)
        with np.load(asked.pop("rows"), allow_pickle=False) as rows:
            X, y = rows["X"], rows["y"]
            asked |= {"T": rows["T"]} if "T" in rows else {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = peer.train(X, y, asked)
        kinds = ("ConvergenceWarning", "PrivacyLeakWarning")
        told = [str(one.message).split("\n")[0] for one in caught if one.category.__name__ in kinds]
        return {**found, "warnings": list(dict.fromkeys(told))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(name: str) -> None:
    """Serve requests from standard input; what the library prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(found: dict[str, Any]) -> None:
        replies.write(json.dumps(found) + "\n")
        replies.flush()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = PEERS[name]()
    except Exception as error:
        reply({"missing": f"{type(error).__name__}: {error}"})
        return
    reply(
        {
            "ready": {
                **{package: version(package) for package in peer.packages},
                "python": sys.version.split()[0],
            }
        }
    )
    for line in sys.stdin:
        reply(answer(peer, line))


if __name__ == "__main__":
    main(sys.argv[1])
