"""A stored model as a plain function of rows, for what wants one: ``mlflow.models.evaluate`` above
all.

MLflow's evaluator takes one column of predictions and looks at a model's table of label and score
in vain, so it is given a function:
``mlflow.models.evaluate(predict_fn(uri), data=frame, targets="paid", model_type="classifier")``. It
takes arrays too: to ``mlflow.pyfunc.load_model(uri).predict`` columns come by name alone.
``mlflow models serve`` takes JSON and CSV with a line of names; that CSV is read by pandas, where
an empty cell, ``NA``, ``None`` and the like are gaps. ``dpflows predict`` reads a file as the
schema says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError, require_choice
from tasks.record.model import load_model

OUTPUTS = ("label", "score", "rank")


def predict_fn(model: str, output: str = "label") -> Callable[[Any], np.ndarray]:
    """A function from rows to one column ``output`` of the stored ``model`` (a URI such as
    ``models:/NAME@ALIAS``).

    Rows: a frame with the model's columns in any order, others are left out; or an array (n,
    columns) in the order of the model's signature. The answer has shape (n,): labels as declared,
    or scores. Raises ``InputError`` where the model has no such output or a column is missing,
    naming it.
    """
    require_choice(OUTPUTS, output=output)
    loaded = load_model(model)
    names = [str(name) for name in loaded.metadata.get_input_schema().input_names()]
    known = [str(name) for name in loaded.metadata.get_output_schema().input_names()]
    if output not in known:
        raise InputError(
            f"Expected an output among {', '.join(known)} of {model!r}, got output={output!r}."
        )

    def answer(rows: Any) -> np.ndarray:
        return np.asarray(loaded.predict(_frame(rows, names))[output].to_numpy())

    return answer


def _frame(rows: Any, names: list[str]) -> pd.DataFrame:
    if isinstance(rows, pd.DataFrame):
        if missing := [name for name in names if name not in rows]:
            raise InputError(
                f"Expected the columns {', '.join(names)}, got none for "
                f"{', '.join(missing)}; add them."
            )
        return rows[names]
    table = np.asarray(rows)
    if table.ndim != 2 or table.shape[1] != len(names):
        raise InputError(
            f"Expected rows of {len(names)} columns ({', '.join(names)}), got shape {table.shape}."
        )
    return pd.DataFrame(table, columns=names).infer_objects()
