"""YAML as people expect it: only true and false are booleans, dates and clock times stay text, no
key twice.

Errors of a configuration on one line: what pydantic found in our words, and files that belong to
another command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from dpcore.errors import InputError, unknown_name
from tasks.config.train import TrainConfig
from tasks.home import CONF

M = TypeVar("M", bound=BaseModel)


class PlainLoader(yaml.SafeLoader):
    """The safe loader without YAML 1.1's surprises (``no``, ``on``, ``2011-01-01``, ``1:30``)."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag.endswith((":null", ":merge"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf")
)
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789")
)
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$"
    ),
    list("-+0123456789."),
)


def _mapping(loader: PlainLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands there twice", node.start_mark
            )
    return loader.construct_mapping(node, deep=True)


def _number(loader: PlainLoader, node: yaml.ScalarNode) -> float:
    return float(
        loader.construct_scalar(node).replace("_", "").replace(".inf", "inf").replace(".nan", "nan")
    )


def _integer(loader: PlainLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node).replace("_", ""))


PlainLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
PlainLoader.add_constructor("tag:yaml.org,2002:float", _number)
PlainLoader.add_constructor("tag:yaml.org,2002:int", _integer)


def load_yaml(
    text: str, where: str, prepare: Callable[[yaml.Node], None] | None = None
) -> dict[str, Any]:
    """Parse a YAML mapping; raises ``InputError`` with file, line and problem on one line.

    ``prepare`` may change what the nodes are read as, before they are values.
    """
    try:
        loader = PlainLoader(text)
        node = loader.get_single_node()
        if node is not None and prepare is not None:
            prepare(node)
        values = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(
            f"{where}{line}: not readable as YAML: {error.problem}; correct the file."
        ) from None
    except yaml.YAMLError as error:
        raise InputError(
            f"{where}: not readable as YAML: {' '.join(str(error).split())}; correct the file."
        ) from None
    if not isinstance(values, dict):
        raise InputError(
            f"{where}: expected keys with values, got {type(values).__name__}; see `dpflows init`."
        )
    return values


# What pydantic found, in words; {..} are the numbers that it gives with the finding.
RULES = {
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number >= {ge:g}",
    "less_than": "a number < {lt:g}",
    "less_than_equal": "a number <= {le:g}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
    "model_attributes_type": "a section with keys",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "a list with {min_length} or more items",
    "missing": "a value",
}

# Keys by which a file shows for which command it was written: no other kind of file has them as
# sections.
KINDS: dict[str, tuple[str, type]] = {
    "retrain": ("training", dict),
    "compare": ("algorithms", list),
    "train": ("algorithm", dict),
}


def require_kind(values: Mapping[str, Any], where: str, wanted: str) -> None:
    """Raise ``InputError`` where a file was plainly written for another command than ``wanted``, a
    key of ``KINDS``.
    """
    found = next(
        (kind for kind, (key, form) in KINDS.items() if isinstance(values.get(key), form)), wanted
    )
    if found == wanted:
        return
    key = KINDS[found][0]
    command = "bench" if found == "compare" and values.get("peers") else found
    raise InputError(
        f"{where}: Expected a configuration with {KINDS[wanted][0]}, got one with {key}: this "
        f"looks like a configuration for `dpflows {command}`; use that command, or another file."
    )


def rule(finding: Mapping[str, Any]) -> str:
    """What a finding of pydantic wants, for example "a number > 0"."""
    context = finding.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    return RULES.get(finding["type"], finding["msg"]).format(**context)


def error_line(
    error: ValidationError, model: type[BaseModel], where: str, overrides: Sequence[str] = ()
) -> str:
    """The first finding of pydantic as one line: place (file or ``--set``), field, value, rule, way
    out.
    """
    findings = error.errors(include_url=False)
    first = findings[0]
    path = [str(part) for part in first["loc"]]
    unknown = first["type"] == "extra_forbidden"
    where = next(
        (f"--set {'.'.join(key)}" for key in map(_key, overrides) if _concerns(key, path, unknown)),
        where,
    )
    owner, field = _place(model, path)
    if unknown:
        name = unknown_name("key", path[-1], owner.model_fields, inside=".".join(path[:-1]))
        line = f"{where}: {name}"
    elif not path:  # a rule about several fields names them itself
        line = f"{where}: Expected {rule(first)}."
    else:
        description = owner.model_fields[field].description if field is not None else None
        way_out = f"; {description}" if description else ""
        line = (
            f"{where}: Expected {rule(first)} for {'.'.join(path)}, got "
            f"{value_text(first['input'])}{way_out}."
        )
    more = len(findings) - 1
    return line if not more else f"{line} ({more} more {'fault' if more == 1 else 'faults'})"


def _key(override: str) -> list[str]:
    return override.partition("=")[0].strip().split(".")


def _concerns(key: Sequence[str], path: Sequence[str], unknown: bool) -> bool:
    """Whether ``--set`` of ``key`` brought what was found at ``path``: a section that is unknown
    came with its key.
    """
    return path[: len(key)] == key or (unknown and key[: len(path)] == path)


def _place(model: type[BaseModel], path: Sequence[str]) -> tuple[type[BaseModel], str | None]:
    """The innermost section that ``path`` leads through, and its field there; places in a list are
    passed over.
    """
    owner, field = model, None
    for part in path:
        if part.isdigit():
            continue
        inner = _section(owner.model_fields[field].annotation) if field is not None else None
        if inner is not None:
            owner, field = inner, None
        elif field is not None:
            break
        if part not in owner.model_fields:
            return owner, None
        field = part
    return owner, field


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section in an annotation such as ``Section | None`` or ``tuple[Section, ...]``."""
    parts: Iterable[Any] = (annotation, *get_args(annotation))
    return next(
        (part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None
    )


def value_text(value: object) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def find_config(name: str | None, default: str = "train.yaml") -> tuple[str, str]:
    """Return (where, text) of a configuration: the file ``name``, else ./conf/ or ./, else the one
    in the package.
    """
    if name is not None:
        path = Path(name)
        if not isfile(path):  # noqa: PTH113  (False for too long a name, where Path raises)
            raise InputError(
                f"Expected a configuration file, got {name!r}, which is none; `dpflows init DIR` "
                "writes examples."
            )
        return name, read_text(path)
    for path in (Path("conf") / default, Path(default)):
        if path.is_file():
            return str(path), read_text(path)
    return f"built-in {default}", (CONF / default).read_text(encoding="utf-8")


def read_text(path: Path) -> str:
    """The text of a configuration's file; raises ``InputError`` on one line."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Expected a readable UTF-8 file at {path}, got {error}; correct the file."
        ) from error


def _base_config(name: str, where: str) -> tuple[str, str]:
    """The configuration that the one at ``where`` extends: beside it, else as it would be found
    without a folder.
    """
    path = Path(name)
    beside = Path(where).parent / path
    if beside.is_file():
        return str(beside), read_text(beside)
    if path.parent == Path() and (CONF / path).is_file():
        return find_config(None, name)
    raise InputError(
        f"{where}: Expected a configuration file for extends, got {name!r}, which is none; correct "
        "it."
    )


def extended(
    where: str,
    text: str,
    base: Callable[[str, str], tuple[str, str]],
    seen: tuple[str, ...] = (),
    prepare: Callable[[yaml.Node], None] | None = None,
) -> dict[str, Any]:
    """The values of a file which may say ``extends: OTHER``: its own keys then go over those of
    OTHER.

    Sections are merged key by key, a null removes a key. ``base(OTHER, where)`` finds the other
    file and its text.
    """
    if where in seen:
        raise InputError(
            f"{where}: extends itself by way of {' -> '.join(seen)}; name another file."
        )
    values = load_yaml(text, where, prepare)
    if "extends" not in values:
        return values
    found = base(str(values.pop("extends")), where)
    return over(extended(*found, base, (*seen, where), prepare), values)


def over(base: Any, values: Any) -> Any:
    """``values`` over ``base``, section by section; a null removes a key."""
    if not (isinstance(base, dict) and isinstance(values, dict)):
        return values
    merged = dict(base)
    for key, value in values.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = over(base.get(key), value)
    return merged


def load(
    model: type[M],
    name: str | None,
    default: str,
    overrides: Sequence[str] = (),
    kind: str | None = None,
) -> tuple[M, str]:
    """Read a configuration of one command, apply ``key=value`` overrides, and check it; return it
    and its place.

    ``kind`` is the command's key of ``KINDS``: a file that was written for another is named as
    such. Raises ``InputError`` on one line.
    """
    where, text = find_config(name, default)
    values = extended(where, text, _base_config)
    if kind is not None:
        require_kind(values, where, kind)
    for text_ in overrides:
        override(values, text_)
    return parse(model, values, where, overrides), where


def parse(
    model: type[M], values: Any, where: str = "configuration", overrides: Sequence[str] = ()
) -> M:
    """Validate nested values; raises ``InputError`` that names field, value, rule and way out."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(error_line(error, model, where, overrides)) from None


def load_config(name: str | None = None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read the configuration of a training; raises ``InputError`` on one line."""
    return load(TrainConfig, name, "train.yaml", overrides, "train")[0]


def parse_config(
    values: dict[str, Any], where: str = "configuration", overrides: Sequence[str] = ()
) -> TrainConfig:
    """The training that nested values describe; raises ``InputError`` that names field, value, rule
    and way out.
    """
    return parse(TrainConfig, values, where, overrides)


def override(values: dict[str, Any], text: str) -> None:
    """Set the value at a dotted key; the value is read as YAML."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(
            f"Expected --set key=value with a dotted key, got {text!r}; for example --set "
            "privacy.epsilon=0.5."
        )
    for depth, part in enumerate(parts[:-1], start=1):
        inner = values.setdefault(part, {})
        if inner is None:
            inner = values[part] = {}
        if not isinstance(inner, dict):
            place, rest = ".".join(parts[:depth]), value.strip()
            for name in reversed(parts[depth:]):
                rest = f"{{{name}: {rest}}}"
            whole = (
                f"{place}=[...]"
                if isinstance(inner, list) and parts[depth].isdigit()
                else f"{place}={rest}"
            )
            raise InputError(
                f"Expected a section at {place!r} for --set {text!r}, got the value "
                f"{value_text(inner)}; set the whole of it, for example --set '{whole}', or use "
                "another key."
            )
        values = inner
    values[parts[-1]] = load_yaml(f"value: {value}", f"--set {key}")["value"]
