"""Schemas: what is declared about a data set, and where schemas are found.

Find and read schema files: the working directory's ``conf/data`` wins over the package's.
"""

from __future__ import annotations

import csv
import os
from os.path import isfile
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dpcore.errors import InputError, UnknownName, near_names, unknown_name
from tasks.config.read import extended, read_text
from tasks.home import CONF
from tasks.schema.model import Schema, Unlabelled
from tasks.schema.sections import (
    BlockSpec,
    ColumnSpec,
    GroupSpec,
    LabelSpec,
    PublicSpec,
    SourceSpec,
    SplitSpec,
    TextSpec,
)

# the column of a generated ranking table that says which documents were shown together
QUERY = "query"

SECTIONS: dict[str, type[BaseModel]] = {
    "columns": ColumnSpec,
    "features": GroupSpec,
    "label": LabelSpec,
    "source": SourceSpec,
    "text": TextSpec,
    "split": SplitSpec,
    "public": PublicSpec,
    "block": BlockSpec,
}


def find_schema(name: str | Path) -> Schema:
    """Read the schema ``name``: a path to a YAML file, or NAME for ``conf/data/NAME.yaml``.

    A file may say ``extends: OTHER``; its own keys then go over those of OTHER (mappings are merged
    key by key, a null removes a key). Raises ``InputError`` (one line: file, key, value, rule, way
    out).
    """
    place, text = _place_and_text(str(name), "")
    values = extended(place, text, _place_and_text, prepare=keep_texts)
    _read_levels(values, _locate(str(name)).parent)
    try:
        return Schema.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{place}: {_first_problem(error)}") from None


def _read_levels(values: dict[str, Any], folder: Path) -> None:
    """Put the levels of the files that columns name (``levels_file``) in place, in their order.

    Such a file is text in UTF-8: the first cell of each line is a level, the first line a header
    where this cell is the column's name, code or level. It lies beside the schema, in the working
    directory or in ``DPFLOWS_DATA``.
    """
    columns = values.get("columns")
    for name, column in columns.items() if isinstance(columns, dict) else ():
        place = column.get("levels_file") if isinstance(column, dict) else None
        if isinstance(place, str) and not column.get("levels"):
            column["levels"] = _levels_in(_file_of_levels(name, place, folder), name)


def _file_of_levels(name: object, place: str, folder: Path) -> Path:
    roots = [folder, Path(), Path(os.environ.get("DPFLOWS_DATA", ""))]
    for root in roots:
        if (root / place).is_file():
            return root / place
    raise InputError(
        f"Expected the file of levels of column {name!r} at levels_file={place!r}, which does not "
        "exist; correct the path, or name the folder that holds it in DPFLOWS_DATA."
    )


def _levels_in(file: Path, name: object) -> list[str]:
    lines = csv.reader(read_text(file).removeprefix("\ufeff").splitlines())
    levels = [row[0].strip() for row in lines if row and row[0].strip()]
    headers = (str(name).casefold(), "code", "codes", "level", "levels")
    return levels[1:] if levels and levels[0].casefold() in headers else levels


# Places of a schema whose values are texts of the file; ``*`` is any key, a list's items stand for
# it.
TEXTS = {
    ("name",),
    ("missing",),
    ("relevant",),
    *(("label", key) for key in ("column", "positive", "negative", "levels", "strip_end")),
    *(("columns", "*", key) for key in ("levels", "missing")),
    *(("features", key) for key in ("name", "missing")),
    *(("source", key) for key in ("path", "tag", "tags", "sheet", "table")),
    *(("split", key) for key in ("path", "by", "salt")),
    *(("text", key) for key in ("names", "separator", "quote")),
    ("block", "column"),
}
STRING, NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"


def keep_texts(node: yaml.Node, place: tuple[str, ...] = ()) -> None:
    """Let the scalars of ``TEXTS``, and names of columns, be read as the texts that stand there.

    YAML alone reads 01, 1.10, 1e3, 1_000, +1 and true as other values; cells are texts. A level of
    text as the fill of a column is one too.
    """
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                if place == ("columns",):
                    _make_text(key)
                if key.value == "fill" and _is_column_of_levels(node, place):
                    _make_text(value, but=NULL)
                keep_texts(value, (*place, str(key.value)))
        case yaml.SequenceNode():
            for item in node.value:
                if _holds_text(place):
                    _make_text(item)
                keep_texts(item, place)
        case _ if _holds_text(place):
            _make_text(node, but=NULL)


def _holds_text(place: tuple[str, ...]) -> bool:
    known = place[:1] + ("*",) * (place[:1] == ("columns",) and len(place) > 1) + place[2:]
    return place in TEXTS or known in TEXTS


def _make_text(node: yaml.Node, but: str = "") -> None:
    """Let a scalar be read as text, unless it is a ``but`` (``NULL``)."""
    if isinstance(node, yaml.ScalarNode) and node.tag != but:
        node.tag = STRING


def _is_column_of_levels(node: yaml.MappingNode, place: tuple[str, ...]) -> bool:
    if place[:1] != ("columns",) or len(place) != 2:
        return False
    kinds = [value.value for key, value in node.value if key.value == "kind"]
    return bool(kinds) and kinds[0] in ("categorical", "ordinal")


def known_schemas() -> list[str]:
    """Names that ``find_schema`` knows, from the working directory and from the package."""
    folders = [Path("conf") / "data", CONF / "data"]
    names = (f.name for folder in folders if folder.is_dir() for f in folder.iterdir())
    return sorted({n.removesuffix(".yaml") for n in names if n.endswith(".yaml")})


def _locate(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        if not isfile(name):  # noqa: PTH113  (False for too long a name, where Path raises)
            raise InputError(
                f"Expected a schema file at data.name={name!r}, which does not exist; correct the "
                "path."
            )
        return Path(name)
    for folder in (Path("conf") / "data", CONF / "data"):
        if isfile(found := folder / f"{name}.yaml"):  # noqa: PTH113  (False for too long a name, where Path raises)
            return found
    known = unknown_name("data set", name, known_schemas())
    raise UnknownName(
        f"{known} To make one: `dpflows profile FILE -o conf/data/{name}.yaml` drafts its schema "
        "for you to review, or give the path of a schema file."
    )


def _place_and_text(name: str, _: str) -> tuple[str, str]:
    """How errors call the schema ``name``, and what stands in it."""
    found = _locate(name)
    return str(found) if name.endswith((".yaml", ".yml")) else f"conf/data/{found.name}", read_text(
        found
    )


def _first_problem(error: ValidationError) -> str:
    """One line about the first problem: key, value, rule and the near misses of an unknown key."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "schema"
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        model = SECTIONS.get(str(problem["loc"][0]), Schema) if len(problem["loc"]) > 1 else Schema
        near = near_names(key, list(model.model_fields))[:2]
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"known are {', '.join(model.model_fields)}."
        )
        return f"unknown key {place}; {hint}"
    if problem["type"] == "missing":
        return f"the key {place} is missing; declare it."
    words = problem["msg"].removeprefix("Value error, ")
    if words.endswith("."):  # an error of ours, with its own way out
        return f"{place}: {words}"
    got = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r}"
    return f"{place}: {words}{got}; correct the schema."


__all__ = ["ColumnSpec", "LabelSpec", "Schema", "Unlabelled", "find_schema", "known_schemas"]
