"""Trains logistic regressions with another library. Run as a program: ``python worker.py NAME``.

It imports nothing of dpflows, so the interpreter that runs it needs numpy and the library alone.
The first line that it writes is {"ready": versions} or {"missing": reason}; then it answers each
line of JSON that it reads with one of its own, until its input ends. A request names an NPZ file
with ``X`` (n, d) and ``y`` (n,) in {-1, +1}; the answer holds ``weights`` (d,), the ``seconds`` of
the training alone, and what the library says about the run.
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
        accountant, seed.
        """
        torch = self.torch
        rows = Rows(
            torch.from_numpy(X.astype("float32")), torch.from_numpy((y > 0).astype("float32"))
        )
        size = min(asked["batch_size"], len(rows))
        loader = torch.utils.data.DataLoader(rows, batch_size=size, collate_fn=lambda batch: batch)
        # Calibrated outside of the measured time and once for equal folds, as ours is.
        noise = self.noise(
            asked["epsilon"], asked["delta"], 1 / len(loader), asked["epochs"], asked["accountant"]
        )
        torch.manual_seed(
            int.from_bytes(os.urandom(7), "big") if asked["seed"] is None else asked["seed"]
        )
        start = perf_counter()
        layer = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=rows.X.dtype)
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
    record replaced.
    """

    packages = ("diffprivlib", "scikit-learn", "numpy")

    def __init__(self) -> None:
        from diffprivlib.models import LogisticRegression

        self.model = LogisticRegression

    def train(self, X: Any, y: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """``asked``: epsilon, norm_bound, C, max_iter, tol, seed.

        The bound that the library takes from ``data_norm`` is right for rows of norm 1, so rows are
        scaled to that and the weights scaled back.
        """
        scale = asked["norm_bound"]
        X = X.astype("float64") / scale
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


PEERS: dict[str, Any] = {"opacus": Opacus, "diffprivlib": Diffprivlib}


def answer(peer: Any, line: str) -> dict[str, Any]:
    """The answer to one request; an error becomes its text."""
    import numpy as np

    try:
        asked = json.loads(line)
        with np.load(asked.pop("rows"), allow_pickle=False) as rows:
            X, y = rows["X"], rows["y"]
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
