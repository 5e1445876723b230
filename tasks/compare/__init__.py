"""Many runs side by side: their cells, statistics, figures, tables and the page. Here: how their
configuration is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tasks.compare.config import CompareConfig
from tasks.config.read import load, parse


def load_compare(
    name: str | None = None, overrides: Sequence[str] = (), default: str = "compare_adult.yaml"
) -> CompareConfig:
    """Read a comparison and apply ``key=value`` overrides; raises ``InputError`` on one line.

    With protocol=quick the file's section ``quick`` goes over the file and below ``overrides``; a
    ``protocol`` in it stands for the quick one.
    """
    config = load(CompareConfig, name, default, overrides, "compare")[0]
    if config.protocol.name != "quick" or not config.quick:
        return config
    smaller = [f"{key}={json.dumps(value)}" for key, value in config.quick.items()]
    others = [text for text in overrides if "protocol" not in config.quick or not _quick(text)]
    return load(CompareConfig, name, default, [*smaller, *others], "compare")[0]


def _quick(override: str) -> bool:
    """Whether ``--set`` asks for the quick protocol."""
    return override.replace(" ", "") == "protocol=quick"


def parse_compare(values: dict[str, Any]) -> CompareConfig:
    """The comparison that nested values describe; raises ``InputError`` that names field, value,
    rule and way out.
    """
    return parse(CompareConfig, values)
