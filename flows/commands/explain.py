"""``dpflows explain``: what an additive model says of each column, and why rows got a score."""

from __future__ import annotations

import json
import sys
from os.path import isfile
from pathlib import Path

from dpcore.errors import InputError
from flows.commands.predict import found_model, read_table
from tasks.record.explain import Explanation

MOST_ROWS = 1000


def explain_model(
    model: str, row: Path | None, output: Path | None, as_json: bool, any_signer: bool
) -> None:
    """Write the terms of ``model``, or why each row of the table ``row`` got its score; ``output``:
    a file for the picture.

    It reads the stored model and the rows that it is given, and nothing else.
    """
    if row is not None and not isfile(row):  # noqa: PTH113  (False for too long a name)
        raise InputError(f"Expected a table, got --row {str(row)!r}, which is no file; correct it.")
    uri, scorer, _ = found_model(model, any_signer)
    found = Explanation.of(scorer.encoder, scorer.card, scorer.weights)
    if output is not None:
        _write(output, found.picture())
    answer, text = {"model": uri, **found.to_dict()}, found.text()
    if row is not None:
        table = read_table(row, scorer.encoder, scorer.card)
        if len(table) > MOST_ROWS:
            raise InputError(
                f"Expected at most {MOST_ROWS} rows to explain, got {len(table)} in {row}; give "
                "fewer."
            )
        rows = found.rows(scorer.encoder, table)
        answer = {"model": uri, "unit": found.unit, "rows": rows, "notes": list(found.notes)}
        text = "\n".join(found.row_text(one) for one in rows)
    sys.stdout.write(json.dumps(answer) + "\n" if as_json else text)


def _write(output: Path, picture: str) -> None:
    if output.suffix != ".svg":
        raise InputError(
            f"Expected a file for the picture that ends in .svg, got {output}; rename it."
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"Expected a place to write to, got {output}: {error.strerror}; name another."
        ) from error
