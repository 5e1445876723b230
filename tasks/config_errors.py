"""Errors of a configuration on one line: what pydantic found in our words, and files that belong to another command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dpcore.errors import InputError, unknown_name

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

# Keys by which a file shows for which command it was written: no other kind of file has them as sections.
KINDS: dict[str, tuple[str, type]] = {
    "retrain": ("training", dict),
    "compare": ("algorithms", list),
    "train": ("algorithm", dict),
}


def require_kind(values: Mapping[str, Any], where: str, wanted: str) -> None:
    """Raise ``InputError`` where a file was plainly written for another command than ``wanted``, a key of ``KINDS``."""
    found = next((kind for kind, (key, form) in KINDS.items() if isinstance(values.get(key), form)), wanted)
    if found == wanted:
        return
    key = KINDS[found][0]
    command = "bench" if found == "compare" and values.get("peers") else found
    raise InputError(
        f"{where}: Expected a configuration with {KINDS[wanted][0]}, got one with {key}: this looks like a "
        f"configuration for `dpflows {command}`; use that command, or another file."
    )


def rule(finding: Mapping[str, Any]) -> str:
    """What a finding of pydantic wants, for example "a number > 0"."""
    context = finding.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    return RULES.get(finding["type"], finding["msg"]).format(**context)


def describe(error: ValidationError, model: type[BaseModel], where: str, overrides: Sequence[str] = ()) -> str:
    """The first finding of pydantic as one line: place (file or ``--set``), field, value, rule, way out."""
    findings = error.errors(include_url=False)
    first = findings[0]
    path = [str(part) for part in first["loc"]]
    unknown = first["type"] == "extra_forbidden"
    where = next((f"--set {'.'.join(key)}" for key in map(_key, overrides) if _concerns(key, path, unknown)), where)
    owner, field = _place(model, path)
    if unknown:
        line = f"{where}: {unknown_name('key', path[-1], owner.model_fields, inside='.'.join(path[:-1]))}"
    else:
        description = owner.model_fields[field].description if field is not None else None
        way_out = f"; {description}" if description else ""
        line = f"{where}: Expected {rule(first)} for {'.'.join(path)}, got {shown(first['input'])}{way_out}."
    more = len(findings) - 1
    return line if not more else f"{line} ({more} more {'fault' if more == 1 else 'faults'})"


def _key(override: str) -> list[str]:
    return override.partition("=")[0].strip().split(".")


def _concerns(key: Sequence[str], path: Sequence[str], unknown: bool) -> bool:
    """Whether ``--set`` of ``key`` brought what was found at ``path``: a section that is unknown came with its key."""
    return path[: len(key)] == key or (unknown and key[: len(path)] == path)


def _place(model: type[BaseModel], path: Sequence[str]) -> tuple[type[BaseModel], str | None]:
    """The innermost section that ``path`` leads through, and its field there; places in a list are passed over."""
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
    return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)


def shown(value: object) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
