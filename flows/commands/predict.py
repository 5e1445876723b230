"""``dpflows predict``: score a table with a stored model."""

from __future__ import annotations

import json
import sys
from os.path import isfile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from zipfile import is_zipfile

import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError, VerificationFailed
from dpcore.preprocess import Encoder
from tasks.home import Home
from tasks.readers.numbers import read_pairs
from tasks.readers.tables import whole_parquet
from tasks.record.model import declared, raw_columns
from tasks.record.stored import load_model
from tasks.record.tracking import tracking_client
from tasks.release.bundle import open_bundle
from tasks.release.manifest import CARD, ENCODER, MANIFEST, SIGNATURE, STATE, WEIGHTS
from tasks.release.registry import model_uri
from tasks.release.verify import verify_files


def predict_file(
    model: str, file: Path, output: Path | None, as_json: bool, any_signer: bool = False
) -> None:
    """Score the rows of ``file`` and write columns label and score, one row each, in the order of
    the file.

    ``model`` is a stored model, or a bundle whose signer is trusted (``any_signer``: whoever it
    is). A ranking reads documents with their query (a table, or a LETOR file by its ending) and
    writes query, score, rank.
    """
    if not isfile(file):  # noqa: PTH113  (False for too long a name, where Path raises)
        raise InputError(
            f"Expected a table to score, got {str(file)!r}, which is no file; correct the path."
        )
    if is_bundle(Path(model)):
        uri, scorer = released_model(Path(model), any_signer)
        scored = scorer.predict(None, read_table(file, scorer.encoder, scorer.card))
    else:
        if any_signer:
            raise InputError(
                f"Expected --any-signer with a bundle, got {model!r}, which is none; leave it out."
            )
        home = Home.find().prepare()
        uri = model_uri(tracking_client(home), model)
        loaded = load_model(uri)
        scorer = loaded.unwrap_python_model()
        scored = loaded.predict(read_table(file, scorer.encoder, scorer.card))
    if output is not None:
        write_table(scored, output)
        done = {"model": uri, "rows": len(scored), "output": str(output)}
        sys.stdout.write(
            json.dumps(done) + "\n"
            if as_json
            else f"{len(scored)} rows scored, written to {output}\n"
        )
    elif as_json:
        sys.stdout.write(
            json.dumps({"model": uri, "rows": scored.to_dict(orient="records")}) + "\n"
        )
    else:
        sys.stdout.write(scored.to_csv(index=False))


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
    from tasks.record.scoring import LinearScorer

    bundle = open_bundle(path)
    report = verify_files(bundle, None, None, None if any_signer else listed())
    if not report.ok:
        raise VerificationFailed(
            f"Expected a bundle that verifies at {path}, got {', '.join(sorted(report.names))}; "
            f"`dpflows verify` says "
            "more, and --any-signer takes a signer that is not listed."
        )
    with TemporaryDirectory() as folder:
        for name in (WEIGHTS, ENCODER, CARD, STATE):
            if name in bundle:
                (Path(folder) / Path(name).name).write_bytes(bundle[name])
        scorer = LinearScorer()
        scorer.load_context(SimpleNamespace(artifacts={"model": folder}))  # type: ignore[arg-type]
    return f"{report.name}@{report.version}", scorer


def read_table(file: Path, encoder: Any, card: dict[str, Any]) -> pd.DataFrame:
    """The raw columns that the model reads. Texts stay texts: the encoder knows which of them stand
    for no value.

    A file without header follows the layout of the training files, with or without the label; one
    with a header of the columns' names goes by it, whatever the training files had.
    """
    wanted, label, layout = raw_columns(encoder), card["label"]["column"], card["text"]
    query = card["label"].get("query")
    if query is not None:
        if file.name.removesuffix(".gz").endswith((".txt", ".letor")):
            return read_letor(file, encoder, query)
        wanted = [query, *wanted]
    try:
        if file.suffix == ".parquet":
            frame = whole_parquet(file)
        else:
            frame = read_text(file, encoder, as_laid_out(file, wanted, layout), query)
    except InputError:
        raise
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise InputError(
            f"{file}: not readable as a table: {' '.join(str(error).split())[:200]}; correct the "
            f"file."
        ) from None
    if not len(frame):
        raise InputError(f"{file}: the table has no rows; give a table with rows.")
    if all(isinstance(name, int) for name in frame.columns):
        frame.columns = pd.Index(
            positional_names(len(frame.columns), wanted, label, layout["names"], file)
        )
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    check_double(file, list(frame.columns))
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise InputError(
            f"{file}: column {missing[0]!r} is missing ({len(missing)} of {len(wanted)}); the "
            f"model reads "
            f"{', '.join(wanted[:8])}{', ...' if len(wanted) > 8 else ''}."
        )
    return frame[wanted]


def read_letor(file: Path, encoder: Any, query: str) -> pd.DataFrame:
    """Documents of a LETOR file: query and features; its labels are not looked at."""
    parts = []
    for chunk in read_pairs(file, encoder.groups, ranked=True):
        table: Any = chunk.table
        table = table.toarray() if issparse(table) else table
        parts.append(pd.DataFrame(table, columns=pd.Index(raw_columns(encoder))))
        parts[-1].insert(0, query, chunk.queries)
    return pd.concat(parts, ignore_index=True)


def as_laid_out(file: Path, wanted: list[str], layout: dict[str, Any]) -> dict[str, Any]:
    """``layout`` with the header that this very file has; raises ``InputError`` for two columns of
    one name.

    Where the schema names the columns of files with a header, one that does not name all of them is
    read over.
    """
    first = pd.read_csv(
        file, header=None, nrows=1, dtype=str, keep_default_na=False, **parsing(layout)
    )
    cells = [str(cell).strip() for cell in first.iloc[0]] if len(first) else []
    if layout["header"] and layout["names"] and not set(wanted) <= set(cells):
        return {**layout, "header": False, "skip_lines": layout["skip_lines"] + 1}
    headed = layout["header"] or has_header(file, wanted, set(cells))
    if headed:
        # pandas would give the second one another name, and nothing would say which of them was
        # scored.
        check_double(file, cells)
    return {**layout, "header": headed}


def check_double(file: Path, names: list[str]) -> None:
    """Raise ``InputError`` for two columns of one name, as a training does."""
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InputError(
            f"{file}: two columns are named {double!r}; give every column its own name."
        )


def has_header(file: Path, wanted: list[str], cells: set[str]) -> bool:
    """Whether line 1 names all the columns; raises ``InputError`` where it names some, or spells
    them otherwise.
    """
    if set(wanted) <= cells:
        return True
    near = {name.casefold() for name in wanted} & {cell.casefold() for cell in cells}
    if near:
        missing = next(name for name in wanted if name not in cells)
        raise InputError(
            f"{file}: line 1 looks like a header, but lacks the column {missing!r}; name all of "
            f"{', '.join(wanted[:8])}{', ...' if len(wanted) > 8 else ''}, or delete the line."
        )
    return False


def parsing(layout: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``pandas.read_csv`` for the declared layout."""
    return {
        "sep": r"\s+" if layout["separator"] == " " else layout["separator"],
        "decimal": layout["decimal"],
        "thousands": layout["thousands"],
        "quotechar": layout["quote"],
        "encoding": layout["encoding"],
        "skiprows": layout["skip_lines"],
        "skipinitialspace": layout["strip"],
    }


def read_text(file: Path, encoder: Any, layout: dict[str, Any], query: str | None) -> pd.DataFrame:
    """Separated text in the layout of the training files; packed files by the end of their name.

    Levels and ids of queries are read as they stand: 007 is not 7.
    """
    texts = (
        [c.name for c in declared(encoder) if c.kind not in ("numeric", "flag")]
        if isinstance(encoder, Encoder)
        else []
    )
    texts += [query] if query is not None else []
    header = 0 if layout["header"] else None
    return pd.read_csv(
        file,
        header=header,
        dtype=dict.fromkeys(texts, str) if header == 0 else None,
        keep_default_na=False,
        low_memory=False,
        **parsing(layout),
    )


def positional_names(
    width: int, wanted: list[str], label: str, names: list[str], file: Path
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
