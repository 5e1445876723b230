"""``dpflows predict`` and ``explain``: score a table with a stored model, say why it scores so."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from os.path import isfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import is_zipfile

import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError, VerificationFailed
from dpcore.identity import declared_names
from dpcore.preprocess import Encoder
from tasks.home import Home
from tasks.readers import format_of, whole_table
from tasks.readers.numbers import pairs_of, read_pairs
from tasks.readers.parts import Part, parts_at, require_once
from tasks.readers.text import first_record
from tasks.record.example import answers
from tasks.record.explain import Explanation
from tasks.record.model import declared, raw_columns
from tasks.record.stored import load_model
from tasks.record.tracking import tracking_client
from tasks.release.bundle import open_bundle
from tasks.release.manifest import CARD, ENCODER, MANIFEST, SIGNATURE, STATE, WEIGHTS
from tasks.release.registry import model_uri
from tasks.release.verify import verify_files
from tasks.schema import Schema, Unlabelled

MOST_ROWS = 1000


def predict_file(
    model: str, file: Path, output: Path | None, as_json: bool, any_signer: bool = False
) -> None:
    """Score the rows of ``file`` and write columns label, probability (where the model states one)
    and score, the margin; one row each, in the order of the file.

    ``model`` is a stored model, or a bundle whose signer is trusted (``any_signer``: whoever it
    is). A ranking reads documents with their query (a table, or a LETOR file by its ending) and
    writes query, score, rank.
    """
    parts = table_parts(file)
    if not parts:
        raise InputError(
            f"Expected a table to score, got {str(file)!r}, which is no file; correct the path."
        )
    uri, scorer, loaded = found_model(model, any_signer)
    table = read_tables(parts, scorer.encoder, scorer.card)
    scored = scorer.predict(None, table) if loaded is None else loaded.predict(table)
    words = {name: text for name, (_, text) in answers(scorer.card).items() if name in scored}
    if output is not None:
        write_table(scored, output)
        done = {"model": uri, "rows": len(scored), "output": str(output), "columns": words}
        said = [f"{len(scored)} rows scored, written to {output}"]
        said += [f"  {name}: {text}" for name, text in words.items()]
        sys.stdout.write((json.dumps(done) if as_json else "\n".join(said)) + "\n")
    elif as_json:
        rows = scored.to_dict(orient="records")
        sys.stdout.write(json.dumps({"model": uri, "columns": words, "rows": rows}) + "\n")
    else:
        sys.stdout.write(scored.to_csv(index=False))


def found_model(model: str, any_signer: bool) -> tuple[str, Any, Any]:
    """Name, scorer and MLflow's wrapper (None of a bundle) of a stored model or a bundle."""
    if is_bundle(Path(model)):
        return *released_model(Path(model), any_signer), None
    if any_signer:
        raise InputError(
            f"Expected --any-signer with a bundle, got {model!r}, which is none; leave it out."
        )
    uri = model_uri(tracking_client(Home.find().prepare()), model)
    loaded = load_model(uri)
    return uri, loaded.unwrap_python_model(), loaded


def is_bundle(path: Path) -> bool:
    """Whether a folder or zip is a bundle of ``dpflows release``, as far as its files' names
    say.
    """
    try:
        return (
            (path / MANIFEST).is_file() and (path / SIGNATURE).is_file()
            if path.is_dir()
            else is_zipfile(path)
        )
    except OSError:  # too long a name
        return False


def released_model(path: Path, any_signer: bool) -> tuple[str, Any]:
    """Name and scorer of a bundle that passed every check of ``dpflows verify``; raises
    ``VerificationFailed``.

    No code of the bundle is run: its weights, encoder and card are read by this version's scorer,
    from the very bytes that were checked.
    """
    from flows.commands.verify import listed
    from tasks.kinds import own_scores
    from tasks.record.scoring import LinearScorer

    bundle = open_bundle(path)
    report = verify_files(bundle, None, None, None if any_signer else listed())
    if not report.ok:
        raise VerificationFailed(
            f"Expected a bundle that verifies at {path}, got {', '.join(sorted(report.names))}; "
            "`dpflows verify` says more, and --any-signer takes a signer that is not listed."
        )
    with TemporaryDirectory() as folder:
        for name in (WEIGHTS, ENCODER, CARD, STATE):
            if name in bundle:
                (Path(folder) / Path(name).name).write_bytes(bundle[name])
        scorer = LinearScorer()
        scorer.read(Path(folder), own_scores(json.loads(bundle[CARD])))
    return f"{report.name}@{report.version}", scorer


def table_parts(place: str | Path) -> list[Part]:
    """The files of a table to score: one, those of a glob, or the parts of a folder."""
    try:
        return parts_at(place, "the table to score")
    except OSError:  # too long a name
        return []


def read_tables(parts: Sequence[Part], encoder: Any, card: dict[str, Any]) -> pd.DataFrame:
    """The rows of all parts, one after the other, as ``read_table`` gives those of one."""
    require_once(parts, "the table to score")
    frames = [read_table(part, encoder, card) for part in parts]
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def read_table(file: Part, encoder: Any, card: dict[str, Any]) -> pd.DataFrame:
    """The raw columns that the model reads, by the readers of a training: whatever trained a model
    is scored by it.

    A file without header follows the layout of the training files, with or without the label; one
    with a header of the columns' names goes by it, whatever the training files had. Raises
    ``InputError`` naming file, row and column.
    """
    wanted, query = raw_columns(encoder), card["label"].get("query")
    if not isinstance(encoder, Encoder) and pairs_of(file) is not None:
        return read_numbered(file, encoder, query)
    if query is not None:
        wanted = [query, *wanted]
    schema = schema_to_score(encoder, card, query)
    if format_of("csv", file) == "csv":
        label, named = card["label"]["column"], list(card["text"]["names"])
        schema = as_laid_out(schema, file, wanted, label, named)
    return whole_table(schema, [file])[wanted]


def schema_to_score(encoder: Any, card: dict[str, Any], query: str | None) -> Schema:
    """What a stored model says of the rows that it reads, as the readers ask for it."""
    columns: dict[str, Any] = {} if query is None else {query: {"kind": "id"}}
    if isinstance(encoder, Encoder):
        for column in declared(encoder):
            columns[column.name] = {k: v for k, v in column.to_dict().items() if k != "name"}
    else:
        for group in encoder.groups:
            spec = {"kind": "numeric", "low": group.low, "high": group.high, "fill": group.fill}
            columns |= {name: {**spec, "missing": group.missing} for name in group.names}
    return Unlabelled.model_validate(
        {
            "schema_version": 1,
            "name": "rows-to-score",
            "public": {"n": 1},
            "text": {**card["text"], "names": []},
            "columns": columns,
            "label": {"column": card["label"]["column"], "positive_from": 0},
            "undeclared": "ignore",
        }
    )


def read_numbered(file: Part, encoder: Any, query: str | None) -> pd.DataFrame:
    """Rows of a LETOR or SVMlight file: features, and of a ranking the query; labels are not looked
    at.
    """
    parts = []
    for chunk in read_pairs(file, encoder.groups, ranked=query is not None):
        table: Any = chunk.table
        table = table.toarray() if issparse(table) else table
        parts.append(pd.DataFrame(table, columns=pd.Index(raw_columns(encoder))))
        if query is not None:
            parts[-1].insert(0, query, chunk.queries)
    return pd.concat(parts, ignore_index=True)


def as_laid_out(
    schema: Schema, file: Part, wanted: list[str], label: str, named: list[str]
) -> Schema:
    """``schema`` with the header that this very file has, or the names of its columns.

    Where the schema names the columns of files with a header, one that does not name all of them is
    read over. Raises ``InputError`` for two columns of one name.
    """
    text = schema.text
    cells = [cell.strip() for cell in first_record(schema, file)]
    found = declared_names(cells, wanted)
    whole = len(found) == len(wanted)
    if whole or (text.header and not named):
        check_double(file, cells)
        return _laid_out(schema, header=True, names=())
    if not text.header:
        refuse_near_header(file, wanted, cells, found)
    names = positional_names(len(cells), wanted, label, named, file)
    return _laid_out(schema, names=tuple(names))


def _laid_out(schema: Schema, **text: Any) -> Schema:
    return schema.model_copy(update={"text": schema.text.model_copy(update=text)})


def check_double(file: Part, names: list[str]) -> None:
    """Raise ``InputError`` for two columns of one name, as a training does."""
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InputError(
            f"{file}: two columns are named {double!r}; give every column its own name."
        )


def refuse_near_header(
    file: Part, wanted: list[str], cells: list[str], found: Collection[str]
) -> None:
    """Raise ``InputError`` where the first line names some of the columns, or spells them
    otherwise.
    """
    near = {name.casefold() for name in wanted} & {cell.casefold() for cell in cells}
    if near or found:
        missing = next(name for name in wanted if name not in found)
        raise InputError(
            f"{file}: line 1 looks like a header, but lacks the column {missing!r}; name all of "
            f"{', '.join(wanted[:8])}{', ...' if len(wanted) > 8 else ''}, or delete the line."
        )


def positional_names(
    width: int, wanted: list[str], label: str, names: list[str], file: Part
) -> list[str]:
    """Names for the columns of a file without header."""
    full = list(names) or [*wanted, label]
    for candidate in (full, [name for name in full if name != label], wanted):
        if len(candidate) == width:
            return candidate
    raise InputError(
        f"{file}: {width} columns without names, but training files have {len(full)}; add a header."
    )


def write_table(scored: pd.DataFrame, output: Path) -> None:
    """Write CSV, or Parquet by the name's ending."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".parquet":
            scored.to_parquet(output, index=False)
        else:
            scored.to_csv(output, index=False)
    except OSError as error:
        raise InputError(
            f"Expected a place to write to, got {output}: {error.strerror}; name another."
        ) from error


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
